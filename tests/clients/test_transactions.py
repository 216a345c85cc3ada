"""Transactional producers of client libraries: commit, abort, offsets of a group, fencing."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

PATIENCE_S = 30.0


def read_committed(address: str, topic: str, partitions: int = 2) -> list[bytes]:
    """All values that a read_committed consumer sees, sorted."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "the end is not reached"
        if message.error():
            ended += 1
        else:
            found.append(message.value())
    consumer.close()
    return sorted(found)


def committed(address: str, group: str, topic: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
    consumer.close()
    return int(found.offset)


@pytest.fixture
def topic(address: str) -> str:
    from tests.support.raw_client import RawClient

    name = f"transactions-{uuid4().hex}"  # several processes test with one broker
    with RawClient(address) as client:
        client.create_topic(name, 2)
    return name


class Confluent:
    """librdkafka 2, which adds partitions by AddPartitionsToTxn."""

    def __init__(self, address: str, transactional_id: str) -> None:
        from confluent_kafka import Consumer, Producer

        self.consumer = Consumer({"bootstrap.servers": address, "group.id": transactional_id})
        self.producer = Producer(
            {"bootstrap.servers": address, "transactional.id": transactional_id}
        )
        self.producer.init_transactions(PATIENCE_S)

    def run(self, topic: str, values: list[bytes], *, commits: bool, offset: int = -1) -> None:
        from confluent_kafka import TopicPartition

        self.producer.begin_transaction()
        for index, value in enumerate(values):
            self.producer.produce(topic, value, partition=index % 2)
        if offset >= 0:
            self.producer.send_offsets_to_transaction(
                [TopicPartition(topic, 0, offset)],
                self.consumer.consumer_group_metadata(),
                PATIENCE_S,
            )
        self.producer.flush(PATIENCE_S)
        if commits:
            self.producer.commit_transaction(PATIENCE_S)
        else:
            self.producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    def __init__(self, address: str, transactional_id: str) -> None:
        from kafka import KafkaProducer

        self.group = transactional_id
        more: dict[str, Any] = {"max_block_ms": PATIENCE_S * 1000}
        self.producer = KafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, **more
        )
        self.producer.init_transactions()

    def run(self, topic: str, values: list[bytes], *, commits: bool, offset: int = -1) -> None:
        from kafka.structs import OffsetAndMetadata, TopicPartition

        self.producer.begin_transaction()
        for index, value in enumerate(values):
            self.producer.send(topic, value, partition=index % 2)
        if offset >= 0:
            place = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
            self.producer.send_offsets_to_transaction(place, self.group)
        self.producer.flush(PATIENCE_S)
        if commits:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=0)


class Aiokafka:
    def __init__(self, address: str, transactional_id: str) -> None:
        from aiokafka import AIOKafkaProducer

        self.group = transactional_id
        self.loop = asyncio.new_event_loop()

        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=address, transactional_id=transactional_id
            )
            await producer.start()
            return producer

        self.producer = self.wait(start())

    def wait(self, what: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(what, PATIENCE_S))

    def run(self, topic: str, values: list[bytes], *, commits: bool, offset: int = -1) -> None:
        from aiokafka import TopicPartition

        async def transaction() -> None:
            producer = self.producer
            await producer.begin_transaction()
            for index, value in enumerate(values):
                await producer.send_and_wait(topic, value, partition=index % 2)
            if offset >= 0:
                place = {TopicPartition(topic, 0): offset}
                await producer.send_offsets_to_transaction(place, self.group)
            if commits:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()

        self.wait(transaction())

    def close(self) -> None:
        self.wait(self.producer.stop())
        # Of a fenced producer aiokafka leaves futures whose faults nobody takes. They would be told
        # when they are collected, amid any other test: what formats such a traceback parses code,
        # which fails in CPython 3.11 where that interrupts another parse.
        self.loop.set_exception_handler(lambda _loop, _context: None)
        self.loop.close()


LIBRARIES = pytest.mark.parametrize("library", [Confluent, KafkaPython, Aiokafka])


@LIBRARIES
def test_readers_see_what_is_committed(library: Any, address: str, topic: str) -> None:
    producer = library(address, topic)
    producer.run(topic, [b"1", b"2"], commits=True, offset=5)
    producer.run(topic, [b"3", b"4"], commits=False, offset=6)
    assert committed(address, topic, topic) == 5
    producer.run(topic, [b"5"], commits=True, offset=7)
    assert committed(address, topic, topic) == 7
    producer.close()
    assert read_committed(address, topic) == [b"1", b"2", b"5"]


@LIBRARIES
def test_a_second_producer_fences_the_first(library: Any, address: str, topic: str) -> None:
    first = library(address, topic)
    first.run(topic, [b"1"], commits=True)
    second = library(address, topic)
    second.run(topic, [b"2"], commits=True)
    with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
        first.run(topic, [b"3"], commits=True)
    first.close()
    second.run(topic, [b"4"], commits=True)
    second.close()
    assert read_committed(address, topic) == [b"1", b"2", b"4"]


def test_what_is_open_is_hidden_until_its_producer_comes_again(address: str, topic: str) -> None:
    first = Confluent(address, topic)
    first.producer.begin_transaction()
    first.producer.produce(topic, b"lost", partition=0)
    first.producer.flush(PATIENCE_S)
    assert read_committed(address, topic) == []
    second = Confluent(address, topic)
    second.run(topic, [b"kept"], commits=True)
    assert read_committed(address, topic) == [b"kept"]
    first.close()
    second.close()
