"""What the checkpoint of an ingest keeps, and what of its settings may change. Pure.

The document `ingest.json` holds the plan, so that an ingest that goes on is the same one, with the
schema that was found out at first; where it started; and what was changed since, by micro-batch.

A setting may change when it is given anew,

    freely                   where the rows stay the same: what becomes of bad records, sizes,
                             compression, servers
    freely, too              any other, as long as the ingest has written nothing
    with --continue-with     any other: from the next micro-batch on. Rows that are there stay as
                             they are, those that come are written as it says now, each once
    never                    the topic: another topic has offsets of its own

In one table all files have the same partitions, format and types, whatever changes: columns may be
added and left out.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from shmbroker.client.reader.asking import Ends
from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest import values
from shmbroker.spark.ingest.plan import IngestPlan, from_json, to_json
from shmbroker.spark.offsets import from_json as offsets_of

EARLIEST = "earliest"

_OPTIONS = {
    "path": "--to",
    "format": "--format",
    "values": "--values",
    "schema": "--schema",
    "delimiter": "--delimiter",
    "record_columns": "--record-columns",
    "partition_by": "--partition-by",
}
"""What rows are written, and as what: fields of the plan, and their options."""

DEAD_LETTER_FIELDS = ("dead_letter_topic", "dead_letter_path", "skips_bad")
"""Where bad records go: given together, as each of them rules out the others."""

UNNOTED = {"target_bytes", "compression", "bootstrap_servers", "profile"}
"""May change at any time, also in the midst of a micro-batch."""

_FREE = {*DEAD_LETTER_FIELDS, *UNNOTED}

_TEXT_MAX = 200
"""The length of a schema in a message."""

Changes = dict[str, list[Any]]
"""{field: [before, now]}"""


class CheckpointDocument(NamedTuple):
    """The document of a checkpoint."""

    plan: IngestPlan
    start: str = EARLIEST
    """What --from said."""
    starts: dict[str, Any] | None = None
    """The offsets that it meant then, as the source takes them; None: all there is."""
    changes: tuple[dict[str, Any], ...] = ()
    """{"micro_batch": the first one of it, "changed": Changes}"""

    def text(self) -> str:
        """What `read` makes this of."""
        more = {"start": self.start, "starts": self.starts, "changes": self.changes}
        return json.dumps(json.loads(to_json(self.plan)) | more, indent=1, ensure_ascii=False)


def read(text: str) -> CheckpointDocument:
    """A checkpoint's document; ConfigFault if it is none."""
    plan = from_json(text)
    found = json.loads(text)
    start = found.get("start", EARLIEST)
    return CheckpointDocument(plan, start, found.get("starts"), tuple(found.get("changes", ())))


def changes_of(stored: IngestPlan, wanted: IngestPlan, asked: Sequence[str]) -> Changes:
    """What is another now, of the fields that were given this time."""
    named = set(asked)
    if stored.values == values.RAW != wanted.values:
        named.add("values")  # json or avro: the default of a schema
    found: Changes = {}
    for name in IngestPlan._fields:
        before, now = getattr(stored, name), getattr(wanted, name)
        if name in named and before != now and not (name == "schema" and _same(stored, wanted)):
            found[name] = [before, now]
    return found


def _same(stored: IngestPlan, wanted: IngestPlan) -> bool:
    """Whether two texts of a schema say the same."""
    kind = stored.values
    if kind == values.RAW or not stored.schema or not wanted.schema:
        return False
    columns = values.columns_of(kind, stored.schema)
    return bool(columns.equals(values.columns_of(kind, wanted.schema)))


def judge(
    kept: CheckpointDocument,
    wanted: IngestPlan,
    asked: Sequence[str],
    has_written: bool,
    may_change: bool,
) -> tuple[IngestPlan, Changes]:
    """The plan to go on with, and what it changes; ConfigFault for what may not change so.

    `asked` names the fields that were given this time; `may_change`: --continue-with was given.
    """
    stored = kept.plan
    if wanted.topic != stored.topic:
        raise ConfigFault(
            f"the checkpoint {wanted.checkpoint} is of topic {stored.topic}: give --checkpoint"
            f" another directory for {wanted.topic}"
        )
    changes = changes_of(stored, wanted, asked)
    bound = [name for name in changes if name not in _FREE]
    if bound and has_written and not may_change:
        told = " and ".join(_change(name, *changes[name]) for name in bound)
        raise ConfigFault(
            f"this ingest has written rows with {told}: add --continue-with to use the new settings"
            " from here on (rows that are there stay as they are, none is written twice), or"
            f" {_as_before(bound, stored)} to go on as before"
        )
    plan = stored._replace(**{name: now for name, (_, now) in changes.items()})
    plan = plan._replace(checkpoint=wanted.checkpoint)
    if plan.values == values.RAW:
        columns = plan.record_columns if "record_columns" in asked else ()
        plan = plan._replace(schema="", record_columns=columns)
    if bound and has_written and plan.path == stored.path:
        check_goes_with(
            stored,
            plan,
            f"give --to another directory, with --checkpoint {plan.checkpoint} --continue-with",
        )
    return plan, changes


def _change(name: str, before: Any, now: Any) -> str:
    return f"{_OPTIONS[name]} {_text(before) or 'not given'}, not {_text(now) or 'nothing'}"


def _as_before(bound: list[str], stored: IngestPlan) -> str:
    """What to give, and what to leave out, for nothing to change."""
    left = ", ".join(_OPTIONS[name] for name in bound if name != "path")
    parts = [f"give --to {stored.path}"] if "path" in bound else []
    return " and ".join(parts + ([f"leave {left} out"] if left else []))


def _text(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def check_goes_with(before: IngestPlan, now: IngestPlan, cure: str) -> None:
    """ConfigFault, with what to do, if files of two plans can't be read as one table."""
    advice = f"; readers would not take both as one table: {cure}"
    if now.format != before.format:
        raise ConfigFault(f"{now.path} holds {before.format}, not {now.format}{advice}")
    if now.partition_by != before.partition_by:
        raise ConfigFault(
            f"{now.path} is partitioned by {_text(before.partition_by) or 'nothing'}, not"
            f" {_text(now.partition_by) or 'nothing'}{advice}"
        )
    held = before.arrow_schema()
    for field in now.arrow_schema():
        if field.name in held.names and held.field(field.name).type != field.type:
            raise ConfigFault(
                f"{now.path} has the column {field.name} as {held.field(field.name).type}, not as"
                f" {field.type}{advice}"
            )


def position(log: str) -> tuple[Ends, dict[str, str]] | None:
    """Offsets and topic ids of an entry of Spark's offset log; None if it can't be read."""
    try:
        document = json.loads(log.splitlines()[-1])
        return offsets_of(document)
    except (ValueError, IndexError, ConfigFault):
        return None
