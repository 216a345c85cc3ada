"""The data source that an ingest writes by: planned ranges come in, files come out.

What Spark hands to a task are the rows of `emit=ranges`, a few numbers for some 100 MB of records.
The task reads the records, makes columns of them and writes files by pyarrow, all in the Python
worker: no record crosses a socket, and Spark's own writer, five times as slow, has nothing to do.

The task's files are temporary; the driver commits them (`ingest.files`). Into Delta Lake it adds
them to the table's log in one commit, which carries the micro-batch's number as the ingest's
application transaction, so that a repeated one adds nothing. Dead letters into a topic are written
before that, by the sink for topics, which leaves out what a repeated task has written already.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from shmbroker.client.reader.arrow_columns import COLUMNS, arrow_schema
from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import Reading
from shmbroker.errors import Fault
from shmbroker.ids import random_uuid
from shmbroker.spark import worker
from shmbroker.spark.ingest import files, values
from shmbroker.spark.ingest.plan import (
    DELTA,
    JSON,
    RAW_COLUMNS,
    IngestPlan,
    cluster_options,
    from_json,
)
from shmbroker.spark.ranges import pieces_of
from shmbroker.spark.reading import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "shmbroker-ingest"

GROUP_ROWS = 1 << 18
GROUP_BYTES = 32 << 20
"""Rows wait until so many of them make a row group of Parquet."""

WAITING_BYTES_MAX = 256 << 20
"""Over all partitions of the files; then all are written out."""

OPEN_MAX = 200
"""Files that a task writes at a time; then all are closed."""

DEAD_LETTER_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", COLUMNS["headers"]),
        ("reason", pa.string()),
    ]
)

HeadersOf = Callable[[pa.RecordBatch], pa.Array]
"""The headers of some rows of a batch."""


class BadRecordFault(Fault):
    """A value is not what the schema says, and there is no place for dead letters."""


class TaskDone(WriterCommitMessage):
    """What a task has written; `dead` are its files of dead letters."""

    def __init__(
        self, written: list[files.Written], dead: list[files.Written], counts: dict[str, int]
    ) -> None:
        self.written = written
        self.dead = dead
        self.counts = counts


class IngestDataSource(DataSource):
    """`format("shmbroker-ingest")`, with the option `plan`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> IngestWriter:
        """The only thing that it does."""
        return IngestWriter(from_json(self.options["plan"]))


