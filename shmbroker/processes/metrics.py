"""The process that shows metrics: looks at the family, answers HTTP.

Rules of this file:
* Forked only where `shmbroker.metrics` names an address, and it alone imports prometheus_client.
* It stores nothing that others read, but its own slot. It has no rings: nobody waits for it, and
  nobody is told of its death.
* The supervisor listens for it, so that who asks while it is replaced waits, and is answered.
* Threads answer; the main thread follows the metadata log and gives signs of life. One lock is
  around both, the observer's: a look at a disk that hangs is a hang of this process, which the
  watchdog ends.
"""

from __future__ import annotations

import logging
import socket

from shmbroker import clock
from shmbroker.ipc.slots import Slot
from shmbroker.metrics import text
from shmbroker.metrics.samples import Samples
from shmbroker.metrics.series import put_all
from shmbroker.metrics.server import MetricsServer, Pages
from shmbroker.processes.child import REST_S, SleepingChild
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.shm.counters import METADATA_APPLIED

logger = logging.getLogger(__name__)


class MetricsProcess(SleepingChild):
    """The main loop, and what the HTTP threads ask."""

    def __init__(self, shared: SharedResources, slot: Slot, listening: socket.socket) -> None:
        super().__init__(shared, slot)
        self.listening = listening
        self.observer = shared.observer(lambda: self.sign(clock.monotonic()))
        self.scrapes = 0
        self._applied_index = self.counters.at(slot.index, METADATA_APPLIED)

    def run(self) -> None:
        """Serve until asked to stop."""
        self._follow()
        self.observer.groups.start()
        MetricsServer(self.listening, Pages(self.metrics, self.observer.reasons_not_ready)).start()
        self.say_running()
        host, port = self.listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logger.info("metrics on http://%s:%d/metrics", shown, port)
        while not self.must_stop:
            self.look_at_announcements(self)
            self.sign(clock.monotonic())
            self._follow()
            self.sleep(REST_S)
        self.say_stopping()

    def has_news(self) -> bool:
        return super().has_news() or self.observer.link.has_news()

    def _follow(self) -> None:
        self.observer.follow()
        self.words[self._applied_index] = self.observer.image.offset

    # ── in the threads of the server ────────────────────────────────────────────────────────────

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The text of all series."""
        snapshot = self.observer.look()
        began = clock.monotonic()
        samples = Samples()
        put_all(samples, snapshot)
        samples.put("shmbroker_metrics_scrapes_total", self.scrapes)
        self.scrapes += 1
        took_s = snapshot.took_s + clock.monotonic() - began
        samples.put("shmbroker_metrics_gather_seconds", took_s)
        return text.encode(samples, accept)
