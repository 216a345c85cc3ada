"""An I/O worker: the process that runs a broker. It builds it, and sleeps between its turns."""

from functools import partial
from pathlib import Path

from shmbroker import clock
from shmbroker.broker.broker import Broker
from shmbroker.broker.disk_reserve import space_of
from shmbroker.broker.flusher import Flusher
from shmbroker.broker.ports import Disk, Peers, Tables
from shmbroker.ipc.passed_files import FileTable
from shmbroker.ipc.peer import Peer
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.meta_properties import require_meta_properties
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.child import SleepingChild
from shmbroker.processes.shared_resources import (
    CLEANER,
    IO_WORKER,
    NETWORK_WORKER,
    TIER,
    SharedResources,
    Slot,
)
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.latencies import Latencies
from shmbroker.shm.standing import StandingAnswers


class IoWorker(SleepingChild):
    """The process around a `Broker`."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        data_directory: Path,
        cluster_id: str,
        ports: dict[int, tuple[str, int]],
    ) -> None:
        super().__init__(shared, slot)
        self.follows = config
        directory = config.nodes[slot.number]
        require_meta_properties(directory, slot.number, cluster_id)
        log_directory = LogDirectory.open(directory, slot.number, cluster_id)
        peers = self._peers()
        self.broker = Broker(
            clock,
            self,
            config,
            slot.number,
            ports[slot.number],
            ActiveLink(self.counters, self.peers, config, cluster_id),
            peers,
            Disk(
                log_directory,
                Flusher(self.doorbell.eventfd),
                partial(space_of, log_directory.path),
                str(data_directory / "tier-cache"),
            ),
            Tables(
                shared.positions_of(slot.index),
                StandingAnswers(shared.standing_of(slot.index), self.incarnation),
                {
                    number: shared.sibling_positions_of(peer.slot)
                    for number, peer in peers.siblings.items()
                },
                Latencies(shared.latencies[slot.index]),
            ),
        )

    def _peers(self) -> Peers:
        passing, own = self.shared.passing, self.slot.index
        helpers: dict[str, Peer] = {}
        gateways: list[Peer] = []
        siblings: dict[int, Peer] = {}
        for peer in self.peers:
            if peer.role == NETWORK_WORKER:
                gateways.append(peer)
            elif peer.role == IO_WORKER:
                siblings[peer.number] = peer
            else:
                helpers[peer.role] = peer
        return Peers(
            gateways,
            siblings,
            helpers.get(CLEANER),
            helpers.get(TIER),
            {number: FileTable(passing[peer.slot, own][1]) for number, peer in siblings.items()},
            {peer.slot: passing[own, peer.slot][0] for peer in (*gateways, *siblings.values())},
            self.shared.doorbells[0].ring,
        )

    def on_settings(self) -> None:
        self.broker.on_settings()

    def run(self) -> None:
        """Open what is here, serve until asked to stop, let others lead it, and close."""
        broker = self.broker
        for rest in broker.begin():
            self._sleep_for(rest)
            if self.must_stop:
                return
        while not self.must_stop:
            self._sleep_for(broker.turn())
        self.must_stop = False
        for rest in broker.hand_over():
            self._sleep_for(rest)
            if self.must_stop:
                break
        broker.close()

    def _sleep_for(self, rest: float) -> None:
        if rest:
            self.sleep(rest)
        elif self.shared_core is not None:
            self.shared_core.stays_up()

    def has_news(self) -> bool:
        return self.broker.has_news()
