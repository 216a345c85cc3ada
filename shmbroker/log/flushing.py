"""What of a log has to be made durable, and closing it with that.

   flush_targets  descriptors ──► fdatasync, by whoever has the time ──► log.on_flushed
   begin_close    files cut to their content, a snapshot, then as above ──► end_close

A power cut may take any part of what was not flushed. `recovery_point` says what was.
"""

from __future__ import annotations

import os

from shmbroker.errors import StorageFault
from shmbroker.log.file_names import PARTITION_METADATA
from shmbroker.log.segment_indexes import has_indexes
from shmbroker.signs import waiting_for_disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog


def sync_and_close(descriptor: int) -> OSError | None:
    """fdatasync by a thread, which no fault of it may end: the fault, if there is one."""
    try:
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as fault:
        return fault
    return None


def flush_targets(log: PartitionLog) -> tuple[list[int], int]:
    """(descriptors, recovery point): what to fdatasync, and what then is durable.

    The caller owns the descriptors: it syncs each in a thread, closes it, and calls
    `on_flushed` with the recovery point. A failed sync must never be tried again.
    """
    log.aborted.write()
    number = log.segment_number(log.recovery_point)
    first_unflushed = log.segments[number].base_offset
    # A segment is cut to its content when it rolls: that needs a flush after the last append's.
    rolled = [segment for segment in log.rolled if segment in log.segments[:number]]
    if rolled:
        first_unflushed = min(first_unflushed, rolled[0].base_offset)
    paths = log.aborted.paths_from(first_unflushed)
    for segment in rolled + log.segments[number:]:
        if segment.size:
            paths.append(segment.path)
        if segment is not log.active or (segment.map is None and has_indexes(segment)):
            paths += (segment.offset_index.path, segment.time_index.path)
    paths += log.snapshots.paths_from(log.recovery_point)
    if paths:
        # An epoch without a batch needs no file: most partitions of an install are empty.
        log.leader_epochs.write()
    if log.leader_epochs.is_flush_needed:
        paths.append(log.leader_epochs.path)
        log.leader_epochs.is_flush_needed = False
        log.are_names_new = True
    if log.are_names_new:
        identity = os.path.join(log.directory, PARTITION_METADATA)
        if os.path.exists(identity):
            paths.append(identity)
        paths += (log.directory, os.path.dirname(log.directory))
        log.are_names_new = False
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise StorageFault(f"can't open {path} to flush it: {error}", path) from error
    log.rolled.clear()
    return descriptors, log.log_end_offset


def sync(log: PartitionLog) -> int:
    """Do that, here and now; the recovery point. StorageFault if the disk refuses."""
    descriptors, recovery_point = flush_targets(log)
    try:
        for descriptor in descriptors:
            with waiting_for_disk():
                os.fdatasync(descriptor)
    except OSError as error:
        raise StorageFault(f"fdatasync in {log.directory}: {error}", log.directory) from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return recovery_point


def begin_close(log: PartitionLog) -> tuple[list[int], int]:
    """The first half of a clean close: what to fdatasync, as `flush_targets` says it."""
    return flush_targets(log) if finish(log) else ([], log.log_end_offset)


def end_close(log: PartitionLog, recovery_point: int) -> None:
    """The other half, when that is done."""
    log.on_flushed(recovery_point)
    log.let_go()


def finish(log: PartitionLog) -> bool:
    """Cut the files to their content and snapshot; False if there is nothing to flush."""
    if _is_as_closed(log):
        return False
    if log.active.size:
        log.active.finish()
        log.snapshot_producers()
        log.are_names_new = True
    return True


def _is_as_closed(log: PartitionLog) -> bool:
    """Nothing was written since a clean close: thousands of idle logs close at once."""
    return (
        log.active.map is None
        and log.recovery_point == log.log_end_offset
        and log.log_end_offset in log.snapshots.offsets
        and log.leader_epochs.is_written
        and not log.leader_epochs.is_flush_needed
    )
