"""Opening a log: its files, its end, what is derived, in this order.

Each step may rely on those before: the epochs on the files, the end on the epochs, producers on the
end. Nothing is appended before the last one is done.
"""

from __future__ import annotations

from shmbroker.log.places import segment_number
from shmbroker.log.raised_start import find_raised, forget_raised
from shmbroker.log.recovery.ends import judge_ends, take_clean, take_trusted
from shmbroker.log.recovery.epochs import cut_epochs, load_epochs, rebuild_epochs
from shmbroker.log.recovery.listing import list_files
from shmbroker.log.recovery.producers import rebuild_producers
from shmbroker.log.recovery.scan import scan
from shmbroker.log.recovery.snapshots import remove_unfit_snapshots
from shmbroker.log.segment_indexes import has_indexes, mend_indexes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from shmbroker.log.partition_log import PartitionLog


def load(
    log: PartitionLog,
    trusted: tuple[int, int, int] | None,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    decided_below: int,
    now_ms: int,
) -> None:
    """Fill a new PartitionLog from its directory; see `PartitionLog.open`. OSError, too."""
    without_indexes = list_files(log, now_ms)
    _begin(log, log_start_offset, now_ms)
    log.recovery_point = recovery_point
    load_epochs(log)
    if not clean:
        _note_unflushed(log, recovery_point)
    if trusted is not None:
        is_found = take_trusted(log, trusted)
    else:
        is_found = clean and take_clean(log, recovery_point)
    if not is_found:
        scan(log, recovery_point)
    _complete_indexes(log, without_indexes)
    if log.is_start_raised and log.log_start_offset > log.log_end_offset:
        _lower_start(log, log_start_offset)
    _settle_ends(log, recovery_point)
    log.activate()
    remove_unfit_snapshots(log, recovery_point, clean=clean)
    if not (clean or is_found):
        decided_below = min(decided_below, recovery_point)
    rebuild_producers(
        log,
        is_window_walked=trusted is not None or not is_found,
        now_ms=now_ms,
        decided_below=decided_below,
    )
    if now_ms:
        log.producers.expire(now_ms, log.config.producer_id_expiration_ms)
    log.store_position()


def _begin(log: PartitionLog, log_start_offset: int, now_ms: int) -> None:
    """Set where the log begins; one without files gets its first segment."""
    log.log_start_offset = log_start_offset
    if not log.segments:
        segment = log.new_segment(log_start_offset, now_ms)
        segment.set_max_timestamp(-1, -1)
        log.segments.append(segment)
        if log_start_offset:
            segment.create_files()
    if not log.config.is_tiered:
        log.log_start_offset = max(log_start_offset, log.segments[0].base_offset)
    raised = find_raised(log)
    log.is_start_raised = raised > 0
    log.log_start_offset = max(log.log_start_offset, raised)


def _lower_start(log: PartitionLog, log_start_offset: int) -> None:
    """Take the start of before a DeleteRecords, as a power cut took the records around it. No other
    end may make it true again."""
    forget_raised(log)
    log.are_names_new = True
    log.log_start_offset = log_start_offset
    if not log.config.is_tiered:
        log.log_start_offset = max(log_start_offset, log.segments[0].base_offset)
    rebuild_epochs(log)


def _note_unflushed(log: PartitionLog, recovery_point: int) -> None:
    """Leave to the next flush what nobody knows to be durable: what the process before had synced,
    besides what the recovery point says."""
    log.are_names_new = True
    log.rolled = log.segments[segment_number(log, max(recovery_point - 1, 0)) : -1]
    log.leader_epochs.is_flush_needed = bool(log.leader_epochs.entries)


def _complete_indexes(log: PartitionLog, without: Collection[int]) -> None:
    """Make the indexes of finished segments that lack them, as far as the scan has not."""
    for segment in log.segments[:-1]:
        if segment.base_offset in without and not has_indexes(segment):
            if segment.size:
                mend_indexes(segment)
            else:
                segment.create_files()


def _settle_ends(log: PartitionLog, recovery_point: int) -> None:
    """Let everything that names an offset follow the end that was found."""
    log.segments[-1].end_offset = log.log_end_offset
    judge_ends(log, recovery_point)
    log.recovery_point = min(log.recovery_point, log.log_end_offset)
    log.find_local_start()
    cut_epochs(log)
