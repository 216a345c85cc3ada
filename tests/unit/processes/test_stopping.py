"""The order and the bounds of a stop."""

import pytest

from shmbroker.gateway.drain import DRAIN_S, STALLED_S, Drain
from shmbroker.ipc.slots import CLEANER, CONTROLLER, IO_WORKER, NETWORK_WORKER, PAGES, TIER
from shmbroker.processes.stopping import (
    BOUNDS_S,
    FIRST_LINE_S,
    KILLED_S,
    LINE_INTERVAL_S,
    Stop,
    waited_for,
)
from shmbroker.signs import ANSWERING, FLUSHING, LEFT_SHIFT

ORDER = [NETWORK_WORKER, CLEANER, TIER, IO_WORKER, CONTROLLER, *PAGES]
TIMEOUT_STOP_S = 60
"""Of the unit: the service manager kills everything after it."""


def test_roles_are_told_one_after_the_other_when_those_before_are_gone() -> None:
    stop = Stop(0.0)
    alive, told = set(ORDER), []
    while True:
        while stop.is_turn_over(alive):
            told.append(stop.next_role(0.0))
        if not alive:
            break
        assert stop.was_told(told[-1])
        alive.discard(told[-1])
    assert told == ORDER


def test_roles_without_a_process_cost_no_time() -> None:
    stop = Stop(0.0)
    assert stop.next_role(0.0) == NETWORK_WORKER
    told = []
    while stop.is_turn_over([IO_WORKER, CONTROLLER]):
        told.append(stop.next_role(1.0))
    assert told == [CLEANER, TIER, IO_WORKER]
    assert stop.deadline == 1.0 + BOUNDS_S[IO_WORKER]


def test_all_bounds_together_are_less_than_the_unit_gives() -> None:
    assert sum(BOUNDS_S.values()) < TIMEOUT_STOP_S


def test_who_has_had_its_time_is_killed_once_in_a_while() -> None:
    stop = Stop(0.0)
    bound = BOUNDS_S[stop.next_role(0.0)]
    assert not stop.is_over(bound)
    assert stop.is_over(bound + 0.1)
    assert not stop.is_over(bound + 0.2)
    assert stop.is_over(bound + 0.1 + KILLED_S + 0.1)


def test_it_is_said_what_is_waited_for_first_soon_then_seldom() -> None:
    stop = Stop(100.0)
    stop.next_role(100.0)
    said = [now for now in range(100, 120) if stop.is_line_due(now)]
    assert said == [100 + FIRST_LINE_S + n * LINE_INTERVAL_S for n in range(4)]


@pytest.mark.parametrize(
    ("requests", "unsent_bytes", "rate", "expected"),
    [
        (0, 0, 0, 0.0),
        (0, 50_000, 0, STALLED_S),  # a client that has stalled
        (0, 50_000, 1000, DRAIN_S),  # one that reads slowly
        (0, 2_000, 1000, 2.0),  # ... and is through in time
        (1, 0, 0, DRAIN_S),  # a request that waits for its result
        (1, 50_000, 0, DRAIN_S),
    ],
)
def test_network_worker_waits_for_what_goes_on(
    requests: int, unsent_bytes: int, rate: int, expected: float
) -> None:
    drain = Drain(10.0)
    steps = (step / 10 for step in range(100))
    took = next(
        at
        for at in steps
        if drain.is_over(10.0 + at, requests, max(0, unsent_bytes - int(rate * at)))
    )
    assert took == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([("io-worker-1", 0)], "io-worker-1"),
        (
            [("io-worker-1", FLUSHING | 812 << LEFT_SHIFT)],
            "io-worker-1 (making logs durable, 812 left)",
        ),
        (
            [("network-worker-1", ANSWERING | 3 << LEFT_SHIFT), ("network-worker-2", 0)],
            "network-worker-1 (answering requests in flight, 3 left), network-worker-2",
        ),
    ],
)
def test_line_names_who_and_what(waiting: list[tuple[str, int]], expected: str) -> None:
    assert waited_for(waiting) == expected
