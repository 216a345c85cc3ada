"""Cutting a log's end off: what a replica has that its leader has not.

The cut is durable before anything reads or is appended: bytes behind the end read as zeros for
ever after. The high watermark is the caller's to stay above.

A file that has another name, too, is a backup's as well (`backup.target`), and stays as it is: the
log gets a copy of what it keeps of it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from shmbroker.log.checkpoints import sync_names
from shmbroker.log.faults import writing_fault
from shmbroker.log.quarantine import copy_piece
from shmbroker.log.raised_start import forget_raised, note_raised
from shmbroker.log.recovery.producers import rebuild_producers
from shmbroker.records.batch_layout import H_BASE_OFFSET
from shmbroker.signs import waiting_for_disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment


class StateAt(NamedTuple):
    """What a log knows of what lies before an offset."""

    offset: int
    epochs: list[tuple[int, int]]
    """(leader epoch, start offset), oldest first."""
    snapshot: bytes | None
    """The producers, as a `.snapshot` file has them; None: nothing is known of them."""


def truncate_to(log: PartitionLog, offset: int) -> bool:
    """Drop everything from `offset` on, durably; True if there was anything.

    A batch that straddles `offset` goes as a whole, and the log then ends where it began.
    """
    if offset >= log.log_end_offset:
        # Epochs that have begun there without a batch go all the same.
        log.drop_epochs_from(offset)
        return False
    _tell(log, offset)
    if offset <= log.segments[0].base_offset:
        truncate_fully(log, offset, min(log.log_start_offset, offset))
        return True
    segment = next(each for each in reversed(log.segments) if each.base_offset < offset)
    position, header = segment.find(offset)
    if segment.has_other_names():
        _copy_beginning(log, segment, position)  # first: a disk without room for it changes nothing
    _cut_epochs(log, offset)
    while log.segments[-1] is not segment:
        log.segments.pop().remove()
    log.aborted.keep(0, segment.base_offset)
    end_offset = header[H_BASE_OFFSET] if header is not None else offset
    segment.truncate(position, min(end_offset, offset))
    sync_names(log.directory)
    _end_at(log, segment.end_offset)
    return True


def _copy_beginning(log: PartitionLog, segment: Segment, size: int) -> None:
    """Put a copy of a segment's first `size` bytes in its place, durably. It is another file, and
    gets another file id. StorageFault if the disk refuses."""
    beside = segment.path + ".tmp"
    try:
        with open(segment.path, "rb") as old, open(beside, "wb", buffering=0) as new:
            copy_piece(old.fileno(), new.fileno(), 0, size)
            with waiting_for_disk():
                os.fsync(new.fileno())
        os.rename(beside, segment.path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(beside)
        raise writing_fault(error, segment.path) from error
    segment.on_restored(None, log.new_file_id())


def begin_at(log: PartitionLog, state: StateAt, log_start: int) -> None:
    """Drop everything; the log goes on, empty, where the copies in the store end, and knows what is
    known there.

    That is durable before the first segment is there, which alone says that the log begins so: what
    is killed before has lost its end, and is begun again.
    """
    if state.snapshot is not None:
        log.snapshots.put(state.offset, state.snapshot)
    truncate_fully(log, state.offset, log_start, state.epochs)


def truncate_fully(
    log: PartitionLog,
    new_start_offset: int,
    log_start: int | None = None,
    epochs: list[tuple[int, int]] | None = None,
) -> None:
    """Drop everything; the log goes on, empty, at `new_start_offset`.

    log_start: the log start offset, where it is less, as what lies between is in the store.
    epochs: the leader epochs of that, where they are not those of before.
    """
    _tell(log, new_start_offset)
    start = new_start_offset if log_start is None else log_start
    if start > log.log_start_offset:
        # Of a tiered log, as it is or may be by the next start, the first segment does not say so.
        note_raised(log, start)
    _cut_epochs(log, new_start_offset)
    for segment in log.segments:
        segment.remove()
    log.segments.clear()
    log.aborted.keep(0, -1)
    segment = log.new_segment(new_start_offset, 0)
    log.add_segment(segment)  # before a full disk refuses its files: no log is without a segment
    if epochs is not None:
        _take_epochs(log, epochs, start)
    segment.create_files()
    sync_names(log.directory)
    log.log_start_offset = start
    _end_at(log, new_start_offset)


def _take_epochs(log: PartitionLog, epochs: list[tuple[int, int]], start: int) -> None:
    log.leader_epochs.take(epochs)
    log.leader_epochs.truncate_from_start(start)
    if fault := log.leader_epochs.write(is_synced=True):
        raise fault


def _tell(log: PartitionLog, end_offset: int) -> None:
    """Have nothing on the disk say of the log what is not true any more once it ends there."""
    if log.on_cut is not None:
        log.on_cut(end_offset)
    if end_offset < log.log_start_offset:
        forget_raised(log)
    log.on_segments_changed()


def _cut_epochs(log: PartitionLog, end_offset: int) -> None:
    """Forget the epochs behind a cut. Before it: of a log that ends before its epochs do, a start
    says that something is lost."""
    log.leader_epochs.truncate_from_end(end_offset)
    log.write_epochs()


def _end_at(log: PartitionLog, end_offset: int) -> None:
    """Let everything derived follow a cut at `end_offset`."""
    log.cuts += 1
    log.log_end_offset = end_offset
    log.log_start_offset = min(log.log_start_offset, end_offset)
    log.recovery_point = min(log.recovery_point, end_offset)
    log.find_local_start()
    _cut_epochs(log, end_offset)
    log.activate()
    log.snapshots.remove_behind(end_offset)
    rebuild_producers(log)
    log.store_position()
