"""Files that retention drops stay for queries that hold them, unless the disk is nearly full; what
the disk does not let go is tried again."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker import removals
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.upkeep import Upkeep
from shmbroker.errors import StorageFault
from shmbroker.ids import random_uuid
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.lookups import hold
from shmbroker.log.retiring import advance_log_start
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.settings.layers import effective_topic_configs
from shmbroker.shm.positions import PositionTable, table_bytes
from tests.support.descriptors import open_below
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


def test_an_unlinked_file_is_open_no_more(store: PartitionStore) -> None:
    """Else the disk would not have its room back."""
    partition = three_segments(store)
    closed = partition.log.segments[:2]
    drop(store, partition)
    assert all(segment.fd >= 0 for segment in closed), "an answer under way names it"
    assert len(open_files(partition)) == 3
    Upkeep(store, 300_000).run(NOW_MS)
    assert left(partition) == [] and len(open_files(partition)) == 1


def open_files(partition: Partition) -> set[str]:
    return {name.split(".log")[0] for name in open_below(partition.log.directory)}


# --- files of which only their size and times count ---


def file_to_go(
    store: PartitionStore, tmp_path: Path, delay_ms: int, *held_until_ms: int, size: int = 0
) -> Path:
    """held_until_ms: of each of the segments that it was."""
    number = len(list(tmp_path.glob("*.deleted")))
    path = tmp_path / f"{number}.log.deleted"
    path.touch()
    segments: list[Any] = [
        SimpleNamespace(held_until_ms=until_ms, file_id=1000 + 10 * number + at, size=size)
        for at, until_ms in enumerate(held_until_ms or (0,))
    ]
    store.removals.unlink_later([str(path)], segments, delay_ms)
    return path


def test_segments_that_became_one_go_together(
    store: PartitionStore, steady: Steady, tmp_path: Path
) -> None:
    path = file_to_go(store, tmp_path, 10, 0, HOLD_MS, 0)
    upkeep = Upkeep(store, 300_000)
    for steady.ms, is_left in ((10, True), (HOLD_MS - 1, True), (HOLD_MS, False)):
        upkeep.run(NOW_MS)
        assert path.exists() is is_left


def test_files_that_are_held_no_more_go_when_they_are_due(
    store: PartitionStore, steady: Steady, tmp_path: Path
) -> None:
    late = file_to_go(store, tmp_path, 50)
    early = file_to_go(store, tmp_path, 10, HOLD_MS)
    store.removals.release_held()
    upkeep = Upkeep(store, 300_000)
    for steady.ms, are_left in ((9, [True, True]), (10, [False, True]), (50, [False, False])):
        upkeep.run(NOW_MS)
        assert [early.exists(), late.exists()] == are_left


def test_a_file_that_can_not_be_unlinked_rests_though_the_disk_is_nearly_full(
    store: PartitionStore, steady: Steady, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_to_go(store, tmp_path, 0)
    upkeep = Upkeep(store, 300_000)
    with monkeypatch.context() as patch:
        patch.setattr(removals, "remove_files", refuse)
        upkeep.run(NOW_MS)
    store.removals.release_held()
    upkeep.run(NOW_MS)
    assert path.exists()
    steady.ms += removals.AGAIN_MS
    upkeep.run(NOW_MS)
    assert not path.exists()


def test_large_files_go_one_in_a_round(store: PartitionStore, tmp_path: Path) -> None:
    """The kernel takes its time for each GiB, and others wait."""
    sizes = (1, removals.UNLINK_BYTES_PER_ROUND, 1)
    paths = [file_to_go(store, tmp_path, 0, size=size) for size in sizes]
    upkeep = Upkeep(store, 300_000)
    for are_left in ([False, False, True], [False, False, False]):
        upkeep.run(NOW_MS)
        assert [path.exists() for path in paths] == are_left


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


def test_a_directory_goes_when_no_checkpoint_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a log that is made again under its name would look lost."""
    done: list[str] = []
    monkeypatch.setattr(removals, "remove_deleted", lambda path: done.append(path))
    going = removals.Removals(Descriptors(), [], lambda: 0, lambda: done.append("written"))

    def attempt(work: Callable[..., object], *arguments: object) -> bool:
        work(*arguments)
        return True

    going.remove_later("t-0.delete", 0)
    going.run(attempt)
    going.remove_later("t-1.delete", 1000)
    going.finish(lambda: 0.0)
    assert done == ["written", "t-0.delete", "written", "t-1.delete"]


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
