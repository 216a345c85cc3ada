"""AddRaftVoter (key 80): refused, as the set of voters is fixed (KIP-853).

Versions: 0-1.
Where: the active controller.
Version notes: 1 when it is acknowledged (KIP-1186).
"""

from __future__ import annotations

from shmbroker.apis.refusals import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 80
NAME = "AddRaftVoter"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """UNSUPPORTED_VERSION, after Kafka's checks."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return dict(TOLD)
