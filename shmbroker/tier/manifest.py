"""How a partition's segments are named in the remote store, and the object that completes one.

   <cluster id>/<topic>.<topic id>/<partition>/      22 characters of url-safe base64 for ids
       <base offset>-<end offset>-<leader epoch>.log        20 digits, 20 digits, a number
                                                .index
                                                .timeindex
                                                .txnindex                if the segment has one
                                                .snapshot                producers at the end offset
                                                .leader-epoch-checkpoint
                                                .manifest               written last, removed first

A segment without its manifest isn't there: an upload that was interrupted, or a deletion that
was. Its objects are swept. Objects of one name always have the same content, so an upload that is
done again, by whichever leader, may write over what is there.

A manifest is one line of JSON and the CRC-32C of that line:

   {"version":1,"topic":"flights","topic_id":"…","partition":0,"base_offset":0,"end_offset":812,
    "leader_epoch":3,"max_timestamp":1700000000000,"objects":{"log":[1048576,"0a1b2c3d"], …}}
   5f1e22aa
"""

import json
import re
from typing import Any, NamedTuple

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault
from shmbroker.ids import uuid_text
from shmbroker.tier.remote_log import ABSENT, RemoteSegment

LOG = "log"
MANIFEST = "manifest"
LEADER_EPOCHS = "leader-epoch-checkpoint"
TXN_INDEX = "txnindex"
SNAPSHOT = "snapshot"
DERIVED = ("index", "timeindex", TXN_INDEX, SNAPSHOT, LEADER_EPOCHS)
"""What goes along with a segment, in the order of the upload; the log and the manifest follow."""

VERSION = 1
MANIFEST_BYTES_MAX = 1 << 20

_STEM = re.compile(r"(\d{20})-(\d{20})-(\d{1,10})")


class PartitionName(NamedTuple):
    """A partition of a cluster, as the store knows it."""

    topic: str
    topic_id: bytes
    partition: int


def topic_prefix(cluster_id: str, topic: str, topic_id: bytes) -> str:
    """Where a topic's objects lie; ends in `/`."""
    return f"{cluster_id}/{topic}.{uuid_text(topic_id)}/"


def partition_prefix(cluster_id: str, name: PartitionName) -> str:
    """Where a partition's objects lie; ends in `/`."""
    return f"{topic_prefix(cluster_id, name.topic, name.topic_id)}{name.partition}/"


def stem_of(base_offset: int, end_offset: int, leader_epoch: int) -> str:
    """What the names of a segment's objects begin with."""
    return f"{base_offset:020d}-{end_offset:020d}-{max(leader_epoch, 0)}"


def split_key(key: str) -> tuple[str, str] | None:
    """(stem, kind) of an object's key; None if it is none of ours."""
    stem, dot, kind = key.rpartition("/")[2].partition(".")
    if not dot or not _STEM.fullmatch(stem) or kind not in (LOG, MANIFEST, *DERIVED):
        return None
    return stem, kind


def damaged_copy(stem: str) -> RemoteSegment:
    """What is known of a segment whose manifest is damaged: what its name says, no size."""
    base_offset, end_offset, leader_epoch = map(int, stem.split("-"))
    return RemoteSegment(base_offset, end_offset, leader_epoch, 0, ABSENT)


def encode_manifest(
    name: PartitionName, segment: RemoteSegment, objects: dict[str, tuple[int, int]]
) -> bytes:
    """The manifest of a segment; `objects`: kind to (bytes, CRC-32C)."""
    line = json.dumps(
        {
            "version": VERSION,
            "topic": name.topic,
            "topic_id": uuid_text(name.topic_id),
            "partition": name.partition,
            "base_offset": segment.base_offset,
            "end_offset": segment.end_offset,
            "leader_epoch": segment.leader_epoch,
            "max_timestamp": segment.max_timestamp,
            "objects": {kind: [size, f"{crc:08x}"] for kind, (size, crc) in objects.items()},
        },
        separators=(",", ":"),
    ).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def parse_manifest(
    key: str, data: bytes, name: PartitionName
) -> tuple[RemoteSegment, dict[str, tuple[int, int]]]:
    """(segment, objects) of a manifest; CorruptFault if it isn't whole, or is another's."""
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise CorruptFault(f"the manifest {key} is damaged")
    try:
        found: dict[str, Any] = json.loads(line)
        if found["version"] != VERSION:
            raise CorruptFault(f"the manifest {key} is of version {found['version']}, not 1")
        objects = {
            kind: (int(size), int(crc, 16)) for kind, (size, crc) in found["objects"].items()
        }
        segment = RemoteSegment(
            int(found["base_offset"]),
            int(found["end_offset"]),
            int(found["leader_epoch"]),
            objects[LOG][0],
            int(found["max_timestamp"]),
            objects.get(TXN_INDEX, (0, 0))[0] > 0,
        )
        owner = found["topic_id"], found["partition"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFault(f"the manifest {key} can't be understood: {error!r}") from None
    parts = split_key(key)
    if (
        owner != (uuid_text(name.topic_id), name.partition)
        or parts is None
        or parts[0] != stem_of(segment.base_offset, segment.end_offset, segment.leader_epoch)
        or not 0 <= segment.base_offset < segment.end_offset < 2**63
        or segment.size <= 0
    ):
        raise CorruptFault(f"the manifest {key} is of another segment")
    return segment, objects
