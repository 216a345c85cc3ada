"""The state machine of a classic group: who joins it, who is answered what, and when."""

import pytest

from shmbroker.groups.classic.joining import NEW_MEMBER_TIMEOUT_MS
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import REBALANCE_MS, SESSION_MS, Table, code

UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
REBALANCE = error_codes.REBALANCE_IN_PROGRESS
ILLEGAL_GENERATION = error_codes.ILLEGAL_GENERATION
INCONSISTENT = error_codes.INCONSISTENT_GROUP_PROTOCOL
STORAGE = error_codes.NOT_COORDINATOR


# ── joining ───────────────────────────────────────────────────────────────────────────────────────


def test_a_first_member_waits_for_the_initial_delay() -> None:
    table = Table(delay_ms=3000)
    call = table.join()
    table.wait(2999)
    assert call.answer is None
    table.wait(1)
    assert code(call) == 0
    assert call.answer["generation_id"] == 1
    assert call.answer["leader"] == call.answer["member_id"]
    assert [each["metadata"] for each in call.answer["members"]] == [b"m"]


def test_each_newcomer_extends_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    table = Table(delay_ms=3000)
    calls = [table.join(rebalance_ms=7000)]
    for _ in range(2):
        table.wait(2000)
        calls.append(table.join(rebalance_ms=7000))
    table.wait(2999)
    assert [call.answer for call in calls] == [None] * 3
    table.wait(1)
    assert [code(call) for call in calls] == [0, 0, 0]


def test_only_the_leader_sees_the_members() -> None:
    table = Table(delay_ms=1000)
    calls = [table.join() for _ in range(3)]
    table.wait(2000)
    sizes = {call.answer["member_id"]: len(call.answer["members"]) for call in calls}
    leader = calls[0].answer["leader"]
    assert sizes.pop(leader) == 3
    assert set(sizes.values()) == {0}


def test_a_new_dynamic_member_is_given_an_id_first() -> None:
    table = Table()
    call = table.join(version=4)
    assert code(call) == error_codes.MEMBER_ID_REQUIRED
    assert table.group.members == {}
    again = table.join(call.answer["member_id"], version=4)
    table.wait(0)
    assert code(again) == 0
    assert again.answer["member_id"] == call.answer["member_id"]


def test_an_id_that_is_not_used_in_time_is_forgotten() -> None:
    table = Table()
    member_id = table.join(version=4).answer["member_id"]
    table.wait(SESSION_MS)
    assert code(table.join(member_id, version=4)) == UNKNOWN_MEMBER


def test_each_id_has_its_own_time_and_takes_room_until_then() -> None:
    table = Table()
    first = table.join(version=4).answer["member_id"]
    table.wait(SESSION_MS - 1)
    second = table.join(version=4).answer["member_id"]
    of_two = table.group.held_bytes
    table.wait(1)
    assert 0 < table.group.held_bytes < of_two
    assert code(table.join(first, version=4)) == UNKNOWN_MEMBER
    table.wait(SESSION_MS - 2)
    assert table.group.held_bytes > 0
    table.wait(1)
    assert code(table.join(second, version=4)) == UNKNOWN_MEMBER
    assert table.group.held_bytes == 0


def test_a_rebalance_waits_for_ids_that_were_given_out() -> None:
    table = Table()
    (one,) = table.stable(1)
    pending = table.join(version=4).answer["member_id"]
    first = table.join(one)
    assert first.answer is None
    second = table.join(pending, version=4)
    assert code(first) == code(second) == 0


def test_a_first_rebalance_ends_when_the_id_that_it_waits_for_is_forgotten() -> None:
    """As Kafka has it, though another newcomer might still come in its time."""
    table = Table(delay_ms=60_000)
    call = table.join(rebalance_ms=90_000)
    table.join(version=4)
    table.wait(SESSION_MS - 1)
    assert call.answer is None
    table.wait(1)
    assert code(call) == 0


def test_an_id_that_leaves_is_not_waited_for() -> None:
    table = Table()
    (one,) = table.stable(1)
    pending = table.join(version=4).answer["member_id"]
    first = table.join(one)
    assert table.leave((pending, None)) == [0]
    assert code(first) == 0


def test_version_0_has_its_session_timeout_for_the_rebalance() -> None:
    table = Table()
    call = table.join(version=0, rebalance_ms=-1)
    table.wait(0)
    assert table.group.members[call.answer["member_id"]].rebalance_timeout_ms == SESSION_MS


@pytest.mark.parametrize(
    ("protocol_type", "protocols"), [("", (("range", b""),)), ("consumer", ()), ("", ())]
)
def test_an_empty_group_takes_nobody_without_protocols(protocol_type, protocols) -> None:
    call = Table().join(protocol_type=protocol_type, protocols=protocols)
    assert code(call) == INCONSISTENT


