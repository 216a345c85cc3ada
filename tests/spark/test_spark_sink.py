"""Writes of `format("shmbroker")` in a real Spark session: rows exactly once, whatever is repeated.

SPARK_KILLS=1 adds a query whose JVM is killed again and again.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as F

from shmbroker.spark.pipeline import Job
from shmbroker.testing.broker import Broker


def create(broker: Broker, topic: str, partitions: int = 3, **config: str) -> None:
    config["retention.ms"] = "-1"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(60)


def written(spark: Any, broker: Broker, topic: str) -> list[dict[str, Any]]:
    reader = spark.read.format("shmbroker").option("kafka.bootstrap.servers", broker.address)
    rows = reader.option("subscribe", topic).option("includeHeaders", "true").load()
    return rows.orderBy("partition", "offset").toArrow().to_pylist()


def numbers(spark: Any, broker: Broker, topic: str) -> list[int]:
    return sorted(int(row["value"]) for row in written(spark, broker, topic))


def write(rows: Any, broker: Broker, **options: Any) -> None:
    writer = rows.write.format("shmbroker").option("kafka.bootstrap.servers", broker.address)
    writer.options(**options).mode("append").save()


def test_batch_write_of_every_column(spark: Any, broker: Broker) -> None:
    create(broker, "columns")
    rows = spark.range(500).select(
        F.expr("if(id % 5 = 0, null, concat('key', id % 7))").alias("key"),
        F.col("id").cast("string").cast("binary").alias("value"),
        F.expr("if(id % 3 = 0, cast(id % 2 as int), null)").alias("partition"),
        F.expr(
            "if(id % 4 = 0, array(named_struct('key', 'h', 'value', cast('x' as binary)),"
            " named_struct('key', 'n', 'value', cast(null as binary))), null)"
        ).alias("headers"),
        F.lit("elsewhere").alias("topic"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + F.col("id")).alias("timestamp"),
        F.lit(1).alias("something else"),
    )
    write(rows, broker, topic="columns", **{"kafka.compression.type": "zstd"})
    found = written(spark, broker, "columns")
    assert sorted(int(row["value"]) for row in found) == list(range(500))
    for row in found:
        n = int(row["value"])
        assert row["key"] == (None if n % 5 == 0 else b"key%d" % (n % 7))
        assert n % 3 or row["partition"] == n % 2
        assert row["timestamp"].timestamp() == 1_700_000_000 + n / 1000
        pairs = [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
        assert row["headers"] == (pairs if n % 4 == 0 else None)


def test_topics_of_a_column(spark: Any, broker: Broker) -> None:
    create(broker, "even")
    create(broker, "every-other")
    rows = spark.range(100).selectExpr(
        "if(id % 2 = 0, 'even', 'every-other') topic", "cast(id as string) value"
    )
    write(rows, broker)
    assert numbers(spark, broker, "even") == list(range(0, 100, 2))
    assert numbers(spark, broker, "every-other") == list(range(1, 100, 2))


def test_what_can_not_be_written_is_said_as_sparks_kafka_sink_says_it(
    spark: Any, broker: Broker
) -> None:
    rows = spark.range(2).selectExpr("cast(id as string) value")
    for options, frame, text in (
        ({}, rows, "topic option required when no 'topic' attribute is present"),
        ({"topic": "x"}, rows.selectExpr("value v"), "Required attribute 'value' not found"),
        (
            {"topic": "x"},
            rows.selectExpr("value", "1 key"),
            "key attribute unsupported type int. key must be a(n) string or binary",
        ),
        ({}, rows.selectExpr("value", "cast(null as string) topic"), "null topic present"),
        ({"topic": "x"}, rows.selectExpr("value", "double('nan') timestamp"), "that is no time"),
        ({"topic": "x", "exactlyonec": "true"}, rows, "did you mean exactlyOnce"),
        ({"topic": "x", "kafka.compresion.type": "lz4"}, rows, "did you mean kafka.compression"),
        ({"topic": "x", "kafka.key.serializer": "a"}, rows, "'key.serializer' is not supported"),
    ):
        with pytest.raises(Exception) as caught:
            write(frame, broker, **options)
        assert text in str(caught.value)
        assert "Traceback" not in str(caught.value)
    with pytest.raises(Exception, match="Save mode Overwrite not allowed"):
        rows.write.format("shmbroker").option("topic", "x").option(
            "kafka.bootstrap.servers", broker.address
        ).mode("overwrite").save()


def test_a_write_of_a_series_is_done_once(spark: Any, broker: Broker) -> None:
    create(broker, "series")
    for version, times in ((0, 1), (1, 2)):
        rows = spark.range(version * 1000, version * 1000 + 1000, 1, 2)
        for _ in range(times):
            write(
                rows.selectExpr("cast(id as string) value"),
                broker,
                topic="series",
                txnAppId="app",
                txnVersion=version,
            )
    assert numbers(spark, broker, "series") == list(range(2000))


def start(spark: Any, broker: Broker, path: Path, source: str, sink: str, **options: str) -> Any:
    """A query from topic to topic; with the option `fails` its tasks end at one of the rows."""
    fails = options.pop("fails", "")
    reader = spark.readStream.format("shmbroker").option("kafka.bootstrap.servers", broker.address)
    rows = reader.option("subscribe", source).option("startingOffsets", "earliest")
    value = F.col("value")
    if fails:
        failure = F.raise_error(F.lit("failed as it should"))
        value = F.when(value == F.lit(fails.encode()), failure).otherwise(value).alias("value")
    stream = rows.options(**options).load().select("key", value)
    return (
        stream.writeStream.format("shmbroker")
        .option("kafka.bootstrap.servers", broker.address)
        .option("kafka.compression.type", "lz4")
        .option("kafka.batch.size", "1000")
        .option("kafka.linger.ms", "0")
        .option("topic", sink)
        .option("checkpointLocation", str(path))
        .trigger(availableNow=True)
        .start()
    )


def forget_last_commit(path: Path) -> None:
    """As a crash between the tasks' end and the commit leaves it."""
    commits = sorted((path / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    commits[-1].unlink()
    for left in (path / "commits").glob(f".{commits[-1].name}*"):
        left.unlink()


def test_a_stream_is_exactly_once_over_repeated_batches_and_killed_processes(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    create(broker, "from", 2)
    create(broker, "to", 3)
    rows = spark.range(6000).selectExpr("cast(id % 11 as string) key", "cast(id as string) value")
    write(rows, broker, topic="from")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    limit = {"maxOffsetsPerTrigger": "3000"}
    with pytest.raises(Exception, match="failed as it should"):
        start(spark, broker, tmp_path, "from", "to", fails="5999", **limit).awaitTermination()
    assert len(numbers(spark, broker, "to")) < 6000
    query = start(spark, broker, tmp_path, "from", "to", **limit)
    killer = threading.Thread(
        target=lambda: os.kill(broker.children()["io-worker-1"], signal.SIGKILL)
    )
    killer.start()
    query.awaitTermination()
    killer.join()
    assert query.exception() is None
    assert numbers(spark, broker, "to") == list(range(6000))
    forget_last_commit(tmp_path)
    more = spark.range(6000, 7000).selectExpr("cast(id % 11 as string) key", "string(id) value")
    write(more, broker, topic="from")
    query = start(spark, broker, tmp_path, "from", "to")
    query.awaitTermination()
    assert query.exception() is None
    assert numbers(spark, broker, "to") == list(range(7000))
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_pipeline_that_writes_changes_writes_each_once(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    create(broker, "ticks", 1)
    create(broker, "totals", 2)

    def run(count: int) -> list[tuple[bytes, bytes]]:
        write(spark.range(count).selectExpr("string(id % 3) value"), broker, topic="ticks")
        cluster = {"kafka.bootstrap.servers": broker.address}
        job = Job(spark, cluster, tmp_path, {"availableNow": True}, {})
        totals = job.stream("ticks").groupBy(F.col("value").alias("key")).count()
        query = job.write(totals.withColumnRenamed("count", "value"), "totals", "update")
        query.awaitTermination()
        assert query.exception() is None
        return sorted((row["key"], row["value"]) for row in written(spark, broker, "totals"))

    first = [(b"0", b"2"), (b"1", b"1"), (b"2", b"1")]
    assert run(4) == first
    forget_last_commit(tmp_path / "0-totals")
    assert run(1) == sorted([*first, (b"0", b"3")])


PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from shmbroker.spark import session_conf
address, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config(map=session_conf(2)).getOrCreate()
rows = spark.readStream.format("shmbroker").option("kafka.bootstrap.servers", address)
rows = rows.option("subscribe", "from-killed").option("startingOffsets", "earliest")
rows = rows.option("maxOffsetsPerTrigger", "100000").load().select("key", "value")
sink = rows.writeStream.format("shmbroker").option("kafka.bootstrap.servers", address)
sink = sink.option("topic", "to-killed").option("checkpointLocation", checkpoint)
print("begun", flush=True)
sink.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.skipif("SPARK_KILLS" not in os.environ, reason="takes minutes: SPARK_KILLS=1")
def test_a_stream_is_exactly_once_though_its_jvm_is_killed(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    create(broker, "from-killed", 3)
    create(broker, "to-killed", 4)
    count = 1_000_000
    rows = spark.range(count).selectExpr("cast(id % 101 as string) key", "cast(id as string) value")
    write(rows, broker, topic="from-killed")
    program = [sys.executable, "-c", PROGRAM, broker.address, str(tmp_path)]
    for kill_after in (1, 3, 5, None):
        process = subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        commits = tmp_path / "commits"
        while kill_after and process.poll() is None:
            if len(list(commits.glob("[0-9]*"))) >= kill_after:
                os.killpg(process.pid, signal.SIGKILL)
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                pass
        process.wait()
    assert numbers(spark, broker, "to-killed") == list(range(count))
