"""Descriptors of segment files: opened when asked for, bounded for a log directory.

Those to read from are passed on to other processes; the others, to write to, stay here.

With a descriptor goes what else was read of the segment: who is no longer among those used last is
told to forget it. So 100,000 segments that were read once cost no more than those kept open.
"""

import os
import resource
from typing import Protocol

from shmbroker.errors import StorageFault


class DescriptorOwner(Protocol):
    """What has a file open here: a segment."""

    file_id: int
    path: str

    def forget(self) -> None:
        """Let go of what was read of its files."""


WRITTEN_MAX = 256
"""Files that are kept open to be written: it takes large batches to get there."""
WRITTEN_SHARE = 16
"""What part they may be of the files that this process may have open: one in so many."""


class Descriptors:
    """Keeps the `limit` files used last open, by file id, and the few written to last.

    A descriptor stays usable until the next call of `of`, or `to_write`: pass it on (or dup it) at
    once.
    """

    __slots__ = ("_open", "_written", "_written_max", "limit")

    def __init__(self, limit: int = 512) -> None:
        self.limit = limit
        self._open: dict[int, tuple[int, DescriptorOwner]] = {}
        self._written: dict[int, int] = {}
        self._written_max = max(1, min(WRITTEN_MAX, open_files_share(WRITTEN_SHARE)))

    def of(self, reading: DescriptorOwner) -> int:
        """The descriptor of a segment's file; StorageFault if it can't be opened."""
        row = self._open.pop(reading.file_id, None)
        if row is None:
            try:
                fd = os.open(reading.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise StorageFault(f"can't open {reading.path}: {error}", reading.path) from error
            row = fd, reading
            if len(self._open) >= self.limit:
                oldest, forgetting = self._open.pop(next(iter(self._open)))
                os.close(oldest)
                forgetting.forget()
        # Put back as the newest: a dict keeps the order of insertion.
        self._open[reading.file_id] = row
        return row[0]

    def to_write(self, writing: DescriptorOwner) -> int:
        """The descriptor to write to a segment's file, which is there. OSError if it can't be
        opened."""
        written = self._written
        fd = written.get(writing.file_id)
        if fd is None:
            fd = os.open(writing.path, os.O_RDWR | os.O_CLOEXEC)
            if len(written) >= self._written_max:
                os.close(written.pop(next(iter(written))))
            written[writing.file_id] = fd
        return fd

    def close(self, file_id: int) -> None:
        """Close a file that is deleted or left alone; nothing happens if it isn't open."""
        row = self._open.pop(file_id, None)
        if row is not None:
            os.close(row[0])
        written = self._written.pop(file_id, None)
        if written is not None:
            os.close(written)

    def close_all(self) -> None:
        for fd in (*(fd for fd, _ in self._open.values()), *self._written.values()):
            os.close(fd)
        self._open.clear()
        self._written.clear()


def open_files_share(one_in: int) -> int:
    """One part in so many of the files that this process may have open; 2**62 at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 62 if soft == resource.RLIM_INFINITY else soft) // one_in