def test_a_member_that_no_protocol_unites_with_the_others_is_refused() -> None:
    table = Table()
    (one,) = table.stable(1)
    assert code(table.join(protocols=(("other", b""),))) == INCONSISTENT
    assert code(table.join(protocol_type="connect")) == INCONSISTENT
    assert code(table.join(one, protocols=(("other", b""),))) == INCONSISTENT
    assert table.group.state == "Stable"


def test_the_protocol_with_most_votes_among_those_that_all_know_is_chosen() -> None:
    table = Table(delay_ms=10)
    a, b, c = (("a", b""), ("b", b""), ("c", b""))
    calls = [
        table.join(protocols=(c, b, a)),
        table.join(protocols=(b, a)),
        table.join(protocols=(b, a, c)),
        table.join(protocols=(a, b)),
    ]
    table.wait(100)
    assert {call.answer["protocol_name"] for call in calls} == {"b"}


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(
    ("names", "first"),
    [(("range", "rr"), "rr"), (("range", "roundrobin"), "range"), (("a", "b"), "a")],
)
def test_of_protocols_with_as_many_votes_the_one_is_chosen_that_kafka_chooses(
    names, first, is_reversed
) -> None:
    one, other = ((name, b"") for name in names)
    sides = [(one, other), (other, one)]
    table = Table(delay_ms=1000)
    calls = [table.join(protocols=each) for each in (sides[::-1] if is_reversed else sides)]
    table.wait(2000)
    assert {call.answer["protocol_name"] for call in calls} == {first}


@pytest.mark.parametrize(("names", "first"), [("abcdefghijkp", "p"), ("abcdefghijklp", "a")])
def test_of_many_protocols_the_one_is_chosen_that_is_first_in_a_map_of_java(names, first) -> None:
    """HashMap doubles its 16 places with the thirteenth name; p is first of 16, and not of 32."""
    table = Table(delay_ms=1000)
    sides = [names[at:] + names[:at] for at in range(len(names))]
    calls = [table.join(protocols=tuple((name, b"") for name in each)) for each in sides]
    table.wait(20_000)
    assert {call.answer["protocol_name"] for call in calls} == {first}


def test_a_group_that_is_full_refuses() -> None:
    table = Table(size_max=2)
    one, two = table.stable(2)
    refused = table.join()
    assert code(refused) == error_codes.GROUP_MAX_SIZE_REACHED
    assert refused.answer["member_id"] == ""
    assert table.join(one).answer is None, "who is in may come again"
    assert table.join(two).answer is not None


def test_a_full_group_refuses_while_it_rebalances() -> None:
    table = Table(delay_ms=1000, size_max=2)
    calls = [table.join() for _ in range(3)]
    table.wait(5000)
    assert [code(call) for call in calls] == [0, 0, error_codes.GROUP_MAX_SIZE_REACHED]


def test_a_member_of_another_life_is_unknown() -> None:
    table = Table()
    table.stable(1)
    assert code(table.join("ghost")) == UNKNOWN_MEMBER


def test_a_new_member_that_has_gone_silent_is_not_waited_for_for_ever() -> None:
    table = Table()
    one, two = table.stable(2)
    newcomer = table.join(rebalance_ms=2 * NEW_MEMBER_TIMEOUT_MS)
    first = table.join(one, rebalance_ms=2 * NEW_MEMBER_TIMEOUT_MS)
    end = table.now_ms + NEW_MEMBER_TIMEOUT_MS
    while table.now_ms < end - 5000:
        table.wait(5000)
        assert table.heartbeat(two) == REBALANCE
    assert newcomer.answer is None
    table.wait(5000)
    assert code(newcomer) == UNKNOWN_MEMBER
    assert first.answer is None


# ── joining again ─────────────────────────────────────────────────────────────────────────────────


def test_a_follower_that_repeats_itself_gets_its_generation_again() -> None:
    table = Table()
    _, two = table.stable(2)
    call = table.join(two)
    assert code(call) == 0
    assert call.answer["generation_id"] == table.group.generation_id
    assert call.answer["members"] == []
    assert table.group.state == "Stable"


def test_a_leader_that_joins_again_begins_a_rebalance() -> None:
    table = Table()
    one, two = table.stable(2)
    generation = table.group.generation_id
    first = table.join(one)
    assert first.answer is None
    assert table.heartbeat(two) == REBALANCE
    second = table.join(two)
    assert code(first) == code(second) == 0
    assert second.answer["generation_id"] == generation + 1


def test_a_follower_with_new_metadata_begins_a_rebalance() -> None:
    table = Table()
    one, two = table.stable(2)
    second = table.join(two, protocols=(("range", b"new"),))
    assert second.answer is None
    first = table.join(one)
    assert {each["metadata"] for each in first.answer["members"]} == {b"m", b"new"}


