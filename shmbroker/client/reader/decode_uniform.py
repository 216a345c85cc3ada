"""Records that are all laid out as the first one, for `decode_numpy`: their places are arithmetic.

Guessed from the first record of a group: every one has a key of so many bytes, a value of so many,
no headers, a timestamp delta of one byte, and its index in the batch for offset delta. So it is

    length, attributes, timestamp delta, offset delta, key length | key | value length | value | 0
    └─ at most 8 bytes: the word ───────────────────────────────┘

and with its index all of that is known but for attributes, timestamp delta, key and value. Nothing
is believed: everything known is compared, record by record, and batches among which anything
differs are left to whoever can read all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shmbroker.records.batch_scan import BatchGroup, gather

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]

INDEX_MAX = 1 << 13
"""The index from which on an offset delta has three bytes."""

_WORD_BYTES = 8


class Alike(NamedTuple):
    """The records of some batches, in order."""

    number: Int64s
    """The place of each in its batch: its offset delta."""
    time_bits: Words
    """Timestamp deltas, as zigzag numbers."""
    key: Int64s
    value: Int64s


class Layout:
    """What stands where in the record of any index, by tables."""

    __slots__ = (
        "_expected",
        "_key",
        "_mask",
        "_start",
        "_time_shift",
        "_value_head",
        "key_length",
        "value_length",
    )

    def __init__(self, key_length: int, value_length: int, records: int) -> None:
        """Make room for batches with at most so many records, at most INDEX_MAX."""
        self.key_length, self.value_length = key_length, value_length
        self._value_head = _varint(value_length)
        behind = len(_varint(key_length)) + key_length + len(self._value_head) + value_length + 1
        index = np.arange(records)
        self._expected, self._mask = np.zeros((2, records), np.uint64)
        self._time_shift = np.zeros(records, np.uint64)
        self._key = np.zeros(records, np.int64)
        size = np.zeros(records, np.int64)
        for low, high, delta_size in ((0, 64, 1), (64, INDEX_MAX, 2)):
            part = slice(low, min(high, records))
            length = _varint(2 + delta_size + behind)
            head = len(length)
            size[part] = head + 2 + delta_size + behind
            self._time_shift[part] = 8 * (head + 1)
            self._key[part] = head + 2 + delta_size + len(_varint(key_length))
            # length, attributes, timestamp delta, offset delta, key length
            zeros = bytes(delta_size)
            mask = b"\xff" * head + b"\0\x80" + b"\xff" * delta_size + b"\xff" * _WORD_BYTES
            known = length + b"\0\0" + zeros + _varint(key_length) + bytes(_WORD_BYTES)
            used = int(head + 2 + delta_size + len(_varint(key_length)))
            self._mask[part] = int.from_bytes(mask[: min(used, _WORD_BYTES)], "little")
            zigzag = index[part].astype(np.uint64) << np.uint64(1)
            if delta_size == 2:
                more = zigzag >> np.uint64(7)
                zigzag = (zigzag & np.uint64(0x7F)) | np.uint64(0x80) | more << np.uint64(8)
            at = np.uint64(8 * (head + 2))
            self._expected[part] = int.from_bytes(known[:_WORD_BYTES], "little")
            self._expected[part] |= zigzag << at
        self._start = np.cumsum(size) - size
        self._start = np.append(self._start, self._start[-1:] + size[-1:])
        self._key += self._start[:-1]

    @classmethod
    def guess(cls, group: BatchGroup) -> Layout | None:
        """What the first record of a group has; None if that is out of the question."""
        count = group.header["count"].max()
        first = group.raw[group.low[0] : group.low[0] + (1 << 14)].tobytes()
        try:
            _, at = _read(first, 0)
            _, at = _read(first, at + 1)
            _, at = _read(first, at)
            key_length, key = _read(first, at)
            if not 0 <= key_length < 1 << 13 or count > INDEX_MAX:
                return None
            value_length, at = _read(first, key + key_length)
        except IndexError:
            return None
        # the word must hold what is before the key, and a record be longer than the word
        is_short = key_length > 63 or value_length < _WORD_BYTES or value_length > 8000
        return None if is_short else cls(key_length, value_length, int(count))

    def fits(self, group: BatchGroup) -> bool:
        """Whether all batches would be filled exactly."""
        filled = self._start[group.header["count"].astype(np.int64)]
        return bool((group.high - group.low == filled).all())

    def rows(self, raw: Bytes, low: Int64s, count: Int64s) -> Alike | None:
        """The records of these batches, or None if any is not as foretold."""
        base = np.repeat(low, count)
        index = np.arange(len(base)) - np.repeat(np.cumsum(count) - count, count)
        word = gather(raw, base + self._start.take(index), _WORD_BYTES).view(np.uint64)
        if ((word & self._mask.take(index)) != self._expected.take(index)).any():
            return None
        key = base + self._key.take(index)
        head = len(self._value_head)
        value = key + (self.key_length + head)
        kind = "u1" if head == 1 else "<u2"
        heads = gather(raw, value - head, head).view(kind)
        if (heads != int.from_bytes(self._value_head, "little")).any():
            return None
        if raw.take(value + self.value_length).any():
            return None
        time_bits = (word >> self._time_shift.take(index)) & np.uint64(0x7F)
        return Alike(index, time_bits, key, value)


def _varint(value: int) -> bytes:
    """A zigzag varint of a number that is not negative."""
    value, out = value << 1, []
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _read(data: bytes, at: int) -> tuple[int, int]:
    """(a zigzag varint, the place behind it); IndexError beyond the end."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
        shift += 7
