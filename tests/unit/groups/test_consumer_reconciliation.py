"""How a member of the new consumer protocol comes to its target, who may commit for it, and what a
restart or a heartbeat of another leaves as it is."""

from typing import Any

import pytest

from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.change import ConsumerSettings
from shmbroker.groups.consumer.classic_members import on_classic_heartbeat, on_classic_sync
from shmbroker.groups.consumer.departures import on_classic_leave
from shmbroker.groups.consumer.heartbeats import on_heartbeat
from shmbroker.groups.group_memory import PROTOCOLS_MAX
from shmbroker.wire import error_codes
from tests.unit.groups.consumers_at_work import NO_SHARD, REBALANCE_MS, SESSION_MS, Room


def having(room: Room, *partitions: int, topic: str = "t") -> list[dict[str, Any]]:
    return [{"topic_id": room.cluster.id_of(topic), "partitions": list(partitions)}]


def held(room: Room, member_id: str, topic: str = "t") -> tuple[set[int], set[int]]:
    """What a member is assigned of a topic, and what it has still to give up."""
    member, topic_id = room.group.members[member_id], room.cluster.id_of(topic)
    return set(member.assigned.get(topic_id, ())), set(member.revoking.get(topic_id, ()))


def two_of_which_one_gives_up() -> Room:
    """Where "a" has been told to keep partition 0; "b" waits for partition 1."""
    room = Room(t=2, u=1)
    room.join("a", "t")
    room.join("b", "t")
    room.beat("a", 1)
    assert held(room, "a") == ({0}, {1})
    return room


# ── giving up ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("says", "epoch"),
    [(None, 1), ((0, 1), 1), ((1,), 1), ((0,), 2), ((), 2)],
)
def test_who_may_still_read_what_it_has_to_give_up_keeps_others_waiting(
    says: tuple[int, ...] | None, epoch: int
) -> None:
    room = two_of_which_one_gives_up()
    owned = None if says is None else having(room, *says)
    assert room.beat("a", 1, topic_partitions=owned)["member_epoch"] == epoch
    assert held(room, "a") == ({0}, {1} if epoch == 1 else set())
    room.beat("b", 2)
    assert held(room, "b") == ({1} if epoch == 2 else set(), set())
    room.check()


def test_who_reads_nothing_gives_up_at_once() -> None:
    room = Room(t=2)
    room.join("a", "t")
    room.join("b", "t")
    assert room.beat("a", 1, topic_partitions=[])["member_epoch"] == 2
    assert held(room, "a") == ({0}, set())


def test_what_was_to_be_given_up_comes_back_when_nobody_wants_it_any_more() -> None:
    room = two_of_which_one_gives_up()
    room.beat("b", -1)
    assert room.beat("a", 1, topic_partitions=having(room, 0))["member_epoch"] == 3
    assert held(room, "a") == ({0, 1}, set())
    room.check()


def test_who_subscribes_to_something_else_while_it_gives_up_gives_up_all() -> None:
    room = two_of_which_one_gives_up()
    more = {"subscribed_topic_names": ["u"], "topic_partitions": having(room, 0, 1)}
    answer = room.beat("a", 1, **more)
    assert answer["member_epoch"] == 1
    assert answer["assignment"] == {"topic_partitions": []}
    assert held(room, "a") == (set(), {0, 1})
    epoch = room.beat("b", 2)["member_epoch"]
    assert held(room, "b") == (set(), set())
    assert room.beat("a", 1, topic_partitions=[])["member_epoch"] == 3
    assert held(room, "a", "u") == ({0}, set())
    room.beat("b", epoch)
    assert held(room, "b") == ({0, 1}, set())
    room.check()


@pytest.mark.parametrize("says", [None, (), (0,)])
def test_a_state_that_is_not_known_is_left_by_who_reads_nothing(
    says: tuple[int, ...] | None,
) -> None:
    room = Room(t=2)
    room.join("m", "t")
    member = room.group.members["m"].copy()
    member.state = 77
    room.group.replay(*stored.current_record("g", member))
    owned = None if says is None else having(room, *says) if says else []
    answer = room.beat("m", 1, topic_partitions=owned)
    if owned == []:
        assert answer["member_epoch"] == 1 and held(room, "m") == ({0, 1}, set())
    else:
        assert answer["error_code"] == error_codes.FENCED_MEMBER_EPOCH


