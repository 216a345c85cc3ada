"""The state machine of a consumer group of the new protocol: single steps, any steps, many members.

What Apache Kafka answers to sequences of requests is compared in
tests/processes/wire_cases_consumers.py.
"""

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.answers import fault_in_heartbeat
from shmbroker.groups.consumer.change import ConsumerSettings
from shmbroker.groups.consumer.classic_members import on_classic_heartbeat
from shmbroker.groups.consumer.departures import on_classic_leave
from shmbroker.groups.consumer.regexes import resolve_regexes
from shmbroker.groups.consumer.targets import assignor_of
from shmbroker.wire import error_codes
from tests.support.examples import examples
from tests.unit.groups.consumers_at_work import REBALANCE_MS, SESSION_MS, Client, Room


def partitions(answer: dict[str, Any]) -> list[int]:
    return [p for row in answer["assignment"]["topic_partitions"] for p in row["partitions"]]


# ── heartbeats ────────────────────────────────────────────────────────────────────────────────────


def test_a_heartbeat_without_news_stores_nothing() -> None:
    room = Room(t=2)
    room.join("m", "t")
    records, changes = len(room.records), room.changes
    assert room.beat("m", 1) == {"member_id": "m", "member_epoch": 1, "heartbeat_interval_ms": 5000}
    assert (len(room.records), room.changes) == (records, changes)


def test_a_member_is_fenced_when_it_is_silent_for_a_session() -> None:
    room = Room(t=2)
    room.join("m", "t")
    room.wait(SESSION_MS - 1)
    assert room.beat("m", 1)["member_epoch"] == 1
    room.wait(SESSION_MS - 1)
    assert "m" in room.group.members
    room.wait(1)
    assert room.beat("m", 1)["error_code"] == error_codes.UNKNOWN_MEMBER_ID
    assert room.group.state == "Empty"


