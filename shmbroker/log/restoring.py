"""The file of an active segment that somebody has removed: the map still holds all of it.

   N.log gone, mapped ──► N.log.tmp, of what the map holds, durable ──► N.log, mapped in its place

Rules
 * If the process dies meanwhile, the next start finds the file whole, or none.
 * It is another file: those who have the old one open see nothing of what is appended from now on.
   So it gets another file id.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import sync_names, write_all
from shmbroker.log.faults import writing_fault
from shmbroker.signs import sign, waiting_for_disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.partition_log import PartitionLog

_STEP_BYTES = 1 << 20


def is_active_file_gone(log: PartitionLog) -> bool:
    """Whether the active segment has a map, and its file is not there any more."""
    return log.active.map is not None and not os.path.lexists(log.active.path)


def restore_active(log: PartitionLog) -> int:
    """Write that file again; the file id that is not to be used any more. StorageFault if the disk
    refuses: the map stays, and it can be tried again."""
    segment = log.active
    fresh = _write_again(segment.path, segment.map, segment.size, segment.allocated_bytes)
    file_id = segment.on_restored(fresh, log.new_file_id())
    log.on_segments_changed()
    log.are_names_new = True
    with suppress(StorageFault):
        sync_names(log.directory)  # or else the next flush does
    return file_id


def _write_again(path: str, content: mmap.mmap | None, size: int, allocated: int) -> mmap.mmap:
    """The map of a file that begins with these bytes of another map, and is allocated."""
    assert content is not None
    beside = path + ".tmp"
    try:
        with suppress(FileExistsError):  # the log's directory may be gone as well
            os.mkdir(os.path.dirname(path))
        fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            for position in range(0, size, _STEP_BYTES):
                sign()
                write_all(fd, content[position : min(position + _STEP_BYTES, size)])
            if allocated > size:
                os.posix_fallocate(fd, size, allocated - size)
            with waiting_for_disk():
                os.fsync(fd)
            fresh = mmap.mmap(fd, allocated)
        finally:
            os.close(fd)
        os.rename(beside, path)
    except OSError as error:
        raise writing_fault(error, path) from error
    return fresh
