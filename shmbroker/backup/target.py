"""Where backups lie: a directory, or an S3 bucket, as tiered storage has them.

In a directory of the same file system a finished segment is a hard link: no byte is copied. On
another one, or with `copies`, it is copied.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import cast
from urllib.parse import quote

from shmbroker.errors import ConfigFault
from shmbroker.tier.directory_store import DirectoryStore
from shmbroker.tier.object_store import ObjectStore, StoreFault, complaint_about, open_store

LOCK = ".lock"
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOENT, errno.ENOTSUP)


def open_target(named: str, endpoint: str | None, region: str | None) -> ObjectStore:
    """The store of a directory's path or a URL; ConfigFault if there can be none."""
    if "://" not in named:
        named = "file://" + quote(os.path.abspath(named))
    if complaint := complaint_about(named):
        raise ConfigFault(f"No backups can lie in {named!r}: {complaint}.")
    return open_store(named, endpoint, region)


class Lock:
    """One backup or pruning at a time in a directory; of a bucket there is no lock."""

    def __init__(self, store: ObjectStore) -> None:
        self._fd = -1
        if not isinstance(store, DirectoryStore):
            return
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

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)


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
