"""LeaveGroup (key 13): members go, without waiting for their session to end.

Versions: 0-5.
Where: the I/O worker of the connection's port, if it coordinates the group.
Version notes: 3 several members, by member or instance id (KIP-345); 4 flexible; 5 reason
(KIP-800).
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import Call

API_KEY = 13
NAME = "LeaveGroup"
VERSION_MIN = 0
VERSION_MAX = 5
VERSION_MIN_ADVERTISED = 0

SEVERAL_FROM = 3


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """An error code for each member; below version 3 for the only one."""
    members = body["members"]
    if call.api_version < SEVERAL_FROM:
        members = [{"member_id": body["member_id"], "group_instance_id": None}]
    leaving = [(row["member_id"], row["group_instance_id"]) for row in members]
    error, errors = broker.groups.classics.leave(body["group_id"], leaving)
    if error:
        return {"error_code": error}
    if call.api_version < SEVERAL_FROM:
        return {"error_code": errors[0]}
    return {
        "members": [
            {
                "member_id": row["member_id"],
                "group_instance_id": row["group_instance_id"],
                "error_code": code,
            }
            for row, code in zip(members, errors, strict=True)
        ]
    }
