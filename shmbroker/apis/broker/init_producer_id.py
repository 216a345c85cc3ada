"""InitProducerId (key 22): a producer id, for an idempotent or a transactional producer.

Versions: 0-5.
Where: the I/O worker of the connection's port, from a block of ids that the controller gave it; the
coordinator of the transactional id, if there is one.
Version notes: 2 flexible; 3 producer id and epoch of before (KIP-360); 4 PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.groups.transactions.transaction import Transaction, error_in_version
from shmbroker.ipc.operation_adapter import Call
from shmbroker.wire import error_codes

API_KEY = 22
NAME = "InitProducerId"
VERSION_MIN = 0
VERSION_MAX = 5
VERSION_MIN_ADVERTISED = 0

FENCED_FROM = 4


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
    """None while the first block of ids is on its way: it is answered when that is here."""

    def on_here() -> None:
        found = answer_now(broker, call, body)
        if found is not None:
            call.reply(found)

    if broker.wait_for_producer_ids(on_here):
        return None
    return answer_now(broker, call, body)


def answer_now(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
    """A new id with epoch 0; an id and epoch of before are ignored without a transactional id."""
    failed = {"producer_id": -1, "producer_epoch": -1}
    if (body["producer_id"] == -1) != (body["producer_epoch"] == -1):
        return failed | {"error_code": error_codes.INVALID_REQUEST}
    if body["transactional_id"] is not None:

        def done(error: int, known: Transaction | None) -> None:
            if error or known is None:
                error = error_in_version(error, call.api_version, FENCED_FROM)
                call.reply(failed | {"error_code": error})
            else:
                found = {"producer_id": known.producer_id, "producer_epoch": known.producer_epoch}
                call.reply(found)

        broker.transactions.requests.init_producer_id(
            body["transactional_id"],
            body["producer_id"],
            body["producer_epoch"],
            body["transaction_timeout_ms"],
            done,
        )
        return None
    producer_id = broker.next_producer_id()
    if producer_id is None:
        return failed | {"error_code": error_codes.COORDINATOR_LOAD_IN_PROGRESS}
    return {"producer_id": producer_id, "producer_epoch": 0}
