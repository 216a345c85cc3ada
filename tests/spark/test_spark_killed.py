"""kill -9 of a whole Spark driver in the middle of a stream, then a new one on the same checkpoint.

It starts Java twice more: with SHMBROKER_SPARK_ALL=1.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_spark_source import assert_exactly, create, produce

from shmbroker.testing.broker import Broker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    "SHMBROKER_SPARK_ALL" not in os.environ, reason="starts Java twice more"
)

COUNT = 12_000

DRIVER = """
import sys
from pathlib import Path
sys.path[:0] = [{here!r}]
from pyspark.sql import SparkSession
from shmbroker.spark import session_conf
from test_spark_source import into_parquet
spark = (
    SparkSession.builder.master("local[2]").config(map=session_conf(cores=2))
    .config("spark.ui.enabled", "false").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
rows = (
    spark.readStream.format("shmbroker")
    .option("kafka.bootstrap.servers", {address!r}).option("subscribe", {topic!r})
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "1000")
    .option("shmbroker.read", {way!r}).load()
)
query = into_parquet(rows, Path({path!r}), availableNow=True)
query.awaitTermination()
"""


@pytest.mark.parametrize("way", ["files", "fetch"])
def test_a_killed_driver_is_resumed_exactly_once(
    spark: Any, broker: Broker, tmp_path: Path, way: str
) -> None:
    topic = f"driver-{way}"
    create(broker, topic)
    produce(broker, topic, range(COUNT))
    here = str(Path(__file__).parent)
    text = DRIVER.format(
        here=here, address=broker.address, topic=topic, path=str(tmp_path), way=way
    )
    commits = tmp_path / "checkpoint" / "commits"
    first = start(text)
    try:
        wait_until(
            lambda: first.poll() is not None or len(list(commits.glob("[0-9]*"))) >= 3,
            "three batches",
            300,
        )
        assert first.poll() is None
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert len(list(commits.glob("[0-9]*"))) < COUNT // 1000
    second = start(text)
    try:
        assert second.wait(300) == 0
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
    assert_exactly(spark, tmp_path, COUNT)


def start(text: str) -> "subprocess.Popen[bytes]":
    """A driver with its JVM and its workers in a process group of its own."""
    return subprocess.Popen([sys.executable, "-c", text], start_new_session=True)
