"""A micro-batch's files into a Delta Lake table, in one commit of its log, once.

By `deltalake` (delta-rs), without a JVM. The commit carries the application transaction (ingest's
id, micro-batch): one that is there already is not made again.
"""

from __future__ import annotations

import json
import os

from shmbroker import clock
from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest.table_state import FilesFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from shmbroker.spark.ingest.files import WrittenFile
    from shmbroker.spark.ingest.plan import IngestPlan


_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""In the metadata of a column: what its values have to be."""


def check_installed() -> None:
    """ConfigFault if the library is not there."""
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise ConfigFault("Delta tables need deltalake: pip install deltalake") from None


def check_table(plan: IngestPlan) -> None:
    """ConfigFault if there is a table, and the plan's files don't go with it."""
    from deltalake import DeltaTable

    if DeltaTable.is_deltatable(plan.path):
        _check_goes_with(plan, DeltaTable(plan.path))


def _check_goes_with(plan: IngestPlan, table: DeltaTable) -> None:
    """ConfigFault if the table has other columns: files that don't go with its schema would make
    all of it unreadable. It may have more of them, which are null then."""
    from deltalake import Schema

    held = {field.name: field for field in table.schema().fields}
    _check_rules(plan, table)
    given = plan.given_columns()
    for field in Schema.from_arrow(plan.arrow_schema()).fields:
        if field.name not in held:
            raise ConfigFault(
                f"the Delta table {plan.path} has no column {field.name}: add it there, or leave it"
                " out of --schema"
            )
        column = held.pop(field.name)
        before = column.type
        if not column.nullable and field.name not in given:
            raise ConfigFault(
                f"the Delta table {plan.path} has the column {field.name} as NOT NULL, and this"
                " ingest may have nulls for it: a column is NOT NULL where --schema says so"
            )
        if before != field.type:
            raise ConfigFault(
                f"the Delta table {plan.path} has the column {field.name} as {_type_text(before)},"
                f" not as {_type_text(field.type)}: give it the same type in --schema"
            )
    required = [name for name, field in held.items() if not field.nullable]
    if required:
        raise ConfigFault(f"the Delta table {plan.path} needs a column {required[0]}")
    before_by = table.metadata().partition_columns
    if before_by != list(plan.partition_by):
        raise ConfigFault(
            f"the Delta table {plan.path} is partitioned by {', '.join(before_by) or 'nothing'}:"
            " --partition-by has to say the same"
        )


def _check_rules(plan: IngestPlan, table: DeltaTable) -> None:
    """ConfigFault if the table wants of its writers what nobody does here: they add files, and
    look at no row."""
    configuration = table.metadata().configuration
    rules = [name for name in configuration if name.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        rules.append("delta.columnMapping.mode")
    for field in table.schema().fields:
        rules += [f"{field.name}: {name}" for name in _RULES if name in field.metadata]
    if rules:
        raise ConfigFault(
            f"the Delta table {plan.path} has {rules[0]}, which an ingest can't keep: ingest into a"
            " table of its own"
        )


def _type_text(kind: object) -> str:
    return str(getattr(kind, "type", kind))


def add_to_table(plan: IngestPlan, batch: int, written: Sequence[WrittenFile]) -> None:
    """Commit these files as micro-batch number `batch`; nothing if that was done before."""
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

    actions = [
        AddAction(
            os.path.relpath(file.final, plan.path),
            file.size,
            file.partition_values,
            clock.now_ms(),
            True,
            json.dumps({"numRecords": file.rows}),
        )
        for file in written
    ]
    added: list[AddAction | RemoveAction] = [*actions]
    properties = CommitProperties(
        app_transactions=[Transaction(f"shmbroker-{plan.ingest_id}", batch)]
    )
    schema = Schema.from_arrow(plan.arrow_schema())
    partition_by = list(plan.partition_by) or None
    try:
        if not DeltaTable.is_deltatable(plan.path):
            create_table_with_add_actions(
                plan.path,
                schema,
                actions,
                partition_by=partition_by,
                commit_properties=properties,
            )
            return
        table = DeltaTable(plan.path)
        _check_goes_with(plan, table)  # it may have been made, or changed, since the start
        last = table.transaction_version(f"shmbroker-{plan.ingest_id}")
        if actions and (last is None or last < batch):
            table.create_write_transaction(
                added,
                "append",
                schema,
                partition_by=partition_by,
                commit_properties=properties,
            )
    except DeltaError as error:
        raise FilesFault(f"the Delta table {plan.path} refuses: {error}") from error


def compact(path: str, target: int) -> dict[str, int]:
    """Merge small files, in one commit."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        found = DeltaTable(path).optimize.compact(target_size=target)
    except DeltaError as error:
        raise FilesFault(f"the Delta table {path} refuses: {error}") from error
    return {"merged": int(found["numFilesRemoved"]), "into": int(found["numFilesAdded"])}
