"""Batch and streaming writes: rows to topics, by the columns of Spark's own Kafka sink.

    column      type                                          rule
    value       string or binary                              required
    key         string or binary                              null without
    topic       string                                        required unless the option is given,
                                                              which wins
    partition   int                                           null: by the key, else by the value
    headers     array<struct<key: string, value: binary>>
    timestamp   timestamp, or seconds as double               null: now

Other columns are left out. The driver checks columns and options, each task has a producer.

Exactly once
   A task's producer id is made from what Spark gives to a task again when it repeats it:

       streaming   (query id, task), the epoch is the batch id
       batch       (an id of this write, task); with txnAppId (that, task), the epoch is txnVersion

   and its records are numbered from 0 in each partition. Before it writes to a topic, a task asks
   how far its producer id has come there; normally nowhere. Otherwise it is a repetition, of a
   task or of a whole micro-batch: it reads back what is there, leaves out as many equal rows, and
   goes on (`producer.written`). Two attempts at the same time exclude each other by the sequence
   that both would use next; one of them fails, and Spark repeats it. For that a row has to go to
   the same partition in each attempt: one without a key by its value, not by lot.

   It holds if the repeated task has the same rows, in whatever order, as the first time; and as
   long as brokers remember the producer id (a day). Rows that differ (rand(), a changed program,
   another split into tasks) are written too: then it is at least once, with a warning. So are, of
   equal rows without a key, those with a partition of their own, if others of them have none.

   Two attempts would not notice each other if their batches had the same first sequence and the
   same count with other rows; so each attempt has a batch size of its own by lot.

Readers see records as soon as they are written, not when the micro-batch is committed.

With exactlyOnce=transactions they see a whole micro-batch, or batch write, or nothing of it:
`transactions`. There the name and version that are told above are those of a transaction.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from shmbroker.client.faults import DeniedFault
from shmbroker.errors import ConfigFault
from shmbroker.ids import random_uuid, uuid_text
from shmbroker.spark import worker
from shmbroker.spark.producer_options import Sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from shmbroker.client.producer.delivery import ProducerIdentity
    from shmbroker.client.producer.producer import Producer
    from shmbroker.client.producer.written import Stored
    from shmbroker.spark.transactions.driver import KeeperRun

logger = logging.getLogger("shmbroker.spark")

VERSIONS = 1 << 14
"""Epochs of one producer id; an epoch has 15 bits, and a batch id may have more."""

_OWN_IDS = 1 << 62
"""Producer ids that clusters hand out begin at 0 and never come this far."""

_BATCH_BYTES = 512 << 10
_LINGER_MS = 1000
"""A task gives its rows as fast as they are taken and flushes at its end, so a batch is worth
waiting for: what a batch costs the broker, and what a request does, is less for each row."""
_BLOCK_MS = 60_000
"""Kafka's default of max.block.ms: how long a task waits for what it has to know of a topic."""

NEEDS_READ = (
    "; exactlyOnce=true looks for what an earlier attempt has written, so it needs the right to"
    " read the topic, too, exactlyOnce=false only that to write"
)
"""Advice to who may not read what he writes."""


class Writing(NamedTuple):
    """What one write is by: `name` and `version` of the series it belongs to."""

    sink: Sink
    columns: dict[str, int]
    name: str
    version: int
    run: KeeperRun | None = None
    """The run of a write with transactions; None without them."""


class Committed(WriterCommitMessage):
    """What a task has written, and left out as it was there already."""

    def __init__(self, records: int, left_out: int) -> None:
        self.records = records
        self.left_out = left_out


class InTransaction(WriterCommitMessage):
    """What a task has written in a transaction, and which one that is: Spark has a stream's
    micro-batch committed by a writer that knows nothing else of it."""

    def __init__(self, task: int, records: int, name: str, run: int) -> None:
        self.task = task
        self.records = records
        self.name = name
        self.run = run


