"""What a backup is: one manifest, and the objects that it names.

    backups/<time>.json                                       the manifest: a line with the CRC-32C
                                                              of the rest, then JSON
    metadata/<time>-<crc>.checkpoint                          the cluster's metadata, as a snapshot
    segments/<topic id>/<partition>/<base>-<end>-<size>-<crc>.log      whole batches of one segment

Objects bear the CRC-32C of what they hold in their names, and are never changed. So backups share
those that are the same, and what an interrupted one has left is taken by the next. A backup is
there when its manifest is, which is written last.

It is whole, unless it says what is `missing`: what had no leader then. A restore makes empty logs
of that.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

from shmbroker import __version__
from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.tier.object_store import MissingFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmbroker.tier.object_store import ObjectStore

FORMAT = 1
NAMES_MAX = 10
"""How many partitions a sentence names."""
BACKUPS = "backups/"
SEGMENTS = "segments/"
METADATA = "metadata/"


class SegmentObject(NamedTuple):
    """One segment's batches, [base_offset, end_offset)."""

    key: str
    size: int
    crc: int
    base_offset: int
    end_offset: int
    inode: int
    """The inode of the file that it was made from, and when that was last written: what is the same
    file need not be read again."""
    mtime_ns: int


class PartitionBackup(NamedTuple):
    """The log of one partition up to its high watermark at the moment of the backup."""

    topic: str
    topic_id: str
    """The topic's id as 32 hexadecimal digits."""
    partition: int
    log_start_offset: int
    high_watermark: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, start offset), ascending."""
    segments: tuple[SegmentObject, ...]


class Backup(NamedTuple):
    """One whole backup."""

    name: str
    cluster_id: str
    taken_ms: int
    metadata_key: str
    metadata_size: int
    metadata_crc: int
    metadata_offset: int
    metadata_epoch: int
    partitions: tuple[PartitionBackup, ...]
    missing: tuple[str, ...] = ()
    """The names of partitions that are not in it, as they had no leader."""

    @property
    def keys(self) -> set[str]:
        """The objects that it needs."""
        segments = {each.key for row in self.partitions for each in row.segments}
        return segments | {self.metadata_key}

    @property
    def lack(self) -> str:
        """What is missing, as a sentence; "": nothing."""
        what = "partitions that had no leader are not in it"
        return f"{what}: {named(self.missing)}" if self.missing else ""

    @property
    def bytes(self) -> int:
        """The bytes of all logs."""
        return sum(each.size for row in self.partitions for each in row.segments)


def segment_key(
    topic_id: str, partition: int, base_offset: int, end_offset: int, size: int, crc: int
) -> str:
    """The name of an object of a segment."""
    name = f"{base_offset:020}-{end_offset:020}-{size}-{crc:08x}.log"
    return f"{SEGMENTS}{topic_id}/{partition}/{name}"


def named(partitions: Sequence[str]) -> str:
    """The names of some of them, and how many there are."""
    more = len(partitions) - NAMES_MAX
    names = ", ".join(partitions[:NAMES_MAX])
    return f"{names} and {more} more" if more > 0 else names


def size_in(key: str) -> int:
    """The size that a segment's name tells; -1 of a name that is none."""
    parts = key.rpartition("/")[2].split("-")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else -1


def name_after(last: str, now_ms: int) -> str:
    """The name of a backup of this time. Names tell the order: where the clock has gone back, it
    follows that of the last one."""
    name = _name(now_ms)
    if name > last:
        return name
    try:
        at = datetime.strptime(last, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return name  # somebody's own file
    return _name(round(at.timestamp() * 1000) + 1)


def _name(time_ms: int) -> str:
    at = datetime.fromtimestamp(time_ms / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{time_ms % 1000:03}Z"


def encode(backup: Backup) -> bytes:
    """The manifest's file."""
    row = backup._asdict() | {
        "format": FORMAT,
        "software": f"shmbroker {__version__}",
        "partitions": [
            each._asdict() | {"segments": [list(segment) for segment in each.segments]}
            for each in backup.partitions
        ],
    }
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()
    return b"%08x\n" % crc32c(text) + text


def decode(name: str, data: bytes) -> Backup:
    """CorruptFault if it is no manifest, or not whole."""
    head, _, text = data.partition(b"\n")
    try:
        if int(head, 16) != crc32c(text):
            raise ValueError("its checksum is wrong")
        row: dict[str, Any] = json.loads(text)
        found = row.pop("format")
        if found != FORMAT:
            raise ValueError(f"its format is {found}, and this version reads {FORMAT}")
        row.pop("software")
        row["missing"] = tuple(row.get("missing", ()))
        row["partitions"] = tuple(
            PartitionBackup(
                **each
                | {
                    "epochs": tuple((epoch, start) for epoch, start in each["epochs"]),
                    "segments": tuple(SegmentObject(*one) for one in each["segments"]),
                }
            )
            for each in row["partitions"]
        )
        return Backup(**row)
    except (ValueError, KeyError, TypeError) as fault:
        raise CorruptFault(f"the backup {name} can't be used: {fault}") from None


def names(store: ObjectStore) -> list[str]:
    """The backups that are whole, the oldest first."""
    found = [key[len(BACKUPS) :] for key, _ in store.list_objects(BACKUPS)]
    return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))


def load(store: ObjectStore, name: str) -> Backup:
    """One backup; CorruptFault if there is none of that name, or it is damaged."""
    try:
        data = store.get(f"{BACKUPS}{name}.json")
    except MissingFault:
        raise CorruptFault(f"there is no backup {name}") from None
    return decode(name, data)
