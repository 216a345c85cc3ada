"""READ with isolation level read_committed: how far, when it wakes, and what it is told of aborted
transactions."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import describe_producers, list_offsets
from shmbroker.broker import read_lookup
from shmbroker.broker.read import Reader
from shmbroker.broker.read_lookup import Lookup
from shmbroker.broker.tier_port import NoTier
from shmbroker.ipc.operation_layout import (
    READ_ABORTED,
    READ_COMMITTED,
    READ_DONE_HEAD,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.log.places import locate
from shmbroker.log.retiring import delete_segments_before
from shmbroker.purgatory import Purgatory
from shmbroker.records.batch import encode_batch
from shmbroker.records.end_marker import EndMarker
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR
from tests.support.family_memory import VirtualClock
from tests.support.steps import finish
from tests.unit.broker.test_group_commit import NOW_MS, Worker


class Client:
    slot = 2

    def __init__(self) -> None:
        self.writer = SimpleNamespace(payload_bytes_max=1 << 19)
        self.sent: list[bytes] = []

    def send(self, _operation: int, payload: bytes) -> None:
        self.sent.append(payload)

    def take(self) -> tuple[list[dict[str, int]], list[tuple[int, int, int]]]:
        """(slices, aborted transactions) of the one answer that came."""
        (payload,) = self.sent
        self.sent.clear()
        _, count, aborted_count = READ_DONE_HEAD.unpack_from(payload)
        at = READ_DONE_HEAD.size
        slices = []
        for _ in range(count):
            fields = READ_SLICE.unpack_from(payload, at)
            names = ("error", "which", "length", "high_watermark", "stable")
            slices.append(dict(zip(names, fields, strict=False)))
            at += READ_SLICE.size
        rows = payload[at : at + aborted_count * READ_ABORTED.size]
        return slices, list(READ_ABORTED.iter_unpack(rows))


class Leader(Worker):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.partition = self.open("t")
        self.client = Client()
        self.purgatory = Purgatory()
        self.reader = Reader(
            Lookup(self.store.partitions, lambda: NOW_MS),
            self.purgatory,
            lambda: NOW_MS,
            lambda peer, segment: None,
        )
        self.sequences: dict[int, int] = {}

    def write(self, producer_id: int, value: bytes = b"v" * 20, partition: Any = None) -> int:
        """A transactional batch; its size."""
        partition = partition or self.partition
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        batch = encode_batch(
            [(NOW_MS, None, value, ())],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        offset = partition.log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS)
        partition.producers.update(producer_id, 0, sequence, 0, offset, NOW_MS)
        partition.producers.begin(producer_id, offset)
        partition.advance_high_watermark()
        return len(batch)

    def end(self, producer_id: int, *, is_commit: bool, partition: Any = None) -> None:
        marker = EndMarker(producer_id, 0, 0, is_commit)
        self.append_marker(partition or self.partition, marker, 1)

    def ask(
        self, offset: int = 0, *, isolation: int = READ_COMMITTED, wait_ms: int = 0,
        max_bytes: int = 1 << 20, partitions: Any = (), min_bytes: int = 1,
    ) -> None:  # fmt: skip
        partitions = partitions or [self.partition]
        payload = READ_HEAD.pack(5, wait_ms, min_bytes, 1 << 20, isolation, 0, len(partitions), 0)
        for partition in partitions:
            payload += READ_PARTITION.pack(partition.key, max_bytes, -1, -1, offset, -1, -1)
        self.reader.on_read(self.client, memoryview(payload), 0)


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


def test_ends_before_the_first_open_transaction(leader):
    size = leader.write(1)
    leader.end(1, is_commit=True)
    leader.write(2)
    leader.ask()
    ((found,), aborted) = leader.client.take()
    assert (found["high_watermark"], found["stable"]) == (3, 2)
    assert found["length"] == size + 78  # and its marker
    assert aborted == []
    leader.ask(isolation=0)
    ((found,), _) = leader.client.take()
    assert (found["length"], found["stable"]) == (2 * size + 78, 2)


def test_waits_at_the_last_stable_offset_for_the_marker(leader):
    leader.write(1)
    leader.ask(wait_ms=500)
    leader.write(1)
    leader.purgatory.check(leader.partition.key)
    assert leader.client.sent == []
    leader.end(1, is_commit=True)
    leader.purgatory.check(leader.partition.key)
    ((found,), _) = leader.client.take()
    assert (found["stable"], found["length"] > 0) == (3, True)


def test_offset_between_stable_and_high_watermark_is_no_error(leader):
    leader.write(1)
    leader.write(1)
    leader.ask(offset=1)
    ((found,), _) = leader.client.take()
    assert (found["error"], found["length"], found["stable"]) == (0, 0, 0)


def test_aborted_transactions_are_those_of_the_slice(leader):
    size = leader.write(1)
    leader.end(1, is_commit=False)
    leader.write(2)
    leader.end(2, is_commit=False)
    leader.ask(max_bytes=size + 78)
    assert leader.client.take()[1] == [(0, 1, 0)]
    leader.ask()
    assert leader.client.take()[1] == [(0, 1, 0), (0, 2, 2)]
    leader.ask(offset=2)
    assert leader.client.take()[1] == [(0, 2, 2)]
    leader.ask(isolation=0)
    assert leader.client.take()[1] == []


def test_marker_in_a_later_segment_is_found(leader):
    leader.write(1)
    leader.write(2)
    leader.partition.log.roll(NOW_MS)
    leader.write(1)
    leader.end(2, is_commit=True)
    leader.partition.log.roll(NOW_MS)
    leader.end(1, is_commit=False)
    leader.ask()
    assert leader.client.take()[1] == [(0, 1, 0)]
    leader.ask(offset=2)
    assert leader.client.take()[1] == [(0, 1, 0)]
    leader.ask(offset=4)
    assert leader.client.take()[1] == [(0, 1, 0)]


def test_transaction_that_began_before_a_deleted_segment_is_still_told(leader):
    leader.write(1)
    leader.partition.log.roll(NOW_MS)
    leader.write(1)
    leader.end(1, is_commit=False)
    delete_segments_before(leader.partition.log, 1)
    leader.ask(offset=1)
    assert leader.client.take()[1] == [(0, 1, 0)]


def test_delete_records_past_an_open_transaction_moves_the_end(leader):
    leader.write(1)
    leader.write(1)
    leader.store.delete_records(leader.partition, -1)
    assert leader.partition.last_stable_offset == 2
    leader.write(1)
    assert leader.partition.last_stable_offset == 2


def test_too_many_for_an_answer_make_it_shorter(leader, monkeypatch):
    monkeypatch.setattr(read_lookup, "ABORTED_MAX", 5)
    for producer_id in range(1, 13):
        leader.write(producer_id)
    for producer_id in range(1, 13):
        leader.end(producer_id, is_commit=False)
    offset, seen = 0, set()
    for _ in range(30):
        leader.ask(offset=offset)
        ((found,), aborted) = leader.client.take()
        if not found["length"]:
            break
        assert len(aborted) <= 5
        log = leader.partition.log
        segment, position = locate(log, offset)
        end = segment.end_before(position + found["length"])
        seen |= {producer_id for _, producer_id, _ in aborted}
        # Whoever's data is in it is told.
        for _, header in segment.headers(position, position + found["length"]):
            if header[0] < 12:
                assert header[9] in {row[1] for row in aborted}
        offset = end
    assert offset == 24 and seen == set(range(1, 13))


def test_partitions_share_the_room_for_aborted_transactions(leader, monkeypatch):
    monkeypatch.setattr(read_lookup, "ABORTED_MAX", 2)
    other = leader.open("u")
    for partition in (leader.partition, other):
        for producer_id in (1, 2):
            leader.write(producer_id, partition=partition)
            leader.end(producer_id, is_commit=False, partition=partition)
    leader.ask(partitions=[leader.partition, other], wait_ms=500, min_bytes=1 << 20)
    slices, aborted = leader.client.take()
    assert [found["length"] > 0 for found in slices] == [True, False]
    assert [row[0] for row in aborted] == [0, 0]


@pytest.mark.parametrize(
    ("timestamp", "isolation", "offset"), [(-1, 0, 3), (-1, 1, 2), (-2, 1, 0), (NOW_MS, 1, 0)]
)
def test_list_offsets_ends_where_the_reader_does(leader, timestamp, isolation, offset):
    leader.write(1)
    leader.end(1, is_commit=True)
    leader.write(2)
    assert list_one(leader, timestamp, isolation) == offset


def test_list_offsets_finds_no_record_that_is_undecided(leader):
    leader.write(1)
    assert list_one(leader, NOW_MS, 1) == -1
    assert list_one(leader, NOW_MS, 0) == 0
    assert list_one(leader, -3, 1) == -1


def list_one(leader: Leader, timestamp: int, isolation: int) -> int:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {"isolation_level": isolation, "topics": [{"name": "t", "partitions": [asked]}]}
    answer = finish(list_offsets.answer(broker_of(leader), SimpleNamespace(api_version=7), body))
    offset: int = answer["topics"][0]["partitions"][0]["offset"]
    return offset


def test_describe_producers_tells_where_a_transaction_began(leader):
    leader.write(1)
    leader.end(1, is_commit=True)
    leader.write(1)
    (row,) = producers_of(leader)["active_producers"]
    assert (row["current_txn_start_offset"], row["coordinator_epoch"]) == (2, 0)


def test_followers_tell_of_their_producers_and_lost_disks_do_not(leader):
    leader.write(1)
    leader.partition.is_leader = False
    assert len(producers_of(leader)["active_producers"]) == 1
    leader.partition.is_offline = True
    assert producers_of(leader)["error_code"] == KAFKA_STORAGE_ERROR


def producers_of(leader: Leader) -> Any:
    """The row of the partition in an answer to DescribeProducers."""
    body = {"topics": [{"name": "t", "partition_indexes": [0]}]}
    answer = finish(describe_producers.answer(broker_of(leader), SimpleNamespace(), body))
    return answer["topics"][0]["partitions"][0]


def broker_of(leader: Leader) -> Any:
    topic = SimpleNamespace(topic_id=leader.partition.topic_id, partitions=[None])
    image = SimpleNamespace(topics_by_name={"t": topic})
    return SimpleNamespace(
        image=image, partitions=leader.store.partitions, tiering=NoTier(), clock=VirtualClock()
    )
