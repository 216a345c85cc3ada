"""BrokerHeartbeat (key 63): a broker is going to stop (KIP-631).

Versions: 1.
Where: the active controller. Brokers of the family ask it over their rings; no client may.

Signs of life are left in shared memory, so nobody sends heartbeats: this is all that is
asked.
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Call

API_KEY = 63
NAME = "BrokerHeartbeat"
VERSION_MIN = 1
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 1


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> None:
    """Answer that the broker may stop, when every broker at work knows who leads in its place."""
    error = controller.decisions.membership.begin_shutdown(
        body["broker_id"], body["broker_epoch"], controller.now_ms()
    )
    controller.publish_committed()
    controller.park(
        call, {"error_code": error, "is_caught_up": True, "should_shut_down": not error}
    )


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return dict(ERROR)
