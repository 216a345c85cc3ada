"""A quiet process shares the family's core, and leaves it when it or others have much to do."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from shmbroker.processes.shared_core import (
    BUSY_S,
    DELAY_S,
    QUIET,
    RESTS_S,
    TIMES,
    WINDOW_S,
    Affinity,
    SharedCore,
)


class FakeAffinity(Affinity):
    """Counts moves; what the kernel would tell is set."""

    def __init__(self) -> None:
        self.moves: list[bool] = []
        self.is_ours = True
        self.told = 0, 0

    @property
    def is_known(self) -> bool:
        return True

    def move(self, is_in: bool) -> bool:
        if self.is_ours:
            self.moves.append(is_in)
        return self.is_ours

    def waited(self) -> tuple[int, int]:
        return self.told


class Process:
    """What sleeps and works by a clock that is moved."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.affinity = FakeAffinity()
        self.shared = SharedCore(lambda: self.now, self.affinity)

    def live(self, seconds: float, up: float, turn_s: float = 0.001) -> None:
        """Take turns of that length, a part `up` of the time."""
        end = self.now + seconds
        while self.now < end:
            self.now += turn_s
            self.shared.sleeps()
            self.now += turn_s / up - turn_s
            self.shared.woke()

    def work(self, seconds: float) -> None:
        """Turn after turn without a sleep."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.0001
            self.shared.stays_up()


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.mark.parametrize(("up", "is_in"), [(0.01, True), (QUIET - 0.05, True), (0.5, False)])
def test_who_sleeps_most_of_the_time_shares_the_core(
    process: Process, up: float, is_in: bool
) -> None:
    process.live(3 * WINDOW_S, up)
    assert process.shared.is_in is is_in
    assert process.affinity.moves == [True] * is_in


def test_a_burst_gets_all_cores_at_once(process: Process) -> None:
    process.live(WINDOW_S, 0.1)
    process.work(BUSY_S / 2)
    assert process.shared.is_in
    process.work(BUSY_S)
    assert not process.shared.is_in and process.affinity.moves == [True, False]


def test_who_is_up_too_much_leaves(process: Process) -> None:
    process.live(WINDOW_S, 0.1)
    process.live(2 * WINDOW_S, 0.8)
    assert not process.shared.is_in and process.affinity.moves == [True, False]


@pytest.mark.parametrize(
    ("times", "delay_s", "stays"),
    [
        (TIMES * 5, DELAY_S / 2 * TIMES * 5, True),
        (TIMES * 5, DELAY_S * 2 * TIMES * 5, False),
        (1, DELAY_S * 4, True),  # one that was late once
    ],
)
def test_others_on_the_core_drive_it_away(
    process: Process, times: int, delay_s: float, stays: bool
) -> None:
    process.live(WINDOW_S, 0.1)
    process.affinity.told = int(delay_s * 1e9), times
    process.live(1.5 * WINDOW_S, 0.1)
    assert process.shared.is_in is stays


def test_who_leaves_again_and_again_stays_away_for_longer(process: Process) -> None:
    away = []
    for _ in range(8):
        while not process.shared.is_in:
            process.live(WINDOW_S, 0.1)
        process.work(2 * BUSY_S)
        left = process.now
        while not process.shared.is_in:
            process.live(WINDOW_S, 0.1)
        away.append(process.now - left)
    shortest, longest = RESTS_S
    assert away[0] < away[2] < away[4]
    assert longest <= away[-1] < longest + 3 * WINDOW_S
    process.live(10.0, 0.1)  # it has stayed
    process.work(2 * BUSY_S)
    left = process.now
    while not process.shared.is_in:
        process.live(WINDOW_S, 0.1)
    assert process.now - left < shortest + 3 * WINDOW_S


@pytest.mark.parametrize("was_in", [False, True])
def test_cores_that_somebody_else_has_set_are_left(process: Process, was_in: bool) -> None:
    if was_in:
        process.live(WINDOW_S, 0.1)
    process.affinity.is_ours = False
    process.work(2 * BUSY_S)
    process.live(2 * WINDOW_S, 0.1)
    process.affinity.is_ours = True
    process.live(2 * RESTS_S[1], 0.1)
    assert not process.shared.is_in and process.affinity.moves == [True] * was_in


# ── the kernel's word ───────────────────────────────────────────────────────────────────────────

in_a_thread = Callable[[Callable[[], None]], None]


@pytest.fixture
def aside() -> Iterator[in_a_thread]:
    """Runs something in a thread of its own: only that thread is moved."""

    def run(work: Callable[[], None]) -> None:
        faults: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as fault:
                faults.append(fault)

        thread = threading.Thread(target=guarded)
        thread.start()
        thread.join()
        if faults:
            raise faults[0]

    before = os.sched_getaffinity(0)
    yield run
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
@pytest.mark.parametrize("is_left", [False, True])
def test_a_thread_is_moved_and_moved_back(aside: in_a_thread, is_left: bool) -> None:
    def work() -> None:
        cores = os.sched_getaffinity(0)
        one, other = sorted(cores)[:2]
        affinity = Affinity(one, cores, is_left=is_left)
        assert affinity.is_known and affinity.move(True) and os.sched_getaffinity(0) == {one}
        delay_ns, times = affinity.waited()
        assert delay_ns >= 0 and times > 0
        assert affinity.move(False) and os.sched_getaffinity(0) == cores
        os.sched_setaffinity(0, {other})
        assert not affinity.move(True) and os.sched_getaffinity(0) == {other}

    aside(work)


def test_a_core_that_is_not_there(aside: in_a_thread) -> None:
    aside(lambda: _no_core(4095))


def _no_core(number: int) -> None:
    cores = os.sched_getaffinity(0)
    assert (
        not Affinity(number, cores, is_left=False).move(True) and os.sched_getaffinity(0) == cores
    )
