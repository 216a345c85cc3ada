"""Answers that wait for clients which read slowly: how much memory they take, and who pays.

All of a worker together are bounded. Where it is too much, the client that took nothing for the
longest time is given up; a lone slow reader never is.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection

UNSENT_BYTES_MIN = 32 << 20
"""The bytes of answers that may wait for slow readers in any case, of all connections together."""


class SlowReaders:
    """The connections of one worker that take their answers slowly."""

    __slots__ = ("bytes_max", "present", "unsent")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = max(UNSENT_BYTES_MIN, bytes_max)
        self.unsent = 0
        """Bytes of memory in their answers: the sum over `present`."""
        self.present: set[Connection] = set()

    def note(self, connection: Connection, unsent: int) -> None:
        """Note how many bytes of a connection's answers wait for its socket."""
        self.unsent += unsent - connection.unsent
        connection.unsent = unsent
        if unsent:
            self.present.add(connection)
        else:
            self.present.discard(connection)

    def too_much(self) -> Connection | None:
        """The connection to give up, as too much waits; None: none."""
        if self.unsent > self.bytes_max and len(self.present) > 1:
            return min(self.present, key=_taken_at)
        return None


def _taken_at(connection: Connection) -> float:
    return connection.taken_at
