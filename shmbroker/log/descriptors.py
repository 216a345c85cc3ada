"""Read-only descriptors of segment files: opened when asked for, bounded for a log directory."""

import os

from shmbroker.errors import StorageFault


class Descriptors:
    """Keeps the `limit` files used last open, by file id.

    A descriptor stays usable until the next call of `of`: pass it on (or dup it) at once.
    """

    __slots__ = ("_open", "limit")

    def __init__(self, limit: int = 512) -> None:
        self.limit = limit
        self._open: dict[int, int] = {}

    def of(self, file_id: int, path: str) -> int:
        """The descriptor of a segment's file; StorageFault if it can't be opened."""
        fd = self._open.pop(file_id, -1)
        if fd < 0:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise StorageFault(f"can't open {path}: {error}") from error
            if len(self._open) >= self.limit:
                oldest = next(iter(self._open))
                os.close(self._open.pop(oldest))
        # Put back as the newest: a dict keeps the order of insertion.
        self._open[file_id] = fd
        return fd

    def close(self, file_id: int) -> None:
        """Close a file that is deleted or left alone; nothing happens if it isn't open."""
        fd = self._open.pop(file_id, -1)
        if fd >= 0:
            os.close(fd)

    def close_all(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
