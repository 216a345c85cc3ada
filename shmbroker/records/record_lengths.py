"""Where the records of many batches begin and end: the part of decoding that is a chain.

A record is found only through the length of the one before it. Three ways, fastest first:

    foretell  if the records of a batch have one size (a second one from offset delta 64 on, a third
              from 8,192 on, where the delta's varint grows), all places are arithmetic; each length
              is then compared with what was foretold.
    lockstep  record k of all other batches at once, so that the price of a numpy call is shared by
              as many batches as there are.
    walk      one batch after the other in Python, lengths only, where fewer than
              LOCKSTEP_BATCHES_MIN are left to share a step (few, but large batches).

Nothing read here is believed: positions beyond the data read some byte that is there, and the
result counts only if the records fill their batch exactly.
"""

import numpy as np

from shmbroker.errors import CorruptFault
from shmbroker.records.batch_layout import RECORD_SIZE_MIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

LOCKSTEP_BATCHES_MIN = 24
"""A step costs the same however few batches share it, a walk the more, the more records it meets:
below that many batches the walk is quicker."""

_PROOF_ROWS = 32_768
"""Rows compared at once, so that what is in between stays in the cache."""

_RUN_EDGES = np.array([0, 64, 8192, 1 << 62])
"""Offset deltas from which on their varint has one, two, three bytes."""

FAR = 1 << 62
"""Where a varint that is too long is said to end: beyond any limit it will be compared with."""


def varints(raw: "Bytes", at: "Int64s", size_max: int) -> tuple["Int64s", "Int64s"]:
    """Zigzag varints at these positions: (numbers, positions behind them).

    A position outside of `raw` reads its first or last byte, and a number of more than `size_max`
    bytes (5: int32, 10: int64) is a zero that ends at FAR; so the caller must compare what it gets
    with the end of the record, and needs to compare nothing else.
    """
    # one byte each, or one and two: all but the last step in small integers, which is cheap
    byte = raw.take(at, mode="clip")
    end = at + 1
    small: NDArray[np.integer[Any]] = byte
    if len(byte) and byte.max() >= 0x80:
        second = raw.take(end, mode="clip")
        two = byte >> 7
        if (two & second >> 7).any():
            return _long_varints(raw, at, size_max)
        small = (byte & 0x7F) + (second.astype(np.uint16) << 7) * two
        end += two
    value = (small >> 1).astype(np.int64)
    is_odd = byte & 1
    if is_odd.any():
        value ^= -is_odd.astype(np.int64)
    return value, end


