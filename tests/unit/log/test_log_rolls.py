"""Thousands of rolls leave no map, no descriptor and no memory behind (`SHMBROKER_ROLLS=10000`).

The files of retired segments stay until the end: ext4 gives out no inode that was freed within the
last five seconds, and looking for others took two thirds of the time where they were unlinked.
"""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from shmbroker.log.config import LogConfig
from shmbroker.log.index_file import IndexFile
from shmbroker.log.lookups import max_timestamp, offset_for_timestamp
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import delete_records, retain
from shmbroker.log.rolling import is_roll_due
from shmbroker.log.segment import OFFSETS_MAX
from shmbroker.log.segment_space import WRITE_BYTES_MIN
from shmbroker.records.batch import encode_batch, iterate_batches
from shmbroker.records.batch_layout import H_BASE_OFFSET

ROLLS = int(os.environ.get("SHMBROKER_ROLLS", "500"))


def held() -> tuple[int, int, int]:
    """(maps, descriptors, KiB of private memory) of this process."""
    with open("/proc/self/maps", "rb") as maps:
        count = maps.read().count(b"\n")
    with open("/proc/self/smaps_rollup", "rb") as rollup:
        private = sum(int(line.split()[1]) for line in rollup if line.startswith(b"Anonymous"))
    return count, len(os.listdir("/proc/self/fd")), private


def test_rolls_leave_nothing_behind(tmp_path):
    config = LogConfig({"retention.bytes": "4000", "index.interval.bytes": "0"})
    log = PartitionLog.open(str(tmp_path / "t-0"), config, file_ids=itertools.count(1))
    batch = memoryview(encode_batch([(1000, b"k", bytes(100), ())]))
    before = (0, 0, 0)
    for number in range(ROLLS):
        log.append(batch, 0, 1000, 0, 0)
        log.roll()
        if number % 50 == 0:
            retain(log, log.log_end_offset, 1000)
            log.retired.clear()
        if number == ROLLS // 10:
            before = held()
    retain(log, log.log_end_offset, 1000)
    maps, descriptors, memory = after = held()
    print(f"(maps, descriptors, KiB): {before} after {ROLLS // 10} rolls, {after} after {ROLLS}")
    assert maps <= before[0] + 2
    assert descriptors <= before[1] + 2
    assert memory <= before[2] + 4096
    assert len(log.segments) < 100
    assert len(log.snapshots.offsets) < 100
    log.close(clean=False)


def open_with(directory, index_bytes):
    """A log with an index entry for each batch."""
    config = LogConfig(
        {
            "index.interval.bytes": "0",
            "segment.index.bytes": str(index_bytes),
            "retention.ms": "1000",
        }
    )
    return PartitionLog.open(
        str(directory), config, file_ids=itertools.count(1), clean=True, recovery_point=20
    )


def append_seconds(log, first, end, value=b"v"):
    """A batch of one record for each second."""
    for second in range(first, end):
        batch = encode_batch([(second * 1000, b"k", value, ())])
        log.append(memoryview(batch), 0, second * 1000, 0, 0)


def check_times_of(directory, end):
    """Of a log that is opened again each record is found by its time, and no segment expires before
    its newest record does."""
    log = open_with(directory, 36)
    for second in range(end):
        assert offset_for_timestamp(log, second * 1000) == (second * 1000, second)
    newest = [segment.max_timestamp for segment in log.segments]
    assert newest == [(following.base_offset - 1) * 1000 for following in log.segments[1:]] + [
        (end - 1) * 1000
    ]
    log.close(clean=False)


@pytest.mark.parametrize("size", [1, WRITE_BYTES_MIN])
def test_full_time_index_ends_a_segment(tmp_path, size):
    log = open_with(tmp_path / "t-0", 36)
    append_seconds(log, 0, 20, bytes(size))
    # Two entries, and a place for the last one. Position 0 gets none (as with Kafka 4.2.1).
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9, 12, 15, 18]
    log.close(clean=True)
    check_times_of(tmp_path / "t-0", 20)


