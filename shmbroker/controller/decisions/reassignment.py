"""The brokers that hold a partition: AlterPartitionReassignments, ListPartitionReassignments.

Pure functions of a request and an image, with the checks, codes and words of Kafka's
`ReplicationControlManager`. A reassignment (KIP-455)

1. makes the new replicas replicas beside the old ones, and notes which are adding and removing;
2. waits until all that are to stay are in sync;
3. takes the old ones away, with a new leader if the leader is one of them.

Step 3 comes with the AlterPartition that completes the ISR (`partition_change`), or at once where
there is nothing to wait for. A cancelled one goes back to the replicas that were, with those of
them that are in sync.
"""

from __future__ import annotations

from shmbroker.controller.decisions.partition_change import partition_change
from shmbroker.controller.decisions.placement import replicas_complaint
from shmbroker.metadata.image import RECOVERING, changed_partition
from shmbroker.metadata.messages import fitting
from shmbroker.wire.error_codes import (
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    NO_REASSIGNMENT_IN_PROGRESS,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState, Complaint
    from shmbroker.metadata.image import MetadataImage, PartitionImage, TopicImage
    from shmbroker.metadata.record import MetadataRecord


def alter_partition_reassignments(
    request: dict[str, Any], version: int, cluster: ClusterState
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """AlterPartitionReassignments v0–1: (records, response)."""
    # Kafka answers one that asks for nothing without a look at it.
    is_for_nothing = not request["topics"]
    may_change_factor = version == 0 or is_for_nothing or request["allow_replication_factor_change"]
    records: list[MetadataRecord] = []
    changed: dict[tuple[str, int], PartitionImage] = {}
    """Partitions that earlier rows of this request have changed."""
    responses = []
    for topic in request["topics"]:
        known = cluster.image.topics_by_name.get(topic["name"])
        partitions = []
        for wanted in topic["partitions"]:
            index = wanted["partition_index"]
            if known is None:
                complaint: Complaint = (
                    UNKNOWN_TOPIC_OR_PARTITION,
                    f"Unable to find a topic named {topic['name']}.",
                )
            elif not 0 <= index < len(known.partitions):
                complaint = (
                    UNKNOWN_TOPIC_OR_PARTITION,
                    f"Unable to find partition {topic['name']}:{index}.",
                )
            else:
                partition = changed.get((known.name, index), known.partitions[index])
                change, complaint = _alter(known, partition, wanted, may_change_factor, cluster)
                if change is not None:
                    records.append(("PartitionChangeRecord", 2, change))
                    changed[known.name, index] = changed_partition(partition, change)
            partitions.append(
                {
                    "partition_index": index,
                    "error_code": complaint[0],
                    "error_message": fitting(complaint[1]),
                }
            )
        responses.append({"name": topic["name"], "partitions": partitions})
    return records, {
        "throttle_time_ms": 0,
        "allow_replication_factor_change": may_change_factor,
        "error_code": NONE,
        "error_message": "" if is_for_nothing else None,
        "responses": responses,
    }


def _alter(
    topic: TopicImage,
    partition: PartitionImage,
    wanted: dict[str, Any],
    may_change_factor: bool,
    cluster: ClusterState,
) -> tuple[dict[str, Any] | None, Complaint]:
    """What becomes of one partition, and what is wrong with that."""
    if wanted["replicas"] is None:
        return _cancel(topic, partition, cluster)
    replicas = tuple(wanted["replicas"])
    complaint = replicas_complaint(replicas, None, cluster)
    if not complaint[0] and not may_change_factor:
        complaint = _factor_complaint(partition, replicas)
    if complaint[0]:
        return None, complaint
    return _reassign(topic, partition, replicas, cluster), complaint


def _reassign(
    topic: TopicImage, partition: PartitionImage, replicas: tuple[int, ...], cluster: ClusterState
) -> dict[str, Any] | None:
    """A reassignment that is under way gives way to this one: its new replicas go again, unless
    they are wanted now."""
    removing = sorted(set(partition.replicas).difference(replicas))
    adding = sorted(set(replicas).difference(partition.replicas))
    return partition_change(
        topic.topic_id,
        partition,
        cluster.rules(topic),
        replicas=(*replicas, *removing),
        removing=removing or None,
        adding=adding or None,
    )


def _cancel(
    topic: TopicImage, partition: PartitionImage, cluster: ClusterState
) -> tuple[dict[str, Any] | None, Complaint]:
    if not partition.is_reassigning:
        return None, (NO_REASSIGNMENT_IN_PROGRESS, None)
    adding = partition.adding_replicas
    replicas = [broker_id for broker_id in partition.replicas if broker_id not in adding]
    isr = [broker_id for broker_id in partition.in_sync_replicas if broker_id not in adding]
    recovery_state = None
    if not isr:
        # None of those that were is in sync: one would have to lead all the same.
        if not cluster.is_unclean_allowed(topic.name):
            return None, (
                INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{partition.partition} "
                "because it would require an unclean leader election.",
            )
        recovery_state = RECOVERING
        isr = replicas[:1]  # or whoever the election finds
    change = partition_change(
        topic.topic_id,
        partition,
        cluster.rules(topic),
        isr=isr,
        replicas=replicas,
        removing=(),
        adding=(),
        recovery_state=recovery_state,
    )
    return change, (NONE, None)


def _factor_complaint(partition: PartitionImage, replicas: tuple[int, ...]) -> Complaint:
    """The complaint where more or fewer replicas are wanted than there were."""
    current = len(set(partition.replicas).difference(partition.removing_replicas))
    if len(replicas) == current:
        return NONE, None
    return (
        INVALID_REPLICATION_FACTOR,
        f"The replication factor is changed from {current} to {len(replicas)}",
    )


def list_partition_reassignments(request: dict[str, Any], image: MetadataImage) -> dict[str, Any]:
    """The response to ListPartitionReassignments v0: what is under way, of all topics or of those
    asked for."""
    asked = request["topics"]
    if asked is None:
        wanted = [(name, range(len(t.partitions))) for name, t in image.topics_by_name.items()]
    else:
        wanted = [(topic["name"], topic["partition_indexes"]) for topic in asked]
    topics = []
    for name, indexes in wanted:
        topic = image.topics_by_name.get(name)
        if topic is None:
            continue
        rows = [
            {
                "partition_index": index,
                "replicas": partition.replicas,
                "adding_replicas": partition.adding_replicas,
                "removing_replicas": partition.removing_replicas,
            }
            for index in indexes
            if 0 <= index < len(topic.partitions)
            and (partition := topic.partitions[index]).is_reassigning
        ]
        if rows:
            topics.append({"name": name, "partitions": rows})
    return {"throttle_time_ms": 0, "error_code": NONE, "error_message": None, "topics": topics}
