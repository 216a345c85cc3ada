"""DeleteAcls (key 31): take back what was said about who may do what.

Versions: 1-3.
Where: the active controller.
Version notes: 1 pattern types (KIP-290); 2 flexible; 3 user resources (KIP-373).
"""

from __future__ import annotations

from shmbroker.apis.refusals import NO_AUTHORIZER, TOLD
from shmbroker.security.acls import AclFilter, says_unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 31
NAME = "DeleteAcls"
VERSION_MIN = 1
VERSION_MAX = 3
VERSION_MIN_ADVERTISED = 1


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The ACLs that each filter has found, when every process at work has dropped them."""
    if any(map(says_unknown, map(AclFilter.of, body["filters"]))):
        call.close("DeleteAcls with a number that stands for unknown")
        return None
    if not controller.decisions.config.has_authorizer:
        return {"filter_results": [NO_AUTHORIZER | {"matching_acls": []} for _ in body["filters"]]}
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER for each filter."""
    return {"filter_results": [TOLD | {"matching_acls": []} for _ in body["filters"]]}
