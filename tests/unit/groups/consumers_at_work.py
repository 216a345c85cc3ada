"""A consumer group with its topics, its log and its clock, and clients that do as they are told."""

import struct
from types import SimpleNamespace
from typing import Any

from shmbroker.groups.consumer.change import ConsumerSettings, Topics
from shmbroker.groups.consumer.classic_members import on_classic_join
from shmbroker.groups.consumer.departures import fence, on_leave
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.groups.consumer.heartbeats import on_heartbeat
from shmbroker.groups.consumer.member import NO_TIMEOUT
from shmbroker.groups.consumer.regexes import resolve_regexes
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import codec, error_codes

START_MS = 1_000_000
NO_SHARD: Any = None
"""A group does not look at the partition that it belongs to."""
SESSION_MS = 45_000
REBALANCE_MS = 60_000
FENCED = (error_codes.FENCED_MEMBER_EPOCH, error_codes.UNKNOWN_MEMBER_ID)

Partition = tuple[bytes, int]


class Cluster:
    """Topics by name and by id, as a metadata image has them."""

    def __init__(self, **topics: int) -> None:
        self.topics_by_name: dict[str, Any] = {}
        self.topics_by_id: dict[bytes, Any] = {}
        self.offset = 0
        self.topics = Topics(self)
        for name, count in topics.items():
            self.put(name, count)

    def put(self, name: str, count: int) -> bytes:
        """Make a topic, or let it grow; its id."""
        self.offset += 1
        known = self.topics_by_name.get(name)
        topic_id = known.topic_id if known else f"{name}-{self.offset}".encode().ljust(16)
        topic = SimpleNamespace(name=name, topic_id=topic_id, partitions=(None,) * count)
        self.topics_by_name[name] = self.topics_by_id[topic_id] = topic
        self.topics.changed_offset = self.offset
        if known is None:
            self.topics.created_offset = self.offset
        return topic_id

    def delete(self, name: str) -> None:
        self.offset += 1
        del self.topics_by_id[self.topics_by_name.pop(name).topic_id]
        self.topics.changed_offset = self.offset

    def id_of(self, name: str) -> bytes:
        return self.topics_by_name[name].topic_id


