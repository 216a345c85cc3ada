"""What the metadata image, the position tables and the directories say of partitions.

The image is the metadata log's; offsets are the words that I/O workers store after each append;
sizes are those of the files. So no broker is asked.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from shmbroker.errors import Fault
from shmbroker.ids import partition_key
from shmbroker.log.checkpoints import LOG_START_OFFSET, read_offsets
from shmbroker.log.file_names import LOG, offset_of, partition_directory
from shmbroker.metadata.changes import PartitionChanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
    from shmbroker.metrics.samples import Samples
    from shmbroker.shm.positions import SiblingPositions

PARTITIONS_MAX = 5000
"""With more than these there are no series of single partitions, but those of topics."""

_NO_LEADER = -1
_MANAGER = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"


class Changes:
    """Counts of what has become of partitions, since this process began."""

    def __init__(self) -> None:
        self.shrinks = self.expands = self.leaders = 0

    def see(self, changes: Iterable[MetadataChange]) -> None:
        """What has changed from one image to the next."""
        for change in changes:
            if isinstance(change, PartitionChanged) and change.before is not None:
                before, after = change.before, change.after
                was, now = set(before.in_sync_replicas), set(after.in_sync_replicas)
                self.shrinks += len(was - now) > 0
                self.expands += len(now - was) > 0
                self.leaders += before.leader_id != after.leader_id

    def gather(self, samples: Samples) -> None:
        """Show them."""
        samples.put(f"{_MANAGER}isrshrinks_total", self.shrinks)
        samples.put(f"{_MANAGER}isrexpands_total", self.expands)
        samples.put("shmbroker_leader_changes_total", self.leaders)


class Files(NamedTuple):
    """The segments of one replica, as their names and sizes say."""

    start_offset: int
    segments: int
    closed_bytes: int
    """Of all but the last."""
    active_base: int


class Directories:
    """Sizes of logs. A directory is looked at again when something in it was made or removed."""

    def __init__(self, log_directories: Mapping[int, str]) -> None:
        """By broker id."""
        self._roots = log_directories
        self._seen: dict[str, tuple[int, Files]] = {}
        self._starts: dict[int, dict[tuple[str, int], int]] = {}

    def begin(self) -> None:
        """A new round: log starts may have moved."""
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
        if found is not None:
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


class Partitions:
    """Gathers, for one family."""

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

    def gather(self, samples: Samples, image: MetadataImage) -> None:
        """All of it."""
        for positions in self._positions.values():
            positions.may_look_again()
        self._directories.begin()
        topics = image.topics_by_name.values()
        count = sum(len(topic.partitions) for topic in topics)
        is_each = count <= PARTITIONS_MAX
        samples.put("shmbroker_partitions_left_out", 0 if is_each else count)
        _cluster(samples, image, count)
        for broker_id in self._positions:
            for name in (
                "partitioncount",
                "leadercount",
                "underreplicatedpartitions",
                "underminisrpartitioncount",
                "atminisrpartitioncount",
                "reassigningpartitions",
            ):
                samples.put(_MANAGER + name, 0, broker_id)
        lags: Counter[int] = Counter(dict.fromkeys(self._positions, 0))
        replicas = 0
        for topic in topics:
            least = self._min_in_sync_of(image, topic.name)
            samples.put("shmbroker_topic_bytes", 0, topic.name)
            samples.put("kafka_server_brokertopicmetrics_messagesin_total", 0, topic.name)
            for row in topic.partitions:
                replicas += len(row.replicas)
                _states(samples, row, least)
                self._logs(samples, topic, row, lags, is_each)
        self._directories.forget_others(replicas)
        for broker_id, lag in lags.items():
            samples.put("kafka_server_replicafetchermanager_maxlag", lag, broker_id)

    def _logs(
        self,
        samples: Samples,
        topic: TopicImage,
        row: PartitionImage,
        lags: Counter[int],
        is_each: bool,
    ) -> None:
        key = partition_key(topic.topic_id, row.partition)
        ends = {
            broker_id: positions.load(key)
            for broker_id in row.replicas
            if (positions := self._positions.get(broker_id)) is not None
        }
        leader = ends.get(row.leader_id)
        if leader is not None:
            messages = "kafka_server_brokertopicmetrics_messagesin_total"
            samples.put(messages, leader[2], topic.name)
        for broker_id, end in ends.items():
            if leader is not None and end is not None and broker_id != row.leader_id:
                lag = max(0, leader[2] - end[2])
                lags[broker_id] = max(lags[broker_id], lag)
                samples.put("shmbroker_replica_lag_records", lag, broker_id, topic.name)
            files = self._directories.find(broker_id, topic.name, row.partition)
            if files is None:
                continue
            size = files.closed_bytes
            if end is not None and end[0] == files.active_base:
                size += end[1]
            samples.put("shmbroker_topic_bytes", size, topic.name)
            if broker_id == row.leader_id and is_each:
                labels = topic.name, row.partition
                start = self._directories.start_offset(broker_id, *labels, files)
                samples.put("kafka_log_log_logstartoffset", start, *labels)
                samples.put("kafka_log_log_size", size, *labels)
                samples.put("kafka_log_log_numlogsegments", files.segments, *labels)
                if leader is not None:
                    samples.put("kafka_log_log_logendoffset", leader[2], *labels)


def _states(samples: Samples, row: PartitionImage, least: int) -> None:
    for broker_id in row.replicas:
        samples.put(f"{_MANAGER}partitioncount", 1, broker_id)
    if row.leader_id == _NO_LEADER:
        return
    leader, in_sync, of_all = row.leader_id, len(row.in_sync_replicas), len(row.replicas)
    samples.put(f"{_MANAGER}leadercount", 1, leader)
    samples.put(f"{_MANAGER}underreplicatedpartitions", in_sync < of_all, leader)
    samples.put(f"{_MANAGER}underminisrpartitioncount", in_sync < least, leader)
    is_at = in_sync == least and in_sync < of_all
    samples.put(f"{_MANAGER}atminisrpartitioncount", is_at, leader)
    samples.put(f"{_MANAGER}reassigningpartitions", row.is_reassigning, leader)


def _cluster(samples: Samples, image: MetadataImage, partitions: int) -> None:
    brokers = image.brokers.values()
    fenced = sum(broker.is_fenced for broker in brokers)
    samples.put(f"{_CONTROLLER}activebrokercount", len(brokers) - fenced)
    samples.put(f"{_CONTROLLER}fencedbrokercount", fenced)
    samples.put(f"{_CONTROLLER}globaltopiccount", len(image.topics_by_name))
    samples.put(f"{_CONTROLLER}globalpartitioncount", partitions)
    rows = [row for topic in image.topics_by_name.values() for row in topic.partitions]
    offline = sum(row.leader_id == _NO_LEADER for row in rows)
    samples.put(f"{_CONTROLLER}offlinepartitionscount", offline)
    imbalanced = sum(row.leader_id != row.replicas[0] for row in rows)
    samples.put(f"{_CONTROLLER}preferredreplicaimbalancecount", imbalanced)
