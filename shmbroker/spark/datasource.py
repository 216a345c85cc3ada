"""The Python data source `shmbroker`: batch and streaming reads, with the columns of
Spark's Kafka source, and writes.

    driver   resolves offsets, gets end offsets and segment lists from the leaders, plans pieces
             batch_reader.py, stream_reader.py
    task     maps its pieces of the log files, or fetches them, and decodes them into Arrow batches
             task_side.py, columns.py

The driver's part runs in a Python process of Spark's, so no state is shared with the program that
built the query. What it alone needs (`driver`) is imported where it plans: tasks start without, and
so does Spark's search for data sources. Rules of these files:

* Nothing at or beyond the high watermark is read: ends are resolved first, then planned.
* What is asked for and no longer there is a DataLossFault unless failOnDataLoss is false.
* Bad options are told where a query is built, as with Spark's Kafka source.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark.sql.datasource import DataSource

from shmbroker.errors import ConfigFault
from shmbroker.spark import options as source_options
from shmbroker.spark import worker
from shmbroker.spark.batch_reader import BatchReader
from shmbroker.spark.columns import HEADERS_SCHEMA, SCHEMA
from shmbroker.spark.options import Options
from shmbroker.spark.stream_reader import RefusedReader, StreamReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

logger = logging.getLogger("shmbroker.spark")


class ShmbrokerDataSource(DataSource):
    """`format("shmbroker")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "shmbroker"

    @worker.told_plainly()
    def schema(self) -> str:
        """The records' schema, or that of the ranges. It is what `load()` asks for, so that is
        where bad options are told, as with Spark's Kafka source."""
        worker.freeze()
        options = source_options.parse_any(self.options)
        if options.emits_ranges:
            from shmbroker.spark import ranges

            return ranges.SCHEMA
        return SCHEMA + (HEADERS_SCHEMA if options.has_headers else "")

    @worker.told_plainly()
    def reader(self, schema: StructType) -> BatchReader:
        """A batch query."""
        worker.freeze()
        return BatchReader(_parsed(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedReader:
        """A streaming query."""
        try:
            return StreamReader(_parsed(self.options, is_stream=True), schema)
        except ConfigFault as fault:
            return RefusedReader(fault)

    @worker.told_plainly()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from shmbroker.spark import producer_options, sink

        options = producer_options.parse(self.options, is_stream=False)
        return sink.BatchWriter(options, schema, overwrite)

    @worker.told_plainly()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A streaming write. Output mode update never comes here: Spark refuses it."""
        from shmbroker.spark import producer_options, sink

        options = producer_options.parse(self.options, is_stream=True)
        return sink.StreamWriter(options, schema, dict(self.options))


def _parsed(given: Mapping[str, str], is_stream: bool) -> Options:
    options = source_options.parse(given, is_stream)
    kind = "streaming" if is_stream else "batch"
    for name in source_options.ignored(given, is_stream):
        logger.warning("%s option ignored in this %s query", name, kind)
    return options
