"""What a READ is answered with: which partitions, and no more bytes than a ring entry takes."""

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker import read_lookup
from shmbroker.broker.read import INLINE_BYTES, INLINE_SLICE_BYTES, Reader
from shmbroker.broker.read_lookup import (
    COLD_WAIT_MS,
    MISSES_MAX,
    READS_MAX,
    Lookup,
    ReadRefusal,
)
from shmbroker.errors import StorageFault
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    READ_DONE,
    READ_DONE_HEAD,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.ipc.passed_files import OpenFile
from shmbroker.log import residency
from shmbroker.log.leader_epochs import LeaderEpochs
from shmbroker.purgatory import Purgatory
from shmbroker.wire import error_codes
from tests.support.reading import led_partitions

BATCH = b"b" * 100
ENTRY_BYTES_MAX = (2 << 20) // 4 - 8
"""Of the ring between an I/O worker and a network worker."""


class Log:
    """Of one batch, at offset 0."""

    def __init__(self) -> None:
        self.log_start_offset = self.local_start_offset = 0
        self.log_end_offset = 1
        self.segment = self.active = SimpleNamespace(
            unjudged_bytes=0, map=BATCH, file_id=77, size=len(BATCH)
        )

    def read(self, offset: int, max_bytes: int, end: int, min_one_batch: bool) -> Any:
        return self.segment, 0, len(BATCH)


class Peer:
    def __init__(self) -> None:
        self.slot = 3
        self.writer = SimpleNamespace(payload_bytes_max=ENTRY_BYTES_MAX)
        self.sent: list[bytes] = []

    def send(self, operation: int, payload: bytes) -> None:
        assert operation == READ_DONE
        assert len(payload) <= self.writer.payload_bytes_max
        self.sent.append(payload)

    def slices(self) -> dict[int, tuple[int, ...]]:
        """By place among the partitions asked."""
        (payload,) = self.sent
        count = READ_DONE_HEAD.unpack_from(payload)[1]
        body = payload[READ_DONE_HEAD.size : READ_DONE_HEAD.size + count * READ_SLICE.size]
        return {found[1]: found for found in READ_SLICE.iter_unpack(body)}


class Reading:
    def __init__(self, count: int) -> None:
        self.keys, self.partitions = led_partitions(count, Log, 1)
        self.passed: list[Any] = []
        self.now_ms = 0
        self.peer = Peer()
        self.reader = Reader(
            Lookup(self.partitions, lambda: self.now_ms),
            Purgatory(),
            lambda: self.now_ms,
            lambda peer, segment: self.passed.append(segment),
        )

    def read(self, *asked: tuple[int, int, int], offset: int = 1) -> dict[int, tuple[int, ...]]:
        """asked: partition, known high watermark, known log start offset."""
        self.begin(*asked, offset=offset)
        return self.peer.slices()

    def begin(
        self,
        *asked: tuple[int, int, int],
        offset: int = 1,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
    ) -> None:
        entries = [
            READ_PARTITION.pack(partition_key(bytes(16), index), 1000, -1, -1, offset, *known)
            for index, *known in asked
        ]
        head = READ_HEAD.pack(9, max_wait_ms, min_bytes, 1 << 30, 0, 0, len(entries), 0)
        data = memoryview(head + b"".join(entries))
        self.reader.on_read(self.peer, data, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [(-1, -1), (0, 0), (1, 7), (2, 0)])
def test_what_the_client_does_not_know_is_told(known: tuple[int, int]) -> None:
    assert list(Reading(1).read((0, *known))) == [0]


def test_what_the_client_knows_is_left_out() -> None:
    reading = Reading(3)
    assert list(reading.read((0, 1, 0), (1, 0, 0), (2, 1, 0))) == [1]


def test_records_and_errors_are_told_whatever_is_known() -> None:
    reading = Reading(3)
    reading.partitions[reading.keys[1]].is_leader = False
    reading.partitions[reading.keys[2]].log.log_start_offset = 1
    found = reading.read((0, 1, 0), (1, 1, 0), (2, 1, 0), offset=0)
    assert [found[which][0] for which in range(3)] == [
        error_codes.NONE,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.OFFSET_OUT_OF_RANGE,
    ]
    assert found[0][2] == len(BATCH)


