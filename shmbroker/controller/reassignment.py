"""Decisions about which brokers hold a partition: AlterPartitionReassignments,
ListPartitionReassignments.

Pure functions of a request and an image, with the checks, codes and words of Kafka's
`ReplicationControlManager` (KIP-455). There is no copying between brokers yet: a reassignment to
where the partition is already is done at once, as in Kafka, any other one is refused; so none is
ever under way.
"""

from __future__ import annotations

from shmbroker.controller.topics import replicas_complaint
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

    from shmbroker.controller.metadata_log import Record
    from shmbroker.controller.topics import Cluster, Complaint
    from shmbroker.metadata.image import TopicImage


def alter_partition_reassignments(
    request: dict[str, Any], version: int, cluster: Cluster
) -> tuple[list[Record], dict[str, Any]]:
    """AlterPartitionReassignments v0–1: (records, response)."""
    may_change_factor = version == 0 or request["allow_replication_factor_change"]
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
                complaint = _complaint(known, index, wanted["replicas"], may_change_factor, cluster)
            partitions.append(
                {
                    "partition_index": index,
                    "error_code": complaint[0],
                    "error_message": fitting(complaint[1]),
                }
            )
        responses.append({"name": topic["name"], "partitions": partitions})
    return [], {
        "throttle_time_ms": 0,
        "allow_replication_factor_change": may_change_factor,
        "error_code": NONE,
        "error_message": None,
        "responses": responses,
    }


def list_partition_reassignments() -> dict[str, Any]:
    """The response to ListPartitionReassignments v0, whatever is asked for."""
    return {"throttle_time_ms": 0, "error_code": NONE, "error_message": None, "topics": []}


def _complaint(
    topic: TopicImage,
    index: int,
    replicas: list[int] | None,
    may_change_factor: bool,
    cluster: Cluster,
) -> Complaint:
    if replicas is None:
        return NO_REASSIGNMENT_IN_PROGRESS, None
    complaint = replicas_complaint(tuple(replicas), None, cluster)
    if complaint[0]:
        return complaint
    current = topic.partitions[index].replicas
    if len(replicas) != len(current) and not may_change_factor:
        return (
            INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(current)} to {len(replicas)}",
        )
    if tuple(replicas) != current:
        return (
            INVALID_REPLICA_ASSIGNMENT,
            f"shmbroker does not move partitions yet: {topic.name}-{index} stays on "
            f"{','.join(map(str, current))}.",
        )
    return NONE, None
