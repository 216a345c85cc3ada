"""Many logs are closed together, with several fdatasyncs at once."""

import itertools
import os
import threading

import pytest

from shmbroker import signs
from shmbroker.errors import StorageFault
from shmbroker.log import closing
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import encode_batch
from tests.support.descriptors import open_below

MANY = closing.LOTS_MAX + 8
AT_ONCE = 4
PATIENCE_S = 30.0


@pytest.fixture
def logs(tmp_path):
    """As many as need threads, each with a batch."""
    made = []
    for number in range(MANY):
        log = PartitionLog.open(
            str(tmp_path / f"t-{number}"), LogConfig({}), file_ids=itertools.count(1 + number * 10)
        )
        log.append(memoryview(encode_batch([(1000, b"k", bytes(100), [])])), 0, 1000, 0, 0)
        made.append(log)
    return made


def assert_closed(logs):
    for log in logs:
        assert log.recovery_point == log.log_end_offset == 1
        assert log.snapshots.offsets == [1]
        assert log.active.map is None


def test_all_are_durable_and_cut_to_their_content(logs):
    descriptors = os.listdir("/proc/self/fd")
    closing.close_all(logs)
    assert_closed(logs)
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors)
    for log in logs:
        assert os.path.getsize(log.active.path) == log.active.size


def test_disk_has_several_of_them_at_once(logs, monkeypatch):
    under_way = threading.Semaphore(AT_ONCE - 1)
    are_several = threading.Event()

    def fdatasync(_fd):
        if not under_way.acquire(blocking=False):
            are_several.set()
        if not are_several.wait(PATIENCE_S):
            raise OSError(5, "they come one by one")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    closing.close_all(logs)
    assert_closed(logs)


def test_main_thread_gives_signs_while_the_disk_lets_it_wait(logs, monkeypatch):
    signed = threading.Event()
    words = []

    def fdatasync(_fd):
        if not signed.wait(PATIENCE_S):
            raise OSError(5, "no sign came meanwhile")

    def leave():
        if len(words) > closing.LOTS_MAX:  # all threads have something
            signed.set()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    signs.attach(leave, words.append)
    try:
        closing.close_all(logs)
    finally:
        signs.attach(None, None)
    assert signs.describe(words[0]) == f"making logs durable, {MANY - 1} left"
    assert signs.describe(words[-1]) == "making logs durable, 1 left"


def test_disk_that_refuses_one_fails_the_close(logs, monkeypatch):
    refused = iter([True])

    def fdatasync(_fd):
        if next(refused, False):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(StorageFault, match="Input/output error"):
        closing.close_all(logs)


def test_after_a_fault_nobody_syncs_any_more(logs, monkeypatch):
    """The disk has all that was given to it, until the main thread waits for nothing else."""
    is_refused, goes_on = threading.Event(), threading.Event()
    signs_since = itertools.count()

    def fdatasync(_fd):
        if not is_refused.is_set():
            is_refused.set()
            raise OSError(5, "Input/output error")
        assert goes_on.wait(PATIENCE_S)

    def leave():
        # So many it leaves only behind the fault: before, there is one for each log.
        if is_refused.is_set() and next(signs_since) > MANY:
            goes_on.set()

    monkeypatch.setattr(closing, "LOOK_S", 0.001)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    signs.attach(leave, lambda _word: None)
    try:
        with pytest.raises(StorageFault, match="Input/output error"):
            closing.close_all(logs)
        assert not [thread for thread in threading.enumerate() if thread.name == "syncer"]
    finally:
        goes_on.set()
        signs.attach(None, None)
    for log in logs:
        log.let_go()
    assert not open_below(os.path.dirname(logs[0].directory))


def test_descriptor_that_can_not_be_closed_is_a_fault_that_ends_no_thread(logs, monkeypatch):
    real_close = os.close

    def close(fd):
        real_close(fd)
        if threading.current_thread().name == "syncer":
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "close", close)
    with pytest.raises(StorageFault, match="Input/output error"):
        closing.close_all(logs)
