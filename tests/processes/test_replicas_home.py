"""Three nodes with their records go to Apache Kafka and back, twice over.

KAFKA_ON and KAFKA_OFF as in `test_controllers_home`. Each side reads everything that was written
before, by either, and goes on: records of all replicas, committed offsets, the sequences of a
producer.
"""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shmbroker.testing.broker import Broker
from tests.processes import test_controllers_home
from tests.processes.test_controllers_home import kafka, retention, topics
from tests.support.acknowledged_load import IMPATIENT, batch_now, leader_of, read_numbers
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = [*test_controllers_home.pytestmark, pytest.mark.timeout(1500)]
FLAGS = ("--replicas", "3", "--controllers", "3")
TOPIC = "home"
SEQUENCES = "sequences"
PARTITIONS = 3
RECORDS = 3000


class Story:
    """What was written so far, and by whom: each side checks it and adds to it."""

    def __init__(self, address: str) -> None:
        with RawClient(address, 60) as client:
            self.ids = {
                TOPIC: client.create_topic(TOPIC, PARTITIONS, retention_ms="123456789"),
                SEQUENCES: client.create_topic(SEQUENCES),
            }
            answer = client.ask(
                "InitProducerId", 4, {"transactional_id": None, "transaction_timeout_ms": 1000}
            )
        assert answer["error_code"] == 0
        self.producer = answer["producer_id"], answer["producer_epoch"]
        self.written = 0
        self.batches = 0

    def go_on(self, address: str) -> None:
        producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "compression.type": "lz4"}
            | IMPATIENT
        )
        failed = []
        for number in range(self.written, self.written + RECORDS):
            producer.produce(
                TOPIC,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: error and failed.append(error),
            )
        assert producer.flush(120) == 0 and not failed, failed[:1]
        self.written += RECORDS
        assert self.send_batch(address, self.batches) == self.batches
        self.batches += 1
        with_group(address, lambda group: group.commit(offsets=self.places(), asynchronous=False))

    def check(self, address: str) -> None:
        with RawClient(address, 60) as client:
            assert topics(client) == self.ids
            assert retention(client, TOPIC) == "123456789"
            wait_until(lambda: all_in_sync(client), "all replicas to be in sync", 120)
        found = read_numbers(address, TOPIC, PARTITIONS)
        assert found == [list(range(at, self.written, PARTITIONS)) for at in range(PARTITIONS)]
        places = self.places()
        for row in with_group(address, lambda group: group.committed(places, timeout=60)):
            assert row.offset == places[row.partition].offset
        # The last batch again is known by its sequence.
        assert self.send_batch(address, self.batches - 1) == self.batches - 1

    def places(self) -> list[TopicPartition]:
        """What the group commits."""
        each = self.written // PARTITIONS
        return [TopicPartition(TOPIC, number, each - number) for number in range(PARTITIONS)]

    def send_batch(self, address: str, sequence: int) -> int:
        """Its base offset."""
        leader = wait_until(lambda: leader_of(address, SEQUENCES, 0), "a leader")
        producer_id, epoch = self.producer
        batch = batch_now(
            b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        with RawClient(leader, 60) as client:
            answer = client.produce(SEQUENCES, batch)
        assert answer["error_code"] == 0, answer
        return answer["base_offset"]


def with_group(address, work):
    group = Consumer({"bootstrap.servers": address, "group.id": "g", "log_level": 0})
    try:
        return work(group)
    finally:
        group.close()


def all_in_sync(client: RawClient) -> bool:
    answer = client.ask("Metadata", 12, {"topics": None})
    return all(
        sorted(row["isr_nodes"]) == sorted(row["replica_nodes"]) == [1, 2, 3]
        for topic in answer["topics"]
        for row in topic["partitions"]
    )


def test_records_of_three_nodes_are_there_on_the_other_side_and_go_on(tmp_path: Path) -> None:
    story = None
    for _ in range(2):
        with Broker(*FLAGS, data=tmp_path) as broker:
            if story is None:
                story = Story(broker.address)
            else:
                story.check(broker.address)
            story.go_on(broker.address)
            story.check(broker.address)
            assert broker.stop() == 0
        with kafka(tmp_path, 3, 3) as address:
            story.check(address)
            story.go_on(address)
    with Broker(*FLAGS, data=tmp_path) as broker:
        story.check(broker.address)
        assert broker.stop() == 0
