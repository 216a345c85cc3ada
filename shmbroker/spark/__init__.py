"""PySpark data source `shmbroker`: reads topics straight from the log files of a local broker.

    spark = SparkSession.builder.config(map=session_conf()).getOrCreate()
    spark.read.format("shmbroker")            # or readStream
        .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "topic").load()

Spark finds it by itself once the package is installed (`pyspark_shmbroker`). Nothing here is
imported before it is used: Python processes of Spark's come through here at their start.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.spark.lag import LagListener, add_lag
    from shmbroker.spark.ranges import read_ranges
    from shmbroker.spark.session import java_home, session_conf

__all__ = ["LagListener", "add_lag", "java_home", "read_ranges", "session_conf"]

_MODULES = {
    "LagListener": "lag",
    "add_lag": "lag",
    "java_home": "session",
    "read_ranges": "ranges",
    "session_conf": "session",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
