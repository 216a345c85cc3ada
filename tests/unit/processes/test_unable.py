"""A process that can't boot, as the supervisor sees it."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.gateway.event_loop import Listener
from shmbroker.processes.child import EXIT_BOOT_FAULT
from shmbroker.processes.shared_resources import CONTROLLER, IO_WORKER, NETWORK_WORKER, Slot
from shmbroker.processes.stopping import Stop
from shmbroker.processes.supervisor import (
    ACKNOWLEDGE_S,
    EXIT_CHILD_BOOT,
    EXIT_UNCLEAN,
    Running,
    Supervisor,
)
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
    made.shared, made.words = shared, shared.counters.words
    made.listeners = [
        Listener(socket.socket(), number, False, ListenerConfig("PLAINTEXT", "PLAINTEXT", "h", 1))
        for number in IDS
    ]
    made.is_new, made.is_ready = False, True
    made.running = {slot.index: Running(slot) for slot in SLOTS}
    return made


def test_nobody_is_late_for_a_death_before_the_next_try_is_due(supervisor: Supervisor) -> None:
    before = clock.monotonic()
    supervisor._succeed(SLOTS[0], 60.0)
    not_before, deadline = supervisor.to_fork[0]
    assert not_before >= before + 60.0
    assert deadline == not_before + ACKNOWLEDGE_S


def test_family_goes_on_until_nobody_of_a_role_is_left(supervisor: Supervisor) -> None:
    at = supervisor.shared.counters.at
    for index in (3, 5):
        assert supervisor._go_on_without(supervisor.running[index], "its disk is gone")
        assert supervisor.words[at(index, STATE)] == STATE_UNABLE
    assert supervisor._lacking() == (
        "; without controller-0: its disk is gone; without controller-2: its disk is gone"
    )
    assert not supervisor.is_stopping
    assert not supervisor._go_on_without(supervisor.running[4], "it, too")
    assert (supervisor.is_stopping, supervisor.exit_status) == (True, EXIT_CHILD_BOOT)


def test_try_that_fails_while_the_family_stops_is_no_unclean_stop(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.poller = SimpleNamespace(unregister=lambda _fd: None)
    monkeypatch.setattr("os.waitpid", lambda pid, _flags: (pid, EXIT_BOOT_FAULT << 8))
    supervisor.stopping = Stop(0.0)
    for index, why, status in ((0, "its disk is gone", 0), (1, "", EXIT_UNCLEAN)):
        running = supervisor.running[index]
        running.why, running.pid, running.pidfd = why, 4711, os.dup(0)
        supervisor._on_death(running.pidfd)
        assert supervisor.exit_status == status
