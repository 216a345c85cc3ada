"""Retention of a log that has copies: of the copies by their leader, of local segments by anybody.

Two bounds: `retention.*` is of all that is readable, here or in the store, and moves the log start;
`local.retention.*` is of what is here, and unlinks only what the store's list covers.
"""

from __future__ import annotations

from shmbroker.log.retiring import delete_local_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.broker.tiering.remotes import Remote
    from shmbroker.log.segment import Segment


def retain(remote: Remote, store: PartitionStore, now_ms: int) -> bool:
    """Retention of copies, and of local segments that are copied.

    True if total retention is to be kept among the local segments as well: nothing more is
    copied, and nothing before them is left. Else they stay until they are copied, and expire
    in the store (as Kafka's `UnifiedLog.isSegmentEligibleForDeletion` has it).
    """
    partition = remote.partition
    log = partition.log
    config = log.config
    if config.is_deleted and partition.is_leader:
        start = remote.log.expired_end(
            log.log_start_offset,
            log.local_start_offset,
            log.size_bytes,
            now_ms,
            (config.retention_ms, config.retention_bytes),
        )
        if start > log.log_start_offset:
            store.raise_log_start(partition, start)
    if config.is_copied:
        _retain_local(remote, now_ms)
        if not remote.is_given_up:
            return False
    return bool(log.log_start_offset >= log.segments[0].base_offset)


def _retain_local(remote: Remote, now_ms: int) -> None:
    """Unlink copied segments that local retention doesn't keep; roll the active one for it."""
    log = remote.partition.log
    limit_ms, limit_bytes = log.config.local_retention_ms, log.config.local_retention_bytes
    closed = log.segments[:-1]
    covered = remote.log.count_covered(closed, log.local_start_offset)
    excess = log.size_bytes - limit_bytes
    end = -1
    is_roll_due = False
    for number, segment in enumerate(log.segments):
        excess -= segment.size
        if segment.size:
            is_too_old = limit_ms >= 0 and now_ms - newest_ms(segment) > limit_ms
            is_too_much = limit_bytes >= 0 and excess >= 0
            if not (is_too_old or is_too_much):
                break
        if segment is log.active:
            is_all_committed = log.log_end_offset <= remote.partition.high_watermark
            is_roll_due = bool(segment.size) and remote.partition.is_leader and is_all_committed
        elif number < covered:
            end = segment.end_offset
    delete_local_before(log, end)
    if is_roll_due:  # last, as a full disk may refuse it
        log.roll(now_ms)
        log.active.create_files()


def newest_ms(segment: Segment) -> int:
    """The largest timestamp; where there is none, when the file was written."""
    newest = segment.max_timestamp
    return newest if newest >= 0 else segment.modified_ms()
