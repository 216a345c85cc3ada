"""One core for all quiet processes of a family: where a client's requests come one by one, each is
a chain of wake-ups, of which only one process works at a time. On the same core one follows the
other at once; on two each waits until a core that rests has woken up, and what it needs is not in
that core's caches.

Rules of this file:
* A process goes by itself: it shares the core while it sleeps most of the time, and leaves it as
  soon as it has been up for BUSY_S without a sleep, so that work for two cores gets two.
* A process outside the family that computes on that core makes the others wait: one that waits
  longer than the family explains leaves, too.
* One that leaves soon after it came stays away for longer and longer.
* A process whose cores somebody else has set (`taskset -p`) is left alone from then on.
* A network worker that leaves goes to another core at once, the I/O worker stays: both look for
  work then, and the scheduler does not part two that are up all the time.
* Only the main thread is moved; a thread that it starts meanwhile stays on that core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from shmbroker import clock
from shmbroker.ipc.busy import next_rest
from shmbroker.ipc.slots import IO_WORKER, NETWORK_WORKER, Slot
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.settings.broker_config import BrokerConfig

WINDOW_S = 0.1
"""The time over which it is judged how much of its time a process is up."""
QUIET = 0.25
"""A process that is up for less of its time shares the core."""
LOUD = 0.4
"""A process that is up for more of its time leaves the core. Waiting for it counts as being up."""
BUSY_S = 0.005
"""A process that was up for so long without a sleep leaves at once."""
DELAY_S = 0.0003
TIMES = 20
"""A process leaves, too, where it waited longer than that for the core each of so many times or
more, on average."""
STEADY_S = 0.5
RESTS_S = (0.1, 2.0)
"""How long it stays away, at least and at most: twice as long each time that it leaves within
STEADY_S."""


class Affinity:
    """The cores that the kernel lets this thread have: the one that the quiet ones share, or
    all."""

    def __init__(self, number: int, cores: Collection[int], *, is_left: bool) -> None:
        """cores: all that this process may run on. is_left: it runs elsewhere from the moment at
        which it may."""
        self._cores = {False: frozenset(cores), True: frozenset((number,))}
        self._others = self._cores[False] - self._cores[True]
        self._is_left = is_left
        self._stat = -1
        try:
            self._stat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            pass  # a kernel that does not tell how long a process waits

    @property
    def is_known(self) -> bool:
        """Whether it can be seen how long this thread waits."""
        return self._stat >= 0

    def move(self, is_in: bool) -> bool:
        """Run on the core alone, or anywhere. False where somebody else says where it runs."""
        try:
            if os.sched_getaffinity(0) != self._cores[not is_in]:
                return False
            if self._is_left and not is_in:
                os.sched_setaffinity(0, self._others)
            os.sched_setaffinity(0, self._cores[is_in])
        except OSError:
            return False  # a core was taken away
        return True

    def waited(self) -> tuple[int, int]:
        """Nanoseconds that this thread has waited for a core so far, and how often it got one."""
        _, delay_ns, times = os.pread(self._stat, 128, 0).split()
        return int(delay_ns), int(times)


class SharedCore:
    """Whether this process shares the core of the family now; told when it sleeps and wakes."""

    __slots__ = (
        "_affinity",
        "_asleep_s",
        "_came",
        "_is_left_alone",
        "_monotonic",
        "_rest_s",
        "_slept_at",
        "_stays_away_until",
        "_waited",
        "_window_began",
        "_woke_at",
        "is_in",
    )

    def __init__(self, monotonic: Callable[[], float], affinity: Affinity) -> None:
        self._monotonic = monotonic
        self._affinity = affinity
        self.is_in = False
        self._is_left_alone = not affinity.is_known
        self._slept_at = self._woke_at = self._window_began = monotonic()
        self._asleep_s = 0.0
        self._came = self._stays_away_until = 0.0
        self._rest_s = RESTS_S[0]
        self._waited = 0, 0

    def sleeps(self) -> None:
        """Note that this process is about to sleep."""
        self._slept_at = self._monotonic()

    def woke(self) -> None:
        """Note that this process slept until now."""
        self._woke_at = now = self._monotonic()
        self._asleep_s += now - self._slept_at
        if now - self._window_began >= WINDOW_S:
            self._judge(now)

    def stays_up(self) -> None:
        """Note that this process has more to do, or looks for more."""
        if self.is_in:
            now = self._monotonic()
            if now - self._woke_at > BUSY_S:
                self._leave(now)

    def _judge(self, now: float) -> None:
        up = 1 - self._asleep_s / (now - self._window_began)
        self._window_began, self._asleep_s = now, 0.0
        if self.is_in:
            before_ns, before = self._waited
            self._waited = delay_ns, times = self._affinity.waited()
            delay_s = (delay_ns - before_ns) * 1e-9
            if up > LOUD or delay_s > DELAY_S * max(TIMES, times - before):
                self._leave(now)
        elif up < QUIET and now >= self._stays_away_until and not self._is_left_alone:
            self._is_left_alone = not self._affinity.move(True)
            self.is_in = not self._is_left_alone
            self._came = now
            self._waited = self._affinity.waited()

    def _leave(self, now: float) -> None:
        self._is_left_alone = not self._affinity.move(False)
        self.is_in = False
        self._rest_s = next_rest(self._rest_s, now - self._came < STEADY_S, RESTS_S)
        self._stays_away_until = now + self._rest_s


def shared_core(slot: Slot, shared: SharedResources, config: BrokerConfig) -> SharedCore | None:
    """The shared core of a worker in this family; None for others, where there is one core only,
    where replicas are siblings, which work at the same time, or if settings say so. Families have
    different ones, as far as their ports are."""
    cores = sorted(os.sched_getaffinity(0))
    brokers = shared.of_role(IO_WORKER)
    if slot.role not in (NETWORK_WORKER, IO_WORKER) or len(cores) < 2 or len(brokers) > 1:
        return None
    if not config["shmbroker.share.core"]:
        return None
    _, port = shared.about.addresses[brokers[0].number]
    number = cores[-1 - port % len(cores)]
    affinity = Affinity(number, cores, is_left=slot.role == NETWORK_WORKER)
    return SharedCore(clock.monotonic, affinity)
