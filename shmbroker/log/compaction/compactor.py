"""Compaction of closed segments: the last record of each key stays (source: Kafka `Cleaner`).

Two passes over files that nobody changes any more:

   segments     [ clean, once before ][ dirty ][ dirty ] [ not yet: lag, active, undecided ]
   1  read                            └ keys -> last offset, until the memory for them is used up
   2  rewrite   └──── groups of segments, each one new segment ─────┘
                beside the old ones, as `.cleaned`, made durable

    read_chunks     a segment's batches, checked             chunks.py
    KeyOffsets      pass 1: the last offset of each key      key_offsets.py
    Survivors       pass 2: what becomes of each batch       survivors.py, fates.py
    CleanedSegment  pass 2: the files of a new segment       cleaned_segment.py

Rules of these files:
 * Offsets never change.
 * Where the memory for keys was used up, the rest of the last segment is copied as it is: nothing
   is missing behind the offset up to which a log is said to be clean.
 * What is done per record is an engine's (`engine`).
 * Memory is bounded by CHUNK_BYTES, what a batch may decompress to, and the map's bytes.
 * Whatever is damaged is a CorruptFault.
"""

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from shmbroker.log.compaction import engine
from shmbroker.log.compaction.chunks import LogChunk, Source, read_chunks
from shmbroker.log.compaction.cleaned_files import remove_cleaned, try_remove_cleaned
from shmbroker.log.compaction.cleaned_segment import CleanedSegment
from shmbroker.log.compaction.fates import KnownTransactions
from shmbroker.log.compaction.key_offsets import KeyHash, KeyOffsets
from shmbroker.log.compaction.survivors import KeptBatches, Survivors
from shmbroker.log.file_names import INDEX, TIME_INDEX, file_name

_OFFSETS_MAX = 2**31 - 1


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
    written since; what it raises ends the pass. Whatever ends it, no `.cleaned` file stays then
    which the disk lets go of.
    """
    remove_cleaned(directory)
    report = Report()
    try:
        key_hash = KeyHash()
        offsets, report.end_offset = _read_keys(
            directory, sources, dirty_offset, key_hash, settings, on_progress
        )
        taken = [source for source in sources if source.base_offset < report.end_offset]
        first = 0
        transactions = KnownTransactions(directory, sources[0].base_offset)
        survivors = Survivors(
            key_hash, offsets, report.end_offset, transactions, last_records, settings
        )
        for count in _group_counts(directory, taken, settings):
            group = taken[first : first + count]
            transactions.kept.clear()
            segment = CleanedSegment(directory, group, settings)
            kept = _kept(directory, group, survivors, on_progress, report)
            if segment.write(kept, transactions.kept):
                report.groups.append(SegmentGroup(first, count, segment.size))
            first += count
    except BaseException:
        try_remove_cleaned(directory)
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
    offsets = engine.chosen.KeyOffsets(settings.map_bytes)
    dirty = [source for source in sources if source.end_offset > dirty_offset]
    transactions = KnownTransactions(directory, dirty[0].base_offset)
    for source in dirty:
        for chunk in read_chunks(directory, source, engine.chosen.find_batches):
            on_progress(_size(chunk))
            verdict = transactions.judge(chunk)
            if not len(chunk.low):
                continue
            is_counted = np.ones(len(chunk.low), np.bool_)
            if verdict is not None:
                is_counted = ~verdict.is_aborted[chunk.is_data]
            hashes, rows = engine.chosen.hash_keys(chunk, key_hash, is_counted, dirty_offset)
            if offsets.put(hashes, rows) < len(rows):
                return offsets, offsets.latest_offset + 1
    return offsets, sources[-1].end_offset


# --- the second pass -----------------------------------------------------------------------------


def _kept(
    directory: str,
    sources: list[Source],
    survivors: Survivors,
    on_progress: Callable[[int], None],
    report: Report,
) -> Iterator[KeptBatches]:
    """What is kept of each chunk of these segments. When the next is asked for, the last is written
    and counted."""
    for source in sources:
        for chunk in read_chunks(directory, source, engine.chosen.find_batches):
            kept = survivors.of(chunk)
            yield kept
            read, written = _size(chunk), int(kept.size.sum())
            report.records += kept.records
            report.kept += kept.records_kept
            report.bytes_read += read
            report.bytes_written += written
            on_progress(read + written)


def _size(chunk: LogChunk) -> int:
    """Log bytes of a chunk."""
    return int(chunk.batches.end[-1] - chunk.batches.at[0])