def test_a_partition_whose_file_can_not_be_passed_is_refused_and_others_are_served() -> None:
    reading = Reading(3)
    for key in reading.keys:
        reading.partitions[key].log.segment.map = None
    broken = reading.partitions[reading.keys[1]]
    faults: list[Any] = []
    fault = StorageFault("too many open files")
    reading.reader.lookup = Lookup(
        reading.partitions, lambda: 0, None, lambda *what: faults.append(what)
    )

    def pass_file(_peer: Any, segment: Any) -> None:
        if segment is broken.log.segment:
            raise fault

    reading.reader.pass_file = pass_file
    found = reading.read((0, 1, 0), (1, 1, 0), (2, 1, 0), offset=0)
    assert [(found[which][0], found[which][2]) for which in range(3)] == [
        (error_codes.NONE, len(BATCH)),
        (error_codes.KAFKA_STORAGE_ERROR, 0),
        (error_codes.NONE, len(BATCH)),
    ]
    assert faults == [(broken, fault)]
    assert broken.key not in reading.reader.bytes_of
    assert reading.reader.bytes_out == 2 * len(BATCH)


FENCED, UNKNOWN = error_codes.FENCED_LEADER_EPOCH, error_codes.UNKNOWN_LEADER_EPOCH
OUT_OF_RANGE = error_codes.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("epoch", "last_epoch", "offset", "found", "is_told_at_once"),
    [
        (-1, -1, 17, "bytes", False),
        (5, -1, 17, "bytes", False),
        (5, -1, 19, "nothing", False),  # above the high watermark
        (4, -1, 17, FENCED, True),
        (4, 7, 99, FENCED, True),
        (6, -1, 17, UNKNOWN, True),
        (6, 7, 99, UNKNOWN, True),
        (5, -1, 9, OUT_OF_RANGE, True),
        (5, -1, 21, OUT_OF_RANGE, True),
        (5, 4, 17, "bytes", False),
        (5, 4, 21, (4, 20), True),
        (5, 3, 12, (2, 15), True),
        (5, 2, 12, "bytes", False),
        (5, 2, 16, (2, 15), True),
        (5, 2, 9, OUT_OF_RANGE, True),
        (5, 7, 12, OUT_OF_RANGE, True),  # of an epoch that is to come
    ],
)
def test_a_read_is_judged_by_epochs_and_offset(
    epoch: int, last_epoch: int, offset: int, found: Any, is_told_at_once: bool
) -> None:
    """Of a log from 10 to 20, in epoch 2 up to 15 and then in 4; epoch 5 has nothing yet."""
    _, partitions = led_partitions(2, Log, 18)
    judged, other = partitions.values()
    log = judged.log
    log.log_start_offset, log.log_end_offset = 10, 20
    log.leader_epochs = LeaderEpochs("")
    log.leader_epochs.assign(2, 10)
    log.leader_epochs.assign(4, 15)
    asked = [
        (judged.key, 1000, epoch, last_epoch, offset, -1, -1),
        (other.key, 1000, 5, -1, 18, -1, -1),  # may wait
    ]
    read = SimpleNamespace(min_bytes=1, max_bytes=1000, isolation=0, cold_until_ms=0)
    (result, _), _, must_answer = Lookup(partitions, lambda: 0).look_up(read, asked)
    assert must_answer == is_told_at_once
    if isinstance(result, ReadRefusal):
        assert result == (found, judged)
    elif isinstance(result, tuple):
        assert result[4] == (None if found == "bytes" else found)
        assert bool(result[3]) == (found == "bytes")
    else:
        assert (result, found) == (judged, "nothing")


def test_a_read_that_waited_for_nothing_tells_what_else_has_changed() -> None:
    reading = Reading(3)
    reading.begin((0, 1, 0), (1, 1, 0), (2, 1, 0), max_wait_ms=10)
    assert reading.peer.sent == []
    reading.partitions[reading.keys[1]].log.log_start_offset = 1
    assert len(reading.reader.purgatory.expire(10)) == 1
    found = reading.peer.slices()
    assert list(found) == [1]
    assert found[1][3:6] == (1, 1, 1)
    assert reading.reader.waiting == {}


def test_an_append_ends_the_wait() -> None:
    reading = Reading(2)
    reading.begin((0, 1, 0), (1, 1, 0), max_wait_ms=10)
    reading.partitions[reading.keys[1]].high_watermark = 2
    assert reading.reader.purgatory.check(reading.keys[1]) == 1
    assert [(which, one[2]) for which, one in reading.peer.slices().items()] == [(1, len(BATCH))]


