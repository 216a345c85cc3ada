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


class Start:
    """Starts of one broker on one directory; shared memory lives as long as its family."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.new_family()
        self.store: PartitionStore | None = None

    def new_family(self) -> None:
        self.positions = PositionTable(memoryview(bytearray(table_bytes(16))), 16)
        self.is_successor = False

    def again(self) -> Partition:
        log_directory = LogDirectory.open(str(self.directory), 1, "cluster")
        self.store = PartitionStore(
            log_directory, self.positions, 0, self.is_successor, lambda *_: None, lambda: 0
        )
        self.is_successor = True
        return self.store.open(Topic(), 0, LogConfig(), NOW_MS)

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
