"""The checks before an ingest runs, without Spark: is it a new one or does it go on, may it, where
does it start, is there anything to do.

    with opened(asked) as kept:      locked; all is judged before anything is written
        if not has_nothing_new(kept, asked.source): …

A new ingest is judged before there is a directory. One that goes on is judged under the lock of its
checkpoint (`ingest.checkpoint` has the rules). What was made for a run that has committed nothing
is taken away again at its end; only the checkpoint stays, once Spark has run with it.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from shmbroker.client.cluster import Topic
from shmbroker.client.reader.asking import EARLIEST as EARLIEST_OFFSET
from shmbroker.client.reader.asking import LATEST, Ends
from shmbroker.client.reader.broker_client import BrokerClient
from shmbroker.client.reader.leaders import KnownLeaders
from shmbroker.errors import ConfigFault
from shmbroker.ids import TopicPartition, random_uuid, uuid_text
from shmbroker.spark import driver, options, running
from shmbroker.spark.ingest import checkpoint as checkpoints
from shmbroker.spark.ingest import files, schema, table_state, values
from shmbroker.spark.ingest.checkpoint import EARLIEST, CheckpointDocument
from shmbroker.spark.ingest.plan import DELTA, IngestPlan
from shmbroker.spark.offsets import to_json
from shmbroker.spark.reading import read, reading_of

SAMPLE_RECORDS = 10_000
"""What a schema is found out from: the first records, shared by the partitions."""

DOCUMENT = "ingest.json"
LOG = "spark.log"

_SPARKS = ("offsets", "commits", "sources", "state", "metadata")
"""What Spark keeps in a checkpoint."""


class AskedIngest(NamedTuple):
    """What a run is asked for."""

    plan: IngestPlan
    fields: list[str]
    """The fields of the plan that were named."""
    source: Mapping[str, str]
    """Options of the source, without the start."""
    start: str | None = None
    """earliest, latest, or a moment in ms as text; None: not named."""
    infers: bool = False
    continues: bool = False
    """--continue-with: settings may change."""
    appends: bool = False
    """--append-anyway: the table may hold rows of another ingest of the topic."""


@contextlib.contextmanager
def opened(asked: AskedIngest) -> Iterator[CheckpointDocument]:
    """The ingest, locked and noted in its checkpoint; ConfigFault if it can't be as it is asked."""
    path = asked.plan.path
    files.migrate(path)
    checkpoint = _checkpoint(asked)
    begun = None if (checkpoint / DOCUMENT).exists() else _begun(asked)
    made = _missing(path, str(checkpoint))
    kept = begun
    try:
        if begun is not None:
            table_state.make_state(path)
            checkpoint = _checkpoint(asked)
        with running.only_one(checkpoint):
            document = checkpoint / DOCUMENT
            asked = asked._replace(plan=asked.plan._replace(checkpoint=str(checkpoint)))
            if begun is None:
                kept = _gone_on(asked, checkpoints.read(document.read_text()))
            elif document.exists():
                raise ConfigFault(f"another run has just created {checkpoint}: try again")
            else:
                kept = begun._replace(plan=begun.plan._replace(checkpoint=str(checkpoint)))
            for each in _places(kept):
                made += _missing(each)
                table_state.make_state(each)
            _note(document, kept)
            yield kept
    except BaseException:
        if begun is not None and not any((checkpoint / name).exists() for name in (LOG, *_SPARKS)):
            for name in (DOCUMENT, "lock"):
                (checkpoint / name).unlink(missing_ok=True)
        raise
    finally:
        if kept is not None:
            for each in _places(kept):
                table_state.tidy(each, kept.plan.ingest_id)
                if table_state.has_writer(each, kept.plan.ingest_id):
                    made = [directory for directory in made if directory != each]
        for directory in sorted(made, key=len, reverse=True):
            with contextlib.suppress(OSError):  # there is something in it, or it was not made
                os.rmdir(directory)


def _checkpoint(asked: AskedIngest) -> Path:
    if asked.plan.checkpoint:
        return Path(asked.plan.checkpoint)
    return table_state.state_root(asked.plan.path) / f"checkpoint-{asked.plan.topic}"


def _places(kept: CheckpointDocument) -> list[str]:
    return [each for each in (kept.plan.path, kept.plan.dead_letter_path) if each]


