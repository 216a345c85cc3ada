"""The gateway in an I/O worker's own process, for the connections that network workers lend it.

   passages ──► Guests ──► Gateway ══ two rings in this process's own memory ══ Broker
   epoll of the I/O worker ──┘

Rules of this file:
* It is the same gateway that a network worker runs, with one peer: the broker beside it. What a
  network worker shares with the family (counts for limits, the image, a slot) it has for itself,
  or takes from the broker.
* It accepts nobody, and asks no controller: guests go home for that (`gateway.guests`).
* The same thread takes the turns of both, so nobody rings a doorbell for these rings.
"""

from __future__ import annotations

import mmap
import select
from collections.abc import Sequence

from shmbroker import clock
from shmbroker.gateway.gateway import Gateway
from shmbroker.gateway.guests import Guests
from shmbroker.gateway.ports import Brokers, Siblings
from shmbroker.guests import straight
from shmbroker.guests.brokers_image import BrokersImage
from shmbroker.guests.gateway_here import GatewayHere
from shmbroker.guests.straight_appends import StraightAppends
from shmbroker.guests.straight_reads import StraightReads
from shmbroker.ipc.awake import Awake
from shmbroker.ipc.core import EVENTS, NOTHING, Core
from shmbroker.ipc.member import FamilyMember
from shmbroker.ipc.passage import Passage
from shmbroker.ipc.passed_files import FileTable
from shmbroker.ipc.peer import Peer
from shmbroker.ipc.slots import IO_WORKER, NETWORK_WORKER, Slot
from shmbroker.log.descriptors import open_files_share
from shmbroker.processes.heap import give_back_freed
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm import address_counts, quota_counts
from shmbroker.shm.counters import (
    AHEAD_ENDS,
    GUEST_ROOM,
    INCARNATION,
    STATE,
    STATE_RUNNING,
    Counters,
    Tally,
    layout_size,
)
from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import create_ring, parts_of_ring, ring_bytes
from shmbroker.shm.rings import Rings
from shmbroker.shm.words import words_of
from shmbroker.wire.frame import flexible_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.broker import Broker
    from shmbroker.gateway.listener import Listener
    from shmbroker.shm.latencies import Latencies

GUESTS_SHARE = 4
"""One part in so many of the files that this process may have open are guests, at most."""

RING_BYTES = 4 << 20
"""A batch of 1 MB fits as one entry; a smaller ring stays in the caches."""
RESULT_RING_BYTES = 1 << 20
FILES_KEPT = 512
"""Descriptors of segments that this process has twice, at most: as many as it keeps to read from. A
guest that reads more partitions waits a turn longer for each answer."""
FILES_SHARE = 16
"""What part they may be of the files that this process may have open: one in so many."""
LEFT_OUT_MAX = 32
"""The second half of every so manyth turn is taken in any case: it counts what was answered."""
SLOTS = GATEWAY, BROKER = range(2)
"""The slots of the counters that these two have for themselves."""
NOT_SHOWN = ("turns", "claims_refused")
"""The broker counts its own in this slot."""


def has_guests(config: BrokerConfig, listener: Listener) -> bool:
    """Whether those who come by a listener may be lent: see `gateway.lending`."""
    return (
        config["shmbroker.lend.connections"]
        and not config.has_authorizer
        and not config.is_audited
        and not listener.is_control
        and not listener.config.is_unix
        and not listener.config.has_sasl
        and not listener.config.has_tls
    )


class OwnRings:
    """The two rings between a broker and the gateway in its process, and this process's ends of
    the passages."""

    def __init__(self, shared: SharedResources, slot: Slot) -> None:
        """Begin before network workers may lend to this process: what they have lent to the one
        before it, and what that one said, counts no more."""
        shared.counters.words[shared.counters.at(slot.index, GUEST_ROOM)] = 0
        self.passages = {
            worker.index: Passage(shared.passages[slot.index, worker.index][0])
            for worker in shared.of_role(NETWORK_WORKER)
        }
        for passage in self.passages.values():
            passage.drain()
        asked, answered = (_ring(size) for size in (RING_BYTES, RESULT_RING_BYTES))
        doorbell = shared.doorbells[slot.index]
        self.of_broker = GatewayHere(
            slot.index, NETWORK_WORKER, 0, RingWriter(*answered), RingReader(*asked), doorbell
        )
        """The gateway, as the broker reaches it. It has the broker's own slot."""
        self.of_broker.results = None
        self.of_gateway = Peer(
            BROKER, slot.role, slot.number, RingWriter(*asked), RingReader(*answered), doorbell
        )


