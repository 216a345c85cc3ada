"""AlterPartition (key 56): a leader changes who is in sync (KIP-497).

Versions: 3.
Where: the active controller. Brokers of the family ask it over their rings; no client may.
Version notes: 3 broker epochs of the in-sync replicas (KIP-903).
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 56
NAME = "AlterPartition"
VERSION_MIN = 3
VERSION_MAX = 3
VERSION_MIN_ADVERTISED = 3


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The partitions as they are now, once that is committed: the leader has waited long enough."""
    answered = controller.decisions.handle(NAME, call.api_version, body, controller.now_ms())
    controller.publish_committed()
    return answered


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return ERROR | {"topics": []}
