"""Readers as Spark calls them, without Spark, and the rows that they give."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from fake_family import FakeFamily
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from shmbroker.spark.datasource import ShmbrokerDataSource
from shmbroker.spark.task_side import Task

COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("value", BinaryType()),
    ]
)
FILES = {"shmbroker.read": "files"}
FETCH = {"shmbroker.read": "fetch"}
IMPATIENT = {"kafka.default.api.timeout.ms": "800"}
"""Where it is waited for in vain; elsewhere a busy machine may take its time."""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[FakeFamily]:
    with FakeFamily(tmp_path / ("long" * 30)) as made:
        yield made


def source(family: FakeFamily, **options: str) -> ShmbrokerDataSource:
    if not {"subscribe", "assign", "subscribePattern"} & set(options):
        options["subscribe"] = "t"
    given = {"kafka.bootstrap.servers": family.address, "fetchOffset.retryIntervalMs": "1"}
    return ShmbrokerDataSource({**given, **options})


def rows(reader, tasks) -> list[tuple]:
    """(topic, partition, offset) of all tasks; every value tells its offset."""
    found = []
    for task in tasks:
        assert isinstance(task, Task)
        for batch in reader.read(task):
            for row in batch.to_pylist():
                assert row["value"].endswith(str(row["offset"]).encode())
                found.append((row["topic"], row["partition"], row["offset"]))
    return found


def batch_rows(family: FakeFamily, **options: str) -> list[tuple]:
    reader = source(family, **options).reader(COLUMNS)
    return rows(reader, reader.partitions())


def stream_rows(reader, start: dict, end: dict) -> list[tuple]:
    return rows(reader, reader.partitions(over_json(start), over_json(end)))


def over_json(offsets: dict) -> dict:
    return json.loads(json.dumps(offsets))
