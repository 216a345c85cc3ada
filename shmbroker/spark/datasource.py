"""The Python data source `shmbroker`: batch and streaming reads, with the columns of
Spark's Kafka source.

    driver   resolves offsets, gets end offsets and segment lists from the leaders, plans pieces
    task     maps its pieces of the log files, or fetches them, and decodes them into Arrow batches

The driver's part runs in a Python process of Spark's, so no state is shared with the program that
built the query. What it alone needs (`driver`) is imported where it plans: tasks start without, and
so does Spark's search for data sources. Rules:

* What a range of offsets yields never depends on when it is read: Spark writes the end of a
  micro-batch down before it reads it, and reads it again after a crash. So exactly-once sinks are.
* Nothing at or beyond the high watermark is read: ends are resolved first, then planned.
* What is asked for and no longer there is a DataLossFault unless failOnDataLoss is false.
* Committed offsets of a consumer group show how far a query is, and nobody starts from them: that
  they can't be committed is a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from shmbroker import clock
from shmbroker.client.reader.asking import LATEST, OFFSET_MAX, Ends, partition_text
from shmbroker.client.reader.planning import Piece
from shmbroker.errors import ConfigFault, Fault
from shmbroker.ids import random_uuid, uuid_text
from shmbroker.spark import options as source_options
from shmbroker.spark import worker
from shmbroker.spark.offsets import from_json, to_json
from shmbroker.spark.options import QUERY_ID, Options
from shmbroker.spark.pushdown import Bounds, bounds_of
from shmbroker.spark.reading import read, reading_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType

    from shmbroker.client.cluster import Topic
    from shmbroker.client.reader.broker_client import BrokerClient
    from shmbroker.client.reader.tasks import ReadPlan

logger = logging.getLogger("shmbroker.spark")

SCHEMA = (
    "key binary, value binary, topic string not null, partition int not null,"
    " offset bigint not null, timestamp timestamp not null, timestampType int not null"
)
"""Names and types are those of Spark's Kafka source. That source lets every column be null; of one
that is not, Spark doesn't ask for each cell whether it is."""
HEADERS_SCHEMA = ", headers array<struct<key string, value binary>>"

WAY = ":read"
"""Key of what a query reports as its latest offset, beside the topics: how it was read last."""


class Task(InputPartition):
    """What one Spark task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces


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
        options = _parsed(self.options, is_stream=False)
        return (PushdownBatchReader if options.has_pushdown else BatchReader)(options, schema)

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


class _Reads(worker.Shipped):
    """The task's side, the same for batch and stream; all that Spark sends to the tasks."""

    options: Options
    columns: tuple[str, ...]
    required: frozenset[str]
    """Those that the query's schema says to be NOT NULL; Spark wants the same of the batches."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's records, or what they are planned by, as Arrow batches."""
        worker.freeze()
        if not isinstance(partition, Task):
            return  # Spark's way to say that there is nothing to read
        reading = reading_of(self.options)
        if self.options.emits_ranges:
            from shmbroker.spark import ranges

            yield ranges.to_batch(partition.pieces, reading).select(self.columns)
            return
        for piece in partition.pieces:
            batches = read(piece, reading, self.columns)
            yield from _declared(batches, self.required) if self.required else batches


