"""How busy a process is, from the processor time that it has had, without what it spent on looks;
and how long one stays away who has left where it was too busy.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shmbroker.ipc.core import Core


class Share(NamedTuple):
    """What parts of the time since then a process was up and busy."""

    since: float
    up: float
    """Looks included."""
    busy: float


class Busy:
    """The looks at how busy one process is. worked_s: processor time that it has had. cores: they
    tell its looks."""

    __slots__ = ("_at", "_cores", "_looked_s", "_worked", "_worked_s")

    def __init__(self, now: float, worked_s: Callable[[], float], cores: Sequence[Core]) -> None:
        self._at = now
        self._worked_s = worked_s
        self._worked = worked_s()
        self._cores = cores
        self._looked_s = self._looked()

    def _looked(self) -> float:
        return sum(core.looked_s for core in self._cores)

    def since_last(self, now: float) -> Share:
        """The share of the time since this was asked last; some time has passed."""
        before, worked, looked_s = self._at, self._worked, self._looked_s
        self._at, self._worked, self._looked_s = now, self._worked_s(), self._looked()
        span_s, up_s = now - before, self._worked - worked
        busy_s = max(0.0, up_s - (self._looked_s - looked_s))
        return Share(before, up_s / span_s, busy_s / span_s)


def next_rest(rest_s: float, is_soon: bool, bounds: tuple[float, float]) -> float:
    """The time for which one stays away now: twice as long as before where it had to leave soon
    again."""
    shortest, longest = bounds
    return min(longest, 2 * rest_s) if is_soon else shortest
