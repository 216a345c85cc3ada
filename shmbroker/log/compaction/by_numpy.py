"""Compaction's work on records by numpy, where the compiled kernels were not built.

Per batch, in Python: one step from header to header and its CRC; per record nothing, but for those
of batches that change, and there only runs of survivors.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.log.compaction.chunks import Batches, LogChunk, sealed
from shmbroker.log.compaction.key_offsets import SLACK_BYTES, KeyHash, KeyOffsets
from shmbroker.records import codecs
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    H_ATTRIBUTES,
    H_BASE_TIMESTAMP,
    H_COUNT,
    H_MAX_TIMESTAMP,
    HEADER_SIZE,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
)
from shmbroker.records.batch_scan import HEADER, gather
from shmbroker.records.record_lengths import find_records, varints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]

_LENGTH = Struct(">i")
_LENGTH_MIN = HEADER_SIZE - LOG_OVERHEAD


def find_batches(data: memoryview) -> tuple[Batches, int, int]:
    """See `chunks.FindBatches`."""
    found: list[int] = []
    append, unpack, position, end = found.append, _LENGTH.unpack_from, 0, len(data)
    need = HEADER_SIZE
    last = end - HEADER_SIZE
    while position <= last:
        (length,) = unpack(data, position + LENGTH_POSITION)
        following = position + LOG_OVERHEAD + length
        if length < _LENGTH_MIN:
            need = 0
            break
        if following > end:
            need = following - position
            break
        append(position)
        position = following
    at = np.array(found, np.int64)
    header = gather(np.frombuffer(data, np.uint8), at, HEADER_SIZE).view(HEADER)
    columns = [header[name].astype(np.int64) for name in (*Batches._fields[2:-1], "count")]
    return Batches(at, np.append(at[1:], position), *columns), position, need


def check_crcs(chunk: LogChunk) -> None:
    """CorruptFault unless the CRC of every batch is that of its header."""
    data, (at, end, *_), crcs = chunk.raw.data, chunk.batches, chunk.batches.crc
    begins = (at + ATTRIBUTES_POSITION).tolist()
    for begin, stop, crc in zip(begins, end.tolist(), crcs.tolist(), strict=True):
        if crc32c(data[begin:stop]) != crc:
            raise CorruptFault("the CRC of a batch is wrong")


class Rows(NamedTuple):
    """The records of a chunk's data batches, in order; `batch` numbers those batches."""

    first: "Int64s"
    """Row of each batch's first record."""
    batch: "Int64s"
    offset: "Int64s"
    body: "Int64s"
    """The position behind the record's length."""
    end: "Int64s"
    timestamp_delta: "Int64s"
    timestamp_end: "Int64s"
    key: "Int64s"
    key_length: "Int64s"
    value_length: "Int64s"
    """Meaningless if no values were asked for."""


def _rows(chunk: LogChunk, *, has_values: bool = True) -> Rows:
    """Every field that compaction looks at; CorruptFault if a record isn't what it should be."""
    raw, count = chunk.plain, chunk.data.record_count
    body, end = find_records(raw[: len(raw) - SLACK_BYTES], chunk.low, chunk.high, count)
    batch = np.repeat(np.arange(len(count)), count)
    timestamp_delta, timestamp_end = varints(raw, body + 1, 10)
    offset_delta, at = varints(raw, timestamp_end, 5)
    key_length, key = varints(raw, at, 5)
    key_end = key + np.maximum(key_length, 0)
    is_bad = (key_length < -1) | (key_end >= end) | (offset_delta < 0)
    value_length = key_length
    if has_values:
        value_length, value = varints(raw, key_end, 5)
        is_bad |= (value_length < -1) | (value + np.maximum(value_length, 0) >= end)
    is_bad |= offset_delta > chunk.data.last_offset_delta[batch]
    if is_bad.any():
        raise CorruptFault("a record does not fit its batch")
    offset = chunk.data.base_offset[batch] + offset_delta
    return Rows(
        np.cumsum(count) - count,
        batch,
        offset,
        body,
        end,
        timestamp_delta,
        timestamp_end,
        key,
        key_length,
        value_length,
    )


def hash_keys(
    chunk: LogChunk, key_hash: KeyHash, is_counted: "Flags", from_offset: int
) -> "tuple[Words, Int64s]":
    """(hash, offset) of every record with a key, from this offset on, in the data batches that are
    counted."""
    rows = _rows(chunk, has_values=False)
    is_chosen = (rows.key_length >= 0) & (rows.offset >= from_offset)
    if not is_counted.all():
        is_chosen &= is_counted[rows.batch]
    chosen = np.flatnonzero(is_chosen)
    hashes = key_hash.hash(chunk.plain, rows.key[chosen], rows.key_length[chosen])
    return hashes, rows.offset[chosen]