# ── heartbeats ────────────────────────────────────────────────────────────────────────────────────


def test_all_said_again_without_news_moves_no_member() -> None:
    """Else the epoch before would be this one, and a lost answer of it would fence the member."""
    room = Room(t=2)
    room.join("m", "t")
    before = room.group.members["m"].copy()
    stored_before = len(room.records)
    answer = room.beat(
        "m",
        1,
        rebalance_timeout_ms=REBALANCE_MS,
        subscribed_topic_names=["t"],
        topic_partitions=having(room, 0, 1),
    )
    assert answer["assignment"] == {"topic_partitions": having(room, 0, 1)}
    assert room.group.members["m"].is_like(before)
    assert len(room.records) == stored_before


def test_a_heartbeat_with_the_instance_id_of_another_is_refused() -> None:
    room = Room(t=2)
    room.join("a", "t", instance_id="i")
    room.join("b", "t", instance_id="j")
    room.beat("a", 1, topic_partitions=having(room, 0))
    assert room.beat("a", 2, instance_id="j")["error_code"] == error_codes.FENCED_INSTANCE_ID
    assert room.beat("a", 2, instance_id="x")["error_code"] == error_codes.UNKNOWN_MEMBER_ID
    assert room.beat("a", 2, instance_id="i")["member_epoch"] == 2


@pytest.mark.parametrize("client", [("client", "/other"), ("other", "/host")])
def test_where_a_member_heartbeats_from_now_is_noted(client: tuple[str, str]) -> None:
    room = Room(t=2)
    room.join("m", "t")
    body = dict.fromkeys(
        ("instance_id", "rack_id", "server_assignor", "topic_partitions",
         "subscribed_topic_names", "subscribed_topic_regex")
    )  # fmt: skip
    body |= {"member_id": "m", "member_epoch": 1, "rebalance_timeout_ms": -1}
    answer, change = on_heartbeat(room.group, body, *client, room.now_ms, room.cluster.topics)
    assert answer["member_epoch"] == 1
    assert room.store(change)
    member = room.group.members["m"]
    assert (member.client_id, member.client_host) == client
    room.check()


# ── what the log says ─────────────────────────────────────────────────────────────────────────────


