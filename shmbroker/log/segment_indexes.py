"""The indexes of a segment as what they are: derived, so looked at before they are believed.

Rules
 * Index files are counted when they are first asked for, and those of a finished segment that are
   torn, missing, or do not lead to its last batches are rebuilt then.
 * An entry counts when it names a batch that says the same. Where one doesn't, both indexes are
   rebuilt from the batches' headers, once: if it is still wrong then, it is the .log itself.
 * A damaged .log leaves the indexes as they are, for what they still lead to: a reader there
   is told.
 * A segment's first and largest timestamps are those of its time index and its batches, and follow
   whatever is done to them here.
"""

from __future__ import annotations

import logging
import os

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import offset_index, residency, time_index
from shmbroker.log.offset_index import POSITION
from shmbroker.log.quarantine import put_strangers_aside
from shmbroker.log.time_index import TIMESTAMP
from shmbroker.records.batch_layout import H_BASE_OFFSET, H_LAST_OFFSET_DELTA, H_MAX_TIMESTAMP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.index_file import IndexFile
    from shmbroker.log.segment import Segment

logger = logging.getLogger(__name__)

_INDEX_GAP_BYTES = 1 << 20
"""More than this between two entries no append leaves: Kafka makes one for each that a follower
does, of at most 1 MiB."""


def load_indexes(segment: Segment) -> None:
    """Count the entries of the index files, once.

    Those of a finished segment are rebuilt where they are torn or missing.
    """
    if segment.are_indexes_loaded:
        return
    is_torn = False
    for index in (segment.offset_index, segment.time_index):
        if not index.count:
            _load(segment, index)
            is_torn |= index.is_torn
    segment.are_indexes_loaded = True
    is_finished = segment.end_offset > segment.base_offset and segment.map is None and segment.size
    try:
        if is_finished and (is_torn or not are_indexes_whole(segment)):
            mend_indexes(segment)
    except residency.ColdBytes:
        segment.are_indexes_loaded = False
        raise


def begin_indexes(segment: Segment) -> None:
    """Drop what both indexes have: every batch is looked at, and indexed again."""
    for index in (segment.offset_index, segment.time_index):
        _load(segment, index)
        index.truncate(0)
    segment.are_indexes_loaded = True


def _load(segment: Segment, index: IndexFile) -> None:
    try:
        index.load()
    except StorageFault:
        if not put_strangers_aside(segment.directory):
            raise
        index.load()


def has_indexes(segment: Segment) -> bool:
    """Whether both index files are there and hold whole entries."""
    try:
        return not any(
            os.stat(index.path).st_size % index.ENTRY.size
            for index in (segment.offset_index, segment.time_index)
        )
    except OSError:
        return False


def are_indexes_whole(segment: Segment, *, is_finished: bool = True) -> bool:
    """Whether the indexes, as far as they are loaded, lead to the last batches: an end that is
    lost looks like any other end. Finished, a segment has its last timestamp in the index."""
    last = segment.offset_index.last()
    start = last[POSITION] if last else 0
    gap = segment.config.index_interval_bytes + (_INDEX_GAP_BYTES if last else 0)
    try:
        if last and not _is_sound(segment, last):
            return False
        newest = segment.time_index.last()
        for position, header in segment.headers(start, segment.size):
            if position - start > gap or (
                newest and is_finished and header[H_MAX_TIMESTAMP] > newest[TIMESTAMP]
            ):
                return False
        if newest or not is_finished:
            return newest is None or is_time_sound(segment, newest)
        return all(
            header[H_MAX_TIMESTAMP] <= 0
            for _, header in segment.headers(0, min(segment.size, start + 1))
        )
    except CorruptFault:
        return True  # It is the segment itself: a reader there is told.


def is_time_sound(segment: Segment, entry: tuple[int, ...]) -> bool:
    """Whether a time index entry names a batch with that timestamp."""
    timestamp, relative_offset = entry
    offset = segment.base_offset + relative_offset
    _, header = segment.find(offset)
    # Older Kafka stored the offset of the record, not of the batch's last one.
    return (
        header is not None
        and header[H_MAX_TIMESTAMP] == timestamp
        and header[H_BASE_OFFSET] <= offset
    )


def _is_sound(segment: Segment, entry: tuple[int, ...]) -> bool:
    relative_offset, position = entry
    try:
        for _, header in segment.headers(position, segment.size):
            return (
                header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
                == segment.base_offset + relative_offset
            )
    except CorruptFault:
        pass
    return False


def indexed_position(segment: Segment, target: int, column: int) -> int:
    """Where an indexed batch at or before the target begins: looked at, then believed."""
    load_indexes(segment)
    index = segment.offset_index
    entry = index.floor(target, column)
    if entry is None:
        return 0
    if not _is_sound(segment, entry):
        rebuild_indexes(segment)
        entry = index.floor(target, column)
    return entry[POSITION] if entry else 0