class Records:
    """The records of a chunk's data batches, and which of them stay."""

    __slots__ = ("chunk", "has_tombstone", "keep", "kept", "rows")

    def __init__(
        self, chunk: LogChunk, key_hash: KeyHash, offsets: KeyOffsets, is_over: "Flags"
    ) -> None:
        """is_over: of which data batches the tombstones go."""
        self.chunk = chunk
        self.rows = rows = _rows(chunk)
        keep = rows.key_length >= 0
        keyed = np.flatnonzero(keep)
        hashes = key_hash.hash(chunk.plain, rows.key[keyed], rows.key_length[keyed])
        keep[keyed] = rows.offset[keyed] >= offsets.get(hashes)
        is_tombstone = rows.value_length < 0
        if is_over.any():
            keep &= ~(is_tombstone & is_over[rows.batch])
        self.keep = keep
        self.kept = np.add.reduceat(keep, rows.first, dtype=np.int64)
        """How many records of each data batch stay."""
        self.has_tombstone: Flags = np.zeros(len(self.kept), np.bool_)
        """Whether a tombstone stays in a data batch, for each of them."""
        if is_tombstone.any():
            self.has_tombstone = np.logical_or.reduceat(keep & is_tombstone, rows.first)

    def rewritten(
        self, is_wanted: "Flags", gets_horizon: "Flags", horizon_ms: int
    ) -> Iterator[tuple[int, bytes, int]]:
        """(data batch, new batch, its largest timestamp) of those that are wanted, in order, with
        the records that stay; timestamps are told from the horizon where a batch gets one."""
        chunk, rows, data = self.chunk, self.rows, self.chunk.data
        timestamp = data.base_timestamp[rows.batch] + rows.timestamp_delta
        is_append_time = data.attributes & TIMESTAMP_TYPE_BIT != 0
        max_timestamp = np.maximum.reduceat(np.where(self.keep, timestamp, -1), rows.first)
        max_timestamp = np.where(is_append_time, data.max_timestamp, max_timestamp)
        if is_append_time.any():
            of_append = is_append_time[rows.batch]
            timestamp[of_append] = max_timestamp[rows.batch[of_append]]
        runs = self._runs(is_wanted & ~gets_horizon)
        moved = self._moved(timestamp, gets_horizon, horizon_ms)
        view = chunk.plain.data
        at = data.at.tolist()
        for batch in np.flatnonzero(is_wanted).tolist():
            if gets_horizon[batch]:
                block = moved[batch]
            else:
                block = b"".join([view[low:high] for low, high in runs[batch]])
            fields = list(BATCH_HEADER.unpack_from(chunk.raw.data, at[batch]))
            if gets_horizon[batch]:
                fields[H_ATTRIBUTES] |= DELETE_HORIZON_BIT
                fields[H_BASE_TIMESTAMP] = horizon_ms
            fields[H_MAX_TIMESTAMP] = int(max_timestamp[batch])
            fields[H_COUNT] = int(self.kept[batch])
            packed = codecs.compress(fields[H_ATTRIBUTES] & COMPRESSION_MASK, block)
            yield batch, sealed(fields, packed), fields[H_MAX_TIMESTAMP]

    def _runs(self, taken: "Flags") -> dict[int, list[tuple[int, int]]]:
        """Where runs of surviving records stand in these batches."""
        rows = self.rows
        runs: dict[int, list[tuple[int, int]]] = {}
        keep = self.keep & taken[rows.batch]
        if not keep.any():
            return runs
        before = np.append(False, keep[:-1])
        before[rows.first] = False
        after = np.append(keep[1:], False)
        after[rows.first[1:] - 1] = False
        first, last = np.flatnonzero(keep & ~before), np.flatnonzero(keep & ~after)
        start = np.append(0, rows.end[:-1])
        start[rows.first] = self.chunk.low
        for batch, low, high in zip(
            rows.batch[first].tolist(), start[first].tolist(), rows.end[last].tolist(), strict=True
        ):
            runs.setdefault(batch, []).append((low, high))
        return runs

    def _moved(
        self, timestamp: "Int64s", gets_horizon: "Flags", horizon_ms: int
    ) -> dict[int, bytes]:
        """The records of batches that get a delete horizon, with timestamps relative to it."""
        rows, raw = self.rows, self.chunk.plain
        chosen = np.flatnonzero(self.keep & gets_horizon[rows.batch])
        if not len(chosen):
            return {}
        body, end, behind = rows.body[chosen], rows.end[chosen], rows.timestamp_end[chosen]
        delta, delta_size = _to_varints(timestamp[chosen] - horizon_ms)
        length, length_size = _to_varints(end - behind + 1 + delta_size)
        # Length, attributes and timestamp delta of each record, as long as they come.
        heads = np.zeros((len(chosen), 24), np.uint8)
        every = np.arange(len(chosen))
        heads[:, :10] = length
        heads[every, length_size] = raw[body]
        for place in range(10):
            heads[every, length_size + 1 + place] = delta[:, place]
        head = heads.tobytes()
        view = raw.data
        parts: list[bytes | memoryview] = []
        for row, stop, low, high in zip(
            range(0, len(head), 24),
            (length_size + 1 + delta_size).tolist(),
            behind.tolist(),
            end.tolist(),
            strict=True,
        ):
            parts += (head[row : row + stop], view[low:high])
        batch, index = np.unique(rows.batch[chosen], return_index=True)
        cuts = [*(2 * index).tolist(), len(parts)]
        return {
            number: b"".join(parts[cuts[i] : cuts[i + 1]])
            for i, number in enumerate(batch.tolist())
        }


def _to_varints(numbers: "Int64s") -> tuple["Bytes", "Int64s"]:
    """(zigzag varints, ten bytes for each, and how many of them count)"""
    left = (numbers << 1 ^ numbers >> 63).view(np.uint64)
    out = np.zeros((len(numbers), 10), np.uint8)
    size = np.ones(len(numbers), np.int64)
    for place in range(10):
        rest = left >> np.uint64(7)
        is_more = rest != 0
        out[:, place] = (left & np.uint64(0x7F)).astype(np.uint8) | is_more.astype(np.uint8) << 7
        size += is_more
        left = rest
        if not is_more.any():
            break
    return out, size
