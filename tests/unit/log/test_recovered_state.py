"""What is derived from a log's batches and was lost: indexes, epochs and producers, rebuilt."""

import itertools
import os
import random
import shutil

import pytest

from shmbroker.log.config import LogConfig
from shmbroker.log.flushing import sync
from shmbroker.log.lookups import offset_for_timestamp
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.places import locate
from shmbroker.log.producer_state import ProducerState, read_snapshot
from shmbroker.log.recovery.producers import rebuild_producers, recall_batches
from shmbroker.log.recovery.snapshots import snapshot_path
from shmbroker.log.retiring import advance_log_start, delete_local_before
from shmbroker.log.segment_indexes import load_indexes
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch
from tests.support.crash_disk import CrashDisk, lay_down
from tests.unit.log.reopened_logs import append, batch_of, opened, slot

__all__ = ["opened", "slot"]


@pytest.mark.parametrize("damage", [b"", bytes(8), b"\xff" * 16, bytes(64)])
def test_lost_index_pages_are_rebuilt(opened, damage):
    log = opened()
    for _ in range(500):
        append(log, batch_of())
    log.close(clean=True)
    with open(log.active.offset_index.path, "rb") as file:
        whole = file.read()
    with open(log.active.offset_index.path, "wb") as file:
        file.write(whole[:24] + damage + whole[24 + len(damage) : -8])
    again = opened(clean=False, recovery_point=480)
    assert again.log_end_offset == 500
    assert again.active.offset_index.read(0, again.active.offset_index.count)
    for offset in range(500):
        assert locate(again, offset)[1] == offset * len(batch_of())


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_wrong_index_of_a_finished_segment_is_rebuilt_when_it_is_used(opened, suffix):
    log = opened({"segment.bytes": "50000"})
    for number in range(500):
        append(log, batch_of(timestamp=number))
    log.close(clean=True)
    path = log.segments[0].path.replace(".log", suffix)
    with open(path, "rb") as file:
        whole = file.read()
    with open(path, "wb") as file:
        for place in range(0, len(whole), 8 if suffix == ".index" else 12):
            file.write(whole[place : place + 7] + bytes([whole[place + 7] ^ 4]))
            file.write(b"" if suffix == ".index" else whole[place + 8 : place + 12])
    again = opened({"segment.bytes": "50000"}, clean=True)
    for offset in range(250):
        assert locate(again, offset)[1] == offset * len(batch_of())
        assert offset_for_timestamp(again, offset) == (offset, offset)
    with open(path, "rb") as file:
        assert file.read() == whole


def test_a_power_cut_leaves_the_epochs_of_what_is_in_the_remote_store_alone(tmp_path):
    """No batch here could say them again."""
    lost, kept, rng = [], [1, 2, 3, 4, 5], random.Random(1)

    def cut():
        with disk.paused():
            for _ in range(20):
                outcome, image = disk.crash_image(rng)
                path = tmp_path / "cut"
                lay_down(image, str(path))
                again = PartitionLog.open(str(path / "t-0"), config, **how)
                if [again.leader_epochs.epoch_at(each) for each in kept] != kept:
                    lost.append((outcome, again.leader_epochs.entries))
                again.close(clean=False)
                shutil.rmtree(path)

    disk = CrashDisk(str(tmp_path / "data"), lambda: None)
    os.makedirs(disk.root)
    config = LogConfig({"segment.bytes": "500", "remote.storage.enable": "true"})
    how = {"file_ids": itertools.count(1), "clean": False}
    with disk.recording():
        log = PartitionLog.open(os.path.join(disk.root, "t-0"), config, **how)
        for epoch in range(9):
            append(log, batch_of(), epoch=epoch)
        sync(log)
        log.begin_epoch(20)
        delete_local_before(log, 6)
        assert log.local_start_offset > 3
        disk.on_change = cut
        append(log, batch_of(), epoch=21)
        advance_log_start(log, 1)
        truncate_to(log, 9)
        log.close(clean=False)
    assert not lost


def test_damaged_epoch_file_is_rebuilt_from_the_batches(opened):
    log = opened()
    for epoch in (2, 2, 5):
        append(log, batch_of(), epoch=epoch)
    log.close(clean=True)
    with open(log.leader_epochs.path, "w") as file:
        file.write("0\n7\n")
    assert opened().leader_epochs.entries == [(2, 0), (5, 2)]


