"""What shared memory says of the family: counters, states, rings, latencies. It asks nobody.

Rules of this file:
* Nothing is stored, and no process waits for who looks: words are loaded while their owners store
  them, so two values of one look may be of two moments.
* The supervisor's slot has no counters. A slot without a process has a state, and what was counted
  in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shmbroker import signs
from shmbroker.ipc.slots import CONTROLLER, IO_WORKER, NETWORK_WORKER, SUPERVISOR, Slot
from shmbroker.observe import kernel
from shmbroker.observe.snapshot import (
    HAS_FAILED,
    HAS_ROOM,
    IS_FULL,
    NONE,
    RUNNING,
    STARTING,
    STOPPING,
    UNABLE,
    Controllers,
    Latency,
    Process,
    Ring,
)
from shmbroker.shm.counters import (
    COUNTERS,
    COUNTERS_START,
    DISK,
    DISK_HAS_FAILED,
    DISK_HAS_ROOM,
    DISK_IS_FULL,
    GAUGES,
    INCARNATION,
    LIVENESS_NS,
    METADATA_APPLIED,
    METADATA_END_OFFSET_WORD,
    OPEN_CONNECTIONS,
    PID,
    STARTED_MS,
    STATE,
    STATE_NONE,
    STATE_RUNNING,
    STATE_STARTING,
    STATE_STOPPING,
    STATE_UNABLE,
    WORK,
    Counters,
)
from shmbroker.shm.latencies import (
    OTHERS,
    STAGE_ANSWER,
    STAGE_APPEND,
    STAGE_FLUSH,
    STAGE_NETWORK,
    STAGE_PURGATORY,
    STAGE_RING,
    read_table,
)
from shmbroker.shm.ring_layout import CAPACITY_WORD, HEAD_WORD, TAIL_WORD
from shmbroker.shm.words import words_of
from shmbroker.wire.api_keys import name_of

STATES = {
    STATE_NONE: NONE,
    STATE_STARTING: STARTING,
    STATE_RUNNING: RUNNING,
    STATE_STOPPING: STOPPING,
    STATE_UNABLE: UNABLE,
}
DISKS = {DISK_HAS_ROOM: HAS_ROOM, DISK_IS_FULL: IS_FULL, DISK_HAS_FAILED: HAS_FAILED}
STAGES = {
    STAGE_NETWORK: "network",
    STAGE_RING: "ring_wait",
    STAGE_APPEND: "append",
    STAGE_PURGATORY: "purgatory",
    STAGE_FLUSH: "flush",
    STAGE_ANSWER: "answer",
}
_COUNTED = tuple(name for name, _ in COUNTERS + GAUGES)
_FOLLOW_METADATA = (NETWORK_WORKER, IO_WORKER)


class Family(NamedTuple):
    """What is looked at: mapped shared memory, and who has which slot."""

    counters: Counters
    slots: Sequence[Slot]
    rings: Mapping[tuple[int, int], memoryview]
    """Rings by the slots of who writes and who reads."""
    latencies: Mapping[int, memoryview]
    """Latencies by slot."""
    supervisor_pid: int
    started_ms: int
    are_pids_ours: bool = True
    """The pids hold here. They do not if the family runs in a container, and we do not: then /proc
    has others under its pids."""


def processes(family: Family, now_s: float, is_usage_wanted: bool = True) -> list[Process]:
    """Every slot; now_s: the monotonic clock."""
    return [_process(family, slot, now_s, is_usage_wanted) for slot in family.slots]


def _process(family: Family, slot: Slot, now_s: float, is_usage_wanted: bool) -> Process:
    counters = family.counters
    at = counters.at(slot.index, 0)
    words = counters.words
    is_supervisor = slot.role == SUPERVISOR
    pid = family.supervisor_pid if is_supervisor else words[at + PID]
    state = RUNNING if is_supervisor else STATES.get(words[at + STATE], NONE)
    signed_s = words[at + LIVENESS_NS] / 1e9
    first = at + COUNTERS_START
    values = words[first : first + len(_COUNTED)].tolist()
    counted = {} if is_supervisor else dict(zip(_COUNTED, values, strict=True))
    committed = words[METADATA_END_OFFSET_WORD]
    return Process(
        slot.index,
        slot.role,
        slot.number,
        slot.title,
        pid,
        state,
        max(0, words[at + INCARNATION] - 1),
        family.started_ms if is_supervisor else words[at + STARTED_MS],
        counted["boot_ms"] / 1000 if pid and state == RUNNING and counted else None,
        max(0.0, now_s - signed_s) if pid and signed_s else None,
        signs.describe(words[at + WORK]) if pid else "",
        words[at + OPEN_CONNECTIONS] if pid else 0,
        max(0, committed - words[at + METADATA_APPLIED]) if slot.role in _FOLLOW_METADATA else None,
        DISKS.get(words[at + DISK], HAS_ROOM),
        counted,
        kernel.usage(pid) if pid and is_usage_wanted and family.are_pids_ours else None,
    )


def controllers(family: Family) -> Controllers:
    """The controller that decides, and how much is decided."""
    epoch, leader, is_active = family.counters.metadata_leader()
    committed = family.counters.words[METADATA_END_OFFSET_WORD]
    voters = sum(slot.role == CONTROLLER for slot in family.slots)
    return Controllers(is_active, leader, epoch, committed, voters)


def rings(family: Family) -> list[Ring]:
    """All of them, as they are filled."""
    titles = {slot.index: slot.title for slot in family.slots}
    found = []
    for (writer, reader), view in family.rings.items():
        words = words_of(view)
        # The head first: read later it may have passed this tail.
        head, tail = words[HEAD_WORD], words[TAIL_WORD]
        capacity = words[CAPACITY_WORD]
        used = min(max(0, tail - head), capacity)
        found.append(Ring(titles[writer], titles[reader], used, capacity, tail))
    return found


def latencies(family: Family) -> list[Latency]:
    """What network workers and I/O workers have counted."""
    titles = {slot.index: slot.title for slot in family.slots}
    return [
        Latency(titles[slot], STAGES.get(key) or api_name(key), key in STAGES, sum_us / 1e6, counts)
        for slot, view in family.latencies.items()
        for key, (sum_us, counts) in read_table(view).items()
    ]


def api_name(key: int) -> str:
    """The name of an API, as Kafka spells it."""
    return "other" if key == OTHERS else name_of(key)