class IngestWriter(worker.Shipped, DataSourceStreamArrowWriter):
    """A micro-batch: tasks write, the driver commits."""

    def __init__(self, plan: IngestPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's ranges into files."""
        worker.freeze()
        task = TaskContext.get()
        assert task is not None
        batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
        return TaskWriter(self.plan, batch, task.partitionId()).run(records_of(pieces_of(iterator)))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Make the micro-batch's files those of the table."""
        commit_batch(self.plan, batchId, [message for message in messages if message is not None])

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Drop what the tasks that were done have written."""
        for message in messages:
            if message is not None:
                for file in message.written + message.dead:
                    try:
                        os.unlink(file.temporary)
                    except FileNotFoundError:
                        pass


def commit_batch(
    plan: IngestPlan,
    batch: int,
    messages: Sequence[TaskDone],
    letters: Sequence[tuple[int, int]] | None = None,
) -> None:
    """Commit what the tasks of a micro-batch have written; nothing if it was done before the
    settings were changed."""
    if batch < plan.since:
        return
    with files.only_one(plan.path, plan.ingest_id):
        _commit_batch(plan, batch, messages, letters)


def _commit_batch(
    plan: IngestPlan,
    batch: int,
    messages: Sequence[TaskDone],
    letters: Sequence[tuple[int, int]] | None = None,
) -> None:
    counts: dict[str, int] = {}
    for message in messages:
        for name, count in message.counts.items():
            counts[name] = counts.get(name, 0) + count
    written = [file for message in messages for file in message.written]
    dead = [file for message in messages for file in message.dead]
    if plan.dead_letter_path:
        # first, as the document of the table's files decides what is counted
        path = files.document_path(plan.dead_letter_path, plan.ingest_id, batch)
        files.commit(path, dead, {})
    if written:
        files.note_writer(plan.path, plan.ingest_id, plan.topic, plan.checkpoint)
    path = files.document_path(plan.path, plan.ingest_id, batch)
    files.commit(path, written, counts | {"files": len(written)}, letters)
    if plan.format == DELTA:
        from shmbroker.spark.ingest.delta import add_to_table

        # of the document: after a crash these are the files that were renamed
        add_to_table(plan, batch, files.read_document(path)[0])


# --- a task --------------------------------------------------------------------------------------


def records_of(
    pieces: Iterable[tuple[Piece, Reading]],
) -> Iterator[tuple[pa.RecordBatch, HeadersOf]]:
    """Yield the records of these pieces, each batch with what finds the headers of its rows."""
    for piece, reading in pieces:
        for batch in read(piece, reading, RAW_COLUMNS):
            yield batch, partial(headers_of, piece, reading)


def headers_of(piece: Piece, reading: Reading, records: pa.RecordBatch) -> pa.Array:
    """The headers of some records of the piece, at least one. They are read once more: headers make
    decoding slow, and few records turn out to be bad."""
    offsets = records.column("offset")
    start_offset, end_offset = offsets[0].as_py(), offsets[-1].as_py() + 1
    part = piece._replace(start_offset=start_offset, end_offset=end_offset)
    columns = ("offset", "headers")
    found = pa.Table.from_batches(read(part, reading, columns), arrow_schema(columns))
    places = pc.index_in(offsets, found["offset"])
    return found["headers"].combine_chunks().take(places)


class TaskWriter:
    """One attempt of one task."""

    def __init__(self, plan: IngestPlan, batch: int, task: int) -> None:
        self.plan = plan
        self.batch = batch
        self.task = task
        self.attempt = random_uuid().hex()[:12]
        self.rows_in = 0
        self.bytes_in = 0
        self.skipped = 0
        self.dead: list[pa.RecordBatch] = []
        schema = plan.arrow_schema()
        self.schema = pa.schema([f for f in schema if f.name not in plan.partition_by])
        self.rows_schema = schema
        self.decode = (
            None
            if plan.values == values.RAW
            else values.decoder(plan.values, plan.schema, plan.delimiter)
        )

    def run(self, records: Iterator[tuple[pa.RecordBatch, HeadersOf]]) -> TaskDone:
        """All records of the task into temporary files; none if its micro-batch was done before the
        settings were changed."""
        if self.batch < self.plan.since:
            return TaskDone([], [], {})
        out = FileSet(self, self.plan.path, self.schema, self.plan.format)
        try:
            for batch, headers_of_rows in records:
                self.rows_in += batch.num_rows
                self.bytes_in += batch.nbytes
                rows = self._rows(batch, headers_of_rows)
                if self.plan.partition_by:
                    for folder, part in _split(rows, self.plan.partition_by):
                        out.add(folder, part.select(self.schema.names))
                elif rows.num_rows:
                    out.add({}, rows)
            written = out.close()
        except BaseException:
            out.drop()
            raise
        letters = sum(batch.num_rows for batch in self.dead)
        counts = {
            "records": self.rows_in,
            "rows": self.rows_in - letters - self.skipped,
            "dead_letters": letters,
            "skipped": self.skipped,
            "bytes_in": self.bytes_in,
            "bytes_out": sum(file.size for file in written),
        }
        return TaskDone(written, self._bury(), counts)

    def _rows(self, records: pa.RecordBatch, headers_of_rows: HeadersOf) -> pa.RecordBatch:
        """The columns of the records' values; bad ones are put aside."""
        if self.decode is None:
            return records
        columns, bad = self.decode(records.column("value"))
        if bad:
            places = sorted(bad)
            reasons = [bad[place] for place in places]
            self.put_aside(records.take(pa.array(places)), reasons, headers_of_rows)
            good = np.ones(records.num_rows, bool)
            good[places] = False
            records = records.filter(pa.array(good))
        added = [
            pc.cast(records.column("timestamp"), pa.date32())
            if name == "date"
            else records.column(name)
            for name in self.plan.record_columns
        ]
        return pa.RecordBatch.from_arrays([*columns.columns, *added], schema=self.rows_schema)

    def put_aside(
        self, records: pa.RecordBatch, reasons: list[str], headers_of_rows: HeadersOf
    ) -> None:
        """Keep bad records for where they go; BadRecordFault if there is no such place."""
        plan = self.plan
        if plan.skips_bad:
            self.skipped += records.num_rows
            return
        if not (plan.dead_letter_path or plan.dead_letter_topic):
            raise BadRecordFault(
                f"{plan.topic}-{records.column('partition')[0]} offset"
                f" {records.column('offset')[0]}: {reasons[0]}"
                " (nothing of its micro-batch is written; the same command with --dead-letter TOPIC"
                " or --dead-letter /DIRECTORY puts such records aside, with --skip-bad it leaves"
                " them out, and what is written already stays)"
            )
        kept = [records.column(name) for name in DEAD_LETTER_SCHEMA.names[:-2]]
        columns = [*kept, headers_of_rows(records), pa.array(reasons)]
        self.dead.append(pa.RecordBatch.from_arrays(columns, schema=DEAD_LETTER_SCHEMA))

    def _bury(self) -> list[files.Written]:
        """Write the dead letters."""
        if self.plan.dead_letter_topic:
            self._send()
            return []
        if not self.dead:
            return []
        out = FileSet(self, self.plan.dead_letter_path, DEAD_LETTER_SCHEMA, "parquet")
        try:
            for batch in self.dead:
                out.add({}, batch)
            return out.close()
        except BaseException:
            out.drop()
            raise

    def _send(self) -> None:
        """Dead letters into their topic: key, value and headers as they were, and behind these
        headers that tell where they are from."""
        if not self.dead:
            return
        from shmbroker.spark import producer_options
        from shmbroker.spark.sink import Writing, write_rows

        options = cluster_options(self.plan) | {"topic": self.plan.dead_letter_topic}
        columns = {"key": 0, "value": 1, "headers": 2}
        name = f"ingest:{self.plan.ingest_id}"
        sink = producer_options.parse(options, is_stream=True)
        writing = Writing(sink, columns, name, self.batch)
        write_rows((_letter(batch, self.plan.ingest_id) for batch in self.dead), writing)


def _letter(batch: pa.RecordBatch, ingest_id: str) -> pa.RecordBatch:
    """Dead letters as records; `ingest.replay` reads them."""
    places = pa.table(batch.select(["headers", "reason", "topic", "partition", "offset"]))
    times = pc.floor_temporal(batch.column("timestamp"), unit="millisecond")
    told = places.append_column("timestamp", pc.divide(times.cast(pa.int64()), 1000))
    headers = [
        [
            *(row["headers"] or ()),
            {"key": "reason", "value": row["reason"].encode()},
            {"key": "topic", "value": row["topic"].encode()},
            {"key": "partition", "value": b"%d" % row["partition"]},
            {"key": "offset", "value": b"%d" % row["offset"]},
            {"key": "timestamp", "value": b"%d" % (row["timestamp"] or 0)},
            {"key": "ingest", "value": ingest_id.encode()},
        ]
        for row in told.to_pylist()
    ]
    return pa.record_batch(
        {
            "key": batch.column("key"),
            "value": batch.column("value"),
            "headers": pa.array(headers, COLUMNS["headers"]),
        }
    )


# --- files ---------------------------------------------------------------------------------------


class FileSet:
    """A task's files below one path: by folder, each up to about the target's size."""

    def __init__(self, task: TaskWriter, path: str, schema: pa.Schema, kind: str) -> None:
        self.task = task
        self.path = path
        self.schema = schema
        self.kind = kind
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._waiting_bytes: dict[str, int] = {}
        self._open: dict[str, _File] = {}
        self._values: dict[str, dict[str, str | None]] = {}
        self._done: list[files.Written] = []
        self._names: list[str] = []

    def add(self, partition: dict[str, str | None], rows: pa.RecordBatch) -> None:
        """Rows of one folder."""
        folder = files.folder_of(partition)
        waiting = self._waiting.setdefault(folder, [])
        self._values[folder] = partition
        waiting.append(rows)
        self._waiting_bytes[folder] = self._waiting_bytes.get(folder, 0) + rows.nbytes
        if (
            self._waiting_bytes[folder] >= GROUP_BYTES
            or sum(each.num_rows for each in waiting) >= GROUP_ROWS
        ):
            self._write(folder)
        elif sum(self._waiting_bytes.values()) > WAITING_BYTES_MAX:
            for each in list(self._waiting):
                self._write(each)

    def close(self) -> list[files.Written]:
        """Write what waits, close all files, and tell them."""
        for folder in list(self._waiting):
            self._write(folder)
        self._close_all()
        return self._done

    def drop(self) -> None:
        """Close and delete all files."""
        for file in self._open.values():
            file.close()
        for name in self._names:
            if os.path.exists(name):
                os.unlink(name)

    def _write(self, folder: str) -> None:
        waiting = self._waiting.pop(folder)
        del self._waiting_bytes[folder]
        file = self._open.get(folder)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._close_all()
            file = self._open[folder] = self._new(folder)
        if file.write(pa.Table.from_batches(waiting, self.schema)) >= self.task.plan.target_bytes:
            self._close(folder)

    def _new(self, folder: str) -> _File:
        task, n = self.task, len(self._names)
        temporary = files.temporary_path(
            self.path, task.plan.ingest_id, task.batch, task.task, task.attempt, n
        )
        final = files.final_path(
            self.path,
            task.plan.topic,
            task.plan.ingest_id,
            task.batch,
            task.task,
            n,
            folder,
            "json" if self.kind == JSON else "parquet",
        )
        os.makedirs(os.path.dirname(temporary), exist_ok=True)
        self._names.append(temporary)
        kind = _JsonFile if self.kind == JSON else _ParquetFile
        return kind(temporary, final, task.plan, self.schema)

    def _close_all(self) -> None:
        for folder in list(self._open):
            self._close(folder)

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder)
        file.close()
        size = os.path.getsize(file.temporary)
        values_of = self._values[folder]
        self._done.append(files.Written(file.temporary, file.final, file.rows, size, values_of))


