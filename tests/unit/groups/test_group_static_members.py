"""Static members of a classic group (KIP-345): who comes back in whose place."""

import pytest

from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import REBALANCE_MS, SESSION_MS, Table, code, static_group

UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
REBALANCE = error_codes.REBALANCE_IN_PROGRESS
FENCED = error_codes.FENCED_INSTANCE_ID
STORAGE = error_codes.NOT_COORDINATOR


def test_a_static_member_needs_no_id_and_is_named_after_its_instance() -> None:
    table = Table()
    call = table.join(instance="i", version=9)
    table.wait(0)
    assert call.answer["member_id"].startswith("i-")


def test_a_member_that_comes_again_takes_the_room_that_it_has() -> None:
    table = Table()
    (one,) = static_group(table, "a")
    before = table.group.member_before
    known = before(one, None)
    assert known is table.group.members[one] and known.held_bytes > 0
    assert before("", "a") is before(one, "a") is known
    for member_id, instance in (("ghost", None), ("ghost", "a"), ("", "z"), ("", None)):
        assert before(member_id, instance) is None


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    table = Table(delay_ms=10)
    leader, follower = static_group(table, "a", "b")
    call = table.join(instance="b", version=9)
    new_id = call.answer["member_id"]
    assert (code(call), call.answer["skip_assignment"]) == (0, False)
    assert call.answer["generation_id"] == 1
    assert table.group.state == "Stable"
    assert table.sync(new_id, instance="b").answer["assignment"] == follower.encode()
    assert table.heartbeat(leader, "a") == 0
    assert new_id in [row["member_id"] for row in table.stored[-1]["members"]]


def test_the_replaced_one_is_fenced_everywhere() -> None:
    table = Table(delay_ms=10)
    _, old = static_group(table, "a", "b")
    table.join(instance="b")
    assert table.heartbeat(old, "b") == FENCED
    assert table.heartbeat(old) == UNKNOWN_MEMBER
    assert code(table.join(old, instance="b")) == FENCED
    assert code(table.sync(old, instance="b")) == FENCED
    assert table.commit(old, 1, "b") == FENCED
    assert table.leave((old, "b")) == [FENCED]


@pytest.mark.parametrize(("version", "members", "skips"), [(9, 2, True), (8, 0, False)])
def test_a_leader_that_comes_back_does_not_assign_again(version, members, skips) -> None:
    table = Table(delay_ms=10)
    leader, _ = static_group(table, "a", "b")
    call = table.join(instance="a", version=version)
    new_id = call.answer["member_id"]
    assert call.answer.get("skip_assignment", False) is skips
    assert len(call.answer["members"]) == members
    assert call.answer["leader"] == (new_id if skips else leader)
    assert table.sync(new_id, instance="a").answer["assignment"] == leader.encode()


def test_a_static_member_with_another_best_protocol_rebalances() -> None:
    table = Table()
    both = (("a", b""), ("b", b""))
    call = table.join(instance="i", protocols=both)
    table.wait(0)
    table.sync(call.answer["member_id"], {})
    again = table.join(instance="i", protocols=both[::-1])
    assert again.answer["protocol_name"] == "b"
    assert again.answer["generation_id"] == 2


def test_a_replacement_that_cannot_be_stored_is_undone() -> None:
    table = Table(delay_ms=10)
    _, old = static_group(table, "a", "b")
    table.storage_error = STORAGE
    assert code(table.join(instance="b")) == STORAGE
    assert table.heartbeat(old, "b") == 0
    table.wait(SESSION_MS - 1)
    assert table.heartbeat(old, "b") == 0


def test_a_static_member_may_be_late_for_a_generation() -> None:
    table = Table(delay_ms=10)
    leader, late = static_group(table, "a", "b")
    call = table.join(leader, instance="a", session_ms=60_000)
    for _ in range(4):
        table.wait(5000)
        table.heartbeat(late, "b")
    assert len(call.answer["members"]) == 2


def test_a_group_of_which_nobody_rejoins_waits_for_its_static_members() -> None:
    table = Table()
    (one,) = static_group(table, "a")
    dynamic = table.join(version=3)
    table.leave((dynamic.answer["member_id"] if dynamic.answer else "client-2", None))
    for _ in range(6):
        table.wait(REBALANCE_MS // 4)
        assert table.heartbeat(one, "a") == REBALANCE
    assert table.group.state == "PreparingRebalance"
    assert code(table.join(one, instance="a")) == 0


def test_a_static_member_that_comes_back_may_be_late_for_its_assignment() -> None:
    table = Table(delay_ms=10)
    calls = [table.join(instance=each) for each in "ab"]
    table.wait(100)
    leader = calls[0].answer["leader"]
    assert table.sync(leader, {}).answer["error_code"] == 0
    new_id = table.join(instance="b", version=9).answer["member_id"]
    for _ in range(REBALANCE_MS // 5000):
        table.heartbeat(leader, "a")
        table.heartbeat(new_id, "b")
        table.wait(5000)
    assert table.heartbeat(new_id, "b") == UNKNOWN_MEMBER, "it never came for it"
    assert table.heartbeat(leader, "a") == REBALANCE


def test_static_members_without_patience_are_waited_for_a_second_at_a_time() -> None:
    table = Table()
    static_group(table, "a")
    member_id = table.join(instance="a", rebalance_ms=-5, version=9).answer["member_id"]
    table.join(rebalance_ms=0)
    table.leave(("client-3", None))
    for _ in range(20):
        table.wait(1000)
        assert table.heartbeat(member_id, "a") == REBALANCE
        assert table.group.wake_ms > table.now_ms
    assert code(table.join(member_id, instance="a")) == 0


def test_a_static_member_leaves_by_its_instance() -> None:
    table = Table(delay_ms=10)
    static_group(table, "a", "b")
    assert table.leave(("", "b")) == [0]
    assert list(table.group.static_members) == ["a"]


def test_a_static_member_that_comes_back_before_the_sync_begins_a_rebalance() -> None:
    table = Table(delay_ms=10)
    calls = [table.join(instance=each) for each in "ab"]
    table.wait(100)
    leader = calls[0].answer["member_id"]
    old = table.sync(calls[1].answer["member_id"], instance="b")
    call = table.join(instance="b")
    assert code(old) == FENCED
    assert call.answer is None
    assert code(table.join(leader, instance="a")) == 0
    assert code(call) == 0


def test_an_id_that_was_given_out_is_not_a_static_members() -> None:
    table = Table()
    member_id = table.join(version=9).answer["member_id"]
    assert code(table.join(member_id, instance="i", version=9)) == error_codes.UNKNOWN_SERVER_ERROR
