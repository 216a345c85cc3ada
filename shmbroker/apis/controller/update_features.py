"""UpdateFeatures (key 57): other levels of features (KIP-584).

Versions: 0-2.
Where: the active controller.
Version notes: 1 kinds of downgrade, validation only (KIP-778); 2 one error for all.
"""

from __future__ import annotations

from shmbroker.apis.refusals import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 57
NAME = "UpdateFeatures"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The result, when every broker at work knows the levels."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return TOLD | {"results": []}
