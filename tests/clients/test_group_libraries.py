"""Groups of kafka-python and aiokafka, admin calls of all three libraries, and of two brokers."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from shmbroker import clock
from shmbroker.groups.group_partition import group_partition
from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.clients.group_member import KAFKA_PYTHON_TURN_S
from tests.clients.test_group_confluent import (
    FLAGS,
    PARTITIONS,
    PATIENCE_S,
    Member,
    committed,
    fill,
    share,
    until,
)
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker(*FLAGS, "--io-workers", "2") as broker:
        yield broker


def test_kafka_python_members_share_commit_and_resume(shared: Broker) -> None:
    from kafka import KafkaConsumer

    fill(shared.address, "kafka-python", 60)

    def member() -> KafkaConsumer:
        consumer = KafkaConsumer(
            bootstrap_servers=shared.address,
            group_id="kp",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            metadata_max_age_ms=1000,
        )
        # An answer without its topic that comes as it assigns leaves it without partitions for
        # good: it compares what it knows now with what it knew before.
        wait_until(lambda: consumer.partitions_for_topic("kafka-python"), "its topic to be known")
        consumer.subscribe(["kafka-python"])
        return consumer

    def owned(consumer: KafkaConsumer) -> set[int]:
        return {each.partition for each in consumer.assignment()}

    def is_shared() -> bool:
        shares = list(map(owned, members))
        return all(shares) and sorted(shares[0] | shares[1]) == list(range(PARTITIONS))

    def is_at_end(consumer: KafkaConsumer) -> bool:  # whose positions are what it commits
        return all(consumer.position(each) == 10 for each in consumer.assignment())

    def read(consumer: KafkaConsumer) -> list[tuple[int, int]]:
        found = consumer.poll(timeout_ms=int(KAFKA_PYTHON_TURN_S * 1000)).values()
        return [(record.partition, record.offset) for records in found for record in records]

    members = [member(), member()]
    seen: set[tuple[int, int]] = set()
    deadline = clock.monotonic() + PATIENCE_S
    try:
        with ThreadPoolExecutor(len(members)) as threads:
            while len(seen) < 60 or not is_shared() or not all(map(is_at_end, members)):
                assert clock.monotonic() < deadline, list(map(owned, members))
                seen.update(*threads.map(read, members))
        for each in members:
            each.commit()
    finally:  # their threads use `random`, which disturbs the tests behind this one
        for each in members:
            each.close()
    assert committed(shared.address, "kafka-python", "kp") == dict.fromkeys(range(PARTITIONS), 10)


def test_aiokafka_members_share_commit_and_resume(shared: Broker) -> None:
    from aiokafka import AIOKafkaConsumer

    fill(shared.address, "aiokafka", 60)

    async def live() -> None:
        members = [
            AIOKafkaConsumer(
                "aiokafka",
                bootstrap_servers=shared.address,
                group_id="aio",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=100,
                metadata_max_age_ms=1000,
            )
            for _ in range(2)
        ]
        await asyncio.gather(*(each.start() for each in members))

        async def is_at_end(consumer: AIOKafkaConsumer) -> bool:  # whose positions it commits
            owned = consumer.assignment()
            return len(owned) == 3 and all([await consumer.position(p) == 10 for p in owned])

        seen = set()
        deadline = clock.monotonic() + PATIENCE_S
        while len(seen) < 60 or not all([await is_at_end(each) for each in members]):
            assert clock.monotonic() < deadline
            for each in members:
                for records in (await each.getmany(timeout_ms=50)).values():
                    seen.update((record.partition, record.offset) for record in records)
        for each in members:
            await each.commit()
        await asyncio.gather(*(each.stop() for each in members))

    asyncio.run(live())
    assert committed(shared.address, "aiokafka", "aio") == dict.fromkeys(range(PARTITIONS), 10)


def test_confluent_admin_lists_describes_alters_and_deletes(shared: Broker) -> None:
    fill(shared.address, "admin", 6)
    admin = AdminClient({"bootstrap.servers": shared.address})
    member = Member(shared.address, "admin", "administered")
    until(lambda: share(member), member)
    described = admin.describe_consumer_groups(["administered"])["administered"].result(PATIENCE_S)
    assert described.state == ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    (row,) = described.members
    assert (row.client_id, row.host) == ("rdkafka", "/127.0.0.1")
    assert {each.partition for each in row.assignment.topic_partitions} == member.owned
    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(PATIENCE_S)
    assert listed.errors == []
    assert "administered" in [each.group_id for each in listed.valid]
    member.close()
    wanted = ConsumerGroupTopicPartitions("administered", [TopicPartition("admin", 2, 1)])
    admin.alter_consumer_group_offsets([wanted])["administered"].result(PATIENCE_S)
    assert committed(shared.address, "admin", "administered") == {2: 1}
    asked = [ConsumerGroupTopicPartitions("administered")]
    found = admin.list_consumer_group_offsets(asked)["administered"].result(PATIENCE_S)
    assert [(each.partition, each.offset) for each in found.topic_partitions] == [(2, 1)]
    admin.delete_consumer_groups(["administered"])["administered"].result(PATIENCE_S)
    assert committed(shared.address, "admin", "administered") == {}


def test_kafka_python_admin_lists_describes_and_deletes(shared: Broker) -> None:
    from kafka import KafkaAdminClient

    fill(shared.address, "kp-admin", 6)
    member = Member(shared.address, "kp-admin", "kp-administered")
    until(lambda: share(member), member)
    member.consumer.commit(offsets=[TopicPartition("kp-admin", 0, 1)], asynchronous=False)
    admin = KafkaAdminClient(bootstrap_servers=shared.address)
    try:
        assert "kp-administered" in str(admin.list_groups())
        assert "Stable" in str(admin.describe_groups(["kp-administered"]))
        offsets = admin.list_group_offsets("kp-administered")
        assert "kp-admin" in str(offsets)
        member.close()
        admin.delete_groups(["kp-administered"])
        assert "kp-administered" not in str(admin.list_groups())
    finally:
        admin.close()


def test_each_broker_coordinates_its_own_groups(shared: Broker) -> None:
    fill(shared.address, "spread", 6)
    names = [f"spread-{number}" for number in range(12)]
    clients = {1: RawClient(shared.address), 2: RawClient(second_address(shared.address))}
    body = {"key_type": 0, "coordinator_keys": names}
    rows = clients[1].ask("FindCoordinator", 6, body)["coordinators"]
    nodes = {row["key"]: row["node_id"] for row in rows}
    assert set(nodes.values()) == {1, 2}
    for name in names:
        assert (nodes[name], group_partition(name, 3)) in {
            (nodes[each], group_partition(each, 3)) for each in names
        }
        for node, client in clients.items():
            wanted = 0 if node == nodes[name] else error_codes.NOT_COORDINATOR
            assert commit_simple(client, name) == wanted
    listed = {
        node: {row["group_id"] for row in client.ask("ListGroups", 5, {})["groups"]} & set(names)
        for node, client in clients.items()
    }
    assert listed[1] == {name for name in names if nodes[name] == 1}
    assert listed[2] == {name for name in names if nodes[name] == 2}
    for client in clients.values():
        client.close()


def second_address(address: str) -> str:
    with RawClient(address) as client:
        brokers = client.ask("Metadata", 12, {"topics": []})["brokers"]
    return next(f"{row['host']}:{row['port']}" for row in brokers if row["node_id"] == 2)


def commit_simple(client: RawClient, group: str) -> int:
    partition = {"partition_index": 0, "committed_offset": 1}
    topics = [{"name": "spread", "partitions": [partition]}]
    answer = client.ask("OffsetCommit", 9, {"group_id": group, "topics": topics})
    return answer["topics"][0]["partitions"][0]["error_code"]
