"""A thread for what a turn must not wait for, such as the hash of a password."""

from __future__ import annotations

import logging
import queue
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[], None]


logger = logging.getLogger(__name__)


class Aside:
    """A thread that does one thing after another, from the first on."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, work: Work) -> None:
        """Have something done there. Who waits for it must be told by itself if it fails."""
        self._work.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="aside", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:
                logger.exception("work that was to be done aside failed")  # the next may not
