"""A directory as the remote store: another disk, or a network file system that is mounted.

An object is a file of its key's name below the root. It is written beside, as `<name>.<pid>.tmp`,
synced, renamed, and its directory synced: so a death at any point leaves the object, or a `.tmp`
that nobody sees and `sweep` removes.

A directory that is not mounted looks like one that is empty: `store_mark` tells them apart. It may
go at any moment, so it is looked at again when something is done: that counts if it is there still.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import sync_directory
from shmbroker.tier.object_store import MissingFault, StoreFault, unreadable
from shmbroker.tier.store_mark import StoreMark

_TEMPORARY = ".tmp"
_COPY_BYTES = 256 << 10
"""What is copied at once: the allocator takes larger pieces afresh from the kernel each time."""


class DirectoryStore:
    """Objects as files below `root`, which is made when first written to."""

    def __init__(self, root: str, known: str | None = None) -> None:
        """known: the file that remembers the store's mark; None: it has none."""
        self.root = os.path.abspath(root)
        self._mark = StoreMark(self.root, known) if known else None
        self._numbers = itertools.count()
        self._durable: set[str] = set()
        """Directories whose names are on the disk, as this process has seen to it."""

    def _path(self, key: str) -> str:
        parts = key.split("/")
        assert all(part not in ("", ".", "..") for part in parts), key
        return os.path.join(self.root, *parts)

    def _check(self) -> None:
        if self._mark is not None:
            self._mark.check()

    def put_file(self, key: str, path: str, size: int) -> None:
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self._write(key, lambda target: _copy(path, source, target, size))
        finally:
            os.close(source)

    def put(self, key: str, data: bytes) -> None:
        self._write(key, lambda target: _write_all(target, data))

    def _write(self, key: str, write: "Writer") -> None:
        self._check()
        path = self._path(key)
        beside = f"{path}.{os.getpid()}-{next(self._numbers)}{_TEMPORARY}"
        try:
            self._make_directories(os.path.dirname(path))
            if self._mark is not None:
                self._mark.make()
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                write(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(beside, path)
            sync_directory(os.path.dirname(path))
            self._check()
        except (OSError, StorageFault) as error:
            with suppress(OSError):
                os.unlink(beside)
            if isinstance(error, StorageFault):
                raise
            raise StoreFault(f"can't write {path}: {error.strerror}") from error

    def _make_directories(self, path: str) -> None:
        """Like `makedirs`, each name durable in the directory above it. Who made one that is there
        may have died before it was."""
        is_known = path in self._durable or len(path) < len(self.root)
        if is_known and os.path.isdir(path):
            return
        above = os.path.dirname(path)
        self._make_directories(above)
        self._durable.discard(path)
        with suppress(FileExistsError):
            os.mkdir(path)
        sync_directory(above)
        self._durable.add(path)

    def get(self, key: str, start: int = 0, length: int = -1) -> bytes:
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                there = os.fstat(file.fileno()).st_size - start
                wanted = there if length < 0 else min(length, there)
                data = b""
                while len(data) < wanted:
                    more = os.pread(file.fileno(), wanted - len(data), start + len(data))
                    if not more:
                        break
                    data = data + more if data else more
                return data
        except FileNotFoundError as error:
            self._check()
            raise MissingFault(f"there is no {path}") from error
        except OSError as error:
            raise StoreFault(f"can't read {path}: {error.strerror}") from error

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        self._check()
        for directory, name in self._files(prefix):
            if name.endswith(_TEMPORARY):
                continue
            path = os.path.join(directory, name)
            try:
                size = os.stat(path).st_size
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreFault(f"can't look at {path}: {error.strerror}") from error
            yield os.path.relpath(path, self.root), size
        self._check()

    def _files(self, prefix: str) -> Iterator[tuple[str, str]]:
        def on_error(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise StoreFault(f"can't list {error.filename}: {error.strerror}") from error

        for directory, _, names in os.walk(self._path(prefix.rstrip("/")), onerror=on_error):
            for name in names:
                yield directory, name

    def list_directories(self, prefix: str) -> Iterator[str]:
        self._check()
        path = self._path(prefix.rstrip("/"))
        try:
            yield from [entry.name for entry in os.scandir(path) if entry.is_dir()]
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreFault(f"can't list {path}: {error.strerror}") from error
        self._check()

    def delete(self, keys: Iterable[str]) -> None:
        self._check()
        directories = set()
        for key in keys:
            path = self._path(key)
            directories.add(os.path.dirname(path))
            self._unlink(path)
        for directory in directories:
            self._remove_empty(directory)
        self._check()
        if directories and not os.path.isdir(self.root):
            raise StoreFault(f"there is no directory {self.root}")

    def _unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreFault(f"can't remove {path}: {error.strerror}") from error

    def _remove_empty(self, directory: str) -> None:
        """Remove a directory that is not needed, and those above it; a refusal is no fault."""
        while directory != self.root and directory.startswith(self.root):
            try:
                os.rmdir(directory)
            except OSError:
                return
            directory = os.path.dirname(directory)

    def sweep(self, prefix: str) -> None:
        for directory, name in self._files(prefix):
            if name.endswith(_TEMPORARY):
                self._unlink(os.path.join(directory, name))


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Writer = Callable[[int], None]


def _copy(path: str, source: int, target: int, size: int) -> None:
    """Not by sendfile, whose fault does not tell which of the two files it is about."""
    position = 0
    while position < size:
        try:
            piece = os.pread(source, min(size - position, _COPY_BYTES), position)
        except OSError as error:
            raise unreadable(path, error) from error
        if not piece:
            raise unreadable(path, OSError(f"it ends before {size} bytes"))
        _write_all(target, piece)
        position += len(piece)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
