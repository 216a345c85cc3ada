"""Where a log ends: as its last writer says, or its last file, if the last batch bears it out.

Of a good log, that batch is all that is read. Where it does not fit, the log is scanned.
"""

from __future__ import annotations

import logging
import os

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.log.offset_index import POSITION
from shmbroker.log.recovery.damage import put_stray_aside, report
from shmbroker.log.recovery.epochs import check_epochs
from shmbroker.log.segment_indexes import (
    are_indexes_whole,
    cut_indexes,
    indexed_position,
    load_indexes,
    mend_indexes,
    restore_timestamps,
    walk_timestamps,
)
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    H_BASE_OFFSET,
    H_CRC,
    H_LAST_OFFSET_DELTA,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment

logger = logging.getLogger(__name__)


def take_trusted(log: PartitionLog, trusted: tuple[int, int, int]) -> bool:
    """Take the log to end where its last writer stored; False if that can't be."""
    base_offset, position, end_offset = trusted
    while log.segments[-1].base_offset > base_offset and len(log.segments) > 1:
        if log.segments[-1].base_offset == end_offset:
            # Made for a batch whose position was never stored.
            log.segments.pop().remove()
        else:
            put_stray_aside(log, len(log.segments) - 1)
    segment = log.segments[-1]
    if segment.base_offset != base_offset or position > segment.size:
        return False
    if position == 0 and not segment.size and end_offset == base_offset:
        segment.set_max_timestamp(-1, -1)
        log.log_end_offset = end_offset
        return True
    if not _ends_at(log, segment, position, end_offset):
        return False
    if position != os.stat(segment.path).st_size:
        segment.cut_file(position)
    return True


def take_clean(log: PartitionLog, recovery_point: int) -> bool:
    """Take the log to end where its last file ends; False if no batch ends there, or it is not
    what the stop has noted (0: nothing)."""
    segment = log.segments[-1]
    if not segment.size:
        segment.set_max_timestamp(-1, -1)
        log.log_end_offset = segment.base_offset
    elif not _ends_at(log, segment, segment.size, None):
        return False
    if recovery_point in (0, log.log_end_offset):
        return True
    logger.warning(
        "%s ends at offset %d, and ended at %d when it was closed: it is scanned",
        log.directory,
        log.log_end_offset,
        recovery_point,
    )
    return False


def _ends_at(log: PartitionLog, segment: Segment, position: int, end_offset: int | None) -> bool:
    """Whether a good batch ends at `position`; then that is the log's end, and the indexes are
    whole.

    end_offset: one past the last offset of that batch, if it is known.
    """
    size, segment.size = segment.size, position
    next_offset = -1
    load_indexes(segment)
    try:
        if end_offset is None:
            restore_timestamps(segment, position)
        else:
            # A batch that never counted may have left entries.
            segment.end_offset = end_offset
            cut_indexes(segment)
        last = walk_timestamps(segment, indexed_position(segment, position - 1, POSITION), position)
        if last is None:
            next_offset = segment.base_offset
        else:
            found, header = last
            batch = memoryview(segment.read_bytes(found, position - found))
            if crc32c(batch[ATTRIBUTES_POSITION:]) == header[H_CRC]:
                next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
    except CorruptFault:
        pass
    if next_offset < 0 or end_offset not in (None, next_offset):
        segment.size = size
        return False
    log.log_end_offset = next_offset
    if last is not None:
        check_epochs(log, last[1])
    is_finished = end_offset is None
    is_torn = is_finished and (segment.offset_index.is_torn or segment.time_index.is_torn)
    if is_torn or not are_indexes_whole(segment, is_finished=is_finished):
        mend_indexes(segment)
    return True


def judge_ends(log: PartitionLog, recovery_point: int) -> None:
    """Say where the log's ends can't be what was written down of them, and go by its files."""
    if log.log_end_offset < recovery_point:
        report(
            log,
            "%s ends at offset %d, and was flushed up to %d: what is between is lost",
            log.segments[-1].path,
            log.log_end_offset,
            recovery_point,
        )
    if log.log_start_offset > log.log_end_offset:
        own = 0 if log.config.is_tiered else log.segments[0].base_offset
        report(
            log,
            "%s ends at offset %d, and the checkpoint says that it begins at %d: that can't be; it "
            "begins at %d",
            log.directory,
            log.log_end_offset,
            log.log_start_offset,
            own,
        )
        log.log_start_offset = own