def test_a_member_that_missed_its_answer_gets_it_before_the_sync() -> None:
    table = Table()
    call = table.join()
    table.wait(0)
    member_id = call.answer["member_id"]
    again = table.join(member_id)
    assert again.answer["generation_id"] == 1
    assert len(again.answer["members"]) == 1


def test_who_does_not_join_in_time_is_out() -> None:
    table = Table()
    one, two = table.stable(2)
    first = table.join(one)
    for _ in range(REBALANCE_MS // 5000):
        assert first.answer is None
        assert table.heartbeat(two) == REBALANCE
        table.wait(5000)
    assert code(first) == 0
    assert [each["member_id"] for each in first.answer["members"]] == [one]
    assert table.heartbeat(two) == UNKNOWN_MEMBER


def test_another_leads_if_the_leader_does_not_come() -> None:
    table = Table()
    _, two = table.stable(2)
    call = table.join(two, protocols=(("range", b"new"),))
    table.wait(REBALANCE_MS)
    assert call.answer["leader"] == two


def test_a_join_that_overtakes_another_sends_it_away() -> None:
    table = Table()
    one, _ = table.stable(2)
    first, second = table.join(one), table.join(one)
    assert code(first) == REBALANCE
    assert second.answer is None


# ── assignments ───────────────────────────────────────────────────────────────────────────────────


def test_everybody_gets_what_the_leader_gave() -> None:
    table = Table(delay_ms=10)
    calls = [table.join() for _ in range(3)]
    table.wait(100)
    leader = calls[0].answer["leader"]
    others = [call.answer["member_id"] for call in calls if call.answer["member_id"] != leader]
    early = table.sync(others[0])
    assert early.answer is None
    lead = table.sync(leader, {leader: b"L", others[0]: b"A"})
    late = table.sync(others[1])
    assert [call.answer["assignment"] for call in (lead, early, late)] == [b"L", b"A", b""]
    assert lead.answer["protocol_name"] == "range"
    record = table.stored[-1]
    assert {row["member_id"]: row["assignment"] for row in record["members"]} == {
        leader: b"L",
        others[0]: b"A",
        others[1]: b"",
    }
    assert record["generation"] == 1


def test_a_sync_is_refused_for_its_reason() -> None:
    table = Table()
    one, two = table.stable(2)
    assert code(table.sync("ghost")) == UNKNOWN_MEMBER
    assert code(table.sync(one, generation=0)) == ILLEGAL_GENERATION
    assert code(table.sync(one, instance="nobody")) == UNKNOWN_MEMBER
    assert code(table.sync(one, protocol_type="connect")) == INCONSISTENT
    assert code(table.sync(one, protocol_name="other")) == INCONSISTENT
    table.join(one)
    assert code(table.sync(two)) == REBALANCE
    table.leave((one, None), (two, None))
    assert code(table.sync(one)) == UNKNOWN_MEMBER


def test_who_does_not_sync_in_time_is_out() -> None:
    table = Table(delay_ms=10)
    calls = [table.join() for _ in range(2)]
    table.wait(100)
    ids = [call.answer["member_id"] for call in calls]
    leader = calls[0].answer["leader"]
    follower = next(each for each in ids if each != leader)
    assert code(table.sync(leader, {})) == 0
    for _ in range(REBALANCE_MS // 5000):
        table.heartbeat(leader)
        table.heartbeat(follower)
        table.wait(5000)
    assert table.heartbeat(follower) == UNKNOWN_MEMBER
    assert table.heartbeat(leader) == REBALANCE


def test_a_rebalance_timeout_of_0_leaves_no_time_to_sync() -> None:
    table = Table()
    call = table.join(rebalance_ms=0)
    table.wait(0)
    assert code(table.sync(call.answer["member_id"])) == UNKNOWN_MEMBER


def test_a_newcomer_before_the_assignment_sends_waiting_syncs_back_to_join() -> None:
    table = Table(delay_ms=10)
    _, follower = table.join_two()
    sync = table.sync(follower)
    table.join()
    assert code(sync) == REBALANCE


def test_an_assignment_that_cannot_be_stored_is_made_again() -> None:
    table = Table()
    (one,) = table.stable(1)
    again = table.join(one)
    assert code(again) == 0
    table.storage_error = STORAGE
    assert code(table.sync(one, {one: b"x"})) == STORAGE
    assert table.heartbeat(one) == REBALANCE
    table.storage_error = 0
    assert code(table.join(one)) == 0
    assert table.sync(one, {one: b"x"}).answer["assignment"] == b"x"


def test_a_sync_that_overtakes_another_sends_it_away() -> None:
    table = Table(delay_ms=10)
    leader, follower = table.join_two()
    first, second = table.sync(follower), table.sync(follower)
    assert code(first) == REBALANCE
    table.sync(leader, {follower: b"x"})
    assert second.answer["assignment"] == b"x"
