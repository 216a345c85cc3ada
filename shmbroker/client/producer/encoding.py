"""Arrow columns to the bytes of records, by the compiled kernels or, without them, by numpy.

    encode     rows of columns into a buffer, until one does not fit; `records/batch.py` draws them
    scatter    rows of several partitions into a buffer for each, in one pass; compiled only
    murmur2    Kafka's hash of every key

Both ways give the same bytes. numpy looks at all rows of a step together: sizes, then the place of
each field, then one scatter for each byte of a number and one for all bytes of a column.

Rule: a step never writes beyond the end it was given, and a row is written whole or not at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shmbroker.kernels import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shmbroker.kernels import _native

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Raw = NDArray[np.uint64]
    """Zigzag numbers, as varints hold them."""

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
_NULL = 1
"""The length -1 as a zigzag varint."""


class BinaryColumn:
    """A binary or string array with int32 offsets, as the kernels take it."""

    __slots__ = ("_views", "native")

    def __init__(self, array: pa.Array) -> None:
        valid, offsets, content = array.buffers()
        self.native = (valid if array.null_count else None, offsets, content, array.offset)
        self._views: tuple[Rows, Bytes, NDArray[np.bool_] | None] | None = None

    @classmethod
    def of(cls, array: pa.Array | None) -> BinaryColumn | None:
        """The column of an array; None for none: it is null in every row."""
        return None if array is None else cls(array)

    def views(self) -> tuple[Rows, Bytes, NDArray[np.bool_] | None]:
        """Offsets from row 0 on, bytes, and which rows are valid (None: all), for numpy."""
        if self._views is None:
            valid, offsets, content, first = self.native
            at = np.frombuffer(offsets, np.int32)[first:]
            data = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
            bits: NDArray[np.bool_] | None = None
            if valid is not None:
                unpacked = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")
                bits = unpacked[first:].astype(bool)
            self._views = at, data, bits
        return self._views


class HeaderColumn:
    """A list<struct<key: string, value: binary>> array; no key is null."""

    __slots__ = ("array", "content", "name", "native")

    def __init__(self, array: pa.Array, name: BinaryColumn, content: BinaryColumn) -> None:
        self.array = array
        self.name = name
        self.content = content
        valid, offsets = array.buffers()[:2]
        valid = valid if array.null_count else None
        self.native = (valid, offsets, array.offset, name.native, content.native)


class Columns(NamedTuple):
    """What records are made of; None: null in every row, or no time of its own."""

    key: BinaryColumn | None
    value: BinaryColumn | None
    timestamps: Ints | None
    headers: HeaderColumn | None
    rows: int

    def natives(
        self,
    ) -> tuple[_native.Column | None, _native.Column | None, _native.HeaderColumn | None]:
        """Key, value and headers as the kernels take them."""
        return (
            None if self.key is None else self.key.native,
            None if self.value is None else self.value.native,
            None if self.headers is None else self.headers.native,
        )


def encode(
    out: bytearray,
    position: int,
    end: int,
    delta: int,
    rows: Rows | None,
    first: int,
    last: int,
    base_timestamp: int,
    columns: Columns,
) -> tuple[int, int, int]:
    """Records into out[position:end]: (rows written, position behind them, largest timestamp).

    Written are rows[first:last] (int32; None: rows first to last themselves) with offset deltas
    from `delta` on. It may stop before a row that would fit; it has no room only if it writes none.
    Rows without a time of their own have `base_timestamp`.
    """
    if native is None:
        return _encode(out, position, end, delta, rows, first, last, base_timestamp, columns)
    key, value, headers = columns.natives()
    written: tuple[int, int, int] = native.encode(
        out,
        position,
        end,
        delta,
        rows,
        first,
        last,
        key,
        value,
        columns.timestamps,
        base_timestamp,
        headers,
        columns.rows,
    )
    return written


POSITION, END, COUNT, BASE_TIMESTAMP, NEWEST = range(5)
"""The places in a state of `scatter`: where the next record goes, how far they may go, how many
there are, the timestamp (ms) that theirs are told from, the largest of them."""

CLOSED = (0, 0, 0, 0, 0)
"""The state where there is no buffer."""


def can_scatter(partitions: int) -> bool:
    """Whether `scatter` takes so many."""
    return native is not None and partitions <= native.SCATTER_MAX


def scatter(
    outs: list[bytearray | None],
    states: Ints,
    placed: Rows,
    first: int,
    columns: Columns,
    now_ms: int,
) -> int:
    """Rows from `first` on, row i behind the records of outs[placed[i]]: the first row that was not
    written, for want of room or of a buffer; the number of rows if none was left.

    `states`, int64[len(outs)][5], says how far each buffer is, and is moved on. Rows without a time
    of their own have `now_ms`. To take the columns in their order costs half of what it costs to
    take each partition's rows out of them (P passes over bytes that are in no cache).
    """
    assert native is not None
    key, value, headers = columns.natives()
    rows, times = columns.rows, columns.timestamps
    done: int = native.scatter(
        outs, states, placed, first, rows, key, value, times, now_ms, headers, rows
    )
    return done


def murmur2(keys: BinaryColumn, count: int) -> NDArray[np.uint32]:
    """Kafka's murmur2 of the first `count` rows as uint32; of a null row it means nothing."""
    if native is None:
        return _murmur2(keys, count)
    hashes = np.empty(count, np.uint32)
    native.murmur2(keys.native, count, hashes)
    return hashes


