"""How segments leave a log: with its beginning, as strays, or with the log.

Files are not unlinked here, as answers under way may still name them: those of a segment wait under
`.deleted` (`PartitionLog.retired`), the whole directory of a log under its `-delete` name.
"""

from __future__ import annotations

import os

from shmbroker.errors import StorageFault
from shmbroker.log.compaction.cleaned_files import DELETED, rename_files
from shmbroker.log.file_names import DELETE, marked_directory, parse_partition_directory
from shmbroker.log.recovery.damage import put_stray_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment


def advance_log_start(log: PartitionLog, offset: int) -> None:
    """Raise the log start offset (retention, DeleteRecords); files stay until retention."""
    if offset <= log.log_start_offset:
        return
    assert offset <= log.log_end_offset
    log.log_start_offset = offset
    log.find_local_start()
    log.boundaries.clear()
    log.leader_epochs.truncate_from_start(offset)
    log.write_epochs()
    log.snapshots.remove_before(log.segments[0].base_offset)


def delete_segments_before(log: PartitionLog, offset: int) -> int:
    """Take out the finished segments that end at or before `offset` (`retired`); how many."""
    count = _retire_segments_before(log, offset)
    if count:
        advance_log_start(log, log.segments[0].base_offset)
        log.find_local_start()
        log.snapshots.remove_before(log.segments[0].base_offset)
    return count


def delete_local_before(log: PartitionLog, offset: int) -> int:
    """Take out finished segments that the store has, so the log start offset stays; how many."""
    count = _retire_segments_before(log, offset)
    if count:
        log.find_local_start()
        log.leader_epochs.is_written &= not log.leader_epochs.is_flush_needed
        log.write_epochs()
        log.snapshots.remove_before(log.segments[0].base_offset)
    return count


def _retire_segments_before(log: PartitionLog, offset: int) -> int:
    count = 0
    while log.segments[0] is not log.active and log.segments[0].end_offset <= offset:
        set_aside(log, log.segments[0])
        log.retired.append(log.segments.pop(0))
        log.on_segments_changed()
        count += 1
    if count:
        first = log.segments[0].base_offset
        log.aborted.keep(first, log.active.base_offset)
        log.rolled = [segment for segment in log.rolled if segment.base_offset >= first]
    return count


def put_aside_stray(log: PartitionLog, segment: Segment) -> None:
    """Take out a segment that begins within the one before it."""
    put_stray_aside(log, log.segments.index(segment))
    log.on_segments_changed()


def delete_log(log: PartitionLog, unique_hex: str) -> str:
    """Rename the directory away and close everything; the path to remove later.

    `unique_hex`: 32 hexadecimal digits used for nothing else.
    """
    log.let_go()
    log.aborted.forget_log()
    parent, name = os.path.split(log.directory)
    parsed = parse_partition_directory(name)
    assert parsed is not None, name
    away = os.path.join(parent, marked_directory(*parsed, DELETE, unique_hex))
    try:
        os.rename(log.directory, away)
    except OSError as error:
        raise StorageFault(f"can't rename {log.directory}: {error}", log.directory) from error
    return away


def set_aside(log: PartitionLog, segment: Segment) -> None:
    """Give a segment's files the names that they wait under until they are unlinked."""
    segment.close()
    rename_files(log.directory, segment.base_offset, "", DELETED)
    segment.path += DELETED  # Slices of it may still be asked for.


def bring_back(log: PartitionLog, segment: Segment) -> None:
    """Undo it, as what was to take its place can't. StorageFault if the disk refuses."""
    rename_files(log.directory, segment.base_offset, DELETED, "")
    segment.path = segment.path.removesuffix(DELETED)
