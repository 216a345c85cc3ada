"""Partitions whose directory is gone, or nobody's; what of a damaged one readers still get."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker import damage, removals
from shmbroker.broker.damage import DamageMender
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.upkeep import Upkeep
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.ids import random_uuid
from shmbroker.log.checkpoints import CLEANER, LOG_START_OFFSET, read_offsets
from shmbroker.log.config import LogConfig
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.partition_metadata import read_mark
from shmbroker.log.raised_start import RAISED_START
from shmbroker.log.transaction_index import AbortedTransactions
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.settings.layers import effective_topic_configs
from shmbroker.shm.positions import PositionTable, table_bytes
from shmbroker.tools.log_verify import verify
from tests.support.family_memory import VirtualClock
from tests.support.leadership import leadership
from tests.support.waiting import wait_until

NOW_MS = 1_000_000
SIZE = len(encode_batch([(NOW_MS, None, b"v" * 100, ())]))


class Topic:
    is_internal = False
    partitions = (SimpleNamespace(replicas=(1,)),)

    def __init__(self, name: str = "t") -> None:
        self.name = name
        self.topic_id = random_uuid()


class Node:
    """A store over a directory, started and ended as the test says; fdatasync is done at once, or
    when `sync` is called."""

    def __init__(self, root: Path) -> None:
        self.path = root / "node-1"
        self.jobs: list[Any] = []
        self.counted: list[str] = []
        self.steady_ms = 0
        self.positions = self._new_positions()
        self.store: PartitionStore
        self.start()

    @staticmethod
    def _new_positions() -> PositionTable:
        return PositionTable(memoryview(bytearray(table_bytes(16))), 16)

    def start(self, *, is_successor: bool = False) -> None:
        if not is_successor:
            self.positions = self._new_positions()
        directory = LogDirectory.open(str(self.path), 1, "cluster")
        self.store = PartitionStore(
            directory,
            self.positions,
            0,
            is_successor,
            lambda fds, on_done: self.jobs.append((fds, on_done)),
            lambda: self.steady_ms,
            self.counted.append,
        )
        self.upkeep = Upkeep(self.store, 300_000)

    def kill(self) -> None:
        for partition in self.store.partitions.values():
            partition.log.close(clean=False)
        self.store.log_directory.close()

    def stop(self) -> None:
        self.store.close(1, VirtualClock().monotonic)

    def sync(self) -> None:
        while self.jobs:
            fds, on_done = self.jobs.pop(0)
            for fd in fds:
                os.fdatasync(fd)
                os.close(fd)
            on_done(None)

    def open(self, topic: Topic, **configs: str) -> Partition:
        texts = {"segment.bytes": str(1 << 20)}
        sizes = {"segment.bytes": str(10 * SIZE)}
        config = LogConfig(effective_topic_configs(texts, ()) | sizes | configs)
        partition = self.store.open(topic, 0, config, NOW_MS)
        partition.on_leadership(1, leadership())
        return partition

    def fill(self, topic: Topic, count: int) -> Partition:
        partition = self.open(topic)
        for _ in range(count):
            batch = encode_batch([(NOW_MS, None, b"v" * 100, ())])
            partition.log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS)
        partition.advance_high_watermark()
        return partition

    def directory(self, topic: Topic) -> Path:
        return self.path / f"{topic.name}-0"

    def strays(self) -> list[str]:
        return [name for name in os.listdir(self.path) if name.endswith("-stray")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.sync()
    node.kill()


# --- a flush that is refused ---


def test_a_log_that_can_not_be_flushed_takes_nothing_from_the_next_flush_of_another(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [node.fill(Topic(name), 5).log for name in ("t", "u")]
    for log in logs:
        log.roll(NOW_MS)
        log.recovery_point = 5  # so that only `rolled` knows of the first segment

    def refuse() -> None:
        raise StorageFault("no space")

    with monkeypatch.context() as patch:
        patch.setattr(AbortedTransactions, "write", lambda one: one is logs[1].aborted and refuse())
        with pytest.raises(StorageFault):
            node.store.flush(logs)
    assert not node.jobs
    node.store.flush(logs)
    paths = {os.readlink(f"/proc/self/fd/{fd}") for fds, _ in node.jobs for fd in fds}
    for log in logs:
        assert {log.directory, f"{log.directory}/{0:020d}.log"} <= paths


# --- a directory that is renamed ---


def test_a_rename_is_told_when_it_is_done(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    node.fill(topic, 5)
    node.stop()
    node.start()

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(StorageFault) as met:
            node.store.directories.set_aside(topic.name, 0, "nothing says whose it is")
    assert met.value.path == str(node.directory(topic))
    assert not caplog.records
    node.store.directories.set_aside(topic.name, 0, "nothing says whose it is")
    assert ["is renamed to" in one.getMessage() for one in caplog.records] == [True]
    assert len(node.strays()) == 1


class Refusals:
    """Directories that the disk does not let be renamed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: set[str] = set()
        self._rename = os.rename
        monkeypatch.setattr(os, "rename", self)

    def __call__(self, source: str, target: str) -> None:
        if str(source) in self.paths:
            raise OSError(errno.EPERM, "Operation not permitted")
        self._rename(source, target)


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Refusals:
    return Refusals(monkeypatch)


