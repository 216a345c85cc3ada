"""The Python data source `shmbroker`: batch and streaming reads, in Spark's Kafka schema.

    driver   resolves offsets, gets end offsets and segment lists from the leaders, plans pieces
    task     maps its pieces of the log files, decodes them into Arrow batches

The driver's part runs in a Python process of Spark's, so no state is shared with the program that
built the query. Offsets are JSON, {"topic": {"0": 23}} with the next offset to read, as Spark's
Kafka source writes them, and the topics' ids under TOPIC_IDS to notice a topic that was deleted
and made again. Rules:

* What a range of offsets yields never depends on when it is read: Spark writes the end of a
  micro-batch down before it reads it, and reads it again after a crash. So exactly-once sinks are.
* Nothing at or beyond the high watermark is read: ends are resolved first, then planned.
* What is asked for and no longer there is a DataLossFault unless failOnDataLoss is false.
* Stream offsets are built in one order, as Spark compares their JSON text.
"""

import gc
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from shmbroker.errors import ConfigFault, CorruptFault
from shmbroker.ids import uuid_text
from shmbroker.spark import options as source_options
from shmbroker.spark.broker_client import BrokerClient, PartitionFiles, Topic, TopicPartition
from shmbroker.spark.faults import DataLossFault
from shmbroker.spark.options import EARLIEST, LATEST, TOPIC_IDS, Options, Position
from shmbroker.spark.planning import Piece, Range, plan
from shmbroker.spark.segment_files import GoneFault, SegmentFiles, map_piece

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger("shmbroker.spark")

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int"
)
HEADERS_SCHEMA = ", headers array<struct<key string, value binary>>"

PLAN_TRIES = 3
"""Retention may delete a segment between the list and the look at it; then a new list is asked."""

Ends = dict[TopicPartition, int]


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

    def schema(self) -> str:
        """Spark's Kafka schema."""
        return SCHEMA + (HEADERS_SCHEMA if source_options.has_headers(self.options) else "")

    def reader(self, schema: "StructType") -> "BatchReader":
        """A batch query."""
        return BatchReader(source_options.parse(self.options, is_stream=False), schema)

    def streamReader(self, schema: "StructType") -> "StreamReader":
        """A streaming query."""
        return StreamReader(source_options.parse(self.options, is_stream=True), schema)


class _Reads:
    """The task's side, the same for batch and stream; all that Spark sends to the tasks."""

    columns: tuple[str, ...]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield a task's records as Arrow batches."""
        from shmbroker.spark.decode import decode

        _freeze_once()
        if not isinstance(partition, Task):
            return  # Spark's way to say that there is nothing to read
        for piece in partition.pieces:
            try:
                yield from decode(
                    map_piece(piece),
                    piece.start_offset,
                    piece.end_offset,
                    self.columns,
                    piece.topic,
                    piece.partition,
                )
            except CorruptFault as fault:
                raise CorruptFault(f"{piece.path} from {piece.low}: {fault}") from fault


_is_frozen = False


def _freeze_once() -> None:
    """Take what is imported out of garbage collection.

    Spark's worker collects garbage after every task; with pyarrow loaded that costs 25 to 40 ms.
    """
    global _is_frozen
    if not _is_frozen:
        _is_frozen = True
        gc.collect()
        gc.freeze()


class BatchReader(_Reads, DataSourceReader):
    """A batch query: the range of every partition is fixed when it is planned."""

    def __init__(self, options: Options, schema: "StructType") -> None:
        self.options = options
        self.columns = _columns(schema)

    def partitions(self) -> list[InputPartition]:
        """The tasks; they are planned from one list of files per leader."""
        options = self.options
        with _client(options) as client:
            topics = _topics(client, options)
            wanted = _wanted(options, topics)
            starts = _resolve(client, options, topics, wanted, options.start, "starting")
            ends = _resolve(client, options, topics, wanted, options.end, "ending")
            return _plan(client, options, topics, starts, ends)


class StreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query: Spark asks for offsets, and for the tasks between two of them."""

    def __init__(self, options: Options, schema: "StructType") -> None:
        self.options = options
        self.columns = _columns(schema)
        self._client: BrokerClient | None = None
        self._latest: dict[str, Any] | None = None  # as last seen, for the query's progress
        self._target: Ends | None = None  # where an available-now query ends

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts."""
        client = self._connected()
        topics = _topics(client, self.options)
        wanted = _wanted(self.options, topics)
        starts = _resolve(client, self.options, topics, wanted, self.options.start, "starting")
        sentinels = {tp: offset for tp, offset in starts.items() if offset < 0}
        return to_json(starts | client.offsets(topics, sentinels), topics)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends: the high watermarks, as far as the limit allows."""
        client = self._connected()
        topics = _topics(client, self.options, is_new=False)
        wanted = _wanted(self.options, topics)
        ends = client.offsets(topics, dict.fromkeys(wanted, LATEST))
        self._latest = to_json(ends, topics)
        starts = self._starts(start, topics, ends)
        for topic_partition, end in ends.items():
            begun = starts[topic_partition]
            if end < begun:
                name = _text(topic_partition)
                self._lose(f"{name} ends at {end}, but it was read up to {begun}")
        if self._target is not None:
            ends = {
                tp: min(end, max(self._target.get(tp, 0), starts[tp])) for tp, end in ends.items()
            }
        if isinstance(limit, ReadMaxRows):
            ends = within_limit(starts, ends, limit.max_rows)
        latest = to_json(ends, topics)
        return start if latest == start else latest

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, if given."""
        count = self.options.offsets_per_trigger_max
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The high watermarks as last seen."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of an available-now query."""
        client = self._connected()
        topics = _topics(client, self.options, is_new=False)
        self._target = client.offsets(topics, dict.fromkeys(_wanted(self.options, topics), LATEST))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch; what they yield is a function of these offsets alone."""
        client = self._connected()
        topics = _topics(client, self.options, is_new=False)
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
        ends = {tp: n for tp, n in ends.items() if tp[0] in same and tp[1] in same[tp[0]].leaders}
        starts = self._starts(start, same, ends)
        ends = {tp: end for tp, end in ends.items() if end > starts[tp]}
        return _plan(client, self.options, same, starts, ends)

    def stop(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def _connected(self) -> BrokerClient:
        if self._client is None:
            self._client = _client(self.options)
        return self._client

    def _lose(self, text: str) -> None:
        _lose(self.options, text)

    def _starts(self, start: dict[str, Any], topics: Mapping[str, Topic], ends: Ends) -> Ends:
        """Where to begin in each partition of `ends`: new partitions from their first offset on."""
        starts, topic_ids = from_json(start)
        for name, topic_id in topic_ids.items():
            if name in topics and uuid_text(topics[name].topic_id) != topic_id:
                self._lose(f"topic {name} was deleted and made again; its old records are lost")
                starts = {tp: offset for tp, offset in starts.items() if tp[0] != name}
        gone = sorted(set(starts) - set(ends))
        if gone:
            self._lose(f"partitions that were read are gone: {', '.join(map(_text, gone))}")
        return {topic_partition: starts.get(topic_partition, 0) for topic_partition in ends}


# --- offsets -------------------------------------------------------------------------------------


def to_json(offsets: Ends, topics: Mapping[str, Topic]) -> dict[str, Any]:
    """Offsets as a checkpoint keeps them; always in the same order."""
    document: dict[str, Any] = {}
    for name, partition in sorted(offsets):
        document.setdefault(name, {})[str(partition)] = offsets[name, partition]
    document[TOPIC_IDS] = {name: uuid_text(topics[name].topic_id) for name in sorted(document)}
    return document


def from_json(document: Mapping[str, Any]) -> tuple[Ends, dict[str, str]]:
    """The offsets and topic ids of a checkpoint's document."""
    offsets = {
        (name, int(partition)): offset
        for name, partitions in document.items()
        if name != TOPIC_IDS
        for partition, offset in partitions.items()
    }
    return offsets, dict(document.get(TOPIC_IDS, {}))


