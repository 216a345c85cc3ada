"""A partition's log on a full or bad disk, what a flush covers, and a log that is parked."""

import os
import resource
from pathlib import Path

import pytest

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import leader_epochs, segment_space
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.flushing import flush_targets
from shmbroker.log.places import locate
from shmbroker.log.retention import delete_records
from shmbroker.log.truncation import truncate_to
from tests.support.descriptors import open_below
from tests.support.partition_logs import append, batch_of, files, fill, opened

__all__ = ["opened"]


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
