"""The core that a process runs on, while it looks for what comes next instead of sleeping.

Each look gives the core to whoever else wants it: to another process of the family, for some ten
microseconds, which is what the looking is for. But where somebody computes, it is gone for a time
slice of some milliseconds, and since Linux 6.18 the scheduler counts what was left of the own one
as used: a process that looks a hundred times may then wait a hundred times as long as one that has
slept. So who has lost its core for LOST_S ends its looking, and doesn't look again for RESTS times
as long: so much of its time it may lose to looking, one part in ten. (A hundred made a producer on
a quiet machine wait longer than one without this: a core is lost now and then.)
"""

from __future__ import annotations

from os import sched_yield

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LOST_S = 0.002
"""More than those who are waited for need for what they are asked; a slice takes longer."""
RESTS = 10


class Core:
    """As one process sees it."""

    __slots__ = ("_last", "_monotonic", "_until")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last = 0.0
        """When it had its core last."""
        self._until = 0.0

    def is_wanted(self) -> bool:
        """Whether others computed here lately: then one better sleeps. To be asked before a row of
        looks begins."""
        self._last = self._monotonic()
        return self._last < self._until

    def let_others(self) -> bool:
        """Let who waits for it run; False if that took so long that looking is to end."""
        sched_yield()
        now = self._monotonic()
        lost = now - self._last
        self._last = now
        if lost < LOST_S:
            return True
        self._until = now + lost * RESTS
        return False