class Room:
    """A group and what its log says; `is_broken` lets nothing be stored."""

    def __init__(self, settings: ConsumerSettings | None = None, **topics: int) -> None:
        self.cluster = Cluster(**topics)
        self.settings = settings or ConsumerSettings(migration_policy="upgrade")
        self.now_ms = START_MS
        self.ids = 0
        self.group = ConsumerGroup("g", self.settings, self.make_id, NO_SHARD)
        self.log: dict[tuple[Any, ...], Any] = {}
        self.records: list[Any] = []
        self.is_broken = False
        self.changes = 0

    def make_id(self) -> str:
        self.ids += 1
        return f"made-{self.ids}"

    def store(self, change: Any) -> bool:
        if change is None:
            return True
        if self.is_broken and change.records:
            return False
        self.changes += 1
        for record_type, key, value in change.records:
            self.records.append((record_type, key, value))
            self.log[record_type, *key.values()] = (key, value)
        self.group.apply(change)
        if change.wants_regexes:
            self.store(resolve_regexes(self.group, self.now_ms, self.cluster.topics))
        return True

    def beat(self, member_id: str, epoch: int, **more: Any) -> dict[str, Any]:
        """A ConsumerGroupHeartbeat; {"error_code": 16} if it can't be stored."""
        body = {
            "member_id": member_id,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": NO_TIMEOUT,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        } | more
        group, topics = self.group, self.cluster.topics
        if epoch < 0:
            answer, change = on_leave(group, member_id, body["instance_id"], epoch, topics)
        else:
            answer, change = on_heartbeat(group, body, "client", "/host", self.now_ms, topics)
        return answer if self.store(change) else {"error_code": error_codes.NOT_COORDINATOR}

    def join(self, member_id: str, *topics: str, **more: Any) -> dict[str, Any]:
        body = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": list(topics),
            "topic_partitions": [],
        }
        return self.beat(member_id, 0, **(body | more))

    def classic_join(
        self,
        member_id: str,
        *topics: str,
        owned: Any = (),
        rack: str | None = None,
        version: int = 3,
        **more: Any,
    ) -> Any:
        rows = [{"topic": topic, "partitions": list(each)} for topic, each in owned]
        message = {"topics": list(topics), "owned_partitions": rows, "rack_id": rack}
        metadata = struct.pack(">h", 3) + codec.encode("ConsumerProtocolSubscription", 3, message)
        body = {
            "member_id": member_id,
            "group_instance_id": None,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        } | more
        topics_now = self.cluster.topics
        answer, change = on_classic_join(
            self.group, body, version, "client", "/host", self.now_ms, topics_now
        )
        return answer if self.store(change) else {"error_code": error_codes.NOT_COORDINATOR}

    def wait(self, ms: int) -> None:
        """Let time pass, with every timer at its time."""
        end = self.now_ms + ms
        while self.group.wake_ms <= end:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            due = self.group.due(self.now_ms)
            if due:
                self.store(fence(self.group, due, self.cluster.topics))
        self.now_ms = end

    def restart(self) -> None:
        """The same group out of its log, in no particular order."""
        self.group = self.loaded()
        self.group.begin_sessions(self.now_ms)

    def loaded(self) -> ConsumerGroup:
        group = ConsumerGroup("g", self.settings, self.make_id, NO_SHARD)
        for (record_type, *_), (key, value) in sorted(self.log.items(), key=str, reverse=True):
            if value is not None:
                group.replay(record_type, key, value)
        return group

    def check(self) -> None:
        """What must hold at every moment."""
        group = self.group
        assert group.epoch >= group.assignment_epoch
        owners: dict[Partition, str] = {}
        for member in group.members.values():
            assert member.epoch <= group.assignment_epoch
            for assignment in (member.assigned, member.revoking):
                for topic_id, partitions in assignment.items():
                    for partition in partitions:
                        assert (topic_id, partition) not in owners, "with two members"
                        owners[topic_id, partition] = member.member_id
        known = {
            (topic_id, partition): member_id
            for topic_id, by_partition in group.owners.items()
            for partition, member_id in by_partition.items()
        }
        assert owners == known
        again = self.loaded()
        for name in ("epoch", "assignment_epoch", "metadata_hash", "targets", "static_members",
                     "owners"):  # fmt: skip
            assert getattr(group, name) == getattr(again, name), name
        for name in ("counts", "resolved", "held_bytes"):
            assert getattr(group.regexes, name) == getattr(again.regexes, name), name
        assert group.members.keys() == again.members.keys()
        assert all(member.is_like(again.members[each]) for each, member in group.members.items())
        assert group.wake_ms <= min(
            (member.next_deadline_ms() for member in group.members.values()), default=NEVER_MS
        )

    def shares(self) -> dict[str, set[Partition]]:
        """What each member has."""
        return {
            each: {(t, p) for t, ps in member.assigned.items() for p in ps}
            for each, member in self.group.members.items()
        }


class Client:
    """A consumer as the libraries write them: gives up what it is told to, then says so."""

    def __init__(self, room: Room, name: str, topics: list[str], **more: Any) -> None:
        self.room = room
        self.name = name
        self.topics = topics
        self.more = more
        self.epoch = 0
        self.owned: set[Partition] = set()
        self.has_news = False
        self.last_epoch = 0

    def rows(self) -> list[dict[str, Any]]:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            by_topic.setdefault(topic_id, []).append(partition)
        return [{"topic_id": each, "partitions": found} for each, found in by_topic.items()]

    def beat(self, is_answer_lost: bool = False) -> int:
        """A heartbeat, and what the answer asks for; its error code."""
        identity = {key: self.more[key] for key in self.more if key == "instance_id"}
        if self.epoch == 0:
            self.owned.clear()
            answer = self.room.join(self.name, *self.topics, **self.more)
        elif self.has_news:
            answer = self.room.beat(
                self.name,
                self.epoch,
                rebalance_timeout_ms=REBALANCE_MS,
                subscribed_topic_names=self.topics,
                topic_partitions=self.rows(),
                **identity,
            )
        else:
            answer = self.room.beat(self.name, self.epoch, **identity)
        if is_answer_lost:
            self.has_news = True
            return 0
        error = answer.get("error_code", 0)
        if error in FENCED:
            self.epoch = 0
            self.owned.clear()
        elif not error:
            assert answer["member_epoch"] >= self.epoch
            self.epoch = answer["member_epoch"]
            self.has_news = False
            assignment = answer.get("assignment")
            if assignment is not None:
                wanted = {
                    (row["topic_id"], partition)
                    for row in assignment["topic_partitions"]
                    for partition in row["partitions"]
                }
                self.has_news = wanted != self.owned
                self.owned = wanted
        return error

    def leave(self) -> None:
        self.room.beat(self.name, -1, **{k: v for k, v in self.more.items() if k == "instance_id"})
        self.epoch = 0
        self.owned.clear()
