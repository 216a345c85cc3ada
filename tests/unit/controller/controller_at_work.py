"""What the controller's tests share besides fixtures."""

from collections.abc import Callable

from shmbroker.controller.active_controller import ActiveController

NOW_MS = 1_700_000_000_000
DIRECTORY_ID = bytes(range(16))
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"

Start = Callable[..., ActiveController]


def join(controller: ActiveController, broker_id: int) -> int:
    """Register a broker and let it work; its broker epoch."""
    epoch = controller.register_broker(
        broker_id, "127.0.0.1", 9091 + broker_id, bytes([broker_id]) * 16, [DIRECTORY_ID], NOW_MS
    )
    controller.unfence_broker(broker_id, NOW_MS)
    return epoch
