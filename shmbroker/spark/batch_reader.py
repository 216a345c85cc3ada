"""A batch query's read: offsets are resolved and tasks planned, at once.

Rules of this file:
* The range of every partition is fixed when the query is planned: ends are resolved first, so that
  nothing at or beyond the high watermark is read.
* Spark's filters narrow nothing here. Spark keeps one plan for all queries of a DataFrame, and
  gives what the filters of one have left to the next one, too.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceReader, InputPartition

from shmbroker.spark import worker
from shmbroker.spark.columns import columns_of
from shmbroker.spark.task_side import TaskSide, tasks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from shmbroker.spark.options import Options


class BatchReader(TaskSide, DataSourceReader):
    """A batch query: the range of every partition is fixed when it is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.columns, self.required = columns_of(schema, options)

    @worker.told_plainly()
    def partitions(self) -> list[InputPartition]:
        """The tasks; they are planned from one list of files per leader."""
        from shmbroker.spark import driver

        options = self.options
        with driver.connect(options) as client:
            topics = driver.find_topics(client, options)
            wanted = driver.wanted_partitions(options, topics)
            starts = driver.resolve(client, options, topics, wanted, is_start=True)
            ends = driver.resolve(client, options, topics, wanted, is_start=False)
            return tasks_of(driver.plan_tasks(client, options, topics, starts, ends))
