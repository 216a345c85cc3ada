"""The tier process: `tier.service` with its store, its threads and its rings.

Rules of this file:
* There from the start where there is a remote store, so that no other process ever waits for it.
  The main loop asks, answers, and signs; threads talk to the store.
* It is simply killed at a stop: what is under way then is left as it is.
"""

from __future__ import annotations

import os
import queue
from functools import partial
from pathlib import Path

from shmbroker.ipc.operation_adapter import Executor
from shmbroker.ipc.slots import Slot
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.child import Helper
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.tier.object_store import open_store, store_url
from shmbroker.tier.service import TierService
from shmbroker.tier.store_mark import KNOWN
from shmbroker.tier.store_workers import Done, Workers

COPIERS = 4
READERS = 8


class TierProcess(Helper):
    """The service, with its rings."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        data_directory: Path,
        cluster_id: str,
    ) -> None:
        super().__init__(shared, slot)
        store = open_store(
            store_url(config["shmbroker.tier.store"], str(data_directory)),
            config["shmbroker.tier.s3.endpoint"],
            config["shmbroker.tier.s3.region"],
            known=str(data_directory / KNOWN),
        )
        done: Done = queue.SimpleQueue()
        wake = partial(os.eventfd_write, self.doorbell.eventfd, 1)
        self.service = TierService(
            cluster_id,
            store,
            ActiveLink(self.counters, (), config, cluster_id),
            Workers(COPIERS, done, wake),
            Workers(READERS, done, wake),
            done,
            self.tally.add,
        )
        self.executor = Executor(self.service.handlers)

    def step(self, now: float) -> bool:
        """Let the service do what is due."""
        return self.service.turn(now)
