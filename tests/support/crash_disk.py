"""A disk that remembers: what may be left of a directory if the machine loses power right now.

While `recording`, every call of `os`, every write to what `open` has opened and every store to a
map that changes something below the directory is noted, as far as no fsync has made it durable yet.
`crash_image` then draws one of the legal outcomes (after Pillai et al., "All File Systems Are Not
Created Equal", OSDI 2014):

   data        a file consists of sectors (512 bytes) or pages (4096); each holds what it held at
               some moment since the last fsync of the file, whatever the others hold
   size        likewise; what no write reached reads as zeros
   names       creating, renaming (atomic) and unlinking are changes of directories; those that no
               fsync of the directory has made durable

   outcome     data               names
   "kill"      all                all: only the processes are gone
   "cut"       synced only        synced only
   "journal"   drawn              the first n of all, as the journals of ext4 and xfs keep them
   "wild"      drawn              of each directory the first n, its own n

An fsync of a file does not make its name durable, and the reverse.
"""

import builtins
import contextlib
import io
import mmap
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

SECTOR = 512
PAGE = 4096
REAL_MAP = mmap.mmap
REAL_OPEN = builtins.open
OUTCOMES = ("kill", "cut", "journal", "wild")
_WEIGHTS = (1, 1, 4, 4)


class File:
    """Content now, content at the last fsync, and what happened between."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.synced = b""
        self.pending: list[tuple[int, bytes]] = []
        """(position, data) of a write; (size, b"") of a change of size."""

    def write(self, position: int, data: bytes) -> None:
        if data:
            self.pending.append((position, data))
            _apply(self.content, position, data)

    def resize(self, size: int) -> None:
        if size != len(self.content):
            self.pending.append((size, b""))
            _apply(self.content, size, b"")

    def sync(self) -> None:
        self.synced = bytes(self.content)
        self.pending.clear()

    def draw(self, outcome: str, rng: random.Random) -> bytes:
        if outcome == "kill" or not self.pending:
            return bytes(self.content)
        if outcome == "cut":
            return self.synced
        count = len(self.pending)
        moments = {0, count, rng.randrange(count + 1), rng.randrange(count + 1)}
        versions = []
        content = bytearray(self.synced)
        for number in range(count + 1):
            if number in moments:
                versions.append(bytes(content))
            if number < count:
                _apply(content, *self.pending[number])
        size = len(rng.choice(versions))
        unit = rng.choice((SECTOR, PAGE))
        result = bytearray(size)
        for start in range(0, size, unit):
            piece = rng.choice(versions)[start : start + unit][: size - start]
            result[start : start + len(piece)] = piece
        return bytes(result)


class Directory:
    """What is in it, now."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}


class Change:
    """Of names: [(directory, name, node or None for none)], all or nothing."""

    def __init__(self, *effects: tuple[Directory, str, Any]) -> None:
        self.effects = effects
        self.is_durable = False


def _apply(content: bytearray, position: int, data: bytes) -> None:
    if not data:
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


