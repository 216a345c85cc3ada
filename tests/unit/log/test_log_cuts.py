"""A partition's log that is cut or deleted: what goes, and what others still read."""

import errno
import os

import pytest

from shmbroker.errors import StorageFault
from shmbroker.log import truncation
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.retiring import delete_log, delete_segments_before
from shmbroker.log.truncation import truncate_fully, truncate_to
from shmbroker.wire.error_codes import NONE
from tests.support.partition_logs import append, batch_of, files, fill, opened

__all__ = ["opened"]


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
