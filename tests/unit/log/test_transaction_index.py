"""`.txnindex` files and markers, as Apache Kafka 4.2.1 wrote them and as they are written here."""

import itertools
import os
import random
from pathlib import Path

import pytest

from shmbroker.errors import ProtocolFault, StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.producer_state import ProducerState, read_snapshot
from shmbroker.log.retiring import delete_local_before, delete_segments_before
from shmbroker.log.transaction_index import (
    ENTRY,
    AbortedTransaction,
    AbortedTransactions,
    encode_entries,
    parse_entries,
)
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import control_batch
from shmbroker.records.batch_layout import CONTROL_COMMIT, CONTROL_LEADER_CHANGE, STAMP
from shmbroker.records.end_marker import EndMarker, encode_marker, parse_marker
from tests.support.compaction_logs import append, end_transaction, open_log
from tests.support.crash_disk import CrashDisk, lay_down

COMMIT = bytes.fromhex(
    "00000000000000080000004200000000029009f401003000000000000001a20d526602000001a20d5266020000"
    "0000000000000000ffffffff000000012000000008000000010c00000000000000"
)
ABORT = bytes.fromhex(
    "00000000000000090000004200000000028e344d07003000000000000001a20d526619000001a20d5266190000"
    "0000000000010000ffffffff000000012000000008000000000c00000000000000"
)
INDEX = bytes.fromhex(
    "0000000000000000000100000000000000050000000000000009000000000000000a"
    "00000000000000000000000000000000000a000000000000000d000000000000000b"
)
SNAPSHOT = bytes.fromhex(
    "00011bf7737f000000030000000000000000000000000003000000000000000a00000000000001a20d52665700"
    "000000ffffffffffffffff0000000000000001000000000003000000000000000c00000000000001a20d52665a"
    "00000000ffffffffffffffff00000000000000020001ffffffffffffffffffffffff00000000000001a20d536b"
    "ba00000000ffffffffffffffff"
)
ENTRIES = [AbortedTransaction(1, 5, 9, 10), AbortedTransaction(0, 10, 13, 11)]


@pytest.mark.parametrize(
    ("batch", "offset", "timestamp", "marker"),
    [
        (COMMIT, 8, 0x1A20D526602, EndMarker(0, 0, 0, True)),
        (ABORT, 9, 0x1A20D526619, EndMarker(1, 0, 0, False)),
    ],
)
def test_marker_is_kafkas(batch, offset, timestamp, marker):
    assert parse_marker(batch) == marker
    made = bytearray(encode_marker(marker, timestamp))
    STAMP.pack_into(made, 0, offset, len(made) - 12, 0)
    assert bytes(made) == batch


def test_marker_that_ends_nothing():
    assert (
        parse_marker(control_batch(CONTROL_LEADER_CHANGE, b"", timestamp=1, producer_id=1)) is None
    )
    for value in (b"\0\0\0", b"\xff\xff\0\0\0\0"):
        with pytest.raises(ProtocolFault):
            parse_marker(control_batch(CONTROL_COMMIT, value, timestamp=1, producer_id=1))
    newer = control_batch(CONTROL_COMMIT, b"\0\5\0\0\0\7more", timestamp=1, producer_id=1)
    assert parse_marker(newer) == EndMarker(1, -1, 7, True)


def test_index_and_snapshot_are_kafkas(tmp_path):
    assert parse_entries(INDEX) == ENTRIES
    assert encode_entries(ENTRIES) == INDEX
    path = tmp_path / "00000000000000000020.snapshot"
    path.write_bytes(SNAPSHOT)
    state = read_snapshot(str(path))
    assert state.encode_snapshot() == SNAPSHOT
    assert [entry.coordinator_epoch for entry in state.producers.values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (INDEX[:-1], 1),
        (INDEX + bytes(34), 2),
        (b"\0\1" + INDEX[2:], 0),
        (INDEX[:34] * 2, 1),
        (b"", 0),
        (encode_entries([AbortedTransaction(1, 9, 9, 10)]), 0),
    ],
    ids=["torn", "zeros", "version", "twice", "empty", "no records"],
)
def test_entries_up_to_the_first_that_cannot_be(data, count):
    assert len(parse_entries(data)) == count


@pytest.fixture
def three(tmp_path: Path) -> AbortedTransactions:
    """Segments at 0, 100 and 200; what began at 90 was aborted at 210."""
    made = AbortedTransactions(str(tmp_path), lambda base: [])
    made.append(0, AbortedTransaction(1, 10, 20, 21))
    made.append(0, AbortedTransaction(2, 30, 60, 61))
    made.append(100, AbortedTransaction(3, 95, 120, 90))
    made.append(200, AbortedTransaction(4, 90, 210, 211))
    made.append(200, AbortedTransaction(5, 220, 230, 231))
    return made