def _ring(size: int) -> tuple[memoryview, memoryview]:
    view = memoryview(mmap.mmap(-1, ring_bytes(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    create_ring(view)
    return parts_of_ring(view)


class OwnTally(Tally):
    """Counts in the slot of the broker, but for what that counts itself."""

    def show(self, name: str, total: int) -> None:
        if name not in NOT_SHOWN:
            super().show(name, total)


def own_member(shared: SharedResources, slot: Slot, broker: Peer) -> FamilyMember:
    """The gateway as the member of a family of two, with counters that nobody else sees."""
    counters = Counters(memoryview(bytearray(layout_size(len(SLOTS)))), len(SLOTS))
    words = counters.words
    for index in SLOTS:
        words[counters.at(index, INCARNATION)] = 1
        words[counters.at(index, STATE)] = STATE_RUNNING
        for other in SLOTS:
            words[counters.acknowledgement(index, other)] = 1
    doorbells = shared.doorbells
    member = FamilyMember(GATEWAY, counters, doorbells[slot.index], doorbells[0], [broker])
    member.tally = OwnTally(shared.counters, slot.index)
    return member


def own_brokers(shared: SharedResources, slot: Slot, broker: Broker, peer: Peer) -> Brokers:
    """The broker beside, to be asked; of the others a guest is told that they lead."""
    others = {each.number: each for each in broker.member.peers if each.role == IO_WORKER}
    files_kept = min(FILES_KEPT, open_files_share(FILES_SHARE))
    return Brokers(
        others | {slot.number: peer},
        {BROKER: FileTable(shared.passing[slot.index, slot.index][1], files_kept)},
        {BROKER: words_of(shared.standing_of(slot.index))},
        {BROKER: shared.counters.word(slot.index, AHEAD_ENDS)},
    )


def own_siblings(shared: SharedResources, slot: Slot, config: BrokerConfig) -> Siblings:
    """Counts of its own for what network workers count together."""
    workers, brokers = shared.of_role(NETWORK_WORKER), shared.of_role(IO_WORKER)
    windows = quota_counts.Windows(
        config["quota.window.num"], config["quota.window.size.seconds"] * 1000
    )
    used = memoryview(bytearray(quota_counts.table_bytes(config["quota.window.num"])))
    addresses = memoryview(bytearray(address_counts.table_bytes()))
    return Siblings(
        len(workers) + brokers.index(slot),
        {},
        address_counts.AddressCounts(addresses, {}),
        quota_counts.QuotaCounts(used, [], windows),
        len(workers) + len(brokers) - 1,
    )


class GuestGateway:
    """A gateway, its guests and the straight way, whose turns are taken between the broker's."""

    def __init__(
        self,
        shared: SharedResources,
        slot: Slot,
        config: BrokerConfig,
        broker: Broker,
        rings: OwnRings,
        poller: select.epoll,
        listeners: Sequence[Listener],
        latencies: Latencies,
    ) -> None:
        member = own_member(shared, slot, rings.of_gateway)
        image = BrokersImage(broker, member.counters.words)
        self.gateway = gateway = Gateway(
            clock,
            member,
            config,
            image,
            poller,
            listeners,
            own_brokers(shared, slot, broker, rings.of_gateway),
            own_siblings(shared, slot, config),
            give_back_freed,
            latencies,
            shared.log_levels.effective,
        )
        peer, workers = rings.of_gateway, shared.of_role(NETWORK_WORKER)
        rings_read = Rings((*broker.member.rings.readers, peer.reader))
        self.awake = Awake(Core(clock.monotonic, rings_read, poller))
        """What keeps this process awake for what a guest asks next."""
        self.guests = Guests(
            gateway,
            rings.passages,
            {worker.index: shared.guest_marks[slot.index, worker.index] for worker in workers},
            listeners,
            shared.counters.word(slot.index, GUEST_ROOM),
            [broker.replication.awake.core, self.awake.core],
            clock.worked_s,
            open_files_share(GUESTS_SHARE),
        )
        broker.attach_gateway(image.on_followed, self.guests.on_lender_lost)
        gateway.lending = self.guests
        gateway.loop.acceptor.listeners.clear()  # it accepts nobody
        self._straight = straight.StraightWay(gateway, broker, self.guests, rings.of_broker)
        gateway.produce.append_here = StraightAppends(gateway, broker, self.guests, rings.of_broker)
        gateway.fetch.read_here = self._reads = StraightReads(gateway, broker, rings.of_broker)
        rings.of_broker.results = gateway.results
        self._left_out = 0
        """Turns in a row whose second half had nothing to do."""
        for key in broker.executor.shortcuts:
            self.guests.submits[key] = straight.StraightOffsets(
                gateway, broker, self.guests, key, flexible_from(key)
            )
        member.look_at_announcements(gateway)

    def read(self, events: list[tuple[int, int]]) -> bool:
        """The first half of a turn; False where all that came went the straight way, or was looked
        up at once, so that the second half has nothing to do."""
        straight, reads = self._straight, self._reads
        before = straight.served + reads.served
        others = straight.take(events) if events else events
        self.gateway.read(others)
        if straight.served + reads.served - before < len(events) or self.guests.has_work:
            return True
        self._left_out = (self._left_out + 1) % LEFT_OUT_MAX
        return not self._left_out

    def look_before_sleep(
        self, has_served: bool, waits: bool = False
    ) -> list[tuple[int, int]] | None:
        """What came from sockets while this stayed awake for it; None where it is time to sleep.
        has_served: something was asked for in this turn. waits: acks wait for replicas."""
        came = self.awake.look(waits, has_served)
        if came == NOTHING:
            return None
        return self.awake.core.events if came == EVENTS else []
