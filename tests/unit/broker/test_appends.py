"""APPENDs at a leader: which are taken, and what their answers tell."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.broker.append_runs import AppendRuns
from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import APPEND, APPEND_HEAD, APPENDED_HEAD
from shmbroker.kernels import native
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import delete_records
from shmbroker.shm.doorbell import Doorbell, make_eventfd
from shmbroker.shm.words import words_of
from shmbroker.wire import error_codes as e
from tests.support.family_memory import FarEnd
from tests.support.raw_client import batch_of
from tests.unit.broker.test_group_commit import NOW_MS, Topic, Worker, worker

__all__ = ["worker"]

ACKS_ALL = -1


def batch(sequence: int) -> bytes:
    return batch_of(b"v", timestamp=NOW_MS, producer_id=7, producer_epoch=0, base_sequence=sequence)


def appended(worker: Worker, partition: Any, content: bytes, acks: int = ACKS_ALL) -> int:
    """The error of an APPEND."""
    head = APPEND_HEAD.pack(1, acks, 0, 1000, partition_key(partition.topic_id, 0), 0)
    entry = memoryview(bytearray(head + content))
    worker.appender.on_append(worker.peer, entry, 0, len(entry))
    ((_, error, _),) = worker.answered()
    return error


def refuse_all(*_: object) -> int:
    raise StorageFault("no space left on device")


def test_a_batch_from_before_a_stop_is_answered_as_it_was(worker: Worker) -> None:
    """Its ack was lost, or waited for replicas that stopped first."""
    partition = worker.open("t")
    for sequence in range(4):
        assert appended(worker, partition, batch(sequence)) == 0
    producers = partition.log.producers
    del producers.producers[7].batches[:-1]
    assert appended(worker, partition, batch(2)) == e.OUT_OF_ORDER_SEQUENCE_NUMBER
    producers.knows_last_only = True  # as a start finds it
    assert [appended(worker, partition, batch(sequence)) for sequence in (2, 0, 3)] == [0, 0, 0]
    assert partition.log.log_end_offset == 4


@pytest.mark.parametrize(
    ("of", "name", "refusing", "error"),
    [
        ("partition", "is_under_min_in_sync", True, e.NOT_ENOUGH_REPLICAS),
        ("partition", "is_leader", False, e.NOT_LEADER_OR_FOLLOWER),
        ("appender", "is_disk_low", True, e.KAFKA_STORAGE_ERROR),
        ("log", "append", refuse_all, e.KAFKA_STORAGE_ERROR),
    ],
)
@pytest.mark.parametrize("stored", [0, 1])
def test_batches_behind_a_refused_one_are_refused_until_it_comes_again(
    worker: Worker, of: str, name: str, refusing: Any, error: int, stored: int
) -> None:
    """They were under way behind it: what is taken of a producer stays in its order."""
    partition = worker.open("t")
    for sequence in range(stored):
        assert appended(worker, partition, batch(sequence)) == e.NONE
    where = {"partition": partition, "appender": worker.appender, "log": PartitionLog}[of]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(where, name, refusing)
        assert appended(worker, partition, batch(stored)) == error
    assert appended(worker, partition, batch(stored + 1)) == error
    assert appended(worker, partition, batch(stored + 2)) == error
    assert partition.log.log_end_offset == stored
    for sequence in range(stored, stored + 3):
        assert appended(worker, partition, batch(sequence)) == e.NONE


@pytest.mark.parametrize(("is_internal", "error"), [(False, e.KAFKA_STORAGE_ERROR), (True, e.NONE)])
def test_a_disk_that_is_nearly_full_takes_only_what_is_internal(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, is_internal: bool, error: int
) -> None:
    monkeypatch.setattr(Topic, "is_internal", is_internal)
    partition = worker.open("t")
    worker.appender.is_disk_low = True
    assert appended(worker, partition, batch(0)) == error


def test_records_from_the_future_are_refused_with_a_line_on_the_clock(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that boots in 1970 refuses what everybody sends, and clients don't say why."""
    partition = worker.open("t")
    ahead = batch_of(b"v", timestamp=NOW_MS + 7_200_000)
    assert appended(worker, partition, ahead) == e.INVALID_TIMESTAMP
    assert "records of t-0 are refused, as their timestamps are 2.0 h ahead" in caplog.text
    assert appended(worker, partition, batch_of(b"v", timestamp=NOW_MS)) == e.NONE
    assert len(caplog.records) == 1


@pytest.fixture
def far() -> Iterator[FarEnd]:
    """The network worker, with real rings."""
    word, eventfd = memoryview(bytearray(8)), make_eventfd()
    yield FarEnd(1, "network-worker", 1, Doorbell(eventfd, words_of(word), 0))
    os.close(eventfd)


@pytest.mark.parametrize("way", ["ring", "backlog", "kernel"])
def test_the_answer_tells_where_the_log_begins(worker: Worker, far: FarEnd, way: str) -> None:
    if way == "kernel" and native is None:
        pytest.skip("without the compiled kernels")
    partition = worker.open("t")
    for _ in range(3):
        worker.append(partition)
    delete_records(partition.log, 2, partition.high_watermark)
    peer = far.peer
    head = APPEND_HEAD.pack(7, 1, 0, 1000, partition_key(partition.topic_id, 0), 0)
    peer.writer.claim(1, 0)  # who has claimed once knows how much room there is
    far.send(APPEND, head + batch_of(b"v"))
    assert peer.reader.poll()
    if way == "kernel":
        assert AppendRuns(worker.appender).take_plain(peer, 1, 1 << 20) == 1
    else:
        _, index, length = peer.reader.next()
        if way == "backlog":
            peer.backlog.append((APPEND, b""))
        worker.appender.on_append(peer, peer.reader.data, index, length)
    peer.resume()
    peer.publish()
    token, error, _, _, base_offset, _, log_start = APPENDED_HEAD.unpack(far.taken()[-1][1])
    assert (token, error, base_offset, log_start) == (7, e.NONE, 3, 2)
