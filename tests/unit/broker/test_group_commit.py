"""Acks that wait for the disk: shared between partitions, and what a failing disk makes of them."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker import partition_store
from shmbroker.broker.append import Appender
from shmbroker.broker.end_markers import EndMarkers
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.upkeep import Upkeep
from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key, random_uuid
from shmbroker.ipc.operation_layout import APPEND_CONSTANT, APPENDED_HEAD, TOKEN
from shmbroker.log.config import LogConfig
from shmbroker.log.flushing import flush_targets
from shmbroker.log.log_directory import LogDirectory
from shmbroker.settings.layers import effective_topic_configs
from shmbroker.shm.positions import PositionTable, table_bytes
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR, NONE
from tests.support.leadership import leadership
from tests.support.raw_client import batch_of

NOW_MS = 1_700_000_000_000


class Peer:
    """The network worker that asks; `answers` are (token, error, base offset)."""

    slot = 1
    backlog: tuple[()] = ()

    class writer:
        payload_bytes_max = 1 << 16

        data = memoryview(bytearray(64))

        @staticmethod
        def claim(_operation: int, _size: int) -> int:
            return -1

    def __init__(self) -> None:
        self.answers: list[tuple[int, int, int]] = []

    def send(self, _operation: int, payload: bytes) -> None:
        token, error, _, _, base_offset, _, _ = APPENDED_HEAD.unpack_from(payload)
        self.answers.append((token, error, base_offset))


class Topic:
    is_internal = False
    partitions = (SimpleNamespace(replicas=(1,)),)

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic_id = random_uuid()


class Worker:
    """A store and an appender; jobs of the disk run when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.jobs: list[Any] = []
        self.steady_ms = 0
        positions = PositionTable(memoryview(bytearray(table_bytes(16))), 16)
        self.store = PartitionStore(
            LogDirectory.open(str(directory / "node-1"), 1, "cluster"),
            positions,
            0,
            False,
            lambda fds, on_done: self.jobs.append((fds, on_done)),
            lambda: self.steady_ms,
        )
        self.upkeep = Upkeep(self.store, 300_000)
        self.faults: list[StorageFault] = []
        self.appender = Appender(
            self.store.partitions,
            lambda: NOW_MS,
            lambda _partition, fault: self.faults.append(fault),
            self.store.flush,
            lambda: NOW_MS,
        )
        self.append_marker = EndMarkers(self.appender).append
        self.peer = Peer()
        self.tokens = itertools.count(1)

    def open(self, name: str, **settings: str) -> Any:
        texts = {key.replace("_", "."): value for key, value in settings.items()}
        config = LogConfig(effective_topic_configs(texts, ()))
        partition = self.store.open(Topic(name), 0, config, NOW_MS)
        partition.on_leadership(1, leadership())
        return partition

    def append(self, partition: Any, value: bytes = b"v", **more: Any) -> int:
        token = next(self.tokens)
        key = partition_key(partition.topic_id, 0)
        entry = TOKEN.pack(token) + APPEND_CONSTANT.pack(1, 0, 1000, key, 0)
        entry = memoryview(bytearray(entry + batch_of(value, **more)))
        self.appender.on_append(self.peer, entry, 0, len(entry))
        return token

    def finish_job(self, fault: OSError | None = None) -> None:
        fds, on_done = self.jobs.pop(0)
        for fd in fds:
            os.close(fd)
        on_done(fault)

    def answered(self) -> list[tuple[int, int, int]]:
        answers, self.peer.answers = self.peer.answers, []
        return answers


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    while made.jobs:
        made.finish_job()
    for partition in made.store.partitions.values():
        partition.log.close(clean=False)
    made.store.log_directory.close()


FSYNC = {"shmbroker_ack_durability": "fsync"}


def test_ack_and_readers_wait_for_the_disk(worker: Worker) -> None:
    partition = worker.open("t", **FSYNC)
    token = worker.append(partition)
    worker.appender.acks.group_commit.start()
    assert worker.answered() == []
    assert (partition.high_watermark, partition.log.log_end_offset) == (0, 1)
    worker.appender.appended.clear()
    worker.finish_job()
    assert worker.answered() == [(token, NONE, 0)]
    assert partition.high_watermark == 1
    assert worker.appender.acks.moved == {partition}


def test_one_job_serves_all_partitions_and_all_that_arrived_meanwhile(worker: Worker) -> None:
    one, two = worker.open("one", **FSYNC), worker.open("two", **FSYNC)
    first = [worker.append(one), worker.append(two)]
    worker.appender.acks.group_commit.start()
    later = [worker.append(one), worker.append(two), worker.append(one)]
    worker.appender.acks.group_commit.start()
    assert len(worker.jobs) == 1
    worker.finish_job()
    assert [row[0] for row in worker.answered()] == first
    assert (one.high_watermark, two.high_watermark) == (1, 1)
    worker.appender.acks.group_commit.start()
    worker.finish_job()
    assert worker.answered() == [(later[0], 0, 1), (later[1], 0, 1), (later[2], 0, 2)]
    worker.appender.acks.group_commit.start()
    assert worker.jobs == []


def test_topics_of_the_page_cache_do_not_wait(worker: Worker) -> None:
    partition = worker.open("t")
    token = worker.append(partition)
    assert worker.answered() == [(token, NONE, 0)]
    worker.appender.acks.group_commit.start()
    assert worker.jobs == []
    assert partition.high_watermark == 1


