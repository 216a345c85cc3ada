"""Scanning one segment: its batches are checked and indexed, up to the first that is wrong.

A batch must be whole and right by its CRC, continue the offsets, and not fall back to an older
leader epoch. What happens where one is wrong:

   no other replica has it        it is mended, if that can be, and walked once more
   offsets below the recovery     it stays as it is, and readers are told
   point are missing
   else                           it is cut there
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.errors import CorruptFault
from shmbroker.log.judging import note_judged
from shmbroker.log.recovery.damage import cut, leave_gap
from shmbroker.log.recovery.epochs import check_epochs
from shmbroker.log.recovery.holes import mend_segment
from shmbroker.log.recovery.places import gaps_end, holes_end, limit_of
from shmbroker.log.recovery.scan_start import find_scan_start
from shmbroker.log.segment import OFFSETS_MAX
from shmbroker.records.batch_layout import (
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LEADER_EPOCH,
    H_LENGTH,
    H_MAX_TIMESTAMP,
    LOG_OVERHEAD,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment


class _Walk(NamedTuple):
    """What a walk over a segment's batches found. The offset behind the last good one is the
    segment's `end_offset` then."""

    start: int
    """The position where it began."""
    end: int
    """Where the last good batch ends; the segment's size if none is wrong."""
    limit: int
    """The offset before which its batches must end: where the next segment begins."""
    is_lacking: bool
    """Offsets that were flushed are missing before that limit."""


def scan_segment(log: PartitionLog, number: int, recovery_point: int) -> bool:
    """Check a segment's batches, rebuild its indexes, mend or cut it where it goes wrong.

    True if the file ends with its last good batch.
    """
    segment = log.segments[number]
    walk = _walk(log, number, recovery_point)
    if (
        log.is_only_replica
        and (walk.is_lacking or walk.end != segment.size)
        and mend_segment(log, segment, recovery_point, walk.limit)
    ):
        walk = _walk(log, number, recovery_point)
    if walk.is_lacking:
        leave_gap(log, segment, walk.end, walk.limit)
        return True
    is_whole = walk.end == segment.size
    if not is_whole:
        cut(log, segment, walk.end, is_flushed=segment.end_offset < recovery_point)
    note_judged(segment, walk.start, walk.end, segment.end_offset)
    if segment is not log.segments[-1]:
        segment.finish()
    return is_whole


def _walk(log: PartitionLog, number: int, recovery_point: int) -> _Walk:
    """Walk over a segment's batches up to the first that is wrong, and index them."""
    segment = log.segments[number]
    limit = limit_of(log, number)
    start, expected = find_scan_start(segment, recovery_point)
    if start or expected < recovery_point or log.is_only_replica:
        # What was flushed, or never truncated, is no leftover of anything: the epoch file is what
        # may be wrong.
        _check_first(log, segment, start, expected)
    end = _index_batches(log, segment, start, expected, limit)
    end_offset = segment.end_offset
    for later in log.segments[number + 1 : number + 2]:
        if end_offset <= later.base_offset <= segment.base_offset + OFFSETS_MAX:
            limit = later.base_offset  # Nothing speaks against it any more.
    is_lacking = holes_end(log) <= end_offset < limit <= recovery_point
    return _Walk(start, end, limit, is_lacking)


def _check_first(log: PartitionLog, segment: Segment, start: int, expected: int) -> None:
    """Compare the epoch history with the batch at `start`, if it is the one that is expected."""
    try:
        for _, header in segment.headers(start, segment.size):
            if header[H_BASE_OFFSET] == expected:
                check_epochs(log, header)
            break
    except CorruptFault:
        pass  # The walk will see.


def _index_batches(
    log: PartitionLog, segment: Segment, start: int, expected: int, limit: int
) -> int:
    """Index a segment's batches from the position `start` on; where the last good one ends.

    expected: the offset that is due at `start`. limit: the offset before which they must end. The
    epoch history, the largest timestamp and `end_offset` follow.
    """
    base = segment.base_offset
    interval, sparse_end = log.config.index_interval_bytes, gaps_end(log)
    epochs = log.leader_epochs
    epoch = epochs.epoch_at(expected)
    offset_index, time_index = segment.offset_index, segment.time_index
    max_timestamp, max_offset = segment.max_timestamp_so_far, segment.max_timestamp_offset
    indexed_at = end = start
    for position, header in segment.good_batches(start, segment.size):
        if header[H_BASE_OFFSET] != expected and not (
            header[H_BASE_OFFSET] > expected and (expected < sparse_end or not position)
        ):
            break
        last_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
        if (
            header[H_LEADER_EPOCH] < epoch
            or header[H_LAST_OFFSET_DELTA] < 0
            or last_offset - base >= OFFSETS_MAX
            or last_offset >= limit
        ):
            break
        if header[H_LEADER_EPOCH] > epoch:
            epoch = header[H_LEADER_EPOCH]
            epochs.assign(epoch, header[H_BASE_OFFSET])
        if not position:
            segment.first_timestamp = header[H_MAX_TIMESTAMP]
        if header[H_MAX_TIMESTAMP] > max_timestamp:
            max_timestamp, max_offset = header[H_MAX_TIMESTAMP], last_offset
        if position - indexed_at > interval:
            indexed_at = position
            if offset_index.append(last_offset - base, position):
                time_index.maybe_append(max_timestamp, max_offset - base)
        expected = last_offset + 1
        end = position + header[H_LENGTH] + LOG_OVERHEAD
    segment.set_max_timestamp(max_timestamp, max_offset)
    segment.end_offset = expected
    return end
