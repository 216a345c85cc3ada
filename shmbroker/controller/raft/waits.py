"""How long a voter waits before it does something by itself: by chance, so that not all do the same
at the same time, or one after the other where it is known who they are.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.controller.raft.quorum_needs import Chance, Timeouts

RETRY_MS = 20
"""The wait before a request to a voter that refused or lost the last one is tried again; trying
costs little."""
STAGGER_MS = 60
"""The time between voters that stand for election for the same reason: two syncs of state and a
round of messages, with room for a busy machine."""
BACKOFF_BASE_MS = 50
"""The wait after a lost election, doubled with each further one in a row."""


class Waits:
    """The waits of one voter, in milliseconds."""

    __slots__ = ("_random", "_rank", "_timeouts", "elections_lost")

    def __init__(self, random: Chance, timeouts: Timeouts, rank: int) -> None:
        """`rank`: of the voter among all."""
        self._random = random
        self._timeouts = timeouts
        self._rank = rank
        self.elections_lost = 0
        """How many elections were lost in a row."""

    def election(self) -> int:
        """The wait for the end of an election, or for a leader to show itself."""
        return self._timeouts.election + self._random.randrange(self._timeouts.election)

    def backoff(self) -> int:
        """The wait after a lost election."""
        lost = min(self.elections_lost, 10)
        largest = min(self._timeouts.backoff_max, BACKOFF_BASE_MS << lost)
        return RETRY_MS + self._random.randrange(largest)

    def fetch(self) -> int:
        """The wait for a leader that is silent; not the same for all."""
        return self._timeouts.fetch + stagger(self._rank)

    def start(self) -> int:
        """The wait after the start: who asks soon learns who leads, if somebody does."""
        return stagger(self._rank)


def stagger(rank: int) -> int:
    """The wait before a voter stands for election, where others do for the same reason."""
    return rank * STAGGER_MS
