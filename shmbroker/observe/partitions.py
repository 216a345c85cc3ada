"""What the metadata image, the position tables and the directories say of partitions.

The image is the metadata log's; offsets are the words that I/O workers store after each append;
sizes are those of the files. So no broker is asked.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from shmbroker import clock
from shmbroker.errors import Fault
from shmbroker.ids import partition_key, uuid_text
from shmbroker.log.checkpoints import LOG_START_OFFSET, read_offsets
from shmbroker.log.file_names import LOG, offset_of, partition_directory
from shmbroker.metadata.changes import PartitionChanged
from shmbroker.observe.snapshot import Broker, Changes, Partition, Replica, Topic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.addresses import Address
    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
    from shmbroker.shm.positions import SiblingPositions


class ChangeCounts:
    """Counts of what has become of partitions, since this process began."""

    def __init__(self) -> None:
        self.shrinks = self.expands = self.leaders = 0

    def see(self, changes: Iterable[MetadataChange]) -> None:
        """See what has changed from one image to the next."""
        for change in changes:
            if isinstance(change, PartitionChanged) and change.before is not None:
                before, after = change.before, change.after
                was, now = set(before.in_sync_replicas), set(after.in_sync_replicas)
                self.shrinks += len(was - now) > 0
                self.expands += len(now - was) > 0
                self.leaders += before.leader_id != after.leader_id

    def taken(self) -> Changes:
        """The counts as they are now."""
        return Changes(self.shrinks, self.expands, self.leaders)


class Files(NamedTuple):
    """The segments of one replica, as their names and sizes say."""

    start_offset: int
    segments: int
    closed_bytes: int
    """The bytes of all segments but the last."""
    active_base: int


SETTLED_NS = 1_000_000_000
"""What has changed a directory lately may not be all: times are as coarse as the kernel's ticks,
and a segment gets its last size a moment after the next one was made."""


class Directories:
    """Sizes of logs. A directory is looked at again when something in it was made or removed."""

    def __init__(self, log_directories: Mapping[int, str]) -> None:
        """Take the log directories by broker id."""
        self._roots = log_directories
        self._seen: dict[str, tuple[int, Files | None]] = {}
        self._starts: dict[int, dict[tuple[str, int], int]] = {}

    def begin(self) -> None:
        """Begin a new round: log starts may have moved."""
        self._starts.clear()

    def start_offset(self, broker_id: int, topic: str, partition: int, files: Files) -> int:
        """Where a log begins: at its first segment, or behind (DeleteRecords)."""
        starts = self._starts.get(broker_id)
        if starts is None:
            try:
                starts = read_offsets(f"{self._roots[broker_id]}/{LOG_START_OFFSET}")
            except Fault:
                starts = {}
            self._starts[broker_id] = starts
        return max(files.start_offset, starts.get((topic, partition), 0))

    def find(self, broker_id: int, topic: str, partition: int) -> Files | None:
        """None where there is nothing (yet, or any more)."""
        if broker_id not in self._roots:
            return None
        path = f"{self._roots[broker_id]}/{partition_directory(topic, partition)}"
        try:
            changed_ns = os.stat(path).st_mtime_ns
            seen = self._seen.get(path)
            if seen is not None and seen[0] == changed_ns:
                return seen[1]
            found = _look(path)
        except OSError:
            self._seen.pop(path, None)
            return None
        if clock.now_ms() * 1_000_000 - changed_ns > SETTLED_NS:
            self._seen[path] = (changed_ns, found)
        return found

    def forget_others(self, count: int) -> None:
        """There are but so many replicas: what was deleted is forgotten now and then."""
        if len(self._seen) > 2 * count + 64:
            self._seen.clear()


def _look(path: str) -> Files | None:
    sizes = {}
    with os.scandir(path) as entries:
        for entry in entries:
            base = offset_of(entry.name, LOG)
            if base is not None:
                sizes[base] = entry.stat().st_size
    if not sizes:
        return None
    first, active = min(sizes), max(sizes)
    return Files(first, len(sizes), sum(sizes.values()) - sizes[active], active)


class ObservedPartitions:
    """Looks at those of one family."""

    def __init__(
        self,
        positions: Mapping[int, SiblingPositions],
        directories: Directories,
        min_in_sync_of: Callable[[MetadataImage, str], int],
    ) -> None:
        """positions: by broker id; min_in_sync_of: min.insync.replicas of a topic."""
        self._positions = positions
        self._directories = directories
        self._min_in_sync_of = min_in_sync_of

    def end_offset(self, image: MetadataImage, topic: str, partition: int) -> int | None:
        """The leader's log end; None if nobody has it."""
        found = image.topics_by_name.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        row = found.partitions[partition]
        positions = self._positions.get(row.leader_id)
        if positions is None:
            return None
        return positions.end_offset(partition_key(found.topic_id, partition))

    def look(self, image: MetadataImage) -> list[Topic]:
        """All topics, by name."""
        for positions in self._positions.values():
            positions.may_look_again()
        self._directories.begin()
        topics = [
            Topic(
                topic.name,
                uuid_text(topic.topic_id),
                topic.is_internal,
                self._min_in_sync_of(image, topic.name),
                [self._partition(topic, row) for row in topic.partitions],
            )
            for _, topic in sorted(image.topics_by_name.items())
        ]
        self._directories.forget_others(
            sum(len(row.replicas) for topic in topics for row in topic.partitions)
        )
        return topics

    def _partition(self, topic: TopicImage, row: PartitionImage) -> Partition:
        key = partition_key(topic.topic_id, row.partition)
        leader = row.leader_id
        ends = {}
        read_bytes: int | None = None
        for broker_id in row.replicas:
            positions = self._positions.get(broker_id)
            if positions is None:
                continue
            ends[broker_id] = positions.load(key)
            read = positions.read_bytes(key)
            if read is not None:
                read_bytes = (read_bytes or 0) + read
        end = ends.get(leader)
        replicas = []
        start = segments = None
        for broker_id in row.replicas:
            its_end = ends.get(broker_id)
            files = self._directories.find(broker_id, topic.name, row.partition)
            size = None
            if files is not None:
                size = files.closed_bytes
                if its_end is not None and its_end[0] == files.active_base:
                    size += its_end[1]
                if broker_id == leader:
                    segments = files.segments
                    labels = topic.name, row.partition
                    start = self._directories.start_offset(broker_id, *labels, files)
            lag = max(0, end[2] - its_end[2]) if end is not None and its_end is not None else None
            replicas.append(Replica(broker_id, None if its_end is None else its_end[2], lag, size))
        size = next((each.size_bytes for each in replicas if each.broker == leader), None)
        return Partition(
            row.partition,
            replicas,
            row.in_sync_replicas,
            leader,
            row.leader_epoch,
            row.is_reassigning,
            start,
            None if end is None else end[2],
            size,
            segments,
            read_bytes,
        )


