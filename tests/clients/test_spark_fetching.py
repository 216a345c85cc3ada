"""The Spark reader's fetches from a real Apache Kafka (KAFKA_ORACLE=HOST:PORT), transactions
included: what it reads is what librdkafka's consumer reads, at both isolation levels."""

import os
import uuid
from typing import Any

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from shmbroker.spark.datasource import ShmbrokerDataSource

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif("KAFKA_ORACLE" not in os.environ, reason="no Apache Kafka to ask"),
]

COLUMNS = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)


@pytest.fixture(scope="module")
def topic() -> str:
    """Transactions that were committed, aborted, and one that is open, among plain records."""
    servers = {"bootstrap.servers": os.environ["KAFKA_ORACLE"], "log_level": 0}
    name = f"tx-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)
    plain, producer = Producer(servers), Producer({**servers, "transactional.id": name})
    producer.init_transactions(60)
    for i in range(12):
        producer.begin_transaction()
        for n in range(50):
            producer.produce(name, value=b"%d %d" % (i, n), partition=n % 2)
        producer.flush()
        plain.produce(name, value=b"plain %d" % i, partition=i % 2)
        plain.flush()
        (producer.abort_transaction if i % 3 == 1 else producer.commit_transaction)(60)
    producer.begin_transaction()
    producer.produce(name, value=b"open", partition=0)
    producer.flush()
    plain.produce(name, value=b"behind it", partition=0)
    plain.flush()
    return name


@pytest.mark.parametrize("fetch_bytes", ["700", "8000000"])
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_what_is_fetched_is_what_a_consumer_gets(topic: str, level: str, fetch_bytes: str) -> None:
    servers = os.environ["KAFKA_ORACLE"]
    expected = consumed(servers, topic, level)
    reader = ShmbrokerDataSource(
        {
            "kafka.bootstrap.servers": servers,
            "subscribe": topic,
            "kafka.isolation.level": level,
            "kafka.max.partition.fetch.bytes": fetch_bytes,
        }
    ).reader(COLUMNS)
    found = [
        tuple(row.values())
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    assert len(expected) == {"read_uncommitted": 614, "read_committed": 412}[level]
    assert sorted(found) == expected


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
