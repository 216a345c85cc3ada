"""A thread that runs fdatasync, as the call holds up its caller.

It touches no ring and no log: descriptors go in, callbacks come out through `finished`, and an
eventfd wakes the main loop for them.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from shmbroker import clock, signs
from shmbroker.ipc.member import SIGN_INTERVAL_S
from shmbroker.log.flushing import sync_and_close

OnFlushed = Callable[[OSError | None], None]
Job = tuple[list[int], OnFlushed]
"""Descriptors to be synced, and who is told."""


class Flushing(Protocol):
    """What makes files durable for a broker."""

    @property
    def is_busy(self) -> bool:
        """Whether `finished` has something to give, now or later."""

    def submit(self, fds: list[int], on_done: OnFlushed, /) -> None:
        """fdatasync descriptors (owned by the job, closed after); then `on_done(fault or None)`."""

    def finished(self) -> list[Callable[[], None]]:
        """What is done since the last call, to be called back in the main thread."""

    @property
    def waiting(self) -> int:
        """How many were submitted and are not finished."""

    def took_us(self) -> list[int]:
        """How long each fdatasync since the last call has taken, in microseconds."""

    def stop(self) -> None:
        """Finish what was submitted."""


class Flusher:
    """`Flushing` by one thread, which starts with the first job."""

    def __init__(self, eventfd: int) -> None:
        self._eventfd = eventfd
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[OnFlushed, OSError | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._submitted = 0
        self._took_us: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def is_busy(self) -> bool:
        return self._submitted > 0

    @property
    def waiting(self) -> int:
        return self._submitted

    def took_us(self) -> list[int]:
        found: list[int] = []
        while True:
            try:
                found.append(self._took_us.get_nowait())
            except queue.Empty:
                return found

    def submit(self, fds: list[int], on_done: OnFlushed, /) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
            self._thread.start()
        self._submitted += 1
        self._jobs.put((fds, on_done))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            fds, on_done = job
            fault = None
            for fd in fds:
                began = clock.monotonic()
                fault = sync_and_close(fd) or fault
                self._took_us.put(int((clock.monotonic() - began) * 1e6))
            self._done.put((on_done, fault))
            os.eventfd_write(self._eventfd, 1)

    def finished(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        while True:
            try:
                on_done, fault = self._done.get_nowait()
            except queue.Empty:
                return found
            self._submitted -= 1
            found.append(partial(on_done, fault))

    def stop(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            while self._thread.is_alive():
                self._thread.join(SIGN_INTERVAL_S)
                signs.sign()