def test_who_has_nothing_to_give_up_is_not_fenced_for_that_after_a_restart() -> None:
    room = Room(t=2)
    room.join("m", "t")
    room.restart()
    for _ in range(4):
        room.wait(REBALANCE_MS // 2)
        assert room.beat("m", 1)["member_epoch"] == 1


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    """Even if it had less time to give something up: it reads nothing while it is away."""
    room = Room(t=2)
    room.join("one", "t", instance_id="i", rebalance_timeout_ms=1000)
    room.join("other", "t")
    room.beat("one", 1, instance_id="i")
    assert held(room, "one") == ({0}, {1})
    assert "error_code" not in room.beat("one", -2, instance_id="i")
    room.beat("other", 2)
    assert held(room, "other") == ({1}, set())
    room.wait(SESSION_MS - 1)
    assert room.group.static_members == {"i": "one"}
    room.join("two", "t", instance_id="i")
    assert room.group.static_members == {"i": "two"}
    assert held(room, "two") == ({0}, set())
    room.beat("two", -2, instance_id="i")
    room.wait(SESSION_MS)
    assert not room.group.static_members


def test_all_that_a_member_says_of_itself_is_there_after_a_restart() -> None:
    room = Room(t=2)
    room.join("m", "t", rack_id="r", instance_id="i", server_assignor="range")
    before = room.group.members["m"]
    room.restart()
    member = room.group.members["m"]
    assert (member.rack_id, member.instance_id, member.assignor) == ("r", "i", "range")
    assert member.is_like(before)


def test_a_member_whose_place_is_gone_from_the_log_has_nothing() -> None:
    """Compaction may keep that record alone, before the one that ends the member."""
    room = two_of_which_one_gives_up()
    member = room.group.members["a"]
    record_type, key, _ = stored.current_record("g", member)
    room.group.replay(record_type, key, None)
    assert held(room, "a") == (set(), set())
    assert [room.group.owner_of(room.cluster.id_of("t"), each) for each in (0, 1)] == [None, None]
    assert (member.epoch, member.previous_epoch) == (-1, -1)


def test_the_end_of_a_member_frees_what_it_had_and_its_room() -> None:
    room = two_of_which_one_gives_up()
    with_both = room.group.held_bytes
    member = room.group.members["a"]
    record_type, key, _ = stored.member_record("g", member)
    room.group.replay(record_type, key, None)
    assert [room.group.owner_of(room.cluster.id_of("t"), each) for each in (0, 1)] == [None, None]
    assert room.group.held_bytes == with_both - member.held_bytes


def test_a_group_that_is_made_of_another_knows_what_its_members_have() -> None:
    room = Room(t=2)
    room.join("m", "t", instance_id="i")
    member, target = room.group.members["m"], room.group.targets["m"]
    group = type(room.group)("g", room.settings, room.make_id, NO_SHARD)
    group.add(member, target)
    for name in ("members", "static_members", "targets", "owners", "held_bytes"):
        assert getattr(group, name) == getattr(room.group, name), name


# ── offsets ───────────────────────────────────────────────────────────────────────────────────────


def test_who_may_commit_offsets() -> None:
    """Kafka's ConsumerGroup.validateOffsetCommit."""
    room = Room(t=2)
    assert room.group.on_commit("", -1, 9) == 0, "an admin client, of a group where nobody is"
    assert room.group.on_commit("", 0, 9) == error_codes.UNKNOWN_MEMBER_ID
    room.join("m", "t")
    assert room.group.on_commit("m", 1, 9) == 0
    assert room.group.on_commit("m", 1, 8) == error_codes.UNSUPPORTED_VERSION
    assert room.group.on_commit("m", 0, 9) == error_codes.STALE_MEMBER_EPOCH
    assert room.group.on_commit("m", 2, 9) == error_codes.STALE_MEMBER_EPOCH
    assert room.group.on_commit("", -1, 9) == error_codes.UNKNOWN_MEMBER_ID
    answer = room.classic_join("c", "t")
    generation = answer["generation_id"]
    assert room.group.on_commit("c", generation, 8) == 0
    assert room.group.on_commit("c", generation - 1, 8) == error_codes.ILLEGAL_GENERATION


def test_who_may_ask_for_committed_offsets() -> None:
    """Kafka's ConsumerGroup.validateOffsetFetch."""
    room = Room(t=2)
    room.join("m", "t")
    assert room.group.on_fetch(None, -1) == 0
    assert room.group.on_fetch(None, 0) == error_codes.UNKNOWN_MEMBER_ID
    assert room.group.on_fetch("m", 1) == 0
    assert room.group.on_fetch("m", 0) == error_codes.STALE_MEMBER_EPOCH
    assert room.group.on_fetch("x", -1) == error_codes.UNKNOWN_MEMBER_ID


def test_whose_topics_a_group_reads() -> None:
    room = Room(t=2, u=1)
    room.join("m", "t")
    assert room.group.is_subscribed("t") and not room.group.is_subscribed("u")


# ── the places of static members ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("had_by", "wanted_by", "error"),
    [
        ("consumer", "consumer", error_codes.UNRELEASED_INSTANCE_ID),
        ("away", "consumer", 0),
        ("classic", "consumer", 0),
        ("consumer", "classic", 0),
        ("classic", "classic", 0),
    ],
)
def test_whose_place_a_static_member_may_take(had_by: str, wanted_by: str, error: int) -> None:
    room = Room(t=2)
    room.join("other", "u")
    if had_by == "classic":
        room.classic_join("", "t", group_instance_id="i")
    else:
        room.join("one", "t", instance_id="i")
    if had_by == "away":
        room.beat("one", -2, instance_id="i")
    had = room.group.static_members["i"]
    if wanted_by == "classic":
        answer = room.classic_join("", "t", group_instance_id="i")
    else:
        answer = room.join("two", "t", instance_id="i")
    assert answer.get("error_code", 0) == error
    has = room.group.static_members["i"]
    assert (has == had) == bool(error)
    assert room.group.members.keys() == {"other", has}
    assert held(room, has) == ({0, 1}, set())
    room.check()


# ── members of the classic protocol ───────────────────────────────────────────────────────────────

REBALANCE = error_codes.REBALANCE_IN_PROGRESS


def classic_body(member_id: str, generation_id: int, **more: Any) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "group_instance_id": None,
        "generation_id": generation_id,
        "protocol_type": None,
        "protocol_name": None,
    } | more


