"""`format("shmbroker")` in a real Spark session, on the log of a real broker."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as F

from shmbroker.testing.broker import Broker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def create(broker: Broker, topic: str, partitions: int = 3, **config: str) -> None:
    config["retention.ms"] = "-1"  # the records' timestamps are of 2023
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(60)


def produce(
    broker: Broker, topic: str, numbers: range, codec: str = "lz4", pace: Callable = lambda _n: None
) -> None:
    """Acknowledged records whose values are these numbers, keyed by the number modulo 7."""
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "log_level": 0,
        }
    )
    errors: list[Any] = []
    for n in numbers:
        while True:
            try:
                producer.produce(
                    topic,
                    key=b"%d" % (n % 7),
                    value=b"%d" % n,
                    timestamp=1_700_000_000_000 + n,
                    on_delivery=lambda error, _: errors.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.05)
        pace(n)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not errors


def batch(spark: Any, broker: Broker, topic: str, **options: str) -> Any:
    reader = spark.read.format("shmbroker").option("kafka.bootstrap.servers", broker.address)
    return reader.option("subscribe", topic).options(**options).load()


def stream(spark: Any, broker: Broker, topic: str, **options: str) -> Any:
    reader = spark.readStream.format("shmbroker").option("kafka.bootstrap.servers", broker.address)
    return reader.option("subscribe", topic).options(**options).load()


def into_parquet(rows: Any, path: Path, **trigger: Any) -> Any:
    columns = rows.select(
        F.col("value").cast("string").cast("long").alias("n"), "key", "partition", "offset"
    )
    writer = columns.writeStream.format("parquet").option(
        "checkpointLocation", str(path / "checkpoint")
    )
    return writer.trigger(**trigger or {"processingTime": "0 seconds"}).start(str(path / "table"))


def assert_exactly(spark: Any, path: Path, count: int) -> None:
    """The table holds the numbers below `count` once each, every key's in order."""
    rows = spark.read.parquet(str(path / "table")).toArrow().to_pylist()
    assert sorted(row["n"] for row in rows) == list(range(count))
    assert len({(row["partition"], row["offset"]) for row in rows}) == count
    last: dict[bytes, int] = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        assert last.get(row["key"], -1) < row["n"]
        last[row["key"]] = row["n"]


def test_batch_reads_every_codec_exactly(spark: Any, broker: Broker) -> None:
    create(broker, "codecs")
    for i, codec in enumerate(CODECS):
        produce(broker, "codecs", range(i * 1000, (i + 1) * 1000), codec)
    rows = batch(spark, broker, "codecs").orderBy("timestamp").toArrow().to_pylist()
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(5000)]
    assert [row["key"] for row in rows] == [b"%d" % (n % 7) for n in range(5000)]
    first = rows[0]
    assert first["topic"] == "codecs"
    assert first["timestamp"].timestamp() == 1_700_000_000
    assert first["timestampType"] == 0
    for partition in range(3):
        offsets = sorted(row["offset"] for row in rows if row["partition"] == partition)
        assert offsets == list(range(len(offsets)))


def test_batch_reads_nulls_and_headers_and_large_records(spark: Any, broker: Broker) -> None:
    create(broker, "odd", 1)
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": "zstd"})
    producer.produce("odd", value=None, key=b"k")
    producer.produce("odd", value=b"", key=None, headers=[("h", b"\xff"), ("h", None)])
    producer.produce("odd", value=b"x" * 900_000)
    assert producer.flush(60) == 0
    rows = batch(spark, broker, "odd", includeHeaders="true").orderBy("offset").toArrow()
    assert rows.column("key").to_pylist() == [b"k", None, None]
    values = rows.column("value").to_pylist()
    assert [None if v is None else len(v) for v in values] == [None, 0, 900_000]
    assert rows.column("headers").to_pylist() == [
        None,
        [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}],
        None,
    ]


