"""The groups of one broker: found by partition, listed, timed."""

from pathlib import Path
from typing import Any

import pytest

from shmbroker.groups.classic.group import ClassicGroup
from shmbroker.groups.group_partition import group_partition
from shmbroker.groups.timers import TIDY_FROM
from shmbroker.wire import error_codes
from tests.unit.groups.coordinator_at_work import (
    LOADING,
    MINUTE_MS,
    NOT_COORDINATOR,
    RETENTION_MS,
    Broker,
    broker,
)

__all__ = ["broker"]


# ── whose group ───────────────────────────────────────────────────────────────────────────────────


def test_only_groups_of_partitions_led_here_are_served(tmp_path: Path) -> None:
    broker = Broker(tmp_path, partitions=3)
    broker.groups.on_partition_gone(1)
    for number in range(30):
        group = f"group-{number}"
        wanted = NOT_COORDINATOR if group_partition(group, 3) == 1 else 0
        assert broker.commit(group=group) == wanted
        call = broker.join(group)
        if wanted:
            assert call.answer["error_code"] == wanted
            assert broker.groups.describe(group) == (wanted, None)
            assert broker.groups.removal.delete(group) == wanted
            assert broker.groups.classics.leave(group, [("m", None)]) == (wanted, [])
            assert broker.groups.offsets.delete_offsets(group, []) == (wanted, [])
            assert broker.groups.offsets.fetch(group, None, False)[0] == wanted
            assert broker.sync("m", group).answer["error_code"] == wanted
            assert broker.heartbeat("m", group) == wanted


def test_a_broker_without_the_topic_coordinates_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path, partitions=0)
    assert broker.commit() == NOT_COORDINATOR
    assert broker.groups.list_groups(set(), set()) == (0, [])


def test_groups_wait_for_partitions_that_are_being_opened(tmp_path: Path) -> None:
    for partitions in (0, 3):
        directory = tmp_path / str(partitions)
        directory.mkdir()
        broker = Broker(directory, partitions)
        for index in range(partitions):
            broker.groups.on_partition_gone(index)
        broker.groups.is_opening = True
        assert broker.commit() == LOADING
        assert broker.heartbeat("m") == 0
        assert broker.groups.list_groups(set(), set()) == (LOADING, [])
        broker.groups.is_opening = False
        assert broker.commit() == NOT_COORDINATOR


def test_a_group_needs_a_name_except_for_offsets(broker: Broker) -> None:
    nameless = error_codes.INVALID_GROUP_ID
    assert broker.join("").answer["error_code"] == nameless
    assert broker.sync("m", "").answer["error_code"] == nameless
    assert broker.heartbeat("m", "") == nameless
    assert broker.groups.classics.leave("", [])[0] == nameless
    assert broker.groups.offsets.delete_offsets("", [])[0] == nameless
    assert broker.commit(group="") == 0
    assert broker.committed("") == {("t", 0): 5}
    assert broker.groups.removal.delete("") == 0


@pytest.mark.parametrize(
    ("session_ms", "is_allowed"),
    [(5999, False), (6000, True), (1_800_000, True), (1_800_001, False)],
)
def test_a_session_has_its_limits(broker: Broker, session_ms: int, is_allowed: bool) -> None:
    call = broker.join(session_timeout_ms=session_ms)
    broker.wait(0)
    wanted = 0 if is_allowed else error_codes.INVALID_SESSION_TIMEOUT
    assert call.answer["error_code"] == wanted


def test_nobody_is_known_in_a_group_that_there_is_not(broker: Broker) -> None:
    unknown = error_codes.UNKNOWN_MEMBER_ID
    assert broker.join(member="ghost").answer["error_code"] == unknown
    assert broker.sync("ghost").answer["error_code"] == unknown
    assert broker.heartbeat("ghost") == unknown
    leaving = [("ghost", None), ("", "i")]
    assert broker.groups.classics.leave("g", leaving) == (0, [unknown, unknown])
    assert broker.commit(generation=1) == error_codes.GROUP_ID_NOT_FOUND
    assert broker.commit(generation=1, version=8) == error_codes.ILLEGAL_GENERATION
    assert broker.groups.describe("g") == (0, None)
    assert broker.names() == set()


def test_a_group_that_could_not_begin_leaves_nothing(broker: Broker) -> None:
    assert broker.join(protocols=[]).answer["error_code"] != 0
    assert broker.commit(metadata="x" * 4097) == error_codes.OFFSET_METADATA_TOO_LARGE
    assert broker.names() == set()
    assert broker.appended == []


