"""AlterPartitionReassignments (key 45): other replicas for partitions (KIP-455).

Versions: 0-1.
Where: the active controller.
Version notes: 1 may refuse another number of replicas (KIP-860).
"""

from __future__ import annotations

from shmbroker.apis.refusals import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 45
NAME = "AlterPartitionReassignments"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The results, when every broker at work knows what is to be copied."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return TOLD | {"responses": []}
