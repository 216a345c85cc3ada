"""Opening a log after every kind of end: where it ends then, and how much of it is read."""

import itertools
import os
import shutil

import pytest

from shmbroker import signs
from shmbroker.log import residency
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.places import locate
from shmbroker.log.retiring import advance_log_start
from shmbroker.log.truncation import truncate_to
from shmbroker.records.batch_layout import STAMP
from tests.support.crash_disk import CrashDisk
from tests.unit.log.reopened_logs import append, batch_of, offsets_in, opened, slot, write_behind

__all__ = ["opened", "slot"]


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


def test_leftovers_of_interrupted_work_are_removed(opened):
    log = opened()
    append(log, batch_of())
    log.close(clean=True)
    for name in ("00000000000000000000.log.deleted", "00000000000000000000.log.cleaned", "x.tmp"):
        with open(os.path.join(log.directory, name), "w"):
            pass
    opened()
    assert not {"deleted", "cleaned", "tmp"} & {n.split(".")[-1] for n in os.listdir(log.directory)}


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
