"""Whether the family is ready to serve, and if not, why. Pure, but for the words that it reads."""

from __future__ import annotations

from shmbroker.metrics.shared_memory import (
    CONTROLLER,
    IO_WORKER,
    NETWORK_WORKER,
    STATES,
    Family,
)
from shmbroker.shm.counters import LIVENESS_NS, STATE, STATE_RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.image import MetadataImage

SILENT_S = 5.0
"""Idle processes leave a sign of life once a second."""


def reasons_not_ready(family: Family, image: MetadataImage, now_s: float) -> list[str]:
    """A sentence for each thing that is missing; empty: ready. now_s: the monotonic clock.

    Ready: each broker and one network worker serve, there is an active controller, nobody is
    silent, and no broker of the family is fenced.
    """
    found = []
    for role in (IO_WORKER, NETWORK_WORKER, CONTROLLER):
        unready = []
        processes = family.of_role(role)
        for process in processes:
            state = family.word(process, STATE)
            silent_s = now_s - family.word(process, LIVENESS_NS) / 1e9
            if state != STATE_RUNNING:
                unready.append(f"{process.title} is {STATES[state]}")
            elif silent_s > SILENT_S:
                unready.append(f"{process.title} gives no sign of life for {silent_s:.0f} s")
        spare = {
            IO_WORKER: 0,
            NETWORK_WORKER: len(processes) - 1,
            CONTROLLER: (len(processes) - 1) // 2,
        }
        if len(unready) > spare[role]:
            found += unready
    if not family.counters.metadata_leader()[2]:
        found.append("no controller is active")
    for process in family.of_role(IO_WORKER):
        broker = image.brokers.get(process.number)
        if broker is None:
            found.append(f"broker {process.number} is not registered")
        elif not broker.is_active:
            found.append(f"broker {process.number} is fenced or stops")
    return found