def offset_before(segment: Segment, timestamp: int) -> int:
    """An offset before which every record of the segment is older than `timestamp`."""
    load_indexes(segment)
    entry = segment.time_index.floor(timestamp - 1, TIMESTAMP)
    if entry and not is_time_sound(segment, entry):
        rebuild_indexes(segment)
        entry = segment.time_index.floor(timestamp - 1, TIMESTAMP)
    return segment.base_offset + (entry[time_index.RELATIVE_OFFSET] if entry else 0)


def mend_indexes(segment: Segment) -> None:
    """Rebuild both indexes; where the segment is damaged, a reader there is told."""
    try:
        rebuild_indexes(segment)
    except CorruptFault:
        pass


def rebuild_indexes(segment: Segment) -> None:
    """Rebuild both indexes from the batches' headers.

    CorruptFault if those are damaged: then the indexes stay, for what they still lead to.
    """
    if segment.is_rebuilt:
        raise CorruptFault(f"{segment.path} is damaged", segment.path)
    segment.is_rebuilt = segment.are_indexes_loaded = True
    with residency.waiting():
        for position, header in segment.headers(0, segment.size):
            if (
                not 0
                <= header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] - segment.base_offset
                < 1 << 31
            ):
                raise CorruptFault(
                    f"{segment.path}: the batch at position {position} is damaged", segment.path
                )
        logger.warning("%s: an index is missing or wrong; both are rebuilt", segment.path)
        _rebuild_indexes(segment)


def _rebuild_indexes(segment: Segment) -> None:
    segment.offset_index.truncate(0)
    segment.time_index.truncate(0)
    segment.set_max_timestamp(-1, -1)
    indexed_at = 0
    for position, header in segment.headers(0, segment.size):
        last_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
        if header[H_MAX_TIMESTAMP] > segment.max_timestamp_so_far:
            segment.set_max_timestamp(header[H_MAX_TIMESTAMP], last_offset)
        if position - indexed_at > segment.config.index_interval_bytes:
            indexed_at = position
            add_index_entry(segment, position, last_offset)
    if segment.map is None:
        segment.finish()


def add_index_entry(segment: Segment, position: int, last_offset: int) -> None:
    """Index the batch at `position`; the largest timestamp up to it must be known."""
    if segment.offset_index.append(last_offset - segment.base_offset, position):
        segment.time_index.maybe_append(
            segment.max_timestamp_so_far, segment.max_timestamp_offset - segment.base_offset
        )


def add_last_time(segment: Segment) -> None:
    """Write the last entry of a finished segment: its largest timestamp."""
    if segment.max_timestamp_so_far >= 0:
        segment.time_index.append_last(
            segment.max_timestamp_so_far, segment.max_timestamp_offset - segment.base_offset
        )


def restore_timestamps(segment: Segment, end: int) -> None:
    """Take the timestamps from the time index and the first batch of [0, end).

    The first batch because a time index entry for it may be (0, 0), the end mark, and because
    `segment.ms` counts from it. Where the index is wrong and can't be rebuilt, it is that batch
    alone.
    """
    last = segment.time_index.last()
    try:
        if last and not is_time_sound(segment, last):
            rebuild_indexes(segment)
            last = segment.time_index.last()
    except CorruptFault:
        last = None
    segment.set_max_timestamp(-1, -1)
    if last:
        timestamp, relative_offset = last
        segment.set_max_timestamp(timestamp, segment.base_offset + relative_offset)
    segment.first_timestamp = -1
    try:
        for _, header in segment.headers(0, end):
            segment.first_timestamp = header[H_MAX_TIMESTAMP]
            if header[H_MAX_TIMESTAMP] > segment.max_timestamp_so_far:
                segment.set_max_timestamp(
                    header[H_MAX_TIMESTAMP], header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
                )
            break
    except CorruptFault:
        pass  # A reader there is told.


def cut_indexes(segment: Segment) -> None:
    """Drop index entries at or behind `end_offset`; the largest timestamp follows."""
    relative = segment.end_offset - segment.base_offset
    for index, column in (
        (segment.offset_index, offset_index.RELATIVE_OFFSET),
        (segment.time_index, time_index.RELATIVE_OFFSET),
    ):
        index.truncate(index.count_below(relative, column))
    restore_timestamps(segment, segment.size)
    last = segment.offset_index.last()
    walk_timestamps(segment, last[POSITION] if last else 0, segment.size)


def walk_timestamps(
    segment: Segment, position: int, end: int
) -> tuple[int, tuple[int, ...]] | None:
    """Take in the timestamps of the batches in [position, end); the last batch's place."""
    place = None
    for place in segment.headers(position, end):
        header = place[1]
        if header[H_MAX_TIMESTAMP] > segment.max_timestamp_so_far:
            segment.set_max_timestamp(
                header[H_MAX_TIMESTAMP], header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
            )
    return place
