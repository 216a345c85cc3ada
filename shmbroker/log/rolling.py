"""When the active segment ends, and how the next one begins."""

from __future__ import annotations

import os
from contextlib import suppress

from shmbroker.errors import StorageFault
from shmbroker.log.segment import OFFSETS_MAX
from shmbroker.log.segment_space import make_ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.config import LogConfig
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment


def drawn_roll_ms(config: LogConfig) -> int:
    """How old the active segment gets; with jitter, so that logs don't all roll at once."""
    if jitter_ms := min(config.segment_jitter_ms, config.roll_ms):
        return config.roll_ms - int.from_bytes(os.urandom(8), "little") % jitter_ms
    return config.roll_ms


def is_roll_due(
    log: PartitionLog, need: int, next_offset: int, max_timestamp: int, now_ms: int
) -> bool:
    """Whether a batch of `need` bytes, with offsets before `next_offset`, goes to a new segment."""
    segment, config = log.active, log.config
    if segment.first_timestamp >= 0 and max_timestamp >= 0:
        waited_ms = max_timestamp - segment.first_timestamp
    else:
        waited_ms = now_ms - segment.created_ms
    return (
        segment.size + need > config.segment_bytes
        or waited_ms > log.roll_ms
        or segment.offset_index.is_full()
        or segment.time_index.is_full()
        or next_offset > segment.base_offset + OFFSETS_MAX
    )


def roll_over(log: PartitionLog, need: int, now_ms: int) -> Segment:
    """Finish the active segment; the next one, with space for `need` bytes.

    DiskFullFault if there is none, StorageFault for anything else: the old one stays the active one
    then, and of the next there is nothing.
    """
    old = log.active
    new = log.new_segment(log.log_end_offset, now_ms)
    new.extent_bytes = old.extent_bytes
    old.end_offset = log.log_end_offset
    try:
        if need:
            make_ready(new, need, now_ms, log.config.segment_bytes)
            log.are_names_new = True
        old.finish()
    except StorageFault:
        with suppress(StorageFault):
            new.remove()
        raise
    log.rolled.append(old)
    log.add_segment(new)
    log.snapshot_producers()
    return new
