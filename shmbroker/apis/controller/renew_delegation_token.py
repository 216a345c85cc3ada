"""RenewDelegationToken (key 39): let a token hold for longer.

Versions: 1-2.
Where: the active controller.
Version notes: 2 flexible.
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 39
NAME = "RenewDelegationToken"
VERSION_MIN = 1
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 1


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The time until which the token holds."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return dict(ERROR)