@pytest.mark.parametrize("start", [3, 4, 5, 6, 8, 9])
@pytest.mark.parametrize("clean", [True, False])
def test_epochs_of_a_log_that_starts_within_a_batch_fit_it(opened, slot, caplog, start, clean):
    """Of three batches of three records, in epochs 2, 2 and 7."""
    log = opened()
    for epoch in (2, 2, 7):
        append(log, encode_batch([(1000, b"k", b"v", [])] * 3), epoch)
    advance_log_start(log, start)
    epochs = log.leader_epochs.entries
    for _ in range(3):
        log.close(clean=clean)
        log = opened(trusted=slot.stored, log_start_offset=start)
        assert start == 9 or log.leader_epochs.entries == epochs
    assert not caplog.records


def test_producers_are_rebuilt_from_snapshot_and_batches(opened, slot):
    config = LogConfig()
    config.producer_snapshot_interval = 1
    log = opened(config)
    for number in range(300):
        append(log, batch_of(producer_id=9, producer_epoch=1, base_sequence=number))
        log.producers.update(9, 1, number, 0, number, 1000)
    assert 1 <= len(log.snapshots.offsets) <= 2
    expected = log.producers.producers[9].batches
    for how in (
        {"trusted": slot.stored},
        {"clean": False},
        {"clean": False, "recovery_point": 290},
    ):
        again = opened(**how)
        assert again.producers.producers[9].batches == expected
    for name in os.listdir(log.directory):
        if name.endswith(".snapshot"):
            with open(os.path.join(log.directory, name), "wb") as file:
                file.write(b"torn")
    again = opened(trusted=slot.stored)
    assert again.producers.producers[9].batches == expected
    assert again.snapshots.offsets == []


def test_what_was_stored_before_a_clean_stop_is_known_to_who_asks_for_it(opened):
    log = opened()
    for sequence in range(8):
        base_offset = append(log, batch_of(producer_id=7, producer_epoch=0, base_sequence=sequence))
        log.producers.update(7, 0, sequence, 0, base_offset, 1000)
    end_offset = log.log_end_offset
    log.close(clean=True)
    log = opened(recovery_point=end_offset)

    def known() -> list[int]:
        return [log.producers.check(7, 0, sequence, 0)[1] for sequence in range(8)]

    assert log.producers.knows_last_only and known() == [-1] * 7 + [7]
    recall_batches(log)
    assert not log.producers.knows_last_only and known() == [-1] * 3 + [3, 4, 5, 6, 7]


def test_what_was_stored_since_a_clean_stop_stays_known(opened):
    log = opened()
    for sequence in range(4):
        append(log, batch_of(producer_id=7, producer_epoch=0, base_sequence=sequence))
        log.producers.update(7, 0, sequence, 0, sequence, 1000)
    log.close(clean=True)
    log = opened(recovery_point=4)
    log.producers.update(8, 0, 0, 0, 4, 1000)  # nothing of it in the batches that are read
    log.producers.update(7, 1, 0, 0, 5, 1000)
    recall_batches(log)
    assert log.producers.check(8, 0, 0, 0)[1] == 4
    assert [log.producers.check(7, epoch, 0, 0)[:2] for epoch in (0, 1)] == [(47, -1), (0, 5)]


def test_deleted_records_still_count_for_their_producer(opened, slot):
    log = opened()
    for number in range(2):
        append(log, batch_of(producer_id=9, producer_epoch=1, base_sequence=number))
        log.producers.update(9, 1, number, 0, number, 1000)
        if not number:
            log.snapshot_producers()
    advance_log_start(log, 2)
    again = opened(trusted=slot.stored, log_start_offset=2)
    assert again.producers.producers[9].next_sequence == 2


def test_snapshot_of_before_what_was_deleted_is_not_used(opened, slot):
    log = opened()
    append(log, batch_of(producer_id=9, producer_epoch=1, base_sequence=0))
    log.producers.update(9, 1, 0, 0, 0, 1000)
    log.roll()
    append(log, batch_of(producer_id=9, producer_epoch=1, base_sequence=1))
    log.roll()
    append(log, batch_of())
    os.unlink(os.path.join(log.directory, "00000000000000000002.snapshot"))
    log.segments[0].remove()
    log.segments[1].remove()
    again = opened(trusted=slot.stored)
    assert again.log_start_offset == 2
    assert 9 not in again.producers.producers


