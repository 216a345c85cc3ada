"""What an event loop asks of its worker, for tests of the loop: one that takes everybody."""

import socket

from shmbroker.gateway.connection import Connection
from shmbroker.gateway.listener import Listener


class LoopService:
    """`submits` and `on_closed` are the test's; `time` and `rests_s` are what it says."""

    def __init__(self) -> None:
        self.time = 1.0
        self.rests_s = 0.0

    def now(self) -> float:
        return self.time

    def may_accept(self) -> bool:
        return True

    def holds_back(self, accepted: socket.socket, broker_id: int, address: str) -> bool:
        return False

    def rest_s(self, listener: Listener) -> float:
        return self.rests_s

    def admits(self, address: str, listener: Listener) -> bool:
        return True

    def on_opened(self, connection: Connection) -> None:
        """Nobody is told."""

    def on_left_accepting(self) -> None:
        """Nobody is told."""
