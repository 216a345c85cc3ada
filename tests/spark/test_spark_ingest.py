"""`shmbroker ingest` on a real session: Parquet and dead letters, repeated and resumed."""

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from test_spark_source import create

from shmbroker import arrow
from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest import checkpoint, plan, prepare, replay, run
from shmbroker.testing.broker import Broker

BAD_EVERY = 500


def fill(broker: Broker, numbers: range, topic: str = "ingest") -> None:
    """A JSON object of each number, and something else with headers now and then."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 0})
    for n in numbers:
        text = json.dumps({"n": n, "kind": f"k{n % 2}", "half": n / 2})
        value = b"bad %d" % n if n % BAD_EVERY == 7 else text.encode()
        headers = [("n", b"%d" % n), ("none", None)] if value.startswith(b"bad") else None
        producer.produce(topic, value=value, key=b"%d" % (n % 7), headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0


def ingest(
    spark: Any,
    broker: Broker,
    tmp_path: Path,
    topic: str = "ingest",
    way: str = "auto",
    continues: bool = False,
    **more: object,
) -> checkpoint.CheckpointDocument:
    """One run to the end of what is there, in several micro-batches."""
    source = {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": topic,
        "shmbroker.read": way,
        "maxBytesPerTrigger": "40k",
    }
    given = {
        "topic": topic,
        "path": str(tmp_path / "table"),
        "values": "json",
        "record_columns": ("partition", "offset"),
        "partition_by": ("kind",),
    } | (more or {"dead_letter_path": str(tmp_path / "bad")})
    wanted = plan.IngestPlan("", checkpoint=str(tmp_path / "checkpoint"), **given)  # type: ignore[arg-type]
    has_schema = "schema" in given
    asked = prepare.AskedIngest(
        wanted, list(given), source, infers=not has_schema, continues=continues
    )
    with prepare.opened(asked) as kept:
        if prepare.has_nothing_new(kept, source):
            return kept
        prepare.settle(kept.plan)
        started = run.Run(kept.plan, prepare.source_of(kept, source))
        query = run.start(spark, started, run.AVAILABLE_NOW)
        assert query.awaitTermination(300)
        assert prepare.has_nothing_new(kept, source)
    return kept


def test_every_record_is_in_the_files_once(spark: Any, broker: Broker, tmp_path: Path) -> None:
    create(broker, "ingest", 2)
    fill(broker, range(2000))
    ingest(spark, broker, tmp_path)
    commits = sorted(
        (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name)
    )
    assert len(commits) > 1
    # as if it had been killed when the files were committed and Spark had not noted it yet
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    fill(broker, range(2000, 3000))
    ingest(spark, broker, tmp_path)

    table = pyarrow.dataset.dataset(tmp_path / "table", partitioning="hive").to_table()
    assert sorted(table["n"].to_pylist()) == [n for n in range(3000) if n % BAD_EVERY != 7]
    assert {row["kind"] for row in table.to_pylist() if row["n"] % 2} == {"k1"}
    assert table["half"].to_pylist() == [n / 2 for n in table["n"].to_pylist()]
    columns = (table[name].to_pylist() for name in ("record_partition", "record_offset"))
    places = set(zip(*columns, strict=True))
    letters = pq.read_table(tmp_path / "bad").to_pylist()
    assert sorted(row["value"] for row in letters) == sorted(
        b"bad %d" % n for n in range(7, 3000, BAD_EVERY)
    )
    assert {row["reason"].split(":")[0] for row in letters} == {"no JSON object"}
    for row in letters:
        n = row["value"].removeprefix(b"bad ")
        assert row["headers"] == [{"key": "n", "value": n}, {"key": "none", "value": None}]
    assert len(places | {(row["partition"], row["offset"]) for row in letters}) == 3000


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_dead_letters_in_a_topic_keep_key_value_and_headers(
    spark: Any, broker: Broker, tmp_path: Path, way: str
) -> None:
    topic, letters = f"ingest-{way}", f"letters-{way}"
    create(broker, topic, 2)
    create(broker, letters, 1)
    fill(broker, range(2000), topic)
    more = {"dead_letter_topic": letters, "bootstrap_servers": broker.address}
    ingest(spark, broker, tmp_path, topic, way, **more)
    bad = range(7, 2000, BAD_EVERY)
    assert pq.read_table(tmp_path / "table").num_rows == 2000 - len(bad)
    columns = ["key", "value", "headers"]
    rows = arrow.read(letters, bootstrap_servers=broker.address, columns=columns).to_pylist()
    assert sorted(row["value"] for row in rows) == sorted(b"bad %d" % n for n in bad)
    for row in rows:
        n = row["value"].removeprefix(b"bad ")
        assert row["key"] == b"%d" % (int(n) % 7)
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        assert headers[:2] == [("n", n), ("none", None)]
        assert headers[2] == ("reason", b"no JSON object: " + row["value"])
        assert headers[3] == ("topic", topic.encode())
        assert [key for key, _ in headers[4:]] == ["partition", "offset", "timestamp", "ingest"]


def test_an_ingest_goes_on_after_bad_records_and_takes_them_again(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    create(broker, "mend", 1)
    create(broker, "mend-letters", 1)
    fill(broker, range(1200), "mend")
    with pytest.raises(Exception, match=r"--dead-letter TOPIC .*--skip-bad"):
        ingest(spark, broker, tmp_path, "mend", skips_bad=False)
    more = {"dead_letter_topic": "mend-letters", "bootstrap_servers": broker.address}
    ingest(spark, broker, tmp_path, "mend", **more)
    bad = range(7, 1200, BAD_EVERY)
    table = pyarrow.dataset.dataset(tmp_path / "table", partitioning="hive").to_table()
    assert sorted(table["n"].to_pylist()) == [n for n in range(1200) if n not in bad]

    lines = {"values": "csv", "schema": "text string", "partition_by": ()}
    lines["path"] = str(tmp_path / "lines")
    with pytest.raises(ConfigFault, match="--continue-with"):
        ingest(spark, broker, tmp_path, "mend", **lines)
    kept = ingest(spark, broker, tmp_path, "mend", continues=True, **lines)
    for _ in range(2):
        replay.replay(kept.plan)
    rows = pq.read_table(tmp_path / "lines").to_pylist()
    assert [(row["text"], row["record_offset"]) for row in rows] == [(f"bad {n}", n) for n in bad]
