"""AlterPartition, fencing and unfencing with several replicas: what the controller decides."""

import pytest
from controller_at_work import NOW_MS, Start, alter, at, create, join
from decision_cases import topic

from shmbroker.controller.active_controller import ActiveController


def test_leader_changes_the_isr(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    assert alter(three, "t", [1, 3]) == {
        "partition_index": 0,
        "error_code": 0,
        "leader_id": 1,
        "leader_epoch": 0,
        "isr": (1, 3),
        "leader_recovery_state": 0,
        "partition_epoch": 1,
    }
    assert at(three, "t").in_sync_replicas == (1, 3)
    assert alter(three, "t", [1, 3, 2])["isr"] == (1, 3, 2)
    assert at(three, "t").leader_epoch == 0


@pytest.mark.parametrize(
    ("isr", "changes", "code"),
    [
        ([1, 2], {"broker_epoch": 7}, 77),
        ([1, 2], {"partition_index": 1}, 3),
        ([1, 2], {"leader_epoch": 1}, 41),
        ([1, 2], {"partition_epoch": 1}, 41),
        ([1, 2], {"leader_epoch": -1}, 74),
        ([1, 2], {"broker_id": 2}, 42),
        ([1, 2], {"partition_epoch": -1}, 95),
        ([1, 9], {}, 42),
        ([1, 1], {}, 42),
        ([2, 3], {}, 42),
        ([1, 2], {"recovery": 1}, 42),
        ([1], {"recovery": 1}, 42),
        ([1, 2], {"recovery": 2}, 42),
        ([1, 2], {"epoch_2": 3}, 107),
        ([1, 2], {"epoch_2": -1}, 0),
        ([1, 4], {}, 42),
    ],
)
def test_isr_that_may_not_be(
    three: ActiveController, isr: list[int], changes: dict, code: int
) -> None:
    create(three, topic("t", 1, 3))
    before = three.committed_offset
    assert alter(three, "t", isr, **changes)["error_code"] == code
    assert (three.committed_offset == before) == (code != 0)


def test_fenced_brokers_are_not_in_sync(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    three.membership.fence_broker(2, NOW_MS)
    assert at(three, "t").in_sync_replicas == (1, 3)
    assert alter(three, "t", [1, 2, 3])["error_code"] == 107


def test_dead_brokers_partitions_go_to_the_next_in_sync(three: ActiveController) -> None:
    create(three, topic("t", 3, 3))
    alter(three, "t", [1, 3])
    three.membership.fence_broker(1, NOW_MS)
    partition = at(three, "t")
    assert (partition.leader_id, partition.leader_epoch) == (3, 1)
    assert (partition.in_sync_replicas, partition.eligible_leader_replicas) == ((3,), (1,))
    assert at(three, "t", 1).in_sync_replicas == (2, 3)
    three.membership.unfence_broker(1, NOW_MS)
    assert at(three, "t") == partition, "it follows until it is in sync, and then too"


def test_last_one_standing_keeps_what_it_leads(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    for broker_id in (2, 1, 3):
        three.membership.fence_broker(broker_id, NOW_MS)
    partition = at(three, "t")
    assert (partition.leader_id, partition.in_sync_replicas) == (3, (3,))
    assert partition.eligible_leader_replicas == (1,), "2 left while the others were enough"
    three.membership.unfence_broker(2, NOW_MS)
    assert at(three, "t") == partition, "2 may lack what 1 and 3 have committed"
    three.membership.unfence_broker(1, NOW_MS)
    partition = at(three, "t")
    assert (partition.leader_id, partition.in_sync_replicas) == (1, (1,))
    assert partition.eligible_leader_replicas == (3,)


def test_thousands_of_partitions_are_handed_over_at_once(three: ActiveController) -> None:
    create(three, topic("t", 2000, 3))
    batches = three.committed_offset
    three.membership.fence_broker(1, NOW_MS)
    assert three.committed_offset - batches == 2001
    assert all(p.leader_id != 1 for p in three.image.topics_by_name["t"].partitions)


@pytest.mark.parametrize(
    ("clean", "leader_id", "isr"),
    [
        ((), 1, (1, 2, 3)),
        ((2,), 2, (2,)),
        ((1,), 1, (1,)),
        ((2, 3), 2, (2, 3)),
        ((1, 2, 3), 1, (1, 2, 3)),
    ],
)
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_after_a_power_cut_those_lead_that_have_lost_nothing(
    three: ActiveController,
    start: Start,
    order: tuple[int, ...],
    clean: tuple[int, ...],
    leader_id: int,
    isr: tuple[int, ...],
) -> None:
    create(three, topic("t", 1, 3))
    three.close()
    controller = start(shmbroker_replicas="3")
    for at_work, broker_id in enumerate(order):
        pending = frozenset(order[at_work:])
        join(controller, broker_id, is_clean=broker_id in clean, pending=pending)
    partition = at(controller, "t")
    assert (partition.leader_id, partition.in_sync_replicas) == (leader_id, isr)
    assert not partition.eligible_leader_replicas


def test_nobody_in_doubt_is_elected_before_all_have_registered(
    three: ActiveController, start: Start
) -> None:
    create(three, topic("t", 1, 3))
    alter(three, "t", [1, 2])
    three.membership.fence_broker(2, NOW_MS)
    three.membership.fence_broker(1, NOW_MS)
    assert at(three, "t").eligible_leader_replicas == (2,)
    three.close()
    controller = start(shmbroker_replicas="3")
    join(controller, 2, is_clean=False, pending=frozenset({1, 2, 3}))
    assert at(controller, "t").leader_id == 1
    join(controller, 3, is_clean=False, pending=frozenset({1, 3}))
    assert at(controller, "t").leader_id == 1
    join(controller, 1, is_clean=False, pending=frozenset({1}))
    partition = at(controller, "t")
    assert (partition.leader_id, partition.in_sync_replicas) == (1, (1,))
    assert all(broker.is_active for broker in controller.image.brokers.values())


def test_nobody_who_may_lack_records_is_elected_while_others_are_to_come(
    three: ActiveController, start: Start
) -> None:
    unclean = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    create(three, topic("t", 1, 3, **unclean))
    alter(three, "t", [1])
    three.close()
    controller = start(shmbroker_replicas="3")
    join(controller, 2, pending=frozenset({1, 2, 3}))
    assert at(controller, "t").leader_id == 1
    join(controller, 1, pending=frozenset({1, 3}))
    partition = at(controller, "t")
    assert (partition.leader_id, partition.in_sync_replicas) == (1, (1,))
    assert partition.leader_recovery_state == 0


def test_change_of_min_isr_empties_the_elr(three: ActiveController) -> None:
    create(three, topic("t", 1, 3), topic("u", 1, 3))
    three.membership.fence_broker(2, NOW_MS)
    three.membership.fence_broker(3, NOW_MS)
    assert at(three, "t").eligible_leader_replicas == (3,)
    assert at(three, "u").eligible_leader_replicas == (3,)
    config = {"name": "min.insync.replicas", "config_operation": 0, "value": "1"}
    for name, kind in (("t", 2), ("", 4)):
        resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
        request = {"resources": [resource], "validate_only": False}
        three.handle("IncrementalAlterConfigs", 1, request, NOW_MS)
        assert at(three, "t").eligible_leader_replicas == ()
        assert bool(at(three, "u").eligible_leader_replicas) == (kind == 2)


def test_preferred_leaders_lead_again_when_it_is_time(three: ActiveController) -> None:
    create(three, topic("t", 1, 3))
    three.membership.fence_broker(1, NOW_MS)
    three.membership.unfence_broker(1, NOW_MS)
    three.due.elect(0.0, NOW_MS)
    three.due.elect(301.0, NOW_MS)
    assert at(three, "t").leader_id == 2, "the first replica is not in sync yet"
    alter(three, "t", [2, 3, 1])
    three.due.elect(600.0, NOW_MS)
    assert at(three, "t").leader_id == 2, "it isn't time"
    three.due.elect(602.0, NOW_MS)
    assert at(three, "t").leader_id == 1


def test_preferred_leaders_wait_to_be_asked_for_where_that_is_wished(start: Start) -> None:
    controller = start(shmbroker_replicas="3", auto_leader_rebalance_enable="false")
    for broker_id in (1, 2, 3):
        join(controller, broker_id)
    create(controller, topic("t", 1, 3))
    controller.membership.fence_broker(1, NOW_MS)
    controller.membership.unfence_broker(1, NOW_MS)
    alter(controller, "t", [2, 3, 1])
    for now_s in (0.0, 400.0, 800.0):
        controller.due.elect(now_s, NOW_MS)
    assert at(controller, "t").leader_id == 2


def test_who_leads_after_an_unclean_election_takes_in_nobody_before_it_is_done(
    three: ActiveController,
) -> None:
    unclean = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    create(three, topic("t", 1, 3, **unclean))
    alter(three, "t", [1])
    three.membership.fence_broker(1, NOW_MS)
    three.due.elect(0.0, NOW_MS)
    three.due.elect(301.0, NOW_MS)
    assert at(three, "t").leader_recovery_state == 1
    assert alter(three, "t", [2, 3], recovery=1)["error_code"] == 42
    assert alter(three, "t", [2, 3])["isr"] == (2, 3)
    assert at(three, "t").leader_recovery_state == 0


def test_unclean_election_is_for_topics_that_want_it(three: ActiveController) -> None:
    create(three, topic("t", 1, 3, min_insync_replicas="1"))
    alter(three, "t", [1])
    three.membership.fence_broker(1, NOW_MS)
    assert at(three, "t").leader_id == 1
    ask = {"election_type": 1, "topic_partitions": [{"topic": "t", "partitions": [0]}]}
    config = {
        "name": "unclean.leader.election.enable",
        "config_operation": 0,
        "value": "true",
    }
    resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
    three.due.elect(0.0, NOW_MS)
    three.due.elect(301.0, NOW_MS)
    assert at(three, "t").leader_id == 1
    request = {"resources": [resource], "validate_only": False}
    three.handle("IncrementalAlterConfigs", 1, request, NOW_MS)
    three.due.elect(602.0, NOW_MS)
    partition = at(three, "t")
    assert (partition.leader_id, partition.in_sync_replicas) == (2, (2,))
    assert partition.leader_recovery_state == 1
    answer = three.handle("ElectLeaders", 2, ask, NOW_MS)
    (row,) = answer["replica_election_results"][0]["partition_result"]
    assert row["error_code"] == 84
    assert alter(three, "t", [2, 3])["leader_recovery_state"] == 0
