"""ElectLeaders (key 43): the preferred leader, or an unclean one (KIP-183, KIP-460).

Versions: 0-2.
Where: the active controller.
Version notes: 1 unclean elections; 2 flexible.
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 43
NAME = "ElectLeaders"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The results, when every broker at work knows the leaders."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER; version 0 has no room for it."""
    return (ERROR if version >= 1 else {}) | {"replica_election_results": []}
