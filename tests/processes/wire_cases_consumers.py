"""Groups of the new consumer protocol (KIP-848), and their move from the classic one, on both
brokers."""

import struct
from collections.abc import Iterator
from typing import Any

from shmbroker import clock
from shmbroker.wire import codec
from tests.processes.wire_cases import Answers, scenario, versions
from tests.processes.wire_side import Side
from tests.support.waiting import wait_until

# ── groups of the new consumer protocol ─────────────────────────────────────────────────────────


class Talk:
    """Members of one group, whose heartbeats have ids and epochs that are made up by the case."""

    def __init__(self, side: Side, group: str, version: int) -> None:
        self.side = side
        self.group = side.name(f"{group}{version}")
        self.version = version
        body = {"key": self.group} if version == 0 else {"key_type": 0, "key": self.group}
        while side.ask("FindCoordinator", min(version, 1), body).get("error_code"):
            pass

    def beat(self, member_id: str, epoch: int, **more: Any) -> Any:
        body = {"group_id": self.group, "member_id": member_id, "member_epoch": epoch} | more
        answer = self.side.ask("ConsumerGroupHeartbeat", self.version, body)
        return in_order(answer)

    def join(self, member_id: str, *topics: str, **more: Any) -> Any:
        """With epoch 0; subscribed to the topics."""
        body = {
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
            "subscribed_topic_names": list(topics),
        }
        return self.beat(member_id, 0, **(body | more))

    def until(self, member_id: str, epoch: int) -> Any:
        """The first answer that brings an assignment, or an error."""
        deadline = clock.monotonic() + 20
        while True:
            answer = self.beat(member_id, epoch)
            if "assignment" in answer or "error_code" in answer or clock.monotonic() > deadline:
                return answer

    def once(self, member_id: str, epoch: int, group_epoch: int) -> Any:
        """What a heartbeat is answered once the group has come to an epoch."""

        def has_come() -> bool:
            self.beat(member_id, epoch)
            return self.described(1)["groups"][0].get("group_epoch") == group_epoch

        wait_until(has_come, f"group epoch {group_epoch}", 20)
        return self.beat(member_id, epoch)

    def owns(self, topic: str, *partitions: int) -> list[dict[str, Any]]:
        if not partitions:
            return []
        return [{"topic_id": self.side.topics[topic], "partitions": list(partitions)}]

    def described(self, version: int | None = None) -> Any:
        body = {"group_ids": [self.group]}
        version = self.version if version is None else version
        return in_order(self.side.ask("ConsumerGroupDescribe", version, body))

    def commit(self, member_id: str, epoch: int, topic: str, version: int = 9) -> Any:
        row = {"partition_index": 0, "committed_offset": 1}
        body = {
            "group_id": self.group,
            "member_id": member_id,
            "generation_id_or_member_epoch": epoch,
            "topics": [{"name": topic, "partitions": [row]}],
        }
        return self.side.ask("OffsetCommit", version, body)

    def fetch(self, member_id: str | None, epoch: int, topic: str) -> Any:
        topics = [{"name": topic, "partition_indexes": [0]}]
        group = {"group_id": self.group, "topics": topics}
        body = {"groups": [group | {"member_id": member_id, "member_epoch": epoch}]}
        return self.side.ask("OffsetFetch", 9, body)


def in_order(answer: Any) -> Any:
    """Members by id, topics by name, partitions by number; ids that the broker made are words."""
    if isinstance(answer, list):
        rows = [in_order(row) for row in answer]
        return sorted(rows, key=lambda row: str(row.get("member_id", row.get("topic_id", "")))
                      if isinstance(row, dict) else row)  # fmt: skip
    if isinstance(answer, dict):
        return {key: in_order(value) for key, value in answer.items()}
    return answer


