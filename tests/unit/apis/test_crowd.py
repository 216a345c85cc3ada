"""When a network worker may rest between heartbeats: only while nothing else is asked for."""

import pytest

from shmbroker.gateway.forwarding import CROWD_QUIET_S, CROWD_WINDOW_S, PlainApis

STEP_S = 0.001


class Worker:
    token = 0


@pytest.fixture
def plain() -> PlainApis:
    return PlainApis(Worker(), {})


def go(plain: PlainApis, start: float, seconds: float, per_s: float, is_busy: bool = False) -> bool:
    """Turns of a millisecond with so many standing answers; the last verdict."""
    verdict = False
    for turn in range(round(seconds / STEP_S)):
        if int(turn * STEP_S * per_s) != int((turn + 1) * STEP_S * per_s):
            plain.repeated += 1
            if is_busy:
                plain.worker.token += 1
            verdict = plain.is_crowd(start + turn * STEP_S)
    return verdict


def test_hundreds_of_heartbeats_and_nothing_else_are_a_crowd(plain: PlainApis) -> None:
    plain.worker.token = 5
    plain.is_crowd(100.0)
    assert not go(plain, 100.0, CROWD_QUIET_S / 2, 1000)
    assert go(plain, 100.0 + CROWD_QUIET_S / 2, 1.0, 1000)


def test_few_heartbeats_are_no_crowd_however_long_it_was_quiet(plain: PlainApis) -> None:
    assert not go(plain, 100.0, 3.0, 100)
    plain.repeated += 50
    assert not plain.is_crowd(200.0)


def test_another_request_ends_the_rests_at_once(plain: PlainApis) -> None:
    assert go(plain, 100.0, 1.0, 1000)
    plain.worker.token += 1
    plain.repeated += 1
    assert not plain.is_crowd(101.0)
    assert not go(plain, 101.0, CROWD_QUIET_S, 1000)
    assert go(plain, 101.0 + CROWD_QUIET_S, 0.1, 1000)


def test_traffic_among_the_heartbeats_keeps_it_awake(plain: PlainApis) -> None:
    assert not go(plain, 100.0, 1.0, 1000, is_busy=True)


def test_crowd_that_thins_out_is_none_any_more(plain: PlainApis) -> None:
    assert go(plain, 100.0, 1.0, 1000)
    assert not go(plain, 101.0, 3 * CROWD_WINDOW_S, 50)
