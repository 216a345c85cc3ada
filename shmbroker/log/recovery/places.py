"""Where a segment may begin and must end, and where offsets may be missing.

Offsets are missing within segments where compaction has been or holes were left, and between
segments where compaction has been: `cleaned_offset` says how far. Elsewhere they go on without a
gap. Nothing is changed here.
"""

from __future__ import annotations

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.segment import OFFSETS_MAX
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    H_BASE_OFFSET,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    LOG_OVERHEAD,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment


def gaps_end(log: PartitionLog) -> int:
    """Where the part ends in which offsets may be missing between batches of a segment."""
    return NO_LIMIT if log.config.is_compacted else log.cleaned_offset


def holes_end(log: PartitionLog) -> int:
    """Where the part ends in which they may be missing between segments.

    Only compaction leaves such holes, and it says how far it goes before it does; and a leader that
    has them, to its followers.
    """
    is_unknown = log.config.is_compacted and (log.cleaned_offset < 0 or not log.is_only_replica)
    return NO_LIMIT if is_unknown else log.cleaned_offset


def may_follow(log: PartitionLog, number: int, expected: int) -> bool:
    """Whether a segment that does not begin where the one before ends belongs there."""
    segment = log.segments[number]
    base, previous = segment.base_offset, log.segments[number - 1]
    if not expected < min(holes_end(log), base):
        return False
    return base - previous.base_offset <= OFFSETS_MAX or base <= log.cleaned_offset


def limit_of(log: PartitionLog, number: int) -> int:
    """Where the batches of a segment must end: where the next one begins, if that is to be
    believed."""
    reach = log.segments[number].base_offset + OFFSETS_MAX
    for later in log.segments[number + 1 :]:
        if later.base_offset > reach:
            break
        is_sparse = later is log.segments[-1] and later.base_offset <= gaps_end(log)
        if begins_well(later) or (is_sparse and not later.size):
            return later.base_offset
    return NO_LIMIT


def begins_well(segment: Segment) -> bool:
    """Whether a segment's first batch is right, by its CRC and by the segment's name."""
    try:
        for _, header in segment.headers(0, segment.size):
            batch = memoryview(segment.read_bytes(0, header[H_LENGTH] + LOG_OVERHEAD))
            is_right = (
                crc32c(batch[ATTRIBUTES_POSITION:]) == header[H_CRC]
                and header[H_LAST_OFFSET_DELTA] >= 0
            )
            return is_right and 0 <= header[H_BASE_OFFSET] - segment.base_offset < OFFSETS_MAX
    except CorruptFault:
        pass
    return False
