"""What a log knows of what lies before an offset, as the store has it beside the segments: the
leader epochs, and the producers with their open transactions.

A follower that begins where the remote store ends takes it over (`broker.replication.cutting`), so
that it can lead as well as who has copied that. What a manifest names has to be there and right: a
replica that knows less would show readers what was aborted.
"""

from __future__ import annotations

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.log.checkpoints import parse_entries, parse_number
from shmbroker.log.truncation import StateAt
from shmbroker.tier import manifest
from shmbroker.tier.object_store import MissingFault
from shmbroker.tier.remote_log import RemoteLog
from shmbroker.tier.transfer import OBJECT_BYTES_MAX, load_segments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.tier.manifest import PartitionName
    from shmbroker.tier.object_store import ObjectStore


def read_state(store: ObjectStore, prefix: str, name: PartitionName, offset: int) -> StateAt | None:
    """What was known at the end of the copy with `offset`; None if nothing up to there is copied.

    Where that copy is lost, or none was worth it, nothing is known: of the last epoch of the copy
    before nobody can tell where it ended. CorruptFault: the copy is damaged.
    """
    copies = RemoteLog(load_segments(store, prefix, name, must_sweep=False).segments)
    before = [copy for copy in copies.segments if copy.base_offset <= offset]
    if not before:
        return None
    copy = before[-1]
    if copy.end_offset <= offset:
        return StateAt(offset + 1, [], None)
    stem = f"{prefix}{manifest.stem_of(copy.base_offset, copy.end_offset, copy.leader_epoch)}"
    key = f"{stem}.{manifest.MANIFEST}"
    _, objects = manifest.parse_manifest(key, store.get(key, 0, manifest.MANIFEST_BYTES_MAX), name)
    epochs = _parse_epochs(stem, _read(store, stem, objects, manifest.LEADER_EPOCHS))
    return StateAt(copy.end_offset, epochs, _read(store, stem, objects, manifest.SNAPSHOT))


def _read(
    store: ObjectStore, stem: str, objects: dict[str, tuple[int, int]], kind: str
) -> bytes | None:
    """One of the objects of a copy, as its manifest names them; None if it never had that.
    CorruptFault if it isn't whole."""
    if kind not in objects:
        return None
    try:
        data = store.get(f"{stem}.{kind}", 0, OBJECT_BYTES_MAX)
    except MissingFault:
        raise CorruptFault(f"{stem}.{kind} is gone") from None
    if (len(data), crc32c(data)) != objects[kind]:
        raise CorruptFault(f"{stem}.{kind} is damaged")
    return data


def _parse_epochs(stem: str, data: bytes | None) -> list[tuple[int, int]]:
    """(leader epoch, start offset), oldest first."""
    path = f"{stem}.{manifest.LEADER_EPOCHS}"
    return [
        (parse_number(path, epoch, 2**31), parse_number(path, start))
        for epoch, start in parse_entries(path, (data or b"").decode("ascii", "replace"), 2)
    ]
