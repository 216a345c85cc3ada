"""A family that is made of memory alone, for what only looks at one."""

from collections.abc import Sequence

from shmbroker.ipc.slots import Slot
from shmbroker.metadata.image import BrokerImage, MetadataImage
from shmbroker.observe import shared_memory
from shmbroker.observe.health import reasons_not_ready
from shmbroker.observe.partitions import brokers
from shmbroker.observe.shared_memory import Family
from shmbroker.observe.snapshot import Changes, Groups, Snapshot, Topic
from shmbroker.shm.counters import (
    INCARNATION,
    LIVENESS_NS,
    PID,
    STATE,
    STATE_RUNNING,
    Counters,
    layout_size,
)
from shmbroker.shm.latencies import table_bytes
from shmbroker.shm.ring_layout import create_ring, ring_bytes

NOW_S = 1000.0
ROLES = (
    ("supervisor", 1),
    ("network-worker", 1),
    ("network-worker", 2),
    ("io-worker", 1),
    ("io-worker", 2),
    ("controller", 1),
    ("controller", 2),
    ("controller", 3),
    ("cleaner", 1),
    ("tier", 1),
    ("metrics", 1),
)
RING_BYTES = 1 << 12
NO_PID = 2**22 + 9
"""Above any that Linux gives."""
NO_GROUPS = Groups(None, 0, ())
STARTED_MS_OF_FAMILY = 940_000
DIRECTORIES = {1: "/nowhere/node-1", 2: "/nowhere/node-2"}


def family() -> Family:
    """All run, controller 1 is active; there is one ring, from the first network worker to the
    first broker."""
    counters = Counters(memoryview(bytearray(layout_size(len(ROLES)))), len(ROLES))
    slots = [Slot(index, role, number) for index, (role, number) in enumerate(ROLES)]
    workers = [each.index for each in slots if each.role in ("network-worker", "io-worker")]
    ring = memoryview(bytearray(ring_bytes(RING_BYTES)))
    create_ring(ring)
    made = Family(
        counters,
        slots,
        {(workers[0], workers[2]): ring},
        {slot: memoryview(bytearray(table_bytes())) for slot in workers},
        NO_PID,
        STARTED_MS_OF_FAMILY,
    )
    for slot in slots[1:]:
        store(made, slot.title, PID, NO_PID + slot.index)
        store(made, slot.title, INCARNATION, 1)
        store(made, slot.title, STATE, STATE_RUNNING)
        store(made, slot.title, LIVENESS_NS, int((NOW_S - 1) * 1e9))
    counters.store_metadata_leader(3, 1)
    return made


def slot_of(family: Family, title: str) -> int:
    """The slot of a process."""
    return next(slot.index for slot in family.slots if slot.title == title)


def store(family: Family, title: str, field: int, value: int) -> None:
    """Store a field of a process."""
    counters = family.counters
    counters.words[counters.at(slot_of(family, title), field)] = value


def image(*fenced: int) -> MetadataImage:
    """Both brokers are registered; these are fenced."""
    made = MetadataImage("c")
    for number in DIRECTORIES:
        made.brokers[number] = BrokerImage(
            number, "h", 9, None, 1, b"", number in fenced, (), False
        )
    return made


def snapshot(
    family: Family,
    cluster: MetadataImage | None = None,
    topics: Sequence[Topic] = (),
    groups: Groups = NO_GROUPS,
) -> Snapshot:
    """What an observer would make of it at NOW_S."""
    cluster = image() if cluster is None else cluster
    addresses = {number: ("127.0.0.1", 9091 + number) for number in DIRECTORIES}
    processes = shared_memory.processes(family, NOW_S)
    controllers = shared_memory.controllers(family)
    found = brokers(cluster, topics, DIRECTORIES, addresses)
    return Snapshot(
        "9.9",
        "c",
        "/nowhere",
        1_000_000,
        NOW_S,
        STARTED_MS_OF_FAMILY,
        60.0,
        processes,
        shared_memory.rings(family),
        shared_memory.latencies(family),
        controllers,
        found,
        sorted(cluster.brokers),
        sorted(each.broker_id for each in cluster.brokers.values() if each.is_fenced),
        topics,
        groups,
        Changes(0, 0, 0),
        reasons_not_ready(processes, controllers, found),
        0.001,
    )