@pytest.mark.parametrize(
    ("start", "end", "producers"),
    [
        (0, 300, [1, 2, 3, 4, 5]),
        (0, 10, []),
        (0, 11, [1]),
        (20, 30, [1]),
        (21, 30, []),
        (61, 90, []),
        (61, 91, [4]),
        (96, 98, [3, 4]),
        (121, 122, [4]),
        (211, 220, []),
        (231, 300, []),
    ],
)
def test_find_looks_as_far_as_a_marker_may_lie(three, start, end, producers):
    assert [entry.producer_id for entry in three.find(start, end)] == producers
    again = AbortedTransactions(three.directory, lambda base: [])
    for base_offset in (0, 100, 200):
        again.found(base_offset)
    assert [entry.producer_id for entry in again.find(start, end)] == producers


def test_no_more_is_kept_in_memory_than_a_few(tmp_path):
    made = AbortedTransactions(str(tmp_path), lambda base: [])
    for base in range(0, 2000, 100):
        made.append(base, AbortedTransaction(1, base, base + 1, base + 2))
    assert len(made.find(0, 5000)) == 20
    assert len(made._contents) <= 4


def transaction(log, producer_id, *, is_commit):
    state = log.producers.producers.get(producer_id)
    sequence = state.next_sequence if state else 0
    append(log, [(1, b"k", b"v")], producer=(producer_id, 0, sequence), is_transactional=True)
    return end_transaction(log, producer_id, is_commit=is_commit)


