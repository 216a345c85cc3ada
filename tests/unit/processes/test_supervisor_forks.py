"""When a successor is forked: who is waited for, who is killed for it; a kernel that refuses."""

import errno
import logging
import os
import select
import signal
from types import SimpleNamespace

import pytest

from shmbroker import clock
from shmbroker.ipc.slots import IO_WORKER, NETWORK_WORKER
from shmbroker.processes import children as children_module
from shmbroker.processes.children import Children
from shmbroker.processes.shared_resources import SharedResources
from shmbroker.processes.successors import ACKNOWLEDGE_S, FORK_RETRY_S, Successors
from shmbroker.processes.watchdog import Watchdog
from shmbroker.shm.counters import INCARNATION, LIVENESS_NS

PID = 2**22 + 7
"""Of an I/O worker that lives, as far as the supervisor knows; above any that Linux gives."""


@pytest.fixture
def family(tmp_path):
    """A family whose network worker has died a while ago, and whose I/O worker has not
    acknowledged that yet."""
    shared = SharedResources(str(tmp_path), 1, [1], [1], 1 << 20, 1 << 16)
    roles = SimpleNamespace(maker=lambda _role: None)
    children = Children(shared, roles, select.poll())
    watchdog = Watchdog(0, 0, lambda _pid: None)
    for role, pid in ((NETWORK_WORKER, 0), (IO_WORKER, PID)):
        (slot,) = shared.of_role(role)
        children.add(slot).pid = pid
        shared.counters.words[shared.counters.at(slot.index, INCARNATION)] = 2 - bool(pid)
    successors = Successors(children, watchdog, logging.getLogger(__name__))
    now = clock.monotonic()
    dead = shared.of_role(NETWORK_WORKER)[0].index
    successors.to_fork[dead] = (now - 10, now - 1)
    return SimpleNamespace(
        shared=shared, children=children, watchdog=watchdog, successors=successors
    )


@pytest.fixture
def killed(monkeypatch):
    found = []
    monkeypatch.setattr(children_module.os, "kill", lambda *what: found.append(what))
    return found


def sign(family, age_s):
    (slot,) = family.shared.of_role(IO_WORKER)
    at = family.shared.counters.at(slot.index, LIVENESS_NS)
    family.shared.counters.words[at] = int((clock.monotonic() - age_s) * 1e9)


def test_who_works_is_not_killed_for_an_acknowledgement_that_is_late(family, killed):
    sign(family, 0.5)
    family.successors.fork_due()
    assert killed == []
    (dates,) = family.successors.to_fork.values()
    assert dates[1] > clock.monotonic(), "it is looked at again later, not at once"


@pytest.mark.parametrize(("silent_s", "is_up"), [(ACKNOWLEDGE_S + 1, False), (0.5, True)])
def test_who_is_silent_or_was_waited_for_long_enough_is_killed(family, killed, silent_s, is_up):
    sign(family, silent_s)
    if is_up:
        (index,) = family.successors.to_fork
        family.successors.patience_ends[index] = clock.monotonic()
    family.successors.fork_due()
    assert killed == [(PID, signal.SIGKILL)]


def test_after_a_standstill_the_late_one_has_its_time_again(family, killed):
    sign(family, ACKNOWLEDGE_S + 1)
    family.watchdog.look(clock.monotonic(), [])
    family.successors.fork_due()
    assert killed == []


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM])
def test_fork_that_the_kernel_refuses_is_tried_again(family, monkeypatch, code):
    def refuse():
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(children_module.os, "fork", refuse)
    running = family.children.running[next(iter(family.successors.to_fork))]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    family.successors.fork_or_later(running)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    not_before, *_ = family.successors.to_fork[running.slot.index]
    assert clock.monotonic() < not_before <= clock.monotonic() + FORK_RETRY_S


def test_child_whose_end_nobody_would_see_does_not_live_on(family, monkeypatch):
    def refuse(_pid):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    forked = []
    real_fork = os.fork

    def fork():
        pid = real_fork()
        if pid == 0:
            signal.pause()
        forked.append(pid)
        return pid

    monkeypatch.setattr(children_module.os, "fork", fork)
    monkeypatch.setattr(children_module.os, "pidfd_open", refuse)
    running = family.children.running[next(iter(family.successors.to_fork))]
    family.successors.fork_or_later(running)
    assert running.pid == 0
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)
    assert running.slot.index in family.successors.to_fork


@pytest.mark.parametrize("failure", [OSError(errno.EBADF, "Bad file descriptor"), KeyError("role")])
def test_child_that_fails_before_it_has_a_role_ends_and_says_why(family, failure):
    def refuse(_role):
        raise failure

    family.children._roles.sockets = SimpleNamespace(keep_for=refuse)
    running = family.children.running[next(iter(family.successors.to_fork))]
    me = os.getpid()
    try:
        family.children.fork(running)
    finally:
        if os.getpid() != me:
            os._exit(77)  # it went on as a second supervisor
    ready, _, _ = select.select([running.pidfd], [], [], 30)
    assert ready
    death = family.children.bury(running.pidfd)
    assert (death.code, death.has_served) == (1, False)
    last_words = family.shared.last_words(running.slot.index)
    assert last_words == f"{type(failure).__name__}: {failure}"
