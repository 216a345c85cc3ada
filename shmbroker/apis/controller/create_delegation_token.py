"""CreateDelegationToken (key 38): a token that stands for who asks, or for another.

Versions: 1-3.
Where: the active controller.
Version notes: 2 flexible; 3 tokens of other owners (KIP-373).
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 38
NAME = "CreateDelegationToken"
VERSION_MIN = 1
VERSION_MAX = 3
VERSION_MIN_ADVERTISED = 1


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The token, when every broker and network worker at work knows it."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return dict(ERROR)
