"""Dead letters through the ingest again, each once, when columns or the decoder are right now.

The letters of an ingest are found where it puts them: files of its own name in a directory, or the
records of a topic that name it in their headers. Each is known by its partition and offset in the
topic that the ingest reads. Those whose value can be decoded now become rows as if they had been
good at once; the others stay letters.

What was replayed is noted as micro-batches are (`ingest.files`), by an id of its own, that of the
ingest with an "r" behind it: the document of a replay names the files and the letters that they are
made of, so it is done wholly or not, and no letter is taken twice. The letters themselves are left
where they are. Without Spark, and not while the ingest runs.
"""

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shmbroker.errors import ConfigFault
from shmbroker.spark import driver, options
from shmbroker.spark.ingest import files, merging, table_state
from shmbroker.spark.ingest.plan import RAW_COLUMNS, IngestPlan, cluster_options
from shmbroker.spark.ingest.prepare import is_unfinished, settle
from shmbroker.spark.ingest.run import Totals, added
from shmbroker.spark.ingest.sink import commit_batch
from shmbroker.spark.ingest.task import HeadersOf, TaskWriter
from shmbroker.spark.reading import read, reading_of

LETTERS_MAX = 100_000
"""The letters of one document; they are held in memory until they are written."""

_OWN_HEADERS = 6
"""reason, topic, partition, offset, timestamp, ingest: behind those that the record had."""

Place = tuple[int, int]
"""Partition and offset of a record in the topic that the ingest reads."""


class _Writer(TaskWriter):
    """A task that keeps the places of what is still bad."""

    def __init__(self, plan: IngestPlan, batch: int) -> None:
        super().__init__(plan, batch, 0)
        self.bad: set[Place] = set()

    def put_aside(
        self, records: pa.RecordBatch, reasons: list[str], headers_of_rows: HeadersOf
    ) -> None:
        self.bad.update(_places(records))
        self.skipped += records.num_rows


def replay(plan: IngestPlan) -> Totals:
    """Replay the dead letters of an ingest; `skipped` of the outcome are still bad."""
    if not (plan.dead_letter_path or plan.dead_letter_topic):
        raise ConfigFault("this ingest has no place for dead letters: --dead-letter names it")
    if is_unfinished(plan):
        raise ConfigFault(
            "a micro-batch of this ingest is not finished, and its bad records will be judged anew:"
            " run the same command without --replay first"
        )
    settle(plan)
    own = plan._replace(ingest_id=f"{plan.ingest_id}r", since=0, dead_letter_path="")
    last = settle(own)
    done = files.letters_of(plan.path, own.ingest_id)
    totals = Totals(read="files" if plan.dead_letter_path else "topic")
    for letters in _in_parts(_letters(plan), done):
        writer = _Writer(own, last + 1)
        task = writer.run((batch, _no_headers) for batch in letters)
        places = {place for batch in letters for place in _places(batch)}
        good = sorted(places - writer.bad)
        if good:
            last += 1
            commit_batch(own, last, [task], good)
            task.counts["files"] = len(task.written)
        totals = added(totals, task.counts)
    table_state.tidy(own.path, own.ingest_id)
    return totals


def _places(records: pa.RecordBatch) -> list[Place]:
    columns = (records.column(name).to_pylist() for name in ("partition", "offset"))
    return list(zip(*columns, strict=True))


def _no_headers(_rows: pa.RecordBatch) -> pa.Array:
    raise AssertionError("a letter that stays one is not written again")


def _in_parts(
    letters: Iterator[pa.RecordBatch], done: set[Place]
) -> Iterator[list[pa.RecordBatch]]:
    """The letters that are not done yet, each once, in parts of some size."""
    taken = set(done)
    part: list[pa.RecordBatch] = []
    count = 0
    for batch in letters:
        rows = []
        for row, place in enumerate(_places(batch)):
            if place not in taken:
                taken.add(place)
                rows.append(row)
        if rows:
            part.append(batch.take(pa.array(rows)))
            count += len(rows)
        if count >= LETTERS_MAX:
            yield part
            part, count = [], 0
    if part:
        yield part


def _letters(plan: IngestPlan) -> Iterator[pa.RecordBatch]:
    """The ingest's letters, as the records that they were."""
    return _in_files(plan) if plan.dead_letter_path else _in_topic(plan)


def _in_files(plan: IngestPlan) -> Iterator[pa.RecordBatch]:
    for folder, name, _ in sorted(merging.table_files(plan.dead_letter_path)):
        if name.startswith(f"{plan.topic}-{plan.ingest_id}-"):
            table = pq.read_table(os.path.join(folder, name), partitioning=None)
            for batch in table.to_batches():
                columns = [batch.column(each) for each in RAW_COLUMNS[:-1]]
                yield _records(columns, batch.num_rows)


def _in_topic(plan: IngestPlan) -> Iterator[pa.RecordBatch]:
    given = cluster_options(plan) | {"subscribe": plan.dead_letter_topic}
    parsed = options.parse(given, is_stream=False)
    with driver.connect(parsed) as client:
        topics = driver.find_topics(client, parsed)
        wanted = driver.wanted_partitions(parsed, topics)
        starts = driver.resolve(client, parsed, topics, wanted, is_start=True)
        ends = driver.resolve(client, parsed, topics, wanted, is_start=False)
        reading = reading_of(parsed)
        tasks = driver.plan_tasks(client, parsed, topics, starts, ends).tasks
    for pieces in tasks:
        for piece in pieces:
            for batch in read(piece, reading, ("key", "value", "timestamp", "headers")):
                yield from _of_topic(plan, batch)


def _of_topic(plan: IngestPlan, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The records of a dead letter topic that are this ingest's, as they were."""
    rows, partitions, offsets, times = [], [], [], []
    for row, headers in enumerate(batch.column("headers").to_pylist()):
        # what we have added is behind what was there
        told = {each["key"]: each["value"] for each in (headers or ())[-_OWN_HEADERS:]}
        is_own = told.get("ingest") == plan.ingest_id.encode()
        if is_own and told.get("topic") == plan.topic.encode():
            rows.append(row)
            partitions.append(int(told["partition"]))
            offsets.append(int(told["offset"]))
            times.append(int(told["timestamp"]))
    if rows:
        own = batch.take(pa.array(rows))
        columns = [
            own.column("key"),
            own.column("value"),
            pa.array([plan.topic] * len(rows), pa.string()),
            pa.array(partitions, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.timestamp("ms", tz="UTC")).cast(
                batch.schema.field("timestamp").type
            ),
        ]
        yield _records(columns, len(rows))


def _records(columns: list[Any], count: int) -> pa.RecordBatch:
    kinds = pa.array([0] * count, pa.int32())
    return pa.RecordBatch.from_arrays([*columns, kinds], names=list(RAW_COLUMNS))
