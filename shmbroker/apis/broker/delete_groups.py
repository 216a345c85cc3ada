"""DeleteGroups (key 42): forget groups without members, and all that they have committed.

Versions: 0-2.
Where: the I/O worker of the connection's port, if it coordinates the groups.
Version notes: KIP-229; 2 flexible.
"""

from typing import Any

from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps

API_KEY = 42
NAME = "DeleteGroups"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """An error code for each group; one that is named twice is deleted and answered once."""
    results = []
    for group_id in dict.fromkeys(body["groups_names"]):
        results.append({"group_id": group_id, "error_code": broker.groups.removal.delete(group_id)})
        if len(results) % STEP_ROWS == 0:
            yield
    return {"results": results}
