"""A process that can't boot, as the supervisor sees it."""

import logging
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.gateway.listener import Listener
from shmbroker.processes.child import EXIT_BOOT_FAULT
from shmbroker.processes.children import Children
from shmbroker.processes.ending import Ending
from shmbroker.processes.open_sockets import OpenSockets
from shmbroker.processes.readiness import Readiness
from shmbroker.processes.shared_resources import CONTROLLER, IO_WORKER, NETWORK_WORKER, Slot
from shmbroker.processes.successors import ACKNOWLEDGE_S, Successors
from shmbroker.processes.supervisor import EXIT_CHILD_BOOT, EXIT_UNCLEAN, Supervisor
from shmbroker.processes.watchdog import Watchdog
from shmbroker.settings.listeners import ListenerConfig
from shmbroker.shm.counters import (
    STATE,
    STATE_UNABLE,
    Counters,
    layout_size,
)

IDS = (0, 1, 2)
SLOTS = [Slot(index, IO_WORKER, number) for index, number in enumerate(IDS)]
SLOTS += [Slot(3 + index, CONTROLLER, number) for index, number in enumerate(IDS)]
SLOTS += [Slot(6, NETWORK_WORKER, 1)]


@pytest.fixture
def shared() -> Any:
    counters = Counters(memoryview(bytearray(layout_size(len(SLOTS)))), len(SLOTS))
    return SimpleNamespace(
        counters=counters,
        doorbells=[],
        slots=SLOTS,
        of_role=lambda role: [slot for slot in SLOTS if slot.role == role],
        talk=lambda *_: True,
    )


@pytest.fixture
def supervisor(shared: Any, tmp_path: Path) -> Supervisor:
    made = Supervisor({}, tmp_path, 0.0)
    listeners = [
        Listener(socket.socket(), number, False, ListenerConfig("PLAINTEXT", "PLAINTEXT", "h", 1))
        for number in IDS
    ]
    poller = SimpleNamespace(unregister=lambda _fd: None)
    made.shared = shared
    made.children = Children(shared, SimpleNamespace(), poller)
    watchdog = Watchdog(0, 0, lambda _pid: None)
    made.successors = Successors(made.children, watchdog, logging.getLogger(__name__))
    made.readiness = Readiness(made.children, OpenSockets(listeners, {}), tmp_path, 0.0)
    made.is_new, made.readiness.is_ready = False, True
    for slot in SLOTS:
        made.children.add(slot)
    return made


def test_nobody_is_late_for_a_death_before_the_next_try_is_due(supervisor: Supervisor) -> None:
    before = clock.monotonic()
    supervisor.successors.succeed(SLOTS[0], 60.0)
    not_before, deadline = supervisor.successors.to_fork[0]
    assert not_before >= before + 60.0
    assert deadline == not_before + ACKNOWLEDGE_S


def test_family_goes_on_until_nobody_of_a_role_is_left(supervisor: Supervisor) -> None:
    at = supervisor.shared.counters.at
    for index in (3, 5):
        assert supervisor._go_on_without(supervisor.children.running[index], "its disk is gone")
        assert supervisor.shared.counters.words[at(index, STATE)] == STATE_UNABLE
    assert supervisor.children.lacking() == (
        "; without controller-0: its disk is gone; without controller-2: its disk is gone"
    )
    assert supervisor.ending is None
    assert not supervisor._go_on_without(supervisor.children.running[4], "it, too")
    assert supervisor.ending is not None
    assert supervisor.exit_status == EXIT_CHILD_BOOT


def test_try_that_fails_while_the_family_stops_is_no_unclean_stop(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.waitpid", lambda pid, _flags: (pid, EXIT_BOOT_FAULT << 8))
    supervisor.ending = Ending(supervisor.children, logging.getLogger(__name__))
    for index, why, status in ((0, "its disk is gone", 0), (1, "", EXIT_UNCLEAN)):
        running = supervisor.children.running[index]
        running.why, running.pid, running.pidfd = why, 4711, os.dup(0)
        supervisor._on_death(running.pidfd)
        assert supervisor.exit_status == status
