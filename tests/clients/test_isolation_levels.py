"""What the Spark reader and `shmbroker.arrow.read` find among transactions, by fetches and in the
files, is what librdkafka's consumer reads, at both isolation levels.

Set KAFKA_ORACLE=HOST:PORT to have the same, by fetches, from an Apache Kafka.
"""

import os
import random
import uuid
from typing import Any

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from shmbroker.arrow import read
from shmbroker.spark.datasource import ShmbrokerDataSource

COLUMNS = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)


OPEN, PLAIN = 17, 12
"""Records behind the last stable offset, and those without a transaction."""
SEGMENT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def topic(servers: str) -> str:
    """Committed and aborted transactions, and one that is open, among plain records, in several
    segments; one that is aborted reaches over all but the first and the last."""
    settings = {"bootstrap.servers": servers, "log_level": 0}
    name = f"tx-{uuid.uuid4().hex[:8]}"
    config = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(name, 2, 1, config=config)])[name].result(60)
    plain = Producer(settings)
    producer = Producer({**settings, "transactional.id": name})
    long = Producer({**settings, "transactional.id": f"{name}-long"})
    for one in (producer, long):
        one.init_transactions(60)
    for i in range(12):
        if i == 2:
            long.begin_transaction()
        producer.begin_transaction()
        for n in range(50):
            producer.produce(name, value=b"%d %d" % (i, n) + bytes(8000), partition=n % 2)
        producer.flush()
        if 2 <= i < 10:
            long.produce(name, value=b"long %d" % i, partition=i % 2)
            long.flush()
        if i == 9:
            long.abort_transaction(60)
        plain.produce(name, value=b"plain %d" % i, partition=i % 2)
        plain.flush()
        (producer.abort_transaction if i % 3 == 1 else producer.commit_transaction)(60)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(name, value=b"open", partition=partition)
    producer.flush()
    for number in range(OPEN - 2):
        plain.produce(name, value=b"behind it", partition=number % 2)
    plain.flush()
    return name


@pytest.fixture(scope="module", params=["read_uncommitted", "read_committed"])
def level(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(servers: str, topic: str, level: str) -> list[tuple[int, int, Any]]:
    found = consumed(servers, topic, level)
    counts = {
        "read_uncommitted": 12 * 50 + 8 + PLAIN + OPEN,
        "read_committed": 8 * 50 + PLAIN,
    }
    assert len(found) == counts[level]
    return found


@pytest.mark.parametrize("way", ["files", "fetch"])
@pytest.mark.parametrize("fetch_bytes", ["70000", "8000000"])
def test_what_spark_reads_is_what_a_consumer_gets(
    servers: str,
    topic: str,
    level: str,
    expected: list[tuple[int, int, Any]],
    way: str,
    fetch_bytes: str,
) -> None:
    if way == "files" and servers == os.environ.get("KAFKA_ORACLE"):
        pytest.skip("files are ours alone")
    reader = ShmbrokerDataSource(
        {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "shmbroker.read": way,
            "kafka.isolation.level": level,
            "kafka.max.partition.fetch.bytes": fetch_bytes,
        }
    ).reader(COLUMNS)
    tasks = reader.partitions()
    found = [
        tuple(row.values())
        for task in tasks
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    assert sorted(found) == expected


@pytest.mark.parametrize("way", ["files", "fetch"])
@pytest.mark.parametrize("seed", range(4))
def test_any_part_is_what_a_consumer_gets(
    servers: str, topic: str, level: str, expected: list[tuple[int, int, Any]], way: str, seed: int
) -> None:
    """Ranges that begin and end within transactions and segments."""
    if way == "files" and servers == os.environ.get("KAFKA_ORACLE"):
        pytest.skip("files are ours alone")
    rng = random.Random(seed)
    ends = {p: 1 + max(offset for at, offset, _ in expected if at == p) for p in range(2)}
    starts, stops = {}, {}
    for partition, end in ends.items():
        starts[partition], stops[partition] = sorted(rng.sample(range(end + 1), 2))
    table = read(
        topic,
        bootstrap_servers=servers,
        start=starts,
        end=stops,
        columns=["partition", "offset", "value"],
        isolation_level=level,
        way=way,
    )
    found = sorted(tuple(row.values()) for row in table.to_pylist())
    assert found == [row for row in expected if starts[row[0]] <= row[1] < stops[row[0]]]


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_what_a_stream_reads_is_what_a_consumer_gets(
    servers: str, topic: str, level: str, expected: list[tuple[int, int, Any]], way: str
) -> None:
    """In micro-batches that end within transactions, up to the last stable offset."""
    if way == "files" and servers == os.environ.get("KAFKA_ORACLE"):
        pytest.skip("files are ours alone")
    stream = ShmbrokerDataSource(
        {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "101",
            "commitOffsets": "false",
            "shmbroker.read": way,
            "kafka.isolation.level": level,
        }
    ).streamReader(COLUMNS)
    found, micro_batches = [], 0
    start = stream.initialOffset()
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        for task in stream.partitions(start, end):
            for batch in stream.read(task):
                found += [tuple(row.values()) for row in batch.to_pylist()]
        start = end
        micro_batches += 1
    stream.stop()
    assert sorted(found) == expected
    assert micro_batches > 5


def consumed(servers: str, topic: str, level: str) -> list[tuple[int, int, Any]]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"{topic}-{level}",
            "isolation.level": level,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(2)])
    found, ends = [], 0
    while ends < 2:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ends += 1
        else:
            found.append((message.partition(), message.offset(), message.value()))
    consumer.close()
    return sorted(found)
