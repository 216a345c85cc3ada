"""Finds the part of a log that compaction may touch, and whether that is worth a pass.

   segments   [ clean ........ ][ dirty ....... ][ not yet: active, too young, undecided ]
              log start          first dirty      end of what may be cleaned

Source: Kafka `LogCleanerManager`, `LogToClean`.
"""

from typing import NamedTuple

from shmbroker.errors import CorruptFault
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.segment import Segment
from shmbroker.records.batch_layout import H_MAX_TIMESTAMP
from shmbroker.settings.setting import LONG_MAX


class Cleanable(NamedTuple):
    """What a pass over a log would do."""

    segments: list[Segment]
    """All closed ones up to the end of what may be cleaned."""
    first_dirty_offset: int
    dirty_ratio: float
    is_overdue: bool
    """Whether some record waits for longer than max.compaction.lag.ms."""

    @property
    def urgency(self) -> tuple[bool, float]:
        """What decides between logs: an overdue one is before all others, then the dirtier one."""
        return self.is_overdue, self.dirty_ratio


def find_cleanable(
    log: PartitionLog, cleaned_offset: int, last_stable_offset: int, now_ms: int
) -> Cleanable | None:
    """What may be cleaned and is dirty; None if there is nothing.

    cleaned_offset: where the last pass ended, from the checkpoint; -1 without one.
    """
    if len(log.segments) < 2:
        return None
    first_dirty = cleaned_offset
    if not log.segments[0].base_offset <= first_dirty <= log.active.base_offset:
        # Retention has been here, or the log was cut.
        first_dirty = log.log_start_offset
    config = log.config
    segments: list[Segment] = []
    clean_bytes = dirty_bytes = 0
    overdue_ms = -1
    for segment in log.segments[:-1]:
        if segment.end_offset > last_stable_offset:
            break
        is_dirty = segment.end_offset > first_dirty
        if is_dirty and config.min_compaction_lag_ms:
            newest = _newest(segment)
            if newest > now_ms - config.min_compaction_lag_ms:
                break
        segments.append(segment)
        if not is_dirty:
            clean_bytes += segment.size
            continue
        dirty_bytes += segment.size
        if config.max_compaction_lag_ms < LONG_MAX and overdue_ms < 0:
            overdue_ms = now_ms - config.max_compaction_lag_ms - _oldest(segment)
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    return Cleanable(segments, first_dirty, ratio, overdue_ms > 0)


def _newest(segment: Segment) -> int:
    try:
        newest = segment.max_timestamp
    except CorruptFault:
        newest = -1
    return newest if newest >= 0 else segment.modified_ms()


def _oldest(segment: Segment) -> int:
    """The timestamp of the first batch; far ahead where there is none, so that it never is late."""
    for _, header in segment.headers(0, segment.size):
        if header[H_MAX_TIMESTAMP] > 0:
            return header[H_MAX_TIMESTAMP]
        break
    return LONG_MAX >> 1
