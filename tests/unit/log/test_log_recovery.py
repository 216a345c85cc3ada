"""Opening a log after every kind of end."""

import itertools
import os
import random
import shutil

import pytest

from shmbroker import signs
from shmbroker.log import residency
from shmbroker.log.config import LogConfig
from shmbroker.log.flushing import sync
from shmbroker.log.lookups import offset_for_timestamp
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.places import locate
from shmbroker.log.producer_state import ProducerState, read_snapshot
from shmbroker.log.recovery.producers import rebuild_producers
from shmbroker.log.recovery.snapshots import snapshot_path
from shmbroker.log.retiring import advance_log_start, delete_local_before
from shmbroker.log.segment_indexes import load_indexes
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch import encode_batch, iterate_batches
from shmbroker.records.batch_layout import STAMP
from tests.support.crash_disk import CrashDisk, lay_down


class Slot:
    stored = None

    def store(self, base, position, end):
        self.stored = base, position, end


def batch_of(size=100, timestamp=1000, **how):
    return encode_batch([(timestamp, b"k", b"v" * size, [])], **how)


@pytest.fixture
def slot():
    return Slot()


@pytest.fixture
def opened(tmp_path, slot):
    logs = []

    def open_log(settings=None, **how):
        log = PartitionLog.open(
            str(tmp_path / "t-0"),
            settings if isinstance(settings, LogConfig) else LogConfig(settings or {}),
            file_ids=itertools.count(1),
            position_slot=slot,
            **how,
        )
        logs.append(log)
        return log

    yield open_log
    for log in logs:
        log.close(clean=False)


def append(log, batch, epoch=0):
    (header,) = [header for _, header in iterate_batches(batch)]
    return log.append(memoryview(batch), header[6], header[8], epoch, 0)


def offsets_in(log):
    offsets, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        segment, position, length = log.read(offset, 1 << 20, log.log_end_offset)
        offsets += [h[0] for _, h in iterate_batches(segment.read_bytes(position, length))]
        offset = offsets[-1] + 1
    return offsets


def write_behind(log, data, distance=0):
    with open(log.active.path, "r+b") as file:
        file.seek(log.active.size + distance)
        file.write(data)


