"""The space that an active segment is written in: mapped, allocated and populated ahead of it.

   0          size                ready_bytes             allocated_bytes
   | batches  | zeros, populated  | zeros: a store faults | the end of the file

Only the log's writer comes here. What the operating system makes of it:

 * Pages beyond the end of a file, or without room on the disk, answer a store with SIGBUS, which
   Python can't catch. So every page is allocated (`posix_fallocate`) before it is mapped: a full
   disk is an errno there. The file grows by extents, from 64 KiB, doubling while they fill within a
   second and halving when one lasts over four, at most 16 MiB.
 * The first store to a fresh page is a page fault; after `madvise(MADV_POPULATE_WRITE)` it is a
   plain store. Populating is twice as fast where zeros were written first: `pwrite` makes large
   folios, a page fault small ones. CPython holds the GIL in `madvise`, so `populate_step` does
   1 MiB at a time, between turns.
 * Where nothing is populated, a batch of 32 KiB and more is written with one `pwrite`: it costs
   less than zeros, fault and store together (docs/decisions/005).
 * `mmap.resize` is ftruncate to the size the file already has, and mremap: populated pages stay so.
   It can't move while a view into the map exists: none outlives the function that made it.
 * The map holds a descriptor of its own (dup), so the one used to open the file is closed at once.
"""

from __future__ import annotations

import mmap
import os
from errno import EINVAL, ENOSYS

from shmbroker.log.checkpoints import write_all_at
from shmbroker.log.faults import NO_SPACE, DiskFullFault, writing_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.log.segment import Segment

EXTENT_BYTES_MIN = 64 << 10
EXTENT_BYTES_MAX = 16 << 20
POPULATE_BYTES_MAX = 1 << 20
WRITE_BYTES_MIN = 32 << 10
"""Batches from here on are written, not stored, where the pages are not ready anyway."""
WRITTEN_NEXT_BYTES_MIN = 8 << 10
"""Batches from here on are written, too, behind one that was: where sizes differ, pages that are
made ready for a small one are lost with the next large one."""

_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python 3.11's mmap
_EXTENT_MS_SHORT = 1000
_EXTENT_MS_LONG = 4000
_PAGE = mmap.PAGESIZE
_ZEROS = memoryview(bytes(POPULATE_BYTES_MAX))


def make_ready(segment: Segment, need: int, now_ms: int, bytes_max: int) -> None:
    """Map the file with `need` bytes behind `size` that take a store without a page fault.

    Or, where it is not stored (`is_stored`), a `write_batch`: then `ready_bytes` may end before
    them. The file is created or grown for it, to at most `bytes_max` if that is enough.
    DiskFullFault if there is no space, StorageFault for anything else; nothing changed then.
    """
    end = segment.size + need
    if segment.map is None or end > segment.allocated_bytes:
        _grow(segment, end, now_ms, bytes_max)
    if end > segment.ready_bytes and is_stored(segment, need):
        # Faults one by one cost ten times as much as this, so never leave them to the append.
        _populate(segment, max(end, min(segment.size + EXTENT_BYTES_MIN, segment.allocated_bytes)))


def is_stored(segment: Segment, size: int) -> bool:
    """Whether the next batch, of that size, is better stored: then pages are made ready for it."""
    return size < WRITTEN_NEXT_BYTES_MIN or (
        size < WRITE_BYTES_MIN and (segment.ready_bytes > segment.size or not segment.size)
    )


def write_batch(segment: Segment, position: int, batch: memoryview, stamp: bytes) -> None:
    """Put a batch where `make_ready` has made room for it, with `stamp` over its start: there
    in `batch` itself, if that may be written to.

    The end of it counts as ready then, so that `populate_step` leaves such a log alone.
    """
    fd = segment.write_fd
    try:
        if batch.readonly:
            write_all_at(fd, batch[len(stamp) :], position + len(stamp))
            write_all_at(fd, stamp, position)
        else:
            batch[: len(stamp)] = stamp
            write_all_at(fd, batch, position)
    except OSError as error:
        raise writing_fault(error, segment.path) from error
    segment.ready_bytes = position + len(batch)


