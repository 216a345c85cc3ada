"""Everything that the family shares, made before the first fork and inherited by all.

Slots. Each process has a fixed slot: 0 is the supervisor, then network workers, I/O workers,
controllers, the cleaner, the tier process if there is a remote store, the ones that show metrics
and the console if that is asked for. A successor takes the slot of the dead, with its rings, its
doorbell and its counters.

The number of an I/O worker is its broker's id, that of a controller its voter's; all others count
from 1.

Regions (`shm.region`), unlinked as soon as they are mapped:

    counters    words that everyone may read, `shm.counters`
    rings       one ring for each ordered pair that talks
    positions   one table for each I/O worker, `shm.positions`
    standing    one table for each I/O worker, `shm.standing`
    addresses   one table for each network worker, `shm.address_counts`
    quotas      one table for each network worker, `shm.quota_counts`
    latencies   one table for each network worker and I/O worker, `shm.latencies`
    loggers     levels of the loggers of all processes, `shm.log_levels`
    about       what the family is, for whoever attaches from outside: `observe.about`

Pairs that talk, and their rings:

    network worker → I/O worker   operations with batches     data_ring_bytes
    I/O worker → network worker   results, slices             RESULT_RING_BYTES
    I/O worker ↔ I/O worker       reads of followers, slices  RESULT_RING_BYTES
    network worker ↔ controller   requests as the client sent them   control_ring_bytes
                                  (controllers talk to each other over sockets: `voter_links`)
    I/O worker ↔ controller       registration, producer ids  control_ring_bytes
    I/O worker ↔ cleaner          logs to compact             control_ring_bytes
    I/O worker ↔ tier             segments to copy, to fetch  control_ring_bytes

An anonymous mapping holds what each process that can't boot says of it: its last words. Another one
holds the settings that were read again (`shm.notice`), others the marks of guests
(`shm.guest_marks`).

A Unix socket pair for each I/O worker and each other worker that reads from it carries descriptors
of segment files. Another one for each I/O worker and each network worker carries connections that
are lent (`ipc.passage`).
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Collection

from shmbroker.ipc.passage import make_pair
from shmbroker.ipc.peer import Peer
from shmbroker.ipc.slots import (
    CLEANER,
    CONTROLLER,
    IO_WORKER,
    NETWORK_WORKER,
    PAGES,
    SUPERVISOR,
    TIER,
    Slot,
)
from shmbroker.observe.about import REGION, About
from shmbroker.shm import (
    address_counts,
    latencies,
    log_levels,
    positions,
    quota_counts,
    standing,
)
from shmbroker.shm.counters import DOORBELL, Counters, layout_size
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.shm.guest_marks import make_marks
from shmbroker.shm.notice import Notice
from shmbroker.shm.region import Region, require_room, sweep
from shmbroker.shm.ring import RingReader, RingWriter
from shmbroker.shm.ring_layout import create_ring, parts_of_ring, ring_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.observe.observer import Observer

RESULT_RING_BYTES = 2 << 20
LAST_WORDS_BYTES = 1024
SETTINGS_BYTES = 1 << 20
POSITION_ENTRIES = 32_768
"""Partitions of an I/O worker whose positions survive it; further ones are scanned."""


class SharedResources:
    """Slots, counters, rings, doorbells, position tables, sockets that pass descriptors."""

    def __init__(
        self,
        data_directory: str,
        network_workers: int,
        io_workers: Collection[int],
        controllers: Collection[int],
        data_ring_bytes: int,
        control_ring_bytes: int,
        tiers: int = 0,
        pages: Collection[str] = (),
        quota_windows: int = quota_counts.BY_DEFAULT.number,
    ) -> None:
        """Make and map all regions, for brokers and voters of these ids, and these of PAGES;
        ConfigFault if /dev/shm has no room for them."""
        numbers: dict[str, Collection[int]] = {
            SUPERVISOR: (1,),
            NETWORK_WORKER: range(1, network_workers + 1),
            IO_WORKER: io_workers,
            CONTROLLER: controllers,
            CLEANER: (1,),
            TIER: range(1, tiers + 1),
            **{role: (1,) for role in PAGES if role in pages},
        }
        self.slots: list[Slot] = []
        for role in numbers:
            for number in numbers[role]:
                self.slots.append(Slot(len(self.slots), role, number))
        prefix = region_prefix(data_directory)
        sweep(prefix)
        self._make_regions(prefix, data_ring_bytes, control_ring_bytes, quota_windows)
        self.passing = self._pass_descriptors()
        self.passages = {
            (io_worker.index, network_worker.index): make_pair()
            for io_worker in self.of_role(IO_WORKER)
            for network_worker in self.of_role(NETWORK_WORKER)
        }
        """The I/O worker's end and the network worker's, by their slots."""
        self.guest_marks = make_marks(self.passages)
        """The marks of one I/O worker's guests from one network worker, by their slots."""

    def _make_regions(
        self, prefix: str, data_ring_bytes: int, control_ring_bytes: int, quota_windows: int
    ) -> None:
        """Make all shared memory, if there is room for it."""
        count = len(self.slots)
        network_workers, io_workers = map(len, map(self.of_role, (NETWORK_WORKER, IO_WORKER)))
        sizes = self._ring_sizes(data_ring_bytes, control_ring_bytes)
        tables = positions.table_bytes(POSITION_ENTRIES), standing.table_bytes()
        counts = address_counts.table_bytes()
        used = quota_counts.table_bytes(quota_windows)
        took = latencies.table_bytes()
        require_room(
            _pages(layout_size(count))
            + sum(map(ring_bytes, sizes.values()))
            + io_workers * sum(map(_pages, tables))
            + network_workers * (_pages(counts) + _pages(used))
            + _pages(took * (network_workers + io_workers))
            + _pages(log_levels.table_bytes())
        )
        self._regions = [Region.create(f"{prefix}counters", _pages(layout_size(count)))]
        self.counters = Counters(self._regions[0].view, count)
        self._last_words = mmap.mmap(-1, _pages(LAST_WORDS_BYTES * count))
        self.stranger_secret = os.urandom(32)
        """See `security.sasl.scram_users`; it lasts as long as the family."""
        self.settings = Notice(memoryview(mmap.mmap(-1, SETTINGS_BYTES)))
        """The settings that were read again, as JSON: setting to text."""
        words = self.counters.words
        self.doorbells = [
            Doorbell(make_eventfd(), words, self.counters.at(slot.index, DOORBELL))
            for slot in self.slots
        ]
        self._prefix, self._sizes = prefix, sizes
        self._make_rings(prefix, sizes)
        self._position_views = self._make_tables(f"{prefix}positions", IO_WORKER, tables[0])
        self._standing_views = self._make_tables(f"{prefix}standing", IO_WORKER, tables[1])
        self.address_counts = self._make_tables(f"{prefix}addresses", NETWORK_WORKER, counts)
        """Tables of the connections that the network workers have from each address, by slot."""
        self.quota_counts = self._make_tables(f"{prefix}quotas", NETWORK_WORKER, used)
        """Tables of what the network workers have counted for quotas, by slot."""
        workers = self.of_role(NETWORK_WORKER) + self.of_role(IO_WORKER)
        region = Region.create(f"{prefix}latencies", _pages(took * len(workers)))
        self._regions.append(region)
        self.latencies = {
            slot.index: region.view[took * which : took * (which + 1)]
            for which, slot in enumerate(workers)
        }
        """Tables of the network workers and I/O workers, by slot."""
        self._regions.append(Region.create(f"{prefix}loggers", _pages(log_levels.table_bytes())))
        self.log_levels = log_levels.LogLevels(self._regions[-1].view)

    def _pass_descriptors(self) -> dict[tuple[int, int], tuple[socket.socket, socket.socket]]:
        """Socket pairs, by the slots of an I/O worker and of who reads from it."""
        passing: dict[tuple[int, int], tuple[socket.socket, socket.socket]] = {}
        for io_worker in self.of_role(IO_WORKER):
            for other in self.of_role(NETWORK_WORKER) + self.of_role(IO_WORKER):
                # To itself, too: it has a gateway for guests.
                passing[io_worker.index, other.index] = make_pair()
        return passing

    def of_role(self, role: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.role == role]

    def _ring_sizes(
        self, data_ring_bytes: int, control_ring_bytes: int
    ) -> dict[tuple[int, int], int]:
        """The sizes of the rings, by who writes and who reads."""
        sizes: dict[tuple[int, int], int] = {}
        for io_worker in self.of_role(IO_WORKER):
            for network_worker in self.of_role(NETWORK_WORKER):
                sizes[network_worker.index, io_worker.index] = data_ring_bytes
                sizes[io_worker.index, network_worker.index] = RESULT_RING_BYTES
            for sibling in self.of_role(IO_WORKER):
                if sibling is not io_worker:
                    sizes[io_worker.index, sibling.index] = RESULT_RING_BYTES
        for controller in self.of_role(CONTROLLER):
            for other in self.of_role(NETWORK_WORKER) + self.of_role(IO_WORKER):
                sizes[controller.index, other.index] = control_ring_bytes
                sizes[other.index, controller.index] = control_ring_bytes
        for helper in self.of_role(CLEANER) + self.of_role(TIER):
            for io_worker in self.of_role(IO_WORKER):
                sizes[helper.index, io_worker.index] = control_ring_bytes
                sizes[io_worker.index, helper.index] = control_ring_bytes
        return sizes

    def _make_rings(self, prefix: str, sizes: dict[tuple[int, int], int]) -> None:
        region = Region.create(f"{prefix}rings", sum(map(ring_bytes, sizes.values())))
        self._regions.append(region)
        self._rings: dict[tuple[int, int], memoryview] = {}
        at = 0
        for pair, size in sizes.items():
            view = region.view[at : at + ring_bytes(size)]
            create_ring(view)
            self._rings[pair] = view
            at += ring_bytes(size)

    def _make_tables(self, name: str, role: str, table_bytes: int) -> dict[int, memoryview]:
        """A region with a table for each process of this role, by its slot."""
        owners = self.of_role(role)
        size = _pages(table_bytes)
        region = Region.create(name, size * len(owners))
        self._regions.append(region)
        return {
            slot.index: region.view[size * which : size * (which + 1)]
            for which, slot in enumerate(owners)
        }

    def standing_of(self, slot: int) -> memoryview:
        """The table of an I/O worker's standing answers."""
        return self._standing_views[slot]

    def positions_of(self, slot: int) -> positions.PositionTable:
        """The position table of an I/O worker, as its predecessor left it."""
        return positions.PositionTable(self._position_views[slot], POSITION_ENTRIES)

    def sibling_positions_of(self, slot: int) -> positions.SiblingPositions:
        """The position table of another I/O worker."""
        return positions.SiblingPositions(self._position_views[slot])

    def leave_last_words(self, slot: int, text: str) -> None:
        """Why the process of a slot can't boot, for `last_words`."""
        at = slot * LAST_WORDS_BYTES
        raw = text.encode(errors="replace")[:LAST_WORDS_BYTES].ljust(LAST_WORDS_BYTES, b"\0")
        self._last_words[at : at + LAST_WORDS_BYTES] = raw

    def last_words(self, slot: int) -> str:
        """What a dead process left; "" if it left nothing."""
        at = slot * LAST_WORDS_BYTES
        raw = self._last_words[at : at + LAST_WORDS_BYTES]
        self._last_words[at : at + LAST_WORDS_BYTES] = bytes(LAST_WORDS_BYTES)
        return raw.rstrip(b"\0").decode(errors="replace")

    def tell(self, about: About) -> None:
        """Say what this family is; `about` has its places and rings. Before the first fork."""
        self.about = about
        content = about.to_bytes()
        region = Region.create(f"{self._prefix}{REGION}", _pages(len(content)))
        region.view[: len(content)] = content
        self._regions.append(region)

    @property
    def places(self) -> list[tuple[str, int]]:
        """Role and number of each slot, for `tell`."""
        return [(slot.role, slot.number) for slot in self.slots]

    @property
    def ring_places(self) -> list[tuple[int, int, int]]:
        """The writer, the reader and the capacity of each ring, as they lie in their region."""
        return [(*pair, size) for pair, size in self._sizes.items()]

    def observer(self, sign: Callable[[], None]) -> Observer:
        """The observer that makes snapshots of the family, from within it (`observe.observer`). It
        is imported where it is asked for: other processes do without."""
        from shmbroker.observe.observer import Observer
        from shmbroker.observe.shared_memory import Family

        about = self.about
        begun = about.supervisor_pid, about.started_ms
        return Observer(
            about,
            Family(self.counters, self.slots, self._rings, self.latencies, *begun),
            {
                slot.number: self.sibling_positions_of(slot.index)
                for slot in self.of_role(IO_WORKER)
            },
            sign,
        )

    def talk(self, slot: int, other: int) -> bool:
        """Whether two slots have rings between them."""
        return (slot, other) in self._rings

    def peers_of(self, slot: int) -> list[Peer]:
        """This process's ends of its rings, by the other's slot; to be made once, in the child."""
        peers = []
        for other in self.slots:
            if (slot, other.index) not in self._rings:
                continue
            peers.append(
                Peer(
                    other.index,
                    other.role,
                    other.number,
                    RingWriter(*parts_of_ring(self._rings[slot, other.index])),
                    RingReader(*parts_of_ring(self._rings[other.index, slot])),
                    self.doorbells[other.index],
                )
            )
        return peers


def region_prefix(data_directory: str) -> str:
    """What the shared memory names of an existing data directory begin with."""
    found = os.stat(data_directory)
    return f"shmbroker-{found.st_dev:x}-{found.st_ino:x}-"


def _pages(size: int) -> int:
    return size + 4095 & -4096
