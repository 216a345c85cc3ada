"""A partition's log: appending, reading, rolling, cutting, flushing, on a full or bad disk."""

import errno
import itertools
import os
import resource
from pathlib import Path

import pytest

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import leader_epochs, segment_space, truncation
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.flushing import flush_targets
from shmbroker.log.lookups import max_timestamp, offset_for_timestamp, segments_up_to
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.places import locate
from shmbroker.log.retention import delete_records
from shmbroker.log.retiring import delete_log, delete_segments_before
from shmbroker.log.rolling import is_roll_due
from shmbroker.log.truncation import truncate_fully, truncate_to
from shmbroker.records.batch import check_batch, encode_batch, iterate_batches, iterate_records
from shmbroker.records.stamping import stamped
from shmbroker.wire.error_codes import NONE
from tests.support.descriptors import open_below


def batch_of(size=100, count=1, timestamp=1000, **how):
    return encode_batch([(timestamp, b"k", bytes(size), [])] * count, **how)


def append(log, batch, epoch=0, now_ms=0):
    error, header = check_batch(memoryview(batch), 0, len(batch))
    assert error == NONE
    return log.append(memoryview(batch), header[6], header[8], epoch, now_ms)


def fill(log, batches, **how):
    for _ in range(batches):
        append(log, batch_of(**how))


@pytest.fixture
def opened(tmp_path):
    logs = []

    def open_log(settings=None, **how):
        how.setdefault("file_ids", itertools.count(1))
        log = PartitionLog.open(str(tmp_path / "t-0"), LogConfig(settings or {}), **how)
        logs.append(log)
        return log

    yield open_log
    for log in logs:
        log.close(clean=False)


def maybe_roll(log, now_ms):
    """Roll as the next batch, of that time, would; whether it did."""
    is_due = log.active.size > 0 and is_roll_due(log, 0, log.log_end_offset, now_ms, now_ms)
    if is_due:
        log.roll(now_ms)
    return is_due


def files(log):
    return sorted(os.listdir(log.directory))


# --- append and read ---


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


# --- rolling ---


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


# --- lookups ---


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


# --- cutting ---


def test_truncation_leaves_zeros_behind(opened):
    log = opened()
    fill(log, 10)
    one = log.active.size // 10
    assert truncate_to(log, 4)
    assert (log.log_end_offset, log.active.size) == (4, 4 * one)
    append(log, batch_of())
    with open(log.active.path, "rb") as file:
        assert not any(file.read()[5 * one :])
    assert not truncate_to(log, 5)


def test_reader_of_before_a_truncation_finds_the_new_batches(opened):
    log = opened()
    fill(log, 3, size=10)
    assert log.read(0, 1, 3)[2] > 0
    assert log.read(1, 1, 3)[2] > 0
    assert log.read(2, 1, 3)[2] > 0
    truncate_to(log, 1)
    assert log.read(3, 100, 1) is None
    fill(log, 2, size=500)
    for offset in (1, 2):
        segment, position, _ = log.read(offset, 1, 3)
        assert segment.read_bytes(position, 8) == offset.to_bytes(8, "big")
    assert log.read(3, 1, 3)[2] == 0


def test_truncation_inside_a_batch_takes_it_whole(opened):
    log = opened()
    fill(log, 2, count=5)
    assert truncate_to(log, 7)
    assert log.log_end_offset == 5


def test_truncation_removes_later_segments_and_what_belongs_to_them(opened):
    log = opened()
    for epoch in range(3):
        append(log, batch_of(producer_id=5, producer_epoch=0, base_sequence=epoch), epoch=epoch)
        log.producers.update(5, 0, epoch, 0, epoch, 1000)
        log.roll()
    assert truncate_to(log, 1)
    assert log.leader_epochs.entries == [(0, 0)]
    assert log.producers.check(5, 0, 1, 0) == (NONE, -1, -1)
    assert log.producers.check(5, 0, 0, 0) == (NONE, 0, 1000)
    assert {name[:20] for name in files(log) if name[0] == "0"} == {f"{n:020d}" for n in (0, 1)}
    assert append(log, batch_of()) == 1


