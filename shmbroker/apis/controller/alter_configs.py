"""AlterConfigs (key 33): all settings of a resource at once; what is not named is reset.

Versions: 0-2.
Where: the active controller.
Version notes: 2 flexible.
"""

from __future__ import annotations

from shmbroker.apis.refusals import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call, Steps

API_KEY = 33
NAME = "AlterConfigs"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer | Steps:
    """The results; a request about very many settings is decided in parts."""
    return controller.decide_in_parts(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER for each resource."""
    keys = ("resource_type", "resource_name")
    return {"responses": [{key: row[key] for key in keys} | TOLD for row in body["resources"]]}