class _File:
    def __init__(self, temporary: str, final: str, plan: IngestPlan, schema: pa.Schema) -> None:
        self.temporary = temporary
        self.final = final
        self.rows = 0

    def write(self, rows: pa.Table) -> int:
        """Add rows; the file's size so far."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more comes."""
        raise NotImplementedError


class _ParquetFile(_File):
    """Encoded by what the first row group shows: dictionaries of columns that hardly repeat, and
    statistics of raw values, are a third of the work and help no reader."""

    def __init__(self, temporary: str, final: str, plan: IngestPlan, schema: pa.Schema) -> None:
        super().__init__(temporary, final, plan, schema)
        self._sink = pa.OSFile(temporary, "wb")
        self._compression = plan.compression
        self._is_raw = schema.names == list(RAW_COLUMNS)
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> int:
        """One row group."""
        if self._is_raw:
            rows = _with_one_topic(rows)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._sink,
                rows.schema,
                compression=self._compression,
                use_dictionary=_repeating(rows),
                write_statistics=_RAW_STATISTICS if self._is_raw else True,
                store_schema=not self._is_raw,  # it would make a dictionary of the topic
            )
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.rows += rows.num_rows
        return int(self._sink.tell())

    def close(self) -> None:
        """Write the footer."""
        if self._writer is not None:
            self._writer.close()
        self._sink.close()


