"""A classic group that is loaded, that ends, and that tells what it is subscribed to."""

import pytest

from shmbroker.groups.classic import agreement
from shmbroker.groups.classic.answers import described
from shmbroker.groups.classic.group_value import value_of
from shmbroker.groups.classic.member import subscribed_topics
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes
from tests.unit.groups.groups_at_work import SESSION_MS, Table, code, static_group

UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
REBALANCE = error_codes.REBALANCE_IN_PROGRESS


def test_a_group_goes_on_where_its_record_left_it() -> None:
    table = Table(delay_ms=10)
    leader, follower = static_group(table, "a", "b")
    successor = table.successor()
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
    successor = table.successor()
    assert (successor.group.state, successor.group.generation_id) == ("Empty", 2)
    assert successor.group.wake_ms == NEVER_MS


def test_a_loaded_group_that_is_too_large_now_rebalances() -> None:
    table = Table()
    one, _ = table.stable(2)
    successor = table.successor(size_max=1)
    assert successor.heartbeat(one) == REBALANCE


def test_a_loaded_group_that_is_just_as_large_as_allowed_stays_as_it_is() -> None:
    table = Table()
    one, _ = table.stable(2)
    successor = table.successor(size_max=2)
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
