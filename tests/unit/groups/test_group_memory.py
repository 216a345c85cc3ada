"""What members bring is bounded, in one group and in all, and goes with them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.groups import group_memory, group_table
from shmbroker.groups.group_memory import GROUP_BYTES_MAX, names_bytes
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import Call
from tests.unit.groups.office_at_work import Office

FULL = error_codes.GROUP_MAX_SIZE_REACHED
LATER = error_codes.COORDINATOR_NOT_AVAILABLE
BYTES_MAX = 64 << 20
LARGE = b"\0\0\0\0\0\0" + bytes(900_000)
NAMES = [f"topic-{number}" for number in range(15_000)]
HALF_AN_HOUR_MS = 1_800_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path, **{"offsets.retention.check.interval.ms": str(10**9)})
    yield made
    for partition in made.partitions:
        partition.log.close(clean=False)


def large(metadata: bytes = LARGE) -> dict[str, Any]:
    return {"protocols": [{"name": "range", "metadata": metadata}]}


def error_of(call: Call) -> int:
    """0 also where it waits for others."""
    return 0 if call.answer is None else int(call.answer["error_code"])


def ask_for_id(broker: Office, group: str) -> str:
    """The member id with which a new member is to come back (KIP-394)."""
    call = Call()
    call.api_version = 4
    body = {
        "group_id": group,
        "group_instance_id": None,
        "member_id": "",
        "session_timeout_ms": HALF_AN_HOUR_MS,
        "rebalance_timeout_ms": 1,
        "protocol_type": "consumer",
        **large(b""),
    }
    broker.groups.classics.join(call, body, "c" * 1000, "/host")
    assert call.answer["error_code"] == error_codes.MEMBER_ID_REQUIRED
    return str(call.answer["member_id"])


def test_what_vanished_clients_brought_is_bounded_and_goes_when_their_sessions_end(
    broker: Office,
) -> None:
    memory = broker.groups.memory
    errors = [error_of(broker.join(f"g{number}", **large())) for number in range(100)]
    accepted = errors.count(0)
    assert accepted == pytest.approx(BYTES_MAX / len(LARGE), rel=0.02)
    assert set(errors[accepted:]) == {LATER}
    assert len(broker.groups.groups) == accepted
    assert BYTES_MAX * 0.9 < memory.held_bytes <= BYTES_MAX
    broker.wait(HALF_AN_HOUR_MS)
    assert memory.held_bytes == 0
    assert not any(group.members for group in broker.groups.groups.values())
    assert error_of(broker.join("another", **large())) == 0


def test_one_group_is_full_before_all_are_and_a_member_that_brings_no_more_stays(
    broker: Office,
) -> None:
    calls = [broker.join("g", **large()) for _ in range(20)]
    broker.wait(0)
    assert [error_of(call) for call in calls].count(FULL) == 20 - GROUP_BYTES_MAX // len(LARGE)
    assert broker.groups.memory.held_bytes <= GROUP_BYTES_MAX
    member = calls[0].answer["member_id"]
    assert error_of(broker.join("g", member, **large())) == 0
    assert error_of(broker.join("g", member, **large(LARGE * 2))) == FULL
    assert error_of(broker.join("other", **large())) == 0


def test_a_member_that_brings_no_more_is_let_in_where_the_coordinator_is_full(
    broker: Office,
) -> None:
    first = broker.join("g0", **large())
    for number in range(1, 100):
        broker.join(f"g{number}", **large())
    broker.wait(0)
    assert error_of(broker.join("g100", **large())) == LATER
    assert error_of(broker.join("g0", first.answer["member_id"], **large())) == 0


def test_assignments_count_and_are_refused_where_there_is_no_room(broker: Office) -> None:
    broker.stable("before")
    held = broker.groups.memory.held_bytes
    call = broker.join("g", **large(b""))
    broker.wait(0)
    broker.groups.memory.bytes_max = held + 3000
    member = call.answer["member_id"]
    sync = Call()
    body = {
        "group_id": "g",
        "member_id": member,
        "group_instance_id": None,
        "generation_id": 1,
        "protocol_type": None,
        "protocol_name": None,
        "assignments": [{"member_id": member, "assignment": bytes(900_000)}],
    }
    broker.groups.classics.sync(sync, body)
    assert error_of(sync) == LATER
    broker.groups.memory.bytes_max = BYTES_MAX
    sync = Call()
    broker.groups.classics.sync(sync, body)
    assert error_of(sync) == 0
    assert broker.groups.memory.held_bytes > held + 900_000


def test_ids_that_nobody_uses_make_room_for_those_who_join(broker: Office) -> None:
    member = broker.stable("in use")
    memory = broker.groups.memory

    first = ask_for_id(broker, "g")
    for _ in range(5000):
        last = ask_for_id(broker, "g")
    group = broker.groups.groups["g"]
    assert memory.held_bytes < GROUP_BYTES_MAX // 3
    assert first not in group.pending_joins and last in group.pending_joins
    memory.bytes_max = 4 << 20
    for number in range(3000):
        ask_for_id(broker, f"g{number}")
    assert memory.held_bytes <= memory.bytes_max
    assert {"in use", "g2999"} <= set(broker.groups.groups)
    assert broker.heartbeat(member, "in use") == 0
    assert error_of(broker.join("h", **large())) == 0
    broker.wait(HALF_AN_HOUR_MS)
    assert memory.held_bytes == 0


def test_a_group_that_has_to_go_for_its_own_member_is_none_any_more(broker: Office) -> None:
    memory = broker.groups.memory
    member = ask_for_id(broker, "g")
    memory.bytes_max = len(LARGE) + 3500  # enough, once the id is forgotten
    assert error_of(broker.join("g", member, **large())) == LATER
    assert "g" not in broker.groups.groups and memory.held_bytes == 0
    assert error_of(broker.join("g", member, **large())) == error_codes.UNKNOWN_MEMBER_ID
    assert error_of(broker.join("g", **large())) == 0


def test_groups_with_neither_members_nor_offsets_are_few(
    broker: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_table, "IDLE_GROUPS_MAX", 5)
    member = broker.stable("in use")
    broker.commit(group="with offsets")
    for number in range(30):
        name = f"g{number}"
        gone = broker.stable(name)
        assert broker.groups.classics.leave(name, [(gone, None)]) == (0, [0])
    left = broker.names()
    assert {"in use", "with offsets", "g29"} <= left
    assert len(left) <= 2 + 5 + 2
    assert broker.heartbeat(member, "in use") == 0
    broker.restart()
    assert broker.names() == left


def test_names_that_members_subscribe_to_are_bounded(broker: Office) -> None:
    joined = 0
    while "error_code" not in (answer := broker.enter(f"m{joined}", subscribed_topic_names=NAMES)):
        joined += 1
        assert joined < 100
    assert answer["error_code"] == FULL
    memory = broker.groups.memory
    assert joined == GROUP_BYTES_MAX // (names_bytes(NAMES) + 1024)
    assert memory.held_bytes <= GROUP_BYTES_MAX
    memory.bytes_max = memory.held_bytes + 1000
    assert broker.enter("n", group_id="h", subscribed_topic_names=NAMES)["error_code"] == LATER
    assert "error_code" not in broker.enter("m0", subscribed_topic_names=NAMES)
    broker.wait(HALF_AN_HOUR_MS)
    assert memory.held_bytes == 0


def test_expressions_of_a_group_are_bounded(
    broker: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("re2")
    from shmbroker.groups.consumer import regexes

    monkeypatch.setattr(regexes, "REGEXES_MAX", 3)
    errors = [
        broker.enter(
            f"m{number}", subscribed_topic_names=None, subscribed_topic_regex=f"t{number}"
        ).get("error_code", 0)
        for number in range(4)
    ]
    assert errors == [0, 0, 0, error_codes.INVALID_REGULAR_EXPRESSION]


def test_a_member_has_few_protocols(broker: Office) -> None:
    many = [{"name": str(number), "metadata": b""} for number in range(101)]
    assert error_of(broker.join(protocols=many)) == error_codes.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(broker.join(protocols=many[:100])) == 0


def test_equal_subscriptions_are_read_once(broker: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """… and of different ones no more names than are read in some milliseconds."""
    from shmbroker.groups.classic import agreement

    read: list[int] = []
    original = agreement.subscribed_topics

    def counting(metadata: bytes, count_max: int) -> tuple[list[str], int] | None:
        found = original(metadata, count_max)
        read.append(len(found[0]) if found is not None else 0)
        return found

    monkeypatch.setattr(agreement, "subscribed_topics", counting)

    def subscription(names: list[str], own: bytes = b"") -> dict[str, Any]:
        packed = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in names)
        return large(b"\0\1" + len(names).to_bytes(4, "big") + packed + b"\xff\xff\xff\xff" + own)

    for number in range(50):
        broker.join("g", **subscription(NAMES[:1000], str(number).encode()))
    broker.wait(0)
    assert broker.groups.groups["g"].subscribed_topics == frozenset(NAMES[:1000])
    assert max(read) == 1000 and sum(read) < 52 * 1000 / 10
    read.clear()
    for number in range(20):
        broker.join("h", **subscription([f"{number}-{each}" for each in range(10_000)]))
    broker.wait(0)
    assert broker.groups.groups["h"].subscribed_topics is None
    assert sum(read) <= 2 * group_memory.SUBSCRIBED_NAMES_MAX
