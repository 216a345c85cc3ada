"""Scanning a log: every batch from the recovery point on, segment by segment.

A segment must begin where the one before ends. One that does not is a stray one, unless compaction
has been there; behind damage that was cut nothing follows.
"""

from __future__ import annotations

from shmbroker.log.checkpoints import sync_directory
from shmbroker.log.places import segment_number
from shmbroker.log.recovery.damage import drop_segments, put_stray_aside
from shmbroker.log.recovery.places import begins_well, holes_end, may_follow
from shmbroker.log.recovery.segment_scan import scan_segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog


def scan(log: PartitionLog, recovery_point: int) -> None:
    """Read every batch from the recovery point on, and cut the log or leave a hole where one is
    wrong."""
    # With the one that ends there: its flush may have come before the cut that it got at its roll.
    number = segment_number(log, max(recovery_point - 1, 0))
    while number and not begins_well(log.segments[number]):
        number -= 1  # It may be a stray one, in the midst of another.
    expected = log.segments[number].base_offset
    while number < len(log.segments):
        segment = log.segments[number]
        if segment.base_offset != expected and not may_follow(log, number, expected):
            if segment.size and segment.base_offset > expected:
                drop_segments(log, number)  # A hole: nothing from here on can be served.
                break
            put_stray_aside(log, number)
            continue
        is_whole = scan_segment(log, number, recovery_point)
        expected = log.log_end_offset = segment.end_offset
        following = log.segments[number + 1 : number + 2]
        if not is_whole and following and following[0].base_offset != expected:
            # Else what was cut is space that was allocated ahead.
            drop_segments(log, number + 1)
            break
        if following and expected < min(holes_end(log), following[0].base_offset):
            # A gap that compaction left at the end belongs to this segment.
            segment.end_offset = following[0].base_offset
        number += 1
    sync_directory(log.directory)
