"""Options, both ways to the bytes, lag and lost records, in a real session on a real broker.

Those that only show in Spark what the tests of the readers show without it run with
SHMBROKER_SPARK_ALL=1.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from test_spark_source import batch, create, into_parquet, produce, stream

from shmbroker.spark import LagListener, read_ranges
from shmbroker.testing.broker import Broker

FETCH = {"shmbroker.read": "fetch"}

with_all = pytest.mark.skipif(
    "SHMBROKER_SPARK_ALL" not in os.environ, reason="without Spark in tests/unit/spark"
)


def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def test_fetched_rows_are_those_of_the_files(spark: Any, broker: Broker) -> None:
    create(broker, "ways", 2, **{"segment.bytes": str(1 << 20)})
    for codec in ("none", "lz4", "zstd"):
        produce(broker, "ways", range(3000), codec)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("ways", value=None, key=b"k", headers=[("h", b"\xff"), ("n", None)])
    assert producer.flush(60) == 0
    options = {"includeHeaders": "true", "minPartitions": "5"}
    small = {"kafka.max.partition.fetch.bytes": "20000"}
    tables = [
        batch(spark, broker, "ways", **options, **way).orderBy("partition", "offset").toArrow()
        for way in ({"shmbroker.read": "files"}, {**FETCH, **small})
    ]
    assert tables[0].num_rows == 9001
    assert tables[0] == tables[1]


def test_tasks_that_cannot_open_the_files_fetch(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """The driver reaches the control socket under one name, the tasks no file under that name."""
    create(broker, "hidden", 1)
    produce(broker, "hidden", range(500))
    seen = tmp_path / "seen"
    seen.mkdir()
    # as another mount has it: the socket is there, the logs are not
    (seen / "control.sock").symlink_to(Path(broker.data, "control.sock"))
    rows = batch(spark, broker, "hidden", emit="ranges")
    assert [row.way for row in rows.collect()] == ["files"]
    rows = batch(spark, broker, "hidden", **{"shmbroker.data": str(seen)}, emit="ranges")
    assert [row.way for row in rows.collect()] == ["fetch"]
    rows = batch(spark, broker, "hidden", **{"shmbroker.data": str(seen)})
    assert sorted(int(row.value) for row in rows.collect()) == list(range(500))


def test_ranges_are_decoded_where_they_are_used(spark: Any, broker: Broker) -> None:
    create(broker, "ranged", 2)
    produce(broker, "ranged", range(2000))

    def total(batches: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        for records in read_ranges(batches, ("value",)):
            size = pc.sum(pc.binary_length(records.column("value")))
            yield pa.RecordBatch.from_pydict({"n": [records.num_rows], "bytes": [size.as_py()]})

    ranges = batch(spark, broker, "ranged", emit="ranges", minPartitions="4")
    (row,) = ranges.mapInArrow(total, "n bigint, bytes bigint").groupBy().sum().collect()
    assert tuple(row) == (2000, sum(len(str(n)) for n in range(2000)))


def test_a_filter_leaves_other_queries_of_a_dataframe_alone(spark: Any, broker: Broker) -> None:
    """Where Spark hands filters to sources, too: it would keep what they have left."""
    create(broker, "filtered", 3)
    produce(broker, "filtered", range(3000))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        rows = batch(spark, broker, "filtered", pushdown="true")
        some = rows.filter("partition = 1 and offset >= 10 and offset < 20")
        assert sorted(row.offset for row in some.collect()) == list(range(10, 20))
        assert rows.count() == 3000
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_lag_is_shown_to_kafkas_tools_and_in_the_progress(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    create(broker, "lagging", 2)
    produce(broker, "lagging", range(1000))
    told: list[tuple[str, dict[str, str]]] = []
    listener = LagListener(lambda *lag: told.append(lag))
    spark.streams.addListener(listener)
    try:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
        rows = stream(spark, broker, "lagging", **options, groupIdPrefix="lag-test")
        query = into_parquet(rows, tmp_path, availableNow=True)
        assert query.awaitTermination(120)
        assert query.exception() is None
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    behind = [int(metrics["maxOffsetsBehindLatest"]) for _, metrics in told]
    assert behind[0] > behind[-1] == 0
    assert "files" in query.lastProgress["sources"][0]["latestOffset"]

    client = admin(broker)
    listed = client.list_consumer_groups().result(60).valid
    (group,) = [g.group_id for g in listed if g.group_id.startswith("lag-test-")]
    asked = ConsumerGroupTopicPartitions(group)
    found = client.list_consumer_group_offsets([asked])[group].result(60)
    assert sum(tp.offset for tp in found.topic_partitions) == 1000


@with_all
def test_a_query_that_retention_overtakes_names_what_is_lost(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    create(broker, "overtaken", 1)
    produce(broker, "overtaken", range(1000))

    def run(**options: str) -> Any:
        rows = stream(spark, broker, "overtaken", startingOffsets="earliest", **options)
        query = into_parquet(rows, tmp_path, availableNow=True)
        query_ended(query)
        return query

    assert run(maxOffsetsPerTrigger="400").exception() is None
    produce(broker, "overtaken", range(1000, 2000))
    client = admin(broker)
    (deleted,) = client.delete_records([TopicPartition("overtaken", 0, 1500)]).values()
    deleted.result(60)
    text = str(run().exception())
    assert "offsets 1000 to 1499 of overtaken-0 were deleted by retention" in text
    assert "failOnDataLoss" in text
    assert run(failOnDataLoss="false").exception() is None
    rows = spark.read.parquet(str(tmp_path / "table")).select("n").collect()
    assert sorted(row.n for row in rows) == [*range(1000), *range(1500, 2000)]


@with_all
def test_a_query_on_a_topic_made_again_says_so(spark: Any, broker: Broker, tmp_path: Path) -> None:
    create(broker, "remade", 1)
    produce(broker, "remade", range(10))
    options = {"startingOffsets": "earliest"}
    query = into_parquet(stream(spark, broker, "remade", **options), tmp_path, availableNow=True)
    query_ended(query)
    assert query.exception() is None
    client = admin(broker)
    client.delete_topics(["remade"])["remade"].result(60)
    create(broker, "remade", 1)
    produce(broker, "remade", range(100))
    query = into_parquet(stream(spark, broker, "remade", **options), tmp_path, availableNow=True)
    query_ended(query)
    assert "topic remade was deleted and made again" in str(query.exception())


@with_all
@pytest.mark.parametrize(
    ("trigger", "word"),
    [({"continuous": "1 second"}, "ontinuous"), ({"realTime": "5 minutes"}, "eal")],
)
def test_triggers_that_python_sources_lack_are_named(
    spark: Any, broker: Broker, tmp_path: Path, trigger: dict[str, str], word: str
) -> None:
    create(broker, f"t{word}", 1)
    writer = stream(spark, broker, f"t{word}").writeStream.format("console")
    if "realTime" in trigger:
        writer = writer.outputMode("update")
    with pytest.raises(Exception, match=word):
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(**trigger).start()
        query_ended(query)
        raise query.exception()


def query_ended(query: Any) -> None:
    try:
        assert query.awaitTermination(120)
    except Exception:
        assert query.exception() is not None


@with_all
def test_offsets_of_a_checkpoint_are_kafkas(spark: Any, broker: Broker, tmp_path: Path) -> None:
    create(broker, "kept", 2)
    produce(broker, "kept", range(100))
    query = into_parquet(
        stream(spark, broker, "kept", startingOffsets="earliest"), tmp_path, availableNow=True
    )
    query_ended(query)
    files = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    kept = json.loads(max(files, key=lambda p: int(p.name)).read_text().splitlines()[-1])
    assert sum(kept["kept"].values()) == 100
    assert {name for name in kept if not name.startswith(":")} == {"kept"}


def test_sql_reads_a_view_or_a_table_that_is_told_its_options(spark: Any, broker: Broker) -> None:
    create(broker, "in-sql", 1)
    produce(broker, "in-sql", range(100))
    options = f"(`kafka.bootstrap.servers` = '{broker.address}', subscribe = 'in-sql')"
    spark.sql(f"create or replace temporary view in_sql using shmbroker options {options}")
    assert spark.sql("select count(*), max(offset) from in_sql").collect() == [(100, 99)]
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW instead of CREATE TABLE"):
        spark.sql(f"create table in_sql_table using shmbroker options {options}")
    spark.sql("create table in_sql_table (key binary, value binary) using shmbroker")
    assert spark.sql(f"select count(*) from in_sql_table with {options}").collect() == [(100,)]
    spark.sql("drop table in_sql_table")