def test_batch_reads_ranges_over_rolled_segments(spark: Any, broker: Broker) -> None:
    create(broker, "rolled", 1, **{"segment.bytes": str(1 << 20), "index.interval.bytes": "100"})
    producer = Producer({"bootstrap.servers": broker.address, "batch.size": 20_000})
    for n in range(5000):
        timestamp = 1_700_000_000_000 + n
        producer.produce("rolled", value=b"%d" % n * 300, timestamp=timestamp)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert len(list(Path(broker.data, "node-1", "rolled-0").glob("*.log"))) > 3
    rows = batch(
        spark,
        broker,
        "rolled",
        startingOffsets='{"rolled": {"0": 777}}',
        endingOffsets='{"rolled": {"0": 4321}}',
        minPartitions="6",
    )
    assert rows.rdd.getNumPartitions() >= 4
    found = [row.offset for row in rows.select("offset").collect()]
    assert sorted(found) == list(range(777, 4321))
    since = batch(spark, broker, "rolled", startingTimestamp=str(1_700_000_000_000 + 4990))
    assert sorted(row.offset for row in since.collect()) == list(range(4990, 5000))


def test_partitions_that_are_not_named_are_read_whole(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    create(broker, "partial")
    produce(broker, "partial", range(700))
    rows = batch(spark, broker, "partial").select("partition", "offset").collect()
    ends = [sum(row.partition == p for row in rows) for p in range(3)]
    assert min(ends[1:]) > 100  # none of the seven keys is in the first one
    starts = {"startingOffsets": '{"partial": {"1": 11}}', "partialOffsets": "true"}
    stops = {"endingOffsets": '{"partial": {"1": -1, "2": 13}}'}
    with pytest.raises(Exception, match=r"missing: partial-0, partial-2; .*partialOffsets=true"):
        batch(spark, broker, "partial", startingOffsets=starts["startingOffsets"]).count()
    found = batch(spark, broker, "partial", **starts, **stops).select("partition", "offset")
    asked = {(1, n) for n in range(11, ends[1])} | {(2, n) for n in range(13)}
    assert sorted(tuple(row) for row in found.collect()) == sorted(asked)
    # by time: 100 numbers of the named partition are left out, of the others none
    since = json.dumps({"partial": {"2": 1_700_000_000_100}})
    late = {"startingOffsetsByTimestamp": since, "partialOffsets": "true"}
    found = batch(spark, broker, "partial", **late).select("partition", "value")
    numbers = sorted(int(row.value) for row in found.collect() if row.partition == 2)
    assert len(numbers) < ends[2]
    assert min(numbers) >= 100
    assert found.where("partition < 2").count() == ends[0] + ends[1]

    query = into_parquet(stream(spark, broker, "partial", **starts), tmp_path, availableNow=True)
    query.awaitTermination()
    table = spark.read.parquet(str(tmp_path / "table")).select("partition", "offset").collect()
    first = {(p, n) for p in range(3) for n in range(11 if p == 1 else 0, ends[p])}
    assert sorted(tuple(row) for row in table) == sorted(first)


def test_a_narrower_schema_reads_only_its_columns(spark: Any, broker: Broker) -> None:
    create(broker, "narrow")
    produce(broker, "narrow", range(100))
    reader = spark.read.format("shmbroker").schema("offset bigint, value binary")
    rows = reader.option("kafka.bootstrap.servers", broker.address).option("subscribe", "narrow")
    assert rows.load().columns == ["offset", "value"]
    assert sorted(int(row.value) for row in rows.load().collect()) == list(range(100))


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_columns_may_be_null_as_the_schema_says(spark: Any, broker: Broker, way: str) -> None:
    topic = f"nulls-{way}"
    create(broker, topic)
    produce(broker, topic, range(100))
    reader = spark.read.format("shmbroker").option("shmbroker.read", way)
    reader = reader.option("kafka.bootstrap.servers", broker.address).option("subscribe", topic)
    for rows, is_nullable in (
        (reader.load(), False),
        (reader.schema("offset bigint, value binary").load(), True),
        (reader.schema("offset bigint not null, value binary").load(), False),
    ):
        found = {field.name: field.nullable for field in rows.schema}
        assert (found["offset"], found["value"]) == (is_nullable, True)
        assert sorted(int(row.value) for row in rows.collect()) == list(range(100))
        assert [row.n for row in rows.selectExpr("count(offset) as n").collect()] == [100]


def test_the_jvm_spares_what_spark_checks_by_itself(spark: Any) -> None:
    """The options of session_conf reach it."""
    system = spark.sparkContext._jvm.System
    assert system.getProperty("arrow.enable_unsafe_memory_access") == "true"
    assert system.getProperty("arrow.enable_null_check_for_get") == "false"
    beans = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    names = {bean.getName() for bean in beans.getGarbageCollectorMXBeans()}
    assert names == {"PS MarkSweep", "PS Scavenge"}


def test_a_bad_option_is_told_in_one_sentence(spark: Any, broker: Broker) -> None:
    with pytest.raises(Exception, match=r"^.{0,150}option startingoffset is not known here"):
        batch(spark, broker, "x", startingOffset="earliest")
    with pytest.raises(Exception, match="there is no topic nowhere"):
        batch(spark, broker, "nowhere").count()
    ended = stream(spark, broker, "x", endingOffsets="latest").writeStream.format("noop").start()
    with pytest.raises(Exception, match="ending offset not valid in streaming") as caught:
        ended.awaitTermination()
    assert "UnboundLocalError" not in str(caught.value)


def test_a_stream_stopped_and_resumed_is_exactly_once(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    """Stopped in the middle while the topic fills, then resumed with other limits."""
    create(broker, "resumed")
    produce(broker, "resumed", range(6000))
    more = threading.Thread(target=produce, args=(broker, "resumed", range(6000, 12_000)))
    more.start()
    rows = stream(spark, broker, "resumed", startingOffsets="earliest", maxOffsetsPerTrigger="1000")
    query = into_parquet(rows, tmp_path)
    wait_for(query, lambda: len(query.recentProgress) >= 3)
    query.stop()
    more.join()
    stopped_at = last_offsets(tmp_path)
    assert 0 < sum(stopped_at["resumed"].values()) < 12_000

    rows = stream(spark, broker, "resumed", startingOffsets="earliest", maxOffsetsPerTrigger="4000")
    query = into_parquet(rows, tmp_path, availableNow=True)
    query.awaitTermination()
    assert query.exception() is None
    assert_exactly(spark, tmp_path, 12_000)
    progress = query.lastProgress["sources"][0]
    assert json.loads(json.dumps(progress["latestOffset"]))


def test_a_batch_that_was_read_but_not_committed_is_read_again_the_same(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    """As after a crash between the sink's write and the commit; the topic has grown meanwhile."""
    create(broker, "again")
    produce(broker, "again", range(3000))
    rows = stream(spark, broker, "again", startingOffsets="earliest", maxOffsetsPerTrigger="1000")
    into_parquet(rows, tmp_path, availableNow=True).awaitTermination()
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    commits[-1].unlink()
    for left in (tmp_path / "checkpoint" / "commits").glob(f".{commits[-1].name}*"):
        left.unlink()
    produce(broker, "again", range(3000, 4000))
    rows = stream(spark, broker, "again", startingOffsets="earliest")
    into_parquet(rows, tmp_path, availableNow=True).awaitTermination()
    assert_exactly(spark, tmp_path, 4000)


def test_a_stream_outlives_the_io_worker(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """kill -9 of the partitions' writer: the query waits for its successor and goes on."""
    create(broker, "killed")
    rows = stream(spark, broker, "killed", startingOffsets="earliest")
    query = into_parquet(rows, tmp_path)

    def pace(n: int) -> None:
        if n == 2500:
            os.kill(broker.children()["io-worker-1"], signal.SIGKILL)

    produce(broker, "killed", range(5000), pace=pace)
    query.processAllAvailable()
    query.stop()
    assert_exactly(spark, tmp_path, 5000)


def last_offsets(path: Path) -> dict[str, Any]:
    """What the checkpoint holds of the last batch."""
    files = (path / "checkpoint" / "offsets").glob("[0-9]*")
    newest = max(files, key=lambda p: int(p.name))
    return json.loads(newest.read_text().splitlines()[-1])


def wait_for(query: Any, is_so: Callable[[], bool]) -> None:
    while not is_so():
        assert query.exception() is None
        query.awaitTermination(1)
