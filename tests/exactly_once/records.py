"""The two ends of a pipeline: who feeds it, and who reads what comes out, all the time."""

import threading
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from shmbroker import clock
from tests.exactly_once.topics import IN, PARTITIONS
from tests.histories.workload import RESTLESS, RETRIED
from tests.support.acknowledged_load import IMPATIENT

KEYS = 40
READ_S = 60.0
TURN_S = 0.05

Place = tuple[str, int]
Record = tuple[int, str, str]
"""offset, key, value"""


class Feeder:
    """Writes `rate` records a second into IN: the values of each key are 0, 1, 2, …"""

    def __init__(self, address: str, rate: int) -> None:
        self.rate = rate
        self.sent = 0
        self.acked = 0
        self.failed: list[str] = []
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": 300_000,
                **IMPATIENT,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Every record is acknowledged, or it raises."""
        self._is_over.set()
        self._thread.join()
        if self.failed or self.acked != self.sent:
            raise AssertionError(f"{self.acked} of {self.sent} acknowledged: {self.failed[:1]}")

    def _run(self) -> None:
        began = clock.monotonic()
        while not self._is_over.is_set():
            due = int((clock.monotonic() - began) * self.rate)
            if len(self._producer) > 10 * self.rate:
                due = self.sent  # nobody takes them: it has been killed
                began = clock.monotonic() - self.sent / self.rate
            while self.sent < due:
                key = self.sent % KEYS
                self._producer.produce(
                    IN,
                    str(self.sent // KEYS),
                    f"k{key}",
                    partition=key % PARTITIONS,
                    on_delivery=self._on_delivery,
                )
                self.sent += 1
            self._producer.poll(TURN_S)
        self._producer.flush(120)

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error:
            self.failed.append(str(error))
        else:
            self.acked += 1


class Reader:
    """Reads topics from their begin, all the time; `seen`: what of which partition, in order."""

    def __init__(self, address: str, topics: dict[str, int], isolation: str) -> None:
        self.seen: dict[Place, list[Record]] = {
            (topic, index): [] for topic, count in topics.items() for index in range(count)
        }
        self.ended: set[Place] = set()
        self.fault: BaseException | None = None
        self._is_over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"reader-{isolation}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                **RESTLESS,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for topic, index in self.seen])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def finish(self) -> dict[Place, list[Record]]:
        self._is_over.set()
        self._thread.join()
        if self.fault is not None:
            raise self.fault
        return self.seen

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                for message in self._consumer.consume(2000, TURN_S):
                    self._take(message)
            self._consumer.close()
        except BaseException as fault:
            self.fault = fault

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            key, value = message.key() or b"", message.value() or b""
            place = message.topic(), message.partition()
            self.seen[place].append((message.offset(), key.decode(), value.decode()))
            self.ended.discard(place)
        elif error.code() == KafkaError._PARTITION_EOF:
            self.ended.add((message.topic(), message.partition()))
        elif error.code() not in RETRIED and not error.retriable():
            raise AssertionError(error.str())


def read_all(
    address: str, topics: dict[str, int], isolation: str = "read_committed"
) -> dict[Place, list[Record]]:
    """What a new consumer reads, up to the ends."""
    reader = Reader(address, topics, isolation)
    deadline = clock.monotonic() + READ_S
    while len(reader.ended) < len(reader.seen) and reader.fault is None:
        if clock.monotonic() > deadline:
            raise AssertionError(f"not read to the end: {set(reader.seen) - reader.ended}")
        clock.sleep(TURN_S)
    return reader.finish()
