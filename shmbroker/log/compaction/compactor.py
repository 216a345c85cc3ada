"""Compaction of closed segments: the last record of each key stays (source: Kafka `Cleaner`).

Two passes over files that nobody changes any more:

   segments     [ clean, once before ][ dirty ][ dirty ] [ not yet: lag, active, undecided ]
   1  read                            └ keys -> last offset, until the memory for them is used up
   2  rewrite   └──── groups of segments, each one new segment ─────┘
                beside the old ones, as `.cleaned`, made durable

Of a record with a key, pass 2 keeps the one at the last offset of its key. Offsets never change.

 * A batch that stays whole is copied as it is. One that loses records keeps its header but for
   lengths, count, largest timestamp and CRC. One that loses all goes, unless it is the last of a
   producer: its header stays then, with no records, as sequences are known by it.
 * Tombstones (null values) stay `delete.retention.ms` from the first pass that kept them: their
   batch gets that moment, the delete horizon, for base timestamp (KIP-534). After it they go.
 * Records of aborted transactions go, and none of them is the last of its key (`fates`).
   A marker whose transaction has no batch left gets a delete horizon, too, and goes after it; the
   last thing that is known of a producer stays as an empty batch.
 * Where the memory for keys was used up, the rest of the last segment is copied as it is: nothing
   is missing behind the offset up to which a log is said to be clean.
 * Records without a key can't be here by right (Produce refuses them) and go.

What is done per record is an engine's: `by_kernels`, or without the compiled kernels
`by_numpy`; both write the same bytes. Memory is bounded by CHUNK_BYTES, what a batch may
decompress to, and the map's bytes. Whatever is damaged is a CorruptFault.
"""

import os
from collections.abc import Callable, Iterator
from errno import EDQUOT, EFBIG, ENOSPC
from typing import NamedTuple

import numpy as np

from shmbroker.errors import StorageFault
from shmbroker.kernels import native
from shmbroker.log.compaction.chunks import Batches, LogChunk, Source, read_chunks, sealed
from shmbroker.log.compaction.cleaned_files import cleaned_path, remove_cleaned
from shmbroker.log.compaction.fates import KnownTransactions
from shmbroker.log.compaction.key_offsets import KeyHash, KeyOffsets
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.file_names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from shmbroker.log.offset_index import OffsetIndex
from shmbroker.log.time_index import TimeIndex
from shmbroker.log.transaction_index import encode_entries
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
from shmbroker.signs import waiting_for_disk

if native is not None:
    from shmbroker.log.compaction import by_kernels as engine
else:
    from shmbroker.log.compaction import by_numpy as engine  # type: ignore[no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]

_OFFSETS_MAX = 2**31 - 1
_POSITION_MAX = 2**31 - 1
_FULL = (ENOSPC, EDQUOT, EFBIG)

# What becomes of a batch.
_COPY, _DROP, _EMPTY, _REWRITE = range(4)


class Settings(NamedTuple):
    """What a pass is to keep to; times in ms."""

    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int


class LastRecord(NamedTuple):
    """The last thing that is known of a producer."""

    last_offset: int
    """The last offset of its last data batch; -1: a marker began its epoch, and there is none."""
    epoch: int


class SegmentGroup(NamedTuple):
    """A new segment: sources[first : first + length] become one of `size` bytes."""

    first: int
    length: int
    size: int


class Report:
    """What a pass has done so far."""

    __slots__ = ("bytes_read", "bytes_written", "end_offset", "groups", "kept", "records")

    def __init__(self) -> None:
        self.end_offset = 0
        """Everything before it is clean now."""
        self.groups: list[SegmentGroup] = []
        self.bytes_read = self.bytes_written = 0
        self.records = self.kept = 0
        """Records read and kept by the second pass."""


