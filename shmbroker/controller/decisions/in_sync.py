"""The replicas in sync: AlterPartition, and what becomes of partitions when a broker goes or comes.

Pure functions of a request and an image. Checks and codes of AlterPartition are those of Kafka's
`ReplicationControlManager.validateAlterPartitionData`, in its order: a leader only changes the ISR
of the partition that it leads, in the state that it knows, to replicas which are at work.
"""

from __future__ import annotations

from shmbroker.controller.decisions.partition_change import ONLINE, has_lost, partition_change
from shmbroker.metadata.image import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    RECOVERED,
    RECOVERING,
    changed_partition,
)
from shmbroker.wire.error_codes import (
    FENCED_LEADER_EPOCH,
    INELIGIBLE_REPLICA,
    INVALID_REQUEST,
    INVALID_UPDATE_VERSION,
    NEW_LEADER_ELECTED,
    NONE,
    NOT_CONTROLLER,
    STALE_BROKER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState
    from shmbroker.metadata.image import MetadataImage, PartitionImage
    from shmbroker.metadata.record import MetadataRecord


def alter_partition(
    request: dict[str, Any], version: int, cluster: ClusterState
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """AlterPartition v2–3 (KIP-497, KIP-841, KIP-903): (records, response)."""
    image = cluster.image
    broker = image.brokers.get(request["broker_id"])
    if broker is None or broker.broker_epoch != request["broker_epoch"]:
        return [], {"error_code": STALE_BROKER_EPOCH}
    records: list[MetadataRecord] = []
    topics = []
    for asked in request["topics"]:
        topic = image.topics_by_id.get(asked["topic_id"])
        rules = cluster.rules(topic) if topic else None
        partitions = []
        for wanted in asked["partitions"]:
            index = wanted["partition_index"]
            if topic is None or rules is None:
                partitions.append({"partition_index": index, "error_code": UNKNOWN_TOPIC_ID})
                continue
            if not 0 <= index < len(topic.partitions):
                error = UNKNOWN_TOPIC_OR_PARTITION
                partitions.append({"partition_index": index, "error_code": error})
                continue
            partition = topic.partitions[index]
            members = _members(wanted, version)
            error = _alter_error(partition, broker.broker_id, wanted, members, image)
            if error == NONE:
                message = partition_change(
                    topic.topic_id,
                    partition,
                    rules,
                    isr=[broker_id for broker_id, _ in members],
                    recovery_state=wanted["leader_recovery_state"],
                )
                if message:
                    records.append(("PartitionChangeRecord", 2, message))
                    partition = changed_partition(partition, message)
                    # The end of a reassignment may take the leader away from who asks.
                    if message.get("leader", NO_LEADER_CHANGE) not in (
                        NO_LEADER_CHANGE,
                        broker.broker_id,
                    ):
                        error = NEW_LEADER_ELECTED
            if error:
                partitions.append({"partition_index": index, "error_code": error})
                continue
            partitions.append(
                {
                    "partition_index": index,
                    "error_code": NONE,
                    "leader_id": partition.leader_id,
                    "leader_epoch": partition.leader_epoch,
                    "isr": partition.in_sync_replicas,
                    "leader_recovery_state": partition.leader_recovery_state,
                    "partition_epoch": partition.partition_epoch,
                }
            )
        topics.append({"topic_id": asked["topic_id"], "partitions": partitions})
    return records, {"error_code": NONE, "topics": topics}


def _members(wanted: dict[str, Any], version: int) -> list[tuple[int, int]]:
    """(broker id, broker epoch) of the ISR asked for; -1 is any epoch."""
    if version < 3:
        return [(broker_id, -1) for broker_id in wanted["new_isr"]]
    return [(row["broker_id"], row["broker_epoch"]) for row in wanted["new_isr_with_epochs"]]


def _alter_error(
    partition: PartitionImage,
    broker_id: int,
    wanted: dict[str, Any],
    members: list[tuple[int, int]],
    image: MetadataImage,
) -> int:
    """What is wrong with an ISR that a broker asks for."""
    if (
        wanted["leader_epoch"] > partition.leader_epoch
        or wanted["partition_epoch"] > partition.partition_epoch
    ):
        return NOT_CONTROLLER  # there must be a newer one
    if wanted["leader_epoch"] < partition.leader_epoch:
        return FENCED_LEADER_EPOCH
    if broker_id != partition.leader_id:
        return INVALID_REQUEST
    if wanted["partition_epoch"] < partition.partition_epoch:
        return INVALID_UPDATE_VERSION
    ids = {member for member, _ in members}
    recovery_state = wanted["leader_recovery_state"]
    if (
        len(ids) < len(members)
        or not ids <= set(partition.replicas)
        or partition.leader_id not in ids
        or recovery_state not in (RECOVERED, RECOVERING)
    ):
        return INVALID_REQUEST
    if recovery_state == RECOVERING and (
        len(ids) > 1 or partition.leader_recovery_state == RECOVERED
    ):
        return INVALID_REQUEST
    for member, epoch in members:
        broker = image.brokers.get(member)
        if broker is None or not broker.is_active or epoch not in (-1, broker.broker_epoch):
            return INELIGIBLE_REPLICA
    return NONE


def broker_gone(
    cluster: ClusterState, broker_id: int, *, for_good: bool = False
) -> list[MetadataRecord]:
    """PartitionChangeRecords for a broker that is about to be fenced: it leaves the ISR, and others
    lead what it led. What nobody else could lead stays as it is, unless the broker is gone for
    good; then it leaves the ELR, too."""
    return _without(cluster, broker_id, (broker_id,) if for_good else (), not for_good)


def _without(
    cluster: ClusterState,
    broker_id: int,
    unclean: Sequence[int],
    keep: bool,
) -> list[MetadataRecord]:
    def is_acceptable(other: int) -> bool:
        return other != broker_id and cluster.is_active(other)

    records: list[MetadataRecord] = []
    for topic in cluster.image.topics_by_id.values():
        rules = None
        for partition in topic.partitions:
            isr = partition.in_sync_replicas
            if broker_id not in isr and not (
                unclean and broker_id in partition.eligible_leader_replicas
            ):
                continue
            rules = rules or cluster.rules(topic, is_acceptable)
            left = tuple(other for other in isr if other != broker_id)
            message = partition_change(
                topic.topic_id, partition, rules, isr=left, unclean=unclean, keeps_leader=keep
            )
            if message is not None:
                records.append(("PartitionChangeRecord", 2, message))
    return records


def broker_back(
    cluster: ClusterState,
    broker_id: int,
    *,
    absent: AbstractSet[int] = frozenset(),
    are_all_known: bool = True,
) -> list[MetadataRecord]:
    """PartitionChangeRecords for a broker that is about to be unfenced: it leads what nobody at
    work leads, where it is eligible; what it leads still, it leads in a new epoch.

    That, too, is how partitions get leaders which Apache Kafka left without one: when it stops,
    every leader is -1, and with eligible leader replicas on even the ISRs are empty. Where nobody
    is in sync or eligible, but the broker is the only replica, no record is anywhere else.

    absent: who has not come since the family started, but may keep what it leads. are_all_known:
    false while somebody may still come who has more, so that it is too early to elect one who may
    lack records, even where that is allowed.
    """

    def is_at_work(other: int) -> bool:
        return other == broker_id or cluster.is_active(other)

    def is_acceptable(other: int) -> bool:
        return is_at_work(other) and other not in absent

    election = None if are_all_known else ONLINE
    records: list[MetadataRecord] = []
    for topic in cluster.image.topics_by_id.values():
        rules = None
        for partition in topic.partitions:
            if partition.leader_id == broker_id and len(partition.replicas) > 1:
                # What it had not flushed may be gone, and followers compare in a new epoch only.
                again = {
                    "partition_id": partition.partition,
                    "topic_id": topic.topic_id,
                    "leader": broker_id,
                }
                records.append(("PartitionChangeRecord", 2, again))
                continue
            if broker_id not in partition.replicas or is_at_work(partition.leader_id):
                continue
            if has_lost(partition, broker_id) and len(partition.replicas) > 1:
                continue  # others may be back soon; if it is allowed, `election` asks it in time
            rules = rules or cluster.rules(topic, is_acceptable, election)
            is_empty = not partition.in_sync_replicas and not partition.eligible_leader_replicas
            isr: Sequence[int] | None = None
            if is_empty and partition.replicas == (broker_id,):
                isr = partition.replicas
            elif absent and partition.leader_id != NO_LEADER:
                isr = tuple(filter(is_at_work, partition.in_sync_replicas))
            message = partition_change(topic.topic_id, partition, rules, isr=isr)
            if message is not None and message.get("leader", NO_LEADER) != NO_LEADER:
                records.append(("PartitionChangeRecord", 2, message))
    return records
