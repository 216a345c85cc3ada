"""What of a log's batches survives its compaction: the newest record of each key, and what is still
needed of transactions and producers.

    chunk ──► fate of each batch ──► `KeptBatches`: what goes into the new segment, size by size
                COPY      as it is
                DROP      gone
                EMPTY     its header, without records
                REWRITE   with fewer records, or with a delete horizon

 * A record with a key stays if it is at the last offset of its key.
 * A batch that stays whole is copied as it is. One that loses records keeps its header but for
   lengths, count, largest timestamp and CRC. One that loses all goes, unless it is the last of a
   producer: its header stays then, with no records, as sequences are known by it.
 * Tombstones (null values) stay `delete.retention.ms` from the first pass that kept them: their
   batch gets that moment, the delete horizon, for base timestamp (KIP-534). After it they go.
 * Records of aborted transactions go, and none of them is the last of its key (`fates`).
   A marker whose transaction has no batch left gets a delete horizon, too, and goes after it; the
   last thing that is known of a producer stays as an empty batch.
 * At or beyond the offset up to which keys are known, everything is copied as it is.
 * Records without a key can't be here by right (Produce refuses them) and go.

Source: Kafka `Cleaner`, `DefaultRecordBatch`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shmbroker.log.compaction import engine
from shmbroker.log.compaction.chunks import Batches, LogChunk, sealed
from shmbroker.records.batch import encode_record, iterate_records
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_TIMESTAMP,
    H_COUNT,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shmbroker.log.compaction.compactor import LastRecord, Settings
    from shmbroker.log.compaction.fates import KnownTransactions
    from shmbroker.log.compaction.key_offsets import KeyHash, KeyOffsets

    Int64s = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_COPY, _DROP, _EMPTY, _REWRITE = range(4)


class KeptBatches(NamedTuple):
    """What of one chunk goes into the new segment; the arrays have an element for each batch."""

    chunk: LogChunk
    fate: "NDArray[np.intp]"
    made: dict[int, bytes | memoryview]
    """Batches that are not copied, by their numbers."""
    size: "Int64s"
    """Bytes in the new segment; 0: it is dropped."""
    last_offset: "Int64s"
    max_timestamp: "Int64s"
    is_changed: bool
    """Whether not all of it is as it was."""
    records: int
    records_kept: int

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The bytes, in order: batches in a row that are copied are one piece."""
        view, fate, made = self.chunk.raw.data, self.fate, self.made
        at, end = self.chunk.batches.at, self.chunk.batches.end
        edges = np.flatnonzero(np.diff(fate) != 0) + 1
        for begin, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(at)], strict=True):
            if fate[begin] == _COPY:
                yield view[int(at[begin]) : int(end[stop - 1])]
            elif fate[begin] != _DROP:
                yield b"".join([made[number] for number in range(begin, stop)])


class Survivors:
    """The judge of a log's chunks, asked about them in their order."""

    __slots__ = (
        "_end_offset",
        "_key_hash",
        "_last_batches",
        "_last_records",
        "_offsets",
        "_settings",
        "_transactions",
    )

    def __init__(
        self,
        key_hash: "KeyHash",
        offsets: "KeyOffsets",
        end_offset: int,
        transactions: "KnownTransactions",
        last_records: "dict[int, LastRecord]",
        settings: "Settings",
    ) -> None:
        """offsets: the last one of each key below `end_offset`; last_records: by producer id."""
        self._key_hash = key_hash
        self._offsets = offsets
        self._end_offset = end_offset
        self._transactions = transactions
        self._last_records = last_records
        ids = sorted(last_records)
        self._last_batches = (
            np.array(ids, np.int64),
            np.array([last_records[producer_id].last_offset for producer_id in ids], np.int64),
        )
        self._settings = settings

    def of(self, chunk: LogChunk) -> KeptBatches:
        """What of the chunk goes into the new segment."""
        view, batches = chunk.raw.data, chunk.batches
        at, end = batches.at, batches.end
        engine.chosen.check_crcs(chunk)
        fate = np.full(len(at), _COPY)
        made: dict[int, bytes | memoryview] = {}
        verdict = self._transactions.judge(chunk)
        plan: _Plan | None = None
        records = records_kept = 0
        if len(chunk.low):
            plan = _Plan(
                chunk,
                self._key_hash,
                self._offsets,
                self._settings,
                self._end_offset,
                None if verdict is None else verdict.is_aborted[chunk.is_data],
            )
            records, records_kept = plan.count, plan.count_kept()
            fate[chunk.is_data] = plan.fate
        is_clean = batches.base_offset < self._end_offset
        is_gone = ((fate == _DROP) | (batches.record_count == 0)) & is_clean
        is_gone &= batches.attributes & CONTROL_BIT == 0
        if is_gone.any():
            is_last = self._are_last(batches.chosen(is_gone))
            fate[is_gone] = np.where(is_last, _EMPTY, _DROP)
        if verdict is not None:
            for number in verdict.spare_markers:
                if is_clean[number]:
                    fate[number] = self._fate_of_marker(view, int(at[number]), number, made)
        is_copied = fate == _COPY
        is_changed = not is_copied.all() and bool(
            (~is_copied & (batches.record_count > 0) | (fate == _DROP)).any()
        )
        size = end - at
        size[fate == _DROP] = 0
        max_timestamp = batches.max_timestamp.copy()
        for number in np.flatnonzero(fate == _EMPTY).tolist():
            made[number] = _empty_batch(view, int(at[number]))
            size[number] = HEADER_SIZE
        for number in np.flatnonzero((fate == _REWRITE) & ~chunk.is_data).tolist():
            size[number] = len(made[number])
        if plan is not None:
            data_numbers = np.flatnonzero(chunk.is_data)
            for number, batch, timestamp in plan.rewritten(data_numbers):
                made[number] = batch
                size[number] = len(batch)
                max_timestamp[number] = timestamp
        last_offset = batches.base_offset + batches.last_offset_delta
        return KeptBatches(
            chunk,
            fate,
            made,
            size,
            last_offset,
            max_timestamp,
            is_changed,
            records,
            records_kept,
        )

    def _fate_of_marker(
        self, view: memoryview, at: int, number: int, made: dict[int, bytes | memoryview]
    ) -> int:
        """What becomes of the marker of a transaction that has no batch left."""
        header = BATCH_HEADER.unpack_from(view, at)
        if header[H_COUNT] and not header[H_ATTRIBUTES] & DELETE_HORIZON_BIT:
            horizon_ms = self._settings.now_ms + self._settings.delete_retention_ms
            made[number] = _with_horizon(view, at, horizon_ms)
            return _REWRITE
        if header[H_COUNT] and header[H_BASE_TIMESTAMP] > self._settings.now_ms:
            return _COPY
        last = self._last_records.get(header[H_PRODUCER_ID])
        if last is None or last.last_offset >= 0 or last.epoch != header[H_PRODUCER_EPOCH]:
            return _DROP
        return _EMPTY if header[H_COUNT] else _COPY

    def _are_last(self, batches: Batches) -> "Flags":
        """Whether these are the last batches of their producers."""
        ids, offsets = self._last_batches
        if not len(ids):
            return np.zeros(len(batches.at), np.bool_)
        place = np.minimum(np.searchsorted(ids, batches.producer_id), len(ids) - 1)
        last_offset = batches.base_offset + batches.last_offset_delta
        found: Flags = (ids[place] == batches.producer_id) & (offsets[place] == last_offset)
        return found


