"""Reads for clients don't wait for the disk: a page cache that is a set, through all of a log."""

import errno
import itertools
import os
from pathlib import Path

import pytest

from shmbroker.log import residency
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.residency import ColdBytes
from shmbroker.records.batch import encode_batch

PAGE = 4096
BATCHES = 64


class PageCache:
    """(inode, page) of what is in memory; all the rest is cold until somebody asks for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: set[tuple[int, int]] = set()
        self.on_way: set[tuple[int, int]] = set()
        self.waits = 0
        self._pread, self._preadv = os.pread, os.preadv
        monkeypatch.setattr(os, "pread", self.pread)
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "posix_fadvise", self.fadvise)

    def _of(self, fd: int, position: int, length: int) -> list[tuple[int, int]]:
        end = min(position + length, os.fstat(fd).st_size)
        inode = os.fstat(fd).st_ino
        return [(inode, page) for page in range(position // PAGE, (end + PAGE - 1) // PAGE)]

    def pread(self, fd: int, length: int, position: int) -> bytes:
        wanted = self._of(fd, position, length)
        self.waits += not self.pages.issuperset(wanted)
        self.pages.update(wanted)
        return self._pread(fd, length, position)

    def preadv(self, fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        length = len(buffers[0])
        warm = 0
        for page in self._of(fd, position, length):
            if page not in self.pages:
                break
            warm = (page[1] + 1) * PAGE - position
        if not warm and length and position < os.fstat(fd).st_size:
            raise OSError(errno.EAGAIN, "cold")
        data = self._pread(fd, min(warm, length), position)
        buffers[0][: len(data)] = data
        return len(data)

    def fadvise(self, fd: int, position: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        self.on_way.update(self._of(fd, position, length))

    def bring(self) -> int:
        """What was asked for arrives; how many pages were new."""
        new = len(self.on_way - self.pages)
        self.pages |= self.on_way
        self.on_way.clear()
        return new


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Two closed segments and an active one, reopened, so that nothing is known of the first."""
    config = LogConfig({"index.interval.bytes": "0"})
    made = PartitionLog.open(str(tmp_path / "t-0"), config, file_ids=itertools.count(1))
    for number in range(3 * BATCHES):
        made.append(memoryview(encode_batch([(1000, b"k", bytes(1500), ())])), 0, 1000, 0, 0)
        if number % BATCHES == BATCHES - 1 and number < 2 * BATCHES:
            made.roll()
    made.close(clean=True)
    return PartitionLog.open(str(tmp_path / "t-0"), config, file_ids=itertools.count(1))


def read_all(log: PartitionLog, cache: PageCache, max_bytes: int) -> tuple[list[int], int]:
    """(offsets that fetches began at, how often they had to come again)."""
    offset, places, retries = 0, [], 0
    while offset < 2 * BATCHES:
        residency.refuse_waiting()
        try:
            segment, position, length = log.read(offset, max_bytes, log.log_end_offset)
        except ColdBytes:
            retries += 1
            assert cache.bring(), "what it came for is not on its way"
            continue
        finally:
            residency.allow_waiting()
        places.append(offset)
        assert length
        *_, (_, header) = segment.headers(position, position + length)
        offset = header[0] + header[6] + 1
        cache.bring()
    return places, retries


@pytest.mark.parametrize("max_bytes", [1, 5000, 20_000, 1 << 20])
def test_cold_reads_find_the_same_and_never_wait(
    log: PartitionLog, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        warm = PageCache(patch)
        for name in os.listdir(log.directory):
            with open(os.path.join(log.directory, name), "rb") as file:
                warm.fadvise(file.fileno(), 0, 1 << 30, os.POSIX_FADV_WILLNEED)
        warm.bring()
        places, retries = read_all(log, warm, max_bytes)
        assert retries == 0
    log.close(clean=True)
    again = PartitionLog.open(log.directory, log.config, file_ids=itertools.count(1))
    cold = PageCache(monkeypatch)
    found, retries = read_all(again, cold, max_bytes)
    assert found == places
    assert retries > 0
    # `headers` of the test itself waits; a fetch does not.
    assert cold.waits <= len(places)


def test_a_random_cold_read_does_not_wait(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PageCache(monkeypatch)
    for offset in (100, 3, 70, 127):
        retries = 0
        while True:
            residency.refuse_waiting()
            try:
                found = log.read(offset, 4000, log.log_end_offset)
                break
            except ColdBytes:
                retries += 1
                assert cache.bring()
            finally:
                residency.allow_waiting()
        assert found is not None and found[2] > 0
        assert retries < 8
    assert cache.waits == 0


def test_all_else_waits(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PageCache(monkeypatch)
    assert log.read(5, 4000, log.log_end_offset)
    assert cache.waits > 0


def test_an_index_is_rebuilt_in_one_go(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(os.path.join(log.directory, f"{0:020d}.index"))
    cache = PageCache(monkeypatch)
    places, _ = read_all(log, cache, 5000)
    assert places[0] == 0 and len(places) > 10


def test_a_file_system_that_cannot_say_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(os, "preadv", refuse)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    try:
        residency.refuse_waiting()
        assert residency.read(fd, 4, 3) == b"3456"
        assert residency.read(fd, 40, 8) == b"89"
        assert not residency.is_cold(fd, 0)
    finally:
        residency.allow_waiting()
        os.close(fd)
