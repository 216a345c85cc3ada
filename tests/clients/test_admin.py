"""Admin calls of client libraries: topics, partitions, settings, and their refusals."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from shmbroker import clock

PATIENCE_S = 20.0


def result_of(futures: dict[Any, Any]) -> Any:
    """The only result of an admin call."""
    (future,) = futures.values()
    return future.result(PATIENCE_S)


def error_of(futures: dict[Any, Any]) -> int:
    """The error code of the only result."""
    with pytest.raises(KafkaException) as caught:
        result_of(futures)
    return caught.value.args[0].code()


# ── confluent-kafka ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


def settings_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    return result_of(admin.describe_configs([ConfigResource(kind, name)]))


def test_confluent_creates_lists_and_deletes_topics(admin: AdminClient) -> None:
    name = "admin-confluent"
    result_of(admin.create_topics([NewTopic(name, 3, 1)]))
    listed = admin.list_topics(timeout=PATIENCE_S)
    assert sorted(listed.topics[name].partitions) == [0, 1, 2]
    assert [partition.leader for partition in listed.topics[name].partitions.values()] == [1] * 3
    assert error_of(admin.create_topics([NewTopic(name, 1, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    result_of(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=PATIENCE_S).topics
    assert error_of(admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("no spaces", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("admin-no-partitions", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("admin-copies", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (
            NewTopic("admin-setting", 1, 1, config={"no.such.setting": "1"}),
            KafkaError.INVALID_CONFIG,
        ),
        (
            NewTopic("admin-value", 1, 1, config={"retention.ms": "long"}),
            KafkaError.INVALID_CONFIG,
        ),
    ],
    ids=lambda value: value.topic if isinstance(value, NewTopic) else "",
)
def test_confluent_is_refused_wrong_topics(admin: AdminClient, topic: NewTopic, code: int) -> None:
    assert error_of(admin.create_topics([topic])) == code
    assert topic.topic not in admin.list_topics(timeout=PATIENCE_S).topics


def test_confluent_validates_without_creating(admin: AdminClient) -> None:
    result_of(admin.create_topics([NewTopic("admin-validated", 1, 1)], validate_only=True))
    assert "admin-validated" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_confluent_adds_partitions(admin: AdminClient) -> None:
    name = "admin-grows"
    result_of(admin.create_topics([NewTopic(name, 1, 1)]))
    result_of(admin.create_partitions([NewPartitions(name, 4)]))
    assert len(admin.list_topics(timeout=PATIENCE_S).topics[name].partitions) == 4
    code = error_of(admin.create_partitions([NewPartitions(name, 2)]))
    assert code == KafkaError.INVALID_PARTITIONS


def test_confluent_describes_and_alters_a_topics_settings(admin: AdminClient) -> None:
    name = "admin-settings"
    config = {"retention.ms": "3600000", "cleanup.policy": "compact"}
    result_of(admin.create_topics([NewTopic(name, 1, 1, config=config)]))
    settings = settings_of(admin, ResourceType.TOPIC, name)
    assert settings["retention.ms"].value == "3600000"
    assert not settings["retention.ms"].is_default
    assert settings["segment.bytes"].value == "1073741824"
    assert settings["segment.bytes"].is_default
    changes = [
        ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("segment.bytes", None, incremental_operation=AlterConfigOpType.DELETE),
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
    result_of(admin.incremental_alter_configs([resource]))
    settings = settings_of(admin, ResourceType.TOPIC, name)
    assert settings["retention.ms"].value == "7200000"
    assert set(settings["cleanup.policy"].value.split(",")) == {"compact", "delete"}
    wrong = [ConfigEntry("retention.ms", "x", incremental_operation=AlterConfigOpType.SET)]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=wrong)
    assert error_of(admin.incremental_alter_configs([resource])) == KafkaError.INVALID_CONFIG


def test_confluent_describes_the_broker(admin: AdminClient, address: str) -> None:
    settings = settings_of(admin, ResourceType.BROKER, "1")
    assert settings["node.id"].value == "1"
    assert settings["node.id"].is_read_only
    assert settings["log.segment.bytes"].value == "1073741824"
    assert address.rpartition(":")[2] in settings["listeners"].value


def test_confluent_describes_cluster_and_topics(admin: AdminClient, address: str) -> None:
    cluster = admin.describe_cluster().result(PATIENCE_S)
    assert len(cluster.cluster_id) == 22
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [address]
    assert cluster.controller.id == 1


def test_confluent_lists_offsets(admin: AdminClient, address: str) -> None:
    from confluent_kafka import Producer

    name = "admin-offsets"
    result_of(admin.create_topics([NewTopic(name, 1, 1)]))
    producer = Producer({"bootstrap.servers": address})
    newest = clock.now_ms()
    for number in range(5):
        producer.produce(name, b"%d" % number, timestamp=newest - number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    for spec, offset in [
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 5),
        (OffsetSpec.max_timestamp(), 0),
        (OffsetSpec.for_timestamp(newest), 0),
    ]:
        found = result_of(admin.list_offsets({TopicPartition(name, 0): spec}))
        assert found.offset == offset, spec


# ── kafka-python ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def other_admin(address: str) -> Iterator[Any]:
    from kafka.admin import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=address)
    yield client
    client.close()


def test_kafka_python_creates_lists_and_deletes_topics(other_admin: Any) -> None:
    from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

    name = "admin-kafka-python"
    other_admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    assert name in other_admin.list_topics()
    (described,) = other_admin.describe_topics([name])
    assert len(described["partitions"]) == 2
    with pytest.raises(TopicAlreadyExistsError):
        other_admin.create_topics([name])
    other_admin.create_partitions({name: 5})
    (described,) = other_admin.describe_topics([name])
    assert len(described["partitions"]) == 5
    other_admin.delete_topics([name])
    assert name not in other_admin.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        other_admin.delete_topics([name])


def test_kafka_python_describes_and_alters_settings(other_admin: Any) -> None:
    from kafka.admin import ConfigResource as OtherResource
    from kafka.admin import ConfigResourceType

    name = "admin-kafka-python-settings"
    other_admin.create_topics({name: {"configs": {"retention.ms": "1000"}}})

    def settings() -> dict[str, Any]:
        described = other_admin.describe_configs([OtherResource(ConfigResourceType.TOPIC, name)])
        ((_, by_name),) = described.items()
        return by_name[name]

    assert settings()["retention.ms"]["value"] == "1000"
    other_admin.alter_configs(
        [OtherResource(ConfigResourceType.TOPIC, name, {"retention.ms": "2000"})]
    )
    assert settings()["retention.ms"]["value"] == "2000"


def test_kafka_python_describes_the_cluster(other_admin: Any, address: str) -> None:
    cluster = other_admin.describe_cluster()
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [address]
