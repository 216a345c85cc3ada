"""The gateway for guests as the broker of its process reaches it: by two rings as any other, but
for acks that have waited, which it is told at once.

Rules of this file:
* What it is told by the ring may come later than what is told at once: answers leave in the order
  of a connection's requests all the same.
* Whoever is answered is flushed in the second half of the turn.
"""

from __future__ import annotations

from shmbroker.ipc.operation_layout import APPENDED
from shmbroker.ipc.peer import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.results import Results


class GatewayHere(Peer):
    """As a `Peer`. results: those of the gateway, once it is built."""

    __slots__ = ("results",)
    results: Results | None

    def send(self, operation: int, payload: bytes, content: bytes | memoryview = b"") -> None:
        results = self.results
        if operation != APPENDED or results is None or not results.has_taken(payload):
            super().send(operation, payload, content)