@scenario
def consumer_group_heartbeat(side: Side) -> Answers:
    """Requests that are refused, and how a member comes, stays and goes."""
    topic = side.topic("read", 4)
    for version in versions("ConsumerGroupHeartbeat"):
        talk = Talk(side, "heartbeat", version)
        joining = {"rebalance_timeout_ms": 1, "topic_partitions": [], "subscribed_topic_names": []}
        for name, body in {
            "group id empty": {"group_id": ""},
            "group id blank": {"group_id": " \t"},
            "instance id empty": {"instance_id": ""},
            "rack id empty": {"rack_id": ""},
            "no rebalance timeout": {"rebalance_timeout_ms": -1},
            "no partitions": {"topic_partitions": None},
            "some partitions": {"topic_partitions": talk.owns(topic, 1)},
            "no subscription": {"subscribed_topic_names": None},
            "assignor unknown": {"server_assignor": "cooperative"},
            "assignor empty": {"server_assignor": ""},
        }.items():
            yield f"join, {name}", version, talk.beat("m", 0, **(joining | body))
        yield "epoch -3", version, talk.beat("m", -3)
        yield "epoch -2 of nobody", version, talk.beat("m", -2)
        yield "epoch -2 in no group", version, talk.beat("m", -2, instance_id="i")
        yield "epoch -1 in no group", version, talk.beat("m", -1)
        yield "epoch 1 in no group", version, talk.beat("m", 1)
        yield "no member id, epoch 1", version, talk.beat("", 1)
        yield "no member id, epoch -1", version, talk.beat("", -1)
        if version:
            yield "no member id", version, talk.join("", topic)
            yield "expression malformed", version, talk.join("m", subscribed_topic_regex="a(")
            yield "group after that", version, talk.described()
        yield "first join", version, talk.join("m", topic, rack_id="rack")
        yield "described", version, talk.described()
        yield "nothing new", version, talk.beat("m", 1)
        more = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic]}
        answer = talk.beat("m", 1, topic_partitions=talk.owns(topic, 0, 1, 2, 3), **more)
        yield "all said again", version, answer
        yield "epoch too high", version, talk.beat("m", 2)
        yield "epoch before, owning nothing", version, talk.beat("m", 0, topic_partitions=[])
        yield "joins again", version, talk.join("m", topic)
        yield "stranger", version, talk.beat("other", 1)
        yield "instance id of nobody", version, talk.beat("m", 1, instance_id="i")
        yield "another rack", version, talk.beat("m", 1, rack_id="rack2")
        yield "another assignor", version, talk.beat("m", 1, server_assignor="range")
        yield "no such assignor", version, talk.beat("m", 1, server_assignor="best")
        yield "another timeout", version, talk.beat("m", 1, rebalance_timeout_ms=50_000)
        unknown = side.name("unknown")
        answer = talk.beat("m", 1, subscribed_topic_names=[topic, unknown])
        yield "another topic, which isn't there", version, answer
        yield "nothing more to read", version, talk.beat("m", 2, subscribed_topic_names=[])
        yield "still owning", version, talk.beat("m", 2, topic_partitions=talk.owns(topic, 0))
        yield "described while it holds on", version, talk.described()
        yield "given up", version, talk.beat("m", 2, topic_partitions=[])
        yield "one epoch behind, nothing owned", version, talk.beat("m", 2, topic_partitions=[])
        yield "one epoch behind, silent", version, talk.beat("m", 2)
        answer = talk.beat("m", 2, topic_partitions=talk.owns(topic, 0))
        yield "one epoch behind, owning another's", version, answer
        yield "commit by a stranger", version, talk.commit("other", 3, topic)
        yield "commit one epoch behind", version, talk.commit("m", 2, topic)
        yield "commit", version, talk.commit("m", 3, topic)
        yield "commit in an old version", version, talk.commit("m", 3, topic, 8)
        yield "commit of nobody", version, talk.commit("", -1, topic)
        yield "fetch by a stranger", version, talk.fetch("other", 3, topic)
        yield "fetch one epoch behind", version, talk.fetch("m", 2, topic)
        yield "fetch", version, talk.fetch("m", 3, topic)
        yield "fetch of nobody", version, talk.fetch(None, -1, topic)
        yield "leave of a stranger", version, talk.beat("other", -1)
        body = {"groups": [talk.group]}
        for other in (5, 6):
            answer = side.ask("DescribeGroups", other, body)
            yield f"as a classic group, version {other}", version, answer
        yield "delete", version, side.ask("DeleteGroups", 2, {"groups_names": [talk.group]})
        yield "leave", version, talk.beat("m", -1)
        yield "leave again", version, talk.beat("m", -1)
        yield "described when empty", version, talk.described()
        yield "commit of nobody when empty", version, talk.commit("", -1, topic)
        yield "a stranger's when empty", version, talk.beat("m", 4)
        yield "comes back", version, talk.join("m", topic)
        yield "leaves", version, talk.beat("m", -1)
        row = {"name": topic, "partitions": [{"partition_index": 0}]}
        body = {"group_id": talk.group, "topics": [row]}
        yield "offsets deleted", version, side.ask("OffsetDelete", 0, body)
        yield "deleted", version, side.ask("DeleteGroups", 2, {"groups_names": [talk.group]})
        yield "described when deleted", version, talk.described()


