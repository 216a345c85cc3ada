"""Whether a gateway stays awake for a moment: where an answer, or after it the client's next
request, comes in about the time that a wake-up takes (`ipc.streak`), and nobody else computes on
this core (`ipc.core`)."""

from __future__ import annotations

from collections.abc import Callable

from shmbroker.ipc.core import Core
from shmbroker.ipc.streak import Streak

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.event_loop import Poller

LOOKS_FOR_ANSWER = 150
"""At rings, for an append: its answer comes in about the time that a wake-up takes,"""
APPEND_BYTES_MAX = 64 * 1024
"""unless so much is appended that it takes several times as long."""
LOOKS_AFTER_ANSWER = 40
"""At sockets, for the next one: a client that waits for each answer sends it some 60 us later."""


class Awake:
    """What keeps one gateway awake. has_entries: whether a ring holds something."""

    def __init__(self, poller: Poller, has_entries: Callable[[], bool], core: Core) -> None:
        self._poll = poller.poll
        self._core = core
        self._has_entries = has_entries
        self._has_waited = False
        self._streak = Streak()

    def look(self, waits: bool) -> list[tuple[int, int]] | None:
        """What came from sockets after a short while in which rings or sockets had something; None
        where it is time to sleep. waits: the last that was asked for is done as soon as a small
        append."""
        has_waited, self._has_waited = self._has_waited, waits
        core = self._core
        if core.is_wanted():
            return None
        if waits:
            looks, between = LOOKS_FOR_ANSWER, 16
        elif has_waited and self._streak.pays():
            looks, between = LOOKS_AFTER_ANSWER, 2
        else:
            return None
        poll = self._poll
        events: list[tuple[int, int]] | None = None
        for look in range(looks):
            if not core.let_others():
                return poll(0)
            if self._has_entries():
                events = [] if look else poll(0)  # the sockets have their turn in every look
                break
            if not look % between and (found := poll(0)):
                events = found
                break
        if not waits:
            self._streak.note(events is not None)
        return events