def left(node: Node) -> list[str]:
    return sorted(one.name.split(".")[0] for one in node.path.iterdir() if one.is_dir())


def test_a_deleted_directory_that_can_not_be_renamed_is_tried_again(
    node: Node, refusals: Refusals, caplog: pytest.LogCaptureFixture
) -> None:
    topic, other = Topic(), Topic("other")
    partition = node.fill(topic, 5)
    node.fill(other, 5)
    refusals.paths.add(str(node.directory(topic)))
    node.store.delete(partition)
    assert [str(node.directory(topic)) in one.getMessage() for one in caplog.records] == [True]
    assert partition.key not in node.store.partitions
    for _ in range(60):
        node.steady_ms += 1000
        node.upkeep.run(NOW_MS)
    assert len(caplog.records) <= 8
    assert left(node) == ["other-0", "t-0"]
    refusals.paths.clear()
    node.upkeep.run(NOW_MS)
    assert not node.directory(topic).exists()
    node.steady_ms += partition.log.config.file_delete_delay_ms
    node.upkeep.run(NOW_MS)
    assert left(node) == ["other-0"]
    assert not node.store.directories.refused


def test_a_stop_tries_once_more_to_rename_what_was_refused(node: Node, refusals: Refusals) -> None:
    topics = Topic(), Topic("u")
    for topic in topics:
        refusals.paths.add(str(node.directory(topic)))
        node.store.delete(node.fill(topic, 5))
    refusals.paths.discard(str(node.directory(topics[0])))
    node.stop()
    assert left(node) == ["u-0"]


def test_a_stop_is_clean_though_a_deleted_directory_can_not_be_removed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = Topic(), Topic("other")
    node.fill(other, 5)
    node.store.delete(node.fill(topic, 5))

    def refuse(path: str) -> None:
        raise StorageFault(f"can't remove {path}")

    with monkeypatch.context() as patch:
        patch.setattr(removals, "remove_deleted", refuse)
        node.stop()
    node.start()
    assert node.store.log_directory.is_clean
    assert node.open(other).log.log_end_offset == 5


def test_a_topic_of_the_same_name_waits_until_the_directory_is_renamed(
    node: Node, refusals: Refusals
) -> None:
    before, topic = Topic(), Topic()
    refusals.paths.add(str(node.directory(topic)))
    node.store.delete(node.fill(before, 5))
    for _ in range(2):
        with pytest.raises(StorageFault):
            node.open(topic)
    refusals.paths.clear()
    assert node.fill(topic, 3).log.log_end_offset == 3
    node.upkeep.run(NOW_MS)
    assert node.directory(topic).is_dir()
    assert node.strays() == []
    assert [name.endswith("-delete") for name in os.listdir(node.path) if "t-0." in name] == [True]


def test_a_start_goes_on_where_a_directory_without_a_topic_can_not_be_renamed(
    node: Node, refusals: Refusals
) -> None:
    topic, kept = Topic(), Topic("kept")
    for one in (topic, kept):
        node.fill(one, 5)
    node.stop()
    node.start()
    node.open(kept)
    refusals.paths.add(str(node.directory(topic)))
    node.store.take_stock({kept.topic_id: kept})
    node.upkeep.run(NOW_MS)
    assert left(node) == ["kept-0", "t-0"]
    refusals.paths.clear()
    node.upkeep.run(NOW_MS)
    assert left(node) == ["kept-0", "t-0"]
    assert len(node.strays()) == 1
    node.upkeep.run(NOW_MS)


