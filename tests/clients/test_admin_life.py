"""The life of topics, groups and offsets as each library's admin client runs it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupListing,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.clients.group_consumers import LIBRARIES
from tests.clients.test_admin import error_of, result_of
from tests.clients.test_group_behaviour import FLAGS, PATIENCE_S, fill, read_until
from tests.clients.test_group_confluent import committed
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker(*FLAGS, "--io-workers", "2") as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


def live(library: str, address: str, topic: str, group: str) -> None:
    """A member of the group that reads all ten records of partition 0 and commits, then goes."""
    fill(address, topic)
    consumer = LIBRARIES[library](address, group)
    try:
        consumer.subscribe(topic)
        read_until(lambda found: len(found) == 10, consumer)
        consumer.commit(topic, 0, 10, "")
    finally:
        consumer.close()


def log_start(address: str, topic: str) -> int:
    """The first offset of partition 0, whoever leads it."""
    with RawClient(address) as client:
        answer = client.ask("Metadata", 12, {"topics": [{"name": topic}]})
        (leader,) = (row["leader_id"] for row in answer["topics"][0]["partitions"])
        (row,) = (row for row in answer["brokers"] if row["node_id"] == leader)
    body = {
        "replica_id": -1,
        "topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -2}]}],
    }
    with RawClient(f"{row['host']}:{row['port']}") as client:
        return client.ask("ListOffsets", 7, body)["topics"][0]["partitions"][0]["offset"]


# ── confluent-kafka ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def confluent(shared: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared.address})


def test_confluent_topic_from_assignment_to_deletion(
    shared: Broker, confluent: AdminClient
) -> None:
    name = "life-confluent"
    topic = NewTopic(
        name, 3, replica_assignment=[[2], [1], [2, 1]], config={"retention.ms": "1000"}
    )
    # librdkafka wants as many replicas of each partition.
    with pytest.raises(Exception, match="replica"):
        result_of(confluent.create_topics([topic]))
    topic = NewTopic(name, 2, replica_assignment=[[2], [1]], config={"retention.ms": "1000"})
    result_of(confluent.create_topics([topic]))
    found = confluent.list_topics(name, PATIENCE_S).topics[name].partitions
    assert {index: row.replicas for index, row in found.items()} == {0: [2], 1: [1]}
    assert {index: row.leader for index, row in found.items()} == {0: 2, 1: 1}
    result_of(confluent.create_partitions([NewPartitions(name, 3, [[2]])]))
    from confluent_kafka import TopicCollection

    described = confluent.describe_topics(TopicCollection([name]))[name].result(PATIENCE_S)
    assert [[node.id for node in row.replicas] for row in described.partitions] == [
        [2],
        [1],
        [2],
    ]
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    result_of(confluent.incremental_alter_configs([resource]))
    settings = result_of(confluent.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
    assert (settings["retention.ms"].value, settings["retention.ms"].is_default) == ("5000", False)
    result_of(confluent.delete_topics([name]))
    assert name not in confluent.list_topics(timeout=PATIENCE_S).topics


@pytest.mark.parametrize(
    ("assignment", "code"),
    [
        ([[3]], KafkaError.INVALID_REPLICA_ASSIGNMENT),
        ([[1, 1]], KafkaError.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=["unknown broker", "the same broker twice"],
)
def test_confluent_is_refused_wrong_assignments(
    confluent: AdminClient, assignment: list[list[int]], code: int
) -> None:
    topic = NewTopic("life-wrong", 1, replica_assignment=assignment)
    assert error_of(confluent.create_topics([topic])) == code


def test_confluent_group_from_listing_to_deletion(shared: Broker, confluent: AdminClient) -> None:
    topic = group = "life-group-confluent"
    live("confluent", shared.address, topic, group)
    listed = confluent.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(PATIENCE_S)
    (row,) = (row for row in listed.valid if row.group_id == group)
    assert isinstance(row, ConsumerGroupListing)
    assert (row.is_simple_consumer_group, row.state) == (False, ConsumerGroupState.EMPTY)
    described = confluent.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert (described.state, described.members) == (ConsumerGroupState.EMPTY, [])
    wanted = ConsumerGroupTopicPartitions(group, [Partition(topic, 0, 4), Partition(topic, 7, 4)])
    altered = confluent.alter_consumer_group_offsets([wanted])[group].result(PATIENCE_S)
    assert [row.error and row.error.code() for row in altered.topic_partitions] == [
        None,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    ]
    asked = [ConsumerGroupTopicPartitions(group, [Partition(topic, 0), Partition(topic, 1)])]
    found = confluent.list_consumer_group_offsets(asked)[group].result(PATIENCE_S)
    assert [row.offset for row in found.topic_partitions] == [4, -1001]
    result_of(confluent.delete_consumer_groups([group]))
    assert error_of(confluent.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND
    assert committed(shared.address, topic, group) == {}


def test_confluent_deletes_records(shared: Broker, confluent: AdminClient) -> None:
    name = "life-records-confluent"
    fill(shared.address, name)
    deleted = result_of(confluent.delete_records([Partition(name, 0, 4)]))
    assert deleted.low_watermark == 4
    assert log_start(shared.address, name) == 4
    code = error_of(confluent.delete_records([Partition(name, 0, 11)]))
    assert code == KafkaError.OFFSET_OUT_OF_RANGE
    deleted = result_of(confluent.delete_records([Partition(name, 0, -1)]))
    assert deleted.low_watermark == 10
    found = result_of(confluent.list_offsets({Partition(name, 0): OffsetSpec.earliest()}))
    assert found.offset == 10


# ── kafka-python ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def kafka_python(shared: Broker) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=shared.address)
    yield client
    client.close()


def test_kafka_python_topic_from_assignment_to_deletion(kafka_python: Any) -> None:
    name = "life-kafka-python"
    kafka_python.create_topics(
        {name: {"assignments": {0: [2], 1: [1]}, "configs": {"retention.ms": "1"}}}
    )

    def replicas() -> list[list[int]]:
        (found,) = kafka_python.describe_topics([name])
        rows = sorted(found["partitions"], key=lambda row: row["partition_index"])
        return [row["replica_nodes"] for row in rows]

    assert replicas() == [[2], [1]]
    kafka_python.create_partitions({name: 4})
    assert len(replicas()) == 4
    kafka_python.delete_topics([name])
    assert name not in kafka_python.list_topics()


def test_kafka_python_group_from_listing_to_deletion(shared: Broker, kafka_python: Any) -> None:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    topic = group = "life-group-kafka-python"
    live("kafka-python", shared.address, topic, group)
    partition = TopicPartition(topic, 0)
    (row,) = (row for row in kafka_python.list_groups() if row["group_id"] == group)
    assert (row["protocol_type"], row["group_state"]) == ("consumer", "Empty")
    described = kafka_python.describe_groups([group])[group]
    assert (described["group_state"], described["members"]) == ("Empty", [])
    kafka_python.alter_group_offsets(group, {partition: OffsetAndMetadata(4, "here", -1)})
    (found,) = kafka_python.list_group_offsets([group]).values()
    assert (found[partition].offset, found[partition].metadata) == (4, "here")
    assert committed(shared.address, topic, group) == {0: 4}
    kafka_python.delete_group_offsets(group, [partition])
    assert committed(shared.address, topic, group) == {}
    # A group is kept for its offsets: with them it is gone, at the latest when it is deleted.
    kafka_python.delete_groups([group])
    assert group not in {row["group_id"] for row in kafka_python.list_groups()}


def test_kafka_python_removes_a_static_member(shared: Broker, kafka_python: Any) -> None:
    from kafka.admin import MemberToRemove

    topic = group = "life-remove-kafka-python"
    fill(shared.address, topic)
    consumer = LIBRARIES["kafka-python"](shared.address, group, instance="one")
    try:
        consumer.subscribe(topic)
        read_until(lambda _: consumer.owned(), consumer)
        kafka_python.remove_group_members(group, [MemberToRemove(group_instance_id="one")])
        described = kafka_python.describe_groups([group])[group]
        assert described["members"] == []
    finally:
        consumer.close()


def test_kafka_python_deletes_records(shared: Broker, kafka_python: Any) -> None:
    from kafka import TopicPartition

    name = "life-records-kafka-python"
    fill(shared.address, name)
    kafka_python.delete_records({TopicPartition(name, 0): 6})
    assert log_start(shared.address, name) == 6


# ── aiokafka ────────────────────────────────────────────────────────────────────────────────────


def test_aiokafka_topic_and_group(shared: Broker) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic
    from aiokafka.admin import NewPartitions as More
    from aiokafka.admin.config_resource import ConfigResource as Resource
    from aiokafka.admin.config_resource import ConfigResourceType
    from aiokafka.structs import TopicPartition

    name, topic = "life-aiokafka", "life-group-aiokafka"
    group = topic
    live("aiokafka", shared.address, topic, group)

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=shared.address)
        await admin.start()
        try:
            new = NewTopic(name, -1, -1, {0: [2], 1: [1]}, {"retention.ms": "1000"})
            answer = await admin.create_topics([new])
            assert [row[1] for row in answer.topic_errors] == [0]
            (found,) = await admin.describe_topics([name])
            rows = sorted(found["partitions"], key=lambda row: row["partition"])
            assert [row["replicas"] for row in rows] == [[2], [1]]
            answer = await admin.create_partitions({name: More(3)})
            assert [row[1] for row in answer.topic_errors] == [0]
            (answer,) = await admin.describe_configs([Resource(ConfigResourceType.TOPIC, name)])
            settings = {row[0]: row[1] for row in answer.resources[0][4]}
            assert settings["retention.ms"] == "1000"
            cluster = await admin.describe_cluster()
            assert {row["node_id"] for row in cluster["brokers"]} == {1, 2}
            assert (group, "consumer") in await admin.list_consumer_groups()
            node = await admin.find_coordinator(group)
            answers = await admin.describe_consumer_groups([group], node)
            assert answers[0].groups[0][2] == "Empty"
            offsets = await admin.list_consumer_group_offsets(group)
            assert offsets[TopicPartition(topic, 0)].offset == 10
            await admin.delete_topics([name])
            assert name not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(run())


def test_aiokafka_deletes_records(shared: Broker) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
    from aiokafka.structs import TopicPartition

    name = "life-records-aiokafka"
    fill(shared.address, name)

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=shared.address)
        await admin.start()
        try:
            asked = {TopicPartition(name, 0): RecordsToDelete(before_offset=3)}
            assert await admin.delete_records(asked) == {TopicPartition(name, 0): 3}
        finally:
            await admin.close()

    asyncio.run(run())
    assert log_start(shared.address, name) == 3


# ── what a deleted topic leaves behind ──────────────────────────────────────────────────────────


def test_offsets_of_a_deleted_topic_are_gone(shared: Broker, confluent: AdminClient) -> None:
    topic = group = "life-gone"
    live("confluent", shared.address, topic, group)
    assert committed(shared.address, topic, group) == {0: 10}
    result_of(confluent.delete_topics([topic]))
    wait_until(lambda: not committed(shared.address, topic, group), "the end of its offsets")
    fill(shared.address, topic)
    assert committed(shared.address, topic, group) == {}
    with RawClient(shared.address) as client:
        groups = client.ask("DescribeGroups", 5, {"groups": [group]})["groups"]
    assert groups[0]["error_code"] in (0, error_codes.NOT_COORDINATOR)
