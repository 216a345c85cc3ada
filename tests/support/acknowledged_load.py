"""A load whose acknowledgements are written down, to be compared with what the log then holds.

An idempotent acks=all producer writes rising numbers, each to partition number % partitions, and
notes which were acknowledged. What must hold whatever was killed meanwhile: each acknowledged
number is in its partition, once, and the numbers of a partition rise.
"""

import threading
from functools import partial
from typing import Any

from confluent_kafka import Producer

from shmbroker import clock
from shmbroker.records.batch import iterate_batches, iterate_records
from shmbroker.wire import error_codes
from tests.support.raw_client import RawClient, batch_of
from tests.support.waiting import wait_until

IN_FLIGHT_MAX = 2000
PAUSE_S = 0.005
"""After each 20: some thousands a second are always in flight, and leave processors to others."""
IMPATIENT = {
    "linger.ms": 1,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 10,
    "log_level": 0,
}
"""Settings of librdkafka that shorten its waits after a fault."""


class Load:
    """Produces in a thread from `start` until `finish`; `acked` is safe to read meanwhile."""

    def __init__(self, address: str, topic: str, partitions: int = 3, value_bytes: int = 0) -> None:
        self.topic = topic
        self.partitions = partitions
        self.acked: list[int] = []
        self.failed: list[str] = []
        self.sent = 0
        self._padding = b" " * value_bytes
        self._is_over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "acks": "all", **IMPATIENT}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        producer = self._producer
        while not self._is_over.is_set():
            if len(producer) > IN_FLIGHT_MAX:
                producer.poll(0.01)
                continue
            for _ in range(20):
                producer.produce(
                    self.topic,
                    b"%d" % self.sent + self._padding,
                    partition=self.sent % self.partitions,
                    on_delivery=self._on_delivery,
                )
                self.sent += 1
            producer.poll(0)
            self._is_over.wait(PAUSE_S)
        producer.flush(60)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error:
            self.failed.append(str(error))
        else:
            self.acked.append(int(message.value()))

    def wait_for_more(self, count: int = 300) -> None:
        """Until `count` numbers that are sent from now on are acknowledged."""
        goal = self.sent + count
        wait_until(lambda: self.acked and self.acked[-1] >= goal, "acknowledgements", 60)

    def finish(self) -> None:
        """Stop sending; every number sent must have been acknowledged."""
        self._is_over.set()
        self._thread.join(70)
        assert not self.failed, f"{len(self.failed)} failed, the first with {self.failed[0]}"
        assert len(self.acked) == self.sent

    def check(self, address: str) -> None:
        """Compare with what can be fetched now."""
        found = read_numbers(address, self.topic, self.partitions)
        for partition, numbers in enumerate(found):
            acked = {number for number in self.acked if number % self.partitions == partition}
            lost = acked - set(numbers)
            assert not lost, (
                f"partition {partition} lost {len(lost)} of {len(acked)}, the first is "
                f"{min(lost)}; it has {len(numbers)}, from {numbers[:1]} to {numbers[-1:]}"
            )
            assert len(numbers) == len(set(numbers)), f"partition {partition} has duplicates"
            assert numbers == sorted(numbers), f"partition {partition} is out of order"


def load_on(address: str, topic: str, partitions: int = 3) -> Load:
    """One that is under way, on a topic that is new."""
    with RawClient(address) as client:
        client.create_topic(topic, partitions)
    load = Load(address, topic, partitions)
    load.wait_for_more()
    return load


def batch_now(*values: bytes, **more: Any) -> bytes:
    """A batch of records of this moment: neither retention nor the expiry of producers is due."""
    return batch_of(*values, timestamp=clock.now_ms(), **more)


def read_values(client: RawClient, topic: str, partition: int) -> list[bytes]:
    """The values of everything that a partition has below its high watermark, in order."""
    values, is_whole = read_some(client, topic, partition, 0)
    assert is_whole, "the leader has changed"
    return values


def read_some(
    client: RawClient, topic: str, partition: int, offset: int
) -> tuple[list[bytes], bool]:
    """The values of what a partition has from `offset` to its high watermark, in order; and whether
    that is all, or its leader has changed meanwhile."""
    values: list[bytes] = []

    def fetched() -> Any:
        """None where it is to be tried again: the remote store has failed a moment ago."""
        answer = client.fetch(topic, offset, partition, max_bytes=8 << 20)
        return answer if answer["error_code"] != error_codes.KAFKA_STORAGE_ERROR else None

    while True:
        answer = wait_until(fetched, f"what {topic} {partition} has at {offset}")
        if answer["error_code"] == error_codes.NOT_LEADER_OR_FOLLOWER:
            return values, False
        assert answer["error_code"] == 0, answer
        if offset >= answer["high_watermark"]:
            return values, True
        records = bytes(answer["records"])
        for position, _ in iterate_batches(records):
            for found, _, _, value, _ in iterate_records(records, position):
                if found >= offset:
                    assert found == offset, f"offset {found} where {offset} is due"
                    assert value is not None
                    values.append(value)
                    offset += 1


def end_error(client: RawClient, topic: str, partition: int) -> int | None:
    """0 where a leader is asked that can tell where readers end, NOT_LEADER_OR_FOLLOWER where
    another leads; None of one that can't tell yet (KIP-207)."""
    row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": topic, "partitions": [row]}]
    body = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    (found,) = client.ask("ListOffsets", 7, body)["topics"][0]["partitions"]
    unknown, elsewhere = error_codes.OFFSET_NOT_AVAILABLE, error_codes.NOT_LEADER_OR_FOLLOWER
    assert found["error_code"] in (0, unknown, elsewhere), found
    return None if found["error_code"] == unknown else int(found["error_code"])


def wait_for_end(client: RawClient, topic: str, partition: int) -> int:
    """Wait until a leader can tell its end; an error code if none is asked any more."""

    def told() -> tuple[int] | None:
        error = end_error(client, topic, partition)
        return None if error is None else (error,)

    (error,) = wait_until(told, "an end")
    return int(error)


def leader_of(address: str, topic: str, partition: int) -> str | None:
    """The address of who leads a partition; None while nobody does that lives."""
    with RawClient(address) as client:
        answer = client.ask("Metadata", 12, {"topics": [{"name": topic}]})
    (leader,) = (
        row["leader_id"]
        for row in answer["topics"][0]["partitions"]
        if row["partition_index"] == partition
    )
    for broker in answer["brokers"]:
        if broker["node_id"] == leader:
            return f"{broker['host']}:{broker['port']}"
    return None


def read_numbers(address: str, topic: str, partitions: int) -> list[list[int]]:
    """The numbers of each partition, from whoever leads it."""
    found = []
    for partition in range(partitions):
        numbers: list[int] = []
        is_whole = False
        while not is_whole:
            leader = wait_until(partial(leader_of, address, topic, partition), "a leader")
            with RawClient(leader) as client:
                # After a restart of everything the first high watermark told may be an old one.
                if wait_for_end(client, topic, partition):
                    continue
                values, is_whole = read_some(client, topic, partition, len(numbers))
            numbers += map(int, values)
        found.append(numbers)
    return found
