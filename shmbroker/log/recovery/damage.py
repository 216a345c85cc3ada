"""What a start can't serve of a log: named, counted, and put aside rather than removed.

A loss is logged as an error, and counts (`damage_count`). A torn end is a warning: any crash may
leave one.
"""

from __future__ import annotations

import logging
import os

from shmbroker.log.quarantine import has_place, put_aside, put_tail_aside
from shmbroker.records.batch_layout import HEADER_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment

logger = logging.getLogger(__name__)


def report(log: PartitionLog, text: str, *what: object) -> None:
    """Name something of a log that is lost, or can't be; it counts."""
    log.damage_count += 1
    logger.error(text, *what)


def put_stray_aside(log: PartitionLog, number: int) -> None:
    """Put aside a segment to which nothing leads up, or which begins within another one."""
    segment = log.segments.pop(number)
    if 0 < number < len(log.segments):
        log.segments[number - 1].end_offset = log.segments[number].base_offset
    report(
        log,
        "%s does not belong to a log that %s; it is in quarantine/ now",
        segment.path,
        f"ends at offset {log.log_end_offset}" if number else "begins elsewhere",
    )
    if has_place(log.directory):
        put_aside(log.directory, [segment.path])
    segment.remove()


def drop_segments(log: PartitionLog, number: int) -> None:
    """Put aside the segments from `number` on: the offsets don't go on, so they can't be served."""
    dropped = [segment.path for segment in log.segments[number:] if segment.size]
    if dropped:
        report(
            log,
            "%s ends at offset %d: %d segments from %s on do not follow; they are in quarantine/",
            log.directory,
            log.log_end_offset,
            len(dropped),
            os.path.basename(dropped[0]),
        )
        if has_place(log.directory):
            put_aside(log.directory, dropped)
    for segment in log.segments[number:]:
        segment.remove()
    del log.segments[number:]


def leave_gap(log: PartitionLog, segment: Segment, position: int, limit: int) -> None:
    """Let a segment that was flushed, and goes wrong at `position`, end where the next one begins.

    As it would in the segments that aren't scanned, it stays, and readers are told.
    """
    report(
        log,
        "%s is damaged at position %d: offsets %d to %d are not there",
        segment.path,
        position,
        segment.end_offset,
        limit - 1,
    )
    segment.end_offset = limit
    segment.park()


def cut(log: PartitionLog, segment: Segment, size: int, *, is_flushed: bool) -> None:
    """Cut a segment behind its last good batch; what is whole behind the damage is put aside, and
    what was flushed as it is."""
    kept = 0
    if has_place(log.directory):
        kept = put_tail_aside(segment.path, size if is_flushed else size + 1, is_any=is_flushed)
    if kept:
        report(
            log,
            "%s is damaged at position %d, where the log ends now; %d bytes that follow are in "
            "quarantine/",
            segment.path,
            size,
            kept,
        )
    elif any(segment.read_bytes(size, min(segment.size - size, HEADER_SIZE))):
        logger.warning("%s is torn at position %d, where the log ends now", segment.path, size)
    segment.cut_file(size, is_synced=True)
    segment.size = size
    segment.unjudged_bytes = min(segment.unjudged_bytes, size)
