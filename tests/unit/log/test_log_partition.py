"""A partition's log: appending, reading, rolling, looking up."""

import itertools
import os

import pytest

from shmbroker.errors import StorageFault
from shmbroker.log import segment_space
from shmbroker.log.config import LogConfig
from shmbroker.log.lookups import max_timestamp, offset_for_timestamp, segments_up_to
from shmbroker.log.places import locate
from shmbroker.log.rolling import is_roll_due
from shmbroker.records.batch import check_batch, encode_batch, iterate_batches, iterate_records
from shmbroker.records.stamping import stamped
from shmbroker.wire.error_codes import NONE
from tests.support.partition_logs import append, batch_of, files, fill, opened

__all__ = ["opened"]


def maybe_roll(log, now_ms):
    """Roll as the next batch, of that time, would; whether it did."""
    is_due = log.active.size > 0 and is_roll_due(log, 0, log.log_end_offset, now_ms, now_ms)
    if is_due:
        log.roll(now_ms)
    return is_due


def test_new_log_is_empty_and_takes_no_space(opened):
    log = opened()
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (0, 0, 0)
    assert files(log) == []
    assert log.read(0, 1000, 0) == (log.active, 0, 0)
    assert log.read(1, 1000, 0) is None
    assert segments_up_to(log, 0) == []
    assert max_timestamp(log) == (-1, -1)
    assert offset_for_timestamp(log, 0) is None
    assert not log.populate_step(0)


def test_offsets_and_epochs_are_stamped_outside_the_crc(opened):
    log = opened()
    assert append(log, batch_of(count=3), epoch=4) == 0
    assert append(log, batch_of(), epoch=4) == 3
    segment, position, length = log.read(0, 1 << 20, log.log_end_offset)
    data = segment.read_bytes(position, length)
    (first, header), (_, second) = iterate_batches(data)
    assert header[0] == 0
    assert header[2] == second[2] == 4
    assert second[0] == 3
    assert [record[0] for record in iterate_records(data, first)] == [0, 1, 2]
    unstamped = bytearray(data[: header[1] + 12])
    assert check_batch(memoryview(unstamped), 0, len(unstamped))[0] == NONE


def test_file_grows_by_extents_of_zeros(opened):
    log = opened()
    append(log, batch_of())
    assert os.path.getsize(log.active.path) == 64 << 10
    assert os.stat(log.active.path).st_blocks * 512 >= 64 << 10
    for now_ms in range(0, 3000, 100):
        append(log, batch_of(size=40_000), now_ms=now_ms)
    size, file_size = log.active.size, os.path.getsize(log.active.path)
    assert size <= file_size <= size + 4 * log.active.extent_bytes
    assert log.active.extent_bytes > 64 << 10
    with open(log.active.path, "rb") as file:
        file.seek(size)
        assert not any(file.read())


def test_slow_log_shrinks_its_extents(opened):
    log = opened()
    for now_ms in range(0, 20_000, 1000):
        append(log, batch_of(size=10_000), now_ms=now_ms * 10)
    assert log.active.extent_bytes == 64 << 10


def test_segment_never_outgrows_its_setting(opened):
    log = opened({"segment.bytes": "100000"})
    for _ in range(40):
        append(log, batch_of(size=9_000))
        log.populate_step(0)
        assert log.active.allocated_bytes <= 102_400
    assert all(segment.size <= 100_000 for segment in log.segments)
    assert len(log.segments) == 4


def test_populate_keeps_an_extent_ready(opened):
    log = opened()
    append(log, batch_of())
    log.active.extent_bytes = 4 << 20
    steps = 1
    while log.populate_step(0):
        steps += 1
    assert steps >= 4 or log.active.ready_bytes == log.active.allocated_bytes
    assert log.active.ready_bytes <= log.active.allocated_bytes
    assert log.active.ready_bytes - log.active.size >= 1 << 20


def test_large_batches_are_written_and_small_ones_stored_between_them(opened):
    log = opened()
    sizes = (200_000, 50, 40_000, 900_000, 10, 32 << 10, 300, 70_000, 5)
    batches = [batch_of(size=size) for size in sizes]
    for batch in batches:
        append(log, batch)
        segment = log.active
        assert len(segment.map) >= segment.ready_bytes >= segment.size
        log.populate_step(0)
    segment, position, length = log.read(0, 2 << 20, len(sizes))
    data = segment.read_bytes(position, length)
    assert bytes(segment.map[: segment.size]) == data
    assert [data[at + 16 : at + header[1] + 12] for at, header in iterate_batches(data)] == [
        batch[16:] for batch in batches
    ]
    with open(segment.path, "rb") as file:
        file.seek(segment.size)
        assert not any(file.read())