def test_a_cut_to_nothing_that_a_full_disk_refuses_is_made_again(opened, monkeypatch):
    log = opened()
    fill(log, 4)
    real = os.open

    def refuse(path, flags, *more, **named):
        if flags & os.O_CREAT and str(path).startswith(log.directory):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for _ in range(2):
            with pytest.raises(StorageFault):
                truncate_to(log, 0)
    assert truncate_to(log, 0)
    fill(log, 2)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (0, 2, 1)


def test_truncation_before_everything_starts_anew(opened):
    log = opened()
    fill(log, 3)
    truncate_fully(log, 100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    log.close(clean=True)
    again = opened(log_start_offset=100)
    assert again.log_end_offset == 100
    assert append(again, batch_of()) == 100


@pytest.mark.parametrize(
    ("was_tiered", "log_start", "expected"),
    [("true", None, 100), ("true", 1, 1), ("false", None, 100)],
)
def test_log_with_a_remote_store_that_starts_anew_begins_there_after_a_kill(
    opened, was_tiered, log_start, expected
):
    """Whose first segment does not say where it begins, as what is before may be in the store: a
    checkpoint that is older would bring deleted offsets back. It may have got its store since."""
    log = opened({"remote.storage.enable": was_tiered})
    fill(log, 3)
    truncate_fully(log, 100, log_start)
    log.close(clean=False)
    again = opened({"remote.storage.enable": "true"}, log_start_offset=0)
    assert (again.log_start_offset, again.log_end_offset) == (expected, 100)


def test_slice_in_flight_survives_deletion(opened):
    log = opened()
    fill(log, 2)
    log.roll()
    segment, position, length = log.read(0, 1 << 20, 2)
    held = os.dup(segment.fd)
    expected = segment.read_bytes(position, length)
    assert delete_segments_before(log, 2) == 1
    assert log.log_start_offset == 2
    assert os.pread(held, length, position) == expected
    os.close(held)
    assert log.read(1, 100, 2) is None


def test_deleted_log_is_renamed_away(opened):
    log = opened()
    fill(log, 1)
    away = delete_log(log, "ab" * 16)
    assert os.path.basename(away) == f"t-0.{'ab' * 16}-delete"
    assert not os.path.exists(log.directory)
    assert "00000000000000000000.log" in os.listdir(away)


# --- the disk ---


def test_full_disk_refuses_the_batch_and_nothing_else(opened):
    log = opened()
    fill(log, 3)
    before = log.active.size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        for _ in range(3):
            with pytest.raises(DiskFullFault):
                append(log, batch_of(size=200_000))
        assert (log.active.size, log.log_end_offset) == (before, 3)
        assert log.read(0, 1 << 20, 3)[2] == before
        # A smaller one still fits into what is there, and into less than a whole extent.
        while log.active.size < 90_000:
            append(log, batch_of(size=1000))
        with pytest.raises(DiskFullFault):
            fill(log, 20, size=1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    end = log.log_end_offset
    assert append(log, batch_of(size=200_000)) == end
    log.close(clean=True)
    assert opened().log_end_offset == end + 1


def test_full_disk_at_a_roll_leaves_the_log_as_it_was(opened, monkeypatch):
    log = opened({"segment.bytes": "50000"})
    fill(log, 4, size=9000)

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(segment_space.os, "posix_fallocate", refuse)
        with pytest.raises(DiskFullFault):
            fill(log, 2, size=9000)
        assert len(log.segments) == 1
        end = log.log_end_offset
        assert log.read(0, 1 << 20, end)[2] == log.active.size
    assert append(log, batch_of(size=9000)) == end
    assert len(log.segments) == 2


def test_bad_disk_is_another_fault(opened, monkeypatch):
    log = opened()

    def refuse(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(segment_space.os, "posix_fallocate", refuse)
    with pytest.raises(StorageFault) as caught:
        append(log, batch_of())
    assert not isinstance(caught.value, DiskFullFault)


@pytest.mark.parametrize("refused", ["open", "ftruncate", "truncate"])
@pytest.mark.parametrize("what", ["park", "roll", "append that rolls"])
def test_a_log_goes_on_where_it_was_when_it_could_not_be_parked_or_rolled(
    opened, monkeypatch, what, refused
):
    log = opened({"segment.bytes": "20000"})
    fill(log, 50, size=200)
    before = log.active.offset_index.count
    assert before
    with monkeypatch.context() as patch:
        refuse_changes(patch, log.active, refused)
        with pytest.raises(StorageFault):
            if what == "append that rolls":
                append(log, batch_of(size=9000))
            else:
                {"park": log.park, "roll": log.roll}[what]()
    assert [name for name in files(log) if name.endswith(".log")] == [f"{0:020d}.log"]
    for _ in range(2):
        append(log, batch_of())
        log.populate_step(0)
    append(log, batch_of(size=9000))
    append(log, batch_of())
    assert [segment.base_offset for segment in log.segments] == [0, 52]
    log.close(clean=True)
    again = opened(clean=False)
    assert again.log_end_offset == 54
    assert [locate(again, offset)[0].base_offset for offset in (0, 51, 52, 53)] == [0, 0, 52, 52]


def refuse_changes(patch, segment, name):
    """The disk refuses a call that changes the files of a segment."""
    real = getattr(os, name)
    ours = segment.path.removesuffix(".log")

    def refuse(where, *arguments, **options):
        path = os.readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else where
        if path.startswith(ours):
            raise OSError(5, "Input/output error")
        return real(where, *arguments, **options)

    patch.setattr(os, name, refuse)


def test_damaged_header_is_a_fault_not_a_crash(opened):
    log = opened({"segment.bytes": "2000"})
    fill(log, 30)
    with open(log.segments[0].path, "r+b") as file:
        file.seek(log.segments[0].size // 2)
        file.write(b"\xff" * 400)
    with pytest.raises(CorruptFault):
        log.boundaries.clear()
        locate(log, 8)
    assert locate(log, 29)[0] is log.active


def test_offsets_are_in_order_whatever_moves_them(opened):
    log = opened()
    fill(log, 5)
    log.flush()
    fill(log, 5)
    assert delete_records(log, -1, 8) == 8
    assert log.recovery_point < log.local_start_offset == 8
    truncate_to(log, 9)
    log.flush()
    assert (log.recovery_point, log.log_end_offset) == (9, 9)
    truncate_to(log, 3)
    assert (log.log_start_offset, log.recovery_point, log.log_end_offset) == (3, 3, 3)
    log.log_start_offset = 4
    with pytest.raises(AssertionError):
        log.find_local_start()
    log.log_start_offset, log.recovery_point = 3, 4
    with pytest.raises(AssertionError):
        log.find_local_start()


def begin_flush(log):
    """The names of the files that it syncs, and the rest of it."""
    flush = flush_targets(log)
    descriptors = flush.begin()
    names = [os.path.basename(os.readlink(f"/proc/self/fd/{fd}")) for fd in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return names, flush


def test_flush_covers_what_is_not_durable_yet(opened):
    log = opened()
    fill(log, 3)
    names, flush = begin_flush(log)
    assert {"00000000000000000000.log", "leader-epoch-checkpoint", "t-0"} <= set(names)
    assert flush.recovery_point == 3
    fill(log, 1)
    flush.end()
    assert log.recovery_point == 3
    log.roll()
    fill(log, 1)
    log.flush()
    assert log.recovery_point == 5
    assert begin_flush(log)[0] == ["00000000000000000004.log"]


@pytest.mark.parametrize("refused", ["t-0", "leader-epoch-checkpoint", f"{2:020d}.log"])
def test_what_a_refused_flush_was_to_cover_the_next_one_covers(opened, monkeypatch, refused):
    log = opened()
    fill(log, 2)
    log.flush()
    log.roll()
    append(log, batch_of(), epoch=1)
    log.recovery_point = 2  # so that only `rolled` knows of the first segment
    real = os.open

    def refuse(path, flags, *arguments, **options):
        if path.endswith(refused) and not flags & os.O_ACCMODE:
            raise OSError(24, "Too many open files")
        return real(path, flags, *arguments, **options)

    before = open_below(log.directory)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageFault):
            flush_targets(log)
    assert open_below(log.directory) == before
    due = {f"{0:020d}.log", f"{2:020d}.log", "leader-epoch-checkpoint", "t-0"}
    assert due <= set(begin_flush(log)[0])
    assert not due & set(begin_flush(log)[0]) - {f"{2:020d}.log"}


def test_records_are_not_durable_before_their_epoch_is_in_its_file(opened, monkeypatch):
    def refuse(path, *arguments, **options):
        raise StorageFault(f"can't write {path}")

    log = opened()
    fill(log, 1)
    log.flush()
    with monkeypatch.context() as patch:
        patch.setattr(leader_epochs, "write_file", refuse)
        append(log, batch_of(), epoch=7)
        with pytest.raises(StorageFault, match="leader-epoch-checkpoint"):
            log.flush()
        assert log.recovery_point == 1
    log.flush()
    assert log.recovery_point == log.log_end_offset
    assert "7 1" in Path(log.leader_epochs.path).read_text()


def test_what_changes_while_a_flush_is_under_way_is_for_the_next(opened):
    log = opened()
    fill(log, 2)
    _, flush = begin_flush(log)
    log.roll()
    append(log, batch_of(), epoch=1)
    flush.end()
    names, _ = begin_flush(log)
    assert {f"{0:020d}.log", f"{2:020d}.log", "leader-epoch-checkpoint", "t-0"} <= set(names)


def test_a_flush_that_began_before_a_cut_says_nothing_of_what_came_behind_it(opened):
    log = opened()
    fill(log, 10)
    _, flush = begin_flush(log)
    truncate_to(log, 5)
    fill(log, 10)
    flush.end()
    assert log.recovery_point <= 5
    log.flush()
    assert log.recovery_point == 15


def test_parked_log_holds_nothing_and_goes_on(opened):
    log = opened()
    fill(log, 50)
    log.read(0, 100, 10)
    assert open_below(log.directory)
    log.park()
    assert open_below(log.directory) == []
    assert os.path.getsize(log.active.path) == log.active.size
    fill(log, 50)
    assert log.log_end_offset == 100
    assert log.active.offset_index.count == 100 * len(batch_of()) // 4097


def test_closing_an_untouched_log_touches_nothing(opened, monkeypatch):
    log = opened()
    fill(log, 3)
    log.close(clean=True)
    empty = opened()
    assert empty.log_end_offset == 3
    empty.on_flushed(3)
    before = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(log.directory)}

    def refuse(*arguments):
        raise AssertionError

    monkeypatch.setattr(os, "fdatasync", refuse)
    empty.close(clean=True)
    assert {e.name: e.stat().st_mtime_ns for e in os.scandir(log.directory)} == before


def test_epoch_without_a_batch_needs_no_file(opened):
    log = opened()
    log.leader_epochs.assign(5, 0)
    log.flush()
    log.close(clean=True)
    assert files(log) == []
    log = opened()
    log.leader_epochs.assign(5, 0)
    append(log, batch_of(), epoch=5)
    assert "leader-epoch-checkpoint" in files(log)


def test_open_files_are_bounded(opened):
    descriptors = Descriptors(4)
    log = opened({"segment.bytes": "500"}, descriptors=descriptors)
    fill(log, 60)
    before = len(open_below(log.directory))
    for offset in range(60):
        segment, position, _ = log.read(offset, 100, 60)
        assert segment.read_bytes(position, 8) == offset.to_bytes(8, "big")
    assert len(open_below(log.directory)) <= before + 4
    descriptors.close_all()


def test_cut_leaves_a_file_that_is_a_backups_too(opened, tmp_path):
    """A hard link of a finished segment, as `shmbroker backup` makes, is what it was."""
    log = opened({"segment.bytes": "1000"})
    fill(log, 12)
    assert [segment.base_offset for segment in log.segments] == [0, 5, 10]
    segment = log.segments[1]
    linked = tmp_path / "linked"
    linked.hardlink_to(segment.path)
    before, file_id = linked.read_bytes(), segment.file_id
    assert truncate_to(log, 7)
    fill(log, 1, size=50)
    assert linked.read_bytes() == before
    assert (log.log_end_offset, log.active) == (8, segment)
    kept = segment.find(7)[0]
    assert segment.read_bytes(0, kept) == before[:kept]
    assert segment.file_id != file_id, "who has the old file open sees nothing of what is new"


def test_cut_of_such_a_file_that_a_full_disk_refuses_changes_nothing(opened, tmp_path, monkeypatch):
    log = opened({"segment.bytes": "1000"})
    fill(log, 12)
    (tmp_path / "linked").hardlink_to(log.segments[1].path)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(truncation, "copy_piece", refuse)
        with pytest.raises(DiskFullFault):
            truncate_to(log, 7)
    assert (log.log_end_offset, len(log.segments)) == (12, 3)
    assert truncate_to(log, 7)
    assert log.log_end_offset == 7
