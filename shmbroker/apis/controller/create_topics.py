"""CreateTopics (key 19): topics with so many partitions, or with replicas that are named.

Versions: 2-7.
Where: the active controller.
Version notes: 4 partitions and replicas by default (KIP-464); 5 flexible, and the topic's settings
in the answer (KIP-525); 7 topic ids (KIP-516).
"""

from __future__ import annotations

from shmbroker.apis.refusals import TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Call, Steps

API_KEY = 19
NAME = "CreateTopics"
VERSION_MIN = 2
VERSION_MAX = 7
VERSION_MIN_ADVERTISED = 2


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Steps:
    """The results, when every broker at work has the topics. A request about very many is decided
    in parts. Topics that somebody uses get the defaults, or what Kafka gives its internal topics,
    and the answer names none."""
    if call.is_by_use:
        return controller.create_used(call, [topic["name"] for topic in body["topics"]])
    return controller.decide_in_parts(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER for each topic."""
    return {"topics": [{"name": topic["name"]} | TOLD for topic in body["topics"]]}
