"""A classic group with large subscriptions becomes a consumer group in steps."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import consumer_group_heartbeat
from shmbroker.groups import migration
from shmbroker.groups.classic.group import ClassicGroup
from shmbroker.groups.consumer import coordinator as consumers_module
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.groups.migration import STEP_BYTES
from shmbroker.metadata.features import GROUP_VERSION
from shmbroker.security.identity import Identity
from shmbroker.wire import codec
from tests.unit.groups.groups_at_work import Call
from tests.unit.groups.office_at_work import FIELDS, Office

MEMBERS = 12
SUBSCRIPTION_BYTES = 6000
TOGETHER: dict[str, Any] = {"group.initial.rebalance.delay.ms": "3000"}


def subscription(number: int) -> bytes:
    names = ["t", *(f"topic-{number:03}-{at:04}" for at in range(SUBSCRIPTION_BYTES // 16))]
    message = {"topics": names, "user_data": None}
    return b"\0\0" + codec.encode("ConsumerProtocolSubscription", 0, message)


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    """A stable classic group of members with large subscriptions."""
    made = Office(tmp_path, **TOGETHER)
    fill(made)
    yield made


def fill(office: Office) -> None:
    calls = [
        office.join(
            group_instance_id=f"i{number}",
            session_timeout_ms=60_000,
            protocols=[{"name": "range", "metadata": subscription(number)}],
        )
        for number in range(MEMBERS)
    ]
    office.wait(10_000)
    ids = [call.answer["member_id"] for call in calls]
    assert [call.answer["error_code"] for call in calls] == [0] * MEMBERS
    office.sync(calls[0].answer["leader"], generation=calls[0].answer["generation_id"])
    assert set(office.group.members) == set(ids) and office.group.state == "Stable"


class Asked(Call):
    """The call of a heartbeat, whose answer may be one to give again."""

    def reply(self, body: dict[str, Any], _grant: object = None) -> None:
        super().reply(body)


def entering(office: Office) -> tuple[Any, Call]:
    """What the API makes of a heartbeat of a new member, and its call."""
    call: Any = Asked()
    call.api_version, call.client_id = 1, b"client"
    call.identity = Identity("User:ANONYMOUS", "host", "PLAINTEXT")
    body = FIELDS | {"group_id": "g", "member_id": "new", "member_epoch": 0}
    body |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}
    body |= {"topic_partitions": []}
    image = SimpleNamespace(features={GROUP_VERSION: 1})
    broker: Any = SimpleNamespace(image=image, groups=office.groups)
    return consumer_group_heartbeat.answer(broker, call, body), call


def all_of(group: ConsumerGroup) -> dict[str, Any]:
    """What is in the log of a group, but for the members' deadlines."""
    return {
        "members": sorted((repr(member.subscribed_topics), member.instance_id, member.epoch)
                          for member in group.members.values()),
        "classic": [member.classic is not None for member in group.members.values()],
        "epochs": (group.epoch, group.assignment_epoch, group.metadata_hash),
        "owners": {topic: set(rows) for topic, rows in group.owners.items()},
    }  # fmt: skip


def test_no_step_reads_or_writes_more_than_some_subscriptions(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = [0]
    read, write = migration.subscription_of, consumers_module.encoded

    def reading(metadata: bytes) -> Any:
        touched[0] += len(metadata)
        return read(metadata)

    def writing(record: Any) -> Any:
        row = write(record)
        touched[0] += len(row[1] or b"")
        return row

    monkeypatch.setattr(migration, "subscription_of", reading)
    monkeypatch.setattr(consumers_module, "encoded", writing)
    steps, call = entering(office)
    count = 0
    for _ in steps:
        assert touched[0] <= STEP_BYTES + 3 * SUBSCRIPTION_BYTES
        touched[0] = 0
        assert call.answer is None
        count += 1
        if isinstance(office.group, ClassicGroup):
            member, known = next(iter(office.group.members.items()))
            body = {"group_id": "g", "member_id": member, "generation_id": 1}
            body["group_instance_id"] = known.instance_id
            error, _ = office.groups.classics.heartbeat(body)
            assert error == 0, "its members are served meanwhile"
    assert touched[0] <= STEP_BYTES + 3 * SUBSCRIPTION_BYTES
    assert count > 3 * MEMBERS * SUBSCRIPTION_BYTES // STEP_BYTES // 2
    assert call.answer["member_epoch"] == 2
    assert isinstance(office.group, ConsumerGroup) and len(office.group.members) == MEMBERS + 1


def test_a_group_is_converted_in_steps_as_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for kind in ("steps", "once"):
        (tmp_path / kind).mkdir()
        office = Office(tmp_path / kind, **TOGETHER)
        fill(office)
        with monkeypatch.context() as patch:
            if kind == "once":
                patch.setattr(consumers_module, "AT_ONCE_BYTES", 1 << 30)
            steps, call = entering(office)
            assert (steps is None) == (kind == "once")
            for _ in steps or ():
                pass
        assert call.answer["member_epoch"] == 2
        for _ in range(2):
            found.append(all_of(office.group))
            office.restart()
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0]["classic"].count(True) == MEMBERS


@pytest.mark.parametrize("times", [1, 5])
def test_a_group_that_changes_meanwhile_is_converted_as_it_is_then(
    office: Office, times: int
) -> None:
    steps, call = entering(office)
    left = list(office.group.members.values())
    for at, _ in enumerate(steps):
        if at % 8 == 5 and at // 8 < times and isinstance(office.group, ClassicGroup):
            gone = left.pop()
            assert office.groups.classics.leave("g", [(gone.member_id, gone.instance_id)])[1] == [0]
    assert call.answer["member_epoch"] > 0
    assert set(office.group.members) == {member.member_id for member in left} | {"new"}


def test_a_group_that_goes_meanwhile_is_made_anew(office: Office) -> None:
    steps, call = entering(office)
    next(steps)
    for member in list(office.group.members.values()):
        office.groups.classics.leave("g", [(member.member_id, member.instance_id)])
    assert office.groups.removal.delete("g") == 0
    for _ in steps:
        pass
    assert list(office.group.members) == ["new"] and call.answer["member_epoch"] == 1
