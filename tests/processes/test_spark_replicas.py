"""A stream's reader on three replicas while leaders are killed: every acknowledged record once."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from shmbroker.spark.datasource import ShmbrokerDataSource
from shmbroker.testing.broker import Broker

COLUMNS = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)
COUNT = 20_000
KILLS = (4_000, 8_000, 12_000)


@pytest.fixture
def family() -> Iterator[Broker]:
    with Broker("--replicas", "3") as running:
        yield running


def produce(family: Broker, errors: list[Any]) -> None:
    """Acknowledged by all; on the way each broker is killed once."""
    servers = ",".join(f"127.0.0.1:{family.port + i}" for i in range(3))
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
    )
    for n in range(COUNT):
        if n in KILLS:
            producer.flush(60)
            worker = f"io-worker-{KILLS.index(n) + 1}"
            os.kill(family.children()[worker], signal.SIGKILL)
        while True:
            try:
                producer.produce(
                    "r",
                    partition=n % 3,
                    value=b"%d" % n,
                    on_delivery=lambda error, _: errors.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    if producer.flush(60):
        errors.append("not all were acknowledged")


@pytest.mark.parametrize(
    "way",
    [
        "auto",
        pytest.param(
            "fetch",
            marks=pytest.mark.skipif(
                "SHMBROKER_SPARK_ALL" not in os.environ, reason="the same, for those who ask"
            ),
        ),
    ],
)
def test_every_acknowledged_record_comes_once_while_leaders_die(family: Broker, way: str) -> None:
    admin = AdminClient({"bootstrap.servers": family.address, "log_level": 0})
    config = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic("r", 3, 3, config=config)])["r"].result(60)
    errors: list[Any] = []
    producing = threading.Thread(target=produce, args=(family, errors))
    servers = ",".join(f"127.0.0.1:{family.port + i}" for i in range(3))
    reader = ShmbrokerDataSource(
        {
            "kafka.bootstrap.servers": servers,
            "subscribe": "r",
            "startingOffsets": "earliest",
            "shmbroker.read": way,
        }
    ).streamReader(COLUMNS)
    found: dict[int, list[tuple[int, bytes]]] = {0: [], 1: [], 2: []}
    end = reader.initialOffset()
    producing.start()
    try:
        while producing.is_alive() or sum(end["r"].values()) < COUNT:
            start, end = end, reader.latestOffset(end, ReadMaxRows(2000))
            for task in reader.partitions(start, end) if end != start else ():
                for rows in reader.read(task):
                    for row in rows.to_pylist():
                        found[row["partition"]].append((row["offset"], row["value"]))
    finally:
        producing.join()
        reader.stop()
    assert not errors
    for partition, rows in found.items():
        assert rows == [(i, b"%d" % n) for i, n in enumerate(range(partition, COUNT, 3))]
