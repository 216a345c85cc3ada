"""A group changes its protocol: what its members bring along, and who stays behind."""

import random
from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.groups import group_log
from shmbroker.groups.classic.group import ClassicGroup
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import iterate_batches
from shmbroker.records.batch_layout import H_BASE_OFFSET
from shmbroker.wire import codec, error_codes
from tests.unit.groups.coordinator_at_work import SUBSCRIBED_TO_T, Broker
from tests.unit.groups.groups_at_work import Call
from tests.unit.groups.office_at_work import TOPIC_ID, Office, as_loaded, embedded, office, owned

__all__ = ["office"]


def test_who_falls_silent_as_its_group_changes_its_protocol_is_fenced(office: Office) -> None:
    member = office.stable(session_timeout_ms=10_000)
    office.enter("new")
    office.wait(9_999)
    assert set(office.group.members) == {member, "new"}
    office.wait(1)
    assert list(office.group.members) == ["new"]


def test_offsets_stay_when_a_group_changes_its_protocol(office: Office) -> None:
    member = office.stable()
    assert office.commit(member=member, generation=1) == 0
    assert office.types() == ["classic"]
    answer = office.enter("new")
    assert answer["member_epoch"] == 2
    assert office.types() == ["consumer"]
    assert office.heartbeat(member) == error_codes.REBALANCE_IN_PROGRESS
    office.restart()
    assert isinstance(office.group, ConsumerGroup)
    assert set(office.group.members) == {member, "new"}
    assert office.groups.shards[0].store.of_group("g")
    office.beat("new", -1)
    assert isinstance(office.group, ClassicGroup) and office.group.state == "PreparingRebalance"
    office.restart()
    assert isinstance(office.group, ClassicGroup) and list(office.group.members) == [member]
    assert office.groups.shards[0].store.of_group("g")


def classic_group(office: Office) -> tuple[str, str]:
    """A stable classic group of a static member that reads two partitions of "t", and one that
    reads the others; their ids."""
    subscription = embedded("Subscription", 3, topics=["t", "u"], rack_id="rack")
    protocols = [{"name": "range", "metadata": subscription}]
    more = {"rebalance_timeout_ms": 7000, "session_timeout_ms": 8000, "protocols": protocols}
    first = office.join(group_instance_id="i", **more)
    office.wait(0)
    second = office.join(protocols=[{"name": "range", "metadata": SUBSCRIBED_TO_T}])
    again = office.join(member=first.answer["member_id"], group_instance_id="i", **more)
    office.wait(0)
    ids = [call.answer["member_id"] for call in (again, second)]
    halves = ([0, 1], [2, 3])
    rows = [
        {
            "member_id": member,
            "assignment": embedded(
                "Assignment", 1, assigned_partitions=[{"topic": "t", "partitions": half}]
            ),
        }
        for member, half in zip(ids, halves, strict=True)
    ]
    call = Call()
    body = {"group_id": "g", "member_id": ids[0], "group_instance_id": "i"}
    body |= {"generation_id": 2, "protocol_type": None, "protocol_name": None, "assignments": rows}
    office.groups.classics.sync(call, body)
    assert call.answer["error_code"] == 0
    return ids[0], ids[1]


def test_members_bring_all_that_they_have_to_the_new_protocol_and_back(office: Office) -> None:
    static, other = classic_group(office)
    before = {member.member_id: member for member in office.group.members.values()}
    assert office.enter("new")["member_epoch"] == 3
    member = office.group.members[static]
    assert (member.instance_id, member.rack_id) == ("i", "rack")
    assert (member.client_id, member.client_host) == ("client", "/host")
    assert (member.epoch, member.previous_epoch, member.rebalance_timeout_ms) == (2, 2, 7000)
    assert member.subscribed_topics == {"t", "u"}
    assert member.classic == (8000, before[static].protocols)
    assert member.assigned == {TOPIC_ID: {0, 1}}
    assert office.group.members[other].assigned == {TOPIC_ID: {2, 3}}
    assert office.group.members[other].rack_id is None
    assert office.group.static_members == {"i": static}
    office.beat("new", -1)
    group = office.group
    assert isinstance(group, ClassicGroup)
    assert (group.generation_id, group.protocol_type, group.protocol_name) == (
        3,
        "consumer",
        "range",
    )
    assert group.leader_id in (static, other)
    assert group.subscribed_topics == {"t", "u"}
    for member_id, was in before.items():
        is_now = group.members[member_id]
        for name in ("instance_id", "client_id", "client_host", "rebalance_timeout_ms",
                     "session_timeout_ms", "protocols"):  # fmt: skip
            assert getattr(is_now, name) == getattr(was, name), name
    assert group.static_members == {"i": static}


