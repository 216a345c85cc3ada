"""A process that looks for what comes stops where others compute on its core."""

import pytest

from shmbroker.ipc import core as core_module
from shmbroker.ipc.core import LOST_S, RESTS, Core


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
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def core(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Core:
    monkeypatch.setattr(core_module, "sched_yield", scheduler.sched_yield)
    return Core(scheduler.monotonic)


def test_a_family_that_answers_soon_is_let_run_again_and_again(
    core: Core, scheduler: Scheduler
) -> None:
    scheduler.takes_s = LOST_S / 2
    assert not core.is_wanted()
    assert all(core.let_others() for _ in range(100))
    assert scheduler.yields == 100
    assert not core.is_wanted()


def test_who_has_lost_the_core_rests_many_times_as_long(core: Core, scheduler: Scheduler) -> None:
    for lost_s in (LOST_S * 1.5, LOST_S * 8, LOST_S * 2):
        scheduler.takes_s = lost_s
        assert not core.is_wanted()
        assert not core.let_others()
        scheduler.now += lost_s * RESTS - 0.01
        assert core.is_wanted()
        scheduler.now += 0.02
        assert not core.is_wanted()
