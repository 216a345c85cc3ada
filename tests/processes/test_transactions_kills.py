"""Transactions of several producers over several brokers, which are killed again and again.

Each transaction writes to every partition and commits an offset. Afterwards a read_committed reader
sees each committed one whole and once, of an aborted one nothing, and of one whose producer was not
told either all or nothing; and the group's offset is that of the last one committed.
"""

import threading
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from shmbroker.testing.broker import Broker
from tests.acknowledged_load import wait_until
from tests.clients.test_transactions import committed, read_committed
from tests.processes.test_kill_under_load import kill, wait_for_successors
from tests.raw_client import RawClient

TOPIC = "kills"
PARTITIONS = 4
PRODUCERS = 3
ROUNDS = 6
PATIENCE_S = 60.0


class Worker(threading.Thread):
    """One producer, and what it was told."""

    def __init__(self, address: str, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.group = f"group-{number}"
        self.number = number
        self.random = Random(seed)
        self.must_stop = False
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.unsure: list[int] = []
        self.fault: BaseException | None = None
        self.producer: Any = None
        consumer = Consumer({"bootstrap.servers": address, "group.id": self.group})
        self.metadata = consumer.consumer_group_metadata()
        consumer.close()

    def run(self) -> None:
        try:
            number = 0
            while not self.must_stop:
                self.transact(number)
                number += 1
        except BaseException as fault:
            self.fault = fault

    def transact(self, number: int) -> None:
        wants_commit = self.random.random() < 0.7
        is_ending = False
        try:
            if self.producer is None:
                self.producer = Producer(
                    {
                        "bootstrap.servers": self.address,
                        "transactional.id": self.group,
                        "log_level": 0,
                    }
                )
                self.producer.init_transactions(PATIENCE_S)
            producer = self.producer
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, self.value(number, partition), partition=partition)
            producer.send_offsets_to_transaction(
                [TopicPartition(TOPIC, 0, number)], self.metadata, PATIENCE_S
            )
            is_ending = wants_commit
            if wants_commit:
                producer.commit_transaction(PATIENCE_S)
                self.committed.append(number)
            else:
                producer.abort_transaction(PATIENCE_S)
                self.aborted.append(number)
        except KafkaException as fault:
            if fault.args[0].txn_requires_abort():
                self.producer.abort_transaction(PATIENCE_S)
                self.aborted.append(number)
                return
            (self.unsure if is_ending else self.aborted).append(number)
            self.producer = None

    def value(self, number: int, partition: int) -> bytes:
        return f"{self.group}/{number:06}/{partition}".encode()

    def is_seen(self, number: int, seen: set[bytes]) -> bool:
        """Whether all of a transaction was; it must be all or nothing."""
        found = [self.value(number, partition) in seen for partition in range(PARTITIONS)]
        assert all(found) or not any(found), (self.group, number, found)
        return all(found)


@pytest.mark.parametrize("flags", [("--replicas", "3"), ("--io-workers", "2"), ()])
def test_transactions_outlive_their_brokers(flags: tuple[str, ...]) -> None:
    with Broker(*flags) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, PARTITIONS)
        workers = [Worker(broker.address, number, number) for number in range(PRODUCERS)]
        for worker in workers:
            worker.start()
        random = Random(len(flags))

        def wait_for_more() -> None:
            counts = [len(worker.committed) for worker in workers]
            wait_until(
                lambda: all(
                    worker.fault or len(worker.committed) > count + 2
                    for worker, count in zip(workers, counts, strict=True)
                ),
                "commits of all producers",
                PATIENCE_S,
            )

        titles = [title for title in broker.children() if title.startswith("io-worker")]
        for _ in range(ROUNDS):
            wait_for_more()
            title = random.choice(titles)
            before = broker.children()
            kill(broker, title)
            wait_for_successors(broker, before, title)
        wait_for_more()
        for worker in workers:
            worker.must_stop = True
        for worker in workers:
            worker.join()
            assert worker.fault is None
        for worker in workers:  # what one has left open is aborted
            Producer(
                {"bootstrap.servers": broker.address, "transactional.id": worker.group}
            ).init_transactions(PATIENCE_S)
        values = read_committed(broker.address, TOPIC, PARTITIONS)
        seen = set(values)
        assert len(seen) == len(values)
        for worker in workers:
            assert all(worker.is_seen(number, seen) for number in worker.committed)
            assert not any(worker.is_seen(number, seen) for number in worker.aborted)
            done = worker.committed + [n for n in worker.unsure if worker.is_seen(n, seen)]
            assert committed(broker.address, worker.group, TOPIC) == max(done)
        assert "Traceback" not in broker.log, broker.log
