"""Threads of a simulated process: what `threading` and `queue` are to it.

A thread is a `Process` of the scheduler that ends with the one that has started it, and ends it
where it is killed: so a kill may hit a process in any of its threads, at any system call there.
What it calls for takes longer than elsewhere: it is there because that may take long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.family.scheduler import Process, Scheduler

PREEMPTED_S = (0.00002, 0.02)


class Threads:
    """What stands in a module for `threading` and `queue`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.waits = 0.1
        """How many system calls of a thread take long."""

    def Thread(self, target: Callable[[], None], name: str, daemon: bool) -> _Thread:
        assert daemon
        owner = self._scheduler.current
        assert owner is not None
        return _Thread(self._scheduler, owner, target, name, self.waits)

    def SimpleQueue(self) -> _Queue:
        return _Queue(self._scheduler)

    def Lock(self) -> _Lock:
        return _Lock(self._scheduler)


class _Thread:
    """What `threading.Thread` makes."""

    def __init__(
        self,
        scheduler: Scheduler,
        owner: Process,
        target: Callable[[], None],
        name: str,
        waits: float,
    ) -> None:
        self._scheduler = scheduler
        self._owner = owner
        self._target = target
        self._title = f"{owner.title} {name}-{len(owner.threads) + 1}"
        self._waits = waits

    def start(self) -> None:
        thread = self._scheduler.start(self._title, self._target, self._on_end)
        thread.preemptions, thread.preempted_s = self._waits, PREEMPTED_S
        self._process = thread
        self._owner.threads.append(thread)

    def _on_end(self) -> None:
        """It was killed: so is all of the process. (These threads never end by themselves.)"""
        assert self._process.is_killed, self._process.fault
        self._owner.kill()


class _Queue:
    """A `queue.SimpleQueue` whose `get` gives the baton back while it is empty."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._waiting: deque[Process] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._waiting.popleft().wake()

    def get(self) -> Any:
        current = self._scheduler.current
        assert current is not None
        while not self._items:
            self._waiting.append(current)
            current.sleep(-1)
        return self._items.popleft()


class _Lock:
    """A `threading.Lock` of a process's threads."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            current = self._scheduler.current
            assert current is not None
            current.sleep(0.001)
        self._is_held = True

    def __exit__(self, *_exception: object) -> None:
        self._is_held = False
