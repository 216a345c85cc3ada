"""CreateAcls (key 30): say who may do what.

Versions: 1-3.
Where: the active controller.
Version notes: 1 pattern types (KIP-290); 2 flexible; 3 user resources (KIP-373).
"""

from __future__ import annotations

from shmbroker.apis.refusals import NO_AUTHORIZER, TOLD
from shmbroker.security.acls import acl_of, says_unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 30
NAME = "CreateAcls"
VERSION_MIN = 1
VERSION_MAX = 3
VERSION_MIN_ADVERTISED = 1


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The results, when every broker and network worker at work knows the ACLs."""
    if any(map(says_unknown, map(acl_of, body["creations"]))):
        call.close("CreateAcls with a number that stands for unknown")
        return None
    if not controller.decisions.config.has_authorizer:
        return {"results": [NO_AUTHORIZER for _ in body["creations"]]}
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER for each."""
    return {"results": [TOLD for _ in body["creations"]]}