# --- without the kernels -------------------------------------------------------------------------


def _murmur2(keys: BinaryColumn, count: int) -> NDArray[np.uint32]:
    """Four bytes of all keys together that still have four, then what is left of each."""
    at, data, _ = keys.views()
    # Behind the last byte there is something to read for keys that end there.
    data = np.concatenate((data[: at[count]], np.zeros(4, np.uint8)))
    low = at[:count].astype(np.int64)
    size = at[1 : count + 1] - at[:count]
    words = size >> 2
    hashes = _SEED ^ size.astype(np.uint32)
    order = np.argsort(-words, kind="stable")
    longest = int(words[order[0]]) if count else 0
    # rows[:alive] are those with another whole word
    alive_at = count - np.searchsorted(np.sort(words), np.arange(longest) + 1, side="left")
    with np.errstate(over="ignore"):
        for step in range(longest):
            alive = order[: alive_at[step]]
            where = low[alive] + 4 * step
            word = data[where].astype(np.uint32)
            for byte in (1, 2, 3):
                word |= data[where + byte].astype(np.uint32) << np.uint32(8 * byte)
            word *= _M
            word ^= word >> np.uint32(24)
            hashes[alive] = hashes[alive] * _M ^ word * _M
        rest, behind = size & 3, low + (words << 2)
        for byte in (2, 1, 0):
            has = np.flatnonzero(rest > byte)
            hashes[has] ^= data[behind[has] + byte].astype(np.uint32) << np.uint32(8 * byte)
        has = np.flatnonzero(rest)
        hashes[has] *= _M
        hashes ^= hashes >> np.uint32(13)
        hashes *= _M
        hashes ^= hashes >> np.uint32(15)
    return hashes


