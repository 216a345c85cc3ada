"""Whoever waits for the disk in the main thread says so: the watchdog lets him be."""

import itertools
import os

import pytest

from shmbroker import signs
from shmbroker.controller.bootstrap import write_bootstrap_checkpoint
from shmbroker.log.checkpoints import sync_directory, write_file
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch


@pytest.fixture
def waits(monkeypatch):
    """For each fsync and fdatasync: whether it was said before."""
    words, found = [0], []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            os, name, lambda _fd: found.append(bool(words[-1] & signs.WAITS_FOR_DISK))
        )
    signs.attach(lambda: None, words.append)
    yield found
    signs.attach(None, None)
    assert not words[-1] & signs.WAITS_FOR_DISK


def log_in(path):
    log = PartitionLog.open(str(path / "t-0"), LogConfig({}), file_ids=itertools.count())
    for _ in range(2):
        log.append(memoryview(encode_batch([(1000, b"k", bytes(100), [])])), 0, 1000, 0, 0)
    return log


@pytest.mark.parametrize(
    "act",
    [
        lambda path: log_in(path).flush(),
        lambda path: log_in(path).close(clean=True),
        lambda path: truncate_to(log_in(path), 1),
        lambda path: write_file(str(path / "checkpoint"), "0\n0\n"),
        lambda path: sync_directory(str(path)),
        lambda path: write_bootstrap_checkpoint(str(path), 1000),
    ],
)
def test_every_wait_is_said(tmp_path, waits, act):
    act(tmp_path)
    assert waits
    assert all(waits)
