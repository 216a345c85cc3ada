"""The state machine of a classic group: who is answered what, and when."""

import pytest

from shmbroker.groups.classic import agreement
from shmbroker.groups.classic.answers import described
from shmbroker.groups.classic.group_value import value_of
from shmbroker.groups.classic.joining import NEW_MEMBER_TIMEOUT_MS
from shmbroker.groups.classic.member import subscribed_topics
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import REBALANCE_MS, SESSION_MS, Table

UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
REBALANCE = error_codes.REBALANCE_IN_PROGRESS
ILLEGAL_GENERATION = error_codes.ILLEGAL_GENERATION
FENCED = error_codes.FENCED_INSTANCE_ID
INCONSISTENT = error_codes.INCONSISTENT_GROUP_PROTOCOL
STORAGE = error_codes.NOT_COORDINATOR


def code(call):
    return call.answer["error_code"]


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
    calls = [table.join() for _ in range(2)]
    table.wait(100)
    leader = calls[0].answer["leader"]
    follower = next(c.answer["member_id"] for c in calls if c.answer["member_id"] != leader)
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
    calls = [table.join() for _ in range(2)]
    table.wait(100)
    leader = calls[0].answer["leader"]
    follower = next(c.answer["member_id"] for c in calls if c.answer["member_id"] != leader)
    first, second = table.sync(follower), table.sync(follower)
    assert code(first) == REBALANCE
    table.sync(leader, {follower: b"x"})
    assert second.answer["assignment"] == b"x"


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
    calls = [table.join(rebalance_ms=10 * SESSION_MS) for _ in range(2)]
    table.wait(100)
    leader = calls[0].answer["leader"]
    follower = next(c.answer["member_id"] for c in calls if c.answer["member_id"] != leader)
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
    calls = [table.join() for _ in range(2)]
    table.wait(100)
    leader = calls[0].answer["leader"]
    follower = next(c.answer["member_id"] for c in calls if c.answer["member_id"] != leader)
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


# ── static members ────────────────────────────────────────────────────────────────────────────────


def static_group(table: Table, *instances: str) -> list[str]:
    calls = [table.join(instance=each) for each in instances]
    table.wait(100)
    ids = [call.answer["member_id"] for call in calls]
    leader = table.group.leader_id
    for each in sorted(ids, key=lambda each: each == leader):
        table.sync(each, {i: i.encode() for i in ids})
    assert table.group.state == "Stable"
    return ids


def test_a_static_member_needs_no_id_and_is_named_after_its_instance() -> None:
    table = Table()
    call = table.join(instance="i", version=9)
    table.wait(0)
    assert call.answer["member_id"].startswith("i-")


def test_a_member_that_comes_again_takes_the_room_that_it_has() -> None:
    table = Table()
    (one,) = static_group(table, "a")
    room = table.group.bytes_of(one, None)
    assert room > 0
    assert table.group.bytes_of("", "a") == table.group.bytes_of(one, "a") == room
    for member_id, instance in (("ghost", None), ("ghost", "a"), ("", "z"), ("", None)):
        assert table.group.bytes_of(member_id, instance) == 0


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


# ── loading and ending ────────────────────────────────────────────────────────────────────────────


def test_a_group_goes_on_where_its_record_left_it() -> None:
    table = Table(delay_ms=10)
    leader, follower = static_group(table, "a", "b")
    successor = Table()
    successor.group.replay(table.stored[-1])
    successor.run(successor.group.on_loaded(successor.now_ms))
    assert successor.group.state == "Stable"
    assert value_of(successor.group) == table.stored[-1]
    assert successor.group.held_bytes == table.group.held_bytes
    assert successor.heartbeat(leader, "a") == 0
    assert successor.sync(follower, instance="b").answer["assignment"] == follower.encode()
    successor.wait(SESSION_MS)
    assert successor.heartbeat(leader, "a") == UNKNOWN_MEMBER


def test_an_empty_group_is_loaded_empty() -> None:
    table = Table()
    (one,) = table.stable(1)
    table.leave((one, None))
    successor = Table()
    successor.group.replay(table.stored[-1])
    successor.run(successor.group.on_loaded(successor.now_ms))
    assert (successor.group.state, successor.group.generation_id) == ("Empty", 2)
    assert successor.group.wake_ms == NEVER_MS


def test_a_loaded_group_that_is_too_large_now_rebalances() -> None:
    table = Table()
    one, _ = table.stable(2)
    successor = Table(size_max=1)
    successor.group.replay(table.stored[-1])
    successor.run(successor.group.on_loaded(successor.now_ms))
    assert successor.heartbeat(one) == REBALANCE


def test_a_loaded_group_that_is_just_as_large_as_allowed_stays_as_it_is() -> None:
    table = Table()
    one, _ = table.stable(2)
    successor = Table(size_max=2)
    successor.group.replay(table.stored[-1])
    successor.run(successor.group.on_loaded(successor.now_ms))
    assert successor.heartbeat(one) == 0