def _missing(*paths: str) -> list[str]:
    """The directories that are to be made for these paths and for their states."""
    found: set[str] = set()
    for path in paths:
        for each in (
            path,
            str(table_state.state_root(path)),
            os.path.join(path, table_state.INSIDE),
        ):
            while not os.path.exists(each):
                found.add(each)
                each = os.path.dirname(each)
    return list(found)


def _note(document: Path, kept: CheckpointDocument) -> None:
    if not document.exists() or document.read_text() != kept.text():
        part = document.with_suffix(".new")
        part.write_text(kept.text())
        part.replace(document)


# --- a new one -----------------------------------------------------------------------------------


def _begun(asked: AskedIngest) -> CheckpointDocument:
    """A new ingest; ConfigFault if it can't be."""
    plan = asked.plan
    parsed = options.parse({**asked.source, "startingOffsets": EARLIEST}, is_stream=True)
    with driver.connect(parsed) as client:
        driver.find_topics(client, parsed)
    if asked.infers:
        plan = plan._replace(schema=infer(plan, asked.source))
    _check(plan)
    _check_alone(plan, asked)
    start = asked.start or EARLIEST
    starts = None if start == EARLIEST else _starts(asked.source, start)
    return CheckpointDocument(plan._replace(ingest_id=random_uuid().hex()[:8]), start, starts)


def _check(plan: IngestPlan) -> None:
    if plan.format == DELTA:
        from shmbroker.spark.ingest.delta import check_installed

        check_installed()
    plan.check()
    if plan.format == DELTA:
        from shmbroker.spark.ingest.delta import check_table

        check_table(plan)


def _check_alone(plan: IngestPlan, asked: AskedIngest) -> None:
    """ConfigFault if the table holds rows of the topic that another ingest has written: they would
    be there twice."""
    others = table_state.writers(plan.path, plan.topic)
    others.pop(plan.ingest_id, None)
    if not others or asked.appends:
        return
    ingest_id, checkpoint = max(others.items(), key=lambda other: other[1])
    known = checkpoint and Path(checkpoint, DOCUMENT).exists()
    go_on = f"--checkpoint {checkpoint} goes on with it" if known else "its checkpoint is gone"
    raise ConfigFault(
        f"{plan.path} holds rows of {plan.topic} already, of the ingest {ingest_id}: {go_on}; --to"
        " another directory writes all of them there; --append-anyway writes them here once more"
    )


def _starts(source: Mapping[str, str], start: str) -> dict[str, Any]:
    """The offsets of a start that is not the earliest, as the source takes them."""
    at = (
        {"startingOffsets": start}
        if start == "latest"
        else {"startingTimestamp": start, "startingOffsetsByTimestampStrategy": "latest"}
    )
    parsed = options.parse({**source, **at}, is_stream=True)
    with driver.connect(parsed) as client:
        topics = driver.find_topics(client, parsed)
        wanted = driver.wanted_partitions(parsed, topics)
        starts = driver.resolve(client, parsed, topics, wanted, is_start=True)
        starts |= client.offsets(topics, {tp: n for tp, n in starts.items() if n < 0})
        return to_json(starts, {name: topic.topic_id for name, topic in topics.items()})


# --- one that goes on ----------------------------------------------------------------------------


