"""`shmbroker ingest`: from a plan to a streaming query that runs until it is done or stopped.

look at the topic   without Spark: is it there, and the schema if it is to be found out
run                 a session, `recover` what a killed run has left, emit=ranges into `ingest.sink`
tell                by the documents of the micro-batches, as records never come here
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pyarrow as pa

from shmbroker import clock
from shmbroker.errors import ConfigFault
from shmbroker.ids import random_uuid
from shmbroker.spark import driver, options, running
from shmbroker.spark.ingest import files, schema, values
from shmbroker.spark.ingest import plan as plans
from shmbroker.spark.ingest.plan import DELTA, Plan
from shmbroker.spark.reading import read

SAMPLE_RECORDS = 10_000
"""What a schema is found out from: the first records, shared by the partitions."""

AVAILABLE_NOW = "available-now"


class Totals(NamedTuple):
    """What a run has done."""

    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    files: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    micro_batches: int = 0
    behind: int | None = None
    """Records that the topic has beyond what was read, as last seen."""
    read: str = ""
    """By which way: files, fetch."""
    seconds: float = 0.0
    """From the query's start to its end, without Spark's."""


class Run(NamedTuple):
    """How, beside what."""

    plan: Plan
    checkpoint: Path
    master: str
    trigger: str
    source: Mapping[str, str]
    """Options of the source."""
    conf: Mapping[str, str]
    """Settings of the session."""
    log: Path


def prepare(
    plan: Plan, asked: list[str], checkpoint: Path, source: Mapping[str, str], infers: bool
) -> Plan:
    """The plan with its schema and id: that of the checkpoint, or a new one, which is kept there.

    ConfigFault if it is not that of the checkpoint, or can't be.
    """
    document = checkpoint / "ingest.json"
    parsed = options.parse(dict(source), is_stream=True)
    if document.exists():
        plan = plans.continued(plans.from_json(document.read_text()), plan, asked)
    else:
        with driver.connect(parsed) as client:
            driver.find_topics(client, parsed)
        if infers:
            plan = plan._replace(schema=infer(plan, source))
        plan = plan._replace(ingest_id=random_uuid().hex()[:8])
    if plan.format == DELTA:
        from shmbroker.spark.ingest.delta import check_installed, check_table

        check_installed()
    plan.check()
    if plan.format == DELTA:
        check_table(plan)
    checkpoint.mkdir(parents=True, exist_ok=True)
    document.write_text(plans.to_json(plan))
    return plan


def infer(plan: Plan, source: Mapping[str, str]) -> str:
    """The DDL of what the topic's first records hold; ConfigFault if they hold nothing."""
    found = sample(source)
    if not found:
        raise ConfigFault(f"topic {plan.topic} is empty, so there is nothing to infer: --schema")
    if plan.values == values.CSV:
        return schema.to_text(_infer_csv(found, plan.delimiter))
    documents = []
    for value in found:
        try:
            documents.append(json.loads(value))
        except (ValueError, RecursionError):
            continue  # becomes a bad record when its turn comes
    return schema.to_text(schema.infer_json(documents))


def _infer_csv(lines: list[bytes], delimiter: str) -> pa.Schema:
    from pyarrow import csv as arrow_csv

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(b"\n".join(lines)),
            read_options=arrow_csv.ReadOptions(autogenerate_column_names=True),
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter, invalid_row_handler=lambda _row: "skip"
            ),
        )
    except pa.ArrowException as error:
        raise ConfigFault(f"the first records are no CSV: {error}") from None
    fields = []
    for n, field in enumerate(table.schema):
        kind = field.type
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            kind = pa.string()
        fields.append((f"_c{n}", kind))
    return pa.schema(fields)


