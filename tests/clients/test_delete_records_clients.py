"""Each library that can delete records does, and reads on from where the log begins then."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient

COUNT = 10


def with_confluent(address: str, topic: str, offsets: dict[int, int]) -> dict[int, Any]:
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address})
    asked = [TopicPartition(topic, index, offset) for index, offset in offsets.items()]
    found: dict[int, Any] = {}
    for partition, future in admin.delete_records(asked, request_timeout=20).items():
        try:
            found[partition.partition] = future.result(20).low_watermark
        except KafkaException as fault:
            found[partition.partition] = fault.args[0].name()
    return found


def with_kafka_python(address: str, topic: str, offsets: dict[int, int]) -> dict[int, Any]:
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.errors import OffsetOutOfRangeError

    admin = KafkaAdminClient(bootstrap_servers=address)
    found: dict[int, Any] = {}
    try:
        for index, offset in offsets.items():
            partition = TopicPartition(topic, index)
            try:
                found[index] = admin.delete_records({partition: offset})[partition]["low_watermark"]
            except OffsetOutOfRangeError:
                found[index] = "OFFSET_OUT_OF_RANGE"
    finally:
        admin.close()
    return found


def with_aiokafka(address: str, topic: str, offsets: dict[int, int]) -> dict[int, Any]:
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
    from aiokafka.errors import OffsetOutOfRangeError

    async def delete() -> dict[int, Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        found: dict[int, Any] = {}
        try:
            for index, offset in offsets.items():
                asked = {TopicPartition(topic, index): RecordsToDelete(before_offset=offset)}
                try:
                    found[index] = (await admin.delete_records(asked))[TopicPartition(topic, index)]
                except OffsetOutOfRangeError:
                    found[index] = "OFFSET_OUT_OF_RANGE"
        finally:
            await admin.close()
        return found

    return asyncio.run(delete())


@pytest.mark.parametrize("delete", [with_confluent, with_kafka_python, with_aiokafka])
def test_records_below_an_offset_are_gone(
    address: str, delete: Callable[[str, str, dict[int, int]], dict[int, Any]]
) -> None:
    from kafka import KafkaConsumer, TopicPartition

    topic = f"deletes-{delete.__name__}"
    with RawClient(address) as client:
        client.create_topic(topic, 3)
        for index in range(3):
            for number in range(COUNT):
                client.produce(topic, batch_now(b"%d" % number), index)
    found = delete(address, topic, {0: 4, 1: -1, 2: COUNT + 1})
    assert found == {0: 4, 1: COUNT, 2: "OFFSET_OUT_OF_RANGE"}

    consumer = KafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    try:
        partitions = [TopicPartition(topic, index) for index in range(3)]
        consumer.assign(partitions)
        starts = consumer.beginning_offsets(partitions)
        assert [starts[partition] for partition in partitions] == [4, COUNT, 0]
        consumer.seek(partitions[0], 0)
        consumer.seek(partitions[1], COUNT)
        consumer.seek(partitions[2], 0)
        read: dict[int, list[int]] = {0: [], 2: []}
        while sum(map(len, read.values())) < COUNT - 4 + COUNT:
            record = next(consumer, None)
            if record is None:
                positions = {index: consumer.position(partitions[index], 0) for index in range(3)}
                pytest.fail(f"nothing more comes: read {read}, positions {positions}")
            read[record.partition].append(record.offset)
        assert read == {0: list(range(4, COUNT)), 2: list(range(COUNT))}
    finally:
        consumer.close()
