"""Successors: when the next process of a slot is forked, and who is killed for its sake.

    succeed ──► the next incarnation, announced ──► its delay is over
            ──► every living process that talks to the slot has acknowledged ──► fork

Rules of this file:
* `acknowledgements` says who has not acknowledged yet.
* A child that has not acknowledged within ACKNOWLEDGE_S hangs and is killed; later if it gives
  signs of life: it works. Its own death then goes the same way.
* A fork that the kernel refuses is tried again.
"""

from __future__ import annotations

from shmbroker import clock
from shmbroker.processes.acknowledgements import Acknowledgements
from shmbroker.processes.watchdog import LOOK_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from logging import Logger

    from shmbroker.ipc.slots import Slot
    from shmbroker.processes.children import Children, Running
    from shmbroker.processes.watchdog import Watchdog

ACKNOWLEDGE_S = 5.0
ACKNOWLEDGE_BUSY_S = 60.0
"""The time for a child that gives signs of life: it reads gigabytes at its boot, say, and would
begin again."""
FORK_RETRY_S = 5.0


class Successors:
    """`fork_due` in every turn. logger: the supervisor's, as the levels of its lines are set by
    that name."""

    def __init__(self, children: Children, watchdog: Watchdog, logger: Logger) -> None:
        self._children = children
        self._watchdog = watchdog
        self._logger = logger
        self._acknowledgements = Acknowledgements(children.shared)
        self.to_fork: dict[int, tuple[float, float]] = {}
        """The forks to come, by slot: not before then; when those who have not acknowledged are
        looked at."""
        self.patience_ends: dict[int, float] = {}
        """The time, by slot, at which those are killed that give signs of life."""

    def succeed(self, slot: Slot, delay: float) -> None:
        """Let everybody know of a death, and have another one forked after `delay`, from when on
        those that still have not acknowledged it have their time."""
        self._acknowledgements.on_death(slot.index)
        self._children.announce()
        not_before = clock.monotonic() + delay
        self.to_fork[slot.index] = (not_before, not_before + ACKNOWLEDGE_S)

    def fork_due(self) -> None:
        """Fork those whose death every living process has acknowledged."""
        now = clock.monotonic()
        for index, (not_before, deadline) in list(self.to_fork.items()):
            if now < not_before:
                continue
            late = self._late(index)
            if late and now < deadline:
                continue
            patience_ends = self.patience_ends.setdefault(index, now + ACKNOWLEDGE_BUSY_S)
            if late:
                next_look = self._kill_silent(late, now, patience_ends)
                self.to_fork[index] = (not_before, next_look)
                continue
            del self.to_fork[index], self.patience_ends[index]
            self._acknowledgements.acknowledge_for(index, self._living())
            self.fork_or_later(self._children.running[index])

    def fork_or_later(self, running: Running) -> None:
        """Fork, and again later where the kernel has no process or no memory for it."""
        try:
            self._children.fork(running)
        except OSError as fault:
            slot, now = running.slot, clock.monotonic()
            self._logger.error("%s can't be started: %s; tried again", slot.title, fault.strerror)
            self.to_fork[slot.index] = (now + FORK_RETRY_S, now)

    def deadlines(self) -> list[float]:
        """When a fork is due by its time alone."""
        return [
            max(dates) if self._late(index) else dates[0] for index, dates in self.to_fork.items()
        ]

    def give_up(self) -> None:
        """Fork nobody any more: the family stops."""
        self.to_fork.clear()

    def _late(self, index: int) -> list[Running]:
        """Living processes that have not acknowledged the death of the one in this slot."""
        late = self._acknowledgements.late(index, self._living())
        return [self._children.running[other] for other in late]

    def _living(self) -> list[int]:
        return [other.slot.index for other in self._children.alive()]

    def _kill_silent(self, late: list[Running], now: float, patience_ends: float) -> float:
        """Kill those who hang, and all once nobody has patience; when to look again."""
        next_look = now + LOOK_S
        for other in late:
            signed = max(self._children.signed(other), self._watchdog.awake_since)
            if now - signed >= ACKNOWLEDGE_S or now >= patience_ends:
                next_look = now + ACKNOWLEDGE_S
                self._logger.error("%s does not answer: killed", other.slot.title)
                self._children.kill(other.pid)
        return next_look
