"""InitProducerId (key 22): a producer id for an idempotent producer.

Versions: 0-5, without transactions.
Where: the I/O worker of the connection's port, from a block of ids that the controller gave it.
Version notes: 2 flexible; 3 producer id and epoch of before (KIP-360); 4 PRODUCER_FENCED.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import Call
from shmbroker.wire import error_codes

API_KEY = 22
NAME = "InitProducerId"
VERSION_MIN = 0
VERSION_MAX = 5
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
    """None while the first block of ids is on its way: it is answered when that is here."""
    if broker.wait_for_producer_ids(lambda: call.reply(answer_now(broker, body))):
        return None
    return answer_now(broker, body)


def answer_now(broker: BrokerContext, body: dict[str, Any]) -> dict[str, Any]:
    """A new id with epoch 0; an id and epoch of before are ignored without a transactional id."""
    failed = {"producer_id": -1, "producer_epoch": -1}
    if (body["producer_id"] == -1) != (body["producer_epoch"] == -1):
        return failed | {"error_code": error_codes.INVALID_REQUEST}
    if body["transactional_id"] is not None:
        if body["transactional_id"] == "":
            return failed | {"error_code": error_codes.INVALID_REQUEST}
        return failed | {"error_code": error_codes.UNSUPPORTED_VERSION}
    producer_id = broker.next_producer_id()
    if producer_id is None:
        return failed | {"error_code": error_codes.COORDINATOR_LOAD_IN_PROGRESS}
    return {"producer_id": producer_id, "producer_epoch": 0}
