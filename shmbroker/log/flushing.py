"""What of a log has to be made durable, and closing it with that.

   flush_targets  ──► Flush ──► begin: fdatasync, in any thread ──► end
   begin_close    files cut to their content, a snapshot, then as above   ──► end_close

A power cut may take any part of what was not flushed. `recovery_point` says what was.

What besides batches is to be flushed (names, epochs, what was cut as it was rolled) a log knows
until a flush begins that has a descriptor of all of it. So one that is refused takes nothing from
the next, its own or that of another log that was to be flushed with it; and what changes while it
is under way is for the next.
"""

from __future__ import annotations

import os

from shmbroker.errors import StorageFault
from shmbroker.log.file_names import PARTITION_METADATA
from shmbroker.log.places import segment_number
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


class Flush:
    """One log's files that are to be synced, and what is durable then.

    The descriptors are the caller's, once it has called `begin`: it syncs each, maybe in a thread,
    closes it, and calls `end`. A failed sync must never be tried again.
    """

    __slots__ = ("_cuts", "descriptors", "log", "recovery_point")

    def __init__(self, log: PartitionLog, descriptors: list[int], recovery_point: int) -> None:
        self.log = log
        self.descriptors = descriptors
        self.recovery_point = recovery_point
        self._cuts = log.cuts

    def begin(self) -> list[int]:
        """Leave to this flush what the log holds now; the descriptors."""
        log = self.log
        log.rolled.clear()
        log.leader_epochs.is_flush_needed = log.are_names_new = False
        return self.descriptors

    def drop(self) -> None:
        """Give the flush up: all is left to the next."""
        _close_all(self.descriptors)

    def end(self) -> None:
        """All of it is durable. Where the log was cut meanwhile, other records may have taken those
        offsets since."""
        if self._cuts == self.log.cuts:
            self.log.on_flushed(self.recovery_point)


def flush_targets(log: PartitionLog) -> Flush:
    """What is to be synced now. StorageFault if the disk refuses: the log is as it was."""
    log.aborted.write()
    number = segment_number(log, log.recovery_point)
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
        fault = log.write_epochs()
        if fault is not None:
            raise fault
    if log.leader_epochs.is_flush_needed:
        paths.append(log.leader_epochs.path)
    if log.are_names_new or log.leader_epochs.is_flush_needed:
        identity = os.path.join(log.directory, PARTITION_METADATA)
        if os.path.exists(identity):
            paths.append(identity)
        paths += (log.directory, os.path.dirname(log.directory))
    return Flush(log, _open_all(paths), log.log_end_offset)


def _open_all(paths: list[str]) -> list[int]:
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        _close_all(descriptors)
        raise StorageFault(f"can't open {path} to flush it: {error}", path) from error
    return descriptors


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def sync(log: PartitionLog) -> None:
    """Do that, here and now. StorageFault if the disk refuses."""
    flush = flush_targets(log)
    descriptors = flush.begin()
    try:
        for descriptor in descriptors:
            with waiting_for_disk():
                os.fdatasync(descriptor)
    except OSError as error:
        raise StorageFault(f"fdatasync in {log.directory}: {error}", log.directory) from error
    finally:
        _close_all(descriptors)
    flush.end()


def begin_close(log: PartitionLog) -> Flush:
    """The first half of a clean close: what to flush; no descriptors where that is nothing."""
    return flush_targets(log) if finish(log) else Flush(log, [], log.log_end_offset)


def end_close(flush: Flush) -> None:
    """Do the other half, when that is done."""
    flush.end()
    flush.log.let_go()


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
