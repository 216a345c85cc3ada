"""Replaced disks, logs that are not what they were, leaders that lack what others have."""

from typing import Any

import pytest
from controller_at_work import (
    NOW_MS,
    Start,
    alter,
    at,
    create,
    join,
    log_end,
    tell,
    tell_ends,
    tell_of,
)
from decision_cases import topic

from shmbroker.apis.controller.tell_log_ends import IS_AHEAD, LACKS
from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.decisions.doubts import has_all_of
from shmbroker.ids import LOST_DIRECTORY
from shmbroker.metadata.image import NO_LEADER, PartitionImage

NEW_DISK = bytes([77]) * 16


def standing(partition: PartitionImage) -> tuple[Any, ...]:
    return (
        partition.leader_id,
        partition.in_sync_replicas,
        partition.eligible_leader_replicas,
    )


def has_lost(partition: PartitionImage, broker_id: int) -> bool:
    return partition.directory(broker_id) == LOST_DIRECTORY


def allow_unclean(controller: ActiveController, name: str) -> None:
    config = {"name": "unclean.leader.election.enable", "config_operation": 0, "value": "true"}
    resource = {"resource_type": 2, "resource_name": name, "configs": [config]}
    request = {"resources": [resource], "validate_only": False}
    controller.handle("IncrementalAlterConfigs", 1, request, NOW_MS)


def elect_unclean(controller: ActiveController, name: str) -> int:
    ask = {"election_type": 1, "topic_partitions": [{"topic": name, "partitions": [0]}]}
    answer = controller.handle("ElectLeaders", 2, ask, NOW_MS)
    (row,) = answer["replica_election_results"][0]["partition_result"]
    code: int = row["error_code"]
    return code


# ── another log directory ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_clean", [True, False], ids=["family lives", "all were killed"])
@pytest.mark.parametrize("emptied", [1, 2, 3])
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_a_new_directory_is_empty_whatever_its_broker_says(
    three: ActiveController, start: Start, order: tuple[int, ...], emptied: int, is_clean: bool
) -> None:
    create(three, topic("t", 3, 3))
    three.close()
    controller = start(shmbroker_replicas="3")
    for at_work, broker_id in enumerate(order):
        pending = frozenset(order[at_work:])
        disk = {"directory_id": NEW_DISK} if broker_id == emptied else {}
        # That it claims more than all others is no help.
        ends = (9, 999) if broker_id == emptied else (0, 10)
        join(controller, broker_id, is_clean=is_clean, pending=pending, ends=ends, **disk)
    others = {1, 2, 3} - {emptied}
    for partition in controller.image.topics_by_name["t"].partitions:
        assert partition.leader_id in others
        assert set(partition.in_sync_replicas) <= others
        assert not partition.eligible_leader_replicas
        assert has_lost(partition, emptied)


def test_it_is_known_through_further_ends_and_until_it_has_caught_up(
    three: ActiveController, start: Start
) -> None:
    create(three, topic("t", 1, 3))
    three.close()
    controller = start(shmbroker_replicas="3")
    join(controller, 1, is_clean=False, pending=frozenset({1, 2, 3}), directory_id=NEW_DISK)
    assert not {1} & {*at(controller, "t").in_sync_replicas}
    controller.close()  # All are killed again, before anybody else has come.
    controller = start(shmbroker_replicas="3")
    for pending, broker_id in (({2, 3}, 1), ({3}, 2), (set(), 3)):
        disk = {"directory_id": NEW_DISK} if broker_id == 1 else {}
        join(controller, broker_id, is_clean=False, pending=frozenset(pending), **disk)
    partition = at(controller, "t")
    assert partition.leader_id != 1 and 1 not in partition.in_sync_replicas
    assert alter(controller, "t", [*partition.in_sync_replicas, 1])["error_code"] == 0
    partition = at(controller, "t")
    assert not has_lost(partition, 1)
    assert partition.directory(1) == NEW_DISK


