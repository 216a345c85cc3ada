"""Metadata (key 3): brokers, topics, partitions, leaders; creates topics that are asked for.

Versions: 0-13.
Where: the network gateway, from cached bytes; the controller creates what is missing.
Version notes: 1 null means all topics, controller id, rack, internal flag; 4 auto-creation flag;
7 leader epoch; 8 authorized operations; 9 flexible; 10 topic ids; 12 topics by id; 13 error of the
whole answer.

The address of each broker is the one that the client dialled to reach this one.
"""

from __future__ import annotations

from typing import Any

from shmbroker.ids import ZERO_UUID
from shmbroker.metadata.topic_names import topic_name_complaint
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, PlainRequest
    from shmbroker.metadata.image import TopicImage

API_KEY = 3
NAME = "Metadata"
VERSION_MIN = 0
VERSION_MAX = 13
VERSION_MIN_ADVERTISED = 0

NOT_ASKED = -(2**31)
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe and both config operations: no authorizer here."""
CREATED_MAX = 10_000
"""Topics that one request may create; the controller makes no more partitions at once."""
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


def answer(
    gateway: GatewayContext, request: PlainRequest, body: dict[str, Any]
) -> dict[str, Any] | None:
    """None if topics have to be created first: then this is called again when they are."""
    version = request.api_version
    image = gateway.image
    asked = body["topics"]
    topics: list[dict[str, Any]] = []
    missing: list[str] = []
    seen = set()
    operations = body["include_topic_authorized_operations"]
    if asked is None or (version == 0 and not asked):
        topics = [_topic(gateway, topic, operations) for topic in image.topics_by_name.values()]
    else:
        if 10 <= version < 12 and any(
            topic["name"] is None or topic["topic_id"] != ZERO_UUID for topic in asked
        ):
            code = error_codes.INVALID_REQUEST
            topics = [_failed(code, topic["name"] or "", topic["topic_id"]) for topic in asked]
            return {"topics": topics}
        for topic in asked:
            name, topic_id = topic["name"], topic["topic_id"]
            by_id = name is None or (version >= 12 and topic_id != ZERO_UUID)
            known = image.topics_by_id.get(topic_id) if by_id else image.topics_by_name.get(name)
            key = known.topic_id if known is not None else topic_id if by_id else name
            if key in seen:
                continue  # a topic that is named twice is told once
            seen.add(key)
            if known is not None:
                topics.append(_topic(gateway, known, operations))
            elif by_id:
                topics.append(_failed(error_codes.UNKNOWN_TOPIC_ID, None, topic_id))
            elif topic_name_complaint(name):
                code = error_codes.INVALID_TOPIC_EXCEPTION
                topics.append(_failed(code, name, ZERO_UUID) | _operations(operations))
            else:
                if body["allow_auto_topic_creation"] or version < 4:
                    missing.append(name)
                code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                topics.append(_failed(code, name, ZERO_UUID) | _operations(operations))
    if (
        0 < len(missing) <= CREATED_MAX
        and gateway.config["auto.create.topics.enable"]
        and not request.has_asked_for_topics
    ):
        request.has_asked_for_topics = True
        gateway.create_topics(request, missing)
        return None
    return {
        "brokers": gateway.broker_rows(request.connection, with_gone=True),
        "cluster_id": image.cluster_id,
        "controller_id": gateway.controller_broker_id(),
        "topics": topics,
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if body["include_cluster_authorized_operations"]
        else NOT_ASKED,
    }


def _failed(error_code: int, name: str | None, topic_id: bytes) -> dict[str, Any]:
    return {"error_code": error_code, "name": name, "topic_id": topic_id, "partitions": []}


def _operations(is_asked: bool) -> dict[str, int]:
    """What a client may do with a topic that it has named, whether there is one or not."""
    return {"topic_authorized_operations": TOPIC_OPERATIONS if is_asked else NOT_ASKED}


def _topic(gateway: GatewayContext, topic: TopicImage, operations: bool) -> dict[str, Any]:
    live = gateway.live_brokers()
    partitions = []
    for partition in topic.partitions:
        leader = partition.leader_id
        has_leader = leader in live
        partitions.append(
            {
                "error_code": 0 if has_leader else error_codes.LEADER_NOT_AVAILABLE,
                "partition_index": partition.partition,
                "leader_id": leader if has_leader else -1,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.in_sync_replicas,
                "offline_replicas": [node for node in partition.replicas if node not in live],
            }
        )
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": partitions,
    } | _operations(operations)
