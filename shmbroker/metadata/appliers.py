"""What each record of the metadata log does to an image in the making.

What a record means is Kafka's (`org.apache.kafka.image`, `PartitionRegistration.merge`).
"""

from __future__ import annotations

from functools import partial

from shmbroker.metadata.image import (
    TOPIC_RESOURCE,
    BrokerImage,
    PartitionImage,
    TopicImage,
    changed_partition,
)
from shmbroker.metadata.security_image import APPLIERS as SECURITY_APPLIERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.metadata.draft import Draft


def _register_broker(draft: Draft, message: dict[str, Any]) -> None:
    end_points = message["end_points"]
    brokers = draft.brokers(message["broker_id"])
    brokers[message["broker_id"]] = BrokerImage(
        message["broker_id"],
        end_points[0]["host"] if end_points else "",
        end_points[0]["port"] if end_points else 0,
        message["rack"],
        message["broker_epoch"],
        message["incarnation_id"],
        message["fenced"],
        tuple(message["log_dirs"]),
        message["in_controlled_shutdown"],
    )


def _unregister_broker(draft: Draft, message: dict[str, Any]) -> None:
    draft.brokers(message["broker_id"]).pop(message["broker_id"], None)


def _change_broker(draft: Draft, message: dict[str, Any]) -> None:
    brokers = draft.brokers(message["broker_id"])
    broker = brokers[message["broker_id"]]
    fenced = message["fenced"]  # 1 fences, -1 ends it, 0 leaves it as it is
    brokers[message["broker_id"]] = broker.replace(
        broker.is_fenced if fenced == 0 else fenced > 0,
        tuple(message["log_dirs"]) or broker.directories,
        # A new registration alone ends it.
        broker.in_controlled_shutdown or message["in_controlled_shutdown"] > 0,
    )


def _fence_broker(draft: Draft, message: dict[str, Any]) -> None:
    _set_fenced(draft, message["id"], True)


def _unfence_broker(draft: Draft, message: dict[str, Any]) -> None:
    _set_fenced(draft, message["id"], False)


def _set_fenced(draft: Draft, broker_id: int, is_fenced: bool) -> None:
    brokers = draft.brokers(broker_id)
    broker = brokers[broker_id]
    brokers[broker_id] = broker.replace(
        is_fenced, broker.directories, broker.in_controlled_shutdown
    )


def _add_topic(draft: Draft, message: dict[str, Any]) -> None:
    by_name, by_id = draft.topics()
    topic = TopicImage(message["name"], message["topic_id"], ())
    by_name[topic.name] = by_id[topic.topic_id] = topic
    draft.partitions[topic.topic_id] = {}


def _remove_topic(draft: Draft, message: dict[str, Any]) -> None:
    by_name, by_id = draft.topics()
    topic = by_id.pop(message["topic_id"])
    by_name.pop(topic.name)
    draft.partitions.pop(topic.topic_id, None)
    if topic.topic_id in draft.before.topics_by_id:
        draft.old_topics[topic.topic_id] = draft.before.topics_by_id[topic.topic_id]
    resource = (TOPIC_RESOURCE, topic.name)
    if resource in draft.image.configs:
        draft.configs(resource)[resource].clear()


def _add_partition(draft: Draft, message: dict[str, Any]) -> None:
    shared = draft.shared
    draft.topic_partitions(message["topic_id"])[message["partition_id"]] = PartitionImage(
        message["partition_id"],
        shared(message["replicas"]),
        shared(message["isr"]),
        message["leader"],
        message["leader_epoch"],
        message["partition_epoch"],
        shared(message["directories"]),
        shared(message["adding_replicas"]),
        shared(message["removing_replicas"]),
        shared(message["eligible_leader_replicas"]),
        shared(message["last_known_elr"]),
        message["leader_recovery_state"],
    )


def _change_partition(draft: Draft, message: dict[str, Any]) -> None:
    partitions = draft.topic_partitions(message["topic_id"])
    old = partitions[message["partition_id"]]
    partitions[old.partition] = changed_partition(old, message)


def _clear_elr(draft: Draft, message: dict[str, Any]) -> None:
    """Forget the eligible leaders of one topic or, without a name, of all."""
    name = message["topic_name"]
    by_name = draft.image.topics_by_name
    topics = [by_name[name]] if name else list(by_name.values())
    for topic in topics:
        partitions = draft.partitions.get(topic.topic_id) or dict(enumerate(topic.partitions))
        for index, partition in list(partitions.items()):
            if partition.eligible_leader_replicas or partition.last_known_elr:
                draft.topic_partitions(topic.topic_id)[index] = changed_partition(
                    partition, {"eligible_leader_replicas": (), "last_known_elr": ()}
                )


def _change_config(draft: Draft, message: dict[str, Any]) -> None:
    resource = (message["resource_type"], message["resource_name"])
    values = draft.configs(resource).setdefault(resource, {})
    if message["value"] is None:
        values.pop(message["name"], None)
    else:
        values[message["name"]] = message["value"]


def _set_feature(draft: Draft, message: dict[str, Any]) -> None:
    features = dict(draft.image.features)
    if message["feature_level"] == 0:
        features.pop(message["name"], None)
    else:
        features[message["name"]] = message["feature_level"]
    draft.image.features = features


def _set_producer_ids(draft: Draft, message: dict[str, Any]) -> None:
    draft.image.next_producer_id = message["next_producer_id"]


def _change_security(name: str, draft: Draft, message: dict[str, Any]) -> None:
    image, before = draft.image, draft.before.security
    if image.security is before:
        image.security = before.copy()
    part, change = SECURITY_APPLIERS[name]
    image.security.begin(part, before)
    change(image.security, message)


def _nothing(draft: Draft, message: dict[str, Any]) -> None:
    """Records that other things of Kafka's live on, and whose absence changes nothing here."""


APPLIERS: dict[str, Callable[[Draft, dict[str, Any]], None]] = {
    "RegisterBrokerRecord": _register_broker,
    "UnregisterBrokerRecord": _unregister_broker,
    "BrokerRegistrationChangeRecord": _change_broker,
    "FenceBrokerRecord": _fence_broker,
    "UnfenceBrokerRecord": _unfence_broker,
    "TopicRecord": _add_topic,
    "RemoveTopicRecord": _remove_topic,
    "PartitionRecord": _add_partition,
    "PartitionChangeRecord": _change_partition,
    "ConfigRecord": _change_config,
    "FeatureLevelRecord": _set_feature,
    "ProducerIdsRecord": _set_producer_ids,
    "NoOpRecord": _nothing,
    "RegisterControllerRecord": _nothing,
    "ZkMigrationStateRecord": _nothing,
    "ClearElrRecord": _clear_elr,
    **{name: partial(_change_security, name) for name in SECURITY_APPLIERS},
}
"""The function that applies a record, by the record's name; it takes the draft and the message."""
