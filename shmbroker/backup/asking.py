"""What a backup asks of a running family: leaders, ends, files, and the metadata log.

`cut` gives all partitions as they were at one moment. One broker answers in one turn, so any answer
of it is of one moment. Several are asked at once, and each stands still for some milliseconds after
it has looked; if their times overlap, there is a moment in all of them. Else they are asked again,
to stand still for longer. So of a transaction there is what was at that moment in all partitions,
in `__transaction_state` and in `__consumer_offsets`, as after a death of all processes; and no
committed offset is beyond the log that it is about.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from shmbroker.backup.manifest import named
from shmbroker.client.connection import Connection
from shmbroker.client.faults import ClusterFault, LaterFault, refuse
from shmbroker.client.reader.asking import HOLD_MS, Consumer
from shmbroker.client.reader.broker_client import BrokerClient
from shmbroker.client.reader.planning import ListedSegment
from shmbroker.ids import TopicIdPartition
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.image import MetadataImage
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.metadata.topic_names import METADATA_DIRECTORY, METADATA_TOPIC
from shmbroker.wire.api_keys import DESCRIBE_LOG_DIRS, DESCRIBE_QUORUM, LIST_SEGMENTS, METADATA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.cluster import Topic
    from shmbroker.wire.codec import Message

STOPS_MS = (10, 20, 50, 100, 200, 200, 200, 200)
"""Milliseconds that a stop takes at each try: no more than what a broker allows."""
QUORUM_VERSION = 1
LIST_VERSION = 1

T = TypeVar("T")


class NoLeaderFault(LaterFault):
    """Partitions have no leader; `places` has the names of all of them."""

    def __init__(self, places: Mapping[TopicIdPartition, str]) -> None:
        super().__init__(f"{named(sorted(places.values()))} have no leader")
        self.places = places


class ListedPartition(NamedTuple):
    """One partition, as its leader has listed it."""

    topic: str
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    segments: list[ListedSegment]
    directory: str


class FamilyClient(BrokerClient):
    """Asks one running family. Who has no leader is waited for, and left out when the time is up:
    `left_out` has its name."""

    def __init__(self, consumer: Consumer, data_directory: str | None = None) -> None:
        super().__init__(consumer, data_directory)
        self.left_out: dict[TopicIdPartition, str] = {}

    def __enter__(self) -> FamilyClient:
        return self

    def cluster_id(self) -> str:
        """The id of the family's cluster."""

        def once() -> str:
            answer = self.cluster.ask_any(METADATA, {"topics": []}, until_s=self._until_s)
            found: str = answer["cluster_id"]
            return found

        return self._patiently(once)

    def all_topics(self) -> list[Topic]:
        """Every topic that there is, internal ones too."""
        return self._patiently(self._all_topics)

    def _all_topics(self) -> list[Topic]:
        described = self.cluster.describe(None, False, self._until_s)
        return [topic for topic, error, _ in described if not error]

    def list_held(
        self, places: Collection[TopicIdPartition]
    ) -> dict[TopicIdPartition, ListedPartition]:
        """List these partitions as they are, with their files held for `HOLD_MS`; those that are no
        more, or have no leader now, are not in it."""

        def once() -> dict[TopicIdPartition, ListedPartition]:
            topics = self._all_topics()
            return self._listed(
                [
                    (topic, index, 0)
                    for topic in topics
                    for index in topic.partitions
                    if (topic.topic_id, index) in places and topic.leader_of(index) >= 0
                ],
                0,
            )

        return self._patiently(once)

    def cut(
        self, firsts: Mapping[TopicIdPartition, int]
    ) -> dict[TopicIdPartition, ListedPartition]:
        """All partitions that have leaders, at one moment; segments that end at or before an offset
        of `firsts` are not listed. ClusterFault where some leader does not answer, or is too busy.
        """
        for stop_ms in STOPS_MS:
            found = self._led(functools.partial(self._cut, firsts, stop_ms))
            if found is not None:
                return found
        raise ClusterFault("the brokers are too busy to stand still at one moment; try again later")

    def _led(self, once: Callable[[], T]) -> T:
        """What `once` gives for those that have leaders."""
        while True:
            try:
                return self._patiently(once)
            except ClusterFault as fault:
                if not isinstance(fault.__cause__, NoLeaderFault):
                    raise
                self.left_out |= fault.__cause__.places

    def _cut(
        self, firsts: Mapping[TopicIdPartition, int], stop_ms: int
    ) -> dict[TopicIdPartition, ListedPartition] | None:
        rows = [
            (topic, index, firsts.get((topic.topic_id, index), 0))
            for topic in self._all_topics()
            for index in topic.partitions
            if (topic.topic_id, index) not in self.left_out
        ]
        is_alone = len({topic.leader_of(index) for topic, index, _ in rows}) == 1
        times: list[tuple[int, int]] = []
        found = self._listed(rows, 0 if is_alone else stop_ms, times)
        if not is_alone and not is_one_moment(times):
            return None
        # One that is new may have had records, and groups their offsets, before brokers looked.
        places = {
            (topic.topic_id, index) for topic in self._all_topics() for index in topic.partitions
        }
        return found if places <= found.keys() | self.left_out.keys() else None

    def _listed(
        self,
        rows: Iterable[tuple[Topic, int, int]],
        stop_ms: int,
        times: list[tuple[int, int]] | None = None,
    ) -> dict[TopicIdPartition, ListedPartition]:
        rows = list(rows)
        leaderless = {
            (topic.topic_id, index): f"{topic.name}-{index}"
            for topic, index, _ in rows
            if topic.leader_of(index) < 0
        }
        if leaderless:
            raise NoLeaderFault(leaderless)
        by_leader: dict[int, dict[bytes, list[dict[str, int]]]] = {}
        names = {}
        for topic, index, first in rows:
            leader = topic.leader_of(index)
            names[topic.topic_id] = topic.name
            asked = {
                "partition": index,
                "hold_start_offset": 0,
                "hold_end_offset": (1 << 63) - 1,
                "first_offset": first,
            }
            by_leader.setdefault(leader, {}).setdefault(topic.topic_id, []).append(asked)
        found: dict[TopicIdPartition, ListedPartition] = {}
        connections: list[Connection] = []
        try:
            for leader, wanted in by_leader.items():
                body: Message = {
                    "broker_id": leader,
                    "hold_ms": HOLD_MS,
                    "stop_ms": stop_ms,
                    "topics": [
                        {"topic_id": topic_id, "partitions": partitions}
                        for topic_id, partitions in wanted.items()
                    ],
                }
                connection = self._connect_control()
                connections.append(connection)
                connection.send(LIST_SEGMENTS, body, LIST_VERSION)
            for connection in connections:
                answer = connection.receive()
                refuse(answer["error_code"], "ListSegments")
                if times is not None:
                    times.append((answer["looked_ns"], answer["stopped_until_ns"]))
                for row in answer["partitions"]:
                    name = names[row["topic_id"]]
                    refuse(row["error_code"], f"ListSegments of {name}-{row['partition']}")
                    found[row["topic_id"], row["partition"]] = _listed(name, row)
        finally:
            for connection in connections:
                connection.close()
        return found

    def image(self, cluster_id: str) -> tuple[MetadataImage, int]:
        """The cluster's metadata as it is committed now, and the time of its last record."""
        body = {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}

        def once() -> tuple[MetadataImage, int]:
            answer = self.cluster.ask_any(DESCRIBE_QUORUM, body, QUORUM_VERSION, self._until_s)
            refuse(answer["error_code"], "DescribeQuorum")
            (row,) = answer["topics"][0]["partitions"]
            refuse(row["error_code"], "DescribeQuorum")
            directory = self._directory_of(self._holder(row))
            reader = MetadataLogReader(os.path.join(directory, METADATA_DIRECTORY))
            try:
                follower = MetadataFollower(reader, cluster_id)
                follower.catch_up(row["high_watermark"])
                return follower.image, reader.last_timestamp_ms
            finally:
                reader.close()

        return self._patiently(once)

    def _holder(self, quorum: Message) -> int:
        """A broker that is up, beside a controller whose log has all that is committed: the active
        one's where it is."""
        self._topics([])
        leader = quorum["leader_id"]
        voters: list[int] = [
            each["replica_id"]
            for each in quorum["current_voters"]
            if each["log_end_offset"] >= quorum["high_watermark"]
        ]
        for voter in sorted(voters, key=lambda each: (each != leader, each)):
            if voter in self.cluster.brokers:
                return voter
        told = " or ".join(f"{each}" for each in sorted(voters))
        raise LaterFault(f"broker {told}, which has all metadata beside it, is down")

    def _directory_of(self, broker_id: int) -> str:
        """The log directory of a broker."""
        answer = self._ask(broker_id, DESCRIBE_LOG_DIRS, {"topics": []})
        refuse(answer["error_code"], "DescribeLogDirs")
        directory: str = answer["results"][0]["log_dir"]
        return directory


def is_one_moment(times: Iterable[tuple[int, int]]) -> bool:
    """Whether there is a moment that lies in each of (from, to), or there is none of them."""
    times = list(times)
    latest = max((first for first, _ in times), default=0)
    return all(latest <= end for _, end in times)


def _listed(name: str, row: Message) -> ListedPartition:
    return ListedPartition(
        name,
        row["leader_epoch"],
        row["log_start_offset"],
        row["high_watermark"],
        [
            ListedSegment(
                os.path.join(row["directory"], each["file_name"]),
                each["inode"],
                each["base_offset"],
                each["end_offset"],
                each["valid_bytes"],
            )
            for each in row["segments"]
        ],
        row["directory"],
    )
