"""Who has a place while a classic group rebalances, who leads it then, and how long it waits."""

from shmbroker.groups.classic.joining import NEW_MEMBER_TIMEOUT_MS
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import Table


def test_a_leader_whose_process_is_replaced_before_the_first_generation_leads_still() -> None:
    """As in Kafka: it has the subscriptions of all already, and the group's order is kept."""
    table = Table(delay_ms=1000)
    table.join(instance="a")
    other = table.join(instance="b")
    again = table.join(instance="a")
    table.wait(2000)
    assert again.answer is not None and other.answer is not None
    assert again.answer["error_code"] == other.answer["error_code"] == 0
    assert again.answer["leader"] == other.answer["leader"] == again.answer["member_id"]
    assert len(again.answer["members"]) == 2


def test_who_has_joined_a_full_group_may_join_again_and_nobody_else_may() -> None:
    table = Table(delay_ms=1000, size_max=1)
    table.join()
    (member_id,) = table.group.members
    again = table.join(member_id, protocols=(("range", b"new"),))
    refused = table.join()
    assert refused.answer is not None
    assert refused.answer["error_code"] == error_codes.GROUP_MAX_SIZE_REACHED
    table.wait(1000)
    assert again.answer is not None and again.answer["error_code"] == 0


def test_who_has_not_joined_yet_keeps_no_place_from_who_comes() -> None:
    """It may be gone; of those who have not, late ones are refused, and waited for no longer."""
    table = Table(size_max=2)
    one, two = table.stable(2)
    table.join(one, protocols=(("range", b"new"),))
    assert table.group.state == "PreparingRebalance"
    newcomer = table.join()
    assert newcomer.answer is None
    late = table.join(two)
    assert late.answer is not None
    assert late.answer["error_code"] == error_codes.GROUP_MAX_SIZE_REACHED
    assert newcomer.answer is not None and newcomer.answer["error_code"] == 0
    assert table.group.members.keys() == {one, newcomer.answer["member_id"]}


def test_a_newcomer_whose_group_never_gets_ready_is_let_go() -> None:
    table = Table()
    (one,) = table.stable(1, rebalance_ms=2 * NEW_MEMBER_TIMEOUT_MS, session_ms=10**7)
    newcomer = table.join(rebalance_ms=2 * NEW_MEMBER_TIMEOUT_MS, session_ms=10**7)
    table.wait(NEW_MEMBER_TIMEOUT_MS - 1)
    assert newcomer.answer is None and len(table.group.members) == 2
    table.wait(1)
    assert list(table.group.members) == [one]


def test_a_group_that_begins_again_waits_only_for_who_comes_then() -> None:
    table = Table(delay_ms=1000)
    calls = [table.join(rebalance_ms=1000)]
    table.wait(500)
    calls.append(table.join(rebalance_ms=1000))
    table.wait(500)
    ids = [call.answer["member_id"] for call in calls if call.answer is not None]
    assert len(ids) == 2 and table.leave(*((each, None) for each in ids)) == [0, 0]
    alone = table.join()
    table.wait(1000)
    assert alone.answer is not None


def test_a_member_is_waited_for_as_long_as_the_patience_of_now() -> None:
    table = Table()
    one, _ = table.stable(2, rebalance_ms=10_000, session_ms=10**7)
    again = table.join(one, rebalance_ms=20_000, session_ms=10**7)
    table.wait(19_999)
    assert again.answer is None
    table.wait(1)
    assert again.answer is not None and list(table.group.members) == [one]


def test_only_the_first_rebalance_waits_for_more_to_come() -> None:
    table = Table(delay_ms=1000)
    first = table.join()
    table.wait(1000)
    assert first.answer is not None
    late = table.join()
    again = table.join(first.answer["member_id"])
    assert late.answer is not None and again.answer is not None
    assert table.group.generation_id == 2
