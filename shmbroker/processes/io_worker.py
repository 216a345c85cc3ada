"""An I/O worker: the process that runs a broker. It builds it, and sleeps between its turns.

Beside the broker it runs a gateway for guests, the connections that network workers have lent it
(`gateway.guests`): with them, the turns of both follow each other (`processes.turns_with_guests`).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from shmbroker import clock
from shmbroker.broker.boot import Boot
from shmbroker.broker.broker import Broker
from shmbroker.broker.disk_reserve import space_of
from shmbroker.broker.flusher import Flusher
from shmbroker.broker.leaving import Leaving
from shmbroker.broker.ports import Disk, Peers, Tables
from shmbroker.gateway.listener import Listener
from shmbroker.ipc.passed_files import FileTable
from shmbroker.ipc.peer import Peer
from shmbroker.ipc.slots import CLEANER, IO_WORKER, NETWORK_WORKER, TIER, Slot
from shmbroker.log.file_names import TIER_CACHE
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.meta_properties import require_meta_properties
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.child import SleepingChild
from shmbroker.processes.guest_gateway import GuestGateway, OwnRings, has_guests
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.processes.turns_with_guests import TurnsWithGuests
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
        listeners: Sequence[Listener] = (),
    ) -> None:
        """listeners: those by which guests may have come; without any there are no guests."""
        self._listeners = [each for each in listeners if has_guests(config, each)]
        self._rings = OwnRings(shared, slot) if self._listeners else None
        own = () if self._rings is None else (self._rings.of_broker,)
        super().__init__(shared, slot, *own)
        self.follows = config
        self._beside: GuestGateway | None = None
        self._latencies = Latencies(shared.latencies[slot.index])
        self.config = config
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
                str(data_directory / TIER_CACHE),
            ),
            Tables(
                shared.positions_of(slot.index),
                StandingAnswers(
                    shared.standing_of(slot.index), self.incarnation, clock.monotonic_ns
                ),
                {
                    number: shared.sibling_positions_of(peer.slot)
                    for number, peer in peers.siblings.items()
                },
                self._latencies,
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
        if self._beside is not None:
            self._beside.gateway.on_settings()

    def run(self) -> None:
        """Open what is here, serve until asked to stop, let others lead it, and close."""
        broker = self.broker
        for rest in Boot(broker).run():
            self._sleep_for(rest)
            if self.must_stop:
                return
        if self._rings is None:
            while not self.must_stop:
                self._sleep_for(broker.turn())
        else:
            self._turns_with_guests(self._rings).run()
        self.must_stop = False
        leaving = Leaving(broker)
        for rest in leaving.hand_over():
            self._sleep_for(rest)
            if self.must_stop:
                break
        leaving.close()

    def _turns_with_guests(self, rings: OwnRings) -> TurnsWithGuests:
        self._beside = beside = GuestGateway(
            self.shared,
            self.slot,
            self.config,
            self.broker,
            rings,
            self.epoll,
            self._listeners,
            self._latencies,
        )
        return TurnsWithGuests(self, self.broker, beside, rings.of_gateway, self.doorbell.eventfd)

    def _sleep_for(self, rest: float) -> None:
        if rest:
            self.sleep(rest)
        elif self.shared_core is not None:
            self.shared_core.stays_up()

    def has_news(self) -> bool:
        return self.broker.has_news()  # the gateway beside has heard all from it
