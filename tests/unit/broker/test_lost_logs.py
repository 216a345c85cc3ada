"""A log that is shorter than its own checkpoints, or gone, is seen at its start, and named."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from shmbroker.broker.partition_store import PartitionStore
from shmbroker.ids import random_uuid
from shmbroker.log.config import LogConfig
from shmbroker.log.log_directory import LogDirectory
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.shm.positions import PositionTable, table_bytes
from tests.support.family_memory import VirtualClock

NOW_MS = 1_000_000
RECORDS = 5


class Topic:
    name = "t"
    is_internal = False
    topic_id = random_uuid()
    partitions = (SimpleNamespace(replicas=(1, 2, 3)),)


class Again(Topic):
    """Another topic of the same name."""

    topic_id = random_uuid()


class Start:
    """Starts of one broker on one directory; shared memory lives as long as its family."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.new_family()
        self.store: PartitionStore | None = None

    def new_family(self) -> None:
        self.positions = PositionTable(memoryview(bytearray(table_bytes(16))), 16)
        self.is_successor = False

    def again(self, topic: Topic | None = None) -> Partition:
        log_directory = LogDirectory.open(str(self.directory), 1, "cluster")
        self.store = PartitionStore(
            log_directory, self.positions, 0, self.is_successor, lambda *_: None, lambda: 0
        )
        self.is_successor = True
        return self.store.open(topic or Topic(), 0, LogConfig(), NOW_MS)

    def fill(self) -> None:
        partition = self.again()
        for _ in range(RECORDS):
            batch = bytearray(encode_batch([(NOW_MS, None, b"v", ())]))
            partition.log.append(memoryview(batch), 0, NOW_MS, 0, 0)
        partition.high_watermark = RECORDS

    def stop(self) -> None:
        assert self.store is not None
        self.store.close(1, VirtualClock().monotonic)

    def die(self) -> None:
        assert self.store is not None
        self.store.log_directory.close()

    @property
    def log(self) -> Path:
        return self.directory / "t-0"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made = Start(tmp_path / "node-1")
    yield made
    made.die()


def remove(start: Start) -> None:
    shutil.rmtree(start.log)


def cut(start: Start) -> None:
    (path,) = start.log.glob("*.log")
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) // 2)


def nothing(start: Start) -> None:
    pass


@pytest.mark.parametrize(("harm", "lost_below"), [(remove, RECORDS), (cut, RECORDS), (nothing, -1)])
@pytest.mark.parametrize("how", ["stopped", "killed alone", "killed with its family"])
def test_what_is_missing_is_known(
    start: Start,
    how: str,
    harm: Callable[[Start], None],
    lost_below: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start.fill()
    if how == "stopped":
        start.stop()
        start.new_family()
    else:
        assert start.store is not None
        if how == "killed with its family":
            for log in start.store.partitions.values():
                log.log.flush()
            start.store.checkpoint()
            start.new_family()
        start.die()
    harm(start)
    partition = start.again()
    assert partition.lost_below == lost_below
    errors = [row.getMessage() for row in caplog.records if row.levelname == "ERROR"]
    assert bool(errors) == (lost_below >= 0)
    assert all("t-0" in line for line in errors)
    if harm is remove:
        assert any("t-0 is gone, and was there" in line for line in errors)


def test_a_topic_that_was_deleted_is_not_missed(start: Start) -> None:
    start.fill()
    assert start.store is not None
    start.store.checkpoint()
    (partition,) = start.store.partitions.values()
    start.store.delete(partition)
    assert start.store.open(Topic(), 0, LogConfig(), NOW_MS).lost_below == -1


def is_dropped(start: Start) -> None:
    (partition,) = store_of(start).partitions.values()
    store_of(start).delete(partition)


def is_dropped_and_removed(start: Start) -> None:
    is_dropped(start)
    clock = VirtualClock()
    store_of(start).removals.finish(clock.monotonic)


def is_kept(start: Start) -> None:
    """The process is killed before it hears that the topic was deleted."""


def store_of(start: Start) -> PartitionStore:
    assert start.store is not None
    return start.store


@pytest.mark.parametrize("log", [is_dropped, is_dropped_and_removed, is_kept])
@pytest.mark.parametrize("how", ["killed alone", "killed with its family"])
def test_a_topic_that_was_deleted_before_a_kill_is_not_missed_under_its_name(
    start: Start, how: str, log: Callable[[Start], None], caplog: pytest.LogCaptureFixture
) -> None:
    start.fill()
    store_of(start).checkpoint()
    log(start)
    start.die()
    if how == "killed with its family":
        start.new_family()
    again = Again()
    partition = start.again(again)
    assert partition.lost_below == -1
    assert partition.known_high_watermark == 0
    assert not store_of(start).directories.lost
    assert not [row for row in caplog.records if row.levelname == "ERROR"]
    # Nor after another kill, when what was deleted is removed.
    for path in store_of(start).directories.left_behind({again.topic_id: again}, {("t", 0)}):
        store_of(start).removals.remove_later(path, 0)
    store_of(start).removals.finish(VirtualClock().monotonic)
    start.die()
    start.new_family()
    assert start.again(again).lost_below == -1
    assert not store_of(start).directories.lost


def test_what_was_deleted_is_removed_only_when_no_checkpoint_knows_it(start: Start) -> None:
    """Else a process that has not opened its successor yet, and is killed, leaves nothing by which
    the next one could know."""
    start.fill()
    store_of(start).checkpoint()
    is_dropped(start)
    start.die()
    start.new_family()
    again = Again()
    log_directory = LogDirectory.open(str(start.directory), 1, "cluster")
    store = PartitionStore(log_directory, start.positions, 0, False, lambda *_: None, lambda: 0)
    store.take_stock({again.topic_id: again})
    store.removals.finish(VirtualClock().monotonic)
    assert [path.name for path in start.directory.glob("t-*")] == []
    log_directory.close()
    assert start.again(again).lost_below == -1
    assert not store_of(start).directories.lost