def test_who_does_not_give_up_in_time_is_fenced() -> None:
    room = Room(t=2)
    room.join("slow", "t")
    room.join("new", "t")
    assert partitions(room.beat("slow", 1)) == [0]
    for _ in range(REBALANCE_MS // 1000 - 1):
        room.wait(1000)
        room.beat("slow", 1)
        room.beat("new", 2)
    assert "slow" in room.group.members
    room.wait(1000)
    assert list(room.group.members) == ["new"]
    assert partitions(room.beat("new", 2)) == [0, 1]


def test_an_instance_id_that_its_member_gave_up_is_free() -> None:
    room = Room(t=2)
    room.join("a", "t", instance_id="i")
    room.join("a", "t", instance_id="j")
    assert room.group.static_members == {"j": "a"}
    assert room.beat("a", -1, instance_id="j")["member_epoch"] == -1
    assert partitions(room.join("b", "t", instance_id="i")) == [0, 1]
    room.check()


def test_a_failure_to_store_changes_nothing() -> None:
    room = Room(t=2)
    room.is_broken = True
    assert room.join("m", "t")["error_code"] == error_codes.NOT_COORDINATOR
    assert (room.group.epoch, room.group.members) == (0, {})
    room.is_broken = False
    assert partitions(room.join("m", "t")) == [0, 1]


def test_a_lost_answer_is_given_again() -> None:
    room = Room(t=2)
    room.join("a", "t")
    room.join("b", "t")
    room.beat("a", 1)
    owned = [{"topic_id": room.cluster.id_of("t"), "partitions": [0]}]
    assert room.beat("a", 1, topic_partitions=owned)["member_epoch"] == 2
    assert room.beat("a", 1, topic_partitions=owned)["member_epoch"] == 2
    assert room.beat("a", 1)["error_code"] == error_codes.FENCED_MEMBER_EPOCH


def test_the_group_has_room_for_so_many() -> None:
    room = Room(ConsumerSettings(size_max=1), t=2)
    room.join("a", "t")
    assert room.join("b", "t")["error_code"] == error_codes.GROUP_MAX_SIZE_REACHED
    assert room.join("a", "t")["member_epoch"] == 1


def test_most_members_choose_the_assignor() -> None:
    room = Room(t=2)
    room.join("a", "t", server_assignor="range")
    assert assignor_of(room.group) == "range"
    room.join("b", "t", server_assignor="uniform")
    assert assignor_of(room.group) == "uniform", "of as many votes"
    room.join("c", "t", server_assignor="range")
    assert assignor_of(room.group) == "range"


def test_ranges_follow_instance_ids_and_not_the_member_ids_of_now() -> None:
    room = Room(ConsumerSettings(assignors=("range",), migration_policy="upgrade"), t=2)
    room.join("z", "t", instance_id="i")
    room.join("a", "t", instance_id="j")
    topic_id = room.cluster.id_of("t")
    assert room.group.targets == {"z": {topic_id: {0}}, "a": {topic_id: {1}}}


def test_a_state_that_is_not_known_makes_the_member_join_anew() -> None:
    room = Room(t=2)
    room.join("m", "t")
    member = room.group.members["m"].copy()
    member.state = 77
    room.group.replay(*stored.current_record("g", member))
    assert room.beat("m", 1)["error_code"] == error_codes.FENCED_MEMBER_EPOCH
    assert partitions(room.join("m", "t")) == [0, 1]


# ── topics and expressions ────────────────────────────────────────────────────────────────────────


def test_topics_that_come_and_grow_are_assigned_with_the_next_heartbeat() -> None:
    room = Room()
    assert partitions(room.join("m", "late")) == []
    room.cluster.put("late", 1)
    assert partitions(room.beat("m", 1)) == [0]
    room.cluster.put("late", 2)
    assert partitions(room.beat("m", 2)) == [0, 1]
    room.cluster.put("other", 1)
    assert room.beat("m", 3)["member_epoch"] == 3


def test_a_topic_made_anew_is_another_topic() -> None:
    room = Room(t=1)
    room.join("m", "t")
    room.cluster.delete("t")
    room.cluster.put("t", 1)
    assert partitions(room.beat("m", 1)) == []
    answer = room.beat("m", 1, topic_partitions=[])
    assert answer["assignment"]["topic_partitions"][0]["topic_id"] == room.cluster.id_of("t")


def test_expressions_are_resolved_and_followed() -> None:
    room = Room(**{"red-1": 1, "blue": 1})
    more = {"subscribed_topic_names": None, "subscribed_topic_regex": "red-.*"}
    assert partitions(room.join("m", **more)) == []
    assert partitions(room.beat("m", 1)) == [0]
    assert room.group.is_subscribed("red-1") and not room.group.is_subscribed("blue")
    room.cluster.put("red-2", 2)
    assert "assignment" not in room.beat("m", 2), "not within ten seconds"
    room.wait(10_000)
    assert not room.group.regexes.is_due(room.now_ms, room.cluster.topics)
    room.wait(1)
    assert room.group.regexes.is_due(room.now_ms, room.cluster.topics)
    assert "assignment" not in room.beat("m", 2), "looked up after this one"
    assert sorted(partitions(room.beat("m", 2))) == [0, 0, 1]
    room.beat("m", 3, subscribed_topic_regex="")
    assert (room.group.regexes.resolved, room.group.regexes.counts) == ({}, {})


def test_an_expression_that_comes_soon_after_another_is_resolved_when_it_is_time() -> None:
    room = Room(red=1, blue=1)
    room.join("a", subscribed_topic_names=None, subscribed_topic_regex="red")
    room.beat("a", 1)
    room.wait(5000)
    room.join("b", subscribed_topic_names=None, subscribed_topic_regex="blue")
    room.wait(5000)
    room.beat("b", room.group.members["b"].epoch)
    assert not room.group.is_subscribed("blue")
    room.wait(1)
    room.beat("b", room.group.members["b"].epoch)
    assert room.group.is_subscribed("blue") and room.group.is_subscribed("red")


def test_who_drops_its_expression_reads_what_it_names_at_once() -> None:
    room = Room(red=1, blue=1)
    room.join("a", "blue", subscribed_topic_regex="red")
    room.beat("a", 1)
    assert len(room.shares()["a"]) == 2
    epoch = room.group.epoch
    room.beat("a", epoch, subscribed_topic_regex="")
    assert room.group.epoch == epoch + 1
    room.beat("a", epoch, topic_partitions=[])
    assert room.group.targets["a"] == {room.cluster.id_of("blue"): {0}}


def test_an_expression_finds_only_what_who_asks_may_see() -> None:
    room = Room(**{"red-1": 1, "red-2": 1})
    room.join("m", subscribed_topic_names=None, subscribed_topic_regex="red-.*")
    change = resolve_regexes(room.group, room.now_ms, room.cluster.topics, "red-1".__eq__)
    assert room.store(change)
    assert room.group.is_subscribed("red-1") and not room.group.is_subscribed("red-2")


def test_an_expression_may_not_look_ahead() -> None:
    room = Room()
    for regex in ("a(", "(?=a)", "(a)\\1"):
        answer = room.join("m", subscribed_topic_names=None, subscribed_topic_regex=regex)
        assert answer["error_code"] == error_codes.INVALID_REGULAR_EXPRESSION
        said = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: "
        assert answer["error_message"].startswith(said)
    assert room.group.members == {}


def test_an_assignor_that_is_not_there_is_named_beside_those_that_are() -> None:
    body = dict.fromkeys(("group_id", "member_id", "instance_id", "rack_id"), "a")
    joining = {"member_epoch": 0, "rebalance_timeout_ms": 1, "topic_partitions": []}
    names = {"subscribed_topic_names": ["t"], "server_assignor": "nope"}
    said = "ServerAssignor nope is not supported. Supported assignors: uniform, range."
    fault = fault_in_heartbeat(body | joining | names, 1, ("uniform", "range"))
    assert fault == (error_codes.UNSUPPORTED_ASSIGNOR, said)


# ── after a restart ───────────────────────────────────────────────────────────────────────────────


def test_a_restart_goes_on_where_it_was() -> None:
    room = Room(t=4)
    room.join("a", "t", instance_id="i")
    room.join("b", "t", rack_id="r", server_assignor="uniform")
    room.beat("a", 1)
    room.restart()
    assert room.group.state == "Reconciling"
    owned = [{"topic_id": room.cluster.id_of("t"), "partitions": [0, 1]}]
    assert room.beat("a", 1, topic_partitions=owned)["member_epoch"] == 2
    assert partitions(room.beat("b", 2)) == [2, 3]
    room.restart()
    assert room.group.state == "Stable"
    room.wait(SESSION_MS)
    assert room.group.state == "Empty"
    room.check()


def test_who_holds_on_over_a_restart_has_its_whole_time_again() -> None:
    room = Room(t=2)
    room.join("slow", "t")
    room.join("new", "t")
    room.beat("slow", 1)
    room.wait(30_000)
    room.restart()
    for _ in range(2):
        room.wait(REBALANCE_MS // 2 - 1)
        room.beat("slow", 1)
        room.beat("new", 2)
    room.wait(1)
    assert "slow" in room.group.members
    room.wait(1)
    assert list(room.group.members) == ["new"]


def test_a_tombstone_of_an_older_brokers_record_follows() -> None:
    room = Room(t=1)
    room.join("m", "t")
    room.group.replay(stored.PARTITION_METADATA, {"group_id": "g"}, {"topics": []})
    room.cluster.put("t", 2)
    room.beat("m", 1)
    assert (stored.PARTITION_METADATA, {"group_id": "g"}, None) in room.records


@pytest.mark.parametrize("epoch", [0, 1, -1, -2])
def test_a_heartbeat_without_anything_is_refused_before_a_group_is_looked_for(epoch: int) -> None:
    body = dict.fromkeys(("instance_id", "rack_id", "server_assignor", "topic_partitions",
                          "subscribed_topic_names", "subscribed_topic_regex"))  # fmt: skip
    body |= {"group_id": "", "member_id": "", "member_epoch": epoch, "rebalance_timeout_ms": -1}
    for version in (0, 1):
        found = fault_in_heartbeat(body, version, ("uniform",))
        assert found is not None and found[0] == error_codes.INVALID_REQUEST


JOINS = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout_ms": REBALANCE_MS,
    "topic_partitions": [],
    "subscribed_topic_names": ["t"],
    "subscribed_topic_regex": None,
    "server_assignor": None,
}
STAYS = {"member_epoch": 1, "rebalance_timeout_ms": -1} | dict.fromkeys(
    ("topic_partitions", "subscribed_topic_names")
)
INVALID = error_codes.INVALID_REQUEST


@pytest.mark.parametrize(
    ("version", "says", "error"),
    [
        (1, {}, 0),
        (1, STAYS, 0),
        (1, {"member_id": ""}, INVALID),
        (0, {"member_id": ""}, 0),  # it is given one
        (0, STAYS | {"member_id": ""}, INVALID),
        (0, {"member_id": "", "member_epoch": -1}, INVALID),
        (1, {"group_id": " "}, INVALID),
        (1, {"instance_id": ""}, INVALID),
        (1, {"rack_id": " "}, INVALID),
        (1, {"rebalance_timeout_ms": -1}, INVALID),
        (1, {"topic_partitions": None}, INVALID),
        (1, {"topic_partitions": [{"topic_id": b"t", "partitions": [0]}]}, INVALID),
        (1, {"subscribed_topic_names": None}, INVALID),
        (1, {"subscribed_topic_names": None, "subscribed_topic_regex": "t"}, 0),
        (1, {"member_epoch": -1}, 0),
        (1, {"member_epoch": -2}, INVALID),
        (1, {"member_epoch": -2, "instance_id": "i"}, 0),
        (1, {"member_epoch": -3, "instance_id": "i"}, INVALID),
        (1, {"server_assignor": "uniform"}, 0),
        (1, {"server_assignor": "range"}, error_codes.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_what_a_heartbeat_has_to_say(version: int, says: dict[str, Any], error: int) -> None:
    found = fault_in_heartbeat(JOINS | says, version, ("uniform",))
    assert (found[0] if found is not None else 0) == error


# ── any steps ─────────────────────────────────────────────────────────────────────────────────────

NAMES = st.integers(0, 5)


class AnySteps(RuleBasedStateMachine):
    """Members of both protocols come, go, hang and are cut off; the log fails; topics change."""

    @initialize()
    def begin(self) -> None:
        self.room = Room(one=3, two=2)
        self.clients: dict[str, Client] = {}
        self.classic: dict[str, tuple[int, set[Any]]] = {}
        self.epochs: dict[str, int] = {}
        self.last_epoch = 0

    def steady(self) -> bool:
        return not self.room.is_broken

    @rule(name=NAMES, topics=st.sampled_from((["one"], ["one", "two"], ["two", "new"], [])))
    def come(self, name: int, topics: list[str]) -> None:
        more = {"instance_id": f"i{name}"} if name == 5 else {}
        client = self.clients.get(f"m{name}")
        if client is None or client.epoch == 0:
            self.clients[f"m{name}"] = client = Client(self.room, f"m{name}", topics, **more)
        client.topics = topics
        client.has_news = True
        client.beat()

    @rule(name=NAMES, is_lost=st.booleans())
    def beat(self, name: int, is_lost: bool) -> None:
        client = self.clients.get(f"m{name}")
        if client is not None:
            client.beat(is_lost)

    @rule(name=NAMES)
    def leave(self, name: int) -> None:
        client = self.clients.pop(f"m{name}", None)
        if client is not None and self.steady():
            client.leave()

    @rule(name=st.integers(0, 1), topics=st.sampled_from((["one"], ["one", "two"])))
    def come_classic(self, name: int, topics: list[str]) -> None:
        if not self.room.group.members:
            return  # it would be a classic group
        _, owned = self.classic.get(f"c{name}", (0, set()))
        by_topic: dict[str, list[int]] = {}
        for topic_id, partition in owned:
            if topic_id in self.room.cluster.topics_by_id:
                topic = self.room.cluster.topics_by_id[topic_id].name
                by_topic.setdefault(topic, []).append(partition)
        answer = self.room.classic_join(f"c{name}", *topics, owned=by_topic.items())
        if not answer["error_code"]:
            member = self.room.group.members[f"c{name}"]
            mine = {(t, p) for t, ps in member.assigned.items() for p in ps}
            self.classic[f"c{name}"] = (answer["generation_id"], mine)

    @rule(name=st.integers(0, 1))
    def beat_classic(self, name: int) -> None:
        generation, _ = self.classic.get(f"c{name}", (0, set()))
        body = {"member_id": f"c{name}", "group_instance_id": None, "generation_id": generation}
        error = on_classic_heartbeat(self.room.group, body, self.room.now_ms)
        if error == error_codes.UNKNOWN_MEMBER_ID:
            self.classic.pop(f"c{name}", None)

    @rule(ms=st.sampled_from((1000, 20_000, 46_000, 61_000)))
    def wait(self, ms: int) -> None:
        self.room.wait(ms if self.steady() else 1000)

    @rule(count=st.integers(1, 4))
    def grow(self, count: int) -> None:
        known = self.room.cluster.topics_by_name.get("new")
        if known is None or len(known.partitions) < count:
            self.room.cluster.put("new", count)

    @rule()
    @precondition(lambda self: "new" in self.room.cluster.topics_by_name)
    def shrink(self) -> None:
        self.room.cluster.delete("new")

    @rule()
    def restart(self) -> None:
        self.room.restart()

    @rule(is_broken=st.booleans())
    def break_log(self, is_broken: bool) -> None:
        self.room.is_broken = is_broken

    @rule()
    def settle(self) -> None:
        """Left alone, everybody gets a share, and all of it is read."""
        room = self.room
        room.is_broken = False
        for name in list(self.classic):
            room.store(on_classic_leave(room.group, [(name, None)], room.cluster.topics)[1])
        self.classic.clear()
        room.wait(61_000)  # who hangs is gone
        for _ in range(8):
            for client in self.clients.values():
                client.beat()
        group = room.group
        assert group.members.keys() == self.clients.keys()
        assert group.state == ("Stable" if group.members else "Empty")
        wanted = {name for client in self.clients.values() for name in client.topics}
        by_name = room.cluster.topics_by_name
        everything = {
            (by_name[name].topic_id, partition)
            for name in wanted & by_name.keys()
            for partition in range(len(by_name[name].partitions))
        }
        owned = [row for client in self.clients.values() for row in client.owned]
        assert sorted(owned) == sorted(everything)
        for client in self.clients.values():
            topic_ids = {by_name[name].topic_id for name in client.topics if name in by_name}
            assert {topic_id for topic_id, _ in client.owned} <= topic_ids
            assert client.owned == room.shares()[client.name]

    @invariant()
    def holds(self) -> None:
        self.room.check()
        group = self.room.group
        assert group.epoch >= self.last_epoch
        self.last_epoch = group.epoch
        reading: set[Any] = set()
        for client in self.clients.values():
            member = group.members.get(client.name)
            if member is not None and client.epoch == member.epoch:
                assert not reading & client.owned, "two read the same"
                reading |= client.owned


TestAnySteps = AnySteps.TestCase
TestAnySteps.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)


# ── many members ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(2))
def test_a_hundred_members_that_come_go_hang_and_are_fenced(seed: int) -> None:
    chance = random.Random(seed)
    room = Room(**{f"t{each}": 40 for each in range(5)})
    clients: list[Client] = []
    made = 0
    for _ in range(220):
        room.wait(chance.randrange(5000))
        what = chance.random()
        if len(clients) < 100 and what < 0.7:
            topics = [f"t{each}" for each in range(5)]
            if seed == 1:
                topics = chance.sample(topics, 2)
            more = {"instance_id": f"i{made}"} if chance.random() < 0.2 else {}
            clients.append(Client(room, f"m{made}", topics, **more))
            made += 1
        elif what < 0.75 and clients:
            clients.pop(chance.randrange(len(clients))).leave()
        elif what < 0.8 and clients:
            clients.pop(chance.randrange(len(clients)))  # it hangs
        elif what < 0.82:
            room.restart()
        for client in clients:
            if chance.random() < 0.8:
                client.beat(is_answer_lost=chance.random() < 0.05)
        reading: set[Any] = set()
        for client in clients:
            member = room.group.members.get(client.name)
            if member is not None and client.epoch == member.epoch:
                assert not reading & client.owned
                reading |= client.owned
    room.check()
    room.wait(SESSION_MS - 1000)
    for client in clients:
        client.beat()
    room.wait(SESSION_MS - 1000)
    for _ in range(6):
        for client in clients:
            client.beat()
    assert room.group.state == "Stable"
    sizes = [len(client.owned) for client in clients]
    assert sum(sizes) == 200
    if seed != 1:
        assert max(sizes) - min(sizes) <= 1
    room.check()