def brokers(
    image: MetadataImage,
    topics: Iterable[Topic],
    directories: Mapping[int, str],
    addresses: Mapping[int, Address],
) -> list[Broker]:
    """The brokers of a family, which are those that have directories."""
    counts = {number: Counter[str]() for number in directories}
    lags = dict.fromkeys(directories, 0)
    for topic in topics:
        for partition in topic.partitions:
            _count(counts, lags, partition, topic.min_in_sync)
    found = []
    for number, count in counts.items():
        registered = image.brokers.get(number)
        host, port = addresses.get(number, ("", 0))
        found.append(
            Broker(
                number,
                host,
                port,
                directories[number],
                registered is not None,
                registered is not None and registered.is_fenced,
                registered is not None and registered.is_active,
                count["replicas"],
                count["leaders"],
                count["under_replicated"],
                count["under_min"],
                count["at_min"],
                count["reassigning"],
                lags[number],
            )
        )
    return found


def _count(
    counts: Mapping[int, Counter[str]], lags: dict[int, int], partition: Partition, least: int
) -> None:
    for replica in partition.replicas:
        if replica.broker in counts:
            counts[replica.broker]["replicas"] += 1
            lags[replica.broker] = max(lags[replica.broker], replica.lag or 0)
    if partition.leader not in counts:
        return
    count, in_sync = counts[partition.leader], len(partition.in_sync)
    count["leaders"] += 1
    count["under_replicated"] += partition.is_under_replicated
    count["under_min"] += in_sync < least
    count["at_min"] += in_sync == least and partition.is_under_replicated
    count["reassigning"] += partition.is_reassigning
