"""The process that shows the console: looks at the family, asks brokers as a client, answers HTTP.

Rules of this file:
* Forked only where `shmbroker.console` names an address. As `metrics`, it has no rings, stores
  nothing that others read but its own slot, and the supervisor listens for it.
* It gives way: it runs at a lower priority than the rest of the family, and while no page is open
  it asks nobody anything. It follows the metadata log and the states of processes, for the events.
* Threads answer; the main thread gives signs of life and ends connections that take too long.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket

from shmbroker import clock
from shmbroker.console.access import Access
from shmbroker.console.api import Console
from shmbroker.console.server import ConsoleServer, page_files
from shmbroker.ipc.slots import Slot
from shmbroker.observe import shared_memory
from shmbroker.processes.child import REST_S, SleepingChild
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.table import page_address
from shmbroker.shm.counters import METADATA_APPLIED

logger = logging.getLogger(__name__)

NICENESS = 5
EVENTS_S = 2.0
"""How often it looks what has become of the other processes."""


class ConsoleProcess(SleepingChild):
    """The main loop."""

    def __init__(
        self, shared: SharedResources, slot: Slot, config: BrokerConfig, listening: socket.socket
    ) -> None:
        super().__init__(shared, slot)
        os.nice(NICENESS)
        self.follows = config
        self.listening = listening
        self.observer = shared.observer(lambda: self.sign(clock.monotonic()))
        host, _ = page_address(config["shmbroker.console"])
        may_write = config["shmbroker.console.writes"]
        access = Access([host], secrets.token_urlsafe(32), may_write)
        self.console = Console(self.observer, config, access, page_files())
        self.server = ConsoleServer(listening, self.console)
        self.may_write = may_write
        self._next_look_s = 0.0
        self._applied_index = self.counters.at(slot.index, METADATA_APPLIED)

    def run(self) -> None:
        """Serve until asked to stop."""
        self._follow()
        self.observer.groups.start()
        # Browsers that are answered may count on it: what dies from here on is an event.
        self._maybe_look(clock.monotonic())
        self.server.start()
        self.say_running()
        host, port = self.listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        kind = "which may change things" if self.may_write else "read-only"
        logger.info("console on http://%s:%d/, %s", shown, port, kind)
        while not self.must_stop:
            self.look_at_announcements(self)
            now_s = clock.monotonic()
            self.sign(now_s)
            self._follow()
            self._maybe_look(now_s)
            self.server.end_overdue(now_s)
            self.sleep(REST_S)
        self.say_stopping()

    def has_news(self) -> bool:
        return super().has_news() or self.observer.link.has_news()

    def _follow(self) -> None:
        self.observer.follow()
        image = self.observer.image
        self.console.events.see_image(clock.now_ms(), image)
        self.words[self._applied_index] = image.offset

    def _maybe_look(self, now_s: float) -> None:
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + EVENTS_S
        found = shared_memory.processes(self.observer.family, now_s, is_usage_wanted=False)
        self.console.events.see_processes(clock.now_ms(), found)
