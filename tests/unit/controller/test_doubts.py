"""Whose word counts while a family starts: what brokers have told holds until they begin again."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.controller.decisions.doubts import Doubts, led_by_the_longest

NOBODY: frozenset[int] = frozenset()


@pytest.fixture
def doubts() -> Doubts:
    """Broker 1 is in doubt, and has told all."""
    made = Doubts()
    made.note(1, False)
    made.tell(1, [], True)
    assert made.can_be_settled(NOBODY, True)
    return made


def test_nobody_in_doubt_leaves_nothing_to_settle() -> None:
    doubts = Doubts()
    assert not doubts.can_be_settled(NOBODY, True)
    doubts.note(1, True)
    assert not doubts.can_be_settled(NOBODY, True)


def test_who_begins_again_has_told_nothing(doubts: Doubts) -> None:
    doubts.note(1, False)
    assert not doubts.can_be_settled(NOBODY, True)
    doubts.tell(1, [], False)
    assert not doubts.can_be_settled(NOBODY, True), "that was not all"
    doubts.tell(1, [], True)
    assert doubts.can_be_settled(NOBODY, True)


def test_who_comes_back_from_a_clean_stop_is_in_no_doubt(doubts: Doubts) -> None:
    doubts.note(1, True)
    assert (doubts.safe, doubts.unclean) == ({1}, set())
    doubts.note(1, False)
    assert (doubts.safe, doubts.unclean) == (set(), {1})
    assert not doubts.can_be_settled(NOBODY, True)


def test_who_tells_another_controller_is_in_doubt_there() -> None:
    doubts = Doubts()
    doubts.note(1, True)
    doubts.tell(1, [], True)
    assert (doubts.safe, doubts.unclean) == (set(), {1})


def test_who_has_died_is_absent_again(doubts: Doubts) -> None:
    doubts.note(2, True)
    assert doubts.absent(frozenset({1, 2, 3})) == {3}
    for broker_id in (1, 2):
        doubts.forget(broker_id)
    assert doubts.absent(frozenset({1, 2, 3})) == {1, 2, 3}
    assert not doubts.can_be_settled(NOBODY, True)


def test_all_in_doubt_are_waited_for_and_the_absent_for_a_while(doubts: Doubts) -> None:
    pending = frozenset({1, 2, 3})
    doubts.note(2, False)
    assert not doubts.can_be_settled(pending, False)
    doubts.tell(2, [], True)
    assert not doubts.can_be_settled(pending, True)
    assert doubts.can_be_settled(pending, False)
    doubts.note(3, True)
    assert doubts.can_be_settled(pending, True)


@pytest.mark.parametrize(
    ("leader", "in_sync", "ends", "leads", "stay"),
    [
        (1, (1, 2, 3), {1: (5, 9), 2: (5, 8), 3: (5, 7)}, 1, (1,)),
        (1, (1, 2, 3), {1: (5, 8), 2: (5, 9), 3: (5, 7)}, 2, (2,)),
        (1, (1, 2, 3), {1: (5, 9), 2: (6, 8), 3: (5, 7)}, 2, (2,)),
        # As much is in sync still; the leader that was goes before the others.
        (2, (1, 2, 3), {1: (5, 9), 2: (5, 9), 3: (5, 7)}, 2, (1, 2)),
        (-1, (2, 1), {1: (5, 9), 2: (5, 9), 3: (5, 9)}, 2, None),
        (1, (1,), {1: (5, 8), 3: (5, 9)}, 3, (3,)),
        (1, (1,), {2: (5, 9), 3: (5, 9)}, 3, (3,)),
    ],
)
def test_who_has_the_most_leads_in_a_new_epoch(
    leader: int,
    in_sync: tuple[int, ...],
    ends: dict[int, tuple[int, int]],
    leads: int,
    stay: tuple[int, ...] | None,
) -> None:
    """`stay`: the in-sync replicas, where they change. 3 is eligible."""
    topic: Any = SimpleNamespace(topic_id=bytes(16))
    partition: Any = SimpleNamespace(
        partition=4, leader_id=leader, replicas=(1, 2, 3), in_sync_replicas=in_sync,
        eligible_leader_replicas=(3,), last_known_elr=(),
    )  # fmt: skip
    change = led_by_the_longest(topic, partition, ends)
    wanted: dict[str, Any] = {"partition_id": 4, "topic_id": bytes(16), "leader": leads}
    wanted["eligible_leader_replicas"] = ()
    if stay is not None:
        wanted["isr"] = stay
    assert change == wanted
    partition.eligible_leader_replicas, partition.last_known_elr = (), (2,)
    change = led_by_the_longest(topic, partition, {1: (0, 0)})
    assert "eligible_leader_replicas" not in change
    assert change["last_known_elr"] == ()
