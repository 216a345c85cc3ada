"""A writer that is started again under the same producer id: nothing twice, nothing left out."""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from shmbroker.arrow import DeliveryFault, Producer
from shmbroker.client.addresses import parse_addresses
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import FencedFault
from shmbroker.client.producer import sending
from shmbroker.client.producer.delivery import ProducerIdentity
from shmbroker.client.producer.written import Stored, stored_by
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

ME = ProducerIdentity(1 << 62 | 5, 3)
ROWS = [(b"k%d" % (n % 5) if n % 3 else None, b"%d" % (n % 40)) for n in range(400)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def topic(broker: Broker, request: Any) -> str:
    name = f"{request.node.originalname[:60]}-{random.randrange(10**9)}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    config = {"segment.bytes": "1048576"}
    admin.create_topics([NewTopic(name, 3, 1, config=config)])[name].result(60)
    return name


def producer_of(broker: Broker, topic: str, seed: int, identity: ProducerIdentity = ME) -> Producer:
    return Producer(
        broker.address,
        topic=topic,
        identity=identity,
        batch_size=300 + seed,
        linger_ms=0,
        seed=seed,
    )


def table(rows: list[tuple[bytes | None, bytes]]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows], pa.binary()),
        }
    )


def attempt(
    broker: Broker, topic: str, rows: list[tuple[bytes | None, bytes]], seed: int, until: int
) -> int:
    """What a task does, and dies after so many of the rows that are left; how many were there."""
    with producer_of(broker, topic, seed) as producer:
        stored = stored_by(ME, producer.cluster, topic, 10)
        producer.go_on(topic, stored.sequences)
        there = stored.records
        left = [row for row in rows if not stored.take(*row, [], -1)]
        producer.send(table(left[:until]))
        producer.flush()
        assert until >= len(left) or stored.records == 0
        return there


def found(broker: Broker, topic: str) -> Counter[tuple[bytes | None, bytes | None]]:
    """All records of the topic, by the eyes of the reader of what is stored."""
    from shmbroker.records.batch import iterate_batches, iterate_records

    rows: Counter[tuple[bytes | None, bytes | None]] = Counter()
    with RawClient(broker.address) as client:
        for partition in range(3):
            offset = 0
            while True:
                data = client.fetch(topic, offset, partition)["records"]
                before = offset
                for position, header in iterate_batches(data):
                    rows.update(record[2:4] for record in iterate_records(data, position))
                    offset = header[0] + header[6] + 1
                if offset == before:
                    break
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_attempts_that_die_leave_every_row_once_in_whatever_order(
    broker: Broker, topic: str, seed: int
) -> None:
    rng = random.Random(seed)
    rows = list(ROWS)
    there = 0
    for number, until in enumerate((rng.randrange(150), rng.randrange(150), 10_000, 10_000)):
        assert attempt(broker, topic, rows, seed + number, until) == there
        there = min(there + until, len(rows))
        rng.shuffle(rows)
        with producer_of(broker, topic, 0, ProducerIdentity(77 + number, 0)) as other:
            other.send(table([(b"other", b"%d" % number)] * 50))
    rows_found = found(broker, topic)
    others = {key: n for key, n in rows_found.items() if key[0] == b"other"}
    assert others == {(b"other", b"%d" % number): 50 for number in range(4)}
    assert rows_found - Counter(others) == Counter(ROWS)


def test_two_attempts_at_once_exclude_each_other(broker: Broker, topic: str) -> None:
    attempt(broker, topic, ROWS[:10], 1, 10)
    first, second = producer_of(broker, topic, 3), producer_of(broker, topic, 40)
    for one in (first, second):
        one.go_on(topic, stored_by(ME, one.cluster, topic, 10).sequences)
    first.send(table(ROWS[10:200]))
    first.flush()
    with pytest.raises(DeliveryFault, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        second.send(table(ROWS[200:]))  # which may raise if the answer to its first batch is fast
        second.flush()
    first.send(table(ROWS[200:]))
    first.close()
    second.abort()
    assert found(broker, topic) == Counter(ROWS)


def test_who_ends_has_heard_of_all_that_was_sent(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it may be appended when another attempt has looked what is there."""
    monkeypatch.setattr(sending, "SETTLE_S", 30.0)
    rows = {"value": [b"x"] * 5, "partition": pa.array([1] * 5, pa.int32())}
    producer = producer_of(broker, topic, 1)
    producer.send(pa.table(rows))
    producer.flush()
    worker = broker.children()["io-worker-1"]
    os.kill(worker, signal.SIGSTOP)
    try:
        for _ in range(3):
            producer.send(pa.table(rows))
        queue = producer._backlog.queues[topic, 1]
        wait_until(lambda: queue.in_flight, "a batch in flight")
        sent = sum(batch.count for batch in queue.in_flight)
        ending = threading.Thread(target=producer.abort)
        ending.start()
        wait_until(lambda: producer._backlog.is_ending, "the end")
    finally:
        os.kill(worker, signal.SIGCONT)
    ending.join(60)
    assert producer.written().records >= 5 + sent


def test_a_version_that_was_followed_by_another_is_fenced(broker: Broker, topic: str) -> None:
    attempt(broker, topic, ROWS, 1, 1000)
    late = producer_of(broker, topic, 2, ProducerIdentity(ME.producer_id, ME.epoch - 1))
    with pytest.raises(DeliveryFault, match="INVALID_PRODUCER_EPOCH"):
        late.send(table(ROWS))
        late.close()
    cluster = Cluster(parse_addresses(broker.address), "test", 5)
    with pytest.raises(FencedFault, match="later version"):
        stored_by(ProducerIdentity(ME.producer_id, ME.epoch - 1), cluster, topic, 5)
    assert (
        stored_by(ProducerIdentity(ME.producer_id, ME.epoch + 1), cluster, topic, 5).sequences == {}
    )
    cluster.close()
    assert found(broker, topic) == Counter(ROWS)


def test_a_row_is_left_out_once_for_each_that_is_there() -> None:
    stored = Stored()
    for partition in (0, 1, 1):
        stored.add(b"k", b"v", [(b"h", None)], partition)
    assert not stored.take(b"k", b"v", [], -1)
    assert not stored.take(b"kv", b"", [(b"h", None)], -1)
    assert not stored.take(b"k", b"v", [(b"h", None)], 2)
    assert stored.take(b"k", b"v", [(b"h", None)], 1)
    assert stored.take(b"k", b"v", [(b"h", None)], -1)
    assert stored.take(b"k", b"v", [(b"h", None)], 0)
    assert not stored.take(b"k", b"v", [(b"h", None)], -1)
    assert stored.records == 0