@scenario
def consumer_group_members(side: Side) -> Answers:
    """Partitions go from member to member; static members; topics that come and grow."""
    topic, second = side.topic("six", 6), side.topic("two", 2)
    for version in versions("ConsumerGroupHeartbeat"):
        talk = Talk(side, "members", version)
        yield "first", version, talk.join("a", topic)
        yield "second", version, talk.join("b", topic)
        yield "second waits", version, talk.beat("b", 2)
        yield "described", version, talk.described()
        yield "first is told", version, talk.beat("a", 1)
        yield "first is told once", version, talk.beat("a", 1)
        yield "second still waits", version, talk.beat("b", 2)
        yield "described, revoking", version, talk.described()
        first = talk.owns(topic, 0, 1, 2)
        yield "first gives up", version, talk.beat("a", 1, topic_partitions=first)
        yield "second gets", version, talk.beat("b", 2)
        yield "described, stable", version, talk.described()
        yield "third", version, talk.join("c", topic)
        yield "all of them told: first", version, talk.beat("a", 2)
        yield "all of them told: second", version, talk.beat("b", 2)
        yield "second gives up", version, talk.beat("b", 2, topic_partitions=talk.owns(topic, 3, 4))
        yield "third gets some", version, talk.beat("c", 3)
        yield "described, some", version, talk.described()
        yield "first leaves", version, talk.beat("a", -1)
        yield "third gets more", version, talk.beat("c", 3)
        yield "second as well", version, talk.beat("b", 3)
        yield "described, two", version, talk.described()
        yield "second turns to another", version, talk.beat("b", 4, subscribed_topic_names=[second])
        yield "it has given up", version, talk.beat("b", 4, topic_partitions=[])
        yield "third gets all", version, talk.beat("c", 4)
        yield "described, each its own", version, talk.described()
        yield "third leaves", version, talk.beat("c", -1)
        yield "second leaves", version, talk.beat("b", -1)

        talk = Talk(side, "static", version)
        yield "static", version, talk.join("a", topic, instance_id="i")
        yield "static again", version, talk.join("a", topic, instance_id="i")
        yield "static, another member", version, talk.join("b", topic, instance_id="i")
        yield "static, not saying so", version, talk.beat("a", 1)
        yield "another member's heartbeat", version, talk.beat("b", 1, instance_id="i")
        yield "another member leaves", version, talk.beat("b", -1, instance_id="i")
        yield "static goes away", version, talk.beat("a", -2, instance_id="i")
        yield "described, away", version, talk.described()
        yield "heartbeat of one who is away", version, talk.beat("a", 1, instance_id="i")
        yield "its successor", version, talk.join("b", topic, instance_id="i")
        yield "the one before", version, talk.beat("a", 1, instance_id="i")
        yield "the successor's", version, talk.beat("b", 1, instance_id="i")
        yield "described, succeeded", version, talk.described()
        yield "static leaves", version, talk.beat("b", -1, instance_id="i")
        yield "described, nobody", version, talk.described()

        talk = Talk(side, "range", version)
        more = {"server_assignor": "range", "instance_id": "1"}
        yield "range", version, talk.join("z", topic, second, **more)
        more = {"server_assignor": "range", "instance_id": "2"}
        yield "range, second", version, talk.join("a", topic, second, **more)
        yield "range, told", version, talk.beat("z", 1, instance_id="1")
        yield "range, described", version, talk.described()

        talk = Talk(side, "grow", version)
        late = side.name(f"late{version}")
        yield "topic to come", version, talk.join("a", late)
        side.topic(f"late{version}", 2)
        yield "topic there", version, talk.until("a", 1)
        body = {"topics": [{"name": late, "count": 3, "assignments": None}], "timeout_ms": 20_000}
        yield "more partitions", version, side.ask("CreatePartitions", 3, body)
        yield "topic grown", version, talk.until("a", 2)
        side.ask("DeleteTopics", 6, {"topics": [{"name": late}], "timeout_ms": 20_000})
        yield "topic gone", version, talk.once("a", 3, group_epoch=4)
        yield "described, gone", version, talk.described()
        yield "given up what is gone", version, talk.beat("a", 3, topic_partitions=[])
        yield "nothing left", version, talk.beat("a", 4)

    talk = Talk(side, "expression", 1)
    side.topic("match-1")
    regex = side.prefix + "match-[0-9]+"
    more = {"subscribed_topic_names": None, "subscribed_topic_regex": regex}
    yield "expression", 1, talk.join("a", **more)
    yield "expression resolved", 1, talk.until("a", 1)
    yield "expression described", 1, talk.described()
    yield "same expression", 1, talk.join("b", **more)
    yield "topics as well", 1, talk.beat("b", 3, subscribed_topic_names=[topic, second])
    yield "malformed", 1, talk.beat("b", 4, subscribed_topic_regex="(?=a)")
    yield "no expression any more", 1, talk.beat("b", 4, subscribed_topic_regex="")
    yield "described, one expression", 1, talk.described()
    yield "leaves with it", 1, talk.beat("a", -1)
    yield "described, no expression", 1, talk.described()