def within_limit(starts: Ends, ends: Ends, records_max: int) -> Ends:
    """Ends that leave about `records_max` records, shared out by what each partition has waiting.

    As Spark's Kafka source does it: a share below one record is one record, so that a small
    partition is not starved; every other share is rounded down.
    """
    waiting = {tp: max(0, end - starts[tp]) for tp, end in ends.items()}
    total = sum(waiting.values())
    if total <= records_max:
        return ends
    return {
        tp: min(end, starts[tp] + max(records_max * waiting[tp] // total, waiting[tp] > 0))
        for tp, end in ends.items()
    }


def _resolve(
    client: BrokerClient,
    options: Options,
    topics: Mapping[str, Topic],
    wanted: Sequence[TopicPartition],
    position: Position,
    which: str,
) -> Ends:
    """The offset of a starting or ending option for each partition; EARLIEST and LATEST remain."""
    if position.each:
        _compare_ids(options, position, topics)
        named = {
            (t, p): n for t, partitions in position.each.items() for p, n in partitions.items()
        }
        if set(named) != set(wanted):
            missing = ", ".join(map(_text, sorted(set(wanted) - set(named))))
            unknown = ", ".join(map(_text, sorted(set(named) - set(wanted))))
            raise ConfigFault(
                f"{which} offsets must name every partition that is read and no other; missing:"
                f" {missing or 'none'}; not read: {unknown or 'none'}"
            )
    else:
        assert position.everywhere is not None
        named = dict.fromkeys(wanted, position.everywhere)
    if not position.is_timestamp:
        return named
    found = client.offsets(topics, named)
    late = [topic_partition for topic_partition, offset in found.items() if offset < 0]
    if late and which == "starting" and not options.is_lenient_timestamp:
        raise ConfigFault(
            "no record is as late as the starting timestamp in "
            + ", ".join(map(_text, sorted(late)))
            + "; startingOffsetsByTimestampStrategy=latest starts at the end there"
        )
    return found | dict.fromkeys(late, LATEST)


def _compare_ids(options: Options, position: Position, topics: Mapping[str, Topic]) -> None:
    for name, topic_id in position.topic_ids.items():
        if name in topics and uuid_text(topics[name].topic_id) != topic_id:
            _lose(options, f"topic {name} was deleted and made again since these offsets were kept")


# --- planning ------------------------------------------------------------------------------------


def _client(options: Options) -> BrokerClient:
    return BrokerClient(options.bootstrap_servers, options.data_directory)


def _topics(client: BrokerClient, options: Options, is_new: bool = True) -> dict[str, Topic]:
    """The topics that the query reads; with `is_new` those it names must be there."""
    topics = client.topics(options.names)
    missing = sorted(set(options.names or ()) - set(topics))
    if missing and is_new:
        raise ConfigFault(f"there is no topic {', '.join(missing)}")
    return topics


def _wanted(options: Options, topics: Mapping[str, Topic]) -> list[TopicPartition]:
    wanted = [
        (name, partition)
        for name, topic in sorted(topics.items())
        for partition in topic.leaders
        if options.wants(name, partition)
    ]
    for name, partitions in (options.assigned or {}).items():
        missing = set(partitions) - set(topics[name].leaders) if name in topics else set()
        if missing:
            raise ConfigFault(f"topic {name} has no partition {min(missing)}")
    return wanted


def _plan(
    client: BrokerClient,
    options: Options,
    topics: Mapping[str, Topic],
    starts: Ends,
    ends: Ends,
) -> list[InputPartition]:
    """Tasks for these ranges. Files that vanish meanwhile are listed once more."""
    asked = [tp for tp in sorted(ends) if starts[tp] != ends[tp]]
    for tries_left in reversed(range(PLAN_TRIES)):
        files = client.files(topics, asked) if asked else {}
        ranges = [_range(options, files[tp], starts[tp], ends[tp]) for tp in asked]
        try:
            with SegmentFiles() as looked_at:
                tasks = plan(
                    ranges,
                    looked_at.index_of,
                    looked_at.header_at,
                    os.cpu_count() or 1,
                    options.tasks_min,
                )
        except GoneFault:
            if not tries_left:
                raise
        else:
            return [Task(pieces) for pieces in tasks]
    raise AssertionError


def _range(options: Options, files: PartitionFiles, start: int, end: int) -> Range:
    """What is to be read of a partition; tells of what is not there any more."""
    name = _text((files.topic, files.partition))
    first, watermark = files.log_start_offset, files.high_watermark
    start = {EARLIEST: first, LATEST: watermark}.get(start, start)
    end = {EARLIEST: first, LATEST: watermark}.get(end, end)
    if start > end:
        raise ConfigFault(f"{name}: the starting offset {start} is behind the ending offset {end}")
    if end > watermark:
        _lose(options, f"offsets {max(start, watermark)} to {end - 1} of {name} are not there")
        start, end = min(start, watermark), watermark
    if start < first:
        last = min(end, first) - 1
        if last >= start:
            _lose(options, f"offsets {start} to {last} of {name} were deleted by retention")
        start, end = first, max(end, first)
    return Range(files.topic, files.partition, files.topic_id, start, end, files.segments)


def _lose(options: Options, text: str) -> None:
    if options.fails_on_data_loss:
        raise DataLossFault(f"{text} (failOnDataLoss=false goes on without)")
    logger.warning("%s", text)


def _text(topic_partition: TopicPartition) -> str:
    return f"{topic_partition[0]}-{topic_partition[1]}"


# --- columns -------------------------------------------------------------------------------------


def _columns(schema: "StructType") -> tuple[str, ...]:
    """The columns to decode: all, or those of a narrower schema that the query was given."""
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
    names = tuple(schema.fieldNames())
    if not names:
        raise ConfigFault("a schema without columns can't be read")
    return names
