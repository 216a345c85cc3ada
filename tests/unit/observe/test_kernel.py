"""What the kernel says of a process."""

import os

from shmbroker.observe.kernel import usage
from tests.unit.observe.families import NO_PID


def test_this_process_is_shown() -> None:
    found = usage(os.getpid())
    assert found is not None
    assert found.cpu_user_s > 0
    assert found.anonymous_bytes > 1 << 20
    assert found.resident_bytes > found.anonymous_bytes
    assert found.threads >= 1
    assert 0 < found.open_files <= found.open_files_max
    assert found.switches_voluntary + found.switches_involuntary > 0


def test_of_one_that_has_ended_there_is_nothing() -> None:
    assert usage(NO_PID) is None