class BatchWriter(worker.Shipped, DataSourceArrowWriter):
    """`df.write`: rows are there when the write returns."""

    def __init__(self, sink: Sink, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigFault(
                "Save mode Overwrite not allowed for Kafka. Allowed save mode is Append:"
                ' give mode("append")'
            )
        name = uuid_text(random_uuid()) if sink.app_id is None else f"app:{sink.app_id}"
        columns = _columns(schema, sink.topic)
        self.writing = Writing(sink, columns, name, sink.app_version, _run(sink, {}))

    @worker.told_plainly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's rows."""
        return write_rows(iterator, self.writing)

    @worker.told_plainly()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written."""
        _commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed for good, or the commit has."""
        run = self.writing.run
        if run is not None:
            from shmbroker.spark.transactions import driver

            driver.abort(_series_name(self.writing.name), run.number, self.writing.version, "")


class StreamWriter(worker.Shipped, DataSourceStreamArrowWriter):
    """`df.writeStream`: rows are there when their micro-batch is committed."""

    def __init__(
        self, sink: Sink, schema: StructType, options: Mapping[str, str] | None = None
    ) -> None:
        columns = _columns(schema, sink.topic)
        self.writing = Writing(sink, columns, "", 0, _run(sink, options or {}))

    @worker.told_plainly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's rows of one micro-batch."""
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise ConfigFault(
                "Spark does not tell which micro-batch this is: give exactlyOnce=false"
            )
        return write_rows(
            iterator, self.writing._replace(name=f"query:{query}", version=int(batch))
        )

    @worker.told_plainly()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of the micro-batch have written."""
        _commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed for good, or the commit has."""
        run = self.writing.run  # of another writer than the tasks had
        if run is not None:
            from shmbroker.spark.transactions import driver

            known = [each for each in messages if isinstance(each, InTransaction)]
            name, number = (known[0].name, known[0].run) if known else (None, 0)
            driver.abort(name, number, batchId, run.label)


# --- the driver ----------------------------------------------------------------------------------


def _run(sink: Sink, options: Mapping[str, str]) -> KeeperRun | None:
    """A run of a write in a transaction; None without."""
    if not sink.is_transactional:
        return None
    from shmbroker.spark.transactions import driver

    return driver.begin(
        sink.bootstrap_servers, sink.driver_host, options, sink.producer["security"]
    )


def _series_name(name: str) -> str:
    """The name as a part of a transactional id and of a group's name."""
    return name.replace(":", "-")


def _commit(messages: Sequence[WriterCommitMessage | None]) -> None:
    """End the transaction, if there is one."""
    tasks = [each for each in messages if isinstance(each, InTransaction)]
    if tasks:
        from shmbroker.spark.transactions import driver

        driver.commit(tasks[0].name, tasks[0].run, sorted(each.task for each in tasks))


def _columns(schema: StructType, topic: str | None) -> dict[str, int]:
    """Where the sink's columns are; the rules and texts of Spark's Kafka sink."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DoubleType,
        IntegerType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    content: list[DataType] = [StringType(), BinaryType()]
    types: dict[str, list[DataType]] = {
        "topic": [StringType()],
        "key": content,
        "value": content,
        "headers": [ArrayType(header)],
        "partition": [IntegerType()],
        "timestamp": [DoubleType(), TimestampType()],
    }
    places: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        if field.name in types:
            places.setdefault(field.name, place)
    for name, allowed in types.items():
        if name == "topic" and topic is not None:
            places.pop(name, None)
            continue
        if name not in places:
            if name == "topic":
                raise ConfigFault(
                    "topic option required when no 'topic' attribute is present. Use the topic"
                    " option for setting a topic."
                )
            if name == "value":
                raise ConfigFault("Required attribute 'value' not found")
            continue
        found = schema.fields[places[name]].dataType.simpleString()
        texts = [each.simpleString() for each in allowed]
        if found not in texts:
            raise ConfigFault(
                f"{name} attribute unsupported type {found}. {name} must be a(n)"
                f" {' or '.join(texts)}"
            )
    return places


# --- a task --------------------------------------------------------------------------------------


def identity_of(name: str, version: int, task: int) -> ProducerIdentity:
    """The producer id and epoch of a task in one write of a series."""
    from shmbroker.client.producer.delivery import ProducerIdentity

    text = f"{name}/{version // VERSIONS}/{task}"
    digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
    return ProducerIdentity(_OWN_IDS | digest % _OWN_IDS, version % VERSIONS)


def write_rows(batches: Iterator[pa.RecordBatch], writing: Writing) -> WriterCommitMessage:
    """A task's rows, as `writing.columns` says where they are, into their topics."""
    from shmbroker.client.producer.producer import Producer

    worker.freeze()
    sink = writing.sink
    arguments = {"batch_size": _BATCH_BYTES, "linger_ms": _LINGER_MS} | sink.producer
    if writing.run is not None:
        return _write_in_transaction(batches, writing, writing.run, arguments)
    identity = None
    if sink.is_exactly_once:
        task = TaskContext.get()
        assert task is not None
        identity = identity_of(writing.name, writing.version, task.partitionId())
        size = arguments["batch_size"]
        lot = int.from_bytes(os.urandom(4), "big")
        arguments["batch_size"] = size - lot % max(size // 4, 1)
    with Producer(sink.bootstrap_servers, identity=identity, **arguments) as producer:
        task_writer = _TaskWriter(producer, writing, identity)
        for batch in batches:
            task_writer.write(batch)
        producer.flush()
        return task_writer.committed()


def _write_in_transaction(
    batches: Iterator[pa.RecordBatch], writing: Writing, run: KeeperRun, arguments: dict[str, Any]
) -> InTransaction:
    """Write batches in a transaction, by the leases of the keeper."""
    from shmbroker.spark.transactions import sending
    from shmbroker.spark.transactions.series import TransactionSeries

    sink = writing.sink
    task = TaskContext.get()
    assert task is not None
    series = TransactionSeries(
        _series_name(writing.name),
        sink.bootstrap_servers,
        arguments["client_id"],
        sink.transaction_ms,
        arguments.get("max_block_ms", _BLOCK_MS),
        is_remembered=writing.name.startswith(("query:", "app:")),
    )
    attempt = sending.Attempt(
        task.partitionId(),
        task.taskAttemptId(),
        writing.version,
        # it is the query's run that Spark groups a stream's jobs by
        task.getLocalProperty("spark.jobGroup.id") or "",
    )
    rows = (_taken(batch, writing.columns) for batch in batches if batch.num_rows)
    outcome = sending.write(rows, sink.topic, attempt, run, series, arguments)
    if outcome.is_repeated:
        logger.warning("version %d of %s is committed already", writing.version, writing.name)
    return InTransaction(attempt.task, outcome.records, series.name, run.number)


class _TaskWriter:
    """Hands a task's rows to its producer, without those that are there already."""

    def __init__(
        self, producer: Producer, writing: Writing, identity: ProducerIdentity | None
    ) -> None:
        self._producer = producer
        self._writing = writing
        self._identity = identity
        self._stored: dict[str, Stored] = {}
        self._left_out = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch of rows; `producer.columns` cuts it where it must."""
        if not batch.num_rows:
            return
        rows = _taken(batch, self._writing.columns)
        topic = self._writing.sink.topic
        if self._identity is None:
            self._producer.send(rows, topic)
            return
        import pyarrow.compute as pc

        names = [topic] if topic is not None else _topics(rows.column("topic"))
        for name in names:
            own = rows if len(names) == 1 else rows.filter(pc.equal(rows.column("topic"), name))
            if name not in self._stored:
                self._ask(name, self._identity)
            count = len(self._producer.cluster.topics[name].leaders)
            if self._stored[name].records:
                own = self._left(name, own, count)
            self._producer.send(_placed(own, count), name)

    def committed(self) -> Committed:
        """What has become of the rows."""
        more = sum(stored.records for stored in self._stored.values())
        if more:
            logger.warning(
                "%d records that an earlier attempt has written are not among the rows of this one:"
                " the query gives other rows when it is repeated, some are there more than once",
                more,
            )
        return Committed(self._producer.written().records, self._left_out)

    def _ask(self, topic: str, identity: ProducerIdentity) -> None:
        from shmbroker.client.producer.written import stored_by

        wait_s = self._writing.sink.producer.get("max_block_ms", _BLOCK_MS) / 1000
        try:
            stored = stored_by(identity, self._producer.cluster, topic, wait_s)
        except DeniedFault as fault:
            raise DeniedFault(str(fault), NEEDS_READ) from None
        self._stored[topic] = stored
        if stored.sequences:
            logger.warning(
                "%d records of an earlier attempt are in topic %s: their rows are left out",
                stored.records,
                topic,
            )
            self._producer.go_on(topic, stored.sequences)

    def _left(self, topic: str, rows: pa.RecordBatch, count: int) -> pa.RecordBatch:
        """The rows that are not there; the topic has `count` partitions."""
        import pyarrow as pa

        stored = self._stored[topic]
        nothing: list[Any] = [None] * rows.num_rows
        held = {name: rows.column(name).to_pylist() for name in rows.schema.names}
        left = []
        for key, value, headers, partition, place in zip(
            held.get("key", nothing),
            held["value"],
            held.get("headers", nothing),
            held.get("partition", nothing),
            _places(rows, count).to_pylist(),
            strict=True,
        ):
            pairs = [(pair["key"].encode(), pair["value"]) for pair in headers or ()]
            own = -1 if partition is None else partition
            left.append(not stored.take(_bytes(key), _bytes(value), pairs, own, place))
        self._left_out += left.count(False)
        return rows.filter(pa.array(left))


def _places(rows: pa.RecordBatch, count: int) -> pa.Array:
    """The partition of each row, of `count`: its own, that of its key, or that of its value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from shmbroker.client.producer.placement import of_keys

    said = rows.column("value").cast(pa.binary())
    if "key" in rows.schema.names:
        said = pc.coalesce(rows.column("key").cast(pa.binary()), said)
    places = pa.array(of_keys(pc.fill_null(said, b""), count))
    own = rows.column("partition") if "partition" in rows.schema.names else None
    return places if own is None else pc.coalesce(own, places)


def _placed(rows: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """The rows, with a partition for each that has no key: the producer would draw it by lot."""
    import pyarrow as pa

    if "key" in rows.schema.names and not rows.column("key").null_count:
        return rows
    columns = {name: rows.column(name) for name in rows.schema.names}
    return pa.record_batch(columns | {"partition": _places(rows, count)})


def _taken(batch: pa.RecordBatch, columns: dict[str, int]) -> pa.RecordBatch:
    """The sink's columns, as the producer takes them."""
    import pyarrow as pa

    return pa.record_batch(
        {name: _ready(name, batch.column(place)) for name, place in columns.items()}
    )


def _ready(name: str, column: pa.Array) -> pa.Array:
    """A column as the producer takes it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name == "topic" and column.null_count:
        raise ConfigFault(
            "null topic present in the data. Use the topic option for setting a default topic."
        )
    if name == "timestamp" and pa.types.is_floating(column.type):
        try:
            return pc.cast(pc.floor(pc.multiply(column, 1000.0)), pa.int64())
        except pa.ArrowInvalid:
            raise ConfigFault("column timestamp holds a number that is no time") from None
    return column


def _topics(column: pa.Array) -> list[str]:
    import pyarrow.compute as pc

    return [name.as_py() for name in pc.unique(column)]


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