def test_entry_that_the_disk_refuses_is_written_before_a_flush(tmp_path, monkeypatch):
    log = open_log(tmp_path / "t-0", {})
    real = os.open

    def refuse(path, *more, **options):
        if str(path).endswith(".txnindex"):
            raise OSError(28, "no space")
        return real(path, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        transaction(log, 7, is_commit=False)
        assert log.aborted.find(0, 9) == [(7, 0, 1, 2)]
        log.snapshot_producers()
        assert not log.snapshots.offsets  # a start would not walk what the index lacks
        with pytest.raises(StorageFault):
            log.flush()
        assert log.recovery_point == 0
    transaction(log, 8, is_commit=False)
    log.flush()
    written = parse_entries((tmp_path / "t-0" / f"{0:020d}.txnindex").read_bytes())
    assert written == [(7, 0, 1, 2), (8, 2, 3, 4)]


def test_index_goes_with_its_segment(tmp_path):
    log = open_log(tmp_path / "t-0", {})
    for _ in range(3):
        transaction(log, 7, is_commit=False)
        log.roll()
    names = [f"{base:020d}.txnindex" for base in (0, 2, 4)]
    assert sorted(path.name for path in tmp_path.glob("t-0/*.txnindex")) == names
    delete_segments_before(log, 2)
    assert [entry.first_offset for entry in log.aborted.find(0, 9)] == [2, 4]
    assert (tmp_path / "t-0" / (names[0] + ".deleted")).exists()
    truncate_to(log, 4)
    assert [entry.first_offset for entry in log.aborted.find(0, 9)] == [2]
    assert sorted(path.name for path in tmp_path.glob("t-0/*.txnindex")) == names[1:2]


@pytest.mark.parametrize("recovery_point", [0, 2])
def test_entries_that_a_power_cut_has_taken_are_made_again_behind_the_recovery_point(
    tmp_path, recovery_point
):
    """Though a snapshot from behind them is there."""
    log = open_log(tmp_path / "t-0", {})
    for producer_id in (7, 8):
        transaction(log, producer_id, is_commit=False)
        log.snapshot_producers()
    path = log.aborted.path(0)
    log.close(clean=False)
    if recovery_point:
        os.truncate(path, ENTRY.size)
    else:
        os.unlink(path)
    again = open_log(tmp_path / "t-0", {}, clean=False, recovery_point=recovery_point)
    assert again.aborted.find(0, 4) == [(7, 0, 1, 2), (8, 2, 3, 4)]
    again.close(clean=False)


def test_a_cut_leaves_what_is_durable_of_an_index(tmp_path):
    """A flush makes nothing durable again that lies below the recovery point."""
    disk = CrashDisk(str(tmp_path / "data"), lambda: None)
    os.makedirs(disk.root)
    with disk.recording():
        log = open_log(os.path.join(disk.root, "t-0"), {})
        transaction(log, 7, is_commit=False)
        log.snapshot_producers()
        transaction(log, 8, is_commit=False)
        log.flush()
        truncate_to(log, 2)
        assert log.recovery_point == 2
        for seed in range(10):
            _, image = disk.crash_image(random.Random(seed))
            after = tmp_path / str(seed)
            with disk.paused():
                lay_down(image, str(after))
                again = open_log(after / "t-0", {}, clean=False, recovery_point=2)
                assert again.aborted.find(0, 2) == [(7, 0, 1, 2)]
                again.close(clean=False)
        log.close(clean=False)


def test_transaction_that_began_in_the_store_alone_is_known_after_a_kill(tmp_path):
    """However old the high watermark is that the checkpoint tells."""
    config = {"remote.storage.enable": "true"}
    log = open_log(tmp_path / "t-0", config)
    append(log, [(1, b"k", b"v")] * 2, producer=(7, 0, 0), is_transactional=True)
    log.roll()
    end_transaction(log, 7, is_commit=False)
    delete_local_before(log, 2)
    found = log.aborted.find(0, 3)
    assert found == [AbortedTransaction(7, 0, 2, 3)]
    log.close(clean=False)
    again = PartitionLog.open(
        log.directory, log.config, file_ids=itertools.count(9), decided_below=0
    )
    assert again.local_start_offset == 2
    assert again.aborted.find(0, 3) == found
    again.close(clean=True)


def test_open_transaction_outlives_the_expiry_of_producers(tmp_path):
    directory = tmp_path / "t-0"
    log = open_log(directory, {})
    append(log, [(1, b"k", b"v")], producer=(7, 0, 0), is_transactional=True)
    append(log, [(1, b"k", b"v")], producer=(8, 0, 0))
    log.close(clean=True)
    now_ms = 10 * 86_400_000
    again = open_log(directory, {}, recovery_point=2, now_ms=now_ms)
    assert list(again.producers.producers) == [7]
    assert again.producers.open == {7: 0}
    assert again.producers.expire(now_ms, 1) == 0


def test_producers_beyond_the_limit_are_not_those_with_a_transaction(monkeypatch):
    monkeypatch.setattr("shmbroker.log.producer_state.PRODUCERS_MAX", 10)
    state = ProducerState()
    for producer_id in range(30):
        state.update(producer_id, 0, 0, 0, producer_id, producer_id)
        if producer_id < 3:
            state.begin(producer_id, producer_id)
    assert {0, 1, 2} <= set(state.producers) and len(state) <= 10


def test_marker_of_a_newer_epoch_lets_the_producer_begin_anew():
    state = ProducerState()
    state.update(7, 0, 0, 4, 0, 1)
    state.begin(7, 0)
    assert state.end(EndMarker(7, 1, 3, True), 5, 2) == (0, 6)
    assert state.check(7, 1, 0, 0) == (0, -1, -1)
    assert state.check(7, 1, 5, 0)[0] != 0
    assert state.check(7, 0, 5, 0)[0] != 0
    assert state.end(EndMarker(7, 1, 3, True), 6, 3) is None


def test_batch_without_a_sequence_stays_so(tmp_path):
    """What a group's coordinator appends for a transaction: offsets."""
    state = ProducerState()
    state.update(7, 0, -1, 2, 10, 1)
    state.begin(7, 10)
    state.write_snapshot(str(tmp_path / "20.snapshot"))
    again = read_snapshot(str(tmp_path / "20.snapshot"))
    assert again.encode_snapshot() == state.encode_snapshot()
    assert (again.producers[7].last_sequence, again.open) == (-1, {7: 10})


def test_stale_snapshot_does_not_open_a_transaction(tmp_path):
    """Of a log that was cut since, by a power cut that let the old file come back."""
    directory = tmp_path / "t-0"
    log = open_log(directory, {})
    transaction(log, 7, is_commit=True)
    append(log, [(1, b"k", b"v")], producer=(8, 0, 0), is_transactional=True)
    stale = log.producers.encode_snapshot()
    truncate_to(log, 2)
    append(log, [(1, b"k", b"v")], producer=(8, 0, 0))
    log.close(clean=False)
    (directory / f"{3:020d}.snapshot").write_bytes(stale)
    again = PartitionLog.open(
        str(directory),
        LogConfig({}),
        file_ids=itertools.count(1),
        clean=False,
        recovery_point=3,
    )
    assert not again.producers.open
