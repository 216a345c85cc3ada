"""What Spark does with an ingest, without Spark: micro-batches from the real source through the
real tasks into the table, with the notes in the checkpoint by which Spark goes on after a crash."""

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql.types import StructType

from shmbroker.spark.datasource import ShmbrokerDataSource
from shmbroker.spark.ingest import prepare
from shmbroker.spark.ingest.checkpoint import CheckpointDocument
from shmbroker.spark.ingest.sink import commit_batch
from shmbroker.spark.ingest.task import TaskWriter, records_of
from shmbroker.spark.ranges import pieces_of


class Killed(Exception):
    """The driver ends here."""


def run(kept: CheckpointDocument, source: Mapping[str, str], dies: str = "") -> None:
    """Micro-batches to the end of the topic; `dies` "planned", "tasks" or "committed": after that
    step of the first one."""
    plan, checkpoint = kept.plan, Path(kept.plan.checkpoint)
    given = {**prepare.source_of(kept, source), "emit": "ranges"}
    reader = ShmbrokerDataSource(given).streamReader(StructType().add("plan", "string"))
    prepare.settle(plan)
    offsets, commits = checkpoint / "offsets", checkpoint / "commits"
    offsets.mkdir(exist_ok=True)
    commits.mkdir(exist_ok=True)
    try:
        while True:
            planned, done = len(list(offsets.iterdir())), len(list(commits.iterdir()))
            start = _noted(offsets / str(done - 1)) if done else reader.initialOffset()
            if planned == done:
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start:
                    return
                (offsets / str(done)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
            if dies == "planned":
                raise Killed
            end = _noted(offsets / str(done))
            tasks = []
            for number, task in enumerate(reader.partitions(start, end)):
                records = records_of(pieces_of(reader.read(task)))
                tasks.append(TaskWriter(plan, done, number).run(records))
            if dies == "tasks":
                raise Killed
            commit_batch(plan, done, tasks)
            if dies == "committed":
                raise Killed
            (commits / str(done)).write_text("v1\n{}")
    finally:
        reader.stop()


def _noted(path: Path) -> dict:
    return json.loads(path.read_text().splitlines()[-1])
