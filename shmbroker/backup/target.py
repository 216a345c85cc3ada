"""Where backups lie: a directory, or an S3 bucket, as tiered storage has them.

One backup or pruning at a time works there (`Lock`).

In a directory of the same file system a finished segment is a hard link: no byte is copied. On
another one, or with `copies`, it is copied.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from typing import Protocol, cast
from urllib.parse import quote

from shmbroker import clock
from shmbroker.errors import ConfigFault, StorageFault
from shmbroker.log.meta_properties import refuse_inside
from shmbroker.tier.directory_store import DirectoryStore
from shmbroker.tier.object_store import (
    MissingFault,
    ObjectStore,
    StoreFault,
    complaint_about,
    open_store,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LOCK = ".lock"
EXPIRY_S = 900.0
"""The life of a lock in a bucket: longer than one object's PUT, short enough to wait for."""
RENEWALS = 10
"""How often a lock is renewed in that time."""
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOENT, errno.ENOTSUP)


def open_target(named: str, endpoint: str | None, region: str | None) -> ObjectStore:
    """The store of a directory's path or a URL; ConfigFault if there can be none."""
    if "://" not in named:
        named = "file://" + quote(os.path.abspath(named))
    if complaint := complaint_about(named):
        raise ConfigFault(f"No backups can lie in {named!r}: {complaint}.")
    return open_store(named, endpoint, region)


class Lock:
    """One backup or pruning at a time: in a directory a lock of its file, which ends with the
    process; in a bucket an object (`_BucketLock`). ConfigFault if another one works there."""

    def __init__(self, store: ObjectStore) -> None:
        self._fd = -1
        self._object: _BucketLock | None = None
        if not isinstance(store, DirectoryStore):
            self._object = _BucketLock(cast("ConditionalStore", store), url_of(store))
            return
        refuse_inside(store.root)
        path = os.path.join(store.root, LOCK)
        try:
            os.makedirs(store.root, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise ConfigFault(
                f"another backup or pruning works in {store.root}; wait for its end"
            ) from None
        except OSError as error:
            raise ConfigFault(f"can't write in {store.root}: {error.strerror}") from None

    def keep(self) -> None:
        """Make sure of the lock before anything that nobody else may do meanwhile; ConfigFault if
        it was taken over, as from one that stood still for long."""
        if self._object is not None:
            self._object.keep()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        if self._object is not None:
            self._object.release()


class ConditionalStore(Protocol):
    """What a bucket does besides."""

    def put_if(self, key: str, data: bytes, tag: str | None) -> str | None:
        """Store it if the object there has this tag, None: if there is none. Its new tag; None if
        it is otherwise."""

    def look(self, key: str) -> tuple[bytes, str, float]:
        """An object, its tag, and its age in seconds by the store's clock."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete as `ObjectStore` has it."""


class _BucketLock:
    """The object `.lock` in a bucket: who has written it holds it, as long as it is younger than
    EXPIRY_S by the store's own clock. Each PUT is conditional and changes the tag, so of two only
    one succeeds, and who has lost it finds out before it does harm.
    """

    def __init__(self, store: ConditionalStore, where: str) -> None:
        self._store = store
        self._where = where
        self._owner = f"process {os.getpid()} of {socket.gethostname()}, {os.urandom(8).hex()}"
        self._count = 0
        self._tag = ""
        self._next_s = 0.0
        try:
            self._take()
        except StoreFault:
            self.release()  # it may be there all the same: only the answer has not come
            raise

    def _take(self) -> None:
        store, where = self._store, self._where
        if self._put(None):
            return
        try:
            holder, tag, age_s = store.look(LOCK)
        except MissingFault:
            if self._put(None):
                return
            raise ConfigFault(f"another backup or pruning has just begun in {where}") from None
        if age_s <= EXPIRY_S or not self._put(tag):
            who = holder.decode(errors="replace").rpartition(",")[0].rpartition(",")[0]
            raise ConfigFault(
                f"another backup or pruning works in {where}: {who}; wait for its end. If it was "
                f"killed, its lock counts for nothing {EXPIRY_S / 60:.0f} minutes after it was "
                "last renewed"
            )

    def _put(self, tag: str | None) -> bool:
        self._count += 1
        content = f"{self._owner}, {self._count}".encode()
        found = self._store.put_if(LOCK, content, tag)
        if found is None:
            # The answer to a PUT that was repeated: the first one had succeeded.
            try:
                stored, of_stored, _ = self._store.look(LOCK)
            except MissingFault:
                return False
            if stored != content:
                return False
            found = of_stored
        self._tag = found
        self._next_s = clock.monotonic() + EXPIRY_S / RENEWALS
        return True

    def keep(self) -> None:
        if clock.monotonic() >= self._next_s and not self._put(self._tag):
            raise ConfigFault(
                f"this took so long without a sign that another backup or pruning has begun in "
                f"{self._where}; run it again"
            )

    def release(self) -> None:
        """Let others begin; a store that does not answer lets them when the time is over."""
        with contextlib.suppress(StoreFault):
            if self._store.look(LOCK)[0].startswith(self._owner.encode()):
                self._store.delete([LOCK])


def put_open_file(store: ObjectStore, key: str, fd: int, size: int, may_link: bool) -> bool:
    """Store the first `size` bytes of an open file; whether it is a hard link.

    `may_link`: nobody writes to the file any more.
    """
    path = f"/proc/self/fd/{fd}"
    if (
        may_link
        and isinstance(store, DirectoryStore)
        and os.fstat(fd).st_size == size
        and _link(fd, path, os.path.join(store.root, *key.split("/")))
    ):
        return True
    store.put_file(key, path, size)
    return False


def _link(fd: int, path: str, target: str) -> bool:
    try:
        os.fdatasync(fd)
    except OSError as error:
        source = os.path.realpath(path)
        raise StorageFault(f"can't write {source} to its disk: {error.strerror}") from error
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        directory = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
        try:  # with a descriptor Python calls linkat, which alone follows the link in /proc
            os.link(path, os.path.basename(target), dst_dir_fd=directory, follow_symlinks=True)
            os.fsync(directory)
        except FileExistsError:
            return False
        finally:
            os.close(directory)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise StoreFault(f"can't write {target}: {error.strerror}") from error
    return True


def url_of(store: ObjectStore) -> str:
    """How a message names it."""
    if isinstance(store, DirectoryStore):
        return store.root
    named = cast("object", store)
    return f"s3://{getattr(named, 'bucket', '')}/{getattr(named, 'prefix', '')}"
