"""Client libraries read what the others have written, in every compression.

Each of confluent-kafka (librdkafka), kafka-python and aiokafka writes the same records to a topic
of its own for each compression; each of the three then reads every one of them by `assign`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shmbroker import clock

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]
LARGE = b"0123456789abcdef" * (900 * 64)  # 900 KiB
REQUEST_BYTES_MAX = 2_000_000
PATIENCE_S = 30.0

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]
"""key, value, headers, timestamp (ms)"""


def records(writer: str) -> list[Record]:
    """What each library can write; only librdkafka takes records of neither key nor value."""
    now = clock.now_ms()
    return [
        (b"key", b"value", [], now),
        (None, b"without a key", [], now + 1),
        (b"without a value", None, [], now + 2),
        (None if writer == "confluent" else b"", None, [("alone", b"1")], now + 3),
        (b"", b"", [], now + 4),
        (b"headers", b"v", [("a", b"1"), ("a", b"2"), ("ü", b""), ("b", b"\x00\xff")], now + 5),
        (b"large", LARGE, [], now + 6),
        *((b"many", b"%d" % number, [], now + number) for number in range(500)),
        (b"earlier", b"out of order", [], now - 1000),
    ]


# ── writing ─────────────────────────────────────────────────────────────────────────────────────


def write_with_confluent(address: str, topic: str, compression: str, written: list[Record]) -> None:
    from confluent_kafka import Producer

    faults = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": compression,
            "enable.idempotence": True,
            "message.max.bytes": REQUEST_BYTES_MAX,
            "linger.ms": 5,
        }
    )
    for key, value, headers, timestamp in written:
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            headers=headers,
            timestamp=timestamp,
            on_delivery=lambda error, _: error and faults.append(error),
        )
    assert producer.flush(PATIENCE_S) == 0
    assert faults == []


def write_with_kafka_python(
    address: str, topic: str, compression: str, written: list[Record]
) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=address,
        compression_type=None if compression == "none" else compression,
        max_request_size=REQUEST_BYTES_MAX,
        linger_ms=5,
        acks="all",
    )
    try:
        sent = [
            producer.send(topic, value, key, headers, partition=0, timestamp_ms=timestamp)
            for key, value, headers, timestamp in written
        ]
        for future in sent:
            future.get(PATIENCE_S)
    finally:
        producer.close()


def write_with_aiokafka(address: str, topic: str, compression: str, written: list[Record]) -> None:
    from aiokafka import AIOKafkaProducer

    async def write() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if compression == "none" else compression,
            max_request_size=REQUEST_BYTES_MAX,
            linger_ms=5,
            enable_idempotence=True,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(topic, value, key, 0, timestamp, headers)
                for key, value, headers, timestamp in written
            ]
            await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)
        finally:
            await producer.stop()

    asyncio.run(write())


# ── reading ─────────────────────────────────────────────────────────────────────────────────────


def read_with_confluent(address: str, topic: str, count: int) -> list[Record]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Record] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), PATIENCE_S)
            assert messages, f"nothing after {len(found)} records"
            for message in messages:
                assert message.error() is None, message.error()
                assert message.offset() == len(found)
                found.append(
                    (
                        message.key(),
                        message.value(),
                        message.headers() or [],
                        message.timestamp()[1],
                    )
                )
    finally:
        consumer.close()
    return found


def read_with_kafka_python(address: str, topic: str, count: int) -> list[Record]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=address, group_id=None, consumer_timeout_ms=int(PATIENCE_S * 1000)
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found: list[Record] = []
    try:
        for message in consumer:
            assert message.offset == len(found)
            found.append((message.key, message.value, list(message.headers), message.timestamp))
            if len(found) == count:
                break
    finally:
        consumer.close()
    return found


def read_with_aiokafka(address: str, topic: str, count: int) -> list[Record]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read() -> list[Record]:
        consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id=None)
        partition = TopicPartition(topic, 0)
        await consumer.start()
        found: list[Record] = []
        try:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while len(found) < count:
                message = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
                assert message.offset == len(found)
                found.append((message.key, message.value, list(message.headers), message.timestamp))
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


WRITERS: dict[str, Callable[..., Any]] = {
    "confluent": write_with_confluent,
    "kafka-python": write_with_kafka_python,
    "aiokafka": write_with_aiokafka,
}
READERS: dict[str, Callable[..., list[Record]]] = {
    "confluent": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer", WRITERS)
def test_all_libraries_read_what_one_has_written(
    address: str, writer: str, compression: str
) -> None:
    topic = f"exchange-{writer}-{compression}"
    written = records(writer)
    WRITERS[writer](address, topic, compression, written)
    for reader, read in READERS.items():
        found = read(address, topic, len(written))
        assert found == written, f"{reader} reads something else"