def classic_beat(room: Room, member_id: str, generation_id: int) -> int:
    return on_classic_heartbeat(room.group, classic_body(member_id, generation_id), room.now_ms)


def classic_sync(room: Room, member_id: str, generation_id: int, **more: Any) -> dict[str, Any]:
    body = classic_body(member_id, generation_id, **more)
    return on_classic_sync(room.group, body, room.now_ms, room.cluster.topics)


def test_a_classic_member_joins_again_when_what_it_waits_for_is_free() -> None:
    room = Room(t=2)
    room.join("a", "t")
    assert room.classic_join("c", "t")["generation_id"] == 2
    assert classic_beat(room, "c", 2) == 0, "it waits for the other"
    room.beat("a", 1)
    assert classic_beat(room, "c", 2) == 0
    room.beat("a", 1, topic_partitions=having(room, 0))
    assert classic_beat(room, "c", 2) == REBALANCE
    assert room.classic_join("c", "t")["generation_id"] == 2
    assert held(room, "c") == ({1}, set())
    assert classic_beat(room, "c", 2) == 0


def test_a_classic_member_joins_again_to_give_something_up() -> None:
    room = Room(t=2)
    room.classic_join("c", "t")
    room.join("a", "t")
    assert classic_beat(room, "c", 1) == REBALANCE
    assert classic_sync(room, "c", 1)["error_code"] == REBALANCE
    room.classic_join("c", "t", owned=[("t", (0, 1))])
    assert held(room, "c") == ({0}, {1})
    assert classic_sync(room, "c", 1)["error_code"] == 0, "what it keeps"
    assert classic_beat(room, "c", 1) == REBALANCE
    assert room.classic_join("c", "t", owned=[("t", (0,))])["generation_id"] == 2
    assert classic_beat(room, "c", 2) == 0


def test_a_classic_member_is_refused_for_its_reason() -> None:
    room = Room(t=2)
    room.join("a", "t")
    room.classic_join("c", "t")
    unknown, old = error_codes.UNKNOWN_MEMBER_ID, error_codes.ILLEGAL_GENERATION
    for member_id, generation, error in (("a", 1, unknown), ("x", 2, unknown), ("c", 1, old)):
        assert classic_beat(room, member_id, generation) == error
        assert classic_sync(room, member_id, generation) == {"error_code": error}
    other = error_codes.INCONSISTENT_GROUP_PROTOCOL
    for kind, name, error in (
        ("consumer", "range", 0),
        (None, "range", 0),
        ("consumer", None, 0),
        ("connect", "range", other),
        ("consumer", "roundrobin", other),
    ):
        answer = classic_sync(room, "c", 2, protocol_type=kind, protocol_name=name)
        assert answer["error_code"] == error


def test_a_classic_member_has_its_session_and_time_for_each_step() -> None:
    room = Room(t=2)
    joined = {"session_timeout_ms": 20_000, "rebalance_timeout_ms": 30_000}

    def beats_until_it_is_gone(seconds: int) -> None:
        for _ in range(seconds // 10):
            assert "c" in room.group.members
            classic_beat(room, "c", 1)
            room.wait(9999)
            assert "c" in room.group.members
            room.wait(1)
        assert "c" not in room.group.members

    room.classic_join("c", "t", **joined)
    beats_until_it_is_gone(30)  # it has not asked for its assignment
    room.group = Room(t=2).group
    room.classic_join("c", "t", **joined)
    classic_sync(room, "c", 1)
    room.wait(20_000)
    assert "c" not in room.group.members  # silent
    room.group = Room(t=2).group
    room.classic_join("c", "t", **joined)
    classic_sync(room, "c", 1)
    room.join("a", "t", rebalance_timeout_ms=1)
    beats_until_it_is_gone(30)  # it has not joined again


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"protocol_type": "connect"}, error_codes.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, error_codes.INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": [{"name": f"p{at}", "metadata": b""} for at in range(PROTOCOLS_MAX + 1)]},
            error_codes.INCONSISTENT_GROUP_PROTOCOL,
        ),
        (
            {"protocols": [{"name": "other", "metadata": b""}]},
            error_codes.INCONSISTENT_GROUP_PROTOCOL,
        ),
        ({"protocols": [{"name": "range", "metadata": b"?"}]}, error_codes.UNKNOWN_SERVER_ERROR),
        ({"group_instance_id": "x"}, error_codes.UNKNOWN_MEMBER_ID),
        ({}, 0),
    ],
)
def test_a_classic_member_that_joins_is_refused_for_its_reason(
    more: dict[str, Any], error: int
) -> None:
    room = Room(t=2)
    room.join("a", "t")
    room.classic_join("c", "t")
    before = room.changes
    assert room.classic_join("d", "t", **more)["error_code"] == error
    assert (room.changes == before) == bool(error)


