"""Where a log begins after DeleteRecords and retention, through stops, kills and power cuts."""

import os

import pytest

from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import LOG_START_OFFSET, read_offsets
from shmbroker.log.raised_start import RAISED_START
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch
from tests.unit.broker.one_node import NOW_MS, SIZE, Node, Topic, node

__all__ = ["node"]


def test_log_start_is_checkpointed_when_the_log_is_on_the_disk_up_to_there(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 8)
    assert node.store.delete_records(partition, 5) == 5
    path = str(node.path / LOG_START_OFFSET)
    node.store.checkpoint()
    assert not read_offsets(path)
    node.upkeep.run(NOW_MS)
    assert not read_offsets(path), "its log may end before that after a power cut"
    node.upkeep.run(NOW_MS)
    assert len(node.jobs) == 1, "one flush at a time"
    node.sync()
    assert partition.log.recovery_point == 8
    node.upkeep.run(NOW_MS)
    assert read_offsets(path) == {("t", 0): 5}
    # All of it, and the start after a crash: it stays deleted.
    assert node.store.delete_records(partition, -1) == 8
    node.upkeep.run(NOW_MS)
    assert read_offsets(path) == {("t", 0): 8}
    node.kill()
    node.start()
    log = node.open(topic).log
    assert (log.log_start_offset, log.log_end_offset) == (8, 8)
    assert not node.counted


def test_a_raised_start_outlives_all_processes_before_any_checkpoint(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 8)
    node.store.checkpoint()
    assert node.store.delete_records(partition, 5) == 5
    for is_successor in (False, True):
        node.kill()
        node.start(is_successor=is_successor)
        log = node.open(topic).log
        assert (log.log_start_offset, log.log_end_offset) == (5, 8)
        assert log.leader_epochs.entries == [(0, 5)]
    node.upkeep.run(NOW_MS)
    node.sync()
    node.upkeep.run(NOW_MS)
    assert read_offsets(str(node.path / LOG_START_OFFSET)) == {("t", 0): 5}
    assert not (node.directory(topic) / RAISED_START).exists()
    node.kill()
    node.start()
    assert node.open(topic).log.log_start_offset == 5
    assert not node.counted


@pytest.mark.parametrize("is_noted", [True, False], ids=["by retention", "by the next start"])
def test_what_retention_deleted_is_not_looked_for_in_a_store_that_is_switched_on_later(
    node: Node, is_noted: bool
) -> None:
    """While the broker was dead, and before any checkpoint said where the log begins."""
    node.store.log_directory.has_remote_store = is_noted
    topic = Topic()
    partition = node.fill(topic, 8)
    node.store.checkpoint()
    log = partition.log
    log.roll(NOW_MS)
    later_ms = NOW_MS + 8 * 24 * 3_600_000
    batch = encode_batch([(later_ms, None, b"v", ())])
    log.append(memoryview(batch), 0, later_ms, 0, later_ms)
    node.store.retain(partition, later_ms)
    assert log.log_start_offset == log.local_start_offset == 8
    node.kill()
    node.start()
    if not is_noted:
        node.store.log_directory.has_remote_store = True
        node.open(topic)
        node.kill()
        node.start()
    log = node.open(topic, **{"remote.storage.enable": "true"}).log
    assert log.log_start_offset == log.local_start_offset == 8


def test_a_raised_start_behind_what_a_power_cut_has_left_is_forgotten(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 8)
    node.store.checkpoint()
    assert node.store.delete_records(partition, 7) == 7
    segment = partition.log.active.path
    node.kill()
    os.truncate(segment, 4 * SIZE)
    node.start()
    log = node.fill(topic, 6).log
    assert (log.log_start_offset, log.log_end_offset) == (0, 10)
    node.kill()
    node.start()
    log = node.open(topic).log
    assert (log.log_start_offset, log.log_end_offset) == (0, 10), "records that are new"
    assert log.leader_epochs.entries == [(0, 0)]


@pytest.mark.parametrize("text", ["", "x", "\0\0"])
def test_a_raised_start_that_a_power_cut_has_damaged_is_not_used(node: Node, text: str) -> None:
    topic = Topic()
    partition = node.fill(topic, 8)
    assert node.store.delete_records(partition, 5) == 5
    node.kill()
    (node.directory(topic) / RAISED_START).write_text(text)
    node.start()
    assert node.open(topic).log.log_start_offset == 0


def test_a_cut_below_a_raised_start_forgets_it(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 8)
    assert node.store.delete_records(partition, 7) == 7
    truncate_to(partition.log, 3)
    assert not (node.directory(topic) / RAISED_START).exists()


def test_a_full_disk_does_not_refuse_to_delete_records(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = node.fill(Topic(), 8)

    def refuse(path: str, *_: object, **__: object) -> None:
        raise StorageFault(f"no space for {path}", path)

    monkeypatch.setattr("shmbroker.log.raised_start.write_file", refuse)
    assert node.store.delete_records(partition, 5) == 5
