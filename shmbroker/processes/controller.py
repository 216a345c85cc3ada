"""The process that runs a `Controller`. It builds it, and sleeps between its turns."""

import select
from collections.abc import Mapping
from pathlib import Path

from shmbroker import clock, logs
from shmbroker.controller.boot import open_voter
from shmbroker.controller.controller import Controller, ControllerPeers
from shmbroker.controller.raft.voter_links import VoterLinks
from shmbroker.ipc.slots import CONTROLLER, IO_WORKER, Slot
from shmbroker.processes.child import Child
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.doorbell import EPOLL_EVENTS


class ControllerProcess(Child):
    """The process around a `Controller`."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        data_directory: Path,
        cluster_id: str,
    ) -> None:
        super().__init__(shared, slot)
        self.follows = config
        self.poller = select.epoll()
        self.poller.register(self.doorbell.eventfd, EPOLL_EVENTS)
        others = {
            other.number: other.index for other in shared.of_role(CONTROLLER) if other is not slot
        }
        links = None
        if others:
            links = VoterLinks(str(data_directory), slot.number, others, cluster_id)
            self.poller.register(links.epoll.fileno(), select.EPOLLIN)
        voter = open_voter(
            clock,
            config,
            slot.number,
            [slot.number, *others],
            cluster_id,
            links,
            is_successor=self.incarnation > 1,
        )
        brokers = {other.number: other.index for other in shared.of_role(IO_WORKER)}
        self.controller = Controller(
            clock,
            self,
            config,
            voter,
            cluster_id,
            ControllerPeers(brokers, others, shared.doorbells[1:]),
            on_log_levels=self._store_log_levels,
        )

    def run(self) -> None:
        """Serve until asked to stop, and until the other voters have what this one has."""
        controller = self.controller
        controller.begin()
        while not controller.is_over:
            controller.must_stop = self.must_stop
            rest_s = controller.turn()
            logs.flush()
            if rest_s:
                self.sleep(rest_s)
        controller.close()

    def _store_log_levels(self, changes: Mapping[str, str | None]) -> None:
        self.shared.log_levels.change(changes)
        self.supervisor.ring()  # who tells everybody

    def sleep(self, timeout_s: float) -> None:
        """Sleep until the doorbell rings, another voter says something, a signal comes or the time
        is over."""
        doorbell = self.doorbell
        doorbell.say_sleeping()
        # A signal that came since the turn: the controller hears of it first.
        if not self.controller.has_news() and self.must_stop == self.controller.must_stop:
            self.poller.poll(timeout_s)
        doorbell.awake()
