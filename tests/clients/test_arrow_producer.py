"""`shmbroker.arrow.write` and `Producer` as other clients see what they have written.

Set KAFKA_ORACLE=host:port to have the same against an Apache Kafka.
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka import Producer as Confluent
from confluent_kafka.admin import AdminClient, NewTopic

from shmbroker import clock
from shmbroker.arrow import ClusterFault, DeliveryFault, Producer, write
from shmbroker.errors import ConfigFault
from shmbroker.testing.broker import Broker
from tests.support.waiting import wait_until

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME_MS = 1_700_000_000_000

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]
"""partition, timestamp, key, value, headers"""


@pytest.fixture
def topic(servers: str, request: Any) -> str:
    return made(servers, f"{request.node.originalname}-{random.randrange(10**9)}")


def made(servers: str, name: str, partitions: int = 5, **config: str) -> str:
    config = {key.replace("_", "."): value for key, value in config.items()}
    config["retention.ms"] = "-1"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)
    return name


def read(servers: str, topic: str, count: int, partitions: int = 5) -> list[Record]:
    """All records, by partition and offset, which must be without gaps."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "x",
            "check.crcs": True,
            "enable.partition.eof": True,
        }
    )
    found: dict[tuple[int, int], Record] = {}
    ended: set[int] = set()

    def is_all_read() -> bool:
        for message in consumer.consume(10_000, 0.02):
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
                continue
            found[message.partition(), message.offset()] = (
                message.partition(),
                message.timestamp()[1],
                message.key(),
                message.value(),
                message.headers(),
            )
        return len(found) >= count and len(ended) == partitions

    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        wait_until(is_all_read, lambda: f"{count} records, not {len(found)}", between=0)
    finally:
        consumer.close()
    sizes = [sum(p == partition for p, _ in found) for partition in range(partitions)]
    assert sorted(found) == [(p, o) for p in range(partitions) for o in range(sizes[p])]
    return [found[place] for place in sorted(found)]


def table(count: int) -> pa.Table:
    """Keys, values, headers of every kind, times, and a partition for some."""
    rng = random.Random(count)
    rows = [
        {
            "key": rng.choice([None, b"", b"key-%d" % rng.randrange(50)]),
            "value": rng.choice([None, b"", b"%d" % n * rng.randrange(9)]),
            "headers": rng.choice(
                [None, [], [{"key": "a", "value": b"%d" % n}, {"key": "ü", "value": None}]]
            ),
            "timestamp": TIME_MS + rng.randrange(10_000),
            "partition": rng.choice([None, None, rng.randrange(5)]),
        }
        for n in range(count)
    ]
    schema = pa.schema(
        {
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": HEADERS,
            "timestamp": pa.timestamp("ms", "UTC"),
            "partition": pa.int32(),
        }
    )
    return pa.Table.from_pylist(rows, schema=schema)


def as_records(data: pa.Table) -> list[tuple[Any, ...]]:
    return [
        (
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            row["key"],
            row["value"],
            [(h["key"], h["value"]) for h in row["headers"]] if row["headers"] else None,
        )
        for row in data.to_pylist()
    ]


def in_any_order(records: Any) -> list[Any]:
    return sorted(records, key=repr)


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_reads_what_was_written(servers: str, topic: str, codec: str) -> None:
    data = table(3000)
    written = write(
        data, topic, bootstrap_servers=servers, compression=codec, batch_size=4096, linger_ms=0
    )
    assert written.records == 3000
    found = read(servers, topic, 3000)
    assert in_any_order(record[1:] for record in found) == in_any_order(as_records(data))
    for p in range(5):
        assert written.partitions[topic, p].records == sum(r[0] == p for r in found)
        assert written.partitions[topic, p].first_offset == 0
    for row in data.to_pylist():
        if row["partition"] is not None:
            assert any(r[0] == row["partition"] and r[2] == row["key"] for r in found)


def test_kafka_python_reads_what_was_written(servers: str, topic: str) -> None:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Place

    data = table(500).drop_columns("partition")
    write(data, topic, bootstrap_servers=servers, compression="lz4", batch_size=1000)
    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    consumer.assign([Place(topic, p) for p in range(5)])
    found = []

    def are_all_found() -> bool:
        for records in consumer.poll(200).values():
            found.extend((r.timestamp, r.key, r.value, list(r.headers) or None) for r in records)
        return len(found) >= 500

    wait_until(are_all_found, lambda: f"500 records, not {len(found)}", between=0)
    consumer.close()
    assert in_any_order(found) == in_any_order(as_records(data))


