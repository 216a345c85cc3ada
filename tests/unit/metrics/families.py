"""A family that is made of memory alone, for what only looks at one."""

from shmbroker.metrics.shared_memory import Family, Process
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


def family() -> Family:
    """All run, controller 1 is active; there is one ring, from the first network worker to the
    first broker."""
    counters = Counters(memoryview(bytearray(layout_size(len(ROLES)))), len(ROLES))
    processes = [
        Process(slot, role, number, role if role == "supervisor" else f"{role}-{number}")
        for slot, (role, number) in enumerate(ROLES)
    ]
    workers = [each.slot for each in processes if each.role in ("network-worker", "io-worker")]
    ring = memoryview(bytearray(ring_bytes(RING_BYTES)))
    create_ring(ring)
    made = Family(
        counters,
        processes,
        {(workers[0], workers[2]): ring},
        {slot: memoryview(bytearray(table_bytes())) for slot in workers},
    )
    for process in processes[1:]:
        store(made, process.title, PID, 4000 + process.slot)
        store(made, process.title, INCARNATION, 1)
        store(made, process.title, STATE, STATE_RUNNING)
        store(made, process.title, LIVENESS_NS, int((NOW_S - 1) * 1e9))
    counters.store_metadata_leader(3, 1)
    return made


def slot_of(family: Family, title: str) -> int:
    """The slot of a process."""
    return next(process.slot for process in family.processes if process.title == title)


def store(family: Family, title: str, field: int, value: int) -> None:
    """Store a field of a process."""
    counters = family.counters
    counters.words[counters.at(slot_of(family, title), field)] = value
