"""`shmbroker ingest`: streaming queries of prepared ingests, until they are done or stopped.

run                 a session, `settle` what a killed run has left, emit=ranges into `ingest.sink`
tell                by the documents of the micro-batches, as records never come here
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from shmbroker import clock
from shmbroker.spark import running
from shmbroker.spark.ingest import files
from shmbroker.spark.ingest import plan as plans
from shmbroker.spark.ingest.plan import IngestPlan
from shmbroker.spark.ingest.prepare import LOG, settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AVAILABLE_NOW = "available-now"


class Totals(NamedTuple):
    """What a run has done."""

    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    skipped: int = 0
    """Bad records that were left out."""
    files: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    micro_batches: int = 0
    behind: int | None = None
    """Records that the topic has beyond what was read, as last seen."""
    read: str = ""
    """The way by which it was read: files, fetch."""
    seconds: float = 0.0
    """Seconds from the query's start to its end, without Spark's."""
    start_seconds: float = 0.0
    """How long Spark took to start."""


class Run(NamedTuple):
    """One ingest of a run."""

    plan: IngestPlan
    source: Mapping[str, str]
    """Options of the source."""


class IngestSession(NamedTuple):
    """The Spark that ingests run in, and when."""

    master: str
    trigger: str
    conf: Mapping[str, str]
    """Settings of the session."""


def run(
    wanted: Sequence[Run],
    session: IngestSession,
    stopping: running.Stopping,
    show: Callable[[TextIO, list[Totals]], None],
) -> list[Totals]:
    """Run ingests to their end; `show` is told how far they are, and where to write."""
    topics = ",".join(each.plan.topic for each in wanted)
    log = Path(wanted[0].plan.checkpoint, LOG)
    asked = clock.monotonic()
    with running.session(session.master, f"shmbroker ingest {topics}", log, dict(session.conf)) as (
        spark,
        terminal,
    ):
        stopping.install()
        # not before the JVM of a killed run has ended
        counters = [_Counter(each.plan, settle(each.plan)) for each in wanted]
        totals = [Totals() for _ in wanted]
        show(terminal, totals)
        if stopping.signal is not None:
            return totals
        began = clock.monotonic()
        queries = start_all(spark, wanted, session.trigger)

        def look() -> None:
            nonlocal totals
            seconds = clock.monotonic() - began
            totals = [
                counter.totals(query, seconds)._replace(start_seconds=began - asked)
                for counter, query in zip(counters, queries, strict=True)
            ]
            show(terminal, totals)

        running.follow(queries, stopping, look)
        return totals


def start_all(spark: SparkSession, wanted: Sequence[Run], trigger: str) -> list[StreamingQuery]:
    """The streaming queries of ingests; none runs on if one can't be started."""
    queries: list[StreamingQuery] = []
    try:
        for each in wanted:
            queries.append(start(spark, each, trigger))  # noqa: PERF401  those before an error
    except BaseException:
        for query in queries:
            query.stop()
        raise
    return queries


def start(spark: SparkSession, wanted: Run, trigger: str) -> StreamingQuery:
    """The streaming query of an ingest."""
    from shmbroker.spark.ingest.sink import FORMAT, IngestDataSource

    spark.dataSource.register(IngestDataSource)
    try:
        rows = spark.readStream.format("shmbroker").options(**wanted.source, emit="ranges").load()
        writer = rows.writeStream.format(FORMAT).option("plan", plans.to_json(wanted.plan))
        writer = writer.option("checkpointLocation", wanted.plan.checkpoint)
        if trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger).start()
    except Exception as error:  # of py4j
        raise running.QueryFault(running.sentence(error)) from error


class _Counter:
    """Adds up what the documents of the micro-batches say."""

    def __init__(self, plan: IngestPlan, before: int) -> None:
        self._plan = plan
        self._next = max(before + 1, plan.since)
        self._totals = Totals()

    def totals(self, query: StreamingQuery, seconds: float) -> Totals:
        while True:
            path = files.document_path(self._plan.path, self._plan.ingest_id, self._next)
            if not path.exists():
                break
            self._totals = added(self._totals, files.read_document(path)[1])
            self._next += 1
        progress = query.lastProgress
        if progress is not None:
            behind, way = running.lag(progress)
            self._totals = self._totals._replace(behind=behind, read=way or self._totals.read)
        self._totals = self._totals._replace(seconds=seconds)
        return self._totals


def added(totals: Totals, counts: Mapping[str, int]) -> Totals:
    """The totals with those of one more micro-batch."""
    names = ("records", "rows", "dead_letters", "skipped", "files", "bytes_in", "bytes_out")
    more = {name: getattr(totals, name) + counts.get(name, 0) for name in names}
    return totals._replace(micro_batches=totals.micro_batches + 1, **more)
