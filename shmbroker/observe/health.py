"""Whether the family is ready to serve, and if not, why. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shmbroker.ipc.slots import CONTROLLER, IO_WORKER, NETWORK_WORKER
from shmbroker.observe.snapshot import RUNNING, Broker, Controllers, Process

SILENT_S = 5.0
"""Idle processes leave a sign of life once a second."""


def reasons_not_ready(
    processes: Sequence[Process], controllers: Controllers, brokers: Sequence[Broker]
) -> list[str]:
    """A sentence for each thing that is missing; empty: ready.

    Ready: each broker and one network worker serve, there is an active controller, nobody is
    silent, and no broker of the family is fenced.
    """
    found = []
    for role in (IO_WORKER, NETWORK_WORKER, CONTROLLER):
        unready = []
        of_role = [process for process in processes if process.role == role]
        for process in of_role:
            if process.state != RUNNING:
                unready.append(f"{process.title} is {process.state}")
            elif process.silence_s is not None and process.silence_s > SILENT_S:
                unready.append(
                    f"{process.title} gives no sign of life for {process.silence_s:.0f} s"
                )
        spare = {
            IO_WORKER: 0,
            NETWORK_WORKER: len(of_role) - 1,
            CONTROLLER: (len(of_role) - 1) // 2,
        }
        if len(unready) > spare[role]:
            found += unready
    if not controllers.is_active:
        found.append("no controller is active")
    for broker in brokers:
        if not broker.is_registered:
            found.append(f"broker {broker.number} is not registered")
        elif not broker.is_active:
            found.append(f"broker {broker.number} is fenced or stops")
    return found
