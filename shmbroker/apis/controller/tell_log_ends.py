"""TellLogEnds (key 20007, our own): where a broker's logs end, and what they lack.

Versions: 0.
Where: the active controller. Brokers of the family ask it over their rings; no client may.

After an unclean end, or when a replica lacks what it had, or its leader what was committed
(`controller.decisions.lost_replicas`).
"""

from __future__ import annotations

from shmbroker.apis.refusals import ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call

API_KEY = 20007
NAME = "TellLogEnds"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0

# What a broker says of a replica.
HAS = 0
"""The replica's log ends there."""
LACKS = 1
"""The replica's log ends there, and reached further once."""
IS_AHEAD = 2
"""The replica's log reaches further than its leader's, by records that were committed."""


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """The leaders of the partitions about which there was something to decide."""
    answered = controller.decisions.told_ends.take(body, controller.now_ms())
    controller.settle()
    controller.publish_committed()
    return answered


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return ERROR | {"topics": []}
