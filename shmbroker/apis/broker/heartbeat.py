"""Heartbeat (key 12): a member is alive, and learns of a rebalance.

Versions: 0-4.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: 3 static members (KIP-345); 4 flexible.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import Call

API_KEY = 12
NAME = "Heartbeat"
VERSION_MIN = 0
VERSION_MAX = 4
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> None:
    """0, or what the member has to do; 0 is said again by the network worker while it stands."""
    error, grant = broker.groups.classics.heartbeat(body)
    call.reply({"error_code": error}, grant)
