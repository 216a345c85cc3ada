"""Whether a process stays awake for a moment: where an answer, or after it the next request, comes
in about the time that a wake-up takes (`ipc.streak`), and nobody else computes on this core
(`ipc.core`).

While it waits for an answer it looks for WAITS_S; after one for AFTER_S, if that mostly pays.
"""

from __future__ import annotations

from shmbroker.ipc.core import LOST, NOTHING, Core
from shmbroker.ipc.streak import Streak

WAITS_S = 225e-6
"""How long to look for an answer: that of a broker, which has to be woken first, or READs of
followers."""
AFTER_S = 60e-6
"""How long to look for the next request: a client that waits for each answer sends it about
then."""
AMONG_REPLICAS_S = 150e-6
"""How long to look for the next request where requests are answered only after replicas have
them."""


class Awake:
    """What keeps one process awake. after_s: for how long after an answer. sockets_between: how
    many looks at its rings there are for one at its sockets, while it waits for an answer, which a
    ring brings, and after it."""

    __slots__ = ("_after_s", "_between_after", "_between_waits", "_has_waited", "_streak", "core")

    def __init__(
        self, core: Core, after_s: float = AFTER_S, sockets_between: tuple[int, int] = (1, 1)
    ) -> None:
        self.core = core
        self._after_s = after_s
        self._between_waits, self._between_after = sockets_between
        self._streak = Streak()
        self._has_waited = False

    def look(self, waits: bool, has_worked: bool = False) -> int:
        """What came in a short while (`ipc.core`): NOTHING where it is time to sleep.

        waits: for an answer that comes soon. has_worked: something was done in this turn after
        which more comes as it does after an answer.
        """
        has_waited, self._has_waited = self._has_waited, waits
        if not waits and not ((has_waited or has_worked) and self._streak.pays()):
            return NOTHING
        core = self.core
        if core.is_wanted():
            return NOTHING
        if waits:
            return core.look(WAITS_S, self._between_waits)
        came = core.look(self._after_s, self._between_after)
        if came != LOST:
            self._streak.note(came != NOTHING)
        return came