def test_members_that_fall_silent_as_the_group_becomes_a_classic_one_are_gone(
    office: Office,
) -> None:
    classic_group(office)
    office.enter("new")
    office.beat("new", -1)
    office.wait(20_000)
    assert not office.group.members


def test_a_classic_member_in_the_place_of_the_last_new_one_makes_the_group_a_classic_one(
    office: Office,
) -> None:
    office.enter("new", instance_id="i")
    first = office.join().answer["member_id"]
    assert office.types() == ["consumer"]
    assigned = office.group.targets["new"]
    answer = office.join(group_instance_id="i").answer
    assert (answer["error_code"], office.types()) == (0, ["classic"])
    group = office.group
    assert group.generation_id == answer["generation_id"]
    assert set(group.members) == {first, answer["member_id"]}
    assert group.static_members == {"i": answer["member_id"]}
    (topic,) = assigned
    wanted = [{"topic": "t", "partitions": sorted(assigned[topic])}]
    given = group.members[answer["member_id"]].assignment
    assert given == embedded("Assignment", 0, assigned_partitions=wanted)
    office.restart()
    assert set(office.group.members) == {first, answer["member_id"]}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"group_id": " "}, error_codes.INVALID_REQUEST),
        ({"member_id": ""}, error_codes.INVALID_REQUEST),
        ({"server_assignor": "best"}, error_codes.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_what_no_group_could_answer_makes_none(
    office: Office, more: dict[str, Any], error: int
) -> None:
    assert office.enter("a", **more)["error_code"] == error
    assert office.groups.groups == {}


def test_classic_members_learn_that_nothing_could_be_stored(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.enter("a")
    member = office.join().answer["member_id"]

    def fail(*_: object) -> None:
        raise StorageFault("full")

    with monkeypatch.context() as patch:
        patch.setattr(type(office.partitions[0].log), "append", fail)
        assert office.join().answer["error_code"] == error_codes.NOT_COORDINATOR
        _, errors = office.groups.classics.leave("g", [(member, None), ("x", None)])
        assert errors == [error_codes.NOT_COORDINATOR, error_codes.UNKNOWN_MEMBER_ID]
    assert set(office.group.members) == {"a", member}


def test_who_waits_in_a_classic_group_begins_again_in_the_new_one(office: Office) -> None:
    first = office.stable()
    second = office.join()
    assert second.answer is None
    office.enter("new")
    assert second.answer["error_code"] == error_codes.REBALANCE_IN_PROGRESS
    again = office.join(member=second.answer["member_id"])
    assert (again.answer["error_code"], again.answer["leader"]) == (0, "")
    assert first in office.group.members


@pytest.mark.parametrize(
    "what",
    [
        {"protocols": [{"name": "range", "metadata": b"?"}]},
        {"assignment": b"?"},
        {"assignment": embedded("Assignment", 0, user_data=b"its own")},
        {"protocol_type": "connect"},
    ],
)
def test_a_group_stays_classic_whose_members_would_lose_something(
    office: Office, what: dict[str, Any]
) -> None:
    assignment = what.pop("assignment", b"")
    call = office.join(**what)
    office.wait(0)
    member = call.answer["member_id"]
    Broker.sync(office, member)
    office.group.members[member].assignment = assignment
    answer = office.enter("new")
    assert answer["error_code"] == error_codes.GROUP_ID_NOT_FOUND
    assert office.types() == ["classic"]


@pytest.mark.parametrize("asks", [Office.heartbeat, Office.sync])
def test_the_timer_fences_who_is_told_to_join_again_and_does_not(office: Office, asks: Any) -> None:
    office.enter("a")
    member = office.join(rebalance_timeout_ms=3000).answer["member_id"]
    epoch = office.group.members[member].epoch
    office.sync(member, generation=epoch)
    office.enter("b")
    asks(office, member, "g", epoch)
    office.wait(2999)
    assert member in office.group.members
    office.wait(1)
    assert member not in office.group.members


def test_an_empty_group_becomes_a_classic_one(office: Office) -> None:
    office.enter("a")
    office.beat("a", -1)
    assert office.join(member="a").answer["error_code"] == error_codes.UNKNOWN_MEMBER_ID
    office.stable()
    assert office.types() == ["classic"]
    office.restart()
    assert isinstance(office.group, ClassicGroup)


def test_wherever_its_log_ends_a_group_is_as_a_request_has_left_it(office: Office) -> None:
    """However large a change is: after a death in the middle of it, none of it counts."""
    office.partitions[0].message_bytes_max = group_log.BATCH_ROOM + 300
    log = office.partitions[0].log
    static, _ = classic_group(office)
    left = {0: None, log.log_end_offset: as_loaded(office)}

    def leave_behind() -> None:
        left[log.log_end_offset] = as_loaded(office)

    for number in range(4):
        assert "error_code" not in office.enter(f"{number}")
        leave_behind()
    office.groups.classics.leave("g", [(static, None)])
    leave_behind()
    for number in range(4):
        office.beat(f"{number}", -1)
        leave_behind()
    assert office.types() == ["classic"]
    office.wait(20_000)
    leave_behind()
    assert office.groups.removal.delete("g") == 0
    leave_behind()
    data = log.active.read_bytes(0, log.active.size)
    boundaries = [header[H_BASE_OFFSET] for _, header in iterate_batches(data)]
    for boundary in reversed(boundaries):
        truncate_to(log, boundary)
        assert as_loaded(office) == left[boundary]


class Crowd:
    """Members of both protocols who do anything, whether it makes sense or not."""

    def __init__(self, office: Office, seed: int) -> None:
        self.office = office
        self.chance = random.Random(seed)
        self.generations: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.waiting: list[Call] = []

    def step(self) -> None:
        chance = self.chance
        acts = [self.join, self.sync, self.beat_classic, self.enter, self.beat, self.beat]
        chance.choice([*acts, self.leave_classic, self.leave, self.wait])()
        for call in [each for each in self.waiting if each.answer is not None]:
            self.waiting.remove(call)
            assert call.answer is not None
            if "members" in call.answer and not call.answer["error_code"]:
                self.generations[call.answer["member_id"]] = call.answer["generation_id"]

    def classic(self) -> str:
        return self.chance.choice(["", *self.generations])

    def join(self) -> None:
        owned = [{"topic": "t", "partitions": self.chance.sample(range(4), 2)}]
        message = {"topics": ["t"], "owned_partitions": self.chance.choice([[], owned])}
        metadata = b"\0\1" + codec.encode("ConsumerProtocolSubscription", 1, message)
        member = self.classic()
        instance = "s" if not member and self.chance.random() < 0.3 else None
        protocols = [{"name": "range", "metadata": metadata}]
        self.waiting.append(
            self.office.join(member=member, group_instance_id=instance, protocols=protocols)
        )

    def sync(self) -> None:
        member = self.classic()
        self.waiting.append(self.office.sync(member, "g", self.generations.get(member, 1)))

    def beat_classic(self) -> None:
        member = self.classic()
        error = self.office.heartbeat(member, "g", self.generations.get(member, 1))
        if error == error_codes.UNKNOWN_MEMBER_ID:
            self.generations.pop(member, None)

    def leave_classic(self) -> None:
        member = self.classic()
        self.generations.pop(member, None)
        self.office.groups.classics.leave("g", [(member, None)])

    def enter(self) -> None:
        member = self.chance.choice("abs")
        more = {"instance_id": "s"} if member == "s" else {}
        self.epochs[member] = self.office.enter(member, **more).get("member_epoch", 1)

    def beat(self) -> None:
        member = self.chance.choice("abs")
        more: dict[str, Any] = {"instance_id": "s"} if member == "s" else {}
        if self.chance.random() < 0.5:
            more["topic_partitions"] = self.chance.choice([[], owned(0), owned(0, 1)])
        answer = self.office.beat(member, self.epochs.get(member, 1), **more)
        self.epochs[member] = answer.get("member_epoch", 1)

    def leave(self) -> None:
        member = self.chance.choice("abs")
        if member == "s":
            self.office.beat(member, self.chance.choice((-1, -2)), instance_id="s")
        else:
            self.office.beat(member, -1)

    def wait(self) -> None:
        self.office.wait(self.chance.choice((100, 3000, 11_000, 46_000)))


@pytest.mark.parametrize("seed", range(8))
def test_a_crowd_of_both_protocols_leaves_a_group_that_is_what_its_log_says(
    office: Office, seed: int
) -> None:
    crowd = Crowd(office, seed)
    kinds = set()
    for step in range(300):
        crowd.step()
        group = office.groups.groups.get("g")
        kinds.add(type(group))
        if isinstance(group, ConsumerGroup):
            members = {each: member.copy() for each, member in group.members.items()}
            epochs = group.epoch, group.assignment_epoch, group.targets
            if step % 10 == 0:
                office.restart()
                crowd.waiting.clear()
                again = office.group
                assert (again.epoch, again.assignment_epoch, again.targets) == epochs
                assert again.members.keys() == members.keys()
                assert all(members[each].is_like(again.members[each]) for each in members)
    assert {ClassicGroup, ConsumerGroup} <= kinds
