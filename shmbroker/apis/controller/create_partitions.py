"""CreatePartitions (key 37): more partitions for topics (KIP-195).

Versions: 0-3.
Where: the active controller.
Version notes: 2 flexible; 3 THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from __future__ import annotations

from shmbroker.apis.refusals import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call, Steps

API_KEY = 37
NAME = "CreatePartitions"
VERSION_MIN = 0
VERSION_MAX = 3
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer | Steps:
    """The results, when every broker at work has the partitions. A request about very many is
    decided in parts."""
    return controller.decide_in_parts(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER for each topic."""
    return {"results": [{"name": topic["name"]} | TOLD for topic in body["topics"]]}
