"""A task of an ingest: records in, columns of their values out, into files; bad ones put aside.

Bad records end the task, unless the plan leaves them out or has a place for them. Dead letters are
kept until all files of rows are written. Into a directory they go as files, committed with the
others; into a topic they are written at once, by the sink for topics, which leaves out what a
repeated task has written already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from shmbroker.client.faults import told_in
from shmbroker.client.reader.arrow_columns import COLUMNS, arrow_schema
from shmbroker.client.reader.leaders import KnownLeaders
from shmbroker.client.reader.planning import Piece
from shmbroker.client.reader.reading import Reading
from shmbroker.errors import Fault
from shmbroker.ids import random_uuid
from shmbroker.spark.ingest import files, values
from shmbroker.spark.ingest.plan import RAW_COLUMNS, IngestPlan, cluster_options
from shmbroker.spark.ingest.task_files import FileSet
from shmbroker.spark.reading import read

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
        self,
        written: list[files.WrittenFile],
        dead: list[files.WrittenFile],
        counts: dict[str, int],
    ) -> None:
        self.written = written
        self.dead = dead
        self.counts = counts


def records_of(
    pieces: Iterable[tuple[Piece, Reading]],
) -> Iterator[tuple[pa.RecordBatch, HeadersOf]]:
    """Yield the records of these pieces, each batch with what finds the headers of its rows."""
    with KnownLeaders() as leaders:
        for piece, reading in pieces:
            for batch in read(piece, reading, RAW_COLUMNS, leaders):
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

    def _bury(self) -> list[files.WrittenFile]:
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
        from shmbroker.spark.sink import NEEDS_READ, Writing, write_rows

        options = cluster_options(self.plan) | {"topic": self.plan.dead_letter_topic}
        columns = {"key": 0, "value": 1, "headers": 2}
        name = f"ingest:{self.plan.ingest_id}"
        sink = producer_options.parse(options, is_stream=True)
        writing = Writing(sink, columns, name, self.batch)
        letters = (_letter(batch, self.plan.ingest_id) for batch in self.dead)
        with told_in({NEEDS_READ: "; dead letters need the rights to write and to read it"}):
            write_rows(letters, writing)


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
