"""The core that a process runs on, while it looks for what comes next instead of sleeping.

Each look gives the core to another that wants it: to a process of the family, for some ten
microseconds, which is what the looking is for. But where somebody computes, it is gone for a time
slice of some milliseconds, and since Linux 6.18 the scheduler counts what was left of the own one
as used: a process that looks a hundred times may then wait a hundred times as long as one that has
slept. So who has lost its core for LOST_S ends its looking, and doesn't look again for RESTS times
as long: so much of its time it may lose to looking, one part in ten. (A hundred made a producer on
a quiet machine wait longer than one without this: a core is lost now and then.)

The looks are a compiled loop (`kernels/look.c`). The way without it is for where there is no
compiler, and for a clock that a test or a simulation moves.
"""

from __future__ import annotations

from os import sched_yield

from shmbroker import clock
from shmbroker.kernels import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from shmbroker.shm.rings import Rings

    class Pollable(Protocol):
        """What a gateway's sockets are watched by; as `select.epoll`."""

        def fileno(self) -> int: ...

        def poll(self, timeout: float, /) -> list[tuple[int, int]]: ...


NOTHING, ENTRIES, EVENTS, LOST = range(4)
"""What a row of looks ends with: its time is over; a ring has entries; a socket has something;
somebody else computes on this core. The first three are numbers of `look.c`, too."""

REAL_MONOTONIC = clock.monotonic

LOST_S = 0.002
"""More than those who are waited for need for what they are asked; a slice takes longer."""
RESTS = 10
LOOK_S = 2.5e-6
"""What a look takes that is not compiled, about."""


class Core:
    """A core as one process sees it. rings: all that it reads. sockets: if it has any."""

    __slots__ = (
        "_descriptor",
        "_kernel",
        "_last",
        "_monotonic",
        "_rings",
        "_sockets",
        "_until",
        "events",
        "looked_s",
    )

    def __init__(
        self,
        monotonic: Callable[[], float],
        rings: Rings,
        sockets: Pollable | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._rings = rings
        self._sockets = sockets
        self._last = 0.0
        """When it had its core last."""
        self._until = 0.0
        self.events: list[tuple[int, int]] = []
        """What came from sockets, where the last row of looks ended with EVENTS."""
        self.looked_s = 0.0
        """Seconds spent in looks so far."""
        self._kernel = None
        if native is not None and monotonic is REAL_MONOTONIC and rings.compiled is not None:
            self._kernel = native.look
            self._descriptor = -1 if sockets is None else sockets.fileno()

    def is_wanted(self) -> bool:
        """Whether others computed here lately: then one better sleeps. To be asked before a row of
        looks begins."""
        self._last = self._monotonic()
        return self._last < self._until

    def look(self, for_s: float, between: int = 1) -> int:
        """Look for that long, unless something comes; sockets once in `between` looks."""
        began = self._last
        if self._kernel is None:
            came = self._look(for_s, between)
            self.looked_s += self._last - began
            return came
        came, lost_ns, self.events = self._kernel(
            self._rings.compiled, int(for_s * 1e9), int(LOST_S * 1e9), self._descriptor, between
        )
        self.looked_s += self._monotonic() - began
        if lost_ns:
            return self._lose(lost_ns * 1e-9)
        return came  # type: ignore[no-any-return]

    def _look(self, for_s: float, between: int) -> int:
        sockets = self._sockets
        for look in range(max(1, int(for_s / LOOK_S))):
            sched_yield()
            now = self._monotonic()
            lost, self._last = now - self._last, now
            if lost >= LOST_S:
                return self._lose(lost)
            if sockets is not None and not look % between and (events := sockets.poll(0)):
                self.events = events
                return EVENTS
            if self._rings.ready():
                return ENTRIES
        return NOTHING

    def _lose(self, seconds: float) -> int:
        self._until = self._monotonic() + seconds * RESTS
        return LOST