@pytest.mark.parametrize(("version", "asks"), [(3, False), (4, True), (9, True)])
def test_a_new_classic_member_has_to_come_again_with_its_id(version: int, asks: bool) -> None:
    room = Room(t=2)
    room.join("a", "t")
    answer = room.classic_join("", "t", version=version)
    assert (answer["error_code"] == error_codes.MEMBER_ID_REQUIRED) == asks
    assert answer["member_id"] == "made-1"
    assert ("made-1" in room.group.members) != asks
    answer = room.classic_join("", "t", version=version, group_instance_id="i")
    assert answer["error_code"] == 0


def test_all_that_a_classic_member_says_of_itself_is_kept() -> None:
    room = Room(t=2)
    room.join("a", "t")
    room.classic_join("c", "t", rack="r", rebalance_timeout_ms=7000, session_timeout_ms=9000)
    member = room.group.members["c"]
    assert (member.rack_id, member.rebalance_timeout_ms) == ("r", 7000)
    assert member.classic is not None and member.classic.session_timeout_ms == 9000
    assert (member.client_id, member.client_host) == ("client", "/host")
    room.classic_join("c", "t")
    assert room.group.members["c"].rack_id == "r", "it may leave that out"


def test_who_leaves_in_the_classic_way_is_told_for_each() -> None:
    room = Room(t=2)
    room.join("a", "t")
    room.classic_join("c", "t")
    room.classic_join("", "t", group_instance_id="j")
    room.classic_join("", "t", group_instance_id="k")
    topics = room.cluster.topics
    unknown, fenced = error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_INSTANCE_ID
    others = [("x", None), ("", "x"), ("x", "j")]
    assert on_classic_leave(room.group, others, topics) == ([unknown, unknown, fenced], None)
    left = room.group.static_members["j"]
    leaving = [("x", None), ("c", None), ("", "k"), (left, "j")]
    errors, change = on_classic_leave(room.group, leaving, topics)
    assert errors == [unknown, 0, 0, 0]
    assert room.store(change)
    assert list(room.group.members) == ["a"]
    room.check()


def test_a_member_that_changes_its_protocol_need_not_join_or_sync_any_more() -> None:
    room = Room(t=2)
    room.join("a", "t")
    room.classic_join("c", "t", rebalance_timeout_ms=1000)
    room.join("c", "t")
    assert room.group.members["c"].classic is None
    room.wait(SESSION_MS - 1)
    assert "c" in room.group.members
    room.wait(1)
    assert "c" not in room.group.members


@pytest.mark.parametrize("asks", [classic_beat, lambda *says: classic_sync(*says)["error_code"]])
def test_a_classic_member_that_is_told_to_join_again_is_fenced_unless_it_does(asks: Any) -> None:
    room = Room(t=2)
    for joins in (True, False):
        room.classic_join("c", "t", rebalance_timeout_ms=5000)
        epoch = room.group.members["c"].epoch
        classic_sync(room, "c", epoch)
        room.join(f"a{joins}", "t")
        assert asks(room, "c", epoch) == REBALANCE
        if joins:
            room.classic_join("c", "t", rebalance_timeout_ms=5000)
            classic_sync(room, "c", room.group.members["c"].epoch)
        room.wait(4999)
        assert "c" in room.group.members
        room.wait(1)
        assert ("c" in room.group.members) == joins


def test_who_leaves_together_in_the_classic_way_leaves_a_classic_group() -> None:
    room = Room(ConsumerSettings(), t=2)
    room.join("a", "t")
    for member_id in ("c", "d"):
        room.classic_join(member_id, "t")
    leaving = [("c", None), ("a", None)]
    errors, change = on_classic_leave(room.group, leaving, room.cluster.topics)
    assert errors == [0, 0]
    assert change is not None and change.downgrade is not None
    assert [member.member_id for member, _ in change.downgrade.members] == ["d"]