def test_groups_are_listed_by_state_and_type(broker: Broker) -> None:
    broker.stable()
    broker.commit(group="simple")

    def found(states: set[str], types: set[str]) -> set[str]:
        return {group.group_id for group in broker.groups.list_groups(states, types)[1]}

    assert found(set(), set()) == {"g", "simple"}
    assert found({"stable"}, set()) == {"g"}
    assert found({"empty", "dead"}, {"classic", "share"}) == {"simple"}
    assert found(set(), {"consumer"}) == set()


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_timer_that_is_due_again_at_once_waits_for_the_next_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stable()
    turns = []

    def on_time(group: ClassicGroup, now_ms: int) -> list[Any]:
        turns.append(now_ms)
        group.wake_ms = now_ms
        return []

    monkeypatch.setattr(ClassicGroup, "on_time", on_time)
    broker.now_ms += 10_000
    for count in (1, 2, 3):
        broker.groups.run_due()
        assert len(turns) == count


def test_names_of_all_lengths_are_served(broker: Broker) -> None:
    name = "n" * 32_767
    member = broker.stable(name)
    assert broker.commit(group=name, member=member, generation=1) == 0
    broker.restart()
    assert broker.heartbeat(member, name) == 0
    assert broker.committed(name) == {("t", 0): 5}


@pytest.mark.parametrize("retention_ms", [-(2**63), -2, 0, 2**63 - 1])
def test_any_retention_time_is_stored(broker: Broker, retention_ms: int) -> None:
    assert broker.commit(retention_ms=retention_ms, version=2) == 0
    broker.restart()
    assert broker.committed() == {("t", 0): 5}
    broker.wait(10 * MINUTE_MS)
    assert (broker.names() == {"g"}) is (retention_ms > 0)


def test_heartbeats_leave_no_timers_behind(broker: Broker) -> None:
    members = [(f"g{number}", broker.stable(f"g{number}")) for number in range(20)]
    timers = len(broker.groups.table.timers)
    for _ in range(50):
        broker.wait(3000)
        assert all(broker.heartbeat(member, group) == 0 for group, member in members)
    assert len(broker.groups.table.timers) <= timers


def test_timers_of_groups_that_are_gone_do_not_pile_up(broker: Broker) -> None:
    timers = broker.groups.table.timers
    members = [(f"g{number}", broker.stable(f"g{number}")) for number in range(20)]
    for _ in range(2 * TIDY_FROM // len(members)):
        broker.groups.on_partition_gone(0)
        broker.groups.on_partition(broker.partitions[0], 1)
        broker.wait(1)
    assert len(timers) <= TIDY_FROM
    assert all(broker.heartbeat(member, group) == 0 for group, member in members)
    broker.wait(10 * MINUTE_MS)
    gone = error_codes.UNKNOWN_MEMBER_ID
    assert all(broker.heartbeat(member, group) == gone for group, member in members)


HOUR_MS = 60 * MINUTE_MS


@pytest.mark.parametrize("jump_ms", (-HOUR_MS, HOUR_MS))
def test_a_jump_of_the_wall_clock_ends_no_session_and_prolongs_none(
    broker: Broker, jump_ms: int
) -> None:
    member = broker.stable()
    broker.wall_ahead_ms += jump_ms
    broker.wait(9_000)
    assert broker.heartbeat(member) == 0
    broker.wait(9_000)
    assert broker.groups.groups["g"].members
    broker.wait(1_001)
    assert not broker.groups.groups["g"].members


@pytest.mark.parametrize("jump_ms", (-HOUR_MS, HOUR_MS))
def test_a_group_that_is_empty_keeps_its_offsets_over_jumps_and_coordinators(
    broker: Broker, jump_ms: int
) -> None:
    """The stamps in its records are the wall clock's, its own time is not."""
    member = broker.stable()
    broker.commit(5, member=member, generation=1)
    broker.groups.classics.leave("g", [(member, None)])
    group = broker.groups.groups["g"]
    emptied_ms = broker.now_ms
    assert group.state == "Empty" and group.state_since_ms == emptied_ms
    broker.wall_ahead_ms += jump_ms
    broker.restart()
    group = broker.groups.groups["g"]
    assert group.state_since_ms + broker.wall_ahead_ms == emptied_ms
    broker.wait(RETENTION_MS - max(jump_ms, 0) - HOUR_MS)
    assert broker.groups.groups["g"].owner.store.of_group("g")
    broker.wait(3 * HOUR_MS)
    assert "g" not in broker.groups.groups