def test_large_batches_are_looked_at_only_where_an_extent_or_a_segment_ends(tmp_path, monkeypatch):
    looked = []
    prepare = PartitionLog._prepare

    def look(log, *batch):
        looked.append(log.log_end_offset)
        return prepare(log, *batch)

    monkeypatch.setattr(PartitionLog, "_prepare", look)
    config = LogConfig({"segment.bytes": str(64 * WRITE_BYTES_MIN)})
    log = PartitionLog.open(str(tmp_path / "t-0"), config, file_ids=itertools.count(1))
    value = bytes(range(256)) * (WRITE_BYTES_MIN // 256)
    append_seconds(log, 0, 100, value)
    assert [segment.base_offset for segment in log.segments] == [0, 63]
    assert {0, 63} < set(looked) and len(looked) < 20
    small = len(looked)
    append_seconds(log, 100, 101)
    assert len(looked) == small + 1  # it is stored: its pages have to be ready
    append_seconds(log, 101, 126, value)
    assert [segment.base_offset for segment in log.segments] == [0, 63]
    log.close(clean=True)
    log = PartitionLog.open(str(tmp_path / "t-0"), config, file_ids=itertools.count(1))
    found = [
        header[H_BASE_OFFSET]
        for segment in log.segments
        for _, header in iterate_batches(Path(segment.path).read_bytes())
    ]
    assert found == list(range(126))
    log.close(clean=False)


def test_full_index_ends_a_segment_though_the_settings_change_before(tmp_path):
    log = open_with(tmp_path / "t-0", 36)
    append_seconds(log, 0, 3)
    log.set_config(LogConfig({"segment.index.bytes": "36", "retention.bytes": "100000"}))
    append_seconds(log, 3, 4)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    log.close(clean=False)


def test_times_are_known_after_the_index_may_hold_less(tmp_path):
    log = open_with(tmp_path / "t-0", 360)
    append_seconds(log, 0, 10)
    log.set_config(LogConfig({"index.interval.bytes": "0", "segment.index.bytes": "36"}))
    append_seconds(log, 10, 20)
    assert log.segments[1].base_offset == 10
    log.close(clean=True)
    check_times_of(tmp_path / "t-0", 20)


def test_times_are_known_where_an_index_is_lost_and_may_not_be_as_long(tmp_path):
    log = open_with(tmp_path / "t-0", 360)
    append_seconds(log, 0, 10)
    log.roll()
    append_seconds(log, 10, 20)
    log.close(clean=True)
    (tmp_path / "t-0" / "00000000000000000000.timeindex").unlink()
    check_times_of(tmp_path / "t-0", 20)


def test_times_are_known_while_the_disk_refuses_every_index(tmp_path, monkeypatch):
    log = open_with(tmp_path / "t-0", 360)
    append_seconds(log, 0, 10)
    log.roll()
    append_seconds(log, 10, 20)
    log.close(clean=True)
    (tmp_path / "t-0" / "00000000000000000000.timeindex").write_bytes(b"")
    monkeypatch.setattr(IndexFile, "_grow", lambda *_: False)
    log = open_with(tmp_path / "t-0", 360)
    assert log.segments[0].max_timestamp == 9000
    log.close(clean=False)


def test_largest_timestamp_is_of_what_can_be_read(tmp_path):
    log = open_with(tmp_path / "t-0", 10_000)
    stamps = [[5000, 1000], [9000, 3000, 7000], [2000], [7000], [6000, 4000]]
    readable = []
    for number, batch in enumerate(stamps):
        if number == 4:
            log.roll()
        encoded = memoryview(encode_batch([(stamp, b"k", b"v", ()) for stamp in batch]))
        log.append(encoded, len(batch) - 1, max(batch), 0, 0)
        readable += batch
    end = log.log_end_offset
    for start in range(end):
        delete_records(log, start, end)
        left = readable[start:]
        assert max_timestamp(log) == (max(left), start + left.index(max(left)))
    delete_records(log, end, end)
    assert max_timestamp(log) == (-1, -1)
    log.close(clean=False)


def test_segments_below_the_log_start_take_their_snapshots_with_them(tmp_path):
    log = open_with(tmp_path / "t-0", 10_000)
    for first in range(0, 20, 5):
        append_seconds(log, first, first + 5)
        log.roll()
    append_seconds(log, 20, 22)
    delete_records(log, 21, 22)
    retain(log, 22, 0)
    names = {name for name in os.listdir(tmp_path / "t-0") if name.endswith(".snapshot")}
    assert names == {"00000000000000000020.snapshot"}
    log.close(clean=False)


FULL = SimpleNamespace(is_full=lambda: True)
WITH_ROOM = SimpleNamespace(is_full=lambda: False)
BASE = 100
"""The base offset of the active segment, in which are 800 bytes of 1000, since time 5000."""


@pytest.mark.parametrize(
    ("batch", "segment", "is_due"),
    [
        ({"need": 200}, {}, False),
        ({"need": 201}, {}, True),
        ({"max_timestamp": 15_000}, {}, False),
        ({"max_timestamp": 15_001}, {}, True),
        ({"now_ms": 90_000}, {}, False),  # the batches say when they were made
        ({"max_timestamp": -1, "now_ms": 16_000}, {}, False),
        ({"max_timestamp": -1, "now_ms": 16_001}, {}, True),
        ({"now_ms": 16_001}, {"first_timestamp": -1}, True),
        ({"next_offset": BASE + OFFSETS_MAX}, {}, False),
        ({"next_offset": BASE + OFFSETS_MAX + 1}, {}, True),
        ({}, {"offset_index": FULL}, True),
        ({}, {"time_index": FULL}, True),
    ],
)
def test_a_segment_takes_what_its_bounds_allow_and_no_more(batch, segment, is_due):
    known = {"size": 800, "base_offset": BASE, "first_timestamp": 5000, "created_ms": 6000}
    active = SimpleNamespace(
        **{**known, "offset_index": WITH_ROOM, "time_index": WITH_ROOM, **segment}
    )
    log = SimpleNamespace(active=active, roll_ms=10_000, config=SimpleNamespace(segment_bytes=1000))
    asked = {"need": 1, "next_offset": BASE + 1, "max_timestamp": 5000, "now_ms": 6000}
    assert is_roll_due(log, **(asked | batch)) is is_due