def test_heartbeat_that_another_has_answered_extends_the_session() -> None:
    table = Table()
    one, two = table.stable(2)
    table.wait(SESSION_MS - 1)
    table.group.see(one, table.now_ms)
    table.group.see("unknown", table.now_ms)
    table.wait(1)
    assert list(table.group.members) == [one], "of the other one nothing was heard"
    table.group.see(one, table.now_ms - SESSION_MS)  # told late: there were others since
    table.wait(SESSION_MS - 2)
    assert list(table.group.members) == [one]
    table.wait(1)
    assert not table.group.members
    assert two not in table.group.members


def test_whoever_waits_is_sent_away_when_the_group_goes() -> None:
    table = Table()
    one, two = table.stable(2)
    join = table.join(one)
    table.run(table.group.on_gone(error_codes.NOT_COORDINATOR, table.now_ms))
    assert code(join) == error_codes.NOT_COORDINATOR
    assert table.group.state == "Dead"
    gone = error_codes.COORDINATOR_NOT_AVAILABLE
    assert table.heartbeat(two) == gone
    assert code(table.join()) == gone
    assert table.commit() == gone


def test_who_waits_for_an_assignment_is_told_that_the_group_goes() -> None:
    table = Table()
    leader, follower = table.stable(2)
    joins = [table.join(each) for each in (leader, follower)]
    assert [code(join) for join in joins] == [0, 0]
    sync = table.sync(follower)
    assert sync.answer is None
    table.run(table.group.on_gone(error_codes.NOT_COORDINATOR, table.now_ms))
    assert code(sync) == error_codes.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (b"\0\0\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff", ["a", "bc"]),
        (b"\0\3\0\0\0\0anything", []),
        (b"", None),
        (b"\0\0", None),
        (b"\0\0\xff\xff\xff\xff", None),
        (b"\0\0\x7f\xff\xff\xff\0\1a", None),
        (b"\0\0\0\0\0\1\0\5a", None),
        (b"\0\0\0\0\0\1\xff\xffa", None),
        (b"\0\0\0\0\0\1\0\1\xff", None),
    ],
)
def test_topics_of_a_subscription(metadata, topics) -> None:
    found = subscribed_topics(metadata, 100)
    assert (None if found is None else found[0]) == topics
    if topics:
        assert subscribed_topics(metadata, len(topics) - 1) is None


def test_a_group_knows_what_it_is_subscribed_to() -> None:
    table = Table()
    table.stable(1, protocols=(("range", b"\0\0\0\0\0\1\0\1a\xff\xff\xff\xff"),))
    assert table.group.is_subscribed("a")
    assert not table.group.is_subscribed("b")


def test_a_group_is_subscribed_to_what_any_member_is() -> None:
    table = Table(delay_ms=10)
    # The second begins as the first does; what follows a subscription says nothing of topics.
    said = [("a", b"1"), ("a", b"2"), ("b", b"1"), ("c", b"1")]
    calls = [
        table.join(protocols=(("range", subscribed_to(topic) + b"\0\0\0\1" + more),))
        for topic, more in said
    ]
    table.wait(100)
    table.sync(calls[0].answer["leader"])
    assert [table.group.is_subscribed(topic) for topic in "abcd"] == [True] * 3 + [False]


def test_members_with_more_topics_than_are_kept_may_read_anything(monkeypatch) -> None:
    monkeypatch.setattr(agreement, "SUBSCRIBED_NAMES_MAX", 2)
    for topics, is_known in (("ab", True), ("abc", False)):
        table = Table(delay_ms=10)
        for topic in topics:
            call = table.join(protocols=(("range", subscribed_to(topic) + b"\xff" * 4),))
        table.wait(100)
        table.sync(call.answer["leader"])
        assert table.group.is_subscribed("x") is not is_known


def subscribed_to(topic: str) -> bytes:
    """A subscription up to its user data."""
    return b"\0\0\0\0\0\1\0\1" + topic.encode()


def test_a_group_that_is_not_stable_tells_no_subscriptions() -> None:
    table = Table()
    one, two = table.stable(2)
    rows = {row["member_id"]: row for row in described(table.group)["members"]}
    assert {name: row["member_assignment"] for name, row in rows.items()} == {
        one: one.encode(),
        two: two.encode(),
    }
    assert {row["member_metadata"] for row in rows.values()} == {b"m"}
    told = described(table.group)
    assert told["error_code"] == 0
    assert (told["group_state"], told["protocol_type"]) == ("Stable", "consumer")
    assert told["protocol_data"] == "range"
    table.join(one)
    told = described(table.group)
    assert (told["group_state"], told["protocol_type"]) == ("PreparingRebalance", "consumer")
    assert told["protocol_data"] == ""
    assert {row["member_metadata"] for row in told["members"]} == {b""}


def test_a_group_that_does_not_say_may_read_anything() -> None:
    table = Table()
    (one,) = table.stable(1, protocols=(("range", b"?"),))
    assert table.group.is_subscribed("a")
    table.leave((one, None))
    assert not table.group.is_subscribed("a")
