"""What a reader asks: the brokers of a cluster, and the control socket of a shmbroker.

    bootstrap broker   ApiVersions, Metadata, DescribeLogDirs (where the data directory is),
                       FindCoordinator
    leaders            ListOffsets, DescribeLogDirs (sizes), Fetch (in `fetching`)
    coordinator        OffsetCommit, so that Kafka's tools see how far a query is
    control socket     ListSegments: end offsets and segment files of one leader, in one answer

The control socket is `control.sock` in the data directory of the broker family: same frames, but
only for processes of the same host that may open it. DescribeLogDirs names `<data>/node-N`.

Rules: one request at a time, every answer is waited for at most `answer_s`; an answer that does
not come, a lost connection or a leader that moves is tried again until `timeout_s` are over;
everything else is a ClusterFault that says what to do. Nothing is cached but connections and the
data directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from shmbroker import clock, unix
from shmbroker.client.addresses import addresses_text, parse_addresses
from shmbroker.client.cluster import Cluster, Topic
from shmbroker.client.connection import Connection, connect_control
from shmbroker.client.faults import (
    GIVE_DIRECTORY,
    NAME_DIRECTORY,
    ClusterFault,
    LaterFault,
    NoFilesFault,
    refuse,
)
from shmbroker.client.reader.access import forbidden
from shmbroker.client.reader.asking import Consumer
from shmbroker.client.reader.planning import ListedSegment
from shmbroker.client.retries import patiently
from shmbroker.client.versions import READING
from shmbroker.errors import ProtocolFault
from shmbroker.ids import TopicPartition
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import (
    DESCRIBE_LOG_DIRS,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    LIST_SEGMENTS,
    OFFSET_COMMIT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message


COMMIT_S_MAX = 5.0
"""Committing offsets shows lag and no more, so a query does not wait for it long."""

T = TypeVar("T")


class PartitionFiles(NamedTuple):
    """What one leader has of one partition, as of one moment; where its files can't be listed,
    without segments.

    `segments` are those with bytes: compaction may leave offsets without any. What is before
    `files_start_offset` is in no file of this host. `size`: about the bytes of the whole log.
    """

    topic: str
    partition: int
    topic_id: bytes
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    segments: tuple[ListedSegment, ...]
    files_start_offset: int
    size: int


class BrokerClient:
    """Asks the brokers that `consumer` names."""

    def __init__(self, consumer: Consumer, data_directory: str | None = None) -> None:
        self.consumer = consumer
        addresses = parse_addresses(consumer.bootstrap_servers, security=consumer.entering())
        self.data_directory = data_directory
        self.has_other_name = data_directory is not None
        self.timeout_s = consumer.timeout_s
        answer_s = min(consumer.answer_s, consumer.timeout_s)
        self.cluster = Cluster(addresses, consumer.client_id, answer_s, READING)
        self._control: Connection | None = None
        self._until_s: float | None = None

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next question opens them again."""
        self.cluster.close()
        self._close_control()

    # --- questions -----------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """The topics that exist, of these names or at all (internal ones only if named).

        A name that the broker does not know, or may not be, is left out.
        """
        wanted = None if names is None else list(names)
        return self._patiently(lambda: self._topics(wanted))

    def _topics(self, names: Sequence[str] | None) -> dict[str, Topic]:
        found = {}
        for topic, error, is_internal in self.cluster.describe(
            names, False, self._until_s, tells_operations=True
        ):
            if error in (
                error_codes.UNKNOWN_TOPIC_OR_PARTITION,
                error_codes.INVALID_TOPIC_EXCEPTION,
            ):
                continue
            refuse(error, f"topic {topic.name}")
            if names is not None or not is_internal:
                found[topic.name] = topic
        return found

    def offsets(
        self, topics: Mapping[str, Topic], timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The offset for each partition's timestamp: -2 earliest, -1 the high watermark (or last
        stable offset), else the first offset whose record is not older (ms); -1 if there is none.
        """

        def ask(leader: int, asked: list[TopicPartition]) -> Iterable[tuple[TopicPartition, int]]:
            wanted: list[Message] = []
            for name in sorted({name for name, _ in asked}):
                partitions = [
                    {"partition_index": p, "timestamp": timestamps[topic, p]}
                    for topic, p in asked
                    if topic == name
                ]
                wanted.append({"name": name, "partitions": partitions})
            body = {
                "replica_id": -1,
                "isolation_level": int(self.consumer.is_read_committed),
                "topics": wanted,
            }
            answer = self._ask(leader, LIST_OFFSETS, body)
            for topic in answer["topics"]:
                for p in topic["partitions"]:
                    index = p["partition_index"]
                    refuse(p["error_code"], f"ListOffsets of {topic['name']}-{index}")
                    yield (topic["name"], index), p["offset"]

        return self._ask_leaders(topics, timestamps, ask)

    def files(
        self,
        topics: Mapping[str, Topic],
        partitions: Iterable[TopicPartition],
        held: Mapping[TopicPartition, tuple[int, int]] | None = None,
        hold_ms: int = 0,
    ) -> dict[TopicPartition, PartitionFiles]:
        """End offsets and segment files of these partitions, from the control socket.

        Files with offsets of the ranges `held` stay for `hold_ms`, though retention drops them.
        The socket asks nobody who he is, so what a leader would say of a fetch is said here: a
        query has the same rights on both ways.
        """
        for topic in topics.values():
            if not topic.may_be_read:
                refuse(error_codes.TOPIC_AUTHORIZATION_FAILED, f"topic {topic.name} (read)")

        def ask(
            leader: int, asked: list[TopicPartition]
        ) -> Iterable[tuple[TopicPartition, PartitionFiles]]:
            names = {topics[name].topic_id: name for name, _ in asked}
            wanted: dict[str, list[dict[str, int]]] = {}
            for topic, partition in asked:
                row = {"partition": partition}
                if held is not None:
                    row["hold_start_offset"], row["hold_end_offset"] = held[topic, partition]
                wanted.setdefault(topic, []).append(row)
            body = {
                "broker_id": leader,
                "hold_ms": hold_ms,
                "topics": [
                    {"topic_id": topic_id, "partitions": wanted[name]}
                    for topic_id, name in names.items()
                ],
            }
            answer = self._ask_control(LIST_SEGMENTS, body)
            refuse(answer["error_code"], "ListSegments")
            for p in answer["partitions"]:
                name = names.get(p["topic_id"])
                refuse(p["error_code"], f"ListSegments of {name}-{p['partition']}")
                if name is None:
                    raise ClusterFault(f"ListSegments names the unknown topic {p['topic_id']!r}")
                yield (name, p["partition"]), self._partition_files(name, leader, p)

        return self._ask_leaders(topics, partitions, ask)

    def _partition_files(self, name: str, leader: int, p: Message) -> PartitionFiles:
        directory = p["directory"]
        if self.has_other_name or not os.path.isabs(directory):
            node, partition = os.path.split(directory)
            node_name = os.path.basename(node) or f"node-{leader}"
            directory = os.path.join(self._find_data(), node_name, partition)
        segments = tuple(
            ListedSegment(
                os.path.join(directory, s["file_name"]),
                s["inode"],
                s["base_offset"],
                s["end_offset"],
                s["valid_bytes"],
            )
            for s in p["segments"]
        )
        first, start, end = (
            p["log_start_offset"],
            p["local_log_start_offset"],
            p["high_watermark"],
        )
        here = sum(segment.valid_bytes for segment in segments)
        return PartitionFiles(
            name,
            p["partition"],
            p["topic_id"],
            first,
            end,
            p["last_stable_offset"],
            segments,
            start,
            here * (end - first) // max(1, end - start),
        )

    def sizes(
        self, topics: Mapping[str, Topic], partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The bytes that each partition's log takes on its leader's disk; 0 if it doesn't say."""

        def ask(leader: int, asked: list[TopicPartition]) -> Iterable[tuple[TopicPartition, int]]:
            wanted = [
                {"topic": name, "partitions": [p for t, p in asked if t == name]}
                for name in sorted({name for name, _ in asked})
            ]
            answer = self._ask(leader, DESCRIBE_LOG_DIRS, {"topics": wanted})
            found = {
                (topic["name"], p["partition_index"]): p["partition_size"]
                for result in answer["results"]
                for topic in result["topics"]
                for p in topic["partitions"]
            }
            return [(topic_partition, found.get(topic_partition, 0)) for topic_partition in asked]

        return self._ask_leaders(topics, partitions, ask)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets (of the next records) for a group without members."""

        def once() -> None:
            body: Message = {"key_type": 0, "coordinator_keys": [group_id]}
            (found,) = self._ask_any(FIND_COORDINATOR, body)["coordinators"]
            refuse(found["error_code"], f"FindCoordinator of group {group_id}")
            wanted = [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": p, "committed_offset": offset}
                        for (t, p), offset in sorted(offsets.items())
                        if t == name
                    ],
                }
                for name in sorted({name for name, _ in offsets})
            ]
            body = {"group_id": group_id, "member_id": "", "topics": wanted}
            answer = self._ask(found["node_id"], OFFSET_COMMIT, body)
            for topic in answer["topics"]:
                for p in topic["partitions"]:
                    what = f"OffsetCommit of group {group_id} for {topic['name']}"
                    refuse(p["error_code"], f"{what}-{p['partition_index']}")

        self._patiently(once, min(self.timeout_s, COMMIT_S_MAX))

    def connect_leader(self, topic: Topic, partition: int) -> Connection:
        """A new connection to the partition's leader, which the caller closes; LaterFault if there
        is no leader, OSError if it can't be reached."""
        leader = topic.leader_of(partition)
        if leader not in self.cluster.brokers:
            raise LaterFault(f"{topic.name}-{partition} has no leader")
        return self.cluster.connect(self.cluster.brokers[leader])

    # --- asking, and asking again ----------------------------------------------------------------

    def _ask_leaders(
        self,
        topics: Mapping[str, Topic],
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Iterable[tuple[TopicPartition, T]]],
    ) -> dict[TopicPartition, T]:
        """Ask each leader for what it leads; after a failure the leaders are looked up again."""
        wanted = list(partitions)
        known: Mapping[str, Topic] | None = topics

        def once() -> dict[TopicPartition, T]:
            nonlocal known
            current, known = known, None
            if current is None:
                current = self._topics(list({name for name, _ in wanted}))
            by_leader: dict[int, list[TopicPartition]] = {}
            for name, partition in wanted:
                leader = current[name].leader_of(partition) if name in current else -1
                if leader < 0:
                    raise LaterFault(f"{name}-{partition} has no leader")
                by_leader.setdefault(leader, []).append((name, partition))
            result: dict[TopicPartition, T] = {}
            for leader, asked in by_leader.items():
                result.update(ask(leader, asked))
            if len(result) != len(wanted):
                raise ClusterFault("a leader did not answer for every partition it was asked for")
            return result

        return self._patiently(once)

    def _patiently(self, once: Callable[[], T], timeout_s: float | None = None) -> T:
        """Try until it works, or fails for good, or `timeout_s` are over. An answer that can't be
        read is for good: it comes of something that is no Kafka."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        answer_s = min(self.consumer.answer_s, timeout_s)
        self.cluster.wait_at_most(answer_s)
        if self._control is not None:
            self._control.socket.settimeout(answer_s)
        self._until_s = clock.monotonic() + timeout_s
        return patiently(once, timeout_s, final=ProtocolFault)

    def _ask_any(self, api_key: int, body: Message) -> Message:
        return self.cluster.ask_any(api_key, body, until_s=self._until_s)

    def _ask(self, broker_id: int, api_key: int, body: Message) -> Message:
        if broker_id not in self.cluster.brokers:
            self._topics([])
        return self.cluster.ask_broker(broker_id, api_key, body)

    def _ask_control(self, api_key: int, body: Message) -> Message:
        if self._control is None:
            self._control = self._connect_control()
        try:
            return self._control.ask(api_key, body)
        except (OSError, ProtocolFault):
            self._close_control()
            raise

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _connect_control(self) -> Connection:
        data = self._find_data()
        path = os.path.join(data, unix.CONTROL_SOCKET)
        try:
            return connect_control(data, self.cluster.answer_s, self.consumer.client_id, READING)
        except (FileNotFoundError, NotADirectoryError):
            raise NoFilesFault(
                f"there is no {path}: the broker at {addresses_text(self.cluster.bootstrap)}"
                " is not a running shmbroker on this host, or somebody removed that socket, which a"
                " start makes again",
                NAME_DIRECTORY,
            ) from None
        except PermissionError:
            raise forbidden(path, "open", os.W_OK) from None

    def _find_data(self) -> str:
        if self.data_directory is None:
            answer = self._ask_any(DESCRIBE_LOG_DIRS, {"topics": []})
            if answer["error_code"] == error_codes.CLUSTER_AUTHORIZATION_FAILED:
                raise NoFilesFault(
                    "where the broker's data directory is, DescribeLogDirs tells those who may"
                    " describe the cluster",
                    GIVE_DIRECTORY,
                )
            refuse(answer["error_code"], "DescribeLogDirs")
            for result in answer["results"]:
                if os.path.isabs(result["log_dir"]):
                    self.data_directory = os.path.dirname(result["log_dir"])
                    break
            else:
                raise ClusterFault("DescribeLogDirs names no log directory")
        return self.data_directory