def embedded(name: str, version: int, message: dict[str, Any]) -> bytes:
    """What classic consumers tell each other."""
    return struct.pack(">h", version) + codec.encode("ConsumerProtocol" + name, version, message)


class ClassicTalk(Talk):
    """Classic members of the group, whose broker-made ids are words in the answers.

    is_mixed: in a consumer group they may bring their ids.
    """

    def __init__(self, side: Side, group: str, is_mixed: bool = False) -> None:
        super().__init__(side, group, 1)
        self.is_mixed = is_mixed
        self.ids: dict[str, str] = {}

    def classic(self, api: str, version: int, member: str, generation_id: int, **more: Any) -> Any:
        body = {"group_id": self.group, "member_id": self.ids.get(member, member)}
        if api == "JoinGroup":
            body |= {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 60_000}
            body |= {"protocol_type": "consumer"}
        else:
            body |= {"generation_id": generation_id}
        if api == "SyncGroup":
            body |= {"protocol_type": "consumer", "protocol_name": "range"}
        return self.plain(self.side.ask(api, version, body | more))

    def subscribe(self, member: str, *topics: str, owned: Any = (), **more: Any) -> Any:
        """JoinGroup, twice if an id is asked for."""
        message = {"topics": list(topics), "owned_partitions": list(owned)}
        protocol = {"name": "range", "metadata": embedded("Subscription", 1, message)}
        body = {"protocols": [protocol]} | more
        known = {} if member in self.ids or self.is_mixed else {"member_id": ""}
        answer = self.classic("JoinGroup", 9, member, 0, **(known | body))
        if answer.get("error_code") == 79:
            self.ids[member] = answer["member_id"]
            answer = self.classic("JoinGroup", 9, member, 0, **body)
        return answer

    def plain(self, answer: Any) -> Any:
        words = {member_id: word for word, member_id in self.ids.items()}

        def spelt(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: spelt(item) for key, item in value.items()}
            if isinstance(value, list):
                return in_order([spelt(item) for item in value])
            return words.get(value, value)

        return spelt(answer)

    def shown(self) -> Iterator[tuple[str, Any]]:
        """The group as both kinds of describe see it."""
        yield "as a consumer group", self.plain(self.described(1))
        body = {"groups": [self.group]}
        yield "as a classic one", self.plain(self.side.ask("DescribeGroups", 5, body))


