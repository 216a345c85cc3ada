"""A batch query's read: offsets are resolved, ranges bounded by filters, tasks planned, at once.

Rules of this file:
* The range of every partition is fixed when the query is planned: ends are resolved first, so that
  nothing at or beyond the high watermark is read.
* Filters only narrow ranges; Spark applies them to the rows as well (`pushdown`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql.datasource import DataSourceReader, InputPartition

from shmbroker.client.reader.asking import OFFSET_MAX, Ends
from shmbroker.spark import worker
from shmbroker.spark.columns import columns_of
from shmbroker.spark.pushdown import Bounds, bounds_of
from shmbroker.spark.task_side import TaskSide, tasks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from shmbroker.client.cluster import Topic
    from shmbroker.client.reader.broker_client import BrokerClient
    from shmbroker.spark.options import Options


class BatchReader(TaskSide, DataSourceReader):
    """A batch query: the range of every partition is fixed when it is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.columns, self.required = columns_of(schema, options)
        self.bounds = Bounds()

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
            if self.bounds != Bounds():
                starts, ends = _bounded(client, options, topics, starts, ends, self.bounds)
            return tasks_of(driver.plan_tasks(client, options, topics, starts, ends))


class PushdownBatchReader(BatchReader):
    """One that Spark offers filters: apart, as Spark refuses it where pushing down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember what the filters spare; all of them stay with Spark."""
        self.bounds = bounds_of(filters)
        return filters


def _bounded(
    client: BrokerClient,
    options: Options,
    topics: Mapping[str, Topic],
    starts: Ends,
    ends: Ends,
    bounds: Bounds,
) -> tuple[Ends, Ends]:
    """The ranges without what the filters let no row of pass."""
    kept = [tp for tp in starts if bounds.wants(*tp)]
    resolved = [
        each | client.offsets(topics, {tp: at for tp, at in each.items() if at < 0})
        for each in ({tp: starts[tp] for tp in kept}, {tp: ends[tp] for tp in kept})
    ]
    starts, ends = resolved
    kept = [tp for tp in kept if starts[tp] <= ends[tp]]  # others are told of when it is planned
    since = dict.fromkeys(kept, 0)
    if bounds.timestamp_ms is not None:
        found = client.offsets(topics, dict.fromkeys(kept, bounds.timestamp_ms))
        since = {tp: OFFSET_MAX if at < 0 else at for tp, at in found.items()}
    starts |= {tp: min(max(starts[tp], bounds.start_offset, since[tp]), ends[tp]) for tp in kept}
    return starts, ends | {tp: max(starts[tp], min(ends[tp], bounds.end_offset)) for tp in kept}
