"""What a producer has taken and not delivered yet: all that its two threads share.

    open     batches that take records     `filling` puts them in, the caller's thread
    busy     queues with closed batches    `sending` takes them out, the sending thread
    fault    why nothing goes on           either thread, for good; or until an abort (`epochs`)

Rules

* One lock for queues, open batches and memory. It is not held while a batch is compressed, and not
  while anybody waits for a broker. Who waits for delivery or memory waits on it.
* A batch is closed when the next record does not fit, when it is `linger_ms` old, at a flush, or
  when memory is needed.
* The first batch that can't be delivered ends all: nothing behind it is sent, every call raises
  the DeliveryFault.

Methods take the lock themselves unless they say that they need it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from shmbroker.client.faults import DeliveryFault
from shmbroker.client.producer.bell import Bell
from shmbroker.client.producer.buffers import Buffers, OpenBatch
from shmbroker.client.producer.delivery import Batch, PartitionQueue
from shmbroker.client.producer.settings import ProducerSettings
from shmbroker.client.producer.transactions import FENCED, fenced
from shmbroker.errors import ConfigFault, Fault
from shmbroker.ids import TopicPartition
from shmbroker.wire import error_codes


class PartitionWritten(NamedTuple):
    """What a partition took: records, and the first and last offset of them (-1: with acks 0).

    Other producers' records may lie in between.
    """

    records: int
    first_offset: int
    last_offset: int


class Written(NamedTuple):
    """What was delivered so far."""

    records: int
    partitions: dict[TopicPartition, PartitionWritten]


class Backlog:
    """The queues of one producer. `has_transactions`: a fault is over when one is aborted."""

    def __init__(self, settings: ProducerSettings, has_transactions: bool) -> None:
        self.lock = threading.Condition()
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.open: dict[PartitionQueue, OpenBatch] = {}
        self.busy: dict[PartitionQueue, None] = {}  # those with closed batches
        self.buffers = Buffers(settings.batch_size, settings.memory_max)
        self.bell = Bell()
        self.closes_all = 0  # who waits for all open batches to be closed
        self.next_sequences: dict[TopicPartition, int] = {}  # of queues that are still to be made
        self.fault: Fault | None = None
        self.is_ending = False  # the thread that sends
        self.is_closed = False  # the producer
        self._linger_s = settings.linger_s
        self._idempotence = settings.idempotence
        self._transactional_id = settings.transactional_id
        self._has_transactions = has_transactions

    def check(self) -> None:
        """Raise what keeps records from being taken; the lock is not needed."""
        if self.fault is not None:
            raise self.fault
        if self.is_closed:
            raise ConfigFault("the producer is closed: make another one")

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """The queue of a partition, made when it is needed. Needs the lock."""
        key = (topic, partition)
        queue = self.queues.get(key)
        if queue is None:
            start = self.next_sequences.get(key, 0)
            queue = self.queues[key] = PartitionQueue(topic, partition, self._idempotence, start)
        return queue

    def weights(self, topic: str, leaders: list[int]) -> list[int]:
        """What KIP-794 has: as many lots as a queue is shorter than the longest, and one.

        The lock is not needed: a depth that is not the newest is good enough for a lot.
        """
        depths = []
        for partition in range(len(leaders)):
            queue = self.queues.get((topic, partition))
            depths.append(0 if queue is None else queue.depth())
        most = max(depths)
        return [
            most + 1 - depth if leader >= 0 else 0
            for depth, leader in zip(depths, leaders, strict=True)
        ]

    def post(self, topic: str, partition: int, sequence: int, batches: Iterable[Batch]) -> None:
        """Batches that are encoded already, into an idle queue, numbered from this sequence on.
        Needs the lock."""
        queue = self.queue(topic, partition)
        assert queue.is_idle()
        queue.next_sequence = sequence
        for batch in batches:
            queue.accepted_records += batch.count
            self.buffers.memory += batch.size
            queue.add(batch)
        self.busy[queue] = None
        self.bell.ring()

    def close_open(self, queue: PartitionQueue) -> None:
        """The queue's open batch takes no more: it waits to be sent. Needs the lock."""
        opened = self.open.pop(queue)
        if not opened.count:
            self.buffers.memory -= len(opened.buffer)
            return
        queue.filled_bytes = opened.position
        queue.add(
            Batch(
                opened.buffer,
                opened.position,
                opened.count,
                opened.base_timestamp,
                opened.max_timestamp,
                opened.created_s,
            )
        )
        self.busy[queue] = None

    def close_lingering(self, now_s: float) -> float:
        """Close batches that are old enough; seconds until the next one is. Needs the lock."""
        wait_s = 1.0
        for queue, opened in list(self.open.items()):
            left = opened.created_s + self._linger_s - now_s
            if left <= 0 or self.closes_all:
                self.close_open(queue)
            else:
                wait_s = min(wait_s, left)
        return wait_s

    def flush(self) -> None:
        """Wait until everything that was taken is delivered; DeliveryFault if it can't be."""
        with self.lock:
            self.closes_all += 1
            try:
                self.bell.ring()
                while self.open or self.busy:
                    self.check()
                    self.lock.wait()
                self.check()
            finally:
                self.closes_all -= 1

    def wait_for_one(self, posted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Wait until all that was posted to one of these partitions is delivered; give all
        partitions where it is."""
        queues = [(one, self.queues[one]) for one in posted]
        with self.lock:
            while True:
                self.check()
                landed = [one for one, queue in queues if queue.is_idle()]
                if landed or not queues:
                    return landed
                self.lock.wait()

    def written(self) -> Written:
        """What was delivered so far."""
        with self.lock:
            partitions = {
                key: PartitionWritten(
                    queue.delivered_records, queue.first_offset, queue.last_offset
                )
                for key, queue in sorted(self.queues.items())
                if queue.delivered_records
            }
        return Written(sum(p.records for p in partitions.values()), partitions)

    def fail(self, queue: PartitionQueue, error: int, text: str) -> None:
        """The end: a batch of this queue can't be delivered. Needs the lock."""
        counts = {
            key: (q.delivered_records, q.accepted_records - q.delivered_records)
            for key, q in self.queues.items()
            if q.accepted_records
        }
        unknown = sum(q.undecided() for q in self.queues.values())
        advice = "; abort the transaction" if self._has_transactions else ""
        if self._transactional_id is not None and error in FENCED:
            self.fault = fenced(self._transactional_id)
        else:
            name = error_codes.name_of(error)
            self.fault = DeliveryFault(
                text, queue.topic, queue.partition, name, counts, unknown, advice
            )
        for each in self.queues.values():
            each.clear()
        self._forget()

    def restart(self) -> None:
        """Forget what is not delivered, and numbers and faults with it; nothing is sending."""
        with self.lock:
            for queue in self.queues.values():
                queue.restart()
            self.fault = None
            self.is_ending = False
            self._forget()

    def _forget(self) -> None:
        self.open.clear()
        self.busy.clear()
        self.buffers.clear()
        self.lock.notify_all()
