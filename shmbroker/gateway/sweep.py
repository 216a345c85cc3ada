"""What a gateway does once a second: it ends what is idle, forgets what does not hold any more, and
gives back what is not used."""

from __future__ import annotations

from shmbroker import logs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.gateway.gateway import Gateway

PARTIAL_FRAME_S = 10.0
"""Half a frame that does not move for this long ends its connection."""
MUCH_BYTES = 4 << 20
"""Where frames had this much memory lately, what is free of it is given back to the system."""


class Sweep:
    """The rounds of one gateway."""

    def __init__(self, gateway: Gateway, give_back: Callable[[], None]) -> None:
        """give_back: gives memory that is free back to the system."""
        self._gateway = gateway
        self._give_back = give_back
        self._image = gateway.image
        """The image in which all that is remembered of requests holds."""

    def run(self, now: float) -> None:
        """Look at all connections, write what is held back of logs, and let others see the rest."""
        gateway = self._gateway
        loop = gateway.loop
        loop.sweep(now, gateway.config["connections.max.idle.ms"] / 1000, PARTIAL_FRAME_S)
        logs.flush()
        if gateway.image is not self._image:
            self._image = gateway.image
            gateway.produce.known.forget_gone(self._image)
            gateway.fetch.forget_gone(self._image)
        if gateway.tls is not None:
            gateway.tls.sweep(now)
        if gateway.tables.audit is not None:
            gateway.tables.audit.flush()
        memory = loop.memory
        if memory.peak >= MUCH_BYTES:
            memory.peak = memory.used
            self._give_back()
        for files in gateway.files.values():
            files.receive()  # a full socket pair has its broker try again, though nobody reads now
        if gateway.told.forget_gone(now):
            gateway.plain.cache.clear()
        gateway.shown.show(gateway.turns, loop, len(gateway.pending))
