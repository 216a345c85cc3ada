"""The process that shows metrics: reads shared memory, follows the metadata log, answers HTTP.

Rules of this file:
* Forked only where `shmbroker.metrics` names an address, and it alone imports prometheus_client.
* It stores nothing that others read, but its own slot. It has no rings: nobody waits for it, and
  nobody is told of its death.
* The supervisor listens for it, so that who asks while it is replaced waits, and is answered.
* Threads answer; the main thread follows the metadata log and gives signs of life. One lock is
  around both: a look at a disk that hangs is a hang of this process, which the watchdog ends.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping

from shmbroker import __version__, clock
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from shmbroker.metrics import proc, shared_memory, text
from shmbroker.metrics.groups import Groups
from shmbroker.metrics.health import reasons_not_ready
from shmbroker.metrics.partitions import Changes, Directories, Partitions
from shmbroker.metrics.samples import Samples
from shmbroker.metrics.server import Pages, Server
from shmbroker.metrics.shared_memory import Family, Process
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.child import REST_S, SleepingChild
from shmbroker.processes.shared_resources import IO_WORKER, SharedResources, Slot
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.layers import broker_layers, effective_topic_value
from shmbroker.shm.counters import METADATA_APPLIED, PID

logger = logging.getLogger("shmbroker")

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class MetricsProcess(SleepingChild):
    """The main loop, and what the HTTP threads ask."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        cluster_id: str,
        ports: Mapping[int, tuple[str, int]],
        listening: socket.socket,
    ) -> None:
        super().__init__(shared, slot)
        self.config = self.follows = config
        self.listening = listening
        self.link = ActiveLink(self.counters, [], config, cluster_id)
        self.lock = threading.Lock()
        self.family = Family(
            self.counters,
            [Process(each.index, each.role, each.number, each.title) for each in shared.slots],
            shared.rings(),
            shared.latencies,
        )
        self.changes = Changes()
        io_workers = shared.of_role(IO_WORKER)
        self.partitions = Partitions(
            {each.number: shared.sibling_positions_of(each.index) for each in io_workers},
            Directories(config.nodes),
            self._min_in_sync_of,
        )
        self.groups = Groups(
            {number: (_ANY_HOST.get(host, host), port) for number, (host, port) in ports.items()}
        )
        self.scrapes = 0
        self._is_first_look = True
        self._applied_index = self.counters.at(slot.index, METADATA_APPLIED)

    def run(self) -> None:
        """Serve until asked to stop."""
        with self.lock:
            self._follow()
        self.groups.start()
        Server(self.listening, Pages(self.metrics, self.reasons_not_ready)).start()
        self.say_running()
        host, port = self.listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logger.info("metrics on http://%s:%d/metrics", shown, port)
        while not self.must_stop:
            self.check_control()
            self.sign(clock.monotonic())
            with self.lock:
                self._follow()
            self.sleep(REST_S)
        self.say_stopping()

    def has_news(self) -> bool:
        return super().has_news() or self.link.has_news()

    def _follow(self) -> None:
        while (changes := self.link.catch_up()) is None:
            self.sign(clock.monotonic())
        if self._is_first_look and self.link.follower.image.offset:
            self._is_first_look = False  # what was before is no change
        else:
            self.changes.see(changes)
        self.words[self._applied_index] = self.link.follower.image.offset

    def _min_in_sync_of(self, image: MetadataImage, topic: str) -> int:
        layers = broker_layers(self.config, {}, image.config(BROKER_RESOURCE, ""))
        overrides = image.config(TOPIC_RESOURCE, topic)
        return int(effective_topic_value("min.insync.replicas", overrides, layers))

    # ── in the threads of the server ────────────────────────────────────────────────────────────

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The text of all series."""
        self.groups.want()
        with self.lock:
            return text.encode(self.gather(), accept)

    def gather(self) -> Samples:
        """Every value, as it is now."""
        began = clock.monotonic()
        samples = Samples()
        family = self.family
        self._follow()
        image = self.link.follower.image
        samples.put("shmbroker_info", 1, __version__, image.cluster_id)
        samples.put("shmbroker_ready", not reasons_not_ready(family, image, began))
        shared_memory.gather(samples, family, began)
        supervisor = [("supervisor", os.getppid())]
        pids = [(each.title, family.word(each, PID)) for each in family.processes]
        proc.gather(samples, supervisor + [pair for pair in pids if pair[1]])
        self.changes.gather(samples)
        self.partitions.gather(samples, image)
        self.groups.gather(
            samples,
            began,
            lambda topic, partition: self.partitions.end_offset(image, topic, partition),
        )
        samples.put("shmbroker_metrics_scrapes_total", self.scrapes)
        self.scrapes += 1
        samples.put("shmbroker_metrics_gather_seconds", clock.monotonic() - began)
        return samples

    def reasons_not_ready(self) -> list[str]:
        """For /readyz."""
        with self.lock:
            self._follow()
            return reasons_not_ready(self.family, self.link.follower.image, clock.monotonic())
