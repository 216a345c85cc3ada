"""Virtual time, and whose turn it is: all that runs in a simulated family runs one by one.

    Scheduler.step ──► the earliest of:  a process that wakes up   it runs until it sleeps
                                         something that is due     a callback of the world

A *process* of the family is a greenlet that runs the real main of its role: the scheduler switches
to it, and it switches back where a real process would sleep: in the `poll` of an epoll, in
`clock.sleep`, in a wait for the other controllers. So its code needs no other form for the
simulation, and all of it is one thread.

Who sleeps is woken by its epoll (a doorbell, a socket) after a delay that the seed draws, or by its
time-out. `pause_until` is a process that hangs: it is not woken before.

A turn is not all or nothing: now and then others run for a while when it makes a system call, as
on a machine with fewer processors than processes. So what is published while a process is up, and
before it sleeps, is seen here too.

Time moves only when nothing is due now, and by a little for each system call of a process:
`Scheduler.call`, which is also where a kill may hit amid a turn (`Process.calls_left`).
"""

from __future__ import annotations

import heapq
import select
import threading
from collections.abc import Callable
from random import Random

from greenlet import getcurrent, greenlet

CALL_S = 2e-6
"""What a system call takes."""
CALLS_MAX = 400_000
"""In one turn: then it is an endless loop."""
STEPS_MAX = 1_000_000
"""In one history, which takes some thousands: then some keep each other busy for ever."""
WAKE_S = (0.00001, 0.00005, 0.0002)
"""What a wake-up takes, mostly."""
SLOW_WAKE_S = (0.002, 0.02)
SLOW_WAKES = 0.03
"""How many are slow."""

PREEMPTIONS = (0.003, 0.03, 0.1)
"""How many system calls let others run amid a turn, by seed,"""
PREEMPTED_S = (0.00002, 0.001)
"""and for how long."""

Event = tuple[int, int]


class Killed(BaseException):
    """SIGKILL: unwinds the process, which does nothing more."""


class Process:
    """A process of the family; `main` is its whole life."""

    def __init__(
        self, scheduler: Scheduler, title: str, main: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self.scheduler = scheduler
        self.title = title
        self._main = main
        self._on_end = on_end
        self.fault: BaseException | None = None
        """What its main ended with; Killed if it was."""
        self.is_alive = True
        self.is_killed = False
        self.calls_left = -1
        """System calls until it is killed; -1: it is not going to be."""
        self.calls = 0
        """In this turn."""
        self.call_s = CALL_S
        self.pause_until = 0.0
        self.epoll: select.epoll | None = None
        """Where it sleeps."""
        self.events: list[Event] = []
        """What its epoll has said and `poll` has not returned yet."""
        self.due = scheduler.now
        """When it goes on, as far as is known."""
        self.is_woken = False
        self.threads: list[Process] = []
        """What ends with it (`threads`)."""
        self.preemptions = scheduler.preemptions
        """How many of its system calls let others run,"""
        self.preempted_s = PREEMPTED_S
        """and for how long."""
        self._stack = greenlet(self._run, scheduler.stack)

    def _run(self) -> None:
        try:
            if not self.is_killed:
                self._main()
        except BaseException as fault:
            self.fault = fault.with_traceback(None) if isinstance(fault, Killed) else fault
        self.is_alive = False

    def go_on(self) -> None:
        """Have it run until it sleeps or ends."""
        scheduler = self.scheduler
        scheduler.running, self.calls = self, 0
        self._stack.switch()
        scheduler.running = None
        if not self.is_alive:
            scheduler.processes.remove(self)
            for thread in self.threads:
                thread.kill()
            self._on_end()

    def sleep(self, timeout: float, epoll: select.epoll | None = None) -> list[Event]:
        """Called by the process itself: until `epoll` has something, or the time is over."""
        scheduler = self.scheduler
        calls = self.calls
        self.epoll, self.events, self.is_woken = epoll, [], False
        self.due = scheduler.now + timeout if timeout >= 0 else float("inf")
        scheduler.stack.switch()
        if self.is_killed:
            raise Killed
        self.epoll = None
        if epoll is None:
            self.calls = calls
        return self.events

    def look(self) -> None:
        """Have it woken if its epoll has something."""
        if self.epoll is None or self.epoll.closed:
            return
        self.events = self.epoll.poll(0)
        if self.events:
            self.is_woken = True
            self.due = min(self.due, self.scheduler.now + self.scheduler.wake_s())

    def wake(self) -> None:
        """Called by another thread of it: what it sleeps for is there."""
        self.due = min(self.due, self.scheduler.now + self.scheduler.wake_s())

    def kill(self) -> None:
        """Now, while it sleeps or has not begun."""
        if self.is_alive:
            self.is_killed = True
            self.go_on()


class Scheduler:
    """One seed's time and chance."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 1000.0
        self.wall_ahead_s = 1.7e9
        """What the wall clock shows more."""
        self.processes: list[Process] = []
        self.running: Process | None = None
        self.stack = getcurrent()
        """Its own; those of processes end there."""
        self._ident = threading.get_ident()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.slow_wakes = SLOW_WAKES
        self.preemptions = random.choice(PREEMPTIONS)
        self.steps = 0
        self.look: Callable[[], None] = _nothing
        """Asked before each step: what has come for the clients."""

    def is_stranger(self) -> bool:
        """Whether who calls is no part of this: a thread that another test has left behind."""
        return threading.get_ident() != self._ident

    @property
    def current(self) -> Process | None:
        """The process that calls."""
        return None if self.is_stranger() else self.running

    def start(self, title: str, main: Callable[[], None], on_end: Callable[[], None]) -> Process:
        """A process that begins soon."""
        process = Process(self, title, main, on_end)
        process.due = self.now + self.wake_s()
        self.processes.append(process)
        return process

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now + seconds, self._count, action))

    def wake_s(self) -> float:
        if self.random.random() < self.slow_wakes:
            return self.random.uniform(*SLOW_WAKE_S)
        return self.random.choice(WAKE_S)

    def call(self) -> None:
        """The running process makes a system call: it may be the moment that it is killed."""
        process = self.running
        if process is None or self.is_stranger():
            return
        self.now += process.call_s
        process.calls += 1
        if process.is_killed:
            raise Killed
        if process.calls_left == 0:
            process.is_killed = True
            raise Killed
        process.calls_left -= process.calls_left > 0
        assert process.calls < CALLS_MAX, f"{process.title} does not come to rest"
        if self.random.random() < process.preemptions:
            process.sleep(self.random.uniform(*process.preempted_s))

    def step(self) -> None:
        """The next thing that happens."""
        self.steps += 1
        assert self.steps < STEPS_MAX, "the family does not come to rest"
        self.look()
        first: Process | None = None
        at = self._due[0][0] if self._due else float("inf")
        for process in self.processes:
            if process.epoll is not None and not process.is_woken:
                process.look()
            due = process.due
            if due < process.pause_until:
                due = process.pause_until
            if due < at:
                first, at = process, due
        assert at < float("inf"), "nothing is due, for ever"
        if at > self.now:
            self.now = at
        if first is not None:
            first.go_on()
        else:
            heapq.heappop(self._due)[2]()

    def close(self) -> None:
        """End every process."""
        for process in list(self.processes):
            process.kill()


def _nothing() -> None:
    pass
