"""Consequences of a child's death while the family runs: another one, and how soon, or the end of
all. `deaths` and `boots` have the rules; here the outcome is said to those who read the log or the
service manager's status.
"""

from __future__ import annotations

from shmbroker import clock, logs
from shmbroker.processes import boots
from shmbroker.processes.child import EXIT_TRY_AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger

    from shmbroker.processes.children import Children, Death, Running
    from shmbroker.processes.readiness import Readiness


class Consequences:
    """Judge of deaths: `of` for each. is_new: the directory is. logger: the supervisor's, as the
    levels of its lines are set by that name."""

    __slots__ = ("_children", "_is_new", "_logger", "_readiness")

    def __init__(
        self, children: Children, readiness: Readiness, is_new: bool, logger: Logger
    ) -> None:
        self._children = children
        self._readiness = readiness
        self._is_new = is_new
        self._logger = logger

    def of(self, death: Death) -> float | None:
        """How soon another one is to follow; None: too few are left, so the family stops."""
        running = death.running
        slot = running.slot
        last_words = self._children.shared.last_words(slot.index)
        if running.tries.count(slot.role, death.code, death.has_served, self._readiness.is_ready):
            return self._go_on_without(running, last_words or death.how)
        if death.code == EXIT_TRY_AGAIN:
            self._logger.error("%s waits: %s", slot.title, last_words)
        delay = running.tries.restart_s(clock.monotonic() - running.started)
        when = f" in {delay} s" if delay else ""
        self._logger.warning(
            "%s (pid %d) ended with %s, starting another%s",
            *(slot.title, death.pid, death.how, when),
            extra=logs.fields(child=slot.title, child_pid=death.pid, ended=death.how),
        )
        self._readiness.say_restarting(slot.title)
        return delay

    def _go_on_without(self, running: Running, why: str) -> float | None:
        """Say that a process can't boot, and how soon it is tried again; None as above."""
        slot = running.slot
        running.why = why
        is_needed = slot.role in boots.NEEDED
        if is_needed and not boots.can_go_on(
            self._children.able(), self._readiness.is_ready, self._is_new
        ):
            self._logger.error("the family stops, as %s can't boot: %s", slot.title, why)
            return None
        delay = running.tries.retry_s()
        self._logger.error("%s can't boot, next try in %.0f s: %s", slot.title, delay, why)
        self._children.mark_unable(running)
        self._readiness.say_unable()
        return delay
