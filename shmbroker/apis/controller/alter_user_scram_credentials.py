"""AlterUserScramCredentials (key 51): set and remove the passwords of users (KIP-554).

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

API_KEY = 51
NAME = "AlterUserScramCredentials"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The results, when every broker and network worker at work knows the users."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER for each."""
    users = dict.fromkeys(row["name"] for row in (*body["deletions"], *body["upsertions"]))
    return {"results": [TOLD | {"user": user} for user in users]}
