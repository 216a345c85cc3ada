"""Where the scan of a segment begins: at the last index entry before the recovery point that leads
to a batch.

Entries from there on are dropped; the scan makes them again. Indexes are derived, so where one is
wrong the scan begins with the first batch.
"""

from __future__ import annotations

from shmbroker.errors import CorruptFault
from shmbroker.log.offset_index import POSITION
from shmbroker.log.segment_indexes import (
    begin_indexes,
    indexed_position,
    load_indexes,
    restore_timestamps,
)
from shmbroker.records.batch_layout import H_BASE_OFFSET, H_LAST_OFFSET_DELTA, H_MAX_TIMESTAMP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.segment import Segment


def find_scan_start(segment: Segment, recovery_point: int) -> tuple[int, int]:
    """(position, offset) of the last indexed batch before the recovery point, or the first.

    Keeps the index entries up to there, if they grow as they must and lead to batches.
    """
    if recovery_point <= segment.base_offset:
        begin_indexes(segment)
        segment.set_max_timestamp(-1, -1)
        return 0, segment.base_offset
    index, times = segment.offset_index, segment.time_index
    load_indexes(segment)
    index.truncate(index.count_sound(index.count_below(recovery_point - segment.base_offset, 0)))
    last = index.last()
    if last:
        times.truncate(times.count_sound(times.count_below(last[0] + 1, 1)))
        try:
            position = indexed_position(segment, last[1], POSITION)
            restore_timestamps(segment, segment.size)
            if not segment.is_rebuilt:
                _mend_time_index(segment)
                for _, header in segment.headers(position, segment.size):
                    return position, header[H_BASE_OFFSET]
        except CorruptFault:
            pass
    index.truncate(0)
    times.truncate(0)
    segment.set_max_timestamp(-1, -1)
    segment.is_rebuilt = False
    return 0, segment.base_offset


def _mend_time_index(segment: Segment) -> None:
    """Put entries back where the end of the time index is lost, which looks like any other end.

    The offset index tells where entries were due.
    """
    index, times = segment.offset_index, segment.time_index
    newest = times.last()
    known = index.count_below(newest[1] + 1, 0) if newest else 0
    entries = index.read(max(known - 1, 0), index.count - max(known - 1, 0))
    due = {entry[1] for entry in entries}
    start, end = (entries[0][1] if known else 0), entries[-1][1]
    for position, header in segment.headers(start, segment.size):
        if position > end:
            break
        if header[H_MAX_TIMESTAMP] > segment.max_timestamp_so_far:
            segment.set_max_timestamp(
                header[H_MAX_TIMESTAMP], header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
            )
        if position in due:
            times.maybe_append(
                segment.max_timestamp_so_far, segment.max_timestamp_offset - segment.base_offset
            )
