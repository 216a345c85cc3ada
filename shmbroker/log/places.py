"""Where offsets are: the segment, and the position of the batch in it.

A log keeps the batch boundaries where a reader stopped lately (`PartitionLog.boundaries`): one that
reads on needs no index. They hold as long as the log's segments do.
"""

from __future__ import annotations

from bisect import bisect_right

from shmbroker.errors import CorruptFault
from shmbroker.log.residency import ColdBytes
from shmbroker.records.batch_layout import (
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    LOG_OVERHEAD,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment

    Boundaries = dict[int, tuple[Segment, int]]

_BOUNDARIES_KEPT = 64


def segment_number(log: PartitionLog, offset: int) -> int:
    """Place in `segments` of the one whose offsets include `offset`."""
    segments = log.segments
    if offset >= segments[-1].base_offset:
        return len(segments) - 1
    number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    return max(number, 0)


def locate(log: PartitionLog, offset: int) -> tuple[Segment, int]:
    """(segment, position) of the batch with `offset`, or the next one behind a gap."""
    number = segment_number(log, offset)
    while True:
        segment = log.segments[number]
        position, header = segment.find(offset)
        if segment is log.active:
            return segment, position
        if header is None:
            if 0 <= log.cleaned_offset <= offset and not log.config.is_compacted:
                raise CorruptFault(f"{segment.path} does not hold offset {offset}", segment.path)
        elif header[H_BASE_OFFSET] < segment.end_offset:
            return segment, position
        else:
            raise CorruptFault(
                f"{segment.path} holds offset {header[H_BASE_OFFSET]}: it is another's",
                segment.path,
            )
        number += 1


def end_in(log: PartitionLog, segment: Segment, end_offset: int) -> int:
    """The position in `segment` where the batches before `end_offset` end."""
    place = log.boundaries.get(end_offset)
    if place is not None and place[0] is segment:
        return place[1]
    if end_offset <= segment.base_offset:
        return 0
    position, _ = segment.find(end_offset)
    remember(log.boundaries, end_offset, segment, position)
    return position


def shorten(
    segment: Segment, position: int, max_bytes: int, min_one_batch: bool
) -> tuple[int, int]:
    """(end, next offset) of the whole batches in the next `max_bytes`, or of the first one."""
    try:
        end, next_offset = segment.whole_batches(position, position + max_bytes)
    except ColdBytes:
        segment.read_ahead(position, max_bytes)
        raise
    if end == position and min_one_batch:
        for found, header in segment.headers(position, segment.size):
            return found + header[H_LENGTH] + LOG_OVERHEAD, header[H_BASE_OFFSET] + header[
                H_LAST_OFFSET_DELTA
            ] + 1
    return end, next_offset


def remember(boundaries: Boundaries, offset: int, segment: Segment, position: int) -> None:
    """Keep a batch boundary, in the place of the one that was found longest ago."""
    if offset not in boundaries:
        if len(boundaries) >= _BOUNDARIES_KEPT:
            del boundaries[next(iter(boundaries))]
        boundaries[offset] = segment, position
