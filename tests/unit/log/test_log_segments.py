"""Logs of many segments: what is asked of the disk and kept for them."""

import itertools
import os
from types import SimpleNamespace

import pytest

from shmbroker.log import descriptors as descriptors_module
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import retain
from tests.support.many_segments import BATCHES, write_log

NOW_MS = 1_700_000_000_000


def counted(monkeypatch, work):
    """({call: how often}, its result) of the calls that ask the disk for a path."""
    calls = dict.fromkeys(("open", "stat", "listdir"), 0)

    def counting(name, real):
        def call(*args, **kwargs):
            calls[name] += 1
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name in calls:
            patched.setattr(os, name, counting(name, getattr(os, name)))
        result = work()
    return calls, result


def opened(directory, end):
    return PartitionLog.open(
        str(directory),
        LogConfig({"retention.ms": "1000", "index.interval.bytes": "0"}),
        file_ids=itertools.count(1),
        recovery_point=end,
        cleaned_offset=0,
        now_ms=NOW_MS,
    )


def test_a_clean_log_opens_with_as_many_looks_at_the_disk_whatever_its_segments(
    tmp_path, monkeypatch
):
    taken = []
    for segments in (2, 60):
        directory = tmp_path / f"t-{segments}"
        end = write_log(directory, segments, NOW_MS)
        open_calls, log = counted(monkeypatch, lambda d=directory, e=end: opened(d, e))
        retain_calls, count = counted(monkeypatch, lambda log=log, e=end: retain(log, e, NOW_MS))
        assert (len(log.segments), count) == (segments, 0)
        taken.append((open_calls, retain_calls))
        log.close(clean=False)
    assert taken[0] == taken[1]


def test_an_index_that_is_cut_within_an_entry_is_rebuilt_when_it_is_used(tmp_path):
    end = write_log(tmp_path / "t-0", 3, NOW_MS)
    for suffix in (".index", ".timeindex"):
        path = tmp_path / "t-0" / f"{BATCHES:020d}{suffix}"
        whole = path.read_bytes()
        path.write_bytes(whole[:-5])
        log = opened(tmp_path / "t-0", end)
        assert log.segments[1].max_timestamp == NOW_MS + 2 * BATCHES - 1
        assert path.read_bytes() == whole
        log.close(clean=False)


def test_what_was_read_of_segments_is_forgotten_with_their_descriptors(tmp_path):
    end = write_log(tmp_path / "t-0", 10, NOW_MS)
    descriptors = Descriptors(2)
    log = PartitionLog.open(
        str(tmp_path / "t-0"),
        LogConfig(),
        file_ids=itertools.count(1),
        recovery_point=end,
        now_ms=NOW_MS,
        descriptors=descriptors,
    )
    for offset in range(end):
        log.read(offset, 1, end)
    kept = [segment for segment in log.segments if segment.offset_index._block]
    assert kept == log.segments[-2:]
    log.close(clean=False)
    descriptors.close_all()


def test_files_that_are_written_stay_open_but_for_the_first_of_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(descriptors_module, "WRITTEN_MAX", 2)
    descriptors = Descriptors()
    files = [SimpleNamespace(file_id=each, path=tmp_path / str(each)) for each in range(3)]
    for file in files:
        file.path.touch()
    first = [descriptors.to_write(file) for file in files[:2]]
    assert [descriptors.to_write(file) for file in files[:2]] == first
    for fd in first:
        assert os.pwrite(fd, b"x", 0) == 1
    third = descriptors.to_write(files[2])  # may have the number of the one that is closed for it
    assert os.path.samestat(os.fstat(third), files[2].path.stat())
    files[0].path.unlink()
    with pytest.raises(FileNotFoundError):
        descriptors.to_write(files[0])
    files[1].path.rename(tmp_path / "aside")
    assert os.path.samestat(os.fstat(descriptors.to_write(files[1])), (tmp_path / "aside").stat())
    descriptors.close(1)
    with pytest.raises(FileNotFoundError):
        descriptors.to_write(files[1])
    descriptors.close_all()
    for fd in (first[1], third):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_fewer_stay_open_to_be_written_where_few_may_be(monkeypatch):
    monkeypatch.setattr(descriptors_module.resource, "getrlimit", lambda _which: (64, 64))
    assert Descriptors()._written_max == 4
