"""DescribeTopicPartitions (key 75): topics and partitions, in pages (KIP-966).

Versions: 0.
Where: the network gateway.
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.gateway.metadata import TOPIC_OPERATIONS
from shmbroker.metadata.topic_names import topic_name_complaint
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from shmbroker.apis.contexts import GatewayContext, Request
    from shmbroker.metadata.image import PartitionImage

API_KEY = 75
NAME = "DescribeTopicPartitions"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0

PARTITIONS_MAX = "max.request.partition.size.limit"


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Topics in name order from the cursor on, until the limit; then where to go on."""
    image = gateway.image
    wanted = {topic["name"] for topic in body["topics"]}
    fetch_all = not wanted
    names = sorted(image.topics_by_name) if fetch_all else sorted(wanted)
    cursor = body["cursor"]
    first_partition = 0
    if cursor is not None:
        first = cursor["topic_name"]
        if cursor["partition_index"] < 0 or not (fetch_all or first in wanted):
            code = error_codes.INVALID_REQUEST
            return {"topics": [_failed(code, topic["name"]) for topic in body["topics"]]}
        names = [name for name in names if name >= first]
        if names and names[0] == first:
            first_partition = cursor["partition_index"]
    limit = max(1, min(body["response_partition_limit"], gateway.config[PARTITIONS_MAX]))
    live = gateway.live_brokers()
    topics: list[dict[str, Any]] = []
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is None:
            code = (
                error_codes.INVALID_TOPIC_EXCEPTION
                if topic_name_complaint(name)
                else error_codes.UNKNOWN_TOPIC_OR_PARTITION
            )
            topics.append(_failed(code, name) | {"topic_authorized_operations": TOPIC_OPERATIONS})
            continue
        shown = topic.partitions[first_partition : first_partition + limit]
        limit -= len(shown)
        topics.append(
            {
                "error_code": 0,
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partitions": [_partition(partition, live) for partition in shown],
                "topic_authorized_operations": TOPIC_OPERATIONS,
            }
        )
        end = first_partition + len(shown)
        if limit == 0 and (end < len(topic.partitions) or name != names[-1]):
            following = (
                {"topic_name": name, "partition_index": end}
                if end < len(topic.partitions)
                else {"topic_name": names[names.index(name) + 1], "partition_index": 0}
            )
            return {"topics": topics, "next_cursor": following}
        first_partition = 0
    return {"topics": topics, "next_cursor": None}


def _failed(error_code: int, name: str) -> dict[str, Any]:
    return {"error_code": error_code, "name": name, "partitions": []}


def _partition(partition: PartitionImage, live: AbstractSet[int]) -> dict[str, Any]:
    has_leader = partition.leader_id in live
    return {
        "error_code": 0 if has_leader else error_codes.LEADER_NOT_AVAILABLE,
        "partition_index": partition.partition,
        "leader_id": partition.leader_id if has_leader else -1,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.in_sync_replicas,
        "eligible_leader_replicas": partition.eligible_leader_replicas,
        "last_known_elr": partition.last_known_elr,
        "offline_replicas": [node for node in partition.replicas if node not in live],
    }
