"""Lets Spark find the data source `shmbroker` by itself.

Spark imports every top-level module named `pyspark_*` and registers its DefaultSource, so this
must stay cheap to import: decoding and its libraries are loaded by the tasks that need them.
"""

from shmbroker.spark.datasource import ShmbrokerDataSource as DefaultSource

__all__ = ["DefaultSource"]