def _gone_on(asked: AskedIngest, kept: CheckpointDocument) -> CheckpointDocument:
    """The ingest of a checkpoint as it is asked for now; ConfigFault if it may not be so."""
    stored, checkpoint = kept.plan, Path(asked.plan.checkpoint)
    last = max(files.last_batch(stored.path, stored.ingest_id), stored.since - 1)
    has_planned = bool(_numbers(checkpoint / "offsets"))
    has_written = last >= 0 or bool(_numbers(checkpoint / "commits"))
    if has_written and _is_gone(stored):
        raise ConfigFault(
            f"{stored.path} is gone, and with it what this ingest has written: to write all of it"
            f" again remove its checkpoint {checkpoint}, too; where the files were moved on purpose"
            f" make the directory again (mkdir {stored.path}), and it goes on with what is new"
        )
    _check_start(asked, kept, has_written, has_planned)
    if asked.infers and (asked.continues or not has_written):
        wanted = asked.plan._replace(schema=infer(asked.plan, asked.source))
        asked = asked._replace(plan=wanted, fields=[*asked.fields, "schema"])
    plan, changes = checkpoints.judge(kept, asked.plan, asked.fields, has_written, asked.continues)
    _check(plan)
    if plan.path != stored.path:
        _check_alone(plan, asked)
    if asked.start is not None and asked.start != kept.start:
        return _started_anew(asked, kept._replace(plan=plan))
    if changes.keys() <= checkpoints.UNNOTED:
        return kept._replace(plan=plan)
    _check_dead_letters(asked, stored, changes)
    with _when_jvm_has_ended(checkpoint):
        settle(stored)
        if stored.dead_letter_path and changes.keys() & set(checkpoints.DEAD_LETTER_FIELDS):
            # of a micro-batch that was not finished: it is done again, and they go elsewhere
            files.withdraw(stored.dead_letter_path, stored.ingest_id, last)
    if not has_written:
        return kept._replace(plan=plan)
    if plan.path != stored.path:
        files.carry_letters(stored.path, plan.path, f"{stored.ingest_id}r")
    noted = {"micro_batch": last + 1, "changed": changes}
    return kept._replace(plan=plan._replace(since=last + 1), changes=(*kept.changes, noted))


def _is_gone(plan: IngestPlan) -> bool:
    """Whether the ingest has put files into the table, and there is no such directory."""
    if os.path.isdir(plan.path):
        return False
    state = table_state.state_directory(plan.path, plan.ingest_id)
    return table_state.has_writer(plan.path, plan.ingest_id) or not (plan.since or state.exists())


def _check_start(
    asked: AskedIngest, kept: CheckpointDocument, has_written: bool, has_planned: bool
) -> None:
    """ConfigFault if it can't start elsewhere."""
    if asked.start is None or asked.start == kept.start:
        return
    if has_written:
        raise ConfigFault(
            f"--from is for a new ingest; that of {asked.plan.checkpoint} goes on where it ended:"
            " leave --from out"
        )
    if has_planned and not asked.continues:
        raise ConfigFault(
            f"this ingest has written nothing yet and starts at {kept.start}: leave --from out to"
            " keep that, or add --continue-with to start elsewhere, without the records before"
        )


def _started_anew(asked: AskedIngest, kept: CheckpointDocument) -> CheckpointDocument:
    """An ingest that has written nothing, as a new one that starts where it is asked for."""
    start, checkpoint = asked.start or EARLIEST, Path(asked.plan.checkpoint)
    starts = None if start == EARLIEST else _starts(asked.source, start)
    with _when_jvm_has_ended(checkpoint):
        for name in _SPARKS:
            each = checkpoint / name
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink(missing_ok=True)
        for place in _places(kept):
            files.withdraw(place, kept.plan.ingest_id, -1)
            table_state.tidy(place, kept.plan.ingest_id)
    plan = kept.plan._replace(ingest_id=random_uuid().hex()[:8])
    return kept._replace(plan=plan, start=start, starts=starts)


def _check_dead_letters(
    asked: AskedIngest, stored: IngestPlan, changes: checkpoints.Changes
) -> None:
    """ConfigFault if dead letters would be in two topics."""
    moves = changes.keys() & set(checkpoints.DEAD_LETTER_FIELDS)
    if not moves or not stored.dead_letter_topic or asked.continues:
        return
    if is_unfinished(stored._replace(checkpoint=asked.plan.checkpoint)):
        raise ConfigFault(
            "bad records of a micro-batch that was not finished may be in"
            f" {stored.dead_letter_topic} already: run it once with --dead-letter"
            f" {stored.dead_letter_topic}, then change where they go; or add --continue-with now,"
            " and they may be in both"
        )


@contextlib.contextmanager
def _when_jvm_has_ended(checkpoint: Path) -> Iterator[None]:
    """The JVM of a killed run may go on with its micro-batch for some seconds."""
    with (checkpoint / LOG).open("ab") as log:
        running.lock_when_free(log, running.JVM_S_MAX)
        yield


