"""The order of a stop: which role is told when, how long it may take, what is said meanwhile.

   role             its bound   what it may wait for
   network worker       8 s     requests in flight, and clients that read their answers (5 s)
   cleaner, tier        2 s     nothing: they may be killed at any point
   I/O worker          35 s     the disk: everything that was not yet flushed
   controller           5 s     the others to have what the leader has (2 s)
   metrics, console     2 s     nothing: they may be killed, and tell to the end what goes on

Each role's time begins when those before it are gone. What is left at its end is killed: a killed
I/O worker loses nothing, but the next start has to check what it did not flush. Together they are
less than the TimeoutStopSec of the unit.
"""

from collections.abc import Iterable

from shmbroker.ipc.slots import CLEANER, CONTROLLER, IO_WORKER, NETWORK_WORKER, PAGES, TIER
from shmbroker.signs import describe

BOUNDS_S = {
    NETWORK_WORKER: 8.0,
    CLEANER: 2.0,
    TIER: 2.0,
    IO_WORKER: 35.0,
    CONTROLLER: 5.0,
    **dict.fromkeys(PAGES, 2.0),
}
"""The time that each role has to stop, in the order of the stop: network workers first, as they
hold what is in flight."""
MAY_BE_KILLED = (CLEANER, TIER, *PAGES)
"""Roles that keep nothing: to kill one is no unclean stop."""
FIRST_LINE_S = 2.0
LINE_INTERVAL_S = 5.0
KILLED_S = 45.0
"""The time from a kill until it is tried again: only a disk that does not answer keeps a
process."""


class Stop:
    """Where a stop is; times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._left = list(BOUNDS_S)
        self.deadline = now
        """When what is left of the roles that were told to stop is killed."""
        self.next_line = now + FIRST_LINE_S

    def next_role(self, now: float) -> str:
        """The role whose turn it is to be told; its time begins."""
        role = self._left.pop(0)
        self.deadline = now + BOUNDS_S[role]
        return role

    def is_turn_over(self, roles_alive: Iterable[str]) -> bool:
        """Whether nobody lives any more who was told to stop."""
        return bool(self._left) and all(role in self._left for role in roles_alive)

    def was_told(self, role: str) -> bool:
        return role not in self._left

    def rest(self) -> float:
        """When there is something to do, unless somebody ends before."""
        return min(self.deadline, self.next_line)

    def is_line_due(self, now: float) -> bool:
        """Whether it is time to say what is waited for."""
        if now < self.next_line:
            return False
        self.next_line = now + LINE_INTERVAL_S
        return True

    def is_over(self, now: float) -> bool:
        """Whether the time of those who were told is over; they get KILLED_S to be gone."""
        if now <= self.deadline:
            return False
        self.deadline = now + KILLED_S
        return True


def waited_for(waiting: Iterable[tuple[str, int]]) -> str:
    """The titles of children and their words of `signs`, as a line."""
    return ", ".join(
        f"{title} ({doing})" if (doing := describe(work)) else title for title, work in waiting
    )