def test_nothing_is_populated_for_large_batches(opened):
    log = opened()
    append(log, batch_of(size=100_000))
    for _ in range(20):
        append(log, batch_of(size=100_000))
        assert log.active.ready_bytes == log.active.size
        assert not log.populate_step(0)


def test_what_comes_behind_a_written_batch_is_written_unless_it_is_small(opened):
    log = opened()
    append(log, batch_of(size=10_000))
    assert log.active.ready_bytes > log.active.size  # pages were made ready for it
    for size in (100_000, 10_000, 20_000, 9_000):
        append(log, batch_of(size=size))
        assert log.active.ready_bytes == log.active.size
    append(log, batch_of(size=500))
    assert log.active.ready_bytes > log.active.size


def test_failed_write_leaves_the_log_as_it_was(opened, monkeypatch):
    log = opened()
    append(log, batch_of(size=100_000))
    end, size = log.log_end_offset, log.active.size
    pwrite = os.pwrite

    def half(fd, data, position):
        if position != size + 16:
            raise OSError(5, "Input/output error")
        return pwrite(fd, data[: len(data) // 2], position)

    monkeypatch.setattr(segment_space.os, "pwrite", half)
    with pytest.raises(StorageFault, match="can't write"):
        append(log, batch_of(size=200_000))
    monkeypatch.undo()
    assert (log.log_end_offset, log.active.size) == (end, size)
    small = batch_of(size=100)
    append(log, small)
    segment, position, length = log.read(end, 1 << 20, end + 1)
    assert segment.read_bytes(position, length)[16:] == small[16:]
    assert not any(segment.map[segment.size : segment.ready_bytes])


def test_kernel_without_populate_gets_zeros(opened, monkeypatch):
    monkeypatch.setattr(segment_space, "_MADV_POPULATE_WRITE", 9999)
    log = opened()
    batches = [batch_of(size=size) for size in (10, 70_000, 300)]
    for batch in batches:
        append(log, batch)
        log.populate_step(0)
    segment, position, length = log.read(0, 1 << 20, 3)
    data = segment.read_bytes(position, length)
    assert [data[at + 16 : at + header[1] + 12] for at, header in iterate_batches(data)] == [
        batch[16:] for batch in batches
    ]


def test_reader_of_one_segment_never_crosses_into_the_next(opened):
    log = opened()
    fill(log, 3)
    log.roll()
    fill(log, 3)
    segment, position, length = log.read(1, 1 << 20, 6)
    assert (segment, position + length) == (log.segments[0], log.segments[0].size)
    assert log.read(3, 1 << 20, 6)[0] is log.segments[1]


def test_reader_at_the_end_continues_after_a_roll(opened):
    log = opened()
    fill(log, 2)
    assert log.read(0, 1 << 20, 2)[2] > 0
    assert log.read(2, 1 << 20, 2)[2] == 0
    log.roll()
    assert log.read(2, 1 << 20, 2)[2] == 0
    fill(log, 1)
    segment, position, length = log.read(2, 1 << 20, 3)
    assert (segment, position, length) == (log.active, 0, log.active.size)


def test_min_one_batch_overrides_the_limit_once(opened):
    log = opened()
    fill(log, 2, size=5000)
    one = log.active.size // 2
    assert log.read(0, 10, 2)[2] == one
    assert log.read(0, 10, 2, min_one_batch=False)[2] == 0
    assert log.read(0, one, 2, min_one_batch=False)[2] == one
    assert log.read(0, 2 * one - 1, 2)[2] == one
    assert log.read(0, 2 * one, 2)[2] == 2 * one


def test_nothing_beyond_the_given_end_is_read(opened):
    log = opened()
    fill(log, 4)
    one = log.active.size // 4
    assert log.read(0, 1 << 20, 2)[1:] == (0, 2 * one)
    assert log.read(1, 1 << 20, 2)[1:] == (one, one)
    assert log.read(2, 1 << 20, 2)[2] == 0
    assert log.read(3, 1 << 20, 2)[2] == 0


def test_long_log_reads_back_at_any_step(opened):
    log = opened({"segment.bytes": "200000"})
    fill(log, 3000, size=150)
    for max_bytes in (300, 4096, 50_000):
        offset = 0
        while offset < log.log_end_offset:
            segment, position, length = log.read(offset, max_bytes, log.log_end_offset)
            headers = list(iterate_batches(segment.read_bytes(position, length)))
            assert headers[0][1][0] == offset
            offset = headers[-1][1][0] + 1
    for offset in range(0, 3000, 7):
        log.boundaries.clear()
        segment, position = locate(log, offset)
        assert next(iter(segment.headers(position, segment.size)))[1][0] == offset
    assert log.read(3001, 300, log.log_end_offset) is None


def test_stamped_batches_carry_the_topics_timestamp_type(opened):
    batch = batch_of(timestamp=5)
    log = opened({"message.timestamp.type": "LogAppendTime"})
    log.append(stamped(memoryview(batch), 777, is_log_append_time=True), 0, 777, 0, 777)
    flagged = batch_of(timestamp=5, log_append_time=6)
    log.set_config(LogConfig())
    log.append(stamped(memoryview(flagged), 5, is_log_append_time=False), 0, 5, 0, 888)
    segment, position, length = log.read(0, 1 << 20, 2)
    data = segment.read_bytes(position, length)
    for (at, header), timestamp in zip(iterate_batches(data), (777, 5), strict=True):
        stored = memoryview(bytes(8) + data[at + 8 : at + header[1] + 12])
        assert check_batch(stored, 0, len(stored))[0] == NONE
        assert next(iterate_records(stored))[1] == timestamp
    assert max_timestamp(log) == (777, 0)


def test_log_rolls_by_the_time_between_records(opened):
    log = opened({"segment.ms": "100"})
    for timestamp in (1000, 1100, 1101, 900, 1201, 1202):
        append(log, batch_of(timestamp=timestamp))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 5]


def test_idle_log_rolls_by_the_clock(opened):
    log = opened({"segment.ms": "100"})
    append(log, batch_of(timestamp=-1), now_ms=500)
    assert not maybe_roll(log, 600)
    assert maybe_roll(log, 601)
    assert not maybe_roll(log, 9999)
    assert log.active.base_offset == 1


def test_jitter_spreads_the_rolls(opened, monkeypatch):
    log = opened({"segment.ms": "100", "segment.jitter.ms": "10"})
    ages = set()
    for number in range(20):
        append(log, batch_of(timestamp=1000))
        monkeypatch.setattr(os, "urandom", lambda _, number=number: bytes([number] + [0] * 7))
        log.roll()
        append(log, batch_of(timestamp=1000))
        ages.add(next(age for age in itertools.count(80) if maybe_roll(log, 1000 + age)))
    assert ages == set(range(92, 102))


def test_log_rolls_when_an_index_is_full(opened):
    log = opened({"segment.index.bytes": "32", "index.interval.bytes": "0"})
    fill(log, 12)
    assert len(log.segments) > 1
    assert all(segment.offset_index.count <= 4 for segment in log.segments)


def test_log_rolls_before_offsets_outgrow_the_index(opened):
    """Counts inside a compressed batch can't be checked by its header."""
    log = opened()
    batch = memoryview(batch_of())
    for number in range(4):
        assert log.append(batch, 2**31 - 1, 1000, 0, 0) == number * 2**31
    assert [segment.base_offset for segment in log.segments] == [n * 2**31 for n in range(4)]
    log.close(clean=True)


def test_finished_segment_is_what_kafka_leaves(opened):
    log = opened()
    fill(log, 100, timestamp=1234)
    log.roll()
    finished = log.segments[0]
    assert os.path.getsize(finished.path) == finished.size
    assert os.path.getsize(finished.offset_index.path) == finished.offset_index.count * 8 > 0
    assert os.path.getsize(finished.time_index.path) == 12
    assert "00000000000000000100.snapshot" in files(log)


def test_timestamps_are_found_inside_compressed_batches(opened):
    log = opened()
    times = [[10, 40, 20], [30, 30, 60], [50, 5, 70]]
    for codec, stamps in enumerate(times, 2):
        append(log, encode_batch([(stamp, None, b"", []) for stamp in stamps], codec=codec))
    assert offset_for_timestamp(log, 15) == (40, 1)
    assert offset_for_timestamp(log, 41) == (60, 5)
    assert offset_for_timestamp(log, 61) == (70, 8)
    assert offset_for_timestamp(log, 71) is None
    assert max_timestamp(log) == (70, 8)


def test_batch_nobody_can_decompress_stands_for_its_records(opened):
    log = opened()
    batch = bytearray(encode_batch([(10, None, b"", []), (20, None, b"", [])], codec=4))
    batch[61:] = bytes(len(batch) - 61)
    log.append(memoryview(batch), 1, 20, 0, 0)
    assert offset_for_timestamp(log, 15) == (20, 0)
    assert max_timestamp(log) == (20, 0)


def test_epochs_answer_where_they_end(opened):
    log = opened()
    for epoch in (1, 1, 4, 4, 6):
        append(log, batch_of(), epoch=epoch)
    assert log.leader_epochs.entries == [(1, 0), (4, 2), (6, 4)]
    assert log.end_offset_for_epoch(1) == (1, 2)
    assert log.end_offset_for_epoch(5) == (4, 4)
    assert log.end_offset_for_epoch(6) == (6, 5)
    assert log.end_offset_for_epoch(7) == (-1, -1)
