"""JoinGroup (key 11): become or stay a member of a group, and wait for its next generation.

Versions: 0-9.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: 1 rebalance timeout (KIP-62); 4 MEMBER_ID_REQUIRED (KIP-394); 5 static members
(KIP-345); 6 flexible; 7 protocol type (KIP-559); 8 reason (KIP-800); 9 skip assignment (KIP-814).
Advertised from 0: librdkafka judges other features by it.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import Call

API_KEY = 11
NAME = "JoinGroup"
VERSION_MIN = 0
VERSION_MAX = 9
VERSION_MIN_ADVERTISED = 0

PROTOCOL_NULLABLE_FROM = 7
NAME_CHARACTERS_MAX = 1024
"""A client's name is cut to that: with a uuid behind it, it must fit into a string again."""


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> None:
    """Answered by the coordinator, now or when the rebalance is over."""
    client_id = call.client_id.decode(errors="replace")[:NAME_CHARACTERS_MAX]
    caller = call if call.api_version >= PROTOCOL_NULLABLE_FROM else JoinCall(call)
    broker.groups.classics.join(caller, body, client_id, f"/{call.identity.host}")


class JoinCall:
    """A call of a version without null: its answer has a name for "no protocol"."""

    __slots__ = ("api_version", "call")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.api_version = call.api_version

    def reply(self, body: dict[str, Any]) -> None:
        if body["protocol_name"] is None:
            body["protocol_name"] = ""
        self.call.reply(body)