def _long_varints(raw: "Bytes", at: "Int64s", size_max: int) -> tuple["Int64s", "Int64s"]:
    """The varints at these places, and their ends, for numbers of any size."""
    byte = raw.take(at, mode="clip")
    value = (byte & 0x7F).astype(np.int64)
    end = at + 1
    more = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(more):
        if shift >= 7 * size_max:
            value[more] = 0
            end[more] = FAR
            break
        byte = raw.take(end[more], mode="clip")
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        end[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    if size_max == 5:
        is_large = value >> 32 != 0
        value[is_large] = 0
        end[is_large] = FAR
    return (value.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(value & 1), end


def find_records(
    raw: "Bytes", low: "Int64s", high: "Int64s", count: "Int64s"
) -> tuple["Int64s", "Int64s"]:
    """Where the body of every record (what follows its length) begins and ends, in order.

    The records of batch i lie in raw[low[i] : high[i]] and are count[i] > 0 many. Raises
    CorruptFault if they do not fill it, or can't, before memory is taken for them.
    """
    if (count * RECORD_SIZE_MIN > high - low).any():
        raise CorruptFault("a batch is too short for its record count")
    return _Chains(raw, low, high, count).find()


class _Chains:
    """The batches, and the arrays to fill; `row_of` is the row of each batch's first record."""

    __slots__ = ("bodies", "count", "ends", "high", "low", "raw", "row_of")

    def __init__(self, raw: "Bytes", low: "Int64s", high: "Int64s", count: "Int64s") -> None:
        self.raw = raw
        self.low = low
        self.high = high
        self.count = count
        self.row_of = np.cumsum(count) - count
        self.bodies, self.ends = np.empty((2, int(count.sum())), np.int64)

    def find(self) -> tuple["Int64s", "Int64s"]:
        left = self._foretell()
        if len(left):
            # the batches with most records first: those still in step are always a prefix
            left = left[np.argsort(-self.count[left], kind="stable")]
            if not self._lockstep(left):
                raise CorruptFault("record lengths that do not fill their batch")
        return self.bodies, self.ends

    def _foretell(self) -> "NDArray[np.intp]":
        """Do the batches whose record sizes can be foretold; the indexes of the others."""
        count, room = self.count, self.high - self.low
        run_rows = np.diff(np.minimum(count[:, None], _RUN_EDGES), axis=1)
        run_size, run_start = np.zeros((2, *run_rows.shape), np.int64)
        position = self.low
        for run in range(int((run_rows > 0).any(axis=0).sum())):
            length, body = varints(self.raw, position, 5)
            run_size[:, run] = np.clip(body + length - position, 0, room + 1)
            run_start[:, run] = position
            position = position + run_size[:, run] * run_rows[:, run]
        is_done = position == self.high
        chosen = np.flatnonzero(is_done)
        rows = np.cumsum(count[chosen])
        begin = 0
        while begin < len(chosen):
            before = int(rows[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(rows, before + _PROOF_ROWS, "right")))
            part = chosen[begin:end]
            is_done[part] = self._prove(part, run_rows[part], run_size[part], run_start[part])
            begin = end
        return np.flatnonzero(~is_done)

    def _prove(
        self, part: "NDArray[np.intp]", run_rows: "Int64s", run_size: "Int64s", run_start: "Int64s"
    ) -> "NDArray[np.bool_] | bool":
        """Compare every foretold size of these batches with the length that is there.

        By induction that is proof: the first record begins where it must, and if its size is as
        foretold then so is the place of the next.
        """
        run_rows, run_size, run_start = run_rows.ravel(), run_size.ravel(), run_start.ravel()
        run_first = np.cumsum(run_rows) - run_rows
        size = np.repeat(run_size, run_rows)
        start = np.repeat(run_start - run_first * run_size, run_rows) + np.arange(len(size)) * size
        length, body = varints(self.raw, start, 5)
        end = body + length
        right = (end - start == size) & (size >= RECORD_SIZE_MIN)
        count = self.count[part]
        first = np.cumsum(count) - count
        rows: slice | Int64s
        if int(part[-1] - part[0]) + 1 == len(part):
            row = int(self.row_of[part[0]])
            rows = slice(row, row + len(size))
        else:
            rows = np.repeat(self.row_of[part] - first, count) + np.arange(len(size))
        self.bodies[rows] = body  # what is wrong here is overwritten in lockstep
        self.ends[rows] = end
        return bool(right.all()) or np.logical_and.reduceat(right, first)

    def _lockstep(self, left: "NDArray[np.intp]") -> bool:
        """Do these batches, ordered by falling count; whether they are filled exactly."""
        raw, bodies, ends = self.raw, self.bodies, self.ends
        count, high, row_of = self.count[left], self.high[left], self.row_of[left]
        steps = int(count[0])
        in_step = np.searchsorted(-count, -np.arange(steps)).tolist()  # batches with a record k
        position = self.low[left]
        bad = np.zeros(len(left), np.int64)  # negative where a length was
        step = 0
        while step < steps and in_step[step] >= LOCKSTEP_BATCHES_MIN:
            n = in_step[step]
            length, body = varints(raw, position[:n], 5)
            bad[:n] |= length
            end = body + length
            row = row_of[:n] + step
            bodies[row] = body
            ends[row] = end
            position[:n] = end
            step += 1
        for index in range(in_step[step] if step < steps else 0):
            low, stop = int(position[index]), int(high[index])
            if not 0 <= low < stop:
                return False
            walked = _walk(raw[low:stop].tobytes(), int(count[index]) - step)
            if walked is None:
                return False
            begin = int(row_of[index]) + step
            rows = slice(begin, begin + len(walked[0]))
            np.add(walked[0], low, out=bodies[rows])
            np.add(walked[1], low, out=ends[rows])
            position[index] = stop
        return bool((position == high).all()) and bool((bad >= 0).all())


def _walk(data: bytes, count: int) -> "tuple[Int64s, Int64s] | None":
    """Begins and ends of the bodies of `count` records that fill `data`; None if they don't."""
    bodies = []
    ends = []
    position = 0
    try:
        for _ in range(count):
            value = data[position]
            position += 1
            if value >= 0x80:
                value &= 0x7F
                shift = 7
                while True:
                    byte = data[position]
                    position += 1
                    value |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
                    if shift > 28:
                        return None
            if value & 1:
                return None
            bodies.append(position)
            position += value >> 1
            ends.append(position)
    except IndexError:
        return None
    if position != len(data):
        return None
    return np.array(bodies, np.int64), np.array(ends, np.int64)
