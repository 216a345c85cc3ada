"""Finds segments too old, too many, or below the log start offset (source: Kafka `UnifiedLog`).

Only whole segments go, oldest first, and only below the high watermark. Compaction isn't here.
"""

from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.raised_start import note_raised
from shmbroker.log.retiring import advance_log_start, delete_segments_before
from shmbroker.log.segment import Segment


def retain(log: PartitionLog, high_watermark: int, now_ms: int) -> int:
    """Take out what `retention.ms`, `retention.bytes` and the log start offset allow; how many
    segments (`PartitionLog.retired`).

    An active segment that is too old as a whole is rolled, once the others have made room. A log
    where there is nothing to do costs the same however many segments it has: a look at the oldest
    one and at a total.
    """
    count = delete_segments_before(log, log.log_start_offset)
    if not log.config.is_deleted:
        return count
    end = max(_too_old(log, high_watermark, now_ms), _too_many(log, high_watermark))
    count += delete_segments_before(log, end)
    if end == log.log_end_offset and log.active.size:
        log.roll(now_ms)
        log.active.create_files()
        count += delete_segments_before(log, end)
    return count


def delete_records(log: PartitionLog, offset: int, high_watermark: int) -> int | None:
    """Raise the log start offset to `offset` (-1: the high watermark); the new log start offset.

    None: out of range, above the high watermark. Files go with the next `retain`.
    """
    if offset == -1:
        offset = high_watermark
    if not 0 <= offset <= high_watermark:
        return None
    if offset > log.log_start_offset:
        raise_start(log, offset)
    return log.log_start_offset


def raise_start(log: PartitionLog, offset: int) -> None:
    """Let the log begin at `offset`, also after the death of all processes."""
    advance_log_start(log, offset)
    note_raised(log, log.log_start_offset)


def _end_of(log: PartitionLog, segment: Segment) -> int:
    return log.log_end_offset if segment is log.active else segment.end_offset


def _is_new(log: PartitionLog, segment: Segment) -> bool:
    """The active one, and nothing in it yet. (Compaction may leave others empty.)"""
    return segment is log.active and not segment.size


def _too_old(log: PartitionLog, high_watermark: int, now_ms: int) -> int:
    """The end offset of the leading segments whose newest record is older than allowed."""
    limit_ms = log.config.retention_ms
    end = -1
    if limit_ms < 0:
        return end
    for segment in log.segments:
        if _is_new(log, segment) or _end_of(log, segment) > high_watermark:
            break
        newest = segment.max_timestamp
        if newest < 0:
            newest = segment.modified_ms()
        if now_ms - newest <= limit_ms:
            break
        end = _end_of(log, segment)
    return end


def _too_many(log: PartitionLog, high_watermark: int) -> int:
    """The end offset of the leading segments without which the log is still large enough."""
    limit = log.config.retention_bytes
    end = -1
    if limit < 0:
        return end
    excess = log.size_bytes - limit
    for segment in log.segments:
        excess -= segment.size
        if excess < 0 or _is_new(log, segment) or _end_of(log, segment) > high_watermark:
            break
        end = _end_of(log, segment)
    return end