def _empty_batch(data: memoryview, at: int) -> bytes:
    """The header of a batch with nothing in it (Kafka `DefaultRecordBatch.writeEmptyHeader`)."""
    fields = list(BATCH_HEADER.unpack_from(data, at))
    fields[H_ATTRIBUTES] &= TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
    fields[H_BASE_TIMESTAMP] = NO_TIMESTAMP
    fields[H_COUNT] = 0
    return sealed(fields, b"")


def _with_horizon(data: memoryview, at: int, horizon_ms: int) -> bytes:
    """A control batch with a delete horizon, from which its timestamps are told then."""
    fields = list(BATCH_HEADER.unpack_from(data, at))
    fields[H_ATTRIBUTES] |= DELETE_HORIZON_BIT
    fields[H_BASE_TIMESTAMP] = horizon_ms
    block = b"".join(
        encode_record(timestamp - horizon_ms, offset - fields[H_BASE_OFFSET], key, value, headers)
        for offset, timestamp, key, value, headers in iterate_records(data, at)
    )
    return sealed(fields, block)


class _Plan:
    """What becomes of a chunk's data batches."""

    __slots__ = ("count", "data", "fate", "gets_horizon", "horizon_ms", "records")

    def __init__(
        self,
        chunk: LogChunk,
        key_hash: "KeyHash",
        offsets: "KeyOffsets",
        settings: "Settings",
        end_offset: int,
        is_aborted: "Flags | None",
    ) -> None:
        self.data = data = chunk.data
        has_horizon = data.attributes & DELETE_HORIZON_BIT != 0
        is_over = has_horizon & (data.base_timestamp <= settings.now_ms)
        self.records = records = engine.chosen.Records(chunk, key_hash, offsets, is_over)
        self.count = int(data.record_count.sum())
        self.horizon_ms = settings.now_ms + settings.delete_retention_ms
        self.gets_horizon = records.has_tombstone & ~has_horizon
        self.fate = np.full(len(data.at), _REWRITE)
        self.fate[(records.kept == data.record_count) & ~self.gets_horizon] = _COPY
        self.fate[records.kept == 0] = _DROP
        if is_aborted is not None:
            self.fate[is_aborted] = _DROP
        self.fate[data.base_offset >= end_offset] = _COPY

    def count_kept(self) -> int:
        """Records that stay."""
        kept = np.where(self.fate == _COPY, self.data.record_count, self.records.kept)
        return int(kept[self.fate != _DROP].sum())

    def rewritten(
        self, data_numbers: "NDArray[np.intp]"
    ) -> Iterator[tuple[int, bytes | memoryview, int]]:
        """(number in the chunk, batch, its largest timestamp) of those that change."""
        is_wanted = self.fate == _REWRITE
        if not is_wanted.any():
            return
        for batch, made, timestamp in self.records.rewritten(
            is_wanted, is_wanted & self.gets_horizon, self.horizon_ms
        ):
            yield int(data_numbers[batch]), made, timestamp