def settle(plan: IngestPlan) -> int:
    """Finish, or drop, what a killed run has left; the last committed micro-batch, or -1."""
    with files.only_one(plan.path, plan.ingest_id):
        if plan.dead_letter_path:
            files.recover(plan.dead_letter_path, plan.ingest_id)
        last = files.recover(plan.path, plan.ingest_id)
        if last >= 0 and plan.format == DELTA:
            from shmbroker.spark.ingest.delta import add_to_table

            document = files.document_path(plan.path, plan.ingest_id, last)
            add_to_table(plan, last, files.read_document(document)[0])
        return last


def is_unfinished(plan: IngestPlan) -> bool:
    """Whether Spark has planned a micro-batch that is not committed."""
    planned = max(_numbers(Path(plan.checkpoint) / "offsets"), default=-1)
    return planned > max(files.last_batch(plan.path, plan.ingest_id), plan.since - 1)


def _numbers(directory: Path) -> list[int]:
    """Micro-batches that Spark has noted here."""
    return [int(each.name) for each in directory.glob("[0-9]*") if each.name.isdecimal()]


# --- what there is to do -------------------------------------------------------------------------


def source_of(kept: CheckpointDocument, source: Mapping[str, str]) -> dict[str, str]:
    """The options of the source, with the start."""
    if kept.starts is None:
        return {**source, "startingOffsets": EARLIEST}
    return {**source, "startingOffsets": json.dumps(kept.starts), "partialOffsets": "true"}


def has_nothing_new(kept: CheckpointDocument, source: Mapping[str, str]) -> bool:
    """Whether the ingest is at the end of its topic, for sure: what is in doubt is left to Spark,
    which takes seconds to start."""
    checkpoint = Path(kept.plan.checkpoint)
    planned, done = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    if max(planned, default=-1) != max(done, default=-1):
        return False
    parsed = options.parse(source_of(kept, source), is_stream=True)
    with driver.connect(parsed) as client:
        topics = client.topics(parsed.names)
        wanted = driver.wanted_partitions(parsed, topics)
        if planned:
            log = (checkpoint / "offsets" / str(max(planned))).read_text()
            known = checkpoints.position(log)
            if known is None or known[1] != {
                name: uuid_text(topic.topic_id) for name, topic in topics.items()
            }:
                return False
            reached = known[0]
        else:
            reached = _first(client, parsed, topics, wanted)
        ends = client.offsets(topics, dict.fromkeys(wanted, LATEST))
        return bool(ends) and all(reached.get(tp, 0) == end for tp, end in ends.items())


def _first(
    client: BrokerClient,
    parsed: options.Options,
    topics: Mapping[str, Topic],
    wanted: Sequence[TopicPartition],
) -> Ends:
    """Where a new query begins."""
    starts = driver.resolve(client, parsed, topics, wanted, is_start=True)
    sentinels = {tp: EARLIEST_OFFSET for tp, n in starts.items() if n < 0}
    return starts | client.offsets(topics, sentinels)


# --- the schema ----------------------------------------------------------------------------------


def infer(plan: IngestPlan, source: Mapping[str, str]) -> str:
    """The DDL of what the topic's first records hold; ConfigFault if they hold nothing."""
    found = sample(source)
    if not found:
        raise ConfigFault(
            f"topic {plan.topic} is empty, so there is nothing to infer: give --schema"
        )
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
        raise ConfigFault(f"the first records are not CSV: {error}") from None
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
    with driver.connect(parsed) as client, KnownLeaders() as leaders:
        topics = driver.find_topics(client, parsed)
        wanted = driver.wanted_partitions(parsed, topics)
        starts = driver.resolve(client, parsed, topics, wanted, is_start=True)
        ends = driver.resolve(client, parsed, topics, wanted, is_start=False)
        starts = starts | client.offsets(topics, {tp: n for tp, n in starts.items() if n < 0})
        ends = ends | client.offsets(topics, {tp: n for tp, n in ends.items() if n < 0})
        share = SAMPLE_RECORDS // max(1, sum(end > starts[tp] for tp, end in ends.items())) + 1
        ends = {tp: min(end, starts[tp] + share) for tp, end in ends.items()}
        reading = reading_of(parsed)
        for pieces in driver.plan_tasks(client, parsed, topics, starts, ends).tasks:
            for piece in pieces:
                for batch in read(piece, reading, ("value",), leaders):
                    found += [v for v in batch.column("value").to_pylist() if v is not None]
    return found
