"""PySpark data source `shmbroker`: reads topics straight from the log files of a local broker.

    spark = SparkSession.builder.config(map=session_conf()).getOrCreate()
    spark.read.format("shmbroker")            # or readStream
        .option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "topic").load()

Spark finds it by itself once the package is installed (`pyspark_shmbroker`). Nothing here imports
pyspark, pyarrow or numpy before it is used.
"""

from typing import TYPE_CHECKING, Any

from shmbroker.spark.ranges import read_ranges
from shmbroker.spark.session import java_home, session_conf

if TYPE_CHECKING:
    from shmbroker.spark.lag import LagListener, add_lag

__all__ = ["LagListener", "add_lag", "java_home", "read_ranges", "session_conf"]


def __getattr__(name: str) -> Any:
    if name in ("LagListener", "add_lag"):  # they need pyspark
        from shmbroker.spark import lag

        return getattr(lag, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
