"""One broker and one Spark session for all Spark tests, as both take seconds to start."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from shmbroker.errors import ConfigFault
from shmbroker.spark import java_home, session_conf
from shmbroker.testing.broker import Broker

HERE = os.path.dirname(__file__) + os.sep
ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this directory need Spark, and more time than others on a busy machine."""
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What Spark looks for in the environment, here and in programs that a test starts."""
    try:
        os.environ["JAVA_HOME"] = java_home()
    except ConfigFault as fault:
        pytest.skip(str(fault))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SHMBROKER_PROFILES"] = str(tmp_path_factory.mktemp("profiles") / "profiles.toml")
    # Spark's Python processes look for pyspark_shmbroker in their path
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


@pytest.fixture(scope="session")
def spark(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session of two threads."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config(map=session_conf(cores=2))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker on a free port."""
    with Broker() as running:
        yield running
