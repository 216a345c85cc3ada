"""ListPartitionReassignments (key 46): reassignments that go on (KIP-455).

Versions: 0.
Where: the active controller.
"""

from __future__ import annotations

from shmbroker.apis.refusals import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 46
NAME = "ListPartitionReassignments"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The reassignments of the partitions asked for; all if none is."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return TOLD | {"topics": []}
