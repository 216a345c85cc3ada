"""Compaction's work on records by the compiled kernels (`kernels/compact.c`).

The same functions as in `by_numpy`, and the same bytes come out. Per chunk a few calls:
keys are hashed, looked up in the map, what stays is put together. In Python per batch nothing,
unless it changes.
"""

from collections.abc import Iterator

import numpy as np

from shmbroker.errors import CorruptFault
from shmbroker.kernels import native
from shmbroker.log.compaction import key_offsets
from shmbroker.log.compaction.chunks import Batches, LogChunk, sealed
from shmbroker.log.compaction.key_offsets import KeyHash
from shmbroker.records import codecs
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    COMPRESSION_MASK,
    HEADER_SIZE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]

_LOW, _HIGH, _COUNT = 1, 2, 5
_KIND_LONG = 4
_KEEP_HORIZON = 2

_GROWTH_MAX = 15
"""Bytes that a record may grow by when its timestamp is told from another moment."""


class KeyOffsets(key_offsets.KeyOffsets):
    """The map, filled by the kernels."""

    __slots__ = ()

    def _insert(self, hashes: "Words", values: "Words") -> None:
        assert native is not None
        contiguous = (np.ascontiguousarray(hashes), np.ascontiguousarray(values))
        self.count += native.map_put(self.table, *contiguous)


def find_batches(data: memoryview) -> tuple[Batches, int, int]:
    """See `chunks.FindBatches`."""
    assert native is not None
    columns = np.empty((len(Batches._fields), len(data) // HEADER_SIZE), np.int64)
    found, position, need = native.find_batches(data, columns)
    return Batches(*columns[:, :found]), position, need


def check_crcs(chunk: LogChunk) -> None:
    """CorruptFault unless the CRC of every batch is that of its header."""
    assert native is not None
    if native.check_crcs(chunk.raw, chunk.batches.at, chunk.batches.end) >= 0:
        raise CorruptFault("the CRC of a batch is wrong")


def _table(chunk: LogChunk, flag: "Flags") -> "Int64s":
    """The data batches as the kernels take them (K_… in `kernels.h`)."""
    data = chunk.data
    columns = (
        chunk.low,
        chunk.high,
        data.base_offset,
        data.last_offset_delta,
        data.record_count,
        flag,
    )
    return np.array((data.at, *columns), np.int64)


def _hash(
    chunk: LogChunk, key_hash: KeyHash, table: "Int64s", keys_only: bool, from_offset: int
) -> "tuple[Words, Int64s, Bytes]":
    """(hash, offset, kind) of the records; from a CorruptFault on, nothing was taken for them."""
    assert native is not None
    if (table[_COUNT] > table[_HIGH] - table[_LOW]).any():
        raise CorruptFault("a batch is too short for its record count")
    count = int(table[_COUNT].sum())
    hashes, offsets, kinds = np.empty((count, 2), np.uint64), np.empty(count, np.int64), None
    kinds = np.empty(count, np.uint8)
    try:
        rows, long_keys = native.hash_keys(
            chunk.plain, table, key_hash.draws, keys_only, from_offset, hashes, offsets, kinds
        )
    except ValueError as error:
        raise CorruptFault(str(error)) from None
    if long_keys:
        for row in np.flatnonzero(kinds[:rows] & _KIND_LONG).tolist():
            at, length = hashes[row].tolist()
            hashes[row] = key_hash.hash_long(chunk.plain[at : at + length].data)
    return hashes[:rows], offsets[:rows], kinds[:rows]


def hash_keys(
    chunk: LogChunk, key_hash: KeyHash, is_counted: "Flags", from_offset: int
) -> "tuple[Words, Int64s]":
    """(hash, offset) of every record with a key, from this offset on, in the data batches that are
    counted."""
    hashes, offsets, _ = _hash(chunk, key_hash, _table(chunk, is_counted), True, from_offset)
    return hashes, offsets


class Records:
    """The records of a chunk's data batches, and which of them stay."""

    __slots__ = ("chunk", "has_tombstone", "keep", "kept", "table")

    def __init__(
        self, chunk: LogChunk, key_hash: KeyHash, offsets: key_offsets.KeyOffsets, is_over: "Flags"
    ) -> None:
        """is_over: of which data batches the tombstones go."""
        assert native is not None
        self.chunk = chunk
        self.table = table = _table(chunk, is_over)
        hashes, rows, kinds = _hash(chunk, key_hash, table, False, 0)
        self.keep: Bytes = np.empty(len(rows), np.uint8)
        self.kept: Int64s = np.empty(table.shape[1], np.int64)
        """How many records of each data batch stay."""
        self.has_tombstone: Flags = np.empty(table.shape[1], np.bool_)
        """Whether a tombstone stays in a data batch, for each of them."""
        native.map_keep(
            offsets.table, table, hashes, rows, kinds, self.keep, self.kept, self.has_tombstone
        )

    def rewritten(
        self, is_wanted: "Flags", gets_horizon: "Flags", horizon_ms: int
    ) -> Iterator[tuple[int, bytes | memoryview, int]]:
        """(data batch, new batch, its largest timestamp) of those that are wanted, in order, with
        the records that stay; timestamps are told from the horizon where a batch gets one."""
        assert native is not None
        table = self.table
        room = (HEADER_SIZE + table[_HIGH] - table[_LOW])[is_wanted].sum()
        room += _GROWTH_MAX * table[_COUNT, gets_horizon].sum()
        made = np.empty(int(room), np.uint8)
        ends, newest = np.empty((2, table.shape[1]), np.int64)
        chosen = is_wanted.astype(np.uint8)
        chosen[gets_horizon] = _KEEP_HORIZON
        native.keep_records(
            self.chunk.raw,
            self.chunk.plain,
            table,
            self.keep,
            chosen,
            horizon_ms,
            made,
            ends,
            newest,
        )
        wanted = np.flatnonzero(is_wanted)
        codec = self.chunk.data.attributes[wanted] & COMPRESSION_MASK
        low, view = 0, made.data
        for batch, high, timestamp, is_packed in zip(
            wanted.tolist(),
            ends[wanted].tolist(),
            newest[wanted].tolist(),
            codec.tolist(),
            strict=True,
        ):
            if is_packed:
                fields = list(BATCH_HEADER.unpack_from(view, low))
                packed = codecs.compress(is_packed, bytes(view[low + HEADER_SIZE : high]))
                yield batch, sealed(fields, packed), timestamp
            else:
                yield batch, view[low:high], timestamp
            low = high
