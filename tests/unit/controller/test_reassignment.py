"""Partitions that move: new replicas, the old ones' end, cancelling; what the controller lists."""

from typing import Any

import pytest
from controller_at_work import DIRECTORY_ID, NOW_MS, alter, at, create
from decision_cases import topic

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.decisions.cluster_state import ClusterState
from shmbroker.controller.decisions.reassignment import alter_partition_reassignments
from shmbroker.ids import random_uuid
from shmbroker.metadata.image import (
    NO_LEADER,
    RECOVERING,
    TOPIC_RESOURCE,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
    changed_partition,
)
from shmbroker.settings.broker_config import BrokerConfig


def reassign(controller: ActiveController, *targets: tuple[int, list[int] | None]) -> list[int]:
    """Of partitions of "t"; the error codes."""
    partitions = [{"partition_index": i, "replicas": replicas} for i, replicas in targets]
    body = {"topics": [{"name": "t", "partitions": partitions}], "timeout_ms": 1}
    body["allow_replication_factor_change"] = True
    answer = controller.handle("AlterPartitionReassignments", 1, body, NOW_MS)
    return [row["error_code"] for row in answer["responses"][0]["partitions"]]


def listed(controller: ActiveController, *asked: tuple[str, list[int]]) -> list[tuple]:
    """(topic, partition, replicas, adding, removing)"""
    topics: Any = [{"name": name, "partition_indexes": indexes} for name, indexes in asked]
    body = {"timeout_ms": 1, "topics": topics or None}
    answer = controller.handle("ListPartitionReassignments", 0, body, NOW_MS)
    return [
        (t["name"], p["partition_index"], *(tuple(p[f"{k}replicas"]) for k in KINDS))
        for t in answer["topics"]
        for p in t["partitions"]
    ]


KINDS = ("", "adding_", "removing_")


@pytest.fixture
def moving(three: ActiveController) -> ActiveController:
    """Partition 0 of "t" is on its way from broker 1 to broker 2, partition 1 is not."""
    create(three, topic("t", -1, -1, ((0, [1]), (1, [1]))))
    assert reassign(three, (0, [2])) == [0]
    return three


def test_partition_moves_when_its_new_replica_is_in_sync(moving: ActiveController) -> None:
    assert at(moving, "t").replicas == (2, 1)
    assert (at(moving, "t").leader_id, at(moving, "t").leader_epoch) == (1, 0)
    assert alter(moving, "t", [1, 2])["error_code"] == 108, "somebody else leads now"
    moved = at(moving, "t")
    assert (moved.replicas, moved.in_sync_replicas, moved.leader_id) == ((2,), (2,), 2)
    assert (moved.leader_epoch, moved.is_reassigning) == (1, False)
    assert len(moved.directories) == 1


def test_what_is_under_way_is_listed(moving: ActiveController) -> None:
    row = ("t", 0, (2, 1), (2,), (1,))
    assert listed(moving) == [row]
    assert listed(moving, ("t", [1, 0, 7])) == [row]
    assert listed(moving, ("t", [1]), ("u", [0])) == []
    alter(moving, "t", [1, 2])
    assert listed(moving) == []


def test_cancelled_one_goes_back(moving: ActiveController) -> None:
    assert reassign(moving, (0, None), (1, None)) == [0, 85]
    assert at(moving, "t").replicas == at(moving, "t").in_sync_replicas == (1,)
    assert at(moving, "t").leader_epoch == 1, "the new replica is fenced"
    assert listed(moving) == []


def test_another_target_takes_the_place_of_the_first(moving: ActiveController) -> None:
    assert reassign(moving, (0, [3])) == [0]
    assert listed(moving) == [("t", 0, (3, 1, 2), (3,), (1, 2))]
    assert alter(moving, "t", [1, 2])["error_code"] == 0
    assert alter(moving, "t", [1, 2, 3])["error_code"] == 108
    assert at(moving, "t").replicas == (3,)


def test_fewer_replicas_need_no_wait(three: ActiveController) -> None:
    create(three, topic("t", -1, -1, ((0, [1, 2, 3]),)))
    assert reassign(three, (0, [3, 2])) == [0]
    partition = at(three, "t")
    assert (partition.replicas, set(partition.in_sync_replicas)) == ((3, 2), {2, 3})
    assert (partition.leader_id, partition.is_reassigning) == (3, False)


def test_other_order_is_done_at_once(three: ActiveController) -> None:
    create(three, topic("t", -1, -1, ((0, [1, 2, 3]),)))
    assert reassign(three, (0, [3, 1, 2])) == [0]
    assert (at(three, "t").replicas, at(three, "t").leader_id) == ((3, 1, 2), 1)
    assert at(three, "t").leader_epoch == 0


def test_reassignment_of_one_partition_twice_is_two_in_turn(moving: ActiveController) -> None:
    assert reassign(moving, (1, [2]), (1, [3])) == [0, 0]
    assert ("t", 1, (3, 1, 2), (3,), (1, 2)) in listed(moving)


def test_target_that_is_not_there(three: ActiveController) -> None:
    create(three, topic("t", -1, -1, ((0, [1, 2, 3]),)))
    before = three.committed_offset
    targets: list[tuple[int, list[int] | None]] = [(0, []), (0, [1, 1]), (0, [9]), (4, [1])]
    assert reassign(three, *targets) == [39, 39, 39, 3]
    assert three.committed_offset == before


def test_cancelling_never_takes_the_lead_from_the_last_in_sync(moving: ActiveController) -> None:
    """The new replica is the only one that is in sync: only where that is allowed."""
    reassign(moving, (1, [2, 3]))
    alter(moving, "t", [1, 2], partition_index=1)
    moving.membership.fence_broker(1, NOW_MS)
    partition = at(moving, "t", 1)
    assert (partition.leader_id, partition.in_sync_replicas) == (2, (2,))
    assert reassign(moving, (1, None)) == [39]
    assert at(moving, "t", 1) == partition


@pytest.mark.parametrize("fenced", [{1, 3}, {1}])
def test_where_it_is_allowed_cancelling_lets_one_lead_that_may_lack_records(
    fenced: set[int],
) -> None:
    partition = PartitionImage(
        0, (2, 4, 1, 3), (2,), 2, 0, 0, (DIRECTORY_ID,) * 4,
        adding_replicas=(2, 4), removing_replicas=(1, 3),
    )  # fmt: skip
    image = MetadataImage("cluster")
    image.topics_by_name["t"] = TopicImage("t", bytes(16), (partition,))
    for id_ in (1, 2, 3, 4):
        image.brokers[id_] = BrokerImage(id_, "", 0, None, 0, bytes(16), id_ in fenced, ())
    image.configs[TOPIC_RESOURCE, "t"] = {"unclean.leader.election.enable": "true"}
    row = {"partition_index": 0, "replicas": None}
    request = {"topics": [{"name": "t", "partitions": [row]}]}
    cluster = ClusterState(image, BrokerConfig(), (), random_uuid)
    ((_, _, change),), _ = alter_partition_reassignments(request, 0, cluster)
    changed = changed_partition(partition, change)
    assert (changed.replicas, changed.is_reassigning) == ((1, 3), False)
    assert changed.leader_recovery_state == RECOVERING
    here = 1 if fenced == {1, 3} else 3
    assert changed.in_sync_replicas == (here,)
    assert changed.leader_id == (here if here not in fenced else NO_LEADER)