def populate_step(segment: Segment, now_ms: int, bytes_max: int) -> bool:
    """Ready up to 1 MiB more, an extent ahead of `size`; True if there is still more to do."""
    if segment.map is None or segment.ready_bytes == segment.size:
        return False
    near = min(segment.size + segment.extent_bytes // 2, bytes_max)
    if near > segment.allocated_bytes:
        try:
            _grow(segment, near, now_ms, bytes_max)
        except DiskFullFault:
            pass  # The append that needs it will say so.
    goal = min(segment.size + segment.extent_bytes, segment.allocated_bytes)
    end = min(goal, segment.ready_bytes + POPULATE_BYTES_MAX)
    if end > segment.ready_bytes:
        _populate(segment, end)
    return end < goal


def _open_to_write(segment: Segment) -> int:
    """Open a segment's file, which is made for the first batch only: one that is gone must not come
    again with zeros where batches were."""
    makes = 0 if segment.size or segment.map is not None else os.O_CREAT
    try:
        return os.open(segment.path, os.O_RDWR | makes | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise writing_fault(error, segment.path) from error


def _grow(segment: Segment, end: int, now_ms: int, bytes_max: int) -> None:
    fd = _open_to_write(segment)
    try:
        if segment.map is None:
            # What stands behind `size` must be zeros: drop whatever it is.
            os.ftruncate(fd, segment.size)
            segment.allocated_bytes = segment.ready_bytes = segment.size
        elif now_ms - segment.extent_ms < _EXTENT_MS_SHORT:
            segment.extent_bytes = min(segment.extent_bytes * 2, EXTENT_BYTES_MAX)
        elif now_ms - segment.extent_ms > _EXTENT_MS_LONG:
            segment.extent_bytes = max(segment.extent_bytes // 2, EXTENT_BYTES_MIN)
        goal = max(end, min(segment.allocated_bytes + segment.extent_bytes, bytes_max))
        _allocate(segment, fd, _page_up(goal), _page_up(end))
        segment.extent_ms = now_ms
    except OSError as error:
        raise writing_fault(error, segment.path) from error
    finally:
        os.close(fd)


def _allocate(segment: Segment, fd: int, goal: int, least: int) -> None:
    """Allocate and map up to `goal`, or to `least` where space is short."""
    while True:
        try:
            os.posix_fallocate(fd, segment.allocated_bytes, goal - segment.allocated_bytes)
            break
        except OSError as error:
            os.ftruncate(fd, segment.allocated_bytes)
            if error.errno not in NO_SPACE or goal == least:
                raise
            goal = least
    if segment.map is None:
        segment.map = mmap.mmap(fd, goal)
    else:
        segment.map.resize(goal)
    segment.allocated_bytes = goal


def _populate(segment: Segment, end: int) -> None:
    assert segment.map is not None
    start = segment.ready_bytes // _PAGE * _PAGE
    end = min(_page_up(end), segment.allocated_bytes)
    fd = _open_to_write(segment)
    try:
        position = segment.ready_bytes
        while position < end:
            position += os.pwrite(fd, _ZEROS[: end - position], position)
        segment.map.madvise(_MADV_POPULATE_WRITE, start, end - start)
    except OSError as error:
        if error.errno not in (EINVAL, ENOSYS):
            raise writing_fault(error, segment.path) from error
        # A kernel before 5.14: zeros over the zeros that stand there.
        for position in range(max(start, segment.size), end, _PAGE):
            segment.map[position] = 0
    finally:
        os.close(fd)
    segment.ready_bytes = end


def _page_up(position: int) -> int:
    return -(-position // _PAGE) * _PAGE
