"""`validation`'s walk over the records of one batch, for many records: the same rules, in numpy.

Records are found and judged a block at a time, so that what is in between stays in the cache, and
memory is bounded whatever a batch decompresses to:

    find    where each of them begins. If they seem to be of one size (as in `record_lengths`) that
            is arithmetic, else a chain in Python of a few operations a record, which believes
            every length; both are proved afterwards, by comparing all ends with all beginnings.
    parse   8 bytes from each beginning on hold what stands before the key, mostly: attributes,
            timestamp delta, offset delta. Then key, value and header count, a varint each.

Nothing is believed: a position beyond the data reads some byte that is there, and a number that
does not lead to where it must is a ProtocolFault.
"""

from itertools import repeat

import numpy as np

from shmbroker.errors import ProtocolFault
from shmbroker.records.batch_layout import NO_TIMESTAMP
from shmbroker.records.record_lengths import varints
from shmbroker.records.validation import TIMESTAMP_MAX, TIMESTAMP_MIN, Faults, skip_headers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]

BLOCK_ROWS = 8192
"""Records handled at once: up to here offset deltas have at most two bytes, and three in the next
127 blocks."""

_SLACK = bytes(16)
"""The bytes behind the records: 8 bytes can be read wherever one begins."""

_STEP = [(low >> 1) + 1 if low < 0x80 else (low - 0x80 >> 1) + 2 for low in range(256)]
"""First byte of a record's length to the way to the next record, but for a second byte."""

_STEP_OF_SECOND = [high << 6 if high < 0x80 else 1 << 62 for high in range(256)]
"""Second byte of a length to the rest of the way; of one that goes on, beyond everything."""

_HEADERS_IN_STEP_MIN = 24
"""Records whose headers are walked together; fewer are walked one after the other."""

_ONE, _SEVEN, _EIGHT = np.uint64(1), np.uint64(7), np.uint64(8)
_LOW = np.uint64(0x7F)
_MIDDLE, _HIGH = np.uint64(0x7F << 7), np.uint64(0x7F << 14)
_TWO, _THREE, _FIFTEEN, _TWENTY_THREE = map(np.uint64, (2, 3, 15, 23))
_THREE_BYTES = np.uint64(0xFFFFFF)


def _offset_deltas(first: int, rows: int, size: int) -> "Words":
    """Varints of `size` bytes of the offset deltas from `first` on, as little-endian numbers."""
    number = np.arange(first, first + rows, dtype=np.uint64) << _ONE
    packed = number & _LOW
    for place in range(1, size):
        packed |= np.uint64(0x80 << 8 * place - 8)
        packed |= (number >> np.uint64(7 * place) & _LOW) << np.uint64(8 * place)
    return packed


_THREE_BYTES_MAX = 1 << 20

# Of the first block: offset deltas as they must be, their masks, and how many bytes they have.
_FIRST = _offset_deltas(0, BLOCK_ROWS, 2)
_FIRST[:64] = _offset_deltas(0, 64, 1)
_FIRST_MASK = np.full(BLOCK_ROWS, 0xFFFF, np.uint64)
_FIRST_MASK[:64] = 0xFF
_FIRST_SIZE = np.full(BLOCK_ROWS, 2, np.int64)
_FIRST_SIZE[:64] = 1


def walk(
    records: bytes | memoryview,
    count: int,
    base_timestamp: int,
    is_key_needed: bool,
    oldest_ms: int,
    newest_ms: int,
    faults: Faults,
    are_headers_right: bool = False,
) -> int:
    """`validation.walk`. are_headers_right: somebody has looked at them, which may take long."""
    end = len(records)
    data = b"".join((records, _SLACK))
    raw = np.frombuffer(data, np.uint8)
    words = np.ndarray((end + 8,), "V8", data, strides=(1,))
    at, first, max_timestamp = 0, 0, NO_TIMESTAMP
    has_limits = oldest_ms > TIMESTAMP_MIN or newest_ms < TIMESTAMP_MAX
    while first < count:
        rows = min(count - first, BLOCK_ROWS - first % BLOCK_ROWS)
        body, stop = _find(data, raw, at, end, first, rows)
        at = int(stop[-1])
        delta, key_length = _parse(data, raw, words, body, stop, first, are_headers_right)
        timestamp = delta + base_timestamp
        latest = int(timestamp.max())
        max_timestamp = max(max_timestamp, latest)
        if (is_key_needed and key_length.min() < 0) or (
            has_limits and (latest > newest_ms or timestamp.min() < oldest_ms)
        ):
            is_keyless = (key_length < 0) & is_key_needed
            is_out = (timestamp < oldest_ms) | (timestamp > newest_ms)
            is_out &= timestamp != NO_TIMESTAMP
            for row in np.flatnonzero(is_out | is_keyless).tolist():
                faults.add(first + row, None if is_keyless[row] else int(timestamp[row]))
        first += rows
    if at != end:
        raise ProtocolFault("bytes are left over behind the last one")
    return max_timestamp


