"""What a remote store must be able to do, and opening the one that a setting names.

Objects have a key, parts joined by `/`, and are written once, as a whole: a reader sees all of an
object or none. Implementations: `directory_store` (standard library) and `s3_store` (boto3).

Rules
 * Every call may take long and be made from any thread; the caller must not mind.
 * StoreFault: the store can't be reached or refuses; the same call may succeed later.
   MissingFault: the object isn't there; trying again doesn't help.
   Another StorageFault: the file that is to be stored can't be read.
 * Nothing is kept from one call to the next but connections: a process may die between any two.
"""

import os
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder
from typing import Protocol

from shmbroker.errors import ConfigFault, StorageFault


class StoreFault(StorageFault):
    """The store can't be reached, or refuses; worth another try."""


class MissingFault(StoreFault):
    """Raised where there is no such object."""


def unreadable(path: str, error: OSError) -> StorageFault:
    """The fault of a file that is to be stored; a descriptor's path in /proc is told as its
    file's."""
    return StorageFault(f"can't read {os.path.realpath(path)}: {error.strerror or error}")


class ObjectStore(Protocol):
    """Objects by key; see the rules above for faults."""

    def put_file(self, key: str, path: str, size: int) -> None:
        """Store a file of `size` bytes; durable when this returns."""

    def put(self, key: str, data: bytes) -> None:
        """Store these bytes; durable when this returns."""

    def get(self, key: str, start: int = 0, length: int = -1) -> bytes:
        """`length` bytes from `start` on, fewer at the end of the object; -1: all of them."""

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """(key, bytes) of each object whose key begins with `prefix`, which ends in `/`."""

    def list_directories(self, prefix: str) -> Iterator[str]:
        """The parts that follow `prefix` (which ends in `/`) in keys, up to the next `/`."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that isn't there is no fault."""

    def sweep(self, prefix: str) -> None:
        """Remove what interrupted puts have left below `prefix`."""


DEFAULT_DIRECTORY = "tier-store"


def store_url(named: str | None, data_directory: str) -> str:
    """The store that a setting names, or the directory that stands in for one."""
    from urllib.parse import quote  # a start without a remote store does without

    return named or "file://" + quote(os.path.join(data_directory, DEFAULT_DIRECTORY))


def check_store(url: str) -> None:
    """ConfigFault if there can be no such store, or its library isn't there; nothing is opened."""
    if complaint := complaint_about(url):
        raise ConfigFault(f"shmbroker.tier.store is {url!r}: {complaint}.")


def complaint_about(url: str) -> str | None:
    """Why there can be no such store; None if there can."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    complaint = None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            complaint = "a directory is named file:///path"
    elif parts.scheme == "s3":
        if not parts.netloc:
            complaint = "a bucket is named s3://bucket or s3://bucket/prefix"
        elif PathFinder.find_spec("boto3") is None:
            complaint = "it needs boto3: pip install boto3"
    else:
        complaint = "it must begin with file:/// (a directory) or s3:// (a bucket)"
    return complaint


def open_store(
    url: str, endpoint: str | None = None, region: str | None = None, *, known: str | None = None
) -> ObjectStore:
    """The store of this name, see `check_store`; it need not be reachable. known: the file that a
    directory's mark is remembered in (`store_mark`)."""
    from urllib.parse import unquote, urlsplit

    check_store(url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        from shmbroker.tier.directory_store import DirectoryStore

        return DirectoryStore(unquote(parts.path), known)
    from shmbroker.tier.s3_store import S3Store

    return S3Store(parts.netloc, parts.path.strip("/"), endpoint, region)
