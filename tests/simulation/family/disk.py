"""The disk of a simulated family: its page cache, and what is left of it after a power cut.

Files are real ones, in memory. What `os` is told to change is noted by `CrashDisk`, so a power cut
can lay down one of the outcomes that a file system may leave. Here it also

* may be full for a node (ENOSPC), or refuse to write or flush, or to read (EIO);
* counts system calls: each is a moment at which a process may be killed;
* does not compare maps at each call, but when a file is flushed, unmapped, or at the cut.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.crash_disk import (
    CrashDisk,
    Directory,
    File,
    lay_down,
    mmap_bytes,
    note_difference,
)

ROOM_BYTES = 64 << 30


class SimulatedDisk(CrashDisk):
    """Everything below `root`; `call` is told of each system call before it does anything."""

    def __init__(
        self, root: str, call: Callable[[], None], on_mapped: Callable[[Any], None]
    ) -> None:
        super().__init__(root, lambda: None)
        self._call = call
        self._on_mapped = on_mapped
        self.full: set[str] = set()
        """Directories below the root, such as "node-1", that have no room left."""
        self.failing: dict[str, int] = {}
        """Likewise: how many of the next flushes and writes fail."""
        self.unreadable: dict[str, int] = {}
        """Likewise: how many of the next reads fail. What is mapped is there all the same."""

        self.are_reads_calls = False
        """Whether a read is a system call at which others may run. (Their results are the same.)"""

    def close(self) -> None:
        """Close what is still open here: files of processes that were killed."""
        for fd in list(self._files):
            self._do_close(fd)

    # ── a power cut ─────────────────────────────────────────────────────────────────────────────

    def cut_power(self, random: Random) -> str:
        """What the disk holds when the machine starts again; how much was lost, in a word."""
        outcome, image = self.crash_image(random)
        self.close()
        with self.paused():
            shutil.rmtree(self.root)
            lay_down(image, self.root)
        self._adopt(image)
        return outcome

    def _adopt(self, image: dict[str, bytes | None]) -> None:
        """These files are all there is, and all of it is durable."""
        self.top, self.changes = Directory(), []
        self._durable = {}
        self._maps = {}
        for path, content in image.items():
            parent = self._node(os.path.dirname(os.path.join(self.root, path)))
            node: Any = Directory()
            if content is not None:
                node = File()
                node.content += content
                node.sync()
            parent.entries[os.path.basename(path)] = node
            self._durable.setdefault(id(parent), (parent, {}))[1][os.path.basename(path)] = node

    def sync_names(self, path: str) -> None:
        """What is in this directory is durable."""
        self._sync_directory(self._node(path))

    def capture_maps(self) -> None:
        pass  # see `capture`

    def capture(self, node: Any) -> None:
        """Note what was stored into maps of a file."""
        for mapped, mapped_node in self._maps.items():
            if mapped_node is node:
                note_difference(node, mmap_bytes(mapped))

    def crash_image(self, rng: Random) -> tuple[str, dict[str, bytes | None]]:
        super().capture_maps()
        return super().crash_image(rng)

    def on_mapped(self, mapped: Any) -> None:
        self._on_mapped(mapped)

    def _note_map(self, mapped: Any) -> None:
        if self._is_on:
            self._call()

    # ── faults ──────────────────────────────────────────────────────────────────────────────────

    def _place(self, path: str | None) -> str:
        """The node's directory that a path is in; "" if in none."""
        if path is None:
            return ""
        return path[len(self.root) + 1 :].partition("/")[0]

    def _check(self, path: str | None, *, grows: bool = False, writes: bool = False) -> None:
        if not self._is_on:
            return
        self._call()
        place = self._place(path)
        if grows and place in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if writes and self.failing.get(place, 0) > 0:
            self.failing[place] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _path_of(self, fd: int) -> str | None:
        return self._files[fd][0] if fd in self._files else None

    def _check_read(self, fd: int) -> None:
        """A read of a file by whoever has it open: its descriptor may have been passed."""
        if not self._is_on:
            return
        if self.are_reads_calls:
            self._call()
        if not self.unreadable:
            return
        place = self._place_of(fd)
        if self.unreadable.get(place, 0) > 0:
            self.unreadable[place] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _place_of(self, fd: int) -> str:
        path = os.readlink(f"/proc/self/fd/{fd}")
        return self._place(path) if path.startswith(self.root) else ""

    def _do_pread(self, fd: int, length: int, position: int) -> bytes:
        self._check_read(fd)
        data: bytes = self._real["pread"](fd, length, position)
        return data

    def _do_preadv(self, fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        self._check_read(fd)
        count: int = self._real["preadv"](fd, buffers, position, flags)
        return count

    def _do_read(self, fd: int, length: int) -> bytes:
        self._check_read(fd)
        data: bytes = self._real["read"](fd, length)
        return data

    def _do_sendfile(self, target: int, source: int, position: int, count: int) -> int:
        self._check_read(source)
        if target in self._files:
            return self._do_write(target, self._real["pread"](source, count, position))
        sent: int = self._real["sendfile"](target, source, position, count)
        return sent

    def _do_open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        where = self._path(path, dir_fd)
        if where is not None:
            makes = flags & os.O_CREAT and not os.path.lexists(where)
            self._check(where, grows=bool(makes))
        return super()._do_open(path, flags, mode, dir_fd=dir_fd)

    def _do_write(self, fd: int, data: Any) -> int:
        self._check(self._path_of(fd), grows=True, writes=True)
        return super()._do_write(fd, data)

    def _do_pwrite(self, fd: int, data: Any, position: int) -> int:
        node = self._of(fd)
        if node is not None:
            grows = position + len(data) > len(node.content)
            self._check(self._path_of(fd), grows=grows, writes=True)
        return super()._do_pwrite(fd, data, position)

    def _do_ftruncate(self, fd: int, size: int) -> None:
        self._check(self._path_of(fd))
        super()._do_ftruncate(fd, size)

    def _do_posix_fallocate(self, fd: int, position: int, length: int) -> None:
        self._check(self._path_of(fd), grows=True, writes=True)
        super()._do_posix_fallocate(fd, position, length)

    def _do_fsync(self, fd: int) -> None:
        if self._is_on:
            self._check(self._path_of(fd), writes=True)
            if fd in self._files:
                self.capture(self._files[fd][1])
        super()._do_fsync(fd)

    def _do_rename(self, source: Any, target: Any) -> None:
        if self._path(source) is not None:
            self._call()
        super()._do_rename(source, target)

    def _do_unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        if self._path(path, dir_fd) is not None:
            self._call()
        super()._do_unlink(path, dir_fd=dir_fd)

    def _do_mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        where = self._path(path, dir_fd)
        if where is not None:
            self._check(where, grows=True)
        super()._do_mkdir(path, mode, dir_fd=dir_fd)

    def _do_statvfs(self, path: Any) -> os.statvfs_result:
        found = self._real["statvfs"](path)
        free = 0 if self._place(self._path(path)) in self.full else ROOM_BYTES // 4096
        rest = tuple(found)[5:]
        return os.statvfs_result((4096, 4096, ROOM_BYTES // 4096, free, free, *rest))