# --- where they begin ----------------------------------------------------------------------------


def _find(
    data: bytes, raw: "Bytes", at: int, end: int, first: int, rows: int
) -> tuple["Int64s", "Int64s"]:
    """(where the body begins, where it ends, which is where the next record begins) of `rows`
    records from `at` on, the first of them being number `first`."""
    start = _foretold(data, at, end, first, rows)
    if start is not None and (found := _proved(raw, start, end)) is not None:
        return found
    for chain in (_quick_chain, _chain):
        found = _proved(raw, np.array(chain(data, at, rows), np.int64), end)
        if found is not None:
            return found
    raise ProtocolFault("the length of a record is not right")


def _foretold(data: bytes, at: int, end: int, first: int, rows: int) -> "Int64s | None":
    """The beginnings if records have one size while their offset deltas have; None if they don't,
    by a few that are looked at."""
    runs = []
    while rows:
        run = min(rows, 64 - first) if first < 64 else rows
        size = _size_at(data, at)
        following = at + size * run
        if size < 0 or following > end:
            return None
        for probe in (1, run // 2, run - 1):
            if _size_at(data, at + probe * size) != size and probe < run:
                return None
        runs.append(np.arange(at, following, size))
        at, first, rows = following, first + run, rows - run
    return runs[0] if len(runs) == 1 else np.concatenate(runs)


def _size_at(data: bytes, at: int) -> int:
    """The whole size of the record at `at`, if its length has one or two bytes; else -1."""
    if data[at + 1] >= 0x80 <= data[at]:
        return -1
    return _STEP[data[at]] + (data[at + 1] << 6 if data[at] >= 0x80 else 0)


def _quick_chain(data: bytes, at: int, rows: int) -> list[int]:
    """The beginnings if every length is right, has one or two bytes, and 0 for attributes behind
    it if it has one; something else otherwise."""
    starts: list[int] = []
    append, step, step_of_second = starts.append, _STEP, _STEP_OF_SECOND
    try:
        for _ in repeat(None, rows):
            append(at)
            at += step[data[at]] + step_of_second[data[at + 1]]
    except IndexError:
        return []
    return starts


def _chain(data: bytes, at: int, rows: int) -> list[int]:
    """The beginnings if every length is right. ProtocolFault if they go beyond the data."""
    starts: list[int] = []
    try:
        for _ in repeat(None, rows):
            starts.append(at)
            low = data[at]
            at = at + _STEP[low] if low < 0x80 else _behind_long(data, at)
    except IndexError:
        raise ProtocolFault("they are fewer than the batch says") from None
    return starts


def _behind_long(data: bytes, at: int) -> int:
    """Where the record at `at` ends, whose length has two bytes or more."""
    value = shift = 0
    while shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + (value >> 1)
        shift += 7
    raise ProtocolFault("the length of a record has too many bytes")


def _proved(raw: "Bytes", start: "Int64s", end: int) -> tuple["Int64s", "Int64s"] | None:
    """(body, stop) if each record ends where the next begins, and the last by `end`."""
    if not len(start):
        return None
    length, body = varints(raw, start, 5)
    stop = body + length
    if (stop[:-1] != start[1:]).any() or stop[-1] > end or length.min() < 0:
        return None
    return body, stop


# --- what is in them -----------------------------------------------------------------------------


def _parse(
    data: bytes,
    raw: "Bytes",
    words: "NDArray[np.void]",
    body: "Int64s",
    stop: "Int64s",
    first: int,
    are_headers_right: bool,
) -> tuple["Int64s", "Int64s"]:
    """(timestamp deltas, key lengths) of records whose fields are all as they must be."""
    shortcut = _up_to_key(words, body, first)
    if shortcut is not None:
        delta, at = shortcut
    else:
        delta, at = varints(raw, body + 1, 10)
        offset_delta, at = varints(raw, at, 5)
        is_bad = offset_delta != np.arange(first, first + len(body))
        if is_bad.any():
            raise _fault(first, is_bad, "another offset delta than its place in the batch")
    key_length, at = varints(raw, at, 5)
    at += np.maximum(key_length, 0)
    value_length, at = varints(raw, at, 5)
    at += np.maximum(value_length, 0)
    if min(key_length.min(), value_length.min()) < -1:
        is_bad = (key_length < -1) | (value_length < -1)
        raise _fault(first, is_bad, "a key or value of negative length")
    if are_headers_right:
        return delta, key_length
    # Mostly there are no headers: one byte, 0, right at the end.
    has_none = raw.take(at, mode="clip") == 0
    has_none &= at + 1 == stop
    if not has_none.all():
        odd = np.flatnonzero(~has_none)
        _walk_headers(data, raw, at[odd], stop[odd])
    return delta, key_length


def _up_to_key(
    words: "NDArray[np.void]", body: "Int64s", first: int
) -> tuple["Int64s", "Int64s"] | None:
    """(timestamp deltas, where the key lengths are) out of the first 8 bytes of each body.

    None where that is not enough: numbers with more bytes, or another offset delta.
    """
    if first >= _THREE_BYTES_MAX:
        return None
    rows = len(body)
    word = words[body].view(np.uint64)
    word >>= _EIGHT
    value = word & _LOW
    size = word >> _SEVEN
    size &= _ONE  # of the timestamp delta, less one
    if size.any():
        value |= (word >> _ONE & _MIDDLE) * size
        three = word >> _FIFTEEN
        three &= size
        if three.any():
            if (three & word >> _TWENTY_THREE).any():
                return None
            value |= (word >> _TWO & _HIGH) * three
            size += three
    word >>= (size << _THREE) + _EIGHT
    at = body + size.view(np.int64)
    if first:
        word &= _THREE_BYTES
        is_right = word == _offset_deltas(first, rows, 3)
        at += 5
    else:
        word &= _FIRST_MASK[:rows]
        is_right = word == _FIRST[:rows]
        at += _FIRST_SIZE[:rows]
        at += 2
    if not is_right.all():
        return None
    return (value >> _ONE).view(np.int64) ^ -(value & _ONE).view(np.int64), at


def _walk_headers(data: bytes, raw: "Bytes", at: "Int64s", stop: "Int64s") -> None:
    """Headers of records, the counts being at `at`: they must end at `stop`.

    Header k of all records at once, while there are enough of them.
    """
    count, at = varints(raw, at, 5)
    is_bad = (at > stop) | (count < 0) | (count > stop - at)
    left = np.flatnonzero(count)
    step = 0
    while not is_bad.any() and len(left) >= _HEADERS_IN_STEP_MIN:
        key_length, here = varints(raw, at[left], 5)
        value_length, here = varints(raw, here + np.maximum(key_length, 0), 5)
        here += np.maximum(value_length, 0)
        at[left] = here
        is_bad = (key_length < 0) | (value_length < -1) | (here > stop[left])
        step += 1
        left = left[count[left] > step]
    if is_bad.any():
        raise ProtocolFault("a record has headers that it has no room for, or without a key")
    try:
        for row in left.tolist():
            at[row] = skip_headers(data, int(at[row]), int(count[row]) - step, int(stop[row]))
    except IndexError:
        raise ProtocolFault("they end inside of a header") from None
    if (at != stop).any():
        raise ProtocolFault("a record has fields that do not end where it does")


def _fault(first: int, is_bad: "NDArray[np.bool_]", what: str) -> ProtocolFault:
    return ProtocolFault(f"record {first + int(is_bad.argmax())} has {what}")