def test_nobody_leads_while_those_are_down_who_have_it(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    for broker_id in (3, 2):
        three.membership.fence_broker(broker_id, NOW_MS)
    assert standing(at(three, "t")) == (1, (1,), (2,))
    three.membership.fence_broker(1, NOW_MS)
    join(three, 1, directory_id=NEW_DISK)
    assert standing(at(three, "t")) == (NO_LEADER, (2,), ())
    three.membership.unfence_broker(3, NOW_MS)
    assert at(three, "t").leader_id == NO_LEADER, "3 left while the others were enough"
    three.membership.unfence_broker(2, NOW_MS)
    assert standing(at(three, "t")) == (2, (2,), ())


def test_the_only_one_in_sync_leaves_nobody_and_an_operator_decides(
    three: ActiveController,
) -> None:
    create(three, topic("t", 1, 3, min_insync_replicas="1"))
    alter(three, "t", [1])
    three.membership.fence_broker(1, NOW_MS)
    join(three, 1, directory_id=NEW_DISK)
    assert standing(at(three, "t")) == (NO_LEADER, (), ())
    three.due.elect(0.0, NOW_MS)
    three.due.elect(1000.0, NOW_MS)
    assert at(three, "t").leader_id == NO_LEADER
    assert elect_unclean(three, "t") == 0
    assert standing(at(three, "t")) == (2, (2,), ()), "rather than who has nothing"


def test_who_has_nothing_leads_if_that_is_allowed_and_nobody_else_is_there(
    three: ActiveController,
) -> None:
    create(three, topic("t", 1, 3, min_insync_replicas="1"))
    alter(three, "t", [1])
    for broker_id in (1, 2, 3):
        three.membership.fence_broker(broker_id, NOW_MS)
    allow_unclean(three, "t")
    join(three, 1, directory_id=NEW_DISK)
    assert at(three, "t").leader_id == NO_LEADER, "others may be back soon"
    three.due.elect(0.0, NOW_MS)
    three.due.elect(1000.0, NOW_MS)
    partition = at(three, "t")
    assert standing(partition) == (1, (1,), ()) and not has_lost(partition, 1)


def test_a_single_replica_begins_empty_and_that_is_said(
    three: ActiveController, caplog: pytest.LogCaptureFixture
) -> None:
    create(three, topic("alone", 3, 1), topic("t", 1, 3))
    (mine,) = [p for p in three.image.topics_by_name["alone"].partitions if p.leader_id == 2]
    three.membership.fence_broker(2, NOW_MS)
    join(three, 2, directory_id=NEW_DISK)
    now = at(three, "alone", mine.partition)
    assert (now.leader_id, now.in_sync_replicas, now.directory(2)) == (2, (2,), NEW_DISK)
    (line,) = [row.getMessage() for row in caplog.records if row.levelname == "ERROR"]
    assert f"alone-{mine.partition}: broker 2 had the only replica" in line
    assert "what is in there is served" in line


def test_the_same_directory_again_is_nothing_new(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    before = at(three, "t")
    join(three, 2)
    assert at(three, "t").in_sync_replicas == before.in_sync_replicas
    assert not has_lost(at(three, "t"), 2)


# ── after unclean ends ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ends", "leader_id", "isr"),
    [
        ({1: (0, 10), 2: (0, 10), 3: (0, 10)}, 1, (1, 2, 3)),
        ({1: (0, 10), 2: (0, 12), 3: (0, 11)}, 2, (2,)),
        ({1: (0, 99), 2: (1, 12), 3: (1, 12)}, 2, (2, 3)),
        ({1: (-1, 0), 2: (-1, 0), 3: (0, 1)}, 3, (3,)),
        ({1: (2, 10), 2: (2, 9), 3: (2, 10)}, 1, (1, 3)),
    ],
)
def test_who_has_the_most_leads(
    three: ActiveController,
    start: Start,
    ends: dict[int, tuple[int, int]],
    leader_id: int,
    isr: tuple[int, ...],
) -> None:
    create(three, topic("t", 1, 3))
    epoch = at(three, "t").leader_epoch
    three.close()
    controller = start(shmbroker_replicas="3")
    for at_work, broker_id in enumerate((1, 2, 3), 1):
        assert at(controller, "t").leader_epoch == epoch, "nobody is chosen before all have told"
        pending = frozenset(range(at_work, 4))
        join(controller, broker_id, is_clean=False, pending=pending, ends=ends[broker_id])
    partition = at(controller, "t")
    assert standing(partition) == (leader_id, isr, ())
    assert partition.leader_epoch == epoch + 1


def test_one_that_never_comes_is_not_waited_for_for_ever(
    three: ActiveController, start: Start
) -> None:
    create(three, topic("t", 1, 3))
    three.close()
    controller = start(shmbroker_replicas="3")
    pending = frozenset({1, 2, 3})
    join(controller, 2, is_clean=False, pending=pending, ends=(0, 12))
    join(controller, 3, is_clean=False, pending=pending, ends=(0, 11))
    assert at(controller, "t").leader_id == 1 and not controller.image.brokers[2].is_active
    controller.membership.settle(NOW_MS, pending, is_waiting=False)
    assert standing(at(controller, "t")) == (2, (2,), ())
    assert controller.image.brokers[3].is_active
    # It comes after all, and has more: it follows, and what it has it keeps (`replica_fetcher`).
    join(controller, 1, is_clean=False, pending=frozenset({1}), ends=(0, 20))
    assert standing(at(controller, "t")) == (2, (2,), ())
    assert controller.image.brokers[1].is_active


def test_a_clean_one_serves_at_once_whoever_is_missing(
    three: ActiveController, start: Start
) -> None:
    create(three, topic("t", 1, 3))
    three.close()
    controller = start(shmbroker_replicas="3")
    pending = frozenset({1, 2, 3})
    join(controller, 1, is_clean=False, pending=pending)
    join(controller, 3, is_clean=True, pending=pending)
    assert at(controller, "t").leader_id == 3


def test_another_controller_hears_it_anew(three: ActiveController, start: Start) -> None:
    create(three, topic("t", 1, 3))
    three.close()
    controller = start(shmbroker_replicas="3")
    join(controller, 2, is_clean=False, pending=frozenset({1, 2, 3}), ends=(0, 12))
    controller.close()
    controller = start(shmbroker_replicas="3")
    tell_ends(controller, 2, (0, 12))
    controller.membership.settle(NOW_MS, frozenset({1, 2, 3}))
    assert not controller.image.brokers[2].is_active
    join(controller, 1, is_clean=False, pending=frozenset({1, 2, 3}), ends=(0, 11))
    join(controller, 3, is_clean=False, pending=frozenset({1, 2, 3}), ends=(0, 11))
    assert standing(at(controller, "t")) == (2, (2,), ())


@pytest.mark.parametrize(
    ("ends", "epochs", "other", "has_all"),
    [
        ((3, 10), (), (3, 9), True),
        ((3, 10), (), (3, 10), True),
        ((3, 9), (), (3, 10), False),
        ((4, 20), ((3, 0), (4, 10)), (3, 10), True),
        ((4, 20), ((3, 0), (4, 10)), (3, 11), False),  # it has gone on from 10, without that
        ((4, 20), ((2, 0), (4, 10)), (3, 5), False),  # another history
        ((4, 20), ((4, 10),), (3, 5), False),  # nobody knows
        ((4, 20), ((2, 0), (4, 10)), (-1, 0), True),
    ],
)
def test_whether_a_log_has_all_of_another(
    ends: tuple[int, int],
    epochs: tuple[tuple[int, int], ...],
    other: tuple[int, int],
    has_all: bool,
) -> None:
    assert has_all_of(ends, epochs, other) == has_all


# ── a log that is not what it was ───────────────────────────────────────────────────────────────


def test_a_leader_that_has_lost_something_leads_no_more(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    assert tell_of(three, 1, "t", LACKS) == (2, 1)
    assert standing(at(three, "t")) == (2, (2, 3), ())
    assert tell_of(three, 1, "t", LACKS) == (2, 1), "twice is once"
    assert tell_of(three, 2, "t", LACKS) == (3, 2)
    # Min. in sync is 2: 1 and 2 are not eligible all the same.
    assert standing(at(three, "t")) == (3, (3,), ())


def test_if_all_have_lost_something_who_has_the_most_leads(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    assert tell_of(three, 3, "t", LACKS, (0, 5))[0] == 1
    assert tell_of(three, 1, "t", LACKS, (0, 4))[0] == 2
    assert tell_of(three, 2, "t", LACKS, (0, 7)) == (NO_LEADER, 2)
    # Whom a controller has heard that is no more, that is said again while nobody leads.
    assert tell_of(three, 3, "t", LACKS, (0, 5))[0] == NO_LEADER
    leader_id, _ = tell_of(three, 1, "t", LACKS, (0, 4))
    assert leader_id == 2
    assert standing(at(three, "t")) == (2, (2,), ()) and not has_lost(at(three, "t"), 2)


@pytest.mark.parametrize(
    ("isr", "who", "leader_id", "now"),
    [
        ([1, 2, 3], 3, 3, (3, (2, 3), ())),
        ([1, 2], 3, 1, (1, (1, 2), ())),  # the leader may have committed others since
        ([1], 2, 1, (1, (1,), ())),
        ([1, 2, 3], 1, 1, (1, (1, 2, 3), ())),
    ],
)
def test_a_follower_that_has_more_leads_if_it_is_in_sync(
    three: ActiveController, isr: list[int], who: int, leader_id: int, now: tuple[Any, ...]
) -> None:
    create(three, topic("t", 1, 3, min_insync_replicas="1"))
    alter(three, "t", isr)
    assert tell_of(three, who, "t", IS_AHEAD)[0] == leader_id
    assert standing(at(three, "t")) == now


def test_one_that_is_eligible_has_more_too(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    three.membership.fence_broker(2, NOW_MS)
    three.membership.fence_broker(3, NOW_MS)
    three.membership.unfence_broker(3, NOW_MS)
    assert standing(at(three, "t")) == (1, (1,), (3,))
    assert tell_of(three, 3, "t", IS_AHEAD)[0] == 3
    assert standing(at(three, "t")) == (3, (3,), ())


def test_one_that_is_eligible_leads_before_those_in_sync_that_have_less(
    three: ActiveController,
) -> None:
    create(three, topic("t", 1, 3, min_insync_replicas="3"))
    three.membership.fence_broker(3, NOW_MS)
    three.membership.unfence_broker(3, NOW_MS)
    assert standing(at(three, "t")) == (1, (1, 2), (3,))
    assert tell_of(three, 3, "t", IS_AHEAD)[0] == 3
    assert standing(at(three, "t")) == (3, (3,), (2,))


def test_one_that_is_fenced_leads_nothing_whatever_it_has(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    three.membership.fence_broker(2, NOW_MS)
    three.membership.fence_broker(3, NOW_MS)
    assert standing(at(three, "t")) == (1, (1,), (3,))
    assert tell_of(three, 3, "t", IS_AHEAD)[0] == 1
    assert standing(at(three, "t")) == (1, (1,), (3,))


def test_who_is_not_registered_tells_nothing(three: ActiveController) -> None:
    request = {"broker_id": 9, "broker_epoch": 0, "is_last": True, "topics": []}
    answer = three.told_ends.take(request, NOW_MS)
    assert answer == {"error_code": 77, "topics": []}


def test_what_one_has_told_does_not_count_after_its_next_death(
    three: ActiveController, start: Start
) -> None:
    """Its log of the topic may be gone: it tells of none."""
    create(three, topic("t", 1, 3))
    three.close()
    controller = start(shmbroker_replicas="3")
    everybody = frozenset({1, 2, 3})
    join(controller, 1, is_clean=False, pending=everybody, ends=(0, 99))
    controller.membership.fence_broker(1, NOW_MS)
    broker_epoch = controller.membership.register_broker(
        1, "h", 1, bytes(16), [bytes([1]) * 16], NOW_MS, False, everybody
    )
    assert broker_epoch == controller.image.brokers[1].broker_epoch
    tell(controller, 1, [], is_last=True)
    join(controller, 2, is_clean=False, pending=everybody - {1}, ends=(0, 5))
    join(controller, 3, is_clean=False, pending=frozenset({3}), ends=(0, 5))
    controller.membership.settle(NOW_MS, frozenset())
    assert at(controller, "t").leader_id in (2, 3)


def test_a_single_replica_that_nobody_led_is_led_when_its_broker_is_in_doubt(
    three: ActiveController, start: Start
) -> None:
    """As in a log that Apache Kafka left: when it stops, every leader is -1."""
    create(three, topic("t", 3, 1), topic("u", 1, 3))
    (index,) = (
        at for at in range(3) if three.image.topics_by_name["t"].partitions[at].replicas == (1,)
    )
    change = {
        "partition_id": index,
        "topic_id": three.image.topics_by_name["t"].topic_id,
        "leader": NO_LEADER,
    }
    three.log.commit([("PartitionChangeRecord", 2, change)], NOW_MS)
    three.close()
    controller = start(shmbroker_replicas="3")
    for broker_id in (3, 2, 1):
        pending = frozenset(range(1, broker_id + 1))
        join(controller, broker_id, is_clean=False, pending=pending, ends=(0, 5))
    assert at(controller, "t", index).leader_id == 1


@pytest.mark.parametrize("state", [LACKS, IS_AHEAD])
@pytest.mark.parametrize(("index", "is_known"), [(0, True), (1, False), (-1, False)])
def test_of_a_partition_that_is_not_there_nothing_is_told(
    three: ActiveController, state: int, index: int, is_known: bool
) -> None:
    """Its topic is, as one that a client has enlarged while another controller was active."""
    create(three, topic("t", 1, 3))
    topic_id = three.image.topics_by_name["t"].topic_id
    rows = [{"topic_id": topic_id, "partitions": [log_end(index, state, (0, 0))]}]
    answer = tell(three, 2, rows, is_last=False)
    assert bool(answer["topics"]) is is_known
