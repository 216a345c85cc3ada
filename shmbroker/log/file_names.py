"""Names of files and directories in a log directory (source: Kafka `LogFileUtils`, `LocalLog`).

   meta.properties, .kafka_cleanshutdown  whose directory it is, and that it was left cleanly
   <topic>-<partition>/                   a partition's log
       <20 digits>.log .index .timeindex .txnindex   a segment, named by its base offset
       <20 digits>.snapshot               producer state before that offset
       leader-epoch-checkpoint, partition.metadata
       log-start-offset                where DeleteRecords lets it begin (`raised_start`)
   <topic>-<partition>.<32 hex>-delete/   renamed away, to be removed
   <topic>-<partition>.<32 hex>-stray/    found at start without a topic that owns it, or damaged
   <topic>-<partition>.<32 hex>-future/   a copy that Apache Kafka was making: left alone

Inside a segment's name: .deleted (to be removed), .cleaned and .swap (compaction's work).
"""

import re

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
QUORUM_STATE = "quorum-state"

DELETE = "delete"
STRAY = "stray"
FUTURE = "future"

TIER_CACHE = "tier-cache"
"""The directory in a data directory with what was fetched from the remote store: pieces of segments
from any offset on, which may hold the same batches."""

SUPERVISOR_LOCK = ".supervisor.lock"
"""The file in a data directory that the supervisor of its family locks, with its pid inside."""

RESTORING = ".restoring"
"""The mark in a data directory that a backup is restored into, until all of it is there."""

_DIRECTORY_NAME_MAX = 255
_OFFSET_DIGITS = 20
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})")
_MARKED = re.compile(r"\S+\.[0-9a-f]{32}-(delete|stray|future)")


def file_name(base_offset: int, suffix: str) -> str:
    """The name of a segment's or snapshot's file: 20 digits and the suffix."""
    return f"{base_offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in the name of a file with this suffix; None if it is another kind of file."""
    if name[_OFFSET_DIGITS:] != suffix:
        return None
    digits = name[:_OFFSET_DIGITS]
    if not (digits.isdigit() and digits.isascii()):
        return None
    offset = int(digits)
    return offset if offset < 2**63 else None


def sort_by_suffix(names: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """A partition's file names: {suffix: those of segments and snapshots with it}, and the others.

    One pass, as a start may list 400,000 of them.
    """
    kinds: dict[str, list[str]] = {LOG: [], INDEX: [], TIME_INDEX: [], TXN_INDEX: [], SNAPSHOT: []}
    others: list[str] = []
    for name in names:
        kinds.get(name[_OFFSET_DIGITS:], others).append(name)
    return kinds, others


def partition_directory(topic: str, partition: int) -> str:
    """The directory name of a partition's log."""
    return f"{topic}-{partition}"


def parse_partition_directory(name: str) -> tuple[str, int] | None:
    """(topic, partition) of a directory name; None if it is not a partition's."""
    match = _PARTITION.fullmatch(name)
    if match is None or (partition := int(match[2])) >= 2**31:
        return None
    return match[1], partition


def marked_directory(topic: str, partition: int, mark: str, unique_hex: str) -> str:
    """The name a partition's directory gets when it is renamed away (`mark`: DELETE or STRAY)."""
    suffix = f"-{partition}.{unique_hex}-{mark}"
    return topic[: _DIRECTORY_NAME_MAX - len(suffix)] + suffix


def unmarked(name: str) -> str:
    """What a directory was called before it was renamed away, but for the end of a topic's name
    that was too long."""
    return name.rpartition(".")[0]


def mark_of(name: str) -> str | None:
    """DELETE or STRAY for a directory that was renamed away, FUTURE for a copy, else None."""
    match = _MARKED.fullmatch(name)
    return match[1] if match else None
