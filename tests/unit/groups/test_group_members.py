"""Members of a classic group: who stays, who goes, and who may commit."""

from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import SESSION_MS, Table, code

UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
REBALANCE = error_codes.REBALANCE_IN_PROGRESS
ILLEGAL_GENERATION = error_codes.ILLEGAL_GENERATION


# ── staying and going ─────────────────────────────────────────────────────────────────────────────


def test_a_member_lives_as_long_as_it_is_heard() -> None:
    table = Table()
    (one,) = table.stable(1)
    for _ in range(5):
        table.wait(SESSION_MS - 1)
        assert table.heartbeat(one) == 0
    table.wait(SESSION_MS)
    assert table.heartbeat(one) == UNKNOWN_MEMBER
    assert table.group.state == "Empty"
    assert table.stored[-1]["members"] == []


def test_a_heartbeat_that_is_heard_of_late_takes_no_time_away() -> None:
    """One that was answered elsewhere, before the last that came here."""
    table = Table()
    (one,) = table.stable(1)
    table.wait(100)
    elsewhere_ms = table.now_ms
    table.wait(100)
    assert table.heartbeat(one) == 0
    table.group.see(one, elsewhere_ms)
    table.group.see("ghost", elsewhere_ms)
    table.wait(SESSION_MS - 1)
    assert list(table.group.members) == [one]
    table.group.see(one, table.now_ms)
    table.wait(SESSION_MS - 1)
    assert list(table.group.members) == [one]
    table.wait(1)
    assert list(table.group.members) == []


def test_a_commit_is_a_sign_of_life() -> None:
    table = Table()
    (one,) = table.stable(1)
    table.wait(SESSION_MS - 1)
    assert table.commit(one, table.group.generation_id) == 0
    table.wait(SESSION_MS - 1)
    assert table.heartbeat(one) == 0


def test_a_member_that_waits_for_the_others_need_not_be_heard() -> None:
    table = Table()
    one, two = table.stable(2, rebalance_ms=10 * SESSION_MS)
    waiting = table.join(one, rebalance_ms=10 * SESSION_MS)
    assert table.heartbeat(one) == REBALANCE, "and that begins no session"
    for _ in range(8):
        table.wait(SESSION_MS - 1)
        assert table.heartbeat(two) == REBALANCE
    assert waiting.answer is None
    table.join(two)
    assert code(waiting) == 0


def test_a_member_that_waits_for_its_assignment_need_not_be_heard() -> None:
    table = Table(delay_ms=10)
    leader, follower = table.join_two(rebalance_ms=10 * SESSION_MS)
    waiting = table.sync(follower)
    assert table.heartbeat(follower) == 0, "and that begins no session"
    for _ in range(15):
        table.wait(5000)
        assert table.heartbeat(leader) == 0
    table.sync(leader, {follower: b"x"})
    assert waiting.answer["assignment"] == b"x"
    table.wait(SESSION_MS - 1)
    assert table.heartbeat(follower) == 0


def test_who_leaves_is_answered_what_it_had_synced_for() -> None:
    table = Table(delay_ms=10)
    _, follower = table.join_two()
    waiting = table.sync(follower)
    assert table.leave((follower, None)) == [0]
    assert code(waiting) == UNKNOWN_MEMBER


def test_another_leads_if_the_leader_leaves() -> None:
    table = Table()
    one, two = table.stable(2)
    table.leave((one, None))
    call = table.join(two)
    assert call.answer["leader"] == two
    assert len(call.answer["members"]) == 1


def test_a_heartbeat_is_refused_for_its_reason() -> None:
    table = Table()
    (one,) = table.stable(1)
    generation = table.group.generation_id
    assert table.heartbeat("ghost") == UNKNOWN_MEMBER
    assert table.heartbeat(one, generation=generation - 1) == ILLEGAL_GENERATION
    assert table.heartbeat(one, generation=generation + 1) == ILLEGAL_GENERATION
    assert table.heartbeat(one, "nobody") == UNKNOWN_MEMBER


def test_who_leaves_is_not_waited_for() -> None:
    table = Table()
    one, two = table.stable(2)
    waiting = table.join(one)
    assert table.leave((two, None)) == [0]
    assert code(waiting) == 0


def test_who_leaves_is_answered_what_it_waited_for() -> None:
    table = Table()
    one, _ = table.stable(2)
    waiting = table.join(one)
    assert table.leave((one, None)) == [0]
    assert code(waiting) == UNKNOWN_MEMBER


def test_several_leave_at_once_each_with_its_answer() -> None:
    table = Table()
    one, two = table.stable(2)
    errors = table.leave(("ghost", None), ("", "nobody"), (one, None), ("", None), (two, None))
    assert errors == [UNKNOWN_MEMBER, UNKNOWN_MEMBER, 0, UNKNOWN_MEMBER, 0]
    assert table.group.state == "Empty"
    assert table.group.generation_id == 2
    assert table.stored[-1]["protocol"] is None


def test_an_empty_group_begins_again_after_its_last_generation() -> None:
    table = Table()
    (one,) = table.stable(1)
    table.leave((one, None))
    call = table.join(protocol_type="connect")
    table.wait(0)
    assert call.answer["generation_id"] == 3
    assert call.answer["protocol_type"] == "connect"


# ── commits ───────────────────────────────────────────────────────────────────────────────────────


def test_who_may_commit() -> None:
    table = Table()
    assert table.commit() == 0, "nobody is in it"
    assert table.commit("anyone", -1) == 0
    assert table.commit("anyone", 0) == UNKNOWN_MEMBER
    call = table.join()
    assert table.commit() == UNKNOWN_MEMBER
    assert table.group.on_commit("", None, -1, table.now_ms, is_transactional=True) == 0
    table.wait(0)
    member_id = call.answer["member_id"]
    assert table.commit(member_id, 1) == REBALANCE, "its assignment is not there yet"
    table.sync(member_id, {})
    assert table.commit(member_id, 1) == 0
    assert table.commit(member_id, 0) == ILLEGAL_GENERATION
    assert table.commit(member_id, -1) == ILLEGAL_GENERATION
    assert table.commit("ghost", 1) == UNKNOWN_MEMBER
    table.join(version=3)
    assert table.commit(member_id, 1) == 0, "before it joins again"
