"""A process that can't boot: does the family go on without it, and what becomes of its stop."""

import logging
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.errors import StorageFault
from shmbroker.gateway.listener import Listener
from shmbroker.ipc.slots import CONTROLLER, IO_WORKER, NETWORK_WORKER, Slot
from shmbroker.processes import boots
from shmbroker.processes.child import EXIT_BOOT_FAULT, EXIT_TRY_AGAIN, run_child
from shmbroker.processes.children import Children, Death
from shmbroker.processes.consequences import Consequences
from shmbroker.processes.ending import Ending
from shmbroker.processes.open_sockets import OpenSockets
from shmbroker.processes.readiness import Readiness
from shmbroker.processes.successors import ACKNOWLEDGE_S, Successors
from shmbroker.processes.watchdog import Watchdog
from shmbroker.settings.listeners import ListenerConfig
from shmbroker.shm.counters import (
    STATE,
    STATE_UNABLE,
    Counters,
    layout_size,
)

logger = logging.getLogger(__name__)

IDS = (0, 1, 2)
SLOTS = [Slot(index, IO_WORKER, number) for index, number in enumerate(IDS)]
SLOTS += [Slot(3 + index, CONTROLLER, number) for index, number in enumerate(IDS)]
SLOTS += [Slot(6, NETWORK_WORKER, 1)]
CONTROLLERS = (3, 4, 5)


@pytest.fixture
def shared() -> Any:
    counters = Counters(memoryview(bytearray(layout_size(len(SLOTS)))), len(SLOTS))
    return SimpleNamespace(
        counters=counters,
        doorbells=[],
        slots=SLOTS,
        of_role=lambda role: [slot for slot in SLOTS if slot.role == role],
        talk=lambda *_: True,
        last_words=lambda index: f"the disk of {SLOTS[index].title} is gone",
    )


@pytest.fixture
def children(shared: Any) -> Children:
    roles: Any = SimpleNamespace()
    poller: Any = SimpleNamespace(unregister=lambda _fd: None)
    made = Children(shared, roles, poller)
    for slot in SLOTS:
        made.add(slot)
    return made


@pytest.fixture
def readiness(children: Children, tmp_path: Path) -> Readiness:
    """Of a family that has served."""
    listeners = [
        Listener(socket.socket(), number, False, ListenerConfig("PLAINTEXT", "PLAINTEXT", "h", 1))
        for number in IDS
    ]
    made = Readiness(children, OpenSockets(listeners, {}), tmp_path, 0.0)
    made.is_ready = True
    return made


@pytest.fixture
def consequences(children: Children, readiness: Readiness) -> Consequences:
    return Consequences(children, readiness, False, logger)


def died(children: Children, index: int, code: int = EXIT_BOOT_FAULT) -> Death:
    return Death(children.running[index], 4711, code, False)


def test_nobody_is_late_for_a_death_before_the_next_try_is_due(children: Children) -> None:
    successors = Successors(children, Watchdog(0, 0, lambda _pid: ""), logger)
    before = clock.monotonic()
    successors.succeed(SLOTS[0], 60.0)
    not_before, deadline = successors.to_fork[0]
    assert not_before >= before + 60.0
    assert deadline == not_before + ACKNOWLEDGE_S


def test_family_goes_on_until_nobody_of_a_role_is_left(
    shared: Any, children: Children, consequences: Consequences
) -> None:
    for index in (3, 5):
        assert consequences.of(died(children, index)) == boots.RETRY_S[0]
        assert shared.counters.words[shared.counters.at(index, STATE)] == STATE_UNABLE
    assert children.lacking() == (
        "; without controller-0: the disk of controller-0 is gone"
        "; without controller-2: the disk of controller-2 is gone"
    )
    assert consequences.of(died(children, 3)) == boots.RETRY_S[1], "more and more seldom"
    assert consequences.of(died(children, 4)) is None


@pytest.mark.parametrize(("is_new", "can_lack"), [(True, 0), (False, 1)])
def test_family_that_never_served_lacks_few(
    children: Children, readiness: Readiness, is_new: bool, can_lack: int
) -> None:
    readiness.is_ready = False
    consequences = Consequences(children, readiness, is_new, logger)
    delays = [consequences.of(died(children, index)) for index in CONTROLLERS]
    assert [delay is not None for delay in delays] == [at < can_lack for at in range(3)]


def test_who_waits_for_room_is_not_unable(
    children: Children, consequences: Consequences, caplog: pytest.LogCaptureFixture
) -> None:
    for index in IDS:
        assert consequences.of(died(children, index, EXIT_TRY_AGAIN)) is not None
    assert children.unable() == []
    assert "io-worker-0 waits: the disk of io-worker-0 is gone" in caplog.messages


def test_try_that_fails_while_the_family_stops_is_no_unclean_stop(
    children: Children, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.waitpid", lambda pid, _flags: (pid, EXIT_BOOT_FAULT << 8))
    ending = Ending(children, logger)
    for index, why, is_clean in ((0, "its disk is gone", True), (1, "", False)):
        running = children.running[index]
        running.why, running.pid, running.pidfd = why, 4711, os.dup(0)
        assert ending.is_clean(children.bury(running.pidfd)) == is_clean
    assert caplog.messages == ["io-worker-1 did not stop cleanly: the disk of io-worker-1 is gone"]


@pytest.mark.parametrize("cause", [PermissionError(13, "Permission denied", "/x"), OSError(5, "")])
def test_missing_right_is_told_with_what_to_do(
    shared: Any, monkeypatch: pytest.MonkeyPatch, cause: OSError
) -> None:
    """Whichever file it was: a start by another user may have left some that are that user's."""
    said: list[str] = []
    shared.leave_last_words = lambda _index, text: said.append(text)
    monkeypatch.setattr("shmbroker.processes.child.set_title", lambda *_: None)
    monkeypatch.setattr("os._exit", lambda _status: None)
    monkeypatch.setattr("logging.shutdown", lambda: None)

    def begin() -> None:
        raise StorageFault(f"can't read /x: {cause}") from cause

    run_child(shared, SLOTS[0], os.getppid(), begin, lambda *_: pytest.fail("made"))
    (told,) = said
    is_denied = isinstance(cause, PermissionError)
    assert told.endswith("; run it as the directory's owner, or give it the rights") == is_denied
