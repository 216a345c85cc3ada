"""Putting a backup back: a data directory that `shmbroker serve --data` goes on with.

Each partition gets as many replicas as it is asked for, on brokers 1, 2 …; its leader epoch is
raised, so that what clients know of before counts as old. The cluster id, topics with their ids,
settings, feature levels and the next producer id stay. Indexes and producer snapshots are not in a
backup: each log is scanned as after a crash, as soon as its segments are there, and closed cleanly.
So the first start is one after a clean stop, and scans nothing.

Every object is checked by its size and CRC-32C as it comes. A log's clean close makes durable what
is in its directory, whoever has written it. `.restoring` lies in the directory
until all of it is there and durable; no broker starts on a directory that has it.
"""

from __future__ import annotations

import itertools
import os
from typing import NamedTuple

from shmbroker import clock
from shmbroker.controller.raft.quorum_messages import SnapshotId
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.controller.raft.snapshots import image_snapshot
from shmbroker.crc32c import crc32c
from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.ids import random_uuid
from shmbroker.log.checkpoints import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    Offsets,
    encode_entries,
    sync_directory,
    write_all,
    write_file,
    write_offsets,
)
from shmbroker.log.closing import close_all
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    META_PROPERTIES,
    PARTITION_METADATA,
    RESTORING,
    file_name,
    partition_directory,
)
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.meta_properties import MetaProperties, refuse_inside, write_meta_properties
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.partition_metadata import write_partition_metadata
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from shmbroker.metadata.log_reader import MetadataLogReader, snapshot_name
from shmbroker.metadata.topic_names import METADATA_DIRECTORY
from shmbroker.records.batch_layout import H_BASE_OFFSET, H_LAST_OFFSET_DELTA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shmbroker.backup.manifest import Backup, PartitionBackup, SegmentObject
    from shmbroker.tier.object_store import ObjectStore

PIECE_BYTES = 8 << 20
SEGMENTS_AT_ONCE = 64
"""The segments whose logs are closed together, so that their syncs share what the disk does for
each. More would reach the limit of open files."""
_MIN_IN_SYNC = "min.insync.replicas"


class Restored(NamedTuple):
    """What was put back."""

    backup: Backup
    brokers: int
    partitions: int
    bytes: int
    """The bytes of logs, each replica counted."""


class BrokerCheckpoints(NamedTuple):
    """What one broker's checkpoint files say of its partitions."""

    high_watermarks: Offsets
    log_starts: Offsets
    ends: Offsets
    gaps: Offsets

    def note(self, key: tuple[str, int], row: PartitionBackup, end: int, has_gaps: bool) -> None:
        """A partition is here, as it was backed up; end: of its log."""
        self.ends[key] = end
        if has_gaps:
            self.gaps[key] = end
        self.high_watermarks[key] = row.high_watermark
        if not row.segments or row.segments[0].base_offset != row.log_start_offset:
            self.log_starts[key] = row.log_start_offset


def restore(
    store: ObjectStore,
    backup: Backup,
    directory: str,
    replicas: int | None = None,
    progress: Callable[[int, int], None] = lambda done, known: None,
) -> Restored:
    """Make `directory`, which must be empty or not there, of a backup.

    `replicas`: of each partition; None: as many as it had. Faults: ConfigFault if the directory is
    not empty, CorruptFault if an object is damaged or missing, StorageFault.
    """
    directory = os.path.abspath(directory)
    _prepare(directory)
    image = _image(store, backup, directory)
    nodes = replicas or max(
        (_count(row) for topic in image.topics_by_id.values() for row in topic.partitions),
        default=1,
    )
    ids = {node: random_uuid() for node in range(1, nodes + 1)}
    image = placed(image, ids, replicas)
    logs = {(row.topic_id, row.partition): row for row in backup.partitions}
    replicated = [
        (topic, partition, logs.get((topic.topic_id.hex(), partition.partition)))
        for topic in image.topics_by_id.values()
        for partition in topic.partitions
    ]
    total = sum(
        len(partition.replicas) * sum(each.size for each in row.segments)
        for _, partition, row in replicated
        if row is not None
    )
    checkpoints = {node: BrokerCheckpoints({}, {}, {}, {}) for node in ids}
    done = 0
    opened: list[PartitionLog] = []
    try:
        for topic, partition, row in replicated:
            places = _make_places(directory, topic, partition, is_synced=row is None)
            if row is None:
                continue
            for place in places.values():
                write_epochs(f"{place}/{LEADER_EPOCH_CHECKPOINT}", row.epochs)
            for segment in row.segments:
                _put_segment(store, segment, list(places.values()))
                done += segment.size * len(places)
                progress(done, total)
            settings = image.config(TOPIC_RESOURCE, topic.name)
            key = topic.name, partition.partition
            for node, place in places.items():
                log, has_gaps = _index(place, settings, row, is_alone=len(places) == 1)
                opened.append(log)
                checkpoints[node].note(key, row, log.log_end_offset, has_gaps)
            if sum(len(log.segments) for log in opened) >= SEGMENTS_AT_ONCE:
                close_all(opened)
                opened.clear()
        close_all(opened)
    finally:
        for log in opened:  # some are not closed where something failed
            log.let_go()
    for node, directory_id in ids.items():
        identity = MetaProperties(node, backup.cluster_id, directory_id)
        _write_node(_node(directory, node), checkpoints[node], identity)
    _write_metadata(_node(directory, 1), image, backup.taken_ms)
    sync_directory(directory)
    os.unlink(f"{directory}/{RESTORING}")
    sync_directory(directory)
    return Restored(backup, nodes, len(replicated), done)