def _encode(
    out: bytearray,
    position: int,
    end: int,
    delta: int,
    rows: Rows | None,
    first: int,
    last: int,
    base_timestamp: int,
    columns: Columns,
) -> tuple[int, int, int]:
    """`encode` by numpy."""
    # No record is smaller than 7 bytes; and a step of some size is enough.
    last = min(last, first + min(8192, (end - position) // 7))
    if first >= last:
        return 0, position, base_timestamp
    chosen = np.arange(first, last) if rows is None else np.asarray(rows[first:last], np.int64)
    key = _field(columns.key, chosen)
    value = _field(columns.value, chosen)
    tail = _tail(columns.headers, chosen)
    if columns.timestamps is None:
        times = np.zeros(len(chosen), np.int64)
    else:
        times = columns.timestamps[chosen] - base_timestamp
    numbers = [
        _zigzag(times),
        _zigzag(np.arange(delta, delta + len(chosen))),
        _zigzag(key.length),
        _zigzag(value.length),
    ]
    sizes = [_varint_size(number) for number in numbers]
    body = 1 + sum(sizes) + key.size + value.size + tail.size
    head = _zigzag(body)
    ends = position + np.cumsum(body + _varint_size(head))
    count = int(np.searchsorted(ends, end, side="right"))
    if not count:
        return 0, position, base_timestamp
    target = np.frombuffer(out, np.uint8)
    place = np.concatenate(([position], ends[: count - 1]))
    place = _put_varints(target, place, head[:count])
    target[place] = 0
    place = place + 1
    place = _put_varints(target, place, numbers[0][:count])
    place = _put_varints(target, place, numbers[1][:count])
    for number, field in ((numbers[2], key), (numbers[3], value)):
        place = _put_varints(target, place, number[:count])
        place = _put_bytes(target, place, field, count)
    _put_bytes(target, place, tail, count)
    return count, int(ends[count - 1]), base_timestamp + max(0, int(np.max(times[:count])))


class _Field(NamedTuple):
    """Bytes of each row: where they begin in `data`, how many; `length` is -1 for a null."""

    data: Bytes
    low: Ints
    size: Ints
    length: Ints


def _field(column: BinaryColumn | None, chosen: Ints) -> _Field:
    if column is None:
        nothing = np.zeros(len(chosen), np.int64)
        return _Field(np.empty(0, np.uint8), nothing, nothing, nothing - 1)
    at, data, valid = column.views()
    low = at[chosen].astype(np.int64)
    size = at[chosen + 1] - low
    if valid is None:
        return _Field(data, low, size, size)
    is_valid = valid[chosen]
    return _Field(data, low, np.where(is_valid, size, 0), np.where(is_valid, size, -1))


def _tail(headers: HeaderColumn | None, chosen: Ints) -> _Field:
    """Header count and headers of each row; without the kernels, row by row where there are any."""
    count = len(chosen)
    if headers is None:
        nothing = np.zeros(count, np.int64)
        return _Field(np.zeros(1, np.uint8), nothing, nothing + 1, nothing)
    parts = []
    for row in headers.array.take(pa.array(chosen)).to_pylist():
        part = bytearray()
        pairs = row or ()
        _append_varint(part, len(pairs))
        for pair in pairs:
            name, content = pair["key"].encode(), pair["value"]
            _append_varint(part, len(name))
            part += name
            if content is None:
                part.append(_NULL)
            else:
                _append_varint(part, len(content))
                part += content
        parts.append(bytes(part))
    size = np.array([len(part) for part in parts], np.int64)
    low = np.concatenate(([0], np.cumsum(size)[:-1]))
    return _Field(np.frombuffer(b"".join(parts), np.uint8), low, size, size)


def _append_varint(out: bytearray, value: int) -> None:
    value <<= 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _zigzag(values: Ints) -> Raw:
    wide = np.asarray(values, np.int64)
    return (wide.view(np.uint64) << np.uint64(1)) ^ (wide >> np.int64(63)).view(np.uint64)


def _varint_size(raw: Raw) -> Ints:
    size = np.ones(len(raw), np.int64)
    for shift in range(7, 64, 7):
        larger = raw >= np.uint64(1 << shift)
        if not larger.any():
            break
        size += larger
    return size


def _put_varints(target: Bytes, place: Ints, raw: Raw) -> Ints:
    """Write a varint at each place; the places behind them."""
    place, raw = place.copy(), raw.copy()
    alive = np.arange(len(raw))
    while len(alive):
        rest = raw[alive] >> np.uint64(7)
        more = rest > 0
        low = (raw[alive] & np.uint64(0x7F)).astype(np.uint8)
        target[place[alive]] = low | (more.astype(np.uint8) << np.uint8(7))
        place[alive] += 1
        alive = alive[more]
        raw[alive] = rest[more]
    return place


def _put_bytes(target: Bytes, place: Ints, field: _Field, count: int) -> Ints:
    """Copy each row's bytes to its place; the places behind them."""
    size = field.size[:count]
    total = int(size.sum())
    if total:
        before = np.cumsum(size) - size
        step = np.arange(total)
        source = np.repeat(field.low[:count] - before, size) + step
        target[np.repeat(place - before, size) + step] = field.data[source]
    return place + size
