"""What a controller makes of the words that brokers leave in shared memory."""

from typing import Any

import pytest

from shmbroker.controller.broker_watch import AWAY_S, DISK_LOOK_S, EVERYTHING, BrokerWatch
from shmbroker.shm.counters import (
    DISK,
    DISK_HAS_FAILED,
    DISK_IS_FULL,
    INCARNATION,
    LIVENESS_NS,
    METADATA_APPLIED,
    STATE,
    STATE_NONE,
    STATE_RUNNING,
    STATE_STARTING,
    STATE_UNABLE,
    Counters,
    layout_size,
)

TIMEOUT_S = 9.0
BROKERS = {7: 0, 8: 1, 9: 2}


class Watched:
    """Three brokers at work, ids 7 to 9."""

    def __init__(self) -> None:
        self.counters = Counters(memoryview(bytearray(layout_size(3))), 3)
        self.watch = BrokerWatch(self.counters, BROKERS, TIMEOUT_S)
        for number in BROKERS:
            self.store(number, STATE, STATE_RUNNING)
            self.store(number, INCARNATION, 1)

    def store(self, number: int, field: int, value: int) -> None:
        self.counters.words[self.counters.at(BROKERS[number], field)] = value

    def look(self, now: float, *living: int) -> tuple[list[int], list[int]]:
        """Whose silence has changed, where these have just left a sign."""
        for number in living:
            self.store(number, LIVENESS_NS, int(now * 1e9))
        return self.watch.changed_silence(now)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_nobody_waits_for_a_broker_that_cannot_boot(watched: Watched) -> None:
    for number, state in ((7, STATE_UNABLE), (8, STATE_STARTING), (9, STATE_RUNNING)):
        watched.store(number, STATE, state)
    watched.store(9, METADATA_APPLIED, 7)
    assert watched.watch.pending() == {8}
    assert watched.watch.has_served(9) and not watched.watch.has_served(7)


@pytest.mark.parametrize(
    ("state", "incarnation", "died"),
    [
        (STATE_NONE, 1, []),  # it has not been started yet
        (STATE_NONE, 2, [7]),
        (STATE_UNABLE, 2, [7]),
        (STATE_STARTING, 2, []),
        (STATE_RUNNING, 2, []),
    ],
)
def test_who_ran_once_and_does_not_run_has_died(
    watched: Watched, state: int, incarnation: int, died: list[int]
) -> None:
    watched.store(7, STATE, state)
    watched.store(7, INCARNATION, incarnation)
    assert watched.watch.died() == died


def test_what_all_have_applied_is_what_the_slowest_has_that_runs_and_does_not_hang(
    watched: Watched,
) -> None:
    for number, applied in ((7, 3), (8, 5), (9, 9)):
        watched.store(number, METADATA_APPLIED, applied)
    assert watched.watch.applied() == 3
    watched.watch.hanging.add(7)
    assert watched.watch.applied() == 5
    watched.store(8, STATE, STATE_NONE)
    assert watched.watch.applied() == 9
    watched.store(9, STATE, STATE_NONE)
    assert watched.watch.applied() == EVERYTHING


def test_silence_is_found_after_the_timeout_and_its_end_at_once(watched: Watched) -> None:
    begin = now = 100.0
    while (found := watched.look(now, 8, 9)) == ([], []):
        now += 0.1
    assert found == ([7], [])
    assert now - begin == pytest.approx(TIMEOUT_S, abs=0.2)
    watched.watch.hanging.add(7)
    assert watched.look(now + 0.1, 8, 9) == ([], [])
    assert watched.look(now + 0.2, 7, 8, 9) == ([], [7])


def test_who_was_away_himself_finds_nobody_silent(watched: Watched) -> None:
    for at in range(200):
        watched.look(100.0 + at / 10, *BROKERS)
    back = 120.0 + TIMEOUT_S + AWAY_S
    assert watched.look(back) == ([], [])


def test_disks_are_looked_at_once_in_a_while(watched: Watched) -> None:
    watched.store(7, DISK, DISK_IS_FULL)
    watched.store(8, DISK, DISK_HAS_FAILED)
    assert watched.watch.short_of_room(100.0) == ({7}, {8})
    assert watched.watch.short_of_room(100.0 + DISK_LOOK_S / 2) is None
    watched.store(8, STATE, STATE_NONE)
    assert watched.watch.short_of_room(100.0 + DISK_LOOK_S) == ({7}, set())


def test_observers_are_those_that_run_beside_no_voter(watched: Watched) -> None:
    now, now_ms = 100.0, 5_000_000
    for number, applied, ago_ms in ((7, 20, 0), (8, 20, 300), (9, 19, 40)):
        watched.store(number, METADATA_APPLIED, applied)
        watched.store(number, LIVENESS_NS, int(now * 1e9) - ago_ms * 1_000_000)
    found: list[Any] = watched.watch.observers({7}, 20, now, now_ms)
    assert found == [(8, 20, now_ms - 300, now_ms - 300), (9, 19, now_ms - 40, -1)]