class CrashDisk:
    """Watches everything below `root`. `on_change` is called after each change, to crash there."""

    def __init__(self, root: str, on_change: Callable[[], None]) -> None:
        self.root = os.path.abspath(root)
        self.top = Directory()
        self.changes: list[Change] = []
        self.on_change = on_change
        self.count = 0
        """Changes noted so far."""
        self._durable: dict[int, tuple[Directory, dict[str, Any]]] = {}
        self._files: dict[int, tuple[str, Any]] = {}
        self._maps: dict[Any, File] = {}
        self._is_on = False
        self._real: dict[str, Any] = {}

    def on_mapped(self, mapped: Any) -> None:
        """A map is made of a file; it may be closed when its process dies."""

    # ── what a crash leaves ─────────────────────────────────────────────────────────────────────

    def crash_image(self, rng: random.Random) -> tuple[str, dict[str, bytes | None]]:
        """(outcome, {path below the root: content, None for a directory})."""
        self.capture_maps()
        (outcome,) = rng.choices(OUTCOMES, _WEIGHTS)
        names = {key: (node, dict(entries)) for key, (node, entries) in self._durable.items()}

        def entries_of(directory: Directory) -> dict[str, Any]:
            return names.setdefault(id(directory), (directory, {}))[1]

        count = len(self.changes)
        limit = {"kill": count, "cut": 0}.get(outcome, rng.randrange(count + 1))
        limits: dict[int, int] = {}
        for number, change in enumerate(self.changes):
            if outcome == "wild":
                limit = min(
                    limits.setdefault(id(changed), rng.randrange(count + 1))
                    for changed, _, _ in change.effects
                )
            if change.is_durable or number < limit:
                for directory, name, node in change.effects:
                    if node is None:
                        entries_of(directory).pop(name, None)
                    else:
                        entries_of(directory)[name] = node
        image: dict[str, bytes | None] = {}

        def gather(directory: Directory, path: str) -> None:
            for name, node in entries_of(directory).items():
                if isinstance(node, Directory):
                    image[path + name] = None
                    gather(node, path + name + "/")
                else:
                    image[path + name] = node.draw(outcome, rng)

        gather(self.top, "")
        return outcome, image

    # ── names ───────────────────────────────────────────────────────────────────────────────────

    def _path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path below the root; None if it isn't there, or nothing is recorded."""
        if not self._is_on or isinstance(path, int):
            return None
        text = os.fsdecode(path)
        if dir_fd is not None:
            if dir_fd not in self._files:
                return None
            text = os.path.join(self._files[dir_fd][0], text)
        text = os.path.abspath(text)
        return text if text.startswith(self.root + "/") or text == self.root else None

    def _has(self, file: Any) -> bool:
        """Whether a path is below the root, or a descriptor of a file there; and it is recorded."""
        return self._is_on and (file in self._files or self._path(file) is not None)

    def _node(self, path: str) -> Any:
        node: Any = self.top
        for name in path[len(self.root) :].split("/"):
            if not name:
                continue
            if not isinstance(node, Directory) or name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def _change(self, *effects: tuple[str, Any]) -> None:
        placed = []
        for path, node in effects:
            parent = self._node(os.path.dirname(path))
            assert isinstance(parent, Directory), path
            name = os.path.basename(path)
            placed.append((parent, name, node))
            if node is None:
                parent.entries.pop(name, None)
            else:
                parent.entries[name] = node
        self.changes.append(Change(*placed))

    def _sync_directory(self, directory: Directory) -> None:
        for change in self.changes:
            if any(changed is directory for changed, _, _ in change.effects):
                change.is_durable = True
        while self.changes and self.changes[0].is_durable:
            for changed, name, node in self.changes.pop(0).effects:
                entries = self._durable.setdefault(id(changed), (changed, {}))[1]
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node

    def _learn(self, path: str) -> File:
        """The file at a path; what was written to it by other ways than `os` is taken in."""
        node = self._node(path)
        if node is None:
            node = File()
            self._change((path, node))
        with REAL_OPEN(path, "rb") as file:
            content = file.read()
        if content != node.content:
            node.resize(len(content))
            note_difference(node, content)
        return node  # type: ignore[no-any-return]

    def capture_maps(self) -> None:
        """Note what was stored into maps since the last time."""
        for mapped, node in self._maps.items():
            note_difference(node, mmap_bytes(mapped))

    def _changed(self) -> None:
        self.count += 1
        self.on_change()

    # ── recording ───────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Watch the calls of `os`, `mmap.mmap` and `open`."""
        hooks = {
            name.removeprefix("_do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_do_")
        }
        self._real = {name: getattr(os, name) for name in hooks}
        disk = self

        class WatchedMap(REAL_MAP):
            def __new__(cls, fd: int, length: int, *rest: Any, **more: Any) -> Any:
                made = super().__new__(cls, fd, length, *rest, **more)
                if fd in disk._files and not more:
                    disk._maps[made] = disk._files[fd][1]
                    disk.on_mapped(made)
                return made

            def __setitem__(self, where: Any, what: Any) -> None:
                super().__setitem__(where, what)
                if self in disk._maps:
                    disk._note_map(self)

            def resize(self, size: int) -> None:
                if self in disk._maps:
                    note_difference(disk._maps[self], mmap_bytes(self))
                super().resize(size)

            def close(self) -> None:
                node = disk._maps.pop(self, None)
                if node is not None:
                    note_difference(node, mmap_bytes(self))
                super().close()

            __hash__ = object.__hash__

            def __eq__(self, other: object) -> bool:
                return self is other

        class WatchedFile(io.FileIO):
            """What `open` opens to be written: FileIO itself calls the kernel past `os`."""

            def write(self, data: Any) -> int:
                return os.write(self.fileno(), data)

            def close(self) -> None:
                if not self.closed and self.closefd:
                    disk._files.pop(self.fileno(), None)
                super().close()

        def open_descriptor(path: str, flags: int) -> int:
            return os.open(path, flags, 0o666)

        def watched_open(file: Any, mode: str = "r", buffering: int = -1, **more: Any) -> Any:
            if mode in ("r", "rb") or not disk._has(file):
                return REAL_OPEN(file, mode, buffering, **more)
            assert mode in ("wb", "xb", "ab"), "others are not needed so far"
            raw = WatchedFile(file, mode, opener=open_descriptor, **more)
            size = io.DEFAULT_BUFFER_SIZE if buffering < 0 else buffering
            return io.BufferedWriter(raw, size) if size else raw

        try:
            for name, hook in hooks.items():
                setattr(os, name, hook)
            builtins.open = watched_open  # type: ignore[assignment]
            setattr(mmap, "mmap", WatchedMap)  # noqa: B010 it is a type
            self._is_on = True
            yield
        finally:
            self._is_on = False
            builtins.open = REAL_OPEN
            setattr(mmap, "mmap", REAL_MAP)  # noqa: B010
            for name in hooks:
                setattr(os, name, self._real[name])

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is noted, and an fsync costs nothing: for what is done to a crash image."""
        was_on, self._is_on = self._is_on, False
        try:
            yield
        finally:
            self._is_on = was_on

    def _note_map(self, mapped: Any) -> None:
        if self._is_on:
            note_difference(self._maps[mapped], mmap_bytes(mapped))
            self._changed()

    def _of(self, fd: int) -> Any:
        """The node behind a descriptor; None if nothing is recorded of it."""
        if not self._is_on:
            return None
        self.capture_maps()
        return self._files[fd][1] if fd in self._files else None

    def _do_open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        where = self._path(path, dir_fd)
        fd: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if where is None:
            return fd
        self.capture_maps()
        node = self._node(where)
        is_new = node is None
        if is_new and flags & os.O_CREAT:
            node = File()
            self._change((where, node))
        elif is_new:
            node = self._learn(where)
        elif flags & os.O_TRUNC:
            node.resize(0)
        self._files[fd] = where, node
        if is_new or flags & os.O_TRUNC:
            self._changed()
        return fd

    def _do_close(self, fd: int) -> None:
        self._files.pop(fd, None)
        self._real["close"](fd)

    def _do_write(self, fd: int, data: Any) -> int:
        node = self._of(fd)
        if node is None:
            return self._real["write"](fd, data)  # type: ignore[no-any-return]
        position = os.lseek(fd, 0, os.SEEK_CUR)
        written: int = self._real["write"](fd, data)
        node.write(position, bytes(data[:written]))
        self._changed()
        return written

    def _do_pwrite(self, fd: int, data: Any, position: int) -> int:
        node = self._of(fd)
        written: int = self._real["pwrite"](fd, data, position)
        if node is not None:
            node.write(position, bytes(data[:written]))
            self._changed()
        return written

    def _do_ftruncate(self, fd: int, size: int) -> None:
        node = self._of(fd)
        self._real["ftruncate"](fd, size)
        if node is not None:
            node.resize(size)
            self._changed()

    def _do_truncate(self, path: Any, size: int) -> None:
        where = self._path(path)
        self._real["truncate"](path, size)
        if where is not None:
            self._node(where).resize(size)
            self._changed()

    def _do_posix_fallocate(self, fd: int, position: int, length: int) -> None:
        node = self._of(fd)
        self._real["posix_fallocate"](fd, position, length)
        if node is not None:
            node.resize(max(len(node.content), position + length))
            self._changed()

    def _do_fsync(self, fd: int) -> None:
        if not self._is_on:
            return
        if fd not in self._files:
            path = self._path(os.readlink(f"/proc/self/fd/{fd}"))
            if path is None:
                return
            node: Any = self._learn(path)
        else:
            node = self._of(fd)
        self._changed()  # The moment before.
        if isinstance(node, Directory):
            self._sync_directory(node)
        else:
            node.sync()
        self._changed()

    def _do_fdatasync(self, fd: int) -> None:
        self._do_fsync(fd)

    def _do_rename(self, source: Any, target: Any) -> None:
        before, after = self._path(source), self._path(target)
        if before is not None and os.path.isfile(source):
            self.capture_maps()
            if self._node(before) is None:
                self._learn(before)
        self._real["rename"](source, target)
        if before is not None and after is not None:
            self._change((after, self._node(before)), (before, None))
            self._changed()

    def _do_unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        where = self._path(path, dir_fd)
        self._real["unlink"](path, dir_fd=dir_fd)
        if where is not None and self._node(where) is not None:
            self._change((where, None))
            self._changed()

    def _do_mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        where = self._path(path, dir_fd)
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        if where is not None:
            self._change((where, Directory()))
            self._changed()

    def _do_rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        where = self._path(path, dir_fd)
        self._real["rmdir"](path, dir_fd=dir_fd)
        if where is not None:
            self._change((where, None))
            self._changed()


def mmap_bytes(mapped: Any) -> bytes:
    return mapped[:]  # type: ignore[no-any-return]


def note_difference(node: File, content: bytes) -> None:
    """One write that makes the file's first bytes these."""
    if node.content[: len(content)] == content:
        return
    assert len(node.content) >= len(content)
    old = node.content
    first, high = 0, len(content)  # the first that differs is in between
    while high - first > 1:
        middle = (first + high) // 2
        if old[first:middle] == content[first:middle]:
            first = middle
        else:
            high = middle
    low, end = first, len(content)  # and the last
    while end - low > 1:
        middle = (low + end) // 2
        if old[middle:end] == content[middle:end]:
            end = middle
        else:
            low = middle
    node.write(first, content[first:end])


def lay_down(image: dict[str, bytes | None], root: str) -> None:
    """Make the files of a crash image."""
    os.makedirs(root)
    for path, content in image.items():
        if content is None:
            os.mkdir(os.path.join(root, path))
        else:
            with open(os.path.join(root, path), "wb") as file:
                file.write(content)
