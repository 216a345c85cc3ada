"""Files that retention drops stay for queries that hold them, unless the disk is nearly full; what
the disk does not let go is tried again."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from shmbroker.broker import removals
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.upkeep import Upkeep
from shmbroker.errors import StorageFault
from shmbroker.ids import random_uuid
from shmbroker.log.config import LogConfig
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.lookups import hold
from shmbroker.log.retiring import advance_log_start
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.settings.layers import effective_topic_configs
from shmbroker.shm.positions import PositionTable, table_bytes
from tests.support.family_memory import VirtualClock

NOW_MS = 1_000_000
"""By the wall clock."""
HOLD_MS = 5_000


class Topic:
    name = "t"
    is_internal = False
    topic_id = random_uuid()
    partitions = (SimpleNamespace(replicas=(1,)),)


class Steady:
    """The clock that waits go by."""

    def __init__(self) -> None:
        self.ms = 0


@pytest.fixture
def steady() -> Steady:
    return Steady()


def never_flush(descriptors: list[int], _on_done: object) -> None:
    """A disk that never says that it has something; the descriptors are the job's to close."""
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def store(tmp_path: Path, steady: Steady) -> Iterator[PartitionStore]:
    directory = LogDirectory.open(str(tmp_path / "node-1"), 1, "cluster")
    positions = PositionTable(memoryview(bytearray(table_bytes(16))), 16)
    yield PartitionStore(directory, positions, 0, False, never_flush, lambda: steady.ms)
    directory.close()


def three_segments(store: PartitionStore) -> Partition:
    """Of a record each; the last one is active."""
    texts = {"file.delete.delay.ms": "0"}
    config = LogConfig(effective_topic_configs(texts, ()))
    partition = store.open(Topic(), 0, config, NOW_MS)
    for n in range(3):
        if n:
            partition.log.roll(NOW_MS)
        batch = bytearray(encode_batch([(NOW_MS, None, b"v", ())]))
        partition.log.append(memoryview(batch), 0, NOW_MS, 0, 0)
    return partition


def left(partition: Partition) -> list[int]:
    files = Path(partition.log.directory).glob("*.log.deleted")
    return sorted(int(path.name.split(".")[0]) for path in files)


def drop(store: PartitionStore, partition: Partition) -> None:
    """As retention does it: all but the active segment."""
    advance_log_start(partition.log, 2)
    store.retain(partition, NOW_MS)


def test_held_files_stay_for_as_long_as_they_are_held(
    store: PartitionStore, steady: Steady
) -> None:
    partition = three_segments(store)
    hold(partition.log, 1, 2, HOLD_MS)
    drop(store, partition)
    upkeep = Upkeep(store, 300_000)
    assert left(partition) == [0, 1]
    upkeep.run(NOW_MS)
    assert left(partition) == [1]
    steady.ms = HOLD_MS - 1
    upkeep.run(NOW_MS)
    assert left(partition) == [1]
    steady.ms = HOLD_MS
    upkeep.run(NOW_MS)
    assert left(partition) == []


def test_held_files_go_when_the_disk_is_nearly_full(store: PartitionStore) -> None:
    partition = three_segments(store)
    hold(partition.log, 0, 2, HOLD_MS)
    drop(store, partition)
    upkeep = Upkeep(store, 300_000)
    upkeep.run(NOW_MS)
    assert left(partition) == [0, 1]
    store.removals.release_held()
    upkeep.run(NOW_MS)
    assert left(partition) == []


# --- what the disk does not let go ---


def test_files_that_can_not_be_unlinked_are_tried_again(
    store: PartitionStore, steady: Steady, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = three_segments(store)
    drop(store, partition)
    upkeep = Upkeep(store, 300_000)
    with monkeypatch.context() as patch:
        patch.setattr(removals, "remove_files", refuse)
        upkeep.run(NOW_MS)
    assert left(partition) == [0, 1] and not store.removals.segments_deleted
    steady.ms += removals.AGAIN_MS
    upkeep.run(NOW_MS)
    assert left(partition) == [] and store.removals.segments_deleted == 2


def test_directories_that_can_not_be_removed_are_tried_again_and_hold_up_no_others(
    store: PartitionStore, steady: Steady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in ("slow", "refused", "quick")]
    for path in paths:
        path.mkdir()
    slow, refused, quick = paths
    upkeep = Upkeep(store, 300_000)
    store.removals.remove_later(str(slow), 3 * removals.AGAIN_MS)
    store.removals.remove_later(str(refused), 0)
    with monkeypatch.context() as patch:
        patch.setattr(removals, "remove_deleted", refuse)
        upkeep.run(NOW_MS)
    store.removals.remove_later(str(quick), 0)
    upkeep.run(NOW_MS)
    assert [path.exists() for path in paths] == [True, True, False]
    steady.ms += removals.AGAIN_MS
    upkeep.run(NOW_MS)
    assert [path.exists() for path in paths] == [True, False, False]
    steady.ms += 2 * removals.AGAIN_MS
    upkeep.run(NOW_MS)
    assert not slow.exists()


def refuse(*_: object) -> None:
    raise StorageFault("can't remove it: Input/output error")


def test_a_stop_removes_directories_until_its_clock_says_that_it_is_enough(
    store: PartitionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    removed: list[str] = []

    def remove(path: str) -> None:
        removed.append(path)
        clock.sleep(removals.REMOVE_S / 2)

    monkeypatch.setattr(removals, "remove_deleted", remove)
    for number in range(5):
        store.removals.remove_later(str(tmp_path / str(number)), number)
    store.removals.finish(clock.monotonic)
    assert len(removed) == 2
