"""Writes of several Spark tasks in one transaction, run as Spark runs them but without its JVM.

Set KAFKA_ORACLE=HOST:PORT to have the same on an Apache Kafka.
"""

import contextlib
import itertools
import os
import pickle
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StringType, StructType

from shmbroker.arrow import write
from shmbroker.client.producer.producer import Producer
from shmbroker.errors import Fault
from shmbroker.spark import sink
from shmbroker.spark.datasource import ShmbrokerDataSource
from shmbroker.spark.transactions import driver, sending
from shmbroker.spark.transactions.messages import FarFault
from tests.support.waiting import wait_until

SCHEMA = StructType().add("key", StringType()).add("value", StringType())
PARTITIONS = 3


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a SparkContext has for its Python processes; the keeper goes with the directory."""
    directory = tmp_path_factory.mktemp("blockmgr")
    patch = pytest.MonkeyPatch()
    patch.setenv("SPARK_LOCAL_DIRS", str(directory))
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    yield directory
    patch.undo()
    shutil.rmtree(directory)


class Task:
    """What Spark tells a task of itself; each thread is one."""

    attempts = itertools.count()
    mine = threading.local()

    def __init__(self, query: str, batch: int, task: int, query_run: str) -> None:
        self.attempt = next(self.attempts)
        self.task = task
        self.properties = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": query_run,
        }

    def partitionId(self) -> int:
        return self.task

    def taskAttemptId(self) -> int:
        return self.attempt

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


class Query:
    """A query of Spark's into a topic of its own; `more`: options."""

    def __init__(self, servers: str, **more: str) -> None:
        self.servers = servers
        self.topic = f"transactions-{uuid.uuid4().hex[:8]}"
        self.id = uuid.uuid4().hex
        self.run = uuid.uuid4().hex
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(60)
        options = {
            "kafka.bootstrap.servers": servers,
            "topic": self.topic,
            "exactlyOnce": "transactions",
            "checkpointLocation": f"/{self.id}",
            "kafka.batch.size": "400",
        }
        self.source = ShmbrokerDataSource(options | more)

    def writer(self) -> sink.StreamWriter:
        """As Spark makes one for each micro-batch, and another one to commit it."""
        made = self.source.streamWriter(SCHEMA, False)
        assert isinstance(made, sink.StreamWriter)
        return made

    def write(self, writer: sink.StreamWriter, batch: int, task: int, values: list[str]) -> Any:
        """A task, in this thread."""
        Task.mine.task = Task(self.id, batch, task, self.run)
        shipped = pickle.loads(pickle.dumps(writer))
        return pickle.loads(pickle.dumps(shipped.write(batches(values))))

    def committed(self, isolation: str = "read_committed") -> list[str]:
        """What readers see, in all partitions."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "none",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self.topic, p, 0) for p in range(PARTITIONS)])
        values, ends = [], 0
        while ends < PARTITIONS:
            for message in consumer.consume(500, 0.05):
                if message.error() is not None:
                    ends += 1
                else:
                    values.append(message.value().decode())
        consumer.close()
        return sorted(values)


@pytest.fixture(autouse=True)
def of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink.TaskContext, "get", lambda: Task.mine.task)


def batches(values: list[str]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(values), 50):
        part = values[start : start + 50]
        keys = [None if n % 2 else value for n, value in enumerate(part)]
        yield pa.record_batch({"key": pa.array(keys, pa.string()), "value": part})


def values_of(batch: int, task: int, count: int = 300) -> list[str]:
    return [f"{batch:02} {task:02} {n:04}" for n in range(count)]


def test_tasks_of_a_micro_batch_are_seen_together_when_it_is_committed(
    context: Path, servers: str
) -> None:
    query = Query(servers)
    expected: list[str] = []
    for batch in range(3):
        writer = query.writer()
        with ThreadPoolExecutor(4) as pool:
            messages = list(
                pool.map(
                    lambda task, writer=writer, batch=batch: query.write(
                        writer, batch, task, values_of(batch, task)
                    ),
                    range(4),
                )
            )
        assert query.committed() == sorted(expected)
        expected += [value for task in range(4) for value in values_of(batch, task)]
        assert query.committed("read_uncommitted") == sorted(expected)
        query.writer().commit(messages, batch)
        assert query.committed() == sorted(expected)
        assert sum(message.records for message in messages) == 1200


def dies_in_the_midst(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The next attempts end while windows are on their way; `after` so many have arrived."""
    left = after
    wait = Producer.wait_for_one

    def wait_or_die(producer: Producer, posted: Any) -> Any:
        nonlocal left
        landed = wait(producer, posted)  # one at least; more, where a broker answers at once
        left -= len(landed)
        if left < 0:
            raise RuntimeError("the task is killed")
        return landed

    monkeypatch.setattr(Producer, "wait_for_one", wait_or_die)


