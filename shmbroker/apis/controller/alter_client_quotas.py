"""AlterClientQuotas (key 49): say how much clients may do (KIP-546).

Versions: 0-1.
Where: the active controller.
Version notes: 1 flexible.
"""

from __future__ import annotations

from shmbroker.apis.refusals import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 49
NAME = "AlterClientQuotas"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The results, when every broker and network worker at work knows the quotas."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER for each."""
    return {"entries": [TOLD | {"entity": row["entity"]} for row in body["entries"]]}