def test_snapshots_that_a_kill_has_cost_are_there_again_where_segments_begin(opened, slot):
    """A kill between a roll and its snapshot, or a power cut: a copy of the segment needs it."""
    log = opened({"segment.bytes": "500"})
    for sequence in range(9):
        append(log, batch_of(producer_id=9, producer_epoch=1, base_sequence=sequence))
        log.producers.update(9, 1, sequence, 0, sequence, 1000)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    for base in bases[-2:]:
        os.unlink(os.path.join(log.directory, f"{base:020}.snapshot"))
    again = opened({"segment.bytes": "500"}, trusted=slot.stored)
    assert again.snapshots.offsets == sorted(again.snapshots.offsets)
    for base in bases[1:]:
        known = read_snapshot(os.path.join(log.directory, f"{base:020}.snapshot"))
        assert known.producers[9].next_sequence == base


def test_expired_producers_are_not_rebuilt(opened):
    log = opened()
    append(log, batch_of(producer_id=9, producer_epoch=1, base_sequence=0))
    log.producers.update(9, 1, 0, 0, 0, 1000)
    log.close(clean=True)
    assert len(opened(now_ms=1000 + 86_399_999).producers) == 1
    assert len(opened(now_ms=1000 + 86_400_000).producers) == 0


def test_damage_below_the_recovery_point_does_not_stop_the_walk(opened):
    log = opened({"segment.bytes": "500"})
    for sequence in range(6):
        append(log, batch_of(producer_id=9, producer_epoch=1, base_sequence=sequence))
    with open(log.segments[0].path, "r+b") as file:
        file.write(b"\xff" * 100)
    log.snapshots.offsets.clear()
    rebuild_producers(log)
    assert log.producers.producers[9].next_sequence == 6


@pytest.mark.parametrize("count", [1, 3, 100])
def test_successor_finds_no_fault_in_the_indexes_of_a_log_in_use(opened, slot, caplog, count):
    log = opened()
    for number in range(count):
        append(log, batch_of(timestamp=number))
    assert opened(trusted=slot.stored).log_end_offset == count
    assert not caplog.records


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("part", [0, 0.25])
@pytest.mark.parametrize("number", [0, 1])
def test_end_of_an_index_that_is_lost_is_found_by_the_first_reader(opened, suffix, part, number):
    log = opened({"segment.bytes": str(3 << 20)})
    for count in range(100):
        append(log, batch_of(50_000, timestamp=count))
    log.close(clean=True)
    segment = log.segments[number]
    path = segment.path.replace(".log", suffix)
    with open(path, "rb") as file:
        whole = file.read()
    with open(path, "r+b") as file:
        size = 8 if suffix == ".index" else 12
        file.truncate(int(len(whole) // size * part) * size)
    again = opened({"segment.bytes": str(3 << 20)}, clean=True)
    assert again.read(segment.base_offset, 1000, 100)
    assert offset_for_timestamp(again, 99) == (99, 99)
    load_indexes(again.segments[number])
    with open(path, "rb") as file:
        assert file.read() == whole


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("newest", [1, 20, 50])
def test_end_of_a_time_index_that_is_lost_is_found_by_a_scan(opened, kept, newest):
    settings = {"index.interval.bytes": "500"}
    log = opened(settings)
    for number in range(60):
        append(log, batch_of(timestamp=9000 if number == newest else 1000 + number))
    log.close(clean=True)
    os.truncate(log.active.time_index.path, kept * 12)
    again = opened(settings, clean=False, recovery_point=59)
    assert offset_for_timestamp(again, 5000) == (9000, newest)
    assert offset_for_timestamp(again, 1010) == ((9000, 1) if newest == 1 else (1010, 10))


@pytest.mark.parametrize(
    ("now_ms", "is_kept"), [(0, True), (1000 + 86_399_999, False), (1000 + 86_400_000, True)]
)
def test_snapshot_at_the_end_knows_the_last_producer_or_it_has_expired(opened, now_ms, is_kept):
    log = opened()
    append(log, batch_of(producer_id=9, producer_epoch=1, base_sequence=0))
    log.close(clean=True)
    ProducerState().write_snapshot(snapshot_path(log, 1))
    again = opened(now_ms=now_ms)
    assert (again.snapshots.offsets == [1]) == is_kept
    assert (9 in again.producers.producers) == (not is_kept)
