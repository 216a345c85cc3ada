"""How soon a process that ended is followed by another, and which one can't boot."""

import pytest

from shmbroker.ipc.slots import CLEANER, IO_WORKER
from shmbroker.processes import boots
from shmbroker.processes.child import EXIT_BOOT_FAULT, EXIT_TRY_AGAIN
from shmbroker.processes.deaths import BACKOFF_S, STEADY_S, Tries

CRASH, KILLED = 1, -9


@pytest.mark.parametrize(
    ("role", "code", "has_served", "is_ready", "expected"),
    [
        (IO_WORKER, EXIT_BOOT_FAULT, False, True, True),
        (CLEANER, EXIT_BOOT_FAULT, False, True, True),
        (IO_WORKER, CRASH, False, False, True),
        (IO_WORKER, CRASH, False, True, False),
        (IO_WORKER, CRASH, True, True, False),
        (CLEANER, CRASH, False, False, False),
        (IO_WORKER, KILLED, False, False, False),
        (IO_WORKER, EXIT_TRY_AGAIN, False, False, False),
    ],
)
def test_first_end_by_its_code(
    role: str, code: int, has_served: bool, is_ready: bool, expected: bool
) -> None:
    assert Tries().count(role, code, has_served, is_ready) == expected


def test_so_many_crashes_in_a_row_are_a_process_that_cant_boot() -> None:
    tries = Tries()
    judged = [tries.count(IO_WORKER, CRASH, False, True) for _ in range(boots.CRASHES_MAX)]
    assert judged == [False] * (boots.CRASHES_MAX - 1) + [True]
    assert not tries.count(IO_WORKER, CRASH, True, True), "it has served: a new row"
    assert not tries.count(IO_WORKER, CRASH, False, True)


def test_failed_tries_are_more_and_more_seldom_until_one_has_served() -> None:
    tries = Tries()
    assert [tries.retry_s() for _ in range(3)] == [boots.retry_s(count) for count in (1, 2, 3)]
    tries.count(IO_WORKER, KILLED, True, True)
    assert tries.retry_s() == boots.retry_s(1)


def test_short_lives_wait_longer_and_a_steady_one_begins_anew() -> None:
    tries = Tries()
    short = [tries.restart_s(0.0) for _ in range(len(BACKOFF_S) + 1)]
    assert short == [*BACKOFF_S[1:], BACKOFF_S[-1], BACKOFF_S[-1]]
    assert tries.restart_s(STEADY_S + 1) == BACKOFF_S[0]
