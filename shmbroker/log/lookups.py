"""What is asked of a log besides its batches: by time, by segment, and what was aborted in it."""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.errors import ProtocolFault
from shmbroker.log.file_names import LOG, file_name
from shmbroker.log.places import end_in
from shmbroker.log.segment_indexes import offset_before
from shmbroker.records.batch import iterate_records
from shmbroker.records.batch_layout import (
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_COUNT,
    H_LAST_OFFSET_DELTA,
    H_MAX_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
)
from shmbroker.records.time_lookup import first_not_older

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment
    from shmbroker.log.transaction_index import AbortedTransaction


def offset_for_timestamp(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record that is not older than `timestamp`, or None."""
    for segment in log.segments:
        if segment.max_timestamp < timestamp or not segment.size:
            continue
        first = offset_before(segment, timestamp)
        position, _ = segment.find(max(first, log.local_start_offset))
        record = _first_in(log, segment, position, timestamp)
        if record is not None:
            return record
    return None


def max_timestamp(log: PartitionLog) -> tuple[int, int]:
    """(timestamp, offset) of the first record with the largest timestamp; (-1, -1) if none."""
    best = max(log.segments, key=lambda segment: segment.max_timestamp)
    if best.max_timestamp < 0:
        return -1, -1
    if best.max_timestamp_offset >= log.log_start_offset:
        position, _ = best.find(best.max_timestamp_offset)
        record = _first_in(log, best, position, best.max_timestamp)
        if record is not None:
            return record
    # It is deleted, with the beginning of its segment.
    timestamp = max(_newest_readable(log, segment) for segment in log.segments)
    return (-1, -1) if timestamp < 0 else offset_for_timestamp(log, timestamp) or (-1, -1)


def _first_in(
    log: PartitionLog, segment: Segment, position: int, timestamp: int
) -> tuple[int, int] | None:
    """The first readable record that is not older, in the batches from `position` on."""
    for found, header in segment.headers(position, segment.size):
        if header[H_MAX_TIMESTAMP] >= timestamp:
            record = _record_in(log, segment, found, header, timestamp)
            if record is not None:
                return record
    return None


def _newest_readable(log: PartitionLog, segment: Segment) -> int:
    """The largest timestamp of a segment's records from the log start on; -1 for none."""
    start = log.log_start_offset
    if segment.base_offset >= start:
        return segment.max_timestamp
    newest = -1
    position, _ = segment.find(start)
    for found, header in segment.headers(position, segment.size):
        last_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
        if last_offset < start or header[H_MAX_TIMESTAMP] <= newest:
            continue
        if header[H_BASE_OFFSET] >= start or header[H_ATTRIBUTES] & TIMESTAMP_TYPE_BIT:
            newest = header[H_MAX_TIMESTAMP]
        else:
            newest = max(newest, _max_in(segment.batch_at(found), header, start))
    return newest


def _max_in(batch: bytes | memoryview, header: tuple[int, ...], start: int) -> int:
    """The largest timestamp of a batch's records from `start` on; that of all where they can't be
    read."""
    try:
        return max((row[1] for row in iterate_records(batch) if row[0] >= start), default=-1)
    except ProtocolFault:
        return header[H_MAX_TIMESTAMP]


def _record_in(
    log: PartitionLog, segment: Segment, position: int, header: tuple[int, ...], timestamp: int
) -> tuple[int, int] | None:
    """The first readable record of a batch that is not older than `timestamp`."""
    if (
        header[H_ATTRIBUTES] & TIMESTAMP_TYPE_BIT
        and header[H_COUNT] == header[H_LAST_OFFSET_DELTA] + 1
    ):
        return header[H_MAX_TIMESTAMP], max(header[H_BASE_OFFSET], log.log_start_offset)
    return first_not_older(segment.batch_at(position), timestamp, log.log_start_offset)


class ListedSegment(NamedTuple):
    """A segment, as a reader outside the family is told of it: what this names never changes."""

    file_name: str
    inode: int
    base_offset: int
    end_offset: int
    valid_bytes: int
    max_timestamp: int


def segments_up_to(log: PartitionLog, end_offset: int) -> list[ListedSegment]:
    """The segments with records below `end_offset`, and no more of them than that."""
    result = []
    for segment in log.segments:
        if segment.base_offset >= end_offset or not segment.size:
            continue
        end = log.log_end_offset if segment is log.active else segment.end_offset
        valid_bytes = segment.size
        if end > end_offset:
            end, valid_bytes = end_offset, end_in(log, segment, end_offset)
        if valid_bytes:
            result.append(
                ListedSegment(
                    file_name(segment.base_offset, LOG),
                    segment.inode,
                    segment.base_offset,
                    end,
                    valid_bytes,
                    segment.max_timestamp,
                )
            )
    return result


def hold(log: PartitionLog, start_offset: int, end_offset: int, until_ms: int) -> None:
    """Files with offsets of this range are not unlinked before `until_ms`, though they may be
    taken out of the log: for queries that were planned by them."""
    for segment in log.segments:
        is_reached = segment is log.active or segment.end_offset > start_offset
        if is_reached and segment.base_offset < end_offset:
            segment.held_until_ms = max(segment.held_until_ms, until_ms)


def aborted_in(
    log: PartitionLog, offset: int, segment: Segment, end_position: int, end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions with records in what `read` gave from `offset` on, which ends
    at `end_position` of the segment; nothing of it lies at or beyond `end_offset`."""
    if not log.aborted:
        return []
    end_offset = min(end_offset, offset_at(log, segment, end_position))
    return log.aborted.find(offset, end_offset)


def offset_at(log: PartitionLog, segment: Segment, position: int) -> int:
    """One past the last offset of the batches of a segment that end at `position`."""
    if position == segment.size:
        return log.log_end_offset if segment is log.active else segment.end_offset
    for offset, place in reversed(log.boundaries.items()):
        if place == (segment, position):
            return offset
    return segment.end_before(position)
