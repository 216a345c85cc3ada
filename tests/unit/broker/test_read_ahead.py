"""What a client that reads on is told: what READs of the next offsets would be answered with."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker import read_ahead
from shmbroker.broker.read import Reader
from shmbroker.broker.read_ahead import ReadAhead
from shmbroker.broker.read_lookup import Lookup
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    READ_AHEAD,
    READ_AHEAD_HEAD,
    READ_AHEAD_ROW,
    READ_COMMITTED,
    READ_DONE,
    READ_DONE_HEAD,
    READ_FLAG_AHEAD,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.log import residency
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.residency import ColdBytes
from shmbroker.purgatory import Purgatory
from shmbroker.replica.partition import Partitions
from tests.support.acknowledged_load import batch_now

KEY = partition_key(bytes(16), 0)
BATCHES = 60
VALUE = bytes(3000)
LIMIT = 10_000
"""Three batches."""


class Side:
    """A partition of BATCHES batches, a record each, and a network worker that reads it."""

    def __init__(self, directory: Path, **settings: str) -> None:
        config = LogConfig({"segment.bytes": str(100_000)} | settings)
        self.log = PartitionLog.open(
            str(directory / "t-0"), config, file_ids=itertools.count(1), now_ms=1
        )
        for _ in range(BATCHES):
            self.log.append(batch_now(VALUE), 0, 1, 0, 1)
        self.partition: Any = SimpleNamespace(
            key=KEY,
            is_leader=True,
            leader_epoch=0,
            high_watermark=BATCHES,
            last_stable_offset=BATCHES,
            log=self.log,
        )
        self.slot = 3
        self.incarnation = 1
        self.writer = SimpleNamespace(payload_bytes_max=1 << 20)
        self.has_room = True
        self.sent: list[tuple[int, bytes]] = []
        self.reader = Reader(
            Lookup(Partitions({KEY: self.partition}), lambda: 0),
            Purgatory(),
            lambda: 0,
            lambda peer, segment: None,
        )
        self.words = memoryview(bytearray(16)).cast("Q")
        self.ahead = ReadAhead(self.reader, self.words, 1)

    def send(self, operation: int, payload: bytes) -> None:
        self.sent.append((operation, payload))

    def try_send(self, operation: int, payload: bytes) -> bool:
        if self.has_room:
            self.send(operation, payload)
        return self.has_room

    def read(
        self,
        offset: int,
        flags: int = READ_FLAG_AHEAD,
        isolation: int = 0,
        max_bytes: int = LIMIT,
        min_bytes: int = 1,
        last_fetched_epoch: int = -1,
        max_wait_ms: int = 0,
    ) -> tuple[int, int, int]:
        """File, position, length of the slice that is answered at once."""
        head = READ_HEAD.pack(7, max_wait_ms, min_bytes, 1 << 20, isolation, flags, 1, 0)
        row = READ_PARTITION.pack(KEY, max_bytes, -1, last_fetched_epoch, offset, -1, -1)
        data = memoryview(head + row)
        self.reader.on_read(self, data, 0)  # type: ignore[arg-type]
        operation, payload = self.sent.pop()
        assert operation == READ_DONE
        found = READ_SLICE.unpack_from(payload, READ_DONE_HEAD.size)
        return found[6], found[7], found[2]

    def told(self) -> list[tuple[int, int, int, int]]:
        """What it is told: offset, file, position, length of each slice."""
        if self.ahead.noted:
            self.ahead.run()
        if not self.sent:
            return []
        operation, payload = self.sent.pop()
        assert operation == READ_AHEAD
        token, ends, file_id, high, stable, start = READ_AHEAD_HEAD.unpack_from(payload)
        assert (token, ends, high, stable, start) == (
            7, self.words[1], self.partition.high_watermark, self.partition.last_stable_offset,
            self.log.log_start_offset,
        )  # fmt: skip
        rows = list(READ_AHEAD_ROW.iter_unpack(payload[READ_AHEAD_HEAD.size :]))
        return [(offset, file_id, position, length) for offset, position, length, _ in rows]


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    made = Side(tmp_path)
    yield made
    made.log.close(clean=True)


def test_each_slice_is_what_a_read_of_its_offset_has(side: Side) -> None:
    """From one end of the log to the other, whatever was told."""
    offset, told_slices = 0, 0
    while offset < BATCHES:
        _, _, length = side.read(offset)
        offset += length // (side.log.segments[0].size // 32)
        for told_offset, *found in side.told():
            assert told_offset == offset
            assert side.read(offset, flags=0) == tuple(found)
            offset += found[2] // (side.log.segments[0].size // 32)
            told_slices += 1
    assert told_slices > 10 and len(side.log.segments) == 2


def test_it_ends_with_the_segment_and_before_the_last_slice(side: Side) -> None:
    side.read(0)
    first = side.told()
    assert len(first) == read_ahead.AHEAD_SLICES
    assert {file_id for _, file_id, _, _ in first} == {side.log.segments[0].file_id}
    side.read(27)  # 30 and 31 are the segment's last
    assert [offset for offset, *_ in side.told()] == [30]
    side.read(51)
    assert [offset for offset, *_ in side.told()] == [54]  # later appends would add to 57's
    side.read(57)
    assert side.told() == []


def test_so_many_bytes_are_told(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", LIMIT)
    side.read(0)
    assert len(side.told()) == 2
    assert (side.reader.served, len(side.reader.bytes_of)) == (1 + 2, 1)


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_nothing_beyond_what_the_reader_may_have(side: Side, isolation: int) -> None:
    side.partition.high_watermark = 20
    side.partition.last_stable_offset = 10
    side.read(0, isolation=isolation)
    end = 10 if isolation == READ_COMMITTED else 20
    told = side.told()
    assert [offset for offset, *_ in told] == list(range(3, end - 3, 3))


def test_bytes_for_which_no_whole_batch_is_left_count(side: Side) -> None:
    side.read(0, min_bytes=LIMIT)
    told = side.told()
    assert len(told) > 1
    for offset, *found in told:
        assert side.read(offset, min_bytes=LIMIT, max_wait_ms=500) == tuple(found)


def test_who_is_told_nothing(side: Side) -> None:
    side.read(0, flags=0)
    assert not side.ahead.noted  # it has not asked for that
    side.read(57)
    assert not side.ahead.noted  # it has read all
    side.read(0, min_bytes=LIMIT + 1)
    assert side.told() == []  # a READ with so many bytes would wait
    side.read(0)
    side.partition.is_leader = False
    assert side.told() == []
    side.partition.is_leader = True
    side.read(0)
    side.incarnation = 0
    assert side.told() == []  # it is dead
    side.incarnation = 1
    side.read(0)
    side.has_room = False
    assert side.told() == [] and side.reader.served == 6  # READs alone


def test_readers_of_committed_records_are_told_nothing_where_some_were_aborted(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    for isolation in (READ_COMMITTED, 0):
        side.read(0, isolation=isolation)
        with monkeypatch.context() as patch:
            patch.setattr(side.log, "aborted", [object()])
            assert (side.told() == []) is (isolation == READ_COMMITTED)


def test_the_last_read_of_a_reader_counts(side: Side) -> None:
    side.read(0)
    side.read(12)
    assert len(side.ahead.noted) == 1
    assert side.told()[0][0] == 15


def test_nothing_that_was_deleted_meanwhile(side: Side) -> None:
    for start, count in ((3, read_ahead.AHEAD_SLICES), (4, 0), (40, 0)):
        side.read(0)
        side.log.log_start_offset = side.log.local_start_offset = start
        assert len(side.told()) == count
        side.log.log_start_offset = side.log.local_start_offset = 0


def test_a_client_that_has_read_an_older_epoch_is_told_nothing(side: Side) -> None:
    """What follows may diverge from what it has: only a READ compares that."""
    side.log.leader_epochs.assign(0, 0)
    side.log.leader_epochs.assign(1, 30)
    for last_fetched_epoch, is_told in ((-1, True), (0, False), (1, True)):
        side.read(33 if last_fetched_epoch else 0, last_fetched_epoch=last_fetched_epoch)
        assert bool(side.told()) is is_told


def test_what_was_told_holds_until_it_is_ended(side: Side) -> None:
    assert list(side.words) == [0, 1]
    side.ahead.ends()
    assert list(side.words) == [0, 2]
    ReadAhead(side.reader, side.words, 1)  # the process after it
    assert list(side.words) == [0, 3]


def test_a_reader_is_told_what_the_disk_has_at_hand_and_others_may_wait_for_it_again(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_wait = []

    def cold(*_arguments: object) -> None:
        may_wait.append(residency._may_wait)
        raise ColdBytes

    side.read(0)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "read", cold)
        assert side.told() == []
    assert (may_wait, residency._may_wait) == ([False], True)
    side.read(0)
    assert side.told()


@pytest.mark.parametrize(("beyond", "is_told"), [(0, True), (1, False)])
def test_what_was_not_checked_yet_is_not_told(side: Side, beyond: int, is_told: bool) -> None:
    _, position, length = side.read(0)
    side.log.segments[0].unjudged_bytes = position + length + beyond
    assert bool(side.told()) is is_told


def test_bytes_that_are_told_count_as_read(side: Side) -> None:
    _, _, length = side.read(0)
    told = sum(length for *_, length in side.told())
    assert list(side.reader.bytes_of.values()) == [length + told]


def test_so_many_reads_are_noted(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "NOTED_MAX", 2)
    for slot in range(3):
        side.slot = slot
        side.read(0)
    assert [slot for slot, _ in side.ahead.noted] == [0, 1]
