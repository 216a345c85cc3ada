"""What a Spark task does: maps its pieces of the log files, or fetches them, and decodes them into
Arrow batches.

Rules of this file:
* What the driver alone needs is not imported here: tasks start without.
* What a task yields is a function of its pieces and of the options alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import InputPartition

from shmbroker.client.reader.leaders import KnownLeaders
from shmbroker.client.reader.planning import Piece
from shmbroker.spark import worker
from shmbroker.spark.columns import declared
from shmbroker.spark.reading import read, reading_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa

    from shmbroker.client.reader.tasks import ReadPlan
    from shmbroker.spark.options import Options


class Task(InputPartition):
    """What one Spark task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces


def tasks_of(plan: ReadPlan) -> list[InputPartition]:
    """One for each of the plan's shares."""
    return [Task(pieces) for pieces in plan.tasks]


class TaskSide(worker.Shipped):
    """The task's side, the same for batch and stream; all that Spark sends to the tasks."""

    options: Options
    columns: tuple[str, ...]
    required: frozenset[str]
    """Columns that the query's schema says to be NOT NULL; Spark wants the same of the batches."""

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
        with worker.told_plainly(), KnownLeaders() as leaders:
            for piece in partition.pieces:
                batches = read(piece, reading, self.columns, leaders)
                yield from declared(batches, self.required) if self.required else batches