def sample(source: Mapping[str, str]) -> list[bytes]:
    """Values of the first records, null ones left out."""
    parsed = options.parse(
        {name: value for name, value in source.items() if name.lower() != "startingoffsets"},
        is_stream=False,
    )
    found: list[bytes] = []
    with driver.connect(parsed) as client:
        topics = driver.find_topics(client, parsed)
        wanted = driver.wanted_partitions(parsed, topics)
        starts = driver.resolve(client, parsed, topics, wanted, is_start=True)
        ends = driver.resolve(client, parsed, topics, wanted, is_start=False)
        starts = starts | client.offsets(topics, {tp: n for tp, n in starts.items() if n < 0})
        ends = ends | client.offsets(topics, {tp: n for tp, n in ends.items() if n < 0})
        share = SAMPLE_RECORDS // max(1, sum(end > starts[tp] for tp, end in ends.items())) + 1
        ends = {tp: min(end, starts[tp] + share) for tp, end in ends.items()}
        reading = driver.reading(parsed)
        for pieces in driver.plan_tasks(client, parsed, topics, starts, ends).tasks:
            for piece in pieces:
                for batch in read(piece, reading, ("value",)):
                    found += [v for v in batch.column("value").to_pylist() if v is not None]
    return found


def run(wanted: Run, stopping: running.Stopping, show: Callable[[TextIO, Totals], None]) -> Totals:
    """Run the ingest to its end; `show` is told how far it is, and where to write."""
    plan = wanted.plan
    with running.session(
        wanted.master, f"shmbroker ingest {plan.topic}", wanted.log, dict(wanted.conf)
    ) as (spark, terminal):
        stopping.install()
        before = recover(plan)  # not before the JVM of a killed run has ended
        totals = Totals()
        show(terminal, totals)
        if stopping.signal is not None:
            return totals
        began = clock.monotonic()
        query = start(spark, wanted)
        counter = _Counter(plan, before)

        def look() -> None:
            nonlocal totals
            totals = counter.totals(query, clock.monotonic() - began)
            show(terminal, totals)

        running.follow([query], stopping, look)
        return totals


def recover(plan: Plan) -> int:
    """Finish, or drop, what a killed run has left; the last committed micro-batch, or -1."""
    with files.only_one(plan.path, plan.ingest_id):
        if plan.dead_letter_path:
            files.recover(plan.dead_letter_path, plan.ingest_id)
        return files.recover(plan.path, plan.ingest_id)


def start(spark: Any, wanted: Run) -> Any:
    """The streaming query of an ingest."""
    from shmbroker.spark.ingest.sink import FORMAT, IngestDataSource

    spark.dataSource.register(IngestDataSource)
    try:
        rows = spark.readStream.format("shmbroker").options(**wanted.source, emit="ranges").load()
        writer = rows.writeStream.format(FORMAT).option("plan", plans.to_json(wanted.plan))
        writer = writer.option("checkpointLocation", str(wanted.checkpoint))
        if wanted.trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=wanted.trigger).start()
    except Exception as error:  # of py4j
        raise running.QueryFault(running.sentence(error)) from error


class _Counter:
    """Adds up what the documents of the micro-batches say."""

    def __init__(self, plan: Plan, before: int) -> None:
        self._plan = plan
        self._next = before + 1
        self._totals = Totals()

    def totals(self, query: Any, seconds: float) -> Totals:
        while True:
            path = files.document_path(self._plan.path, self._plan.ingest_id, self._next)
            if not path.exists():
                break
            counts = files.read_document(path)[1]
            self._next += 1
            added = {
                name: getattr(self._totals, name) + counts.get(name, 0)
                for name in ("records", "rows", "dead_letters", "files", "bytes_in", "bytes_out")
            }
            self._totals = self._totals._replace(
                micro_batches=self._totals.micro_batches + 1, **added
            )
        progress = query.lastProgress
        if progress is not None:
            behind, way = running.lag(progress)
            self._totals = self._totals._replace(behind=behind, read=way or self._totals.read)
        self._totals = self._totals._replace(seconds=seconds)
        return self._totals
