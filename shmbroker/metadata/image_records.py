"""An image as the records that make it: what a snapshot holds. Pure.

In the order of Kafka's `MetadataImage.write`: features, brokers, topics with their partitions,
settings, producer ids, and who may do what.
"""

from __future__ import annotations

from shmbroker.metadata.features import METADATA_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from shmbroker.metadata.image import BrokerImage, MetadataImage, PartitionImage
    from shmbroker.metadata.record import MetadataRecord


def image_records(image: MetadataImage, features: list[dict[str, Any]]) -> Iterator[MetadataRecord]:
    """Records that turn the empty image into this one, offset and epoch apart.

    `features`: what brokers say they support (`RegisterBrokerRecord`).
    """
    levels = sorted(image.features.items(), key=lambda row: row[0] != METADATA_VERSION)
    for name, level in levels:
        yield "FeatureLevelRecord", 0, {"name": name, "feature_level": level}
    for broker in image.brokers.values():
        yield "RegisterBrokerRecord", 3, _broker(broker, features)
    for topic in image.topics_by_id.values():
        yield "TopicRecord", 0, {"name": topic.name, "topic_id": topic.topic_id}
        for partition in topic.partitions:
            yield "PartitionRecord", 2, _partition(topic.topic_id, partition)
    for (resource_type, resource_name), values in image.configs.items():
        for name, value in values.items():
            yield (
                "ConfigRecord",
                0,
                {
                    "resource_type": resource_type,
                    "resource_name": resource_name,
                    "name": name,
                    "value": value,
                },
            )
    if image.next_producer_id:
        message = {
            "broker_id": -1,
            "broker_epoch": -1,
            "next_producer_id": image.next_producer_id,
        }
        yield "ProducerIdsRecord", 0, message
    yield from image.security.records()


def _broker(broker: BrokerImage, features: list[dict[str, Any]]) -> dict[str, Any]:
    end_point = {
        "name": "PLAINTEXT",
        "host": broker.host,
        "port": broker.port,
        "security_protocol": 0,
    }
    return {
        "broker_id": broker.broker_id,
        "incarnation_id": broker.incarnation_id,
        "broker_epoch": broker.broker_epoch,
        "end_points": [end_point] if broker.host else [],
        "features": features,
        "rack": broker.rack,
        "fenced": broker.is_fenced,
        "in_controlled_shutdown": broker.in_controlled_shutdown,
        "log_dirs": list(broker.directories),
    }


def _partition(topic_id: bytes, partition: PartitionImage) -> dict[str, Any]:
    return {
        "partition_id": partition.partition,
        "topic_id": topic_id,
        "replicas": list(partition.replicas),
        "isr": list(partition.in_sync_replicas),
        "removing_replicas": list(partition.removing_replicas),
        "adding_replicas": list(partition.adding_replicas),
        "leader": partition.leader_id,
        "leader_recovery_state": partition.leader_recovery_state,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
        "directories": list(partition.directories),
        "eligible_leader_replicas": list(partition.eligible_leader_replicas) or None,
        "last_known_elr": list(partition.last_known_elr) or None,
    }
