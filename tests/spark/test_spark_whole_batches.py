"""`exactlyOnce=transactions` in a real Spark session: readers see whole micro-batches only, each of
them once, whatever ends the query. Without Spark: tests/clients/test_spark_transaction_tasks.py.
"""

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from test_spark_sink import create, forget_last_commit, write

from shmbroker.arrow import read
from shmbroker.testing.broker import Broker

LIMIT = 3000
"""Records of a micro-batch."""


def start(spark: Any, broker: Broker, path: Path, fails: str = "") -> Any:
    """A query from `whole-from` to `whole-to`; its tasks end at the row `fails`."""
    reader = spark.readStream.format("shmbroker").option("kafka.bootstrap.servers", broker.address)
    rows = reader.option("subscribe", "whole-from").option("startingOffsets", "earliest")
    failure = F.raise_error(F.lit("failed as it should"))
    value = F.when(F.col("value") == F.lit(fails.encode()), failure).otherwise(F.col("value"))
    return (
        rows.option("maxOffsetsPerTrigger", str(LIMIT))
        .load()
        .select("key", value.alias("value"))
        .writeStream.format("shmbroker")
        .option("kafka.bootstrap.servers", broker.address)
        .option("exactlyOnce", "transactions")
        .option("kafka.batch.size", "1000")
        .option("topic", "whole-to")
        .option("checkpointLocation", str(path))
        .trigger(availableNow=True)
        .start()
    )


def committed(broker: Broker) -> list[dict[str, Any]]:
    return read(
        "whole-to",
        bootstrap_servers=broker.address,
        columns=["value", "partition"],
        isolation_level="read_committed",
    ).to_pylist()


def seen(broker: Broker) -> list[int]:
    return sorted(int(row["value"]) for row in committed(broker))


class Watch:
    """Reads all the time what is committed, and notes how many records each partition had."""

    def __init__(self, broker: Broker) -> None:
        self.counts: set[tuple[int, int]] = set()
        self._broker = broker
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            partitions = (row["partition"] for row in committed(self._broker))
            self.counts |= set(Counter(partitions).items())


def test_a_stream_is_seen_by_whole_micro_batches_each_once(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    create(broker, "whole-from", 2)
    create(broker, "whole-to", 3)
    columns = "cast(id % 11 as string) key", "cast(id as string) value", "int(id % 2) partition"
    rows = spark.range(0, 9000, 1, 1).selectExpr(*columns)  # in their order
    write(rows, broker, topic="whole-from")
    with Watch(broker) as watch:
        with pytest.raises(Exception, match="failed as it should"):
            start(spark, broker, tmp_path, "8999").awaitTermination()
        assert len(seen(broker)) == 6000
        killer = threading.Thread(
            target=lambda: os.kill(broker.children()["io-worker-1"], signal.SIGKILL)
        )
        query = start(spark, broker, tmp_path)
        killer.start()
        query.awaitTermination()
        killer.join()
        assert query.exception() is None
        assert seen(broker) == list(range(9000))
        forget_last_commit(tmp_path)
        query = start(spark, broker, tmp_path)
        query.awaitTermination()
        assert query.exception() is None
        assert seen(broker) == list(range(9000))
    whole: Counter[int] = Counter()
    ends = set()
    for batch in range(3):
        whole += Counter(
            row["partition"] for row in committed(broker) if int(row["value"]) // LIMIT == batch
        )
        ends |= set(whole.items())
    assert watch.counts <= ends
    more = spark.range(9000, 9500).selectExpr("cast(id as string) value")
    write(more, broker, topic="whole-from")
    query = start(spark, broker, tmp_path)
    query.awaitTermination()
    assert query.exception() is None
    assert seen(broker) == list(range(9500))


def test_a_batch_write_that_fails_leaves_nothing_that_readers_see_or_wait_for(
    spark: Any, broker: Broker
) -> None:
    create(broker, "whole-batch", 2)
    whole = {"topic": "whole-batch", "exactlyOnce": "transactions"}
    fails = F.raise_error(F.lit("failed as it should"))
    rows = spark.range(0, 2000, 1, 2)
    value = F.when(F.col("id") == 1999, fails).otherwise(F.col("id").cast("string"))
    with pytest.raises(Exception, match="failed as it should"):
        write(rows.select(value.alias("value")), broker, **whole)
    write(rows.selectExpr("string(id) value"), broker, **whole)
    found = read("whole-batch", bootstrap_servers=broker.address, isolation_level="read_committed")
    assert sorted(int(value) for value in found["value"].to_pylist()) == list(range(2000))


def test_what_can_not_be_is_told_in_a_sentence(spark: Any, broker: Broker) -> None:
    create(broker, "whole-told", 1)
    rows = spark.range(2).selectExpr("cast(id as string) value")
    for options, text in (
        ({"exactlyOnce": "transaction"}, "exactlyOnce is true, false or transactions, not"),
        ({"driverHost": "here"}, "option driverHost needs exactlyOnce=transactions"),
        (
            {"exactlyOnce": "transactions", "kafka.transaction.timeout.ms": "86400000"},
            "kafka.transaction.timeout.ms of 86400000 is more than transaction.max.timeout.ms",
        ),
    ):
        with pytest.raises(Exception) as caught:
            write(rows, broker, topic="whole-told", **options)
        assert text in str(caught.value)
