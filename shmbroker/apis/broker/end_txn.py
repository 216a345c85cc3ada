"""EndTxn (key 26): a transaction is committed or aborted.

Versions: 0-5.
Where: the I/O worker of the connection's port, if it coordinates the transactional id.
Version notes: 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE; 5 a new epoch with each end
(KIP-890).
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.groups.transactions.transaction import (
    Transaction,
    after_end,
    error_in_version,
)
from shmbroker.ipc.operation_adapter import Call
from shmbroker.records.end_marker import EPOCH_BUMPS_FROM

API_KEY = 26
NAME = "EndTxn"
VERSION_MIN = 0
VERSION_MAX = 5
VERSION_MIN_ADVERTISED = 0

FENCED_FROM = 2
EPOCH_FROM = 5


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> None:
    """What the producer asked for is decided when it is told so; with its next epoch."""

    def done(error: int, known: Transaction | None) -> None:
        found = {"error_code": error_in_version(error, call.api_version, FENCED_FROM)}
        if not error and known is not None and call.api_version >= EPOCH_FROM:
            found["producer_id"], found["producer_epoch"] = after_end(known)
        call.reply(found)

    broker.transactions.requests.end(
        body["transactional_id"],
        body["producer_id"],
        body["producer_epoch"],
        body["committed"],
        EPOCH_BUMPS_FROM if call.api_version >= EPOCH_FROM else 0,
        done,
    )
