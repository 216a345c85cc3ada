"""A task of a Spark write, run as Spark runs it but without its JVM: failed, and repeated."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from shmbroker.arrow import DeliveryFault, read
from shmbroker.spark import sink
from shmbroker.spark.producer_options import parse
from tests.support.waiting import wait_until

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = tuple[str, str | None, str, int | None, tuple[tuple[str, bytes | None], ...]]
"""topic, key, value, partition, headers"""


class Task:
    """What Spark tells a task of itself."""

    def __init__(self, batch: int) -> None:
        self.properties = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": str(batch)}

    def partitionId(self) -> int:
        return 3

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


def rows_of(names: list[str], batch: int) -> list[Row]:
    """Some of them equal to others."""
    return [
        (
            names[n % 2],
            None if n % 3 and n % 7 else f"k{n % 5}",
            f"{batch}-{n % 60}",
            n % 2 if n % 7 == 0 else None,
            (("h", b"x"), ("n", None)) if n % 11 == 0 else (),
        )
        for n in range(200)
    ]


def batches(rows: list[Row], until: int | None) -> Iterator[pa.RecordBatch]:
    """Small ones; the task fails after so many of them."""
    for number, start in enumerate(range(0, len(rows), 15)):
        if number == until:
            raise RuntimeError("the task fails")
        part = rows[start : start + 15]
        yield pa.record_batch(
            {
                "ignored": list(range(len(part))),
                "topic": [row[0] for row in part],
                "key": pa.array([row[1] for row in part], pa.string()),
                "value": [row[2] for row in part],
                "partition": pa.array([row[3] for row in part], pa.int32()),
                "headers": pa.array(
                    [[{"key": k, "value": v} for k, v in row[4]] for row in part], HEADERS
                ),
            }
        )


def found(address: str, name: str) -> list[Any]:
    table = read(name, bootstrap_servers=address, columns=["key", "value", "partition", "headers"])
    return sorted(
        (
            repr(row["key"].decode() if row["key"] is not None else None),
            row["value"].decode(),
            repr([(h["key"], h["value"]) for h in row["headers"] or ()]),
        )
        for row in table.to_pylist()
    )


def expected(rows: list[Row], name: str) -> list[Any]:
    return sorted(
        (repr(key), value, repr(list(headers)))
        for topic, key, value, _, headers in rows
        if topic == name
    )


def test_a_task_that_fails_and_is_repeated_in_another_order_writes_each_row_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"task-{random.randrange(10**9)}-{n}" for n in range(2)]
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        future.result(60)
    options = {
        "kafka.bootstrap.servers": address,
        "kafka.batch.size": "200",
        "kafka.linger.ms": "0",
    }
    header = StructType().add("key", StringType()).add("value", BinaryType())
    schema = StructType().add("ignored", LongType())
    for name in ("topic", "key", "value"):
        schema = schema.add(name, StringType())
    schema = schema.add("partition", IntegerType()).add("headers", ArrayType(header))
    writer = sink.StreamWriter(parse(options, is_stream=True), schema)
    rng = random.Random(5)
    all_rows: list[Row] = []
    for batch in (7, 8):
        task = Task(batch)
        monkeypatch.setattr(sink.TaskContext, "get", lambda task=task: task)
        rows = rows_of(names, batch)
        for until in (3, 9, None, None):
            if until is not None:
                with pytest.raises(RuntimeError, match="the task fails"):
                    writer.write(batches(rows, until))
            else:
                done = writer.write(batches(rows, None))
                assert isinstance(done, sink.Committed)
                assert done.records + done.left_out == len(rows)
            rng.shuffle(rows)
        assert done.records == 0  # as all were there
        all_rows += rows
        for name in names:
            assert found(address, name) == expected(all_rows, name)
    partitions = read(names[0], bootstrap_servers=address, columns=["value", "partition"])
    assert partitions.num_rows == 200


@pytest.mark.parametrize("key", [None, "k"])
def test_two_attempts_at_once_write_each_row_once(
    address: str, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """A slow one, and the one that Spark begins beside it, which has its rows in another order."""
    name = f"at-once-{random.randrange(10**9)}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, 20, 1)])[name].result(60)
    options = {"kafka.bootstrap.servers": address, "topic": name, "kafka.linger.ms": "0"}
    schema = StructType().add("key", StringType()).add("value", StringType())
    writer = sink.StreamWriter(parse(options, is_stream=True), schema)
    monkeypatch.setattr(sink.TaskContext, "get", lambda: Task(7))
    rows = [str(n) for n in range(40)] * 2

    def batch(values: list[str]) -> pa.RecordBatch:
        keys = pa.array([key] * len(values), pa.string())
        return pa.record_batch({"key": keys, "value": values})

    def there() -> list[str]:
        values = read(name, bootstrap_servers=address, columns=["value"])["value"].to_pylist()
        return sorted(value.decode() for value in values)

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch(rows[:5])
        wait_until(lambda: len(there()) == 5, "the first batch")
        done = writer.write(iter([batch(rows[::-1])]))
        assert isinstance(done, sink.Committed)
        yield batch(rows[5:])

    # unless its batches are, by their numbers, those that are there already
    with contextlib.suppress(DeliveryFault):
        writer.write(slow())
    assert there() == sorted(rows)
