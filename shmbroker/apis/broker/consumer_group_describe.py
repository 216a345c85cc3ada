"""ConsumerGroupDescribe (key 69): epochs, members and assignments of groups of the new protocol.

Versions: 0-1.
Where: the I/O worker of the connection's port, if it coordinates the groups.
Version notes: KIP-848; 1 type of each member: classic or consumer. UNSUPPORTED_VERSION while the
feature group.version is at level 0.
"""

from typing import Any

from shmbroker.apis.broker.describe_groups import ALL_OPERATIONS
from shmbroker.apis.contexts import BrokerContext
from shmbroker.ipc.operation_adapter import STEP_ROWS, Call, Steps
from shmbroker.metadata.features import GROUP_VERSION
from shmbroker.wire import error_codes

API_KEY = 69
NAME = "ConsumerGroupDescribe"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0


def answer(broker: BrokerContext, call: Call, body: dict[str, Any]) -> Steps:
    """A row for each group, one if it is named twice."""
    is_served = bool(broker.image.features.get(GROUP_VERSION))
    rows = []
    for group_id in dict.fromkeys(body["group_ids"]):
        error, row = error_codes.UNSUPPORTED_VERSION, None
        if is_served:
            error, row = broker.groups.consumers.describe(group_id)
        if row is None:
            row = {"group_id": group_id, "error_code": error}
            if error == error_codes.GROUP_ID_NOT_FOUND:
                is_other = broker.groups.describe(group_id)[1] is not None
                reason = "is not a consumer group" if is_other else "not found"
                row["error_message"] = f"Group {group_id} {reason}."
        elif body["include_authorized_operations"]:
            row["authorized_operations"] = ALL_OPERATIONS
        rows.append(row)
        if len(rows) % STEP_ROWS == 0:
            yield
    return {"groups": rows}
