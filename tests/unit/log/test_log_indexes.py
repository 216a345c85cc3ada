"""Offset index and time index files."""

import os
from bisect import bisect_right

import pytest

from shmbroker.errors import CorruptFault
from shmbroker.log import index_file
from shmbroker.log.offset_index import OffsetIndex
from shmbroker.log.time_index import TimeIndex


@pytest.fixture
def index(tmp_path):
    return OffsetIndex(str(tmp_path / "0.index"), 1 << 20)


def test_bytes_on_disk_are_kafkas(index):
    index.append(10, 4120)
    with open(index.path, "rb") as file:
        assert file.read(8) == bytes.fromhex("0000000a00001018")
    assert os.path.getsize(index.path) == 4096
    index.truncate(index.count)
    assert os.path.getsize(index.path) == 8


@pytest.mark.parametrize("count", [0, 1, 2, 511, 512, 513, 1024, 3000])
def test_floor_finds_the_last_entry_that_is_not_larger(index, count):
    entries = [(3 * number + 5, 100 * number + 70) for number in range(count)]
    for entry in entries:
        assert index.append(*entry)
    for column, step in ((0, 1), (1, 33)):
        keys = [entry[column] for entry in entries]
        top = keys[-1] + 10 if keys else 10
        for target in [*range(0, top, step * 7), *range(top, 0, -step * 11)]:
            place = bisect_right(keys, target) - 1
            assert index.floor(target, column) == (entries[place] if place >= 0 else None)
            assert index.count_below(target, column) == sum(key < target for key in keys)


def test_floor_sees_entries_appended_since(index):
    for number in range(1, 2000):
        index.append(number, number * 10)
        assert index.floor(number + 5, 0) == (number, number * 10)


@pytest.mark.parametrize("count", [0, 1, 511, 512, 700])
def test_load_stops_at_the_zeros(index, count):
    for number in range(1, count + 1):
        index.append(number, number * 10)
    index.close()
    again = OffsetIndex(index.path, 1 << 20)
    again.load()
    assert again.count == count
    assert again.append(count + 1, 99_999)
    assert again.last() == (count + 1, 99_999)


def test_truncate_forgets_the_rest(index):
    for number in range(1, 100):
        index.append(number, number * 10)
    assert index.floor(99, 0) == (99, 990)
    index.truncate(50)
    assert index.floor(70, 0) == (50, 500)
    index.append(60, 600)
    assert index.floor(99, 0) == (60, 600)
    index.truncate(0)
    assert index.floor(99, 0) is None


def test_full_index_takes_no_more(tmp_path):
    index = OffsetIndex(str(tmp_path / "0.index"), 20)
    assert index.append(1, 10)
    assert not index.is_full()
    assert index.append(2, 20)
    assert index.is_full()
    assert not index.append(3, 30)
    assert index.count == 2


def test_disk_that_refuses_leaves_the_entry_out(index, monkeypatch):
    index.append(1, 10)
    for refused in ("pwrite", "posix_fallocate"):

        def refuse(*arguments):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(index_file.os, refused, refuse)
            while index.count % 512:
                if not index.append(index.count + 1, index.count * 10):
                    break
        assert index.last()[0] == index.count
        while index.count % 512:
            index.append(index.count + 1, index.count * 10)


def test_an_entry_that_is_stored_in_part_is_no_entry(index, monkeypatch):
    index.append(1, 10)
    real = os.pwrite

    def store_some(fd, data, position):
        return real(fd, data[:3], position)

    with monkeypatch.context() as patch:
        patch.setattr(index_file.os, "pwrite", store_some)
        assert not index.append(2, 20)
    assert (index.count, index.last()) == (1, (1, 10))
    assert index.append(3, 30)
    assert index.read(0, index.count) == [(1, 10), (3, 30)]


def test_unsound_entries_are_counted_out(index):
    for entry in [(1, 10), (5, 50), (5, 60), (9, 90)]:
        index.append(*entry)
    assert index.count_sound(4) == 2
    assert index.count_sound(2) == 2
    assert index.count_sound(0) == 0


def test_index_that_shrank_under_us_is_a_fault(index):
    index.append(1, 10)
    os.truncate(index.path, 3)
    with pytest.raises(CorruptFault):
        index.entry(0)


def test_time_index_keeps_growing_timestamps_only(tmp_path):
    index = TimeIndex(str(tmp_path / "0.timeindex"), 1 << 20)
    for timestamp, offset in [(-1, 0), (0, 0), (100, 1), (100, 2), (90, 3), (101, 4)]:
        index.maybe_append(timestamp, offset)
    assert index.read(0, index.count) == [(100, 1), (101, 4)]
    assert [index.floor(timestamp, 0) for timestamp in (99, 100, 101)] == [None, (100, 1), (101, 4)]
    index.truncate(1)
    index.maybe_append(101, 3)
    assert index.last() == (101, 3)
