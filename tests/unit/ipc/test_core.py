"""Looking for what comes, compiled and not: it ends with what comes, or where others compute."""

import select
import socket
from collections.abc import Callable, Iterator

import pytest

from shmbroker import clock
from shmbroker.ipc import core as core_module
from shmbroker.ipc.core import ENTRIES, EVENTS, LOST, LOST_S, NOTHING, RESTS, Core
from shmbroker.kernels import native
from shmbroker.shm.rings import Rings
from tests.support.rings import put, ring

ROW_S = 50e-6
"""A row of looks."""


class Scheduler:
    """Gives the core back after some time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes_s = 0.0
        self.yields = 0

    def monotonic(self) -> float:
        return self.now

    def sched_yield(self) -> None:
        self.yields += 1
        self.now += self.takes_s


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    scheduler = Scheduler()
    monkeypatch.setattr(core_module, "sched_yield", scheduler.sched_yield)
    return scheduler


@pytest.fixture(params=["compiled", "not compiled"])
def monotonic(request: pytest.FixtureRequest, scheduler: Scheduler) -> Callable[[], float]:
    """The real clock, for which looks are compiled, or one that isn't."""
    if request.param == "not compiled":
        return scheduler.monotonic
    if native is None:
        pytest.skip("there are no compiled kernels here")
    return clock.monotonic


@pytest.fixture
def sockets() -> Iterator[tuple[select.epoll, socket.socket]]:
    """What watches one end of a pair, and the other end."""
    here, there = socket.socketpair()
    with here, there, select.epoll() as watching:
        watching.register(here, select.EPOLLIN)
        yield watching, there


def test_a_row_of_looks_ends_though_nothing_comes(
    monotonic: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "LOST_S", 1000.0)  # the machine of the test may be busy
    core = Core(monotonic, Rings([ring()[1], ring()[1]]))
    for _ in range(3):
        assert not core.is_wanted()
        assert core.look(ROW_S) == NOTHING


@pytest.mark.parametrize("at", [0, 2])
def test_entries_on_any_ring_are_seen_until_they_are_taken(
    monotonic: Callable[[], float], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "LOST_S", 1000.0)
    rings = [ring() for _ in range(3)]
    core = Core(monotonic, Rings(reader for _, reader in rings))
    writer, reader = rings[at]
    put(writer)
    assert not core.is_wanted()
    assert core.look(ROW_S) == ENTRIES
    assert reader.poll() and reader.next() is not None
    reader.release()
    assert core.look(ROW_S) == NOTHING
    put(writer)
    assert core.look(ROW_S) == ENTRIES


def test_sockets_are_looked_at_too(
    monotonic: Callable[[], float],
    sockets: tuple[select.epoll, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_module, "LOST_S", 1000.0)
    watching, there = sockets
    core = Core(monotonic, Rings([ring()[1]]), watching)
    assert not core.is_wanted()
    assert core.look(ROW_S, 2) == NOTHING
    there.send(b"x")
    assert core.look(ROW_S, 2) == EVENTS
    [(descriptor, mask)] = core.events
    assert descriptor >= 0 and mask & select.EPOLLIN


def test_a_look_that_took_too_long_is_the_last_one(
    monotonic: Callable[[], float], scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "LOST_S", 1e-9)
    scheduler.takes_s = 1.0
    core = Core(monotonic, Rings([ring()[1]]))
    assert not core.is_wanted()
    assert core.look(ROW_S) == LOST


def test_a_family_that_answers_soon_is_let_run_again_and_again(scheduler: Scheduler) -> None:
    core = Core(scheduler.monotonic, Rings([ring()[1]]))
    scheduler.takes_s = LOST_S / 2
    assert not core.is_wanted()
    assert core.look(250e-6) == NOTHING
    assert scheduler.yields == 100
    assert not core.is_wanted()


def test_who_has_lost_the_core_rests_many_times_as_long(scheduler: Scheduler) -> None:
    core = Core(scheduler.monotonic, Rings([ring()[1]]))
    for lost_s in (LOST_S * 1.5, LOST_S * 8, LOST_S * 2):
        scheduler.takes_s = lost_s
        assert not core.is_wanted()
        assert core.look(ROW_S) == LOST
        scheduler.now += lost_s * RESTS - 0.01
        assert core.is_wanted()
        scheduler.now += 0.02
        assert not core.is_wanted()


@pytest.mark.skipif(native is None, reason="there are no compiled kernels here")
def test_a_look_at_sockets_once_in_no_looks_is_refused() -> None:
    assert native is not None
    with pytest.raises(ValueError, match="once in 0 looks"):
        native.look(native.rings(()), 1000, 1000, -1, 0)
