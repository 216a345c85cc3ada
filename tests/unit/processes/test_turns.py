"""No turn of an I/O worker is as long as what one client has asked for."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import APPEND
from shmbroker.processes import io_worker
from shmbroker.processes.io_worker import APPLY_S, TAKE_S, IoWorker
from shmbroker.shm.counters import CONTROL_GENERATION_WORD, METADATA_END_OFFSET_WORD

MANY = 4000
TAKES_S = 0.0005
"""What an append to a new log takes, and to delete one."""


class Time:
    """Goes on when work is done."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Ring:
    """A ring with so many APPENDs on it."""

    def __init__(self, count: int) -> None:
        self.entries = deque([(APPEND, 0, 0)] * count)
        self.released = 0
        self.data = memoryview(b"")

    def poll(self) -> bool:
        return bool(self.entries)

    def next(self) -> Any:
        return self.entries.popleft() if self.entries else None

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(io_worker, "clock", made)
    return made


def worker_with(time: Time, *rings: Ring) -> Any:
    worker: Any = IoWorker.__new__(IoWorker)
    worker.words = dict.fromkeys((CONTROL_GENERATION_WORD, METADATA_END_OFFSET_WORD), 0)
    worker.generation = 0
    worker.broker_epoch = 7
    worker.image = SimpleNamespace(offset=0)
    worker.peers = [SimpleNamespace(reader=ring, publish=lambda: None) for ring in rings]
    worker.appended = []

    def on_append(peer: Any, *_: Any) -> None:
        worker.appended.append(peer)
        time.now += TAKES_S

    worker.appender = SimpleNamespace(on_append=on_append, bytes_in=0)
    return worker


def test_appends_of_one_peer_do_not_keep_those_of_another_waiting(time: Time) -> None:
    worker = worker_with(time, Ring(MANY), Ring(10))
    begin = time.now
    assert worker.take_operations()
    assert time.now - begin < 4 * TAKE_S
    assert worker.appended[-10:] == [worker.peers[1]] * 10
    assert worker.has_entries()  # so the worker does not sleep
    turns = 1
    while worker.has_entries():
        worker.take_operations()
        turns += 1
    assert worker.appended.count(worker.peers[0]) == MANY
    assert turns > MANY * TAKES_S / TAKE_S / 4


def test_all_is_taken_at_the_end(time: Time) -> None:
    worker = worker_with(time, Ring(MANY))
    worker.take_operations(60.0)
    assert len(worker.appended) == MANY


def test_a_topic_of_thousands_of_partitions_is_deleted_in_steps(time: Time) -> None:
    worker = worker_with(time)
    dropped: list[Any] = []
    opened: list[Any] = []
    asked: list[set[str]] = []

    def drop(partition: Any) -> None:
        dropped.append(partition)
        time.now += TAKES_S

    worker._drop_partition = drop
    worker._apply_partition = lambda topic, partition: opened.append(partition)
    worker.drop_files = lambda: None
    worker.replication = SimpleNamespace(may_look_for_places=lambda: None)
    worker.groups = SimpleNamespace(is_opening=True, on_topics_deleted=asked.append)
    worker.link = SimpleNamespace(peer=lambda: None)
    worker.unopened = {}
    worker.counters = SimpleNamespace(at=lambda slot, field: "applied")
    worker.slot = SimpleNamespace(index=0)
    worker.image = SimpleNamespace(offset=9)
    worker.to_drop = deque()
    worker.is_in_doubt = False
    old = SimpleNamespace(name="t", topic_id=bytes(16), partitions=range(MANY))
    new = SimpleNamespace(name="t", topic_id=b"new" + bytes(13), partitions=range(1))
    worker.to_apply = deque([(old, "not open yet"), (new, "of the new one")])
    worker.partitions = {partition_key(old.topic_id, index): index for index in old.partitions}
    worker._delete_topics([old])
    assert not dropped and asked == [{"t"}]
    begin = time.now
    worker.apply_some()
    assert 0 < len(dropped) < MANY and time.now - begin < 2 * APPLY_S
    assert "applied" not in worker.words
    while worker.to_drop or worker.to_apply:
        assert not opened  # its directory still has the old one's name
        worker.apply_some()
    assert dropped == list(range(MANY)) and opened == ["of the new one"]
    assert worker.words["applied"] == 9
