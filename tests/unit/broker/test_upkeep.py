"""What the upkeep does with logs that are left alone, and when."""

import os

import pytest

from shmbroker.broker import upkeep
from shmbroker.broker.upkeep import IDLE_PARK_MS
from shmbroker.errors import StorageFault
from shmbroker.log import retention
from shmbroker.log.partition_log import PartitionLog
from shmbroker.replica.partition import Partition
from tests.unit.broker.test_group_commit import NOW_MS, Worker, worker

__all__ = ["worker"]


def run_after(worker: Worker, ms: int) -> None:
    """A round, so long after the worker has begun."""
    worker.steady_ms = ms
    worker.upkeep.run(NOW_MS + ms)


def test_a_log_is_parked_when_nothing_was_appended_for_a_minute(worker: Worker) -> None:
    partition = worker.open("t")
    segment = partition.log.active

    def is_parked_after(ms: int) -> bool:
        run_after(worker, ms)
        return segment.map is None

    worker.append(partition)
    assert not is_parked_after(0)
    assert not is_parked_after(IDLE_PARK_MS)
    worker.append(partition)
    assert not is_parked_after(IDLE_PARK_MS + 1), "counted from the last append"
    assert not is_parked_after(2 * IDLE_PARK_MS + 1)
    assert worker.store.dropped_file_ids == []
    assert is_parked_after(2 * IDLE_PARK_MS + 2)
    assert worker.store.dropped_file_ids == [segment.file_id]
    assert os.path.getsize(segment.path) == segment.size, (
        "what was allocated for more is given back"
    )
    assert is_parked_after(9 * IDLE_PARK_MS)
    assert worker.store.dropped_file_ids == [segment.file_id], "once"
    worker.append(partition)
    assert not is_parked_after(9 * IDLE_PARK_MS + 1), "in use again"
    assert partition.log.log_end_offset == 3


def test_a_round_looks_at_a_part_of_the_logs(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "ROLL_CHECKS_PER_ROUND", 2)
    partitions = [worker.open(f"t-{number}") for number in range(5)]
    for partition in partitions:
        worker.append(partition)
    for _ in range(3):  # the first time that it sees them
        run_after(worker, 0)
    parked = []
    for _ in range(3):
        run_after(worker, IDLE_PARK_MS + 1)
        parked.append(sum(partition.log.active.map is None for partition in partitions))
    assert parked == [2, 4, 5]


@pytest.mark.parametrize("is_fenced", [False, True])
def test_nothing_of_a_disk_that_has_failed_is_flushed(
    worker: Worker, caplog: pytest.LogCaptureFixture, is_fenced: bool
) -> None:
    partition = worker.open("t", flush_ms="5000")
    run_after(worker, 0)
    worker.append(partition)
    worker.store.is_fenced = is_fenced
    run_after(worker, 5000)
    assert len(worker.jobs) == (not is_fenced)
    assert caplog.records == []


def test_followers_are_told_where_retention_has_a_log_begin(worker: Worker) -> None:
    """Nothing that is written would tell them, and who is not in sync may not join before."""
    told: list[bytes] = []
    worker.store.on_readable = told.append
    partition = worker.open("t", retention_bytes="0")
    worker.append(partition)
    partition.log.roll(NOW_MS)
    worker.store.retain(partition, NOW_MS)
    assert partition.log.log_start_offset == 1
    assert told == [partition.key]
    worker.store.retain(partition, NOW_MS)
    assert told == [partition.key], "once"


def test_retention_makes_room_on_a_disk_that_refuses_a_new_segment(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = worker.open("t", retention_bytes="0", file_delete_delay_ms="0")
    log, store = partition.log, worker.store
    for _ in range(2):
        log.roll(NOW_MS)
        worker.append(partition)

    def refuse(_log: PartitionLog, _now_ms: int) -> None:
        raise StorageFault("no space")

    monkeypatch.setattr(PartitionLog, "roll", refuse)
    told: list[bytes] = []
    store.on_readable = told.append
    with pytest.raises(StorageFault):
        store.retain(partition, NOW_MS)
    assert log.log_start_offset == 1 and told == [partition.key]
    assert not log.retired, "its files are to be unlinked"
    run_after(worker, 0)
    assert [name for name in os.listdir(log.directory) if name.endswith(".log")] == [f"{1:020}.log"]


def test_where_copies_that_expire_have_a_log_begin_is_written_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(retention, "note_raised", lambda _log, start: written.append(start))
    store = worker.store

    def retain_tiered(partition: Partition, _now_ms: int) -> bool:
        store.raise_log_start(partition, 1)
        return False

    store.retain_tiered = retain_tiered
    partition = worker.open("t", remote_storage_enable="true")
    worker.append(partition)
    partition.advance_high_watermark()
    store.retain(partition, NOW_MS)
    assert partition.log.log_start_offset == 1 and store.is_log_start_moved
    assert written == [1]