def test_scan_finds_every_batch_and_rebuilds_the_indexes(opened):
    log = opened({"segment.bytes": "20000"})
    for number in range(300):
        append(log, batch_of(timestamp=number), epoch=number // 100)
    log.close(clean=True)
    content = {}
    for name in os.listdir(log.directory):
        path = os.path.join(log.directory, name)
        with open(path, "rb") as file:
            content[name] = file.read()
        if not name.endswith(".log"):
            os.unlink(path)
    again = opened({"segment.bytes": "20000"}, clean=False)
    assert offsets_in(again) == list(range(300))
    assert again.leader_epochs.entries == [(0, 0), (1, 100), (2, 200)]
    again.close(clean=True)
    for name in content:
        if not name.endswith(".snapshot"):
            with open(os.path.join(log.directory, name), "rb") as file:
                assert file.read() == content[name], name


def test_scan_that_reads_for_long_gives_signs_of_life(opened):
    """Without them the watchdog would end it, again and again."""
    log = opened()
    for _ in range(3):
        append(log, batch_of(size=2 << 20))
    signed = []
    signs.attach(lambda: signed.append(1), lambda _word: None)
    try:
        again = opened(clean=False)
    finally:
        signs.attach(None, None)
    assert offsets_in(again) == [0, 1, 2]
    assert len(signed) >= 3


def test_batch_without_its_head_is_the_end(opened, slot):
    """The writer died between the copy and the stamp."""
    log = opened()
    append(log, batch_of())
    write_behind(log, batch_of()[16:], distance=16)
    for how in ({"trusted": slot.stored}, {"clean": False}):
        again = opened(**how)
        assert again.log_end_offset == 1
        assert os.path.getsize(again.active.path) == again.active.size


@pytest.mark.parametrize("length", [1, 11, 16, 60, 61, 100, 171])
def test_torn_batch_is_cut(opened, length):
    log = opened()
    for _ in range(3):
        append(log, batch_of())
    torn = bytearray(batch_of())
    STAMP.pack_into(torn, 0, 3, len(torn) - 12, 0)
    write_behind(log, torn[: min(length, len(torn) - 2)])
    again = opened(clean=False, recovery_point=1)
    assert offsets_in(again) == [0, 1, 2]
    assert append(again, batch_of()) == 3


@pytest.mark.parametrize(
    ("offset", "epoch", "is_kept"),
    [(3, 1, True), (3, 2, True), (3, 0, False), (4, 1, False), (2, 1, False), (0, 1, False)],
)
def test_left_over_batch_must_fit(opened, offset, epoch, is_kept):
    """Good by its CRC, but perhaps from before a truncation."""
    log = opened()
    for _ in range(3):
        append(log, batch_of(), epoch=1)
    old = bytearray(batch_of())
    STAMP.pack_into(old, 0, offset, len(old) - 12, epoch)
    write_behind(log, old)
    again = opened(clean=False)
    assert again.log_end_offset == (4 if is_kept else 3)


def test_cut_removes_later_segments(opened):
    log = opened({"segment.bytes": "500"})
    for number in range(9):
        append(log, batch_of(), epoch=number)
    bad = log.segments[1]
    log.close(clean=True)
    with open(bad.path, "r+b") as file:
        file.seek(bad.size - 1)
        file.write(b"\xff")
    again = opened({"segment.bytes": "500"}, clean=False)
    assert again.log_end_offset == bad.end_offset - 1
    assert again.leader_epochs.latest == again.log_end_offset - 1
    assert len(again.segments) == 2
    numbers = {int(name[:20]) for name in os.listdir(log.directory) if name[0] == "0"}
    assert max(numbers) <= again.log_end_offset


def test_missing_segment_ends_the_log(opened):
    log = opened({"segment.bytes": "500"})
    for _ in range(9):
        append(log, batch_of())
    lost = log.segments[2]
    log.close(clean=True)
    os.unlink(lost.path)
    assert opened({"segment.bytes": "500"}, clean=False).log_end_offset == lost.base_offset


def test_gaps_are_kept_in_a_compacted_log(opened):
    log = opened()
    for _ in range(3):
        append(log, batch_of())
    later = bytearray(batch_of())
    STAMP.pack_into(later, 0, 7, len(later) - 12, 0)
    write_behind(log, later)
    again = opened({"cleanup.policy": "compact"}, clean=False)
    assert offsets_in(again) == [0, 1, 2, 7]
    assert locate(again, 5)[1] == 3 * len(later)


def test_scan_begins_at_the_recovery_point(opened):
    """Damage before it is not looked at, and costs nothing behind it."""
    log = opened()
    for _ in range(200):
        append(log, batch_of())
    with open(log.active.path, "r+b") as file:
        file.seek(len(batch_of()) - 1)
        file.write(b"\xff")
    log.close(clean=False)
    path = log.directory
    shutil.copytree(path, path + "0")
    again = opened(clean=False, recovery_point=150)
    assert again.log_end_offset == 200
    again.close(clean=False)
    shutil.rmtree(path)
    shutil.move(path + "0", path)
    assert opened(clean=False, recovery_point=0).log_end_offset == 0


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


def test_recovery_point_beyond_the_end_is_no_end(opened):
    log = opened()
    append(log, batch_of())
    log.close(clean=True)
    again = opened(clean=False, recovery_point=999)
    assert (again.log_end_offset, again.recovery_point) == (1, 1)


def test_clean_marker_that_lies_costs_a_scan(opened):
    log = opened()
    for _ in range(3):
        append(log, batch_of())
    write_behind(log, b"\x01" * 100)
    again = opened(clean=True)
    assert again.log_end_offset == 3
    assert again.active.size == 3 * len(batch_of())


def test_clean_log_opens_without_reading_its_batches(opened):
    log = opened()
    for _ in range(2000):
        append(log, batch_of())
    log.close(clean=True)
    with open(log.active.path, "r+b") as file:
        file.seek(len(batch_of()) + 70)
        file.write(b"\xff" * 10)
    assert opened(clean=True).log_end_offset == 2000


def test_position_that_does_not_fit_costs_a_scan(opened, slot):
    log = opened()
    for _ in range(5):
        append(log, batch_of())
    base, position, end = slot.stored
    for wrong in [
        (base, position + 1, end),
        (base, position, end + 1),
        (base, position * 2, end * 2),
        (7, position, end),
        (base, 0, 0),
    ]:
        again = opened(trusted=wrong)
        assert again.log_end_offset == (0 if wrong[2] == 0 else 5)
        again.close(clean=False)
        if not wrong[2]:
            break


@pytest.mark.parametrize("is_trusted", [False, True])
def test_last_batch_is_looked_at_however_the_log_ended(opened, slot, is_trusted):
    log = opened()
    for _ in range(5):
        append(log, batch_of())
    log.close(clean=not is_trusted)
    with open(log.active.path, "r+b") as file:
        file.seek(log.active.size - 20)
        file.write(b"\xff")
    again = opened(trusted=slot.stored) if is_trusted else opened(clean=True)
    assert again.log_end_offset == 4


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


def test_segment_made_for_a_batch_that_was_never_stored_is_removed(opened, slot):
    log = opened({"segment.bytes": "500"})
    for _ in range(2):
        append(log, batch_of())
    stored = slot.stored
    append(log, batch_of())
    assert slot.stored[0] != stored[0]
    again = opened({"segment.bytes": "500"}, trusted=stored)
    assert again.log_end_offset == 2
    assert len(again.segments) == 1
    assert not again.damage_count
    assert append(again, batch_of()) == 2


def test_kill_amid_a_truncation_is_no_damage(tmp_path, slot):
    left = []

    def note():
        with disk.paused():
            left.append((tmp_path / str(len(left)), slot.stored))
            shutil.copytree(disk.root, left[-1][0])

    disk = CrashDisk(str(tmp_path / "data"), lambda: None)
    os.makedirs(disk.root)
    how = {"file_ids": itertools.count(1), "position_slot": slot, "clean": False}
    with disk.recording():
        log = PartitionLog.open(
            os.path.join(disk.root, "t-0"), LogConfig({"segment.bytes": "500"}), **how
        )
        for number in range(9):
            append(log, batch_of(), epoch=max(number - 3, 0))
        disk.on_change = note
        truncate_to(log, 4)
        log.close(clean=False)
    assert len(left) > 5
    for path, trusted in left:
        again = PartitionLog.open(str(path / "t-0"), LogConfig({}), trusted=trusted, **how)
        assert not again.damage_count
        assert again.leader_epochs.latest == again.log_end_offset - 4
        again.close(clean=False)


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


def test_leftovers_of_interrupted_work_are_removed(opened):
    log = opened()
    append(log, batch_of())
    log.close(clean=True)
    for name in ("00000000000000000000.log.deleted", "00000000000000000000.log.cleaned", "x.tmp"):
        with open(os.path.join(log.directory, name), "w"):
            pass
    opened()
    assert not {"deleted", "cleaned", "tmp"} & {n.split(".")[-1] for n in os.listdir(log.directory)}


def test_damaged_epoch_file_is_rebuilt_from_the_batches(opened):
    log = opened()
    for epoch in (2, 2, 5):
        append(log, batch_of(), epoch=epoch)
    log.close(clean=True)
    with open(log.leader_epochs.path, "w") as file:
        file.write("0\n7\n")
    assert opened().leader_epochs.entries == [(2, 0), (5, 2)]


def test_log_start_inside_a_segment_is_kept(opened):
    log = opened()
    for _ in range(5):
        append(log, batch_of())
    advance_log_start(log, 3)
    log.close(clean=True)
    again = opened(log_start_offset=3)
    assert again.log_start_offset == 3
    assert again.read(2, 100, 5) is None
    assert offsets_in(again) == [3, 4]


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


@pytest.mark.parametrize("is_only_replica", [False, True])
def test_what_was_stored_before_a_clean_stop_is_known_when_it_comes_again(opened, is_only_replica):
    log = opened()
    log.is_only_replica = is_only_replica
    for sequence in range(3):
        base_offset = append(log, batch_of(producer_id=7, producer_epoch=0, base_sequence=sequence))
        log.producers.update(7, 0, sequence, 0, base_offset, 1000)
    end_offset = log.log_end_offset
    log.close(clean=True)
    log = opened(recovery_point=end_offset, is_only_replica=is_only_replica)
    known = [log.producers.check(7, 0, sequence, 0)[1] for sequence in range(4)]
    # The only replica has answered what it stored; with others, acks may have waited for them.
    assert known == ([-1, -1, 2, -1] if is_only_replica else [0, 1, 2, -1])


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


def test_start_reads_from_the_recovery_point_on_and_that_moves_with_each_roll(opened, monkeypatch):
    """What a power cut costs is what was not flushed, however long the log is."""
    settings = {"segment.bytes": str(1 << 20), "index.interval.bytes": "4096"}
    log = opened(settings)
    points = []
    while len(log.segments) < 9:
        append(log, batch_of(10_000))
        if len(log.segments) > len(points) + 1:
            log.flush()  # as upkeep does behind each roll
            points.append(log.recovery_point)
    assert points == sorted(set(points))
    for _ in range(30):
        append(log, batch_of(10_000))
    unflushed = 30 * len(batch_of(10_000))
    log.close(clean=False)
    read = 0
    real = residency.read

    def counting(fd, length, position):
        nonlocal read
        data = real(fd, length, position)
        read += len(data)
        return data

    monkeypatch.setattr(residency, "read", counting)
    again = opened(settings, clean=False, recovery_point=points[-1])
    assert again.log_end_offset == log.log_end_offset
    # Besides it the end of the segment before, and every header once more.
    assert unflushed <= read < 3 * unflushed < log.size_bytes / 8
