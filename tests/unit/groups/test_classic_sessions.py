"""How long a classic group goes on with members that are silent, replaced, or late."""

from typing import Any

import pytest

from shmbroker.groups.classic.group_value import members_in, value_of
from shmbroker.groups.classic.joining import NEW_MEMBER_TIMEOUT_MS
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import REBALANCE_MS, SESSION_MS, Call, Table

UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
REBALANCE = error_codes.REBALANCE_IN_PROGRESS
FENCED = error_codes.FENCED_INSTANCE_ID
LONG_MS = 10 * REBALANCE_MS


def code(call: Call) -> Any:
    assert call.answer is not None
    return call.answer["error_code"]


def test_a_new_member_that_waits_and_is_heard_has_its_time_all_the_same() -> None:
    table = Table()
    table.stable(1, rebalance_ms=LONG_MS, session_ms=LONG_MS)
    newcomer = table.join(rebalance_ms=LONG_MS)
    (_, member_id) = table.group.members
    assert table.heartbeat(member_id) == REBALANCE
    table.join(version=4)  # another deadline at the end of a session
    table.wait(SESSION_MS)
    assert newcomer.answer is None and member_id in table.group.members


def test_a_new_member_that_repeats_its_join_is_let_go_in_the_end() -> None:
    table = Table()
    patience = {"rebalance_ms": 2 * NEW_MEMBER_TIMEOUT_MS, "session_ms": 10**7}
    (one,) = table.stable(1, **patience)
    table.join(**patience)
    (_, newcomer) = table.group.members
    table.join(newcomer, **patience)
    table.wait(NEW_MEMBER_TIMEOUT_MS)
    assert list(table.group.members) == [one]


def test_a_member_that_joins_again_has_the_session_that_it_asks_for() -> None:
    table = Table()
    (one,) = table.stable(1)
    table.join(one, session_ms=LONG_MS)
    table.sync(one, {})
    assert table.heartbeat(one) == 0
    table.wait(LONG_MS - 1)
    assert table.heartbeat(one) == 0


def test_a_static_member_that_came_back_and_is_silent_goes() -> None:
    table = Table()
    table.join(instance="a")
    table.wait(0)
    table.sync(next(iter(table.group.members)), {}, instance="a")
    call = table.join(instance="a", version=9)
    assert code(call) == 0 and table.group.state == "Stable"
    table.wait(SESSION_MS)
    assert table.group.members == {}


def test_a_follower_that_asks_late_and_is_silent_then_goes() -> None:
    table = Table(delay_ms=10)
    calls = [table.join() for _ in range(2)]
    table.wait(20)
    leader, follower = sorted(table.group.members, key=lambda each: each != table.group.leader_id)
    assert [code(call) for call in calls] == [0, 0]
    table.sync(leader, {})
    assert code(table.sync(follower)) == 0
    table.wait(SESSION_MS - 1)
    assert table.heartbeat(leader) == 0
    table.wait(1)
    assert list(table.group.members) == [leader]


@pytest.mark.parametrize("is_first", [True, False])
def test_who_does_not_ask_for_its_assignment_is_out_however_long_its_session(
    is_first: bool,
) -> None:
    table = Table(delay_ms=1000)
    if is_first:
        table.join(session_ms=LONG_MS)
        table.wait(1000)
    else:
        call = table.join(session_ms=LONG_MS)
        table.wait(1000)
        assert call.answer is not None
        one = call.answer["member_id"]
        table.sync(one, {})
        table.wait(REBALANCE_MS)
        assert code(table.join(one, session_ms=LONG_MS)) == 0
    assert len(table.group.members) == 1
    table.wait(REBALANCE_MS)
    assert table.group.members == {}


def test_who_waits_for_an_assignment_joins_again_when_another_leaves() -> None:
    table = Table(delay_ms=10)
    for _ in range(2):
        table.join()
    table.wait(20)
    leader, follower = sorted(table.group.members, key=lambda each: each != table.group.leader_id)
    waiting = table.sync(follower)
    assert table.leave((leader, None)) == [0]
    assert code(waiting) == REBALANCE
    assert table.heartbeat(follower) == REBALANCE


def test_a_static_member_that_comes_back_is_the_last_that_a_rebalance_waits_for() -> None:
    table = Table(delay_ms=10)
    for each in "ab":
        table.join(instance=each)
    table.wait(20)
    leader, follower = sorted(table.group.members, key=lambda each: each != table.group.leader_id)
    instance = table.group.members[leader].instance_id
    table.sync(follower, instance=table.group.members[follower].instance_id)
    table.sync(leader, {}, instance=instance)
    waiting = table.join(leader, instance=instance)
    assert waiting.answer is None
    late = table.join(instance=table.group.members[follower].instance_id)
    assert code(waiting) == code(late) == 0


def test_who_is_replaced_while_it_joins_is_fenced() -> None:
    table = Table(delay_ms=1000)
    first = table.join(instance="a")
    second = table.join(instance="a")
    assert code(first) == FENCED
    table.wait(2000)
    assert code(second) == 0


def test_a_static_member_that_commits_without_an_id_is_fenced() -> None:
    table = Table()
    table.join(instance="a")
    assert table.commit("", -1, "a") == FENCED


def test_a_member_that_brings_more_takes_more_room() -> None:
    table = Table()
    (one,) = table.stable(1)
    before = table.group.held_bytes
    table.join(one, protocols=(("range", b"m" + bytes(1000)),))
    assert table.group.held_bytes == before + 1000


def test_a_protocol_that_a_member_names_twice_counts_once() -> None:
    table = Table(delay_ms=10)
    calls = [
        table.join(protocols=(("range", b"1"), ("range", b"2"))),
        table.join(protocols=(("range", b"1"),)),
    ]
    table.wait(20)
    assert [code(call) for call in calls] == [0, 0]


def test_a_full_group_gives_no_id() -> None:
    table = Table(size_max=1)
    table.stable(1)
    refused = table.join("ghost")
    assert code(refused) == error_codes.GROUP_MAX_SIZE_REACHED
    assert refused.answer is not None and refused.answer["member_id"] == ""


def test_version_1_has_a_rebalance_timeout_of_its_own() -> None:
    table = Table()
    table.join(version=1)
    (member,) = table.group.members.values()
    assert member.rebalance_timeout_ms == REBALANCE_MS


def test_a_group_is_stored_by_the_wall_clock_and_loaded_by_the_other() -> None:
    table = Table()
    table.stable(1)
    value = value_of(table.group, wall_ahead_ms=77)
    assert value["current_state_timestamp"] == table.group.state_since_ms + 77
    successor = Table().group
    successor.replay(value, 7)
    assert successor.state_since_ms == table.group.state_since_ms + 70


@pytest.mark.parametrize(("stored", "known"), [(-1, SESSION_MS), (0, 0), (5, 5)])
def test_a_member_of_an_old_record_has_its_session_timeout_for_rebalances(
    stored: int, known: int
) -> None:
    table = Table()
    table.stable(1)
    value = value_of(table.group)
    value["members"][0]["rebalance_timeout"] = stored
    (member,) = members_in(value)
    assert member.rebalance_timeout_ms == known
