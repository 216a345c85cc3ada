"""The data source that an ingest writes by: planned ranges come in, files come out.

What Spark hands to a task are the rows of `emit=ranges`, a few numbers for some 100 MB of records.
The task (`ingest.task`) reads the records, makes columns of them and writes files by pyarrow, all
in the Python worker: no record crosses a socket, and Spark's own writer, five times as slow, has
nothing to do.

The task's files are temporary; the driver commits them (`ingest.files`). Into Delta Lake it adds
them to the table's log in one commit, which carries the micro-batch's number as the ingest's
application transaction, so that a repeated one adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from shmbroker.spark import worker
from shmbroker.spark.ingest import files, table_state
from shmbroker.spark.ingest.plan import DELTA, IngestPlan, from_json
from shmbroker.spark.ingest.task import TaskDone, TaskWriter, records_of
from shmbroker.spark.ranges import pieces_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "shmbroker-ingest"


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
        """Drop what the tasks that were done have written. It may be the commit that has failed,
        after it had decided."""
        plan, done = self.plan, [message for message in messages if message is not None]
        with files.only_one(plan.path, plan.ingest_id):
            path = files.document_path(plan.path, plan.ingest_id, batchId)
            files.drop(path, [file for message in done for file in message.written])
            if plan.dead_letter_path:
                path = files.document_path(plan.dead_letter_path, plan.ingest_id, batchId)
                files.drop(path, [file for message in done for file in message.dead])


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
        table_state.note_writer(plan.path, plan.ingest_id, plan.topic, plan.checkpoint)
    path = files.document_path(plan.path, plan.ingest_id, batch)
    files.commit(path, written, counts | {"files": len(written)}, letters)
    if plan.format == DELTA:
        from shmbroker.spark.ingest.delta import add_to_table

        # of the document: after a crash these are the files that were renamed
        add_to_table(plan, batch, files.read_document(path)[0])
