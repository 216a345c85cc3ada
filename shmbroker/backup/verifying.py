"""Checking backups where they lie: all that a restore would read is there, and is what was stored.

Each object is read once, however many backups have it; a fault is told of each that needs it.
What no backup needs is no fault: an interrupted one has left it, and `prune` removes it.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.backup import manifest
from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.tier.object_store import MissingFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shmbroker.backup.manifest import Backup
    from shmbroker.tier.object_store import ObjectStore

PIECE_BYTES = 8 << 20


class BackupVerdict(NamedTuple):
    """What was found of one backup."""

    name: str
    objects: int
    bytes: int
    faults: list[str]


class Stray(NamedTuple):
    """What no backup needs."""

    objects: int
    bytes: int


def verify(
    store: ObjectStore,
    names: Iterable[str],
    progress: Callable[[int, int], None] = lambda done, known: None,
) -> list[BackupVerdict]:
    """A verdict for each of these backups. StoreFault if the store can't be asked."""
    checking = _Checking(store, progress)
    return [checking.verdict(name) for name in names]


def stray(store: ObjectStore) -> Stray | None:
    """What no backup needs; None where that can't be told, as a manifest can't be read."""
    needed: set[str] = set()
    for name in manifest.names(store):
        try:
            needed |= manifest.load(store, name).keys
        except CorruptFault:
            return None
    objects = bytes_ = 0
    for prefix in (manifest.SEGMENTS, manifest.METADATA):
        for key, size in store.list_objects(prefix):
            if key not in needed:
                objects, bytes_ = objects + 1, bytes_ + size
    return Stray(objects, bytes_)


class _Checking:
    def __init__(self, store: ObjectStore, progress: Callable[[int, int], None]) -> None:
        self._store = store
        self._progress = progress
        self._known: dict[tuple[str, int, int], str] = {}
        """What is wrong with an object, or nothing, by (key, size, CRC)."""
        self._done = self._expected = 0

    def verdict(self, name: str) -> BackupVerdict:
        try:
            backup = manifest.load(self._store, name)
        except CorruptFault as fault:
            return BackupVerdict(name, 0, 0, [str(fault)])
        objects = sorted(set(_objects(backup)))
        self._expected += sum(about[1] for about in objects if about not in self._known)
        faults = [backup.lack] if backup.lack else []
        for about in objects:
            if about not in self._known:
                self._known[about] = self._fault_of(*about)
                self._done += about[1]
                self._progress(self._done, self._expected)
            if self._known[about]:
                faults.append(self._known[about])
        return BackupVerdict(name, len(objects), sum(size for _, size, _ in objects), faults)

    def _fault_of(self, key: str, size: int, crc: int) -> str:
        found = position = 0
        try:
            while position < size:
                piece = self._store.get(key, position, min(PIECE_BYTES, size - position))
                if not piece:
                    return f"{key} is damaged: it ends at {position}, and had {size} bytes"
                found = crc32c(piece, found)
                position += len(piece)
        except MissingFault:
            return f"{key} is missing"
        return "" if found == crc else f"{key} is damaged: its checksum is wrong"


def _objects(backup: Backup) -> Iterable[tuple[str, int, int]]:
    """(key, size, CRC) of all that it needs."""
    yield backup.metadata_key, backup.metadata_size, backup.metadata_crc
    for row in backup.partitions:
        for each in row.segments:
            yield each.key, each.size, each.crc
