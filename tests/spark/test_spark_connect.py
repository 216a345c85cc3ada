"""The data source in a session of Spark Connect's, whose program has no JVM of its own at hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_spark_source import create

from shmbroker.testing.broker import Broker
from tests.spark.connect_session import ROWS, TRIGGER_ROWS

pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")


@pytest.mark.usefixtures("spark_environment")
def test_source_and_sink_over_spark_connect(broker: Broker, tmp_path: Path) -> None:
    create(broker, "connect", 3)
    program = [sys.executable, "-m", "tests.spark.connect_session"]
    done = subprocess.run(
        [*program, broker.address, "connect", str(tmp_path)],
        env=os.environ | {"SPARK_TESTING": "1"},  # the server takes a free port
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["module"] == "pyspark.sql.connect.session"
    assert seen["batch"] == [ROWS, ROWS]
    assert seen["arrow"] == ROWS
    assert sum(seen["ranges"]) == ROWS
    assert "did you mean startingOffsets?" in seen["refused"]
    assert seen["ended"]
    assert seen["stream"] == [ROWS, ROWS]
    assert seen["micro_batches"] >= ROWS / TRIGGER_ROWS
    assert seen["lag"]["maxOffsetsBehindLatest"] == "0"
