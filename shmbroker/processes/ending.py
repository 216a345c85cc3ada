"""A stop as it is carried out: who is told, who is killed, and what is said meanwhile.

`stopping` has the order and the times. This tells the roles in that order, and sees that nobody is
left. A stop is clean when every process ended as it was asked to, but for those that may be killed
and those that could not boot.
"""

from __future__ import annotations

import signal

from shmbroker import clock
from shmbroker.processes.child import EXIT_BOOT_FAULT
from shmbroker.processes.sd_notify import notify
from shmbroker.processes.stopping import MAY_BE_KILLED, Stop, waited_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger

    from shmbroker.processes.children import Children, Death


class Ending:
    """Made when the stop begins; `go_on` in every turn. logger: the supervisor's, as the levels of
    its lines are set by that name."""

    def __init__(self, children: Children, logger: Logger) -> None:
        self._children = children
        self._logger = logger
        notify("STOPPING=1", "STATUS=stopping")
        self._stop = Stop(clock.monotonic())
        self._tell_next_role()

    def is_clean(self, death: Death) -> bool:
        """Whether one has ended as it was asked to, or is excused; says so where not."""
        slot = death.running.slot
        is_excused = death.running.why or slot.role in MAY_BE_KILLED
        if death.code in (0, -signal.SIGTERM) or is_excused:
            return True
        why = f"it ended with {death.how}"
        if death.code == EXIT_BOOT_FAULT:
            why = self._children.shared.last_words(slot.index) or why
        self._logger.error("%s did not stop cleanly: %s", slot.title, why)
        return False

    def rest(self) -> float:
        """When there is something to do, unless somebody ends before."""
        return self._stop.rest()

    def go_on(self) -> bool:
        """Tell the next role when it is its turn, kill who is late; True: nobody is left."""
        children, stop = self._children, self._stop
        alive = children.alive()
        if not alive:
            notify("STATUS=stopped")
            return True
        # The next role's turn comes when those before it are gone; some may have none alive.
        while stop.is_turn_over(running.slot.role for running in alive):
            self._tell_next_role()
        now = clock.monotonic()
        late = [running for running in alive if stop.was_told(running.slot.role)]
        if stop.is_over(now):
            for running in late:
                if running.slot.role not in MAY_BE_KILLED:
                    what = waited_for([(running.slot.title, children.work_of(running.slot))])
                    self._logger.error("the stop has no more time for %s: killed", what)
                children.kill(running.pid)
        elif stop.is_line_due(now):
            line = waited_for(
                (running.slot.title, children.work_of(running.slot)) for running in late
            )
            self._logger.info("stopping: waiting for %s", line)
            notify(f"STATUS=stopping: waiting for {line}")
        return False

    def _tell_next_role(self) -> None:
        self._children.tell_to_stop(self._stop.next_role(clock.monotonic()))
