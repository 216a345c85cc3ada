"""Topics that are created because somebody uses them, as topics of a CreateTopics request."""

from __future__ import annotations

from shmbroker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.settings.broker_config import BrokerConfig


def created_by_use(name: str, config: BrokerConfig) -> dict[str, Any]:
    """A topic that is created because somebody uses it, as a topic of a CreateTopics request."""
    if name == OFFSETS_TOPIC:
        return offsets_topic(config)
    if name == TRANSACTION_TOPIC:
        return transactions_topic(config)
    return default_topic(name)


def offsets_topic(config: BrokerConfig) -> dict[str, Any]:
    """`__consumer_offsets` as Kafka creates it, as a topic of a CreateTopics request."""
    return _creatable(
        OFFSETS_TOPIC,
        config["offsets.topic.num.partitions"],
        config["offsets.topic.replication.factor"],
        {
            "compression.type": "producer",
            "cleanup.policy": "compact",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )


def transactions_topic(config: BrokerConfig) -> dict[str, Any]:
    """`__transaction_state` as Kafka creates it."""
    return _creatable(
        TRANSACTION_TOPIC,
        config["transaction.state.log.num.partitions"],
        config["transaction.state.log.replication.factor"],
        {
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config["transaction.state.log.min.isr"]),
            "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
            "unclean.leader.election.enable": "false",
        },
    )


def default_topic(name: str) -> dict[str, Any]:
    """A topic of a CreateTopics request that leaves everything to the defaults."""
    return _creatable(name, -1, -1, {})


def _creatable(
    name: str, partitions: int, replication_factor: int, configs: dict[str, str]
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