class BatchReader(_Reads, DataSourceReader):
    """A batch query: the range of every partition is fixed when it is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.columns, self.required = _columns(schema, options)
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
            return _tasks(driver.plan_tasks(client, options, topics, starts, ends))


class PushdownBatchReader(BatchReader):
    """One that Spark offers filters: apart, as Spark refuses it where pushing down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember what the filters spare; all of them stay with Spark."""
        self.bounds = bounds_of(filters)
        return filters


class StreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query: Spark asks for offsets, and for the tasks between two of them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.columns, self.required = _columns(schema, options)
        self._client: BrokerClient | None = None
        self._latest: dict[str, Any] | None = None  # as last seen, for the query's progress
        self._way: str | None = None
        self._target: Ends | None = None  # where an available-now query ends
        self._last_trigger_s: float | None = None
        self._committed: Ends = {}
        self._told: str | None = None  # why offsets could not be committed

    @worker.told_plainly()
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts."""
        from shmbroker.spark import driver

        client = self._connected()
        topics = driver.find_topics(client, self.options)
        wanted = driver.wanted_partitions(self.options, topics)
        starts = driver.resolve(client, self.options, topics, wanted, is_start=True)
        sentinels = {tp: offset for tp, offset in starts.items() if offset < 0}
        starts = starts | client.offsets(topics, sentinels)
        return to_json(starts, _ids(topics), random_uuid().hex()[:12])

    @worker.told_plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends: the high watermarks, as far as the limits allow."""
        from shmbroker.spark import driver

        client = self._connected()
        topics = driver.find_topics(client, self.options, is_new=False)
        self._commit(start, topics)  # all before it is written by now
        wanted = driver.wanted_partitions(self.options, topics)
        starts = self._starts(start, topics, wanted)
        ends = driver.find_ends(client, self.options, topics, starts)
        self._latest = to_json(ends, _ids(topics))
        if self._way is None and ends:  # Spark asks for it before the first one is planned
            self._way = driver.way_of(client, self.options, topics, min(ends))
        for topic_partition, end in ends.items():
            begun = starts[topic_partition]
            if end < begun:
                name = partition_text(topic_partition)
                self._lose(f"{name} ends at {end}, but it was read up to {begun}")
        if self._target is not None:
            ends = {
                tp: min(end, max(self._target.get(tp, 0), starts[tp])) for tp, end in ends.items()
            }
        # Trigger.Once asks for everything, whatever the limits
        if not isinstance(limit, ReadAllAvailable):
            if self._waits(starts, ends):
                return start
            limits = self.options
            if isinstance(limit, ReadMaxRows):
                limits = limits._replace(offsets_per_trigger_max=limit.max_rows)
            starts = driver.first_there(client, topics, starts, ends)
            ends = driver.within_limits(client, limits, topics, starts, ends)
        latest = to_json(ends, _ids(topics), start.get(QUERY_ID) or random_uuid().hex()[:12])
        return start if from_json(latest) == from_json(start) else latest

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits that are given: Spark knows no more than one, `latestOffset` all."""
        options = self.options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The high watermarks as last seen, and how the last micro-batch was planned to be read."""
        if self._latest is None or self._way is None:
            return self._latest
        return self._latest | {WAY: self._way}

    @worker.told_plainly()
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of an available-now query."""
        from shmbroker.spark import driver

        client = self._connected()
        topics = driver.find_topics(client, self.options, is_new=False)
        wanted = driver.wanted_partitions(self.options, topics)
        self._target = client.offsets(topics, dict.fromkeys(wanted, LATEST))

    @worker.told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch; what they yield is a function of these offsets alone."""
        from shmbroker.spark import driver

        client = self._connected()
        topics = driver.find_topics(client, self.options, is_new=False)
        ends, topic_ids = from_json(end)
        for name, topic_id in topic_ids.items():
            if name not in topics:
                self._lose(f"topic {name} was deleted; what was not read of it is lost")
            elif uuid_text(topics[name].topic_id) != topic_id:
                self._lose(f"topic {name} was deleted and made again; its old records are lost")
        same = {
            name: topic
            for name, topic in topics.items()
            if topic_ids.get(name, uuid_text(topic.topic_id)) == uuid_text(topic.topic_id)
        }
        ends = {
            tp: n for tp, n in ends.items() if tp[0] in same and tp[1] in same[tp[0]].partitions
        }
        starts = self._starts(start, same, ends)
        ends = {tp: end for tp, end in ends.items() if end > starts[tp]}
        plan = driver.plan_tasks(client, self.options, same, starts, ends)
        self._way = plan.way
        return _tasks(plan)

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch up to this end is written. (Spark says so one batch later, and never of
        the last one; so `latestOffset` does it, too.)"""
        from shmbroker.spark import driver

        self._commit(end, driver.find_topics(self._connected(), self.options, is_new=False))

    def stop(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
        worker.leave_if_jvm_has()

    def _connected(self) -> BrokerClient:
        from shmbroker.spark import driver

        if self._client is None:
            self._client = driver.connect(self.options)
        return self._client

    def _lose(self, text: str) -> None:
        from shmbroker.spark import driver

        driver.lose(self.options, text)

    def _waits(self, starts: Ends, ends: Ends) -> bool:
        """Whether there is too little to read yet; never for the first micro-batch, nor for the
        last one of an available-now query."""
        least = self.options.offsets_per_trigger_min
        if least is None or self._target is not None:
            return False
        now_s = clock.monotonic()
        delay_s = self.options.trigger_delay_ms_max / 1000
        is_time = self._last_trigger_s is None or now_s - self._last_trigger_s >= delay_s
        waiting = sum(max(0, end - starts[tp]) for tp, end in ends.items())
        if not is_time and waiting < least:
            return True
        self._last_trigger_s = now_s
        return False

    def _commit(self, document: dict[str, Any], topics: Mapping[str, Topic]) -> None:
        """Commit these offsets for the query's consumer group, so that every tool shows its lag."""
        options = self.options
        offsets, topic_ids = from_json(document)
        group_id = options.group_id
        if group_id is None and QUERY_ID in document:
            group_id = f"{options.group_id_prefix}-{document[QUERY_ID]}"
        there = {
            name
            for name, topic in topics.items()
            if uuid_text(topic.topic_id) == topic_ids.get(name)
        }
        changed = {
            tp: at for tp, at in offsets.items() if tp[0] in there and self._committed.get(tp) != at
        }
        if not options.commits_offsets or group_id is None or not changed:
            return
        try:
            self._connected().commit(group_id, changed)
        except Fault as fault:
            if str(fault) != self._told:
                self._told = str(fault)
                logger.warning("offsets of group %s can't be committed: %s", group_id, fault)
        else:
            self._committed |= changed

    def _starts(
        self, start: dict[str, Any], topics: Mapping[str, Topic], wanted: Iterable[tuple[str, int]]
    ) -> Ends:
        """Where to begin in each of these partitions: new ones from their first offset on."""
        wanted = list(wanted)
        starts, topic_ids = from_json(start)
        for name, topic_id in topic_ids.items():
            if name in topics and uuid_text(topics[name].topic_id) != topic_id:
                self._lose(f"topic {name} was deleted and made again; its old records are lost")
                starts = {tp: offset for tp, offset in starts.items() if tp[0] != name}
        gone = sorted(set(starts) - set(wanted))
        if gone:
            self._lose(
                f"partitions that were read are gone: {', '.join(map(partition_text, gone))}"
            )
        return {topic_partition: starts.get(topic_partition, 0) for topic_partition in wanted}


class RefusedReader(DataSourceStreamReader):
    """A streaming query with bad options. It raises their fault when it is first asked for
    something: raised before there is a reader, it would be hidden by an UnboundLocalError of
    Spark, which stops the reader in any case."""

    def __init__(self, fault: ConfigFault) -> None:
        self._fault = fault

    @worker.told_plainly()
    def initialOffset(self) -> dict[str, Any]:
        """Raise the fault; so do all the others."""
        raise self._fault

    @worker.told_plainly()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._fault

    @worker.told_plainly()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._fault

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._fault


def _ids(topics: Mapping[str, Topic]) -> dict[str, bytes]:
    return {name: topic.topic_id for name, topic in topics.items()}


def _tasks(plan: ReadPlan) -> list[InputPartition]:
    return [Task(pieces) for pieces in plan.tasks]


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
    since = dict.fromkeys(kept, 0)
    if bounds.timestamp_ms is not None:
        found = client.offsets(topics, dict.fromkeys(kept, bounds.timestamp_ms))
        since = {tp: OFFSET_MAX if at < 0 else at for tp, at in found.items()}
    starts = {
        tp: min(max(starts[tp], bounds.start_offset, since[tp]), max(ends[tp], starts[tp]))
        for tp in kept
    }
    return starts, {tp: max(starts[tp], min(ends[tp], bounds.end_offset)) for tp in kept}


# --- columns -------------------------------------------------------------------------------------


_MAY_BE_NULL = frozenset({"key", "value", "headers"})


def _declared(
    batches: Iterable[pa.RecordBatch], required: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    """The same columns, these of them declared to have no nulls."""
    import pyarrow as pa

    schema = None
    for batch in batches:
        if schema is None:
            fields = [field.with_nullable(field.name not in required) for field in batch.schema]
            schema = pa.schema(fields)
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _columns(schema: StructType, options: Options) -> tuple[tuple[str, ...], frozenset[str]]:
    """The columns to decode, all or those of a narrower schema that the query was given; which of
    them it declares NOT NULL."""
    if options.emits_ranges:
        return tuple(schema.fieldNames()), frozenset()
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DataType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    types: dict[str, DataType] = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
        "headers": ArrayType(header),
    }
    for field in schema.fields:
        if field.name not in types:
            raise ConfigFault(f"column {field.name} is none of {', '.join(types)}")
        if field.dataType != types[field.name]:
            raise ConfigFault(
                f"column {field.name} is of type {types[field.name].simpleString()}, not"
                f" {field.dataType.simpleString()}: cast it in the query"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise ConfigFault(f"column {field.name} may have nulls: declare it without NOT NULL")
    names = tuple(schema.fieldNames())
    if not names:
        raise ConfigFault("a schema without columns can't be read")
    return names, frozenset(field.name for field in schema.fields if not field.nullable)
