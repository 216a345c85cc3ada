"""BrokerRegistration (key 62): a broker starts (KIP-631).

Versions: 4.
Where: the active controller. Brokers of the family ask it over their rings; no client may.
Version notes: 2 log directories (KIP-858); 3 the epoch of the registration
before, if it ended cleanly (KIP-966).
"""

from __future__ import annotations

import logging

from shmbroker.apis.refusals import ERROR
from shmbroker.log.faults import DiskFullFault
from shmbroker.wire.error_codes import NOT_CONTROLLER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.apis.contexts import ControllerContext
    from shmbroker.ipc.operation_adapter import Answer, Call
    from shmbroker.metadata.image import BrokerImage

logger = logging.getLogger(__name__)

API_KEY = 62
NAME = "BrokerRegistration"
VERSION_MIN = 4
VERSION_MAX = 4
VERSION_MIN_ADVERTISED = 4


def answer(controller: ControllerContext, call: Call, body: dict[str, Any]) -> Answer:
    """Register a broker and give it its epoch: clients may be sent there as soon as it serves."""
    broker_id = body["broker_id"]
    listener = body["listeners"][0]
    decisions, now_ms = controller.decisions, controller.now_ms()
    known = decisions.image.brokers.get(broker_id)
    is_clean = _was_clean(controller, body, known) or not decisions.image.has_copies(broker_id)
    try:
        broker_epoch = decisions.membership.register_broker(
            broker_id,
            listener["host"],
            listener["port"],
            body["incarnation_id"],
            body["log_dirs"],
            now_ms,
            is_clean,
            controller.brokers.pending(),
        )
        if is_clean:
            decisions.membership.unfence_broker(broker_id, now_ms, controller.brokers.pending())
        controller.settle()
    except DiskFullFault as fault:
        if known is None:
            raise
        is_same = set(known.directories) <= set(body["log_dirs"])
        if not (is_clean and is_same) and decisions.image.has_copies(broker_id):
            # What it may lack has to be on record before it may lead: it asks again.
            controller.say_full(f"{fault}; broker {broker_id} has to wait")
            return {"error_code": NOT_CONTROLLER}
        # It is the same directory at the same address: it may serve what it has.
        logger.warning("%s; broker %d keeps its registration", fault, broker_id)
        broker_epoch = decisions.image.brokers[broker_id].broker_epoch
    controller.publish_committed()
    return {"broker_epoch": broker_epoch}


def _was_clean(
    controller: ControllerContext, body: dict[str, Any], known: BrokerImage | None
) -> bool:
    """Whether a broker that registers has all that it ever had: it stopped cleanly, or died alone,
    and the page cache with what it wrote lives. `known`: its registration before."""
    if known is None or controller.brokers.has_served(body["broker_id"]):
        return True
    return bool(body["previous_broker_epoch"] == known.broker_epoch)


def not_controller(version: int, body: dict[str, Any]) -> dict[str, Any]:
    """NOT_CONTROLLER."""
    return dict(ERROR)