def _write_node(place: str, checkpoints: BrokerCheckpoints, identity: MetaProperties) -> None:
    """Write the files beside the logs of a broker, as one that stopped cleanly has left them."""
    write_offsets(f"{place}/{HIGH_WATERMARK}", checkpoints.high_watermarks)
    write_offsets(f"{place}/{LOG_START_OFFSET}", checkpoints.log_starts)
    write_offsets(f"{place}/{RECOVERY_POINT}", checkpoints.ends)
    write_offsets(f"{place}/{CLEANER}", checkpoints.gaps)
    write_meta_properties(f"{place}/{META_PROPERTIES}", identity)
    write_file(f"{place}/{CLEAN_SHUTDOWN}", '{"version":0,"brokerEpoch":-1}')
    sync_directory(place)


def _prepare(directory: str) -> None:
    refuse_inside(directory)
    try:
        os.makedirs(directory, exist_ok=True)
        found = [name for name in os.listdir(directory) if name != "lost+found"]
        if RESTORING in found:
            raise ConfigFault(
                f"an earlier restore into {directory} was interrupted: remove what is in there, "
                "and restore again"
            )
        if found:
            raise ConfigFault(
                f"{directory} is not empty ({sorted(found)[0]} is in it): name a new or empty one"
            )
        write_file(f"{directory}/{RESTORING}", "")
    except OSError as error:
        raise ConfigFault(f"{directory} can't be used: {error.strerror}") from None


def _node(directory: str, node: int) -> str:
    path = f"{directory}/node-{node}"
    os.makedirs(path, exist_ok=True)
    return path


def _image(store: ObjectStore, backup: Backup, directory: str) -> MetadataImage:
    """The metadata of the backup, read as any snapshot is."""
    content = store.get(backup.metadata_key)
    if len(content) != backup.metadata_size or crc32c(content) != backup.metadata_crc:
        raise CorruptFault(f"{backup.metadata_key} is damaged: restore another backup")
    beside = f"{directory}/{RESTORING}-metadata"
    os.mkdir(beside)
    path = f"{beside}/{snapshot_name(backup.metadata_offset, backup.metadata_epoch)}"
    with open(path, "wb") as file:
        file.write(content)
    reader = MetadataLogReader(beside)
    try:
        follower = MetadataFollower(reader, backup.cluster_id)
        follower.catch_up(backup.metadata_offset)
    finally:
        reader.close()
        os.unlink(path)
        os.rmdir(beside)
    return follower.image


def placed(
    image: MetadataImage, directories: Mapping[int, bytes], replicas: int | None
) -> MetadataImage:
    """The image with its partitions on these nodes, `replicas` times each, None: as often as
    before. Their brokers are registered, and not at work yet."""
    nodes = list(directories)
    made = MetadataImage(image.cluster_id)
    for name in MetadataImage.__slots__:  # all that is not about places stays, ACLs above all
        setattr(made, name, getattr(image, name))
    made.topics_by_id, made.topics_by_name = {}, {}
    made.brokers = {
        node: BrokerImage(node, "", 0, None, 0, bytes(16), True, (directories[node],))
        for node in nodes
    }
    turn = 0
    for topic in image.topics_by_id.values():
        partitions = []
        for old in topic.partitions:
            count = min(replicas or _count(old), len(nodes))
            chosen = tuple(nodes[(turn + at) % len(nodes)] for at in range(count))
            turn += 1
            partitions.append(
                PartitionImage(
                    old.partition,
                    chosen,
                    chosen,
                    -1,
                    old.leader_epoch + 1,
                    old.partition_epoch + 1,
                    tuple(directories[node] for node in chosen),
                )
            )
        new = TopicImage(topic.name, topic.topic_id, tuple(partitions))
        made.topics_by_id[topic.topic_id] = made.topics_by_name[topic.name] = new
    made.configs = {
        resource: _fitting(values, replicas or len(nodes))
        for resource, values in image.configs.items()
        if resource[0] != BROKER_RESOURCE or resource[1] in ("", *map(str, nodes))
    }
    return made