_RAW_STATISTICS = [name for name in RAW_COLUMNS if name != "value"]
_SAMPLE_ROWS = 4096


def _with_one_topic(rows: pa.Table) -> pa.Table:
    """The column topic, which is the same in all rows, as one string and a number for each row."""
    place = rows.schema.get_field_index("topic")
    column = rows.column(place)
    codes = pa.array(np.zeros(len(column), np.int32))
    return rows.set_column(
        place, "topic", pa.DictionaryArray.from_arrays(codes, column[:1].chunk(0))
    )


def _repeating(rows: pa.Table) -> list[str] | bool:
    """The columns that a dictionary is good for: of the first values, most were there before."""
    if any(pa.types.is_nested(field.type) for field in rows.schema):
        return True  # Parquet would want the names of what is inside
    sample = rows.slice(0, _SAMPLE_ROWS)
    return [
        name
        for name, column in zip(sample.schema.names, sample.columns, strict=True)
        if _distinct(column) * 2 <= sample.num_rows
    ]


def _distinct(column: pa.ChunkedArray) -> int:
    """How many values it has."""
    if pa.types.is_dictionary(column.type):
        return 1
    return len(column.combine_chunks().dictionary_encode().dictionary)


class _JsonFile(_File):
    def __init__(self, temporary: str, final: str, plan: IngestPlan, schema: pa.Schema) -> None:
        super().__init__(temporary, final, plan, schema)
        self._file = open(temporary, "w", encoding="utf-8")  # noqa: SIM115
        self._encode = json.JSONEncoder(ensure_ascii=False, default=_as_json).encode

    def write(self, rows: pa.Table) -> int:
        """A line for each row."""
        encode = self._encode
        self._file.write("".join([encode(row) + "\n" for row in rows.to_pylist()]))
        self.rows += rows.num_rows
        return self._file.tell()

    def close(self) -> None:
        """Write what is buffered."""
        self._file.close()


def _as_json(value: Any) -> str:
    """Bytes as text, or base64 where they are none; times in ISO form."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _split(
    rows: pa.RecordBatch, names: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], pa.RecordBatch]]:
    """The rows of each partition, in their order."""
    if not rows.num_rows:
        return
    codes = np.zeros(rows.num_rows, np.int64)
    distinct: list[list[Any]] = []
    for name in names:
        encoded = rows.column(name).dictionary_encode(null_encoding="encode")
        distinct.append(encoded.dictionary.to_pylist())
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        codes = codes * len(distinct[-1]) + indices
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    starts = np.flatnonzero(np.diff(sorted_codes, prepend=-1))
    ends = [*starts[1:].tolist(), rows.num_rows]
    taken = rows.take(pa.array(order))
    for start, end in zip(starts.tolist(), ends, strict=True):
        code = int(sorted_codes[start])
        found: list[Any] = []
        for each in reversed(distinct):
            found.insert(0, each[code % len(each)])
            code //= len(each)
        texts = {name: _text(value) for name, value in zip(names, found, strict=True)}
        yield texts, taken.slice(start, end - start)


def _text(value: Any) -> str | None:
    """A partition's value as Spark writes it."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if hasattr(value, "hour"):
        return str(value.replace(tzinfo=None))
    return str(value)
