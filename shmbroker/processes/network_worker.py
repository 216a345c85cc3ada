"""A network worker: the process that runs a gateway. It builds it, and sleeps between its turns."""

import select

from shmbroker import clock
from shmbroker.gateway.gateway import RETRY_S, Gateway
from shmbroker.gateway.lending import Lender
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.ports import Brokers, Siblings
from shmbroker.gateway.standing_ready import StandingReady
from shmbroker.ipc.passage import Passage
from shmbroker.ipc.passed_files import FileTable, files_kept
from shmbroker.ipc.peer import Peer
from shmbroker.ipc.slots import IO_WORKER, NETWORK_WORKER, Slot
from shmbroker.processes.active_link import ActiveLink
from shmbroker.processes.aside import Aside
from shmbroker.processes.child import Child
from shmbroker.processes.heap import give_back_freed, keep_large_apart
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm.address_counts import AddressCounts
from shmbroker.shm.counters import AHEAD_ENDS, ANNOUNCEMENTS_WORD, GUEST_ROOM
from shmbroker.shm.latencies import Latencies
from shmbroker.shm.quota_counts import QuotaCounts, Windows
from shmbroker.shm.words import words_of

BOOT_LOOK_S = 0.05


def _on_doorbell() -> None:
    """Something is on a ring: each turn looks at all of them."""


class NetworkWorker(Child):
    """The process around a `Gateway`."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        cluster_id: str,
        listeners: list[Listener],
    ) -> None:
        super().__init__(shared, slot)
        self.follows = config
        self.poller = select.epoll()
        io_peers = [peer for peer in self.peers if peer.role == IO_WORKER]
        self.gateway = Gateway(
            clock,
            self,
            config,
            ActiveLink(self.counters, self.peers, config, cluster_id),
            self.poller,
            listeners,
            self._brokers(io_peers),
            self._siblings(config, len(io_peers)),
            give_back_freed,
            Latencies(shared.latencies[slot.index]),
            shared.log_levels.effective,
            shared.stranger_secret,
            Aside(),
        )
        self.gateway.standing_ready = StandingReady(self.gateway)
        if config["shmbroker.lend.connections"]:
            self.gateway.lending = Lender(
                self.gateway,
                {
                    peer.number: Passage(shared.passages[peer.slot, slot.index][1])
                    for peer in io_peers
                },
                {peer.number: shared.guest_marks[peer.slot, slot.index] for peer in io_peers},
                {peer.number: shared.counters.word(peer.slot, GUEST_ROOM) for peer in io_peers},
                clock.worked_s,
            )
        self.gateway.loop.watch(
            self.doorbell.eventfd, select.EPOLLIN | select.EPOLLET, _on_doorbell
        )
        keep_large_apart()

    def _brokers(self, io_peers: list[Peer]) -> Brokers:
        shared, own = self.shared, self.slot.index
        kept = files_kept(len(io_peers))
        return Brokers(
            {peer.number: peer for peer in io_peers},
            {peer.slot: FileTable(shared.passing[peer.slot, own][1], kept) for peer in io_peers},
            {peer.slot: words_of(shared.standing_of(peer.slot)) for peer in io_peers},
            {peer.slot: shared.counters.word(peer.slot, AHEAD_ENDS) for peer in io_peers},
        )

    def _siblings(self, config: BrokerConfig, io_workers: int) -> Siblings:
        shared, slot = self.shared, self.slot
        others = [other.index for other in shared.of_role(NETWORK_WORKER) if other is not slot]
        tables = shared.address_counts
        return Siblings(
            slot.number - 1,
            {other: shared.doorbells[other] for other in others},
            AddressCounts(tables[slot.index], {other: tables[other] for other in others}),
            QuotaCounts(
                shared.quota_counts[slot.index],
                [shared.quota_counts[other] for other in others],
                Windows(config["quota.window.num"], config["quota.window.size.seconds"] * 1000),
            ),
            io_workers if config["shmbroker.lend.connections"] else 0,
        )

    def on_settings(self) -> None:
        self.gateway.on_settings()

    def run(self) -> None:
        """Serve until asked to stop, then let the requests in flight finish."""
        self._wait_for_metadata()
        self.say_running()
        gateway = self.gateway
        gateway.begin()
        doorbell = self.doorbell
        poll = self.poller.poll
        core = self.shared_core
        timeout = 0.0
        while not gateway.is_over:
            events = gateway.look_before_sleep()
            if events is None:
                doorbell.say_sleeping()
                if gateway.has_news():
                    timeout = 0.0
                elif self.must_stop:
                    timeout = min(timeout, RETRY_S)
                if core is not None:
                    core.sleeps()
                events = poll(timeout)
                doorbell.awake()
                if core is not None:
                    core.woke()
            elif core is not None:
                core.stays_up()
            gateway.must_stop = self.must_stop
            timeout = gateway.turn(events)
            if gateway.crowd_rest_s:
                clock.sleep(gateway.crowd_rest_s)
        gateway.close()

    def _wait_for_metadata(self) -> None:
        gateway = self.gateway
        while not self.must_stop and not gateway.may_begin():
            self.sign(clock.monotonic())
            self.doorbell.say_sleeping()
            # Rings are not looked at: what they hold is taken in the first turn.
            has_peers_news = self.words[ANNOUNCEMENTS_WORD] != self.announcements
            if not has_peers_news and not gateway.link.has_news():
                self.poller.poll(BOOT_LOOK_S)
            self.doorbell.awake()
