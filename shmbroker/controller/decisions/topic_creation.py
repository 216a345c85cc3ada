"""CreateTopics: a pure function of a request and an image.

It gives the records to append, and the response to send once those are durable. Order of the
checks, error codes and words are those of Kafka's `ReplicationControlManager` and `ControllerApis`,
as seen on a real 4.2.1. Errors are values. Where partitions go is `placement`.
"""

from __future__ import annotations

from collections import Counter

from shmbroker.controller.decisions.configs import config_record
from shmbroker.controller.decisions.placement import (
    PARTITIONS_MAX,
    TOO_MANY,
    partition_records,
    place_topic,
)
from shmbroker.metadata.image import TOPIC_RESOURCE
from shmbroker.metadata.messages import fitting
from shmbroker.metadata.topic_names import METADATA_TOPIC, collision_key, topic_name_complaint
from shmbroker.settings.checks import validate_topic_configs
from shmbroker.settings.layers import effective_topic_config
from shmbroker.settings.setting import OWN_PREFIX
from shmbroker.settings.table import TOPIC_SETTINGS
from shmbroker.wire.error_codes import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    NONE,
    POLICY_VIOLATION,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_ALREADY_EXISTS,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import (
        ClusterState,
        Complaint,
        Decision,
    )
    from shmbroker.metadata.image import BrokerImage, MetadataImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.settings.layers import Layers


def create_topics(request: dict[str, Any], version: int, cluster: ClusterState) -> Decision:
    """CreateTopics v2–7. The answer has one result for each name, in order of appearance."""
    topics = request["topics"]
    counts = Counter(topic["name"] for topic in topics)
    is_too_much = asked_partitions(topics, cluster.config) > PARTITIONS_MAX
    records: list[MetadataRecord] = []
    results = {}
    placed = sum(len(topic.partitions) for topic in cluster.image.topics_by_id.values())
    keys = {collision_key(name): name for name in cluster.image.topics_by_name}
    listed: dict[tuple[tuple[str, str | None], ...], list[dict[str, Any]]] = {}
    for topic in topics:
        name = topic["name"]
        if name in results:
            continue
        configs = {entry["name"]: entry["value"] for entry in topic["configs"]}
        if is_too_much:
            complaint: Complaint = (POLICY_VIOLATION, TOO_MANY)
        elif counts[name] > 1:
            complaint = INVALID_REQUEST, "Duplicate topic name."
        else:
            complaint = _complaint(name, configs, keys, cluster)
        assignments: list[tuple[int, ...]] = []
        if not complaint[0]:
            assignments, complaint = place_topic(topic, cluster, placed)
        if not complaint[0] and not cluster.mutations.allows(len(assignments)):
            complaint = THROTTLING_QUOTA_EXCEEDED, None
        if complaint[0]:
            results[name] = _failed_topic(name, complaint)
            continue
        topic_id = cluster.new_uuid()
        keys[collision_key(name)] = name
        placed += len(assignments)
        if not request["validate_only"]:
            records += _topic_records(name, topic_id, configs, assignments, cluster.image.brokers)
        values = tuple(configs.items())
        if version >= 5 and values not in listed:  # 50 us, and most topics of a request are alike
            listed[values] = _created_configs(configs, cluster.layers)
        results[name] = _created_topic(name, topic_id, assignments, listed.get(values, []))
    return records, {"throttle_time_ms": 0, "topics": list(results.values())}


def is_alike(before: MetadataImage, after: MetadataImage, asked: list[dict[str, Any]]) -> bool:
    """Whether topics that are asked to be made or enlarged would be so in both images: by the same
    brokers, none of them made, enlarged or gone since, and none with a name that collides."""
    was, now = before.topics_by_name, after.topics_by_name
    names = {topic["name"] for topic in asked}
    came = {collision_key(name) for name in now.keys() - was.keys()}
    return (
        before.brokers is after.brokers
        and came.isdisjoint(map(collision_key, names))
        and all(
            name in now
            and was[name].topic_id == now[name].topic_id
            and len(was[name].partitions) == len(now[name].partitions)
            for name in names & was.keys()
        )
    )


def asked_partitions(topics: list[dict[str, Any]], config: BrokerConfig) -> int:
    """Partitions that topics of a CreateTopics are to have together."""
    return sum(max(_asked_partitions(topic, config), 0) for topic in topics)


def _asked_partitions(topic: dict[str, Any], config: BrokerConfig) -> int:
    if topic["assignments"]:
        return len(topic["assignments"])
    asked: int = topic["num_partitions"]
    return config["num.partitions"] if asked == -1 else asked


def _complaint(
    name: str, configs: dict[str, str | None], keys: dict[str, str], cluster: ClusterState
) -> Complaint:
    """What is wrong with a topic's name or settings; `keys`: names there are, by what collides."""
    if name == METADATA_TOPIC:
        return INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited."
    complaint = _name_complaint(name, cluster.image, keys)
    return complaint if complaint[0] else _configs_complaint(configs, cluster.config)


def _name_complaint(name: str, image: MetadataImage, keys: dict[str, str]) -> Complaint:
    if complaint := topic_name_complaint(name):
        return INVALID_TOPIC_EXCEPTION, complaint
    if name in image.topics_by_name:
        return TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
    if collision_key(name) in keys:
        other = keys[collision_key(name)]
        return INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
    return NONE, None


def _configs_complaint(configs: dict[str, str | None], config: BrokerConfig) -> Complaint:
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        return INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}"
    if complaint := validate_topic_configs(configs, {}, config):  # type: ignore[arg-type]
        return INVALID_CONFIG, complaint
    return NONE, None


def _topic_records(
    name: str,
    topic_id: bytes,
    configs: dict[str, Any],
    assignments: list[tuple[int, ...]],
    brokers: dict[int, BrokerImage],
) -> list[MetadataRecord]:
    records: list[MetadataRecord] = [("TopicRecord", 0, {"name": name, "topic_id": topic_id})]
    for key, value in configs.items():
        records.append(config_record(TOPIC_RESOURCE, name, key, value))
    return records + partition_records(topic_id, 0, assignments, brokers)


def _created_topic(
    name: str,
    topic_id: bytes,
    assignments: list[tuple[int, ...]],
    configs: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": NONE,
        "error_message": None,
        "topic_config_error_code": NONE,
        "num_partitions": len(assignments),
        "replication_factor": len(assignments[0]),
        "configs": configs,
    }


def _failed_topic(name: str, complaint: Complaint) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": complaint[0],
        "error_message": fitting(complaint[1]),
        "configs": [],
    }


def _created_configs(configs: dict[str, Any], layers: Layers) -> list[dict[str, Any]]:
    """The settings a new topic has, as they were written; ours only where they were given."""
    listed = []
    for name in TOPIC_SETTINGS:
        if name.startswith(OWN_PREFIX) and name not in configs:
            continue
        value, source = effective_topic_config(name, configs, layers)
        listed.append(
            {
                "name": name,
                "value": value,
                "read_only": False,
                "config_source": source,
                "is_sensitive": False,
            }
        )
    return listed
