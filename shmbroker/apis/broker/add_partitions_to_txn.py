"""AddPartitionsToTxn (key 24): partitions become part of a transaction.

Versions: 0-5.
Where: the I/O worker of the connection's port, if it coordinates the transactional id.
Version notes: 2 PRODUCER_FENCED; 3 flexible; 4 several transactions, verify only: for brokers
(KIP-890); 5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.groups.transactions.transaction import (
    Transaction,
    error_in_version,
)
from shmbroker.ipc.operation_adapter import Call
from shmbroker.metadata.topic_names import INTERNAL_TOPICS
from shmbroker.records.end_marker import EPOCH_BUMPS_FROM
from shmbroker.wire import error_codes

API_KEY = 24
NAME = "AddPartitionsToTxn"
VERSION_MIN = 0
VERSION_MAX = 5
VERSION_MIN_ADVERTISED = 0

SEVERAL_FROM = 4
"""The first version in which a leader asks about several transactions."""
FENCED_FROM = 2

Topics = list[dict[str, Any]]


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
    """An error code for each partition; with one that is not there, nothing is added."""
    if call.api_version >= SEVERAL_FROM:
        return _several(broker, call, body["transactions"])
    topics = body["v3_and_below_topics"]
    if errors := _refused(broker, topics, may_be_internal=False):
        return {"results_by_topic_v3_and_below": _each(errors)}

    def done(error: int, _: Transaction | None) -> None:
        error = error_in_version(error, call.api_version, FENCED_FROM)
        call.reply({"results_by_topic_v3_and_below": _alike(topics, error)})

    broker.transactions.requests.add_partitions(
        body["v3_and_below_transactional_id"],
        body["v3_and_below_producer_id"],
        body["v3_and_below_producer_epoch"],
        _all(topics),
        0,
        done,
    )
    return None


def _several(
    broker: BrokerContext, call: Call, asked: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Each transaction for itself; the answer leaves when all have theirs."""
    results = [{"transactional_id": row["transactional_id"], "topic_results": []} for row in asked]
    waiting = len(asked)

    def finish(result: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        nonlocal waiting
        result["topic_results"] = rows
        waiting -= 1
        if not waiting:
            call.reply({"results_by_transaction": results})

    def add(row: dict[str, Any], result: dict[str, Any]) -> None:
        topics = row["topics"]

        def done(error: int, _: Transaction | None) -> None:
            finish(result, _alike(topics, error))

        if errors := _refused(broker, topics, may_be_internal=True):
            finish(result, _each(errors))
            return
        who = row["transactional_id"], row["producer_id"], row["producer_epoch"], _all(topics)
        if row["verify_only"]:
            finish(result, _each(broker.transactions.requests.verify(*who)))
        else:
            broker.transactions.requests.add_partitions(*who, EPOCH_BUMPS_FROM, done)

    if not asked:
        return {"results_by_transaction": []}
    for row, result in zip(asked, results, strict=True):
        add(row, result)
    return None


def _all(topics: Topics) -> list[tuple[str, int]]:
    return [(topic["name"], index) for topic in topics for index in topic["partitions"]]


def _refused(
    broker: BrokerContext, topics: Topics, *, may_be_internal: bool
) -> dict[tuple[str, int], int]:
    """The error codes of all partitions, if one of them can't be added; else nothing."""
    found = {}
    for name, index in _all(topics):
        image = broker.image.topics_by_name.get(name)
        if name in INTERNAL_TOPICS and not may_be_internal:
            found[name, index] = error_codes.TOPIC_AUTHORIZATION_FAILED
        elif image is None or not 0 <= index < len(image.partitions):
            found[name, index] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if not found:
        return {}
    return dict.fromkeys(_all(topics), error_codes.OPERATION_NOT_ATTEMPTED) | found


def _alike(topics: Topics, error: int) -> list[dict[str, Any]]:
    """Rows with one error code for all partitions, in the shape of the request."""
    return [
        {
            "name": topic["name"],
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": error}
                for index in topic["partitions"]
            ],
        }
        for topic in topics
    ]


def _each(errors: dict[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Rows that tell each partition once, below its topic; a topic that names none is left out."""
    found: dict[str, list[dict[str, int]]] = {}
    for (name, index), error in errors.items():
        row = {"partition_index": index, "partition_error_code": error}
        found.setdefault(name, []).append(row)
    return [{"name": name, "results_by_partition": rows} for name, rows in found.items()]
