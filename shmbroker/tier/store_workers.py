"""Threads that do what a remote store takes its time for.

A worker's answer comes back through a queue, `Done`, and whoever takes from it is woken. Faults are
answers as well: no thread ends by one.
"""

from __future__ import annotations

import logging
import queue
import threading
from functools import partial
from typing import Any, TypeAlias

from shmbroker import logs
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.tier.object_store import StoreFault
from shmbroker.wire.error_codes import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, UNKNOWN_SERVER_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

Body: TypeAlias = "dict[str, Any]"
Done: TypeAlias = "queue.SimpleQueue[Callable[[], None]]"
"""What is to be called in the main loop, as work was done."""


class Workers:
    """At most `count` threads, begun as they are needed. `wake`: called after each piece of work,
    by the thread."""

    def __init__(self, count: int, done: Done, wake: Callable[[], None]) -> None:
        self._left = count
        self._done = done
        self._wake = wake
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Body], Callable[[Body], None]]] = (
            queue.SimpleQueue()
        )

    def submit(self, work: Callable[[], Body], on_done: Callable[[Body], None]) -> None:
        """Submit work; from the main loop only."""
        self._jobs.put((work, on_done))
        if self._left:
            self._left -= 1
            threading.Thread(target=self._run, name="store", daemon=True).start()

    def _run(self) -> None:
        while True:
            work, on_done = self._jobs.get()
            self._done.put(partial(on_done, answer_of(work)))
            self._wake()


def answer_of(work: Callable[[], Body]) -> Body:
    """The answer of a piece of work, faults as error codes."""
    try:
        return work()
    except CorruptFault as fault:
        return fault_of(CORRUPT_MESSAGE, str(fault))
    except StoreFault as fault:
        return fault_of(KAFKA_STORAGE_ERROR, str(fault))
    except StorageFault as fault:  # of a disk here; of a log that is deleted by now, too
        return fault_of(UNKNOWN_SERVER_ERROR, str(fault))
    except Exception as fault:
        # A library may raise anything; it must not take the thread with it.
        what = "the store's library failed"
        logger.exception("%s", what, extra=logs.seldom(what))
        return fault_of(UNKNOWN_SERVER_ERROR, repr(fault))


def fault_of(error_code: int, message: str) -> Body:
    """The answer that says what failed."""
    return {"error_code": error_code, "error_message": message[:1000]}
