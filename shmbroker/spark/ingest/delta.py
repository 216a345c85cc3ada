"""A micro-batch's files into a Delta Lake table, in one commit of its log, once.

By `deltalake` (delta-rs), without a JVM. The commit carries the application transaction (ingest's
id, micro-batch): one that is there already is not made again.
"""

import json
import os
from typing import TYPE_CHECKING

from shmbroker import clock
from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest.files import FilesFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmbroker.spark.ingest.files import Written
    from shmbroker.spark.ingest.plan import Plan


def check_installed() -> None:
    """ConfigFault if the library is not there."""
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise ConfigFault("Delta tables need deltalake: pip install 'shmbroker[delta]'") from None


def add_to_table(plan: "Plan", batch: int, written: "Sequence[Written]") -> None:
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
