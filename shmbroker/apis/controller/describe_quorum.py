"""DescribeQuorum (key 55): who votes on the metadata log, who follows it (KIP-595).

Versions: 0-2.
Where: the active controller.
Version notes: 1 times (KIP-836); 2 directory ids, nodes and messages (KIP-853).
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 55
NAME = "DescribeQuorum"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """How far each voter and observer is, as the leader of the log knows it."""
    return controller.decisions.describe_quorum(body, call.api_version, controller.now_ms())


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return ERROR | {"topics": []}
