"""DescribeGroups (key 15): state, members and assignments of groups.

Versions: 0-6.
Where: the I/O worker of the connection's port, if it coordinates the groups.
Version notes: 3 authorized operations (KIP-430); 4 static members; 5 flexible; 6 error message,
GROUP_ID_NOT_FOUND for what used to be a dead group (KIP-1043).
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.groups.classic.answers import described
from shmbroker.groups.classic.states import DEAD
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.wire import error_codes

API_KEY = 15
NAME = "DescribeGroups"
VERSION_MIN = 0
VERSION_MAX = 6
VERSION_MIN_ADVERTISED = 0

NOT_FOUND_FROM = 6

ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Read, delete, describe, and describe or alter its configs: without ACLs all that a group has."""


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """A row for each group, one if it is named twice: no small request has a huge answer."""
    rows = []
    for group_id in dict.fromkeys(body["groups"]):
        error, group = broker.groups.describe(group_id)
        if group is not None:
            row = described(group)
        else:
            row = {"group_id": group_id, "error_code": error}
            if not error:
                row["group_state"] = DEAD
                if call.api_version >= NOT_FOUND_FROM:
                    row["error_code"] = error_codes.GROUP_ID_NOT_FOUND
                    row["error_message"] = f"Group {group_id} not found."
        if body["include_authorized_operations"] and not row["error_code"]:
            row["authorized_operations"] = ALL_OPERATIONS
        rows.append(row)
        if len(rows) % STEP_ROWS == 0:
            yield
    return {"groups": rows}
