"""The latency of a stream: a steady trickle of records, and micro-batches as fast as they come.

`measure` starts this file as a program, `perf/spark_latency.py HOST:PORT TOPIC RATE`: it produces
so many records a second until its stdin ends. The stream has `processingTime="0 seconds"` and the
sink `noop`; `observe` tells the newest and the oldest timestamp of each micro-batch. The latency of
a record is the end of its trigger, commit included, less its timestamp: to a millisecond.
"""

import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import bench
from perf.spark_session import Figures, Kind
from perf.spark_topic import drop, make

RECORDS_PER_S = 2000
PARTITIONS = 2
VALUE = b"x" * 100
STEP_S = 0.005
STUCK_S = 120


def measure(spark: Any, kinds: list[Kind], triggers: int) -> list[Any]:
    """A result's row for each kind, of `triggers` micro-batches behind the first quarter as many,
    for the JVM to get warm; all kinds twice in turn, of which the second time counts."""
    taken: dict[str, Figures] = {}
    for _ in range(2):
        for kind in kinds:
            topic = bench.topic_name("latency")
            make(kind.address, topic, PARTITIONS)
            try:
                taken[kind.name] = _stream(spark, kind, topic, triggers)
            finally:
                drop(kind.address, topic)
    for name, found in taken.items():
        print(
            f"{'stream latency':20} {name:26} {found['newest_p50_ms']:6.0f} ms p50"
            f" {found['newest_p99_ms']:6.0f} p99   oldest {found['oldest_p50_ms']:.0f} p50,"
            f" trigger {found['trigger_p50_ms']:.0f} p50,"
            f" {found['records_per_trigger']:.0f} records",
            flush=True,
        )
    return [{"case": "stream latency", "kind": name, "A": taken[name]} for name in taken]


def figures(progress: Iterable[dict[str, Any]]) -> Figures:
    """Of the progress of micro-batches with the observed metrics `newest` and `oldest`, ms."""
    newest, oldest, lasted, counts = [], [], [], []
    for one in progress:
        begun = datetime.fromisoformat(one["timestamp"]).timestamp() * 1000
        took = one["durationMs"]["triggerExecution"]
        seen = one["observedMetrics"]["times"]
        newest.append(begun + took - seen["newest"])
        oldest.append(begun + took - seen["oldest"])
        lasted.append(took)
        counts.append(one["numInputRows"])
    figures = {
        "newest_p50_ms": np.percentile(newest, 50),
        "newest_p99_ms": np.percentile(newest, 99),
        "oldest_p50_ms": np.percentile(oldest, 50),
        "oldest_p99_ms": np.percentile(oldest, 99),
        "trigger_p50_ms": np.percentile(lasted, 50),
        "trigger_p99_ms": np.percentile(lasted, 99),
        "triggers": len(counts),
        "records_per_trigger": np.mean(counts),
    }
    return {name: bench.significant(float(value)) for name, value in figures.items()}


def _stream(spark: Any, kind: Kind, topic: str, triggers: int) -> Figures:
    from pyspark.sql import functions as F

    warm = triggers // 4
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 2 * (warm + triggers))
    rows = kind.load(spark.readStream, topic, startingOffsets="latest")
    millis = F.unix_millis("timestamp")
    rows = rows.observe("times", F.max(millis).alias("newest"), F.min(millis).alias("oldest"))
    words = [sys.executable, __file__, kind.address, topic, str(RECORDS_PER_S)]
    with tempfile.TemporaryDirectory(prefix="shmbroker-latency-") as checkpoint:
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="0 seconds").start()
        trickle = subprocess.Popen(words, stdin=subprocess.PIPE)
        try:
            _wait(query, warm + triggers)
            done = [one for one in query.recentProgress if one["numInputRows"]]
        finally:
            query.stop()
            trickle.communicate()
    return figures(done[warm : warm + triggers])


def _wait(query: Any, batches: int) -> None:
    """Until so many micro-batches are done. It asks rarely, as it shares the cores."""
    last, since = -1, time.monotonic()
    while last < batches + 1:  # the first one may be empty
        time.sleep(0.5)
        progress = query.lastProgress
        if not query.isActive:
            raise query.exception() or RuntimeError("the stream ended")
        if progress and progress["batchId"] > last:
            last, since = progress["batchId"], time.monotonic()
        if time.monotonic() - since > STUCK_S:
            raise RuntimeError(f"no micro-batch after number {last} in {STUCK_S} s")


def main() -> None:
    address, topic, rate = sys.argv[1:]
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1, "log_level": 0})
    began, sent = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], STEP_S)[0]:
        due = int((time.monotonic() - began) * int(rate))
        for number in range(sent, due):
            producer.produce(topic, VALUE, partition=number % PARTITIONS)
        sent = due
        producer.poll(0)
    producer.flush(30)


if __name__ == "__main__":
    main()