def test_what_was_known_of_a_deleted_topic_is_no_loss_of_one_that_has_its_name(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    before, topic = Topic(), Topic()
    node.fill(before, 5)
    node.stop()
    node.start()
    partition = node.fill(topic, 3)
    assert len(node.strays()) == 1
    assert partition.key not in node.store.directories.lost
    assert node.counted == []
    assert "is gone" not in caplog.text


@pytest.mark.parametrize("end", [Node.stop, Node.kill])
@pytest.mark.parametrize("is_named", [True, False])
def test_partitions_that_a_topic_has_no_more_are_not_missed(
    node: Node, end: Callable[[Node], None], is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It was deleted while nobody was there, and made again with fewer partitions, or later."""
    before, topic = Topic(), Topic()
    node.fill(before, 5)
    node.stop()
    node.start()
    node.store.take_stock({topic.topic_id: topic} if is_named else {})
    end(node)
    assert [one.fault for one in verify(str(node.path))] == [None, None]
    node.start()
    partition = node.fill(topic, 3)
    assert partition.key not in node.store.directories.lost
    assert node.counted == []
    assert "is gone" not in caplog.text


def test_what_was_moved_to_other_brokers_while_this_one_was_away_is_set_aside(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    node.fill(topic, 5)
    node.stop()
    node.start()
    topic.partitions = (SimpleNamespace(replicas=(2, 3)),)
    node.store.take_stock({topic.topic_id: topic})
    assert len(node.strays()) == 1
    assert "moved to other brokers" in caplog.text
    # It comes back, and copies from those who had it meanwhile.
    topic.partitions = Topic.partitions
    partition = node.open(topic)
    assert partition.log.log_end_offset == 0
    assert partition.key not in node.store.directories.lost


def test_what_was_moved_away_just_before_a_kill_is_not_missed(node: Node) -> None:
    """Its directory was removed, and no checkpoint was written since."""
    topic = Topic()
    node.fill(topic, 5)
    node.stop()
    node.start()
    shutil.rmtree(node.directory(topic))
    topic.partitions = (SimpleNamespace(replicas=(2, 3)),)
    node.store.take_stock({topic.topic_id: topic})
    node.kill()
    assert [one.fault for one in verify(str(node.path))] == [None]
    node.start()
    topic.partitions = Topic.partitions
    assert node.open(topic).key not in node.store.directories.lost


def test_what_can_not_be_opened_yet_stays(node: Node) -> None:
    topic = Topic()
    node.fill(topic, 5)
    node.stop()
    node.start()
    node.store.take_stock({topic.topic_id: topic})
    assert not node.strays()


# --- a directory that is gone ---


@pytest.mark.parametrize("how", ["stop", "kill", "successor"])
def test_directory_that_is_gone_is_named_before_an_empty_one_is_made(
    node: Node, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    node.fill(topic, 25)
    if how == "stop":
        node.stop()
    else:
        if how == "kill":
            node.store.checkpoint()
        node.kill()
    shutil.rmtree(node.directory(topic))
    node.start(is_successor=how == "successor")
    partition = node.open(topic)
    assert partition.log.log_end_offset == 0
    (line,) = [row.getMessage() for row in caplog.records if row.levelname == "ERROR"]
    assert str(node.directory(topic)) in line
    assert "25" in line
    assert node.counted == ["partitions_lost"]
    # It was said; the next start has nothing to say.
    caplog.clear()
    node.kill()
    node.start()
    node.open(topic)
    assert not [row for row in caplog.records if row.levelname == "ERROR"]


def test_new_topic_is_no_loss(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Created a moment before a crash, or in the place of one that was deleted."""
    partition = node.fill(Topic(), 25)
    node.store.checkpoint()
    node.store.delete(partition)
    partition = node.fill(Topic(), 25)
    node.store.checkpoint()
    node.upkeep.run(NOW_MS)
    node.store.delete(partition)
    # Checkpoints forget it soon, so that a start after a crash does not miss it.
    node.steady_ms += 1000
    node.upkeep.run(NOW_MS)
    node.kill()
    node.start()
    node.open(Topic())
    node.open(Topic("other"))
    assert not [row for row in caplog.records if row.levelname == "ERROR"]
    assert not node.counted


# --- a directory without partition.metadata ---


def test_what_a_full_disk_refuses_is_not_said_to_be_written(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again each second: one line then, when it is done."""
    topic = Topic()
    node.fill(topic, 1)
    node.stop()
    metadata = node.directory(topic) / "partition.metadata"
    metadata.unlink()
    node.start()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shmbroker.log.checkpoints.write_all", refuse)
        for _ in range(2):
            with pytest.raises(StorageFault, match="No space left"):
                node.open(topic)
    assert "written anew" not in caplog.text
    node.open(topic)
    assert caplog.text.count(f"{metadata} is written anew") == 1


@pytest.mark.parametrize("damage", ["removed", "emptied", "garbage"])
def test_directory_says_whose_it_is_where_its_file_does_not(node: Node, damage: str) -> None:
    topic = Topic()
    node.fill(topic, 5)
    node.kill()
    metadata = node.directory(topic) / "partition.metadata"
    try:
        os.setxattr(node.path, "user.test", b"")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    metadata.unlink()
    if damage != "removed":
        metadata.write_text("" if damage == "emptied" else "nonsense")
    node.start()
    assert node.open(topic).log.log_end_offset == 5
    assert not node.strays()
    node.kill()
    # Never as that of another topic: it was deleted and made again meanwhile.
    metadata.unlink()
    node.start()
    again = Topic()
    assert node.open(again).log.log_end_offset == 0
    assert len(node.strays()) == 1


@pytest.mark.parametrize("is_flushed", [False, True])
def test_directory_that_bears_nothing_is_taken_by_its_name_if_it_was_flushed(
    node: Node, is_flushed: bool
) -> None:
    topic = Topic()
    partition = node.fill(topic, 5)
    if is_flushed:
        partition.log.flush()
        node.store.checkpoint()
    node.kill()
    (node.directory(topic) / "partition.metadata").unlink()
    if read_mark(str(node.directory(topic))) is not None:
        os.removexattr(node.directory(topic), "user.shmbroker.topic_id")
    node.start()
    assert node.open(topic).log.log_end_offset == (5 if is_flushed else 0)
    assert len(node.strays()) == (0 if is_flushed else 1)
    assert node.counted == ([] if is_flushed else ["partitions_lost"])


# --- DeleteRecords ---


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
    node.store.has_remote_store = is_noted
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
        node.store.has_remote_store = True
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


# --- damage that readers meet ---


def settle(node: Node, mender: DamageMender) -> None:
    """Until it has nothing to do: its thread works on a few KiB."""

    def is_done() -> bool:
        mender.run(NOW_MS)
        return mender.looked_at is None

    wait_until(is_done, "the mender", between=0.001)
    node.sync()


def test_a_look_that_fails_leaves_room_for_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    for name in ("00000000000000000000.log", "00000000000000000010.log"):
        segment = node.directory(topic) / name
        content = bytearray(segment.read_bytes())
        content[SIZE + 90] ^= 1
        segment.write_bytes(content)
    node.start()
    partition = node.open(topic)
    mender = DamageMender(node.store, lambda _key: False)
    faults = []
    for offset in (1, 11):
        with pytest.raises(CorruptFault) as met:
            partition.log.read(offset, 10_000, 25)
        faults.append(met.value)
    with monkeypatch.context() as patch:
        patch.setattr(damage, "look_at", lambda *_: 1 // 0)
        mender.on_fault(partition, faults[0], NOW_MS)
        settle(node, mender)
    assert "ZeroDivisionError" in caplog.text
    mender.on_fault(partition, faults[1], NOW_MS)
    settle(node, mender)
    assert node.counted == ["log_damage"]


def test_a_fault_is_of_the_file_that_it_names_whatever_its_text_mentions(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 25)
    first, second, _ = partition.log.segments
    mender = DamageMender(node.store, lambda _key: False)
    beside = first.path + ".swap"
    mender.on_fault(partition, CorruptFault(f"{beside} has no whole batch", beside), NOW_MS)
    assert mender.looked_at is None
    mender.on_fault(partition, CorruptFault(f"unlike {first.path}", second.path), NOW_MS)
    assert mender.looked_at is second
    settle(node, mender)


@pytest.mark.parametrize("number", [3, 13, 23])
def test_reader_goes_on_behind_damage(node: Node, number: int, tmp_path: Path) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    segment = node.directory(topic) / f"{number // 10 * 10:020d}.log"
    content = bytearray(segment.read_bytes())
    content[number % 10 * SIZE + 90] ^= 1
    segment.write_bytes(content)
    node.start()
    partition = node.open(topic)
    mender = DamageMender(node.store, lambda _key: False)
    log = partition.log
    with pytest.raises(CorruptFault) as met:
        log.read(number, 10_000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    place = log.read(number, 10_000, 25)
    assert place is not None
    found, position, _ = place
    assert int.from_bytes(found.read_bytes(position, 8), "big") == number + 1
    assert node.counted == ["log_damage"]
    assert read_offsets(str(node.path / CLEANER)) == {("t", 0): number + 1}
    piece = tmp_path / "quarantine" / "node-1" / "t-0" / f"{number:020d}.log"
    assert piece.read_bytes() == bytes(content[number % 10 * SIZE :][:SIZE])
    batch = encode_batch([(NOW_MS, None, b"v", ())])
    assert log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS) == 25
    # A power cut later the same is there.
    log.flush()
    node.store.checkpoint()
    node.kill()
    node.start()
    again = node.open(topic).log
    assert again.log_end_offset == 26
    served = []
    offset = 0
    while offset < 26:
        segment_of, position, length = again.read(offset, 1, 26) or (None, 0, 0)
        assert length and segment_of is not None
        offset = int.from_bytes(segment_of.read_bytes(position, 8), "big")
        served.append(offset)
        offset += 1
    assert served == [at for at in range(26) if at != number]
    assert node.counted == ["log_damage"]


def test_start_that_scans_leaves_the_hole_itself(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 25)
    partition.log.flush()
    node.store.checkpoint()
    node.kill()
    path = node.directory(topic) / f"{20:020d}.log"
    content = bytearray(path.read_bytes())
    content[SIZE + 90] ^= 1
    path.write_bytes(content)
    path.with_suffix(".index").unlink(missing_ok=True)
    node.start()
    log = node.open(topic).log
    assert log.log_end_offset == 25
    segment, position, _ = log.read(21, 1000, 25) or pytest.fail("out of range")
    assert int.from_bytes(segment.read_bytes(position, 8), "big") == 22
    assert node.counted == ["log_damage"]
    assert read_offsets(str(node.path / CLEANER)) == {("t", 0): 22}


@pytest.mark.parametrize("is_directory", [False, True])
def test_reader_goes_on_behind_a_segment_that_is_no_file(node: Node, is_directory: bool) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    node.start()
    partition = node.open(topic)
    path = node.directory(topic) / f"{10:020d}.log"
    path.unlink()
    if is_directory:
        path.mkdir()
    mender = DamageMender(node.store, lambda _key: False)
    with pytest.raises(StorageFault) as met:
        partition.log.read(10, 1000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    place = partition.log.read(10, 1000, 25)
    assert place is not None
    assert place[0].base_offset == 20
    assert partition.log.cleaned_offset == 20
    assert node.counted == ["log_damage"]
    partition.log.flush()


@pytest.mark.parametrize("how", ["read", "append", "roll", "flush"])
@pytest.mark.parametrize("replicas", [(1,), (1, 2)])
def test_nothing_is_lost_of_an_active_segment_whose_file_is_removed(
    node: Node, how: str, replicas: tuple[int, ...]
) -> None:
    topic = Topic()
    partition = node.fill(topic, 25)
    log = partition.log
    partition.replicas = replicas
    mender = DamageMender(node.store, lambda _key: False)
    os.unlink(log.active.path)
    before = log.active.file_id
    large = encode_batch([(NOW_MS, None, b"v" * (40 << 10), ())])
    doing = {
        "read": lambda: log.active.fd,
        "append": lambda: log.append(memoryview(large), 0, NOW_MS, 0, NOW_MS),
        "roll": lambda: log.roll(NOW_MS),
        "flush": log.flush,
    }
    for _ in range(2):
        with pytest.raises(StorageFault) as met:
            doing[how]()
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    assert (log.log_end_offset, len(log.segments)) == (25, 3)
    assert node.store.dropped_file_ids == [before] != [log.active.file_id]
    for batch in (large, encode_batch([(NOW_MS, None, b"v", ())])):
        log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS)
    node.kill()
    node.start(is_successor=True)
    again = node.open(topic).log
    assert again.log_end_offset == 27
    for offset in range(27):
        segment, position, _ = again.read(offset, 1, 27) or pytest.fail("out of range")
        assert int.from_bytes(segment.read_bytes(position, 8), "big") == offset
    assert again.cleaned_offset <= 0


def test_a_removed_file_that_can_not_be_written_again_stays_in_the_map(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic()
    partition = node.fill(topic, 25)
    log = partition.log
    mender = DamageMender(node.store, lambda _key: False)
    os.unlink(log.active.path)
    with pytest.raises(StorageFault) as met:
        _ = log.active.fd

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        mender.on_fault(partition, met.value, NOW_MS)
    assert not os.path.exists(log.active.path)
    assert log.append(memoryview(encode_batch([(NOW_MS, None, b"v", ())])), 0, NOW_MS, 0, 0) == 25
    mender.on_fault(partition, met.value, NOW_MS)
    segment, position, _ = log.read(25, 1, 26) or pytest.fail("out of range")
    assert int.from_bytes(segment.read_bytes(position, 8), "big") == 25


def test_stray_segment_within_another_hides_nothing(node: Node) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    (node.directory(topic) / f"{15:020d}.log").touch()
    node.start()
    partition = node.open(topic)
    mender = DamageMender(node.store, lambda _key: False)
    with pytest.raises(CorruptFault) as met:
        partition.log.read(15, 1000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    for offset in range(25):
        segment, position, _ = partition.log.read(offset, 1, 25) or pytest.fail("out of range")
        assert int.from_bytes(segment.read_bytes(position, 8), "big") == offset
    assert partition.log.cleaned_offset == 0
    assert node.counted == ["log_damage"]


def test_where_other_replicas_are_readers_stay_refused(node: Node) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    path = node.directory(topic) / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[90] ^= 1
    path.write_bytes(content)
    node.start()
    partition = node.open(topic)
    partition.replicas = (1, 2)
    mender = DamageMender(node.store, lambda _key: False)
    with pytest.raises(CorruptFault) as met:
        partition.log.read(0, 1000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    assert path.read_bytes() == content
    with pytest.raises(CorruptFault):
        partition.log.read(0, 1000, 25)


@pytest.mark.parametrize("left", [0, 2])
def test_readers_go_on_where_a_file_was_cut_at_the_end_of_a_batch(node: Node, left: int) -> None:
    partition = node.fill(Topic(), 25)
    log = partition.log
    os.truncate(log.segments[1].path, left * SIZE)
    mender = DamageMender(node.store, lambda _key: False)
    with pytest.raises(StorageFault) as met:
        log.read(15, 10_000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    read = []
    for start in range(10, 25):
        place = log.read(start, SIZE, 25)
        assert place is not None
        found, position, length = place
        assert length
        read.append(int.from_bytes(found.read_bytes(position, 8), "big"))
    assert read == [*range(10, 10 + left), *[20] * (10 - left), *range(20, 25)]


def test_readers_go_on_where_the_last_segment_was_removed_before_anything_was_appended(
    node: Node,
) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    node.start()
    partition = node.open(topic)
    log = partition.log
    os.unlink(log.active.path)
    mender = DamageMender(node.store, lambda _key: False)
    batch = encode_batch([(NOW_MS, None, b"v", ())])
    with pytest.raises(StorageFault) as met:
        log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    assert log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS) == 25
    log.flush()
    for start in range(20, 26):
        place = log.read(start, 10_000, 26)
        assert place is not None
        found, position, length = place
        assert length
        assert int.from_bytes(found.read_bytes(position, 8), "big") == 25


def test_active_segment_is_written_again_where_its_directory_was_removed(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 5)
    log = partition.log
    mender = DamageMender(node.store, lambda _key: False)
    shutil.rmtree(log.directory)
    with pytest.raises(StorageFault) as met:
        _ = log.active.fd
    mender.on_fault(partition, met.value, NOW_MS)
    log.flush()
    node.stop()
    node.start()
    again = node.open(topic).log
    for offset in range(5):
        segment, position, _ = again.read(offset, 1, 5) or pytest.fail("out of range")
        assert int.from_bytes(segment.read_bytes(position, 8), "big") == offset
    assert node.counted == ["log_damage"]
    assert not node.strays()
