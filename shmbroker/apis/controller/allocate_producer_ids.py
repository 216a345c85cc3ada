"""AllocateProducerIds (key 67): producer ids that nobody else gets (KIP-730).

Versions: 0.
Where: the active controller. Brokers of the family ask it over their rings; no client may.
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 67
NAME = "AllocateProducerIds"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """A block of them."""
    error, start, count = controller.decisions.allocate_producer_ids(
        body["broker_id"], body["broker_epoch"], controller.now_ms()
    )
    controller.publish_committed()
    return {"error_code": error, "producer_id_start": start, "producer_id_len": count}


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return dict(ERROR)
