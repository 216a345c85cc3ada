"""The thread that runs fdatasync: what fails there is told, and the next is done."""

import os
import select
from pathlib import Path

import pytest

from shmbroker.broker.flusher import Flusher
from shmbroker.shm.doorbell import make_eventfd

PATIENCE_S = 30.0


def finish(flusher: Flusher, eventfd: int) -> None:
    poll = select.poll()  # its number may be above what `select` takes
    poll.register(eventfd, select.POLLIN)
    assert poll.poll(PATIENCE_S * 1000), "its thread has ended"
    os.eventfd_read(eventfd)
    for on_done in flusher.finished():
        on_done()


def test_a_descriptor_that_can_not_be_closed_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventfd = make_eventfd()
    flusher = Flusher(eventfd)
    told: list[OSError | None] = []
    real_close, bad = os.close, os.open(tmp_path, os.O_RDONLY)

    def close(fd: int) -> None:
        real_close(fd)
        if fd == bad:
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        flusher.submit([bad], told.append)
        finish(flusher, eventfd)
    assert [type(fault) for fault in told] == [OSError]
    flusher.submit([os.open(tmp_path, os.O_RDONLY)], told.append)
    finish(flusher, eventfd)
    assert told[1:] == [None]
    assert not flusher.is_busy
    flusher.stop()
    os.close(eventfd)
