"""What is done aside from a turn, by a thread that lives on whatever happens in it."""

import threading

import pytest

from shmbroker.processes.aside import Aside

PATIENCE_S = 30.0


def test_work_goes_on_behind_work_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    aside = Aside()
    is_done = threading.Event()

    def fail() -> None:
        raise MemoryError("no room")

    aside(fail)
    aside(is_done.set)
    assert is_done.wait(PATIENCE_S)
    assert "no room" in caplog.text