def compact(
    directory: str,
    sources: list[Source],
    dirty_offset: int,
    last_records: dict[int, LastRecord],
    settings: Settings,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Write the `.cleaned` files for these segments of the log in `directory`.

    dirty_offset: everything before it has been clean since an earlier pass. last_records: by
    producer id. on_progress is called now and then with the bytes read or
    written since; what it raises ends the pass. Whatever ends it, no `.cleaned` file stays then.
    """
    report = Report()
    try:
        key_hash = KeyHash()
        offsets = _read_keys(directory, sources, dirty_offset, key_hash, settings, on_progress)
        report.end_offset = offsets[1]
        taken = [source for source in sources if source.base_offset < report.end_offset]
        first = 0
        transactions = KnownTransactions(directory, sources[0].base_offset)
        for count in _group_counts(directory, taken, settings):
            group = _Rewriter(
                directory,
                taken[first : first + count],
                key_hash,
                offsets[0],
                transactions,
                last_records,
                settings,
                on_progress,
                report,
            )
            size = group.run()
            if size >= 0:
                report.groups.append(SegmentGroup(first, count, size))
            first += count
    except BaseException:
        remove_cleaned(directory)
        raise
    return report


def _group_counts(directory: str, sources: list[Source], settings: Settings) -> list[int]:
    """How many segments in a row make one each: up to what a segment and its indexes may hold."""
    counts: list[int] = []
    size = index = time_index = 0
    base_offset = 0
    for source in sources:
        sizes = [
            _size_of(os.path.join(directory, file_name(source.base_offset, suffix)))
            for suffix in (INDEX, TIME_INDEX)
        ]
        if (
            counts
            and size + source.size <= settings.segment_bytes
            and index + sizes[0] <= settings.segment_index_bytes
            and time_index + sizes[1] <= settings.segment_index_bytes
            and source.end_offset - 1 - base_offset <= _OFFSETS_MAX
        ):
            counts[-1] += 1
        else:
            counts.append(1)
            size = index = time_index = 0
            base_offset = source.base_offset
        size += source.size
        index += sizes[0]
        time_index += sizes[1]
    return counts


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


# --- the first pass ------------------------------------------------------------------------------


def _read_keys(
    directory: str,
    sources: list[Source],
    dirty_offset: int,
    key_hash: KeyHash,
    settings: Settings,
    on_progress: Callable[[int], None],
) -> tuple[KeyOffsets, int]:
    """(the last offset of each key from `dirty_offset` on, where the map was full or the end)."""
    offsets = engine.KeyOffsets(settings.map_bytes)
    dirty = [source for source in sources if source.end_offset > dirty_offset]
    transactions = KnownTransactions(directory, dirty[0].base_offset)
    for source in dirty:
        for chunk in read_chunks(directory, source, engine.find_batches):
            on_progress(_size(chunk))
            verdict = transactions.judge(chunk)
            if not len(chunk.low):
                continue
            is_counted = np.ones(len(chunk.low), np.bool_)
            if verdict is not None:
                is_counted = ~verdict.is_aborted[chunk.is_data]
            hashes, rows = engine.hash_keys(chunk, key_hash, is_counted, dirty_offset)
            if offsets.put(hashes, rows) < len(rows):
                return offsets, offsets.latest_offset + 1
    return offsets, sources[-1].end_offset


# --- the second pass -----------------------------------------------------------------------------


class _Rewriter:
    """Writes one new segment from a group of old ones."""

    def __init__(
        self,
        directory: str,
        sources: list[Source],
        key_hash: KeyHash,
        offsets: KeyOffsets,
        transactions: KnownTransactions,
        last_records: dict[int, LastRecord],
        settings: Settings,
        on_progress: Callable[[int], None],
        report: Report,
    ) -> None:
        self.directory = directory
        self.sources = sources
        self.key_hash = key_hash
        self.offsets = offsets
        self.transactions = transactions
        self.last_records = last_records
        ids = sorted(last_records)
        self.last_batches = (
            np.array(ids, np.int64),
            np.array([last_records[producer_id].last_offset for producer_id in ids], np.int64),
        )
        self.settings = settings
        self.on_progress = on_progress
        self.report = report
        self.base_offset = base_offset = sources[0].base_offset
        self.path = cleaned_path(directory, base_offset, LOG)
        index_bytes_max = settings.segment_index_bytes
        self.offset_index = OffsetIndex(
            cleaned_path(directory, base_offset, INDEX), index_bytes_max
        )
        self.time_index = TimeIndex(
            cleaned_path(directory, base_offset, TIME_INDEX), index_bytes_max
        )
        self.size = 0
        self.indexed_at = 0
        self.max_timestamp = self.max_timestamp_offset = -1
        self.is_changed = len(sources) > 1

    def run(self) -> int:
        """The new segment's size; -1 if it would be what the old one is, so nothing was written."""
        self.transactions.kept.clear()
        try:
            with open(self.path, "wb", buffering=1 << 20) as file:
                for source in self.sources:
                    for chunk in read_chunks(self.directory, source, engine.find_batches):
                        before = self.size
                        for piece in self._survivors(chunk):
                            file.write(piece)
                        self.report.bytes_read += _size(chunk)
                        self.report.bytes_written += self.size - before
                        self.on_progress(_size(chunk) + self.size - before)
                if self.is_changed:
                    file.flush()
                    with waiting_for_disk():
                        os.fsync(file.fileno())
            if not self.is_changed:
                remove_cleaned(self.directory, self.base_offset)
                return -1
            self._finish()
        except OSError as error:
            kind = DiskFullFault if error.errno in _FULL else StorageFault
            raise kind(f"can't write {self.path}: {error.strerror}") from error
        finally:
            self.offset_index.close()
            self.time_index.close()
        return self.size

    def _finish(self) -> None:
        """The last time index entry, all files there and durable, and as old as what they replace:
        retention goes by that where no record has a timestamp."""
        if self.max_timestamp >= 0:
            self.time_index.maybe_append(
                self.max_timestamp, self.max_timestamp_offset - self.base_offset
            )
        for index in (self.offset_index, self.time_index):
            fd = os.open(index.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                index.truncate(index.count)
                index.close()
                with waiting_for_disk():
                    os.fsync(fd)
            finally:
                os.close(fd)
        if self.transactions.kept:
            with open(cleaned_path(self.directory, self.base_offset, TXN_INDEX), "wb") as file:
                file.write(encode_entries(self.transactions.kept))
                file.flush()
                with waiting_for_disk():
                    os.fsync(file.fileno())
        last = os.path.join(self.directory, file_name(self.sources[-1].base_offset, LOG))
        modified_ns = os.stat(last).st_mtime_ns
        os.utime(self.path, ns=(modified_ns, modified_ns))

    def _survivors(self, chunk: LogChunk) -> Iterator[bytes | memoryview]:
        """What of the chunk goes into the new segment."""
        view, batches = chunk.raw.data, chunk.batches
        at, end = batches.at, batches.end
        engine.check_crcs(chunk)
        fate = np.full(len(at), _COPY)
        made: dict[int, bytes | memoryview] = {}
        verdict = self.transactions.judge(chunk)
        plan: _Plan | None = None
        if len(chunk.low):
            plan = _Plan(
                chunk,
                self.key_hash,
                self.offsets,
                self.settings,
                self.report.end_offset,
                None if verdict is None else verdict.is_aborted[chunk.is_data],
            )
            self.report.records += plan.count
            self.report.kept += plan.count_kept()
            fate[chunk.is_data] = plan.fate
        is_clean = batches.base_offset < self.report.end_offset
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
        if not is_copied.all():
            self.is_changed |= bool(
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
        self._index(size, batches.base_offset + batches.last_offset_delta, max_timestamp)
        edges = np.flatnonzero(np.diff(fate) != 0) + 1
        for begin, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(at)], strict=True):
            if fate[begin] == _COPY:
                yield view[int(at[begin]) : int(end[stop - 1])]
            elif fate[begin] != _DROP:
                yield b"".join([made[number] for number in range(begin, stop)])

    def _fate_of_marker(
        self, view: memoryview, at: int, number: int, made: dict[int, bytes | memoryview]
    ) -> int:
        """What becomes of the marker of a transaction that has no batch left."""
        header = BATCH_HEADER.unpack_from(view, at)
        if header[H_COUNT] and not header[H_ATTRIBUTES] & DELETE_HORIZON_BIT:
            horizon_ms = self.settings.now_ms + self.settings.delete_retention_ms
            made[number] = _with_horizon(view, at, horizon_ms)
            return _REWRITE
        if header[H_COUNT] and header[H_BASE_TIMESTAMP] > self.settings.now_ms:
            return _COPY
        last = self.last_records.get(header[H_PRODUCER_ID])
        if last is None or last.last_offset >= 0 or last.epoch != header[H_PRODUCER_EPOCH]:
            return _DROP
        return _EMPTY if header[H_COUNT] else _COPY

    def _are_last(self, batches: Batches) -> "Flags":
        """Whether these are the last batches of their producers."""
        ids, offsets = self.last_batches
        if not len(ids):
            return np.zeros(len(batches.at), np.bool_)
        place = np.minimum(np.searchsorted(ids, batches.producer_id), len(ids) - 1)
        last_offset = batches.base_offset + batches.last_offset_delta
        found: Flags = (ids[place] == batches.producer_id) & (offsets[place] == last_offset)
        return found

    def _index(self, size: "Int64s", last_offset: "Int64s", max_timestamp: "Int64s") -> None:
        """Index the batches that stay, as an append does: one entry every so many bytes."""
        if not size.all():
            stays = np.flatnonzero(size)
            size, last_offset, max_timestamp = size[stays], last_offset[stays], max_timestamp[stays]
        if not len(size):
            return
        end = self.size + np.cumsum(size)
        position = end - size
        self.size = int(end[-1])
        if self.size > _POSITION_MAX:
            raise StorageFault(f"{self.path} would outgrow what an index can point to")
        # The batch that holds the largest timestamp so far is where it grew last.
        largest = np.maximum.accumulate(np.append(self.max_timestamp, max_timestamp))
        grew = np.flatnonzero(largest[1:] > largest[:-1])
        holder = np.append(self.max_timestamp_offset, last_offset[grew])
        chosen = self._chosen(position)
        if len(chosen):
            entries = np.stack((last_offset[chosen] - self.base_offset, position[chosen]), 1)
            stored = self.offset_index.extend(entries.astype(">u4").tobytes())
            chosen = chosen[:stored]
            holders = holder[np.searchsorted(grew, chosen, "right")] - self.base_offset
            self.time_index.maybe_extend(
                zip(largest[chosen + 1].tolist(), holders.tolist(), strict=True)
            )
        self.max_timestamp, self.max_timestamp_offset = int(largest[-1]), int(holder[-1])

    def _chosen(self, position: "Int64s") -> "NDArray[np.intp]":
        """Which batches get an index entry."""
        interval = self.settings.index_interval_bytes
        last = len(position)
        if position[0] > self.indexed_at + interval and (np.diff(position) > interval).all():
            self.indexed_at = int(position[-1])
            return np.arange(last)
        chosen = []
        number = int(position.searchsorted(self.indexed_at + interval, "right"))
        while number < last:
            chosen.append(number)
            self.indexed_at = int(position[number])
            number = int(position.searchsorted(self.indexed_at + interval, "right"))
        return np.array(chosen, np.intp)


def _size(chunk: LogChunk) -> int:
    """Log bytes of a chunk."""
    return int(chunk.batches.end[-1] - chunk.batches.at[0])


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
        key_hash: KeyHash,
        offsets: KeyOffsets,
        settings: Settings,
        end_offset: int,
        is_aborted: "Flags | None",
    ) -> None:
        self.data = data = chunk.data
        has_horizon = data.attributes & DELETE_HORIZON_BIT != 0
        is_over = has_horizon & (data.base_timestamp <= settings.now_ms)
        self.records = records = engine.Records(chunk, key_hash, offsets, is_over)
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