@scenario
def consumer_group_migration(side: Side) -> Answers:
    """Members of both protocols in one group, and groups that change theirs."""
    topic = side.topic("four", 4)
    owned = [{"topic": topic, "partitions": [0, 1]}]
    talk = ClassicTalk(side, "mixed", is_mixed=True)
    yield "new member", 1, talk.join("new", topic)
    yield "other protocol type", 1, talk.subscribe("old", topic, protocol_type="connect")
    yield "no protocols", 1, talk.subscribe("old", topic, protocols=[])
    bad = [{"name": "range", "metadata": b"\0\1\0"}]
    yield "malformed", 1, talk.subscribe("old", topic, protocols=bad)
    yield "classic member", 1, talk.subscribe("old", topic)
    yield "syncs", 1, talk.classic("SyncGroup", 5, "old", 2)
    yield "syncs with another", 1, talk.classic("SyncGroup", 5, "old", 2, protocol_name="best")
    yield "syncs too early", 1, talk.classic("SyncGroup", 5, "old", 3)
    yield "the new one syncs", 1, talk.classic("SyncGroup", 5, "new", 1)
    yield "the new one in the old way", 1, talk.classic("Heartbeat", 4, "new", 1)
    yield "heartbeat, waiting", 1, talk.classic("Heartbeat", 4, "old", 2)
    for name, answer in talk.shown():
        yield f"mixed {name}", 1, answer
    yield "new one told", 1, talk.beat("new", 1)
    yield "new one gives up", 1, talk.beat("new", 1, topic_partitions=talk.owns(topic, 0, 1))
    yield "heartbeat, all free", 1, talk.classic("Heartbeat", 4, "old", 2)
    yield "joins again", 1, talk.subscribe("old", topic)
    yield "syncs again", 1, talk.classic("SyncGroup", 5, "old", 2)
    yield "heartbeat, stable", 1, talk.classic("Heartbeat", 4, "old", 2)
    yield "heartbeat of before", 1, talk.classic("Heartbeat", 4, "old", 1)
    yield "heartbeat of a stranger", 1, talk.classic("Heartbeat", 4, "x", 2)
    yield "commit", 1, talk.commit("old", 2, topic, 8)
    yield "commit of before", 1, talk.commit("old", 1, topic, 9)
    yield "second new member", 1, talk.join("newer", topic)
    yield "heartbeat, rebalance", 1, talk.classic("Heartbeat", 4, "old", 2)
    yield "syncs, rebalance", 1, talk.classic("SyncGroup", 5, "old", 2)
    holding = [{"topic": topic, "partitions": [2, 3]}]
    yield "joins, holding on", 1, talk.subscribe("old", topic, owned=holding)
    yield "heartbeat, holding on", 1, talk.classic("Heartbeat", 4, "old", 2)
    for name, answer in talk.shown():
        yield f"holding on {name}", 1, answer
    yield "second new one leaves", 1, talk.beat("newer", -1)
    member = {"member_id": "x"}
    yield "a stranger leaves", 1, talk.classic("LeaveGroup", 5, "", 0, members=[member])
    member = {"member_id": "new"}
    answer = talk.classic("LeaveGroup", 5, "", 0, members=[member])
    yield "last new one leaves in the old way", 1, answer
    for name, answer in talk.shown():
        yield f"downgraded {name}", 1, answer
    yield "heartbeat, downgraded", 1, talk.classic("Heartbeat", 4, "old", 4)
    yield "joins, downgraded", 1, talk.subscribe("old", topic)

    talk = ClassicTalk(side, "upgraded")
    yield "classic group", 1, talk.subscribe("old", topic)
    message = {"assigned_partitions": [{"topic": topic, "partitions": [0, 1, 2, 3]}]}
    rows = [{"member_id": talk.ids["old"], "assignment": embedded("Assignment", 1, message)}]
    yield "classic assignment", 1, talk.classic("SyncGroup", 5, "old", 1, assignments=rows)
    yield "new one without joining", 1, talk.beat("new", 1)
    yield "new one leaves before", 1, talk.beat("new", -1)
    yield "new one joins", 1, talk.join("new", topic)
    for name, answer in talk.shown():
        yield f"upgraded {name}", 1, answer
    yield "told", 1, talk.classic("Heartbeat", 4, "old", 1)
    owned = [{"topic": topic, "partitions": [0, 1, 2, 3]}]
    yield "joins with all", 1, talk.subscribe("old", topic, owned=owned)
    yield "gets its part", 1, talk.classic("SyncGroup", 5, "old", 1)
    yield (
        "joins with half",
        1,
        talk.subscribe("old", topic, owned=[owned[0] | {"partitions": [0, 1]}]),
    )
    yield "keeps its part", 1, talk.classic("SyncGroup", 5, "old", 2)
    yield "new one gets the rest", 1, talk.beat("new", 2)
    member = {"member_id": talk.ids["old"]}
    answer = talk.classic("LeaveGroup", 5, "", 0, members=[member])
    yield "classic one leaves", 1, answer
    yield "new one gets all", 1, talk.beat("new", 2)
    yield "new one leaves", 1, talk.beat("new", -1)
    for name, answer in talk.shown():
        yield f"empty {name}", 1, answer
    yield "a known member's join", 1, talk.subscribe("", topic, member_id="x")
    talk.ids.clear()
    yield "classic again", 1, talk.subscribe("old", topic)

    talk = ClassicTalk(side, "emptied")
    yield "offsets only", 1, talk.commit("", -1, topic)
    yield "then a new member", 1, talk.join("new", topic)
    yield "with its offset", 1, talk.fetch(None, -1, topic)

    talk = ClassicTalk(side, "swapped")
    yield "static new one", 1, talk.join("new", topic, instance_id="i")
    yield "second static new one", 1, talk.join("other", topic, instance_id="j")
    more = {"group_instance_id": "i"}
    answer = talk.subscribe("i2", topic, **more)
    talk.ids["i2"] = answer["member_id"]
    yield "taken over by a classic one", 1, talk.plain(answer)
    answer = talk.subscribe("j2", topic, group_instance_id="j")
    talk.ids["j2"] = answer["member_id"]
    yield "so is the second", 1, talk.plain(answer)
    for name, answer in talk.shown():
        yield f"swapped {name}", 1, answer
