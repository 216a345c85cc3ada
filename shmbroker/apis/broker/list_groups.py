"""ListGroups (key 16): the groups that this broker coordinates.

Versions: 0-5.
Where: the I/O worker of the connection's port.
Version notes: 3 flexible; 4 states (KIP-518); 5 types (KIP-848).
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps

API_KEY = 16
NAME = "ListGroups"
VERSION_MIN = 0
VERSION_MAX = 5
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """The groups of the states and types asked for, in whatever case; all if none are."""
    error, groups = broker.groups.list_groups(
        {state.lower() for state in body["states_filter"]},
        {kind.lower() for kind in body["types_filter"]},
    )
    rows = []
    for group in groups:
        rows.append(
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state,
                "group_type": group.group_type,
            }
        )
        if len(rows) % STEP_ROWS == 0:
            yield
    return {"error_code": error, "groups": rows}
