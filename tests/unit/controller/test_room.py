"""Brokers without room on their disk: who leads instead, and when they get it back."""

import pytest
from controller_at_work import NOW_MS, Start, alter, at, create, join
from decision_cases import topic

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.decisions.room import GIVE_BACK_S, WAIT_S, RoomWatch

NOBODY: frozenset[int] = frozenset()


def look(
    controller: ActiveController, now_s: float, full: set[int] = NOBODY, failed: set[int] = NOBODY
) -> None:
    controller.due.look_at_room(full, failed, now_s, NOW_MS)


def led(controller: ActiveController) -> list[int]:
    partitions = controller.image.topics_by_name["t"].partitions
    return [partition.leader_id for partition in partitions]


def test_a_full_brokers_partitions_are_led_elsewhere_until_it_has_room(
    three: ActiveController,
) -> None:
    create(three, topic("t", 3, 3))
    assert led(three) == [1, 2, 3]
    look(three, 0.0, full={1})
    assert led(three) == [1, 2, 3], "the others may be about to say the same"
    look(three, WAIT_S, full={1})
    assert led(three) == [2, 2, 3]
    assert at(three, "t").in_sync_replicas == (1, 2, 3), "it follows as long as it can"
    offset = three.committed_offset
    look(three, WAIT_S + 1, full={1})
    assert three.committed_offset == offset, "nothing is left to do"
    look(three, WAIT_S + 2)
    assert led(three) == [1, 2, 3]


@pytest.mark.parametrize("full", [{1, 2, 3}, {1, 2}])
def test_where_many_are_full_what_has_room_leads_or_nothing_moves(
    three: ActiveController, full: set[int]
) -> None:
    create(three, topic("t", 3, 3))
    look(three, 0.0, full=full)
    look(three, WAIT_S, full=full)
    assert led(three) == ([1, 2, 3] if len(full) == 3 else [3, 3, 3])


def test_those_that_find_one_full_disk_within_a_second_hand_nothing_over(
    three: ActiveController,
) -> None:
    create(three, topic("t", 3, 3))
    for tenth, full in enumerate(({1}, {1, 2}, {1, 2, 3}, {1, 2, 3})):
        look(three, tenth / 2, full=full)
    offset = three.committed_offset
    for second in range(2, 9):
        look(three, float(second), full={1, 2, 3})
    assert (led(three), three.committed_offset) == ([1, 2, 3], offset)


def test_a_failed_directory_leaves_the_isr(three: ActiveController) -> None:
    create(three, topic("t", 3, 3))
    look(three, 0.0, failed={2})
    look(three, WAIT_S, failed={2})
    assert led(three) == [1, 3, 3]
    partitions = three.image.topics_by_name["t"].partitions
    assert all(2 not in partition.in_sync_replicas for partition in partitions)


def test_a_failed_directory_leaves_the_elr(three: ActiveController) -> None:
    create(three, topic("t", 3, 3))
    for second in (0.0, WAIT_S):
        look(three, second, failed={1, 2})
    assert led(three) == [3, 3, 3]
    for index in range(3):
        partition = at(three, "t", index)
        assert partition.in_sync_replicas == (3,)
        assert partition.eligible_leader_replicas == (), "what they had not flushed may be gone"


def test_a_full_one_leads_rather_than_one_that_has_failed(three: ActiveController) -> None:
    create(three, topic("t", 3, 3))
    for second in (0.0, WAIT_S):
        look(three, second, full={2, 3}, failed={1})
    assert led(three) == [2, 2, 3]
    assert all(1 not in at(three, "t", index).in_sync_replicas for index in range(3))
    offset = three.committed_offset
    look(three, WAIT_S + 1, full={2, 3}, failed={1})
    assert three.committed_offset == offset, "nothing is left to do"


def test_nobody_in_sync_with_room_leaves_the_leader(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    alter(three, "t", [1])
    look(three, 0.0, full={1})
    look(three, WAIT_S, full={1})
    assert led(three) == [1]
    alter(three, "t", [1, 3])
    look(three, WAIT_S + 1, full={1})
    assert led(three) == [3]


def test_one_replica_stays_where_it_is(three: ActiveController) -> None:
    create(three, topic("t", 3, 3), topic("alone", 3, 1))
    before = [at(three, "alone", index) for index in range(3)]
    look(three, 0.0, full={1, 2, 3}, failed={1})
    look(three, WAIT_S, full={1, 2})
    assert [at(three, "alone", index) for index in range(3)] == before


def test_elections_ask_those_with_room_first(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    look(three, 0.0, full={2})
    look(three, WAIT_S, full={2})
    three.membership.fence_broker(1, NOW_MS)
    assert led(three) == [3], "2 stands before it in the order"
    three.membership.fence_broker(3, NOW_MS)
    assert led(three) == [2], "better one without room than nobody"


def test_preferred_elections_give_nothing_to_a_full_broker(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    look(three, 0.0, full={1})
    look(three, WAIT_S, full={1})
    request = {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0]}]}
    three.handle("ElectLeaders", 2, request | {"timeout_ms": 0}, NOW_MS)
    three.due.elect(1e9, NOW_MS)
    assert led(three) == [2]


def test_it_is_given_back_when_it_is_in_sync_again(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    look(three, 0.0, full={1})
    look(three, WAIT_S, full={1})
    alter(three, "t", [2, 3])
    look(three, WAIT_S + 1)
    assert led(three) == [2]
    alter(three, "t", [2, 3, 1])
    look(three, WAIT_S + 2)
    assert led(three) == [1]


def test_nothing_is_given_back_where_leaders_stay_until_they_are_asked(start: Start) -> None:
    controller = start(shmbroker_replicas="3", auto_leader_rebalance_enable="false")
    for broker_id in (1, 2, 3):
        join(controller, broker_id)
    create(controller, topic("t", 1, 3))
    look(controller, 0.0, full={1})
    look(controller, WAIT_S, full={1})
    look(controller, WAIT_S + 1)
    alter(controller, "t", [2, 3, 1])
    look(controller, WAIT_S + 2)
    assert led(controller) == [2]


def test_watch_forgets_what_is_over() -> None:
    watch = RoomWatch()
    assert watch.look({1}, {2}, 0.0) == ({1, 2}, NOBODY, NOBODY, NOBODY)
    assert watch.look({1}, NOBODY, WAIT_S) == ({1}, {1}, NOBODY, {2})
    assert watch.look({2}, {1}, WAIT_S + 1) == ({1, 2}, {1}, {1}, NOBODY)
    assert watch.look(NOBODY, NOBODY, WAIT_S + 1.5) == (NOBODY, NOBODY, NOBODY, {1}), (
        "2 was a moment"
    )
    assert watch.is_watching
    assert watch.look(NOBODY, NOBODY, WAIT_S + 2 + GIVE_BACK_S) == (NOBODY,) * 4
    assert not watch.is_watching