@pytest.mark.parametrize("after", [0, 2, 5])
def test_a_task_that_ends_in_the_midst_of_sending_is_repeated(
    context: Path, servers: str, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    query = Query(servers, **{"kafka.compression.type": "lz4"})
    writer = query.writer()
    other = query.write(writer, 0, 0, values_of(0, 0))
    with monkeypatch.context() as patch:
        dies_in_the_midst(patch, after)
        with pytest.raises(RuntimeError, match="the task is killed"):
            query.write(writer, 0, 1, values_of(0, 1, 900))
    again = query.write(writer, 0, 1, values_of(0, 1, 900))
    late = query.write(writer, 0, 1, ["another row, of an attempt that comes too late"])
    assert query.committed() == []
    assert again.records == late.records == 900
    query.writer().commit([other, again], 0)
    assert query.committed() == values_of(0, 0) + values_of(0, 1, 900)


def test_a_task_with_other_rows_when_it_is_repeated_ends_the_write(
    context: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(servers)
    writer = query.writer()
    with monkeypatch.context() as patch:
        dies_in_the_midst(patch, 2)
        with pytest.raises(RuntimeError, match="the task is killed"):
            query.write(writer, 0, 0, values_of(0, 0))
    for _ in range(2):
        with pytest.raises(sending.LostTransactionFault, match=r"task 0 has other rows.*restart"):
            query.write(writer, 0, 0, values_of(0, 1))
    query.writer().abort([None], 0)
    assert query.committed() == []
    again = query.writer()
    message = query.write(again, 0, 0, values_of(0, 2))
    query.writer().commit([message], 0)
    assert query.committed() == values_of(0, 2)


def test_rows_that_can_not_be_written_are_told_before_anything_is_sent(
    context: Path, servers: str
) -> None:
    query = Query(servers)
    writer = query.writer()
    with pytest.raises(RuntimeError, match="a row fails"):
        Task.mine.task = Task(query.id, 0, 0, query.run)
        writer.write(failing(values_of(0, 0)))
    message = query.write(writer, 0, 0, values_of(0, 1))
    query.writer().commit([message], 0)
    assert query.committed("read_uncommitted") == values_of(0, 1)


def failing(values: list[str]) -> Iterator[pa.RecordBatch]:
    yield from batches(values)
    raise RuntimeError("a row fails")


def test_a_micro_batch_that_was_committed_is_recognised_by_the_next_driver(
    context: Path, servers: str
) -> None:
    query = Query(servers)
    for batch in range(2):
        message = query.write(query.writer(), batch, 0, values_of(batch, 0))
        query.writer().commit([message], batch)
    query.run = uuid.uuid4().hex
    message = query.write(query.writer(), 1, 0, ["another row"])
    query.writer().commit([message], 1)
    assert query.committed() == values_of(0, 0) + values_of(1, 0)
    with pytest.raises(sending.LostTransactionFault, match=r"version 0 .* but 1 is committed"):
        query.write(query.writer(), 0, 0, ["another row"])
    message = query.write(query.writer(), 2, 0, values_of(2, 0))
    query.writer().commit([message], 2)
    assert query.committed() == values_of(0, 0) + values_of(1, 0) + values_of(2, 0)


def test_tasks_of_an_earlier_run_write_nothing_more(context: Path, servers: str) -> None:
    query = Query(servers)
    old = query.writer()
    left = query.write(old, 0, 0, values_of(0, 0))
    query.run = uuid.uuid4().hex
    new = query.writer()
    message = query.write(new, 0, 0, values_of(0, 1))
    with pytest.raises(sending.LostTransactionFault, match="another run of this write has begun"):
        query.write(old, 0, 1, values_of(0, 2))
    with pytest.raises(driver.KeeperRefusalFault, match="is gone"):
        query.writer().commit([left], 0)
    query.writer().commit([message], 0)
    assert query.committed() == values_of(0, 1)


def test_a_batch_write_is_seen_whole_or_not_at_all(context: Path, servers: str) -> None:
    query = Query(servers)
    for is_committed in (False, True):
        writer = query.source.writer(SCHEMA, False)
        messages = [query.write(writer, 0, task, values_of(0, task)) for task in range(2)]
        assert query.committed() == []
        if is_committed:
            pickle.loads(pickle.dumps(writer)).commit(messages)
        else:
            pickle.loads(pickle.dumps(writer)).abort([None, None])
        with pytest.raises(sending.LostTransactionFault, match="is gone"):
            query.write(writer, 0, 2, values_of(0, 3))
    assert query.committed() == values_of(0, 0) + values_of(0, 1)


def test_a_batch_write_of_a_series_is_done_once(context: Path, servers: str) -> None:
    query = Query(servers, txnAppId=uuid.uuid4().hex, txnVersion="7")
    for value in ("first", "again"):
        writer = query.source.writer(SCHEMA, False)
        writer.commit([query.write(writer, 0, 0, [value])])
    assert query.committed() == ["first"]


def test_a_killed_keeper_loses_its_transaction_and_no_row(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    query = Query(servers)
    writer = query.writer()
    message = query.write(writer, 0, 0, values_of(0, 0))
    pid = keeper_of(tmp_path)
    os.kill(pid, signal.SIGKILL)
    # Before the last of its threads has ended, its socket may take a connection, and reset it.
    wait_until(lambda: ") Z" in Path(f"/proc/{pid}/stat").read_text(), "its end", 60)
    wait_until(lambda: len(os.listdir(f"/proc/{pid}/task")) == 1, "its threads' end", 60)
    with pytest.raises(Fault, match="can't be reached"):
        query.write(writer, 0, 1, values_of(0, 1))
    with pytest.raises(driver.KeeperRefusalFault, match="is gone"):
        query.writer().commit([message], 0)
    message = query.write(query.writer(), 0, 0, values_of(0, 2))
    assert query.committed() == []
    query.writer().commit([message], 0)
    assert query.committed() == values_of(0, 2)
    again = keeper_of(tmp_path)
    shutil.rmtree(tmp_path)
    wait_until(
        lambda: ") Z" in Path(f"/proc/{again}/stat").read_text(), "its end", 60
    )  # ours to reap


def test_what_is_open_when_the_driver_is_killed_keeps_no_reader_waiting(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM is a process that sleeps here."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with subprocess.Popen(["sleep", "600"]) as jvm:
        monkeypatch.setattr(driver, "_jvm", lambda: jvm.pid)
        query = Query(servers)
        query.write(query.writer(), 0, 0, values_of(0, 0))
        jvm.kill()
    plain = write(pa.table({"value": ["behind it"]}), query.topic, bootstrap_servers=query.servers)
    assert plain.records == 1
    wait_until(lambda: query.committed() == ["behind it"], "the next batch", 60)


def test_strangers_and_other_users_are_sent_away(context: Path, servers: str) -> None:
    run = Query(servers).writer().writing.run
    assert run is not None
    with pytest.raises(Fault, match="give the option driverHost"):
        sending._connect(run._replace(token=bytes(32).hex()))
    channel = sending._connect(run)
    channel.say({"what": "claim"})  # no task
    with pytest.raises(FarFault):
        channel.hear()


def keeper_of(directory: Path) -> int:
    """The process that keeps the transactions of this context."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if str(directory).encode() in words and b"shmbroker.spark.transactions.keeper" in words:
                return int(path.parent.name)
    raise AssertionError("no keeper")
