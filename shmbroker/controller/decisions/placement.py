"""Where the partitions of a topic are placed: by the client that asks, or by us.

Leaders go round the brokers at work in the order of their ids, beginning where the partitions so
far would end, so that topics with one partition spread too; who follows first goes round as well,
so that a dead broker's partitions spread over all others. Fenced brokers follow where there aren't
enough others, as in Kafka.

What clients have chosen is judged with the codes and words of Kafka's `ReplicationControlManager`.
"""

from __future__ import annotations

from shmbroker.ids import ZERO_UUID
from shmbroker.wire.error_codes import (
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    NONE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState, Complaint
    from shmbroker.metadata.image import BrokerImage, PartitionImage
    from shmbroker.metadata.record import MetadataRecord

    Placed = tuple[list[tuple[int, ...]], Complaint]
    """The replicas of each partition, leader first; none where there is a complaint."""

PARTITIONS_MAX = 10_000
"""The partitions of one request: they go into the log as one batch (MAX_PARTITIONS_PER_BATCH)."""

TOO_MANY = "Excessively large number of partitions per request."


# ── a new topic ─────────────────────────────────────────────────────────────────────────────────


def place_topic(topic: dict[str, Any], cluster: ClusterState, placed: int) -> Placed:
    """The replicas of a new topic; `placed`: how many partitions there are before it."""
    count, factor = topic["num_partitions"], topic["replication_factor"]
    if topic["assignments"]:
        return _place_by_hand(topic, cluster)
    if factor < -1 or factor == 0:
        return [], (
            INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < -1 or count == 0:
        return [], (
            INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if count == -1:
        count = cluster.config["num.partitions"]
    if factor == -1:
        factor = cluster.config["default.replication.factor"]
    complaint = _factor_complaint(factor, cluster)
    if complaint[0]:
        return [], complaint
    return place_partitions(count, factor, cluster.brokers, placed, cluster.fenced), complaint


def _place_by_hand(topic: dict[str, Any], cluster: ClusterState) -> Placed:
    if topic["replication_factor"] != -1:
        return [], (
            INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set "
            "to -1.",
        )
    if topic["num_partitions"] != -1:
        return [], (
            INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    assigned: dict[int, tuple[int, ...]] = {}
    factor = None
    for assignment in topic["assignments"]:
        index, replicas = assignment["partition_index"], tuple(assignment["broker_ids"])
        if index in assigned:
            return [], (
                INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        complaint = _assignment_complaint(index, replicas, factor, cluster)
        if complaint[0]:
            return [], complaint
        assigned[index] = replicas
        factor = len(replicas)
    if sorted(assigned) != list(range(len(assigned))):
        return [], (
            INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [assigned[index] for index in range(len(assigned))], (NONE, None)


# ── more partitions ─────────────────────────────────────────────────────────────────────────────


def place_more(
    topic: dict[str, Any], partitions: tuple[PartitionImage, ...], cluster: ClusterState
) -> Placed:
    """The replicas of the partitions that a topic gets in addition."""
    count, first = topic["count"], len(partitions)
    if count == first:
        return [], (INVALID_PARTITIONS, f"Topic already has {first} partition(s).")
    if count < first:
        return [], (
            INVALID_PARTITIONS,
            f"The topic {topic['name']} currently has {first} partition(s); {count} would not be "
            "an increase.",
        )
    additional = count - first
    factor = len(partitions[0].replicas)
    if topic["assignments"] is None:
        complaint = _factor_complaint(factor, cluster)
        if complaint[0]:
            return [], complaint
        brokers, leader = cluster.brokers, partitions[0].replicas[0]
        start = first + (brokers.index(leader) if leader in brokers else 0)
        return place_partitions(additional, factor, brokers, start, cluster.fenced), complaint
    if len(topic["assignments"]) != additional:
        return [], (
            INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only "
            f"{len(topic['assignments'])} assignment(s) were specified.",
        )
    new = [tuple(assignment["broker_ids"]) for assignment in topic["assignments"]]
    for index, replicas in enumerate(new):
        complaint = _assignment_complaint(first + index, replicas, factor, cluster)
        if complaint[0]:
            return [], complaint
    return new, (NONE, None)


# ── what clients have chosen ────────────────────────────────────────────────────────────────────


def replicas_complaint(
    replicas: tuple[int, ...], factor: int | None, cluster: ClusterState
) -> Complaint:
    """What is wrong with replicas that a client has chosen; `factor`: how many there must be."""
    says = "The manual partition assignment includes"
    if not replicas:
        return INVALID_REPLICA_ASSIGNMENT, f"{says} an empty replica list."
    previous = None
    for broker_id in sorted(replicas):
        if broker_id not in cluster.image.brokers:
            message = f"{says} broker {broker_id}, but no such broker is registered."
            return INVALID_REPLICA_ASSIGNMENT, message
        if broker_id == previous:
            return INVALID_REPLICA_ASSIGNMENT, f"{says} the broker {broker_id} more than once."
        previous = broker_id
    if factor is not None and len(replicas) != factor:
        return INVALID_REPLICA_ASSIGNMENT, (
            f"{says} a partition with {len(replicas)} replica(s), but this is not consistent with "
            f"previous partitions, which have {factor} replica(s)."
        )
    return NONE, None


def _assignment_complaint(
    partition: int, replicas: tuple[int, ...], factor: int | None, cluster: ClusterState
) -> Complaint:
    """The complaint about the replicas of a partition that is to be made."""
    complaint = replicas_complaint(replicas, factor, cluster)
    if complaint[0]:
        return complaint
    if not set(replicas) & set(cluster.brokers):
        return INVALID_REPLICA_ASSIGNMENT, (
            f"All brokers specified in the manual partition assignment for partition {partition} "
            "are fenced or in controlled shutdown."
        )
    return NONE, None


def _factor_complaint(factor: int, cluster: ClusterState) -> Complaint:
    says = f"Unable to replicate the partition {factor} time(s):"
    registered = len(cluster.brokers) + len(cluster.fenced)
    if not cluster.brokers:
        return INVALID_REPLICATION_FACTOR, f"{says} All brokers are currently fenced."
    if factor > registered:
        return INVALID_REPLICATION_FACTOR, (
            f"{says} The target replication factor of {factor} cannot be reached because only "
            f"{registered} broker(s) are registered."
        )
    return NONE, None


# ── round the brokers ───────────────────────────────────────────────────────────────────────────


def place_partitions(
    count: int, factor: int, brokers: Sequence[int], start: int, fenced: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Replicas of `count` partitions, leader first: round the brokers from `start` on. It all comes
    round again, and a tuple stands for all that are equal."""
    round_ = len(brokers) * max(len(brokers) - 1, 1) * max(len(fenced), 1)
    placed = [
        _placed(start + partition, brokers, fenced)[:factor]
        for partition in range(min(count, round_))
    ]
    return (placed * (count // round_ + 1))[:count]


def _placed(rank: int, brokers: Sequence[int], fenced: Sequence[int]) -> tuple[int, ...]:
    """All brokers in the order in which the `rank`-th partition would have them."""
    round_, at = divmod(rank, len(brokers))
    followers = [*brokers[at + 1 :], *brokers[:at]]
    by = round_ % len(followers) if followers else 0
    late = round_ % len(fenced) if fenced else 0
    return (brokers[at], *followers[by:], *followers[:by], *fenced[late:], *fenced[:late])


def partition_records(
    topic_id: bytes,
    first: int,
    assignments: list[tuple[int, ...]],
    brokers: dict[int, BrokerImage],
) -> list[MetadataRecord]:
    """New partitions from `first` on. Of thousands most have the replicas of others."""
    alike: dict[tuple[int, ...], dict[str, Any]] = {}
    records: list[MetadataRecord] = []
    for partition, replicas in enumerate(assignments, first):
        message = alike.get(replicas)
        if message is None:
            in_sync = [broker_id for broker_id in replicas if brokers[broker_id].is_active]
            message = alike[replicas] = {
                "topic_id": topic_id,
                "replicas": list(replicas),
                "isr": in_sync,
                "leader": in_sync[0],
                "leader_epoch": 0,
                "partition_epoch": 0,
                "directories": [
                    (brokers[broker_id].directories or (ZERO_UUID,))[0] for broker_id in replicas
                ],
            }
        records.append(("PartitionRecord", 2, {"partition_id": partition} | message))
    return records