def test_flush_messages_has_the_ack_wait_that_reaches_it(worker: Worker) -> None:
    partition = worker.open("t", flush_messages="3")
    tokens = [worker.append(partition) for _ in range(3)]
    assert [row[0] for row in worker.answered()] == tokens[:2]
    worker.appender.acks.group_commit.start()
    worker.finish_job()
    assert [row[0] for row in worker.answered()] == tokens[2:]
    worker.append(partition)
    assert len(worker.answered()) == 1


def test_duplicate_waits_for_what_it_repeats(worker: Worker) -> None:
    partition = worker.open("t", **FSYNC)
    again = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = worker.append(partition, **again)
    worker.appender.acks.group_commit.start()
    second = worker.append(partition, **again)
    assert worker.answered() == []
    worker.finish_job()
    worker.appender.acks.group_commit.start()
    worker.finish_job()
    assert worker.answered() == [(first, 0, 0), (second, 0, 0)]
    third = worker.append(partition, **again)
    assert worker.answered() == [(third, 0, 0)]


def test_failed_sync_takes_the_log_directory_offline_for_good(worker: Worker) -> None:
    partition, other = worker.open("t", **FSYNC), worker.open("other")
    token = worker.append(partition)
    worker.appender.acks.group_commit.start()
    waiting = worker.append(partition)
    worker.finish_job(OSError(5, "Input/output error"))
    assert worker.answered() == [(token, KAFKA_STORAGE_ERROR, -1)]
    assert partition.high_watermark == 0
    worker.appender.acks.group_commit.start()
    assert worker.jobs == []
    assert worker.answered() == [(waiting, KAFKA_STORAGE_ERROR, -1)]
    for each in (partition, other):
        each.on_leadership(1, leadership())
        token = worker.append(each)
        assert worker.answered() == [(token, KAFKA_STORAGE_ERROR, -1)]
    with pytest.raises(StorageFault, match="offline"):
        worker.open("new")


def test_flush_ms_is_kept_by_the_upkeep(worker: Worker) -> None:
    partition = worker.open("t", flush_ms="5000")
    worker.upkeep.run(NOW_MS)
    worker.append(partition)
    worker.steady_ms = 4000
    worker.upkeep.run(NOW_MS + 4000)
    assert worker.jobs == []
    worker.steady_ms = 5000
    worker.upkeep.run(NOW_MS + 5000)
    worker.finish_job()
    assert partition.log.recovery_point == 1


def test_dead_network_worker_is_not_answered(worker: Worker) -> None:
    partition = worker.open("t", **FSYNC)
    worker.append(partition)
    worker.appender.acks.group_commit.drop_peer(worker.peer)
    worker.appender.acks.group_commit.start()
    assert worker.jobs == [] and worker.answered() == []


def test_what_is_wanted_without_an_ack_is_tried_again_when_the_disk_was_full(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker, records of a group: readers and coordinators wait for the high watermark."""
    partition = worker.open("t", **FSYNC)
    worker.append(partition)
    commit = worker.appender.acks.group_commit
    commit.waiting.clear()
    commit.want(partition)

    def is_full() -> Any:
        raise StorageFault("no room")

    with monkeypatch.context() as full:
        full.setattr(partition_store, "flush_targets", lambda log: is_full())
        commit.start()
        commit.start()
    assert worker.jobs == []
    commit.start()
    worker.finish_job()
    assert partition.high_watermark == 1
    commit.start()
    assert worker.jobs == []


def test_what_is_wanted_of_a_disk_that_has_failed_is_left(worker: Worker) -> None:
    partition = worker.open("t", **FSYNC)
    worker.append(partition)
    commit = worker.appender.acks.group_commit
    commit.start()
    worker.finish_job(OSError(5, "EIO"))
    commit.want(partition)
    commit.start()
    assert not commit.wanted


def test_what_was_wanted_of_a_partition_that_is_gone_fails_no_other_job(worker: Worker) -> None:
    moved, other = worker.open("moved", **FSYNC), worker.open("other", **FSYNC)
    worker.append(moved)
    commit = worker.appender.acks.group_commit
    commit.waiting.clear()
    commit.want(moved)
    worker.store.delete(moved)
    commit.start()
    token = worker.append(other)
    commit.start()
    worker.finish_job()
    assert worker.answered() == [(token, NONE, 0)]


def test_what_can_not_be_flushed_fails_no_ack_of_another_partition_for_long(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = worker.open("broken", **FSYNC), worker.open("other", **FSYNC)
    worker.append(broken)
    commit = worker.appender.acks.group_commit
    commit.waiting.clear()
    commit.want(broken)

    def fail(log: Any) -> Any:
        if log is broken.log:
            raise StorageFault("no such file")
        return flush_targets(log)

    with monkeypatch.context() as failing:
        failing.setattr(partition_store, "flush_targets", fail)
        commit.start()
        for _ in range(3):
            token = worker.append(other)
            commit.start()
            worker.finish_job()
            assert worker.answered()[0][:2] == (token, NONE)
    worker.append(other)
    commit.start()
    worker.finish_job()
    assert broken.high_watermark == 1 and not worker.answered()
    commit.start()
    worker.finish_job()
    assert len(worker.answered()) == 1
