"""Which processes a family can do without."""

import pytest

from shmbroker.ipc.slots import CONTROLLER, IO_WORKER, NETWORK_WORKER
from shmbroker.processes.boots import RETRY_S, can_go_on, retry_s

ROLES = (CONTROLLER, IO_WORKER, NETWORK_WORKER)


@pytest.mark.parametrize(
    # able controllers, I/O workers and network workers of 3, 3 and 2
    ("able", "in_new", "at_start", "when_ready"),
    [
        ((3, 3, 2), True, True, True),
        ((2, 3, 2), False, True, True),
        ((1, 3, 2), False, False, True),
        ((0, 3, 2), False, False, False),
        ((3, 1, 2), False, True, True),
        ((3, 0, 2), False, False, False),
        ((3, 3, 1), False, True, True),
        ((3, 3, 0), False, False, False),
        ((2, 2, 2), False, True, True),
    ],
)
def test_what_is_left_is_enough_or_not(
    able: tuple[int, ...], in_new: bool, at_start: bool, when_ready: bool
) -> None:
    rows = {
        role: [True] * count + [False] * (of - count)
        for role, count, of in zip(ROLES, able, (3, 3, 2), strict=True)
    }
    assert can_go_on(rows, is_ready=False, is_new=True) is in_new
    assert can_go_on(rows, is_ready=False, is_new=False) is at_start
    assert can_go_on(rows, is_ready=True, is_new=False) is when_ready


def test_alone_nothing_can_be_missing() -> None:
    for role in ROLES:
        rows = {each: [each != role] for each in ROLES}
        for is_ready in (False, True):
            assert not can_go_on(rows, is_ready, is_new=False)


def test_tries_become_rarer_up_to_once_a_minute() -> None:
    delays = [retry_s(failed) for failed in range(1, 20)]
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (1.0, 60.0)
    assert set(delays) == set(RETRY_S)