def _count(partition: PartitionImage) -> int:
    """How many replicas it has, or will have when its reassignment is done."""
    return len(partition.replicas) - len(partition.removing_replicas)


def _fitting(values: Mapping[str, str], replicas: int) -> dict[str, str]:
    """Settings that can be kept with so many replicas."""
    least = values.get(_MIN_IN_SYNC, "1")
    if least.isdigit() and int(least) > replicas:
        return dict(values) | {_MIN_IN_SYNC: str(replicas)}
    return dict(values)


def write_epochs(path: str, epochs: Iterable[tuple[int, int]]) -> None:
    """Write a leader-epoch checkpoint of (epoch, start offset), which the log's close syncs."""
    lines = [f"{epoch} {start}" for epoch, start in epochs]
    write_file(path, encode_entries(lines), is_synced=False)


def _make_places(
    directory: str, topic: TopicImage, partition: PartitionImage, *, is_synced: bool
) -> dict[int, str]:
    """Make the directory of each replica, by its node. is_synced: nothing closes a log there, which
    would make it durable."""
    places = {
        node: f"{_node(directory, node)}/{partition_directory(topic.name, partition.partition)}"
        for node in partition.replicas
    }
    for place in places.values():
        os.makedirs(place)
        path = f"{place}/{PARTITION_METADATA}"
        write_partition_metadata(path, topic.topic_id, is_synced=is_synced)
    return places


def _put_segment(store: ObjectStore, segment: SegmentObject, directories: list[str]) -> None:
    name = file_name(segment.base_offset, LOG)
    fds: list[int] = []
    try:
        for directory in directories:
            path = f"{directory}/{name}"
            fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        crc = position = 0
        while position < segment.size:
            piece = store.get(segment.key, position, min(PIECE_BYTES, segment.size - position))
            if not piece:
                break
            crc = crc32c(piece, crc)
            position += len(piece)
            for fd in fds:
                write_all(fd, piece)
        if position != segment.size or crc != segment.crc:
            raise CorruptFault(
                f"{segment.key} is damaged: its bytes are not those of the backup. Restore another"
            )
    except OSError as error:
        raise StorageFault(f"can't write {name} in {directories[0]}: {error}") from error
    finally:
        for fd in fds:
            os.close(fd)


def _index(
    directory: str, settings: Mapping[str, str], row: PartitionBackup, *, is_alone: bool
) -> tuple[PartitionLog, bool]:
    """Make all that is derived from a log's batches; the log, to be closed, and whether offsets are
    missing in it though nothing compacts it now.

    What was there has been compared with the backup: a gap is compaction's. Where it has left
    nothing at an end of the log, an empty segment says where that is, as it was.
    """

    def opened() -> PartitionLog:
        return PartitionLog.open(
            directory,
            LogConfig({**settings, "cleanup.policy": "compact"}),
            file_ids=itertools.count(1),
            clean=False,
            log_start_offset=row.log_start_offset,
            decided_below=NO_LIMIT if is_alone else row.high_watermark,
            is_only_replica=is_alone,
            now_ms=clock.now_ms(),
        )

    first = row.segments[0].base_offset if row.segments else row.log_start_offset
    is_tiered = settings.get("remote.storage.enable") == "true"
    begins_empty = row.log_start_offset < first and not is_tiered  # else the store has that
    if begins_empty:
        _make_empty(directory, row.log_start_offset)
    log = opened()
    ends_empty = log.log_end_offset < row.high_watermark
    if ends_empty:
        log.close(clean=True)
        _make_empty(directory, row.high_watermark)
        log = opened()
    is_compacted = "compact" in settings.get("cleanup.policy", "")
    has_gaps = not is_compacted and (begins_empty or ends_empty or _has_gaps(log))
    return log, has_gaps


def _make_empty(directory: str, base_offset: int) -> None:
    open(f"{directory}/{file_name(base_offset, LOG)}", "xb").close()


def _has_gaps(log: PartitionLog) -> bool:
    expected = -1
    for segment in log.segments:
        for _, header in segment.headers(0, segment.size):
            if expected not in (-1, header[H_BASE_OFFSET]):
                return True
            expected = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
    return False


def _write_metadata(node: str, image: MetadataImage, timestamp_ms: int) -> None:
    directory = f"{node}/{METADATA_DIRECTORY}"
    os.mkdir(directory)
    path = f"{directory}/{snapshot_name(*SnapshotId(image.offset, image.epoch))}"
    with open(path, "wb") as file:
        for piece in image_snapshot(image, timestamp_ms, clock.now_ms()):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    open(f"{directory}/{file_name(image.offset, LOG)}", "xb").close()
    state = QuorumState(directory)
    state.voters = [1]
    state.write(image.epoch, -1, -1)
    sync_directory(directory)
    sync_directory(node)