def test_keys_go_where_librdkafka_puts_them(servers: str, topic: str) -> None:
    keys = [b"", b"a", *(random.Random(3).randbytes(n % 23) for n in range(400))]
    other = made(servers, topic + "-other")
    producer = Confluent({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(other, key=key)
    assert producer.flush(30) == 0
    write(pa.table({"key": keys}), topic, bootstrap_servers=servers)
    ours, theirs = (read(servers, name, len(keys)) for name in (topic, other))
    assert {(r[0], r[2]) for r in ours} == {(r[0], r[2]) for r in theirs}


def test_rows_of_a_key_stay_in_order_over_many_sends(servers: str, topic: str) -> None:
    with Producer(servers, topic=topic, batch_size=700, linger_ms=1) as producer:
        for start in range(0, 6000, 17):
            numbers = range(start, min(start + 17, 6000))
            producer.send(
                pa.table(
                    {"key": [f"{n % 11}" for n in numbers], "value": [f"{n}" for n in numbers]}
                )
            )
    last: dict[bytes, int] = {}
    found = read(servers, topic, 6000)
    assert len(found) == 6000
    for _, _, key, value, _ in found:
        assert last.get(key or b"", -1) < int(value or b"")
        last[key or b""] = int(value or b"")


def test_what_lingers_is_delivered_without_a_flush(servers: str, topic: str) -> None:
    with Producer(servers, linger_ms=10) as producer:
        producer.send(pa.record_batch({"value": ["one"]}), topic)
        assert len(read(servers, topic, 1)) == 1
        assert producer.written().records == 1


def test_a_batch_that_begins_wakes_who_sleeps_longer_than_it_lingers(
    servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(servers, topic=topic, linger_ms=0) as producer:
        producer.send(pa.table({"value": ["one"]}))
        producer.flush()
        bell = producer._backlog.bell
        wait_until(
            lambda: bell.is_asleep and bell.wakes_s >= clock.monotonic() + 0.3,
            "a long sleep",
            between=0,
        )
        rings = []
        ring = bell.ring
        monkeypatch.setattr(bell, "ring", lambda: (rings.append(1), ring()))
        producer.send(pa.table({"value": ["two"]}))
        assert rings


def test_topics_come_from_a_column(servers: str, topic: str) -> None:
    other = made(servers, topic + "-other")
    data = pa.table({"topic": [topic, other, topic], "value": ["1", "2", "3"]})
    assert write(data, bootstrap_servers=servers).records == 3
    assert [r[3] for r in read(servers, other, 1)] == [b"2"]
    assert sorted(r[3] or b"" for r in read(servers, topic, 2)) == [b"1", b"3"]


@pytest.mark.parametrize(("acks", "idempotence"), [("all", False), (1, False), (0, False)])
def test_other_acks(servers: str, topic: str, acks: Any, idempotence: bool) -> None:
    data = table(1000)
    # First with acks: a topic is new for some milliseconds, and acks=0 would not hear of it.
    write(pa.table({"partition": range(5)}), topic, bootstrap_servers=servers)
    write(data, topic, bootstrap_servers=servers, acks=acks, idempotence=idempotence)
    assert len(read(servers, topic, 1005)) == 1005


def test_batches_that_a_topic_does_not_take_are_split(servers: str, topic: str) -> None:
    small = made(servers, topic + "-small", max_message_bytes="2000")
    data = pa.table({"key": ["same"] * 3000, "value": [f"{n:050}" for n in range(3000)]})
    write(data, small, bootstrap_servers=servers, batch_size=20_000)
    found = [r[3] for r in read(servers, small, 3000)]
    assert found == [b"%050d" % n for n in range(3000)]


def test_little_memory_is_enough(servers: str, topic: str) -> None:
    data = table(5000)
    write(data, topic, bootstrap_servers=servers, batch_size=1024, buffer_memory=3000)
    found = Counter(value for *_, value, _ in read(servers, topic, 5000))
    assert found == Counter(data["value"].to_pylist())


def test_a_record_that_is_too_large_is_named_with_what_was_delivered(
    servers: str, topic: str
) -> None:
    producer = Producer(servers, topic=topic)
    producer.send(pa.table({"value": ["before"] * 10, "partition": [3] * 10}))
    producer.flush()
    producer.send(pa.table({"value": ["x" * 2_000_000], "partition": [2]}))
    with pytest.raises(DeliveryFault, match=f"{topic}-2: MESSAGE_TOO_LARGE") as caught:
        producer.flush()
    assert (caught.value.delivered, caught.value.not_delivered) == (10, 1)
    assert caught.value.by_partition == {(topic, 3): (10, 0), (topic, 2): (0, 1)}
    with pytest.raises(DeliveryFault):
        producer.send(pa.table({"value": ["after"]}))
    with pytest.raises(DeliveryFault):
        producer.close()


def test_what_can_not_work_is_said(servers: str, topic: str) -> None:
    with pytest.raises(ClusterFault, match="INVALID_TOPIC_EXCEPTION"):
        write(pa.table({"value": ["x"]}), "no topic?", bootstrap_servers=servers)
    with pytest.raises(ConfigFault, match="has no partition 5: it has 5"):
        write(pa.table({"partition": [5]}), topic, bootstrap_servers=servers)
    with pytest.raises(ConfigFault, match="compression is one of none, gzip"):
        Producer(servers, compression="brotli")
    with pytest.raises(ConfigFault, match="not idempotent"):
        Producer(servers, acks=1)
    with pytest.raises(ConfigFault, match="not HOST:PORT"):
        Producer("here")
    with pytest.raises(ClusterFault, match=r"No broker at 127\.0\.0\.1:1 answered within"):
        write(pa.table({"value": ["x"]}), "t", bootstrap_servers="127.0.0.1:1", max_block_ms=50)
    producer = Producer(servers)
    producer.close()
    with pytest.raises(ConfigFault, match="closed"):
        producer.send(pa.table({"value": ["x"]}), topic)


# ── a broker of its own, whose processes die ────────────────────────────────────────────────────


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


def killing(broker: Broker, names: list[str], is_over: threading.Event) -> Callable[[], None]:
    """Kill -9 one after the other, when what was killed before is back."""

    def kill() -> None:
        for name in names:
            while not is_over.is_set():
                pid = broker.children().get(name)
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    break
                is_over.wait(0.01)

    return kill


def test_every_record_once_and_in_order_while_processes_die(broker: Broker) -> None:
    topic = made(broker.address, "killed", 3)
    is_over = threading.Event()
    names = ["io-worker-1", "network-worker-1", "network-worker-2", "io-worker-1", "controller-1"]
    known = broker.children()
    killer = threading.Thread(target=killing(broker, [n for n in names if n in known], is_over))
    count = 0
    with Producer(broker.address, topic=topic, compression="lz4", batch_size=2000) as producer:
        killer.start()
        while killer.is_alive():
            numbers = range(count, count + 500)
            count += producer.send(
                pa.table({"key": [f"{n % 7}" for n in numbers], "value": [f"{n}" for n in numbers]})
            )
            if count % 20_000 == 0:
                producer.flush()
    is_over.set()
    killer.join()
    found = read(broker.address, topic, count, 3)
    assert sorted(int(r[3] or b"") for r in found) == list(range(count))
    last: dict[bytes, int] = {}
    for _, _, key, value, _ in found:
        assert last.get(key or b"", -1) < int(value or b"")
        last[key or b""] = int(value or b"")


def test_a_broker_that_is_gone_ends_in_a_fault_with_counts(broker: Broker) -> None:
    topic = made(broker.address, "gone", 2)
    producer = Producer(broker.address, topic=topic, delivery_timeout_ms=1500)
    producer.send(pa.table({"value": ["x"] * 7, "partition": [1] * 7}))
    producer.flush()
    broker.kill()
    producer.send(pa.table({"value": ["x"] * 5, "partition": [1] * 5}))
    with pytest.raises(DeliveryFault, match="gone-1: REQUEST_TIMED_OUT") as caught:
        producer.flush()
    assert (caught.value.delivered, caught.value.not_delivered) == (7, 5)
    producer.abort()
