"""DeleteTopics (key 20): topics and their logs go, by name or by id.

Versions: 1-6.
Where: the active controller.
Version notes: 4 flexible; 5 error messages (KIP-599); 6 topic ids (KIP-516).
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR, TOLD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 20
NAME = "DeleteTopics"
VERSION_MIN = 1
VERSION_MAX = 6
VERSION_MIN_ADVERTISED = 1


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The results, when every broker at work has dropped the topics."""
    return controller.decide(call, body)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER for each topic, as it was named."""
    told = TOLD if version >= 5 else ERROR
    topics = body["topics"] or [{"name": name} for name in body["topic_names"]]
    return {"responses": [dict(topic) | told for topic in topics]}
