"""SyncGroup (key 14): the leader hands in the assignment, every member gets its own.

Versions: 0-5.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: 3 static members (KIP-345); 4 flexible; 5 protocol type and name (KIP-559).
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import Call
from shmbroker.wire import error_codes

API_KEY = 14
NAME = "SyncGroup"
VERSION_MIN = 0
VERSION_MAX = 5
VERSION_MIN_ADVERTISED = 0

PROTOCOL_REQUIRED_FROM = 5


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any] | None:
    """Answered by the coordinator, now or when the leader's assignment is stored."""
    if call.api_version >= PROTOCOL_REQUIRED_FROM and (
        body["protocol_type"] is None or body["protocol_name"] is None
    ):
        return {"error_code": error_codes.INCONSISTENT_GROUP_PROTOCOL}
    broker.groups.classics.sync(call, body)
    return None