@pytest.mark.parametrize("count", [10, 4500, 8000])
def test_small_batches_go_along_as_far_as_the_entry_has_room(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_lookup, "READS_MAX", count)
    assert len(BATCH) <= INLINE_SLICE_BYTES
    reading = Reading(count)
    found = reading.read(*((index, -1, -1) for index in range(count)), offset=0)
    assert [found[which][2] for which in range(count)] == [len(BATCH)] * count
    in_entry = sum(1 for one in found.values() if one[6] == 0)
    assert in_entry + len(reading.passed) == count
    room = min(INLINE_BYTES, ENTRY_BYTES_MAX - READ_DONE_HEAD.size - count * READ_SLICE.size)
    assert in_entry == min(count, room // len(BATCH))


def test_one_fetch_reads_so_many_logs_and_does_not_wait_for_the_others() -> None:
    count = READS_MAX + 500
    reading = Reading(count)
    logs = [reading.partitions[key].log for key in reading.keys]
    reads: list[int] = []

    def reading_log(number: int) -> Any:
        original = logs[number].read
        return lambda *asked: (reads.append(number), original(*asked))[1]

    for number in range(count):
        logs[number].read = reading_log(number)
    entries = [READ_PARTITION.pack(key, 1000, -1, -1, 0, -1, -1) for key in reading.keys]
    head = READ_HEAD.pack(9, 5000, 1 << 20, 1 << 30, 0, 0, count, 0)  # min_bytes is never reached
    data = memoryview(head + b"".join(entries))
    reading.reader.on_read(reading.peer, data, 0)  # type: ignore[arg-type]
    found = reading.peer.slices()
    assert reads == list(range(READS_MAX))
    assert [found[which][2] > 0 for which in range(count)] == [True] * READS_MAX + [False] * 500
    assert all(found[which][0] == error_codes.NONE for which in range(count))


def cold(reading: Reading, index: int) -> Any:
    """That partition's log is on the disk alone; how to bring it in."""
    log = reading.partitions[reading.keys[index]].log

    def read(*_: Any) -> Any:
        residency.read(file.fd, 1, 0)
        return log.segment, 0, len(BATCH)

    file = OpenFile(os.memfd_create("cold"))
    os.truncate(file.fd, 1)
    log.read = read
    return log


@pytest.fixture
def page_cache(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    cache = SimpleNamespace(is_warm=False, asked=0, waited=0)

    def preadv(fd: int, buffers: Any, position: int, flags: int) -> int:
        if not cache.is_warm:
            raise BlockingIOError(errno.EAGAIN, "cold")
        return 1

    def fadvise(*_: int) -> None:
        cache.asked += 1

    def pread(*_: int) -> bytes:
        cache.waited += 1
        return b"x"

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "posix_fadvise", fadvise)
    monkeypatch.setattr(os, "pread", pread)
    return cache


@pytest.mark.parametrize("min_bytes", [0, 1])
@pytest.mark.parametrize("max_wait_ms", [0, 1, 500])
def test_cold_bytes_are_looked_at_again(
    page_cache: SimpleNamespace, max_wait_ms: int, min_bytes: int
) -> None:
    reading = Reading(1)
    cold(reading, 0)
    reading.begin((0, 1, 0), offset=0, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
    for now in range(1, 6):
        reading.now_ms = now
        reading.reader.purgatory.expire(now)
        reading.reader.retry_cold()
        assert reading.peer.sent == []
    assert page_cache.asked > 1
    page_cache.is_warm = True
    reading.now_ms = 6
    reading.reader.purgatory.expire(6)
    reading.reader.retry_cold()
    assert reading.peer.slices()[0][2] == len(BATCH)
    assert not len(reading.reader.purgatory) and not reading.reader.waiting
    reading.reader.retry_cold()
    assert not reading.reader.cold and page_cache.waited == 0


def test_bytes_that_stay_cold_are_waited_for_in_the_end(page_cache: SimpleNamespace) -> None:
    reading = Reading(1)
    cold(reading, 0)
    reading.begin((0, 1, 0), offset=0, max_wait_ms=5000)
    for now in range(1, COLD_WAIT_MS):
        reading.now_ms = now
        reading.reader.retry_cold()
    assert reading.peer.sent == []
    reading.now_ms = COLD_WAIT_MS
    reading.reader.retry_cold()
    assert reading.peer.slices()[0][2] == len(BATCH)
    assert page_cache.waited == 1


def test_what_is_warm_goes_without_what_is_cold(page_cache: SimpleNamespace) -> None:
    reading = Reading(2)
    cold(reading, 0)
    assert list(reading.read((0, 1, 0), (1, 1, 0), offset=0)) == [1]


# ── a wait for many partitions ──────────────────────────────────────────────────────────────────


class Looked(Reading):
    """Counts how many partitions are looked at."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.looked: list[int] = []
        look_up = self.reader.lookup._look_up
        self.reader.lookup._look_up = lambda read, asked, *rest: (  # type: ignore[method-assign]
            self.looked.append(len(asked)) or look_up(read, asked, *rest)
        )

    def append(self, *indexes: int) -> None:
        for index in indexes:
            partition = self.partitions[self.keys[index]]
            partition.high_watermark = partition.log.log_end_offset = 2
        self.reader.purgatory.check_together([self.keys[index] for index in indexes])


def test_an_append_has_only_its_partition_looked_at_again() -> None:
    reading = Looked(20)
    reading.begin(*[(index, 1, 0) for index in range(20)], max_wait_ms=500)
    assert (reading.looked, reading.peer.sent) == ([20], [])
    reading.append(7)
    assert reading.looked == [20, 1]
    assert {which: found[2] for which, found in reading.peer.slices().items()} == {7: len(BATCH)}
    assert not reading.reader.purgatory.watched and not reading.reader.waiting


def test_what_was_appended_together_is_answered_together() -> None:
    reading = Looked(20)
    reading.begin(*[(index, -1, -1) for index in range(20)], max_wait_ms=500)
    reading.append(7, 3)
    assert reading.looked == [20, 2]
    found = reading.peer.slices()
    assert list(found) == list(range(20))
    assert [which for which in found if found[which][2]] == [3, 7]


def test_a_check_without_news_goes_on_waiting_until_there_is_some() -> None:
    reading = Looked(20)
    reading.begin(*[(index, 1, 0) for index in range(20)], max_wait_ms=500)
    assert reading.reader.purgatory.check(reading.keys[4]) == 0
    reading.append(5)
    assert reading.looked == [20, 1, 1]
    assert list(reading.peer.slices()) == [5]


def test_one_that_goes_while_a_read_waits_is_told_at_once() -> None:
    reading = Looked(20)
    reading.begin(*[(index, 1, 0) for index in range(20)], max_wait_ms=500)
    del reading.partitions[reading.keys[4]]
    assert reading.reader.purgatory.check(reading.keys[4]) == 1
    assert reading.looked == [20, 1]
    gone = error_codes.NOT_LEADER_OR_FOLLOWER
    assert {which: found[0] for which, found in reading.peer.slices().items()} == {4: gone}


def test_all_are_looked_at_where_one_is_named_twice() -> None:
    twice = Looked(3)
    twice.begin((0, 1, 0), (1, 1, 0), (1, 1, 0), max_wait_ms=500)
    twice.append(1)
    assert twice.looked == [3, 3]
    assert list(twice.peer.slices()) == [1, 2]


def test_partitions_behind_a_full_answer_are_as_if_nothing_was_there() -> None:
    reading = Reading(3)
    reading.partitions[reading.keys[2]].log.log_start_offset = 1
    entries = [READ_PARTITION.pack(key, 1000, -1, -1, 0, -1, -1) for key in reading.keys]
    data = memoryview(READ_HEAD.pack(9, 0, 1, 1, 0, 0, 3, 0) + b"".join(entries))
    reading.reader.on_read(reading.peer, data, 0)  # type: ignore[arg-type]
    found = reading.peer.slices()
    assert [(found[which][0], found[which][2]) for which in range(3)] == [
        (0, len(BATCH)),
        (0, 0),
        (error_codes.OFFSET_OUT_OF_RANGE, 0),
    ]


def test_an_answer_is_full_when_some_partitions_have_nothing_small_enough() -> None:
    reading = Looked(40)
    tried: list[int] = []
    room = 2 * len(BATCH) + 10
    for number, partition in enumerate(reading.partitions.values()):
        log = partition.log

        def read(
            offset: int, limit: int, end: int, is_first: bool, number: int = number, log: Any = log
        ) -> Any:
            tried.append(number)
            return log.segment, 0, len(BATCH) if limit >= len(BATCH) else 0

        log.read = read
    entries = [READ_PARTITION.pack(key, 1000, -1, -1, 0, -1, -1) for key in reading.keys]
    data = memoryview(READ_HEAD.pack(9, 0, 1, room, 0, 0, 40, 0) + b"".join(entries))
    reading.reader.on_read(reading.peer, data, 0)  # type: ignore[arg-type]
    found = reading.peer.slices()
    assert [which for which in found if found[which][2]] == [0, 1]
    assert len(found) == 40 and not any(row[0] for row in found.values())
    assert tried == list(range(2 + MISSES_MAX))
