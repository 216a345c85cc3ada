"""Pieces of copies: what two fetches bring at once; what is left of those that bring nothing."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.tiering.pieces import FETCHES_MAX, Pieces
from shmbroker.broker.tiering.remotes import FETCH_BACKOFF_MS, Remote, RemoteTable
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.partition_log import PartitionLog
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR

BATCH = encode_batch([(1, None, b"v", ())] * 4)
COPY = RemoteSegment(0, 4, 0, len(BATCH), 1)
FAILED = {"error_code": 56}
BROUGHT = {"error_code": 0, "base_offset": 0, "end_offset": 4, "size": len(BATCH)}


class Cache:
    """The pieces of one partition, and what is asked of the tier process."""

    def __init__(self, root: Path) -> None:
        self.asked: list[tuple[dict[str, Any], Callable[[dict[str, Any]], None]]] = []
        self.has_room = True
        self.log = PartitionLog.open(str(root / "t-0"), LogConfig(), file_ids=itertools.count(1))
        store: Any = SimpleNamespace(
            log_directory=SimpleNamespace(path=str(root / "node-1"), descriptors=Descriptors(8)),
            file_ids=itertools.count(1),
            dropped_file_ids=[],
        )
        self.table = RemoteTable(store, self.ask, lambda _key: None, lambda: 0, lambda: 1)
        self.pieces = Pieces(self.table, str(root / "cache"), 1, 1 << 20)
        partition = Partition(bytes(20), "t", bytes(16), 0, self.log)
        self.remote = Remote(partition)
        self.table.remotes[partition.key] = self.remote

    def ask(self, _key: int, _name: str, body: Any, on_answer: Any) -> bool:
        if self.has_room:
            self.asked.append((body, on_answer))
        return self.has_room

    def fetch(self, *offsets: int) -> None:
        for offset in offsets:
            assert self.pieces.fetch(self.remote, COPY, offset) is None

    def write(self, number: int) -> None:
        """What the tier process does for a fetch."""
        path = os.path.join(self.asked[number][0]["directory"], f"{0:020d}.log")
        with open(path, "xb") as file:
            file.write(BATCH)

    def answer(self, number: int, answer: dict[str, Any]) -> None:
        self.asked[number][1](answer)

    def left(self) -> list[str]:
        return os.listdir(self.pieces.directory)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path)
    yield made
    made.log.close(clean=False)


def test_two_fetches_of_one_piece_do_not_touch_each_other(cache: Cache) -> None:
    """Readers of two offsets of a batch. The first piece may go before the second one comes."""
    cache.fetch(1, 2)
    for number in (0, 1):
        cache.write(number)
    cache.answer(0, BROUGHT)
    cache.pieces.drop_all(cache.remote)
    cache.answer(1, BROUGHT)
    chunk = cache.remote.chunk_of(2)
    assert chunk is not None and chunk.find(2)[0] == 0
    assert len(cache.left()) == 1


def test_of_a_piece_that_comes_twice_one_is_kept(cache: Cache) -> None:
    cache.fetch(1, 2)
    for number in (0, 1):
        cache.write(number)
        cache.answer(number, BROUGHT)
    assert len(cache.remote.chunks) == len(cache.pieces.cache) == len(cache.left()) == 1
    assert cache.pieces.bytes == len(BATCH)
    assert cache.remote.chunks[0].find(2)[0] == 0


@pytest.mark.parametrize(
    "end",
    ["fails", "tier_dies", "is_forgotten", "is_forgotten_and_tier_dies", "no_room", "is_dropped"],
)
def test_nothing_is_left_of_a_fetch_that_comes_to_nothing(cache: Cache, end: str) -> None:
    cache.has_room = end != "no_room"
    cache.fetch(1)
    if cache.has_room:
        cache.write(0)
    if end == "fails":
        cache.answer(0, FAILED)
    elif end == "tier_dies":
        cache.pieces.on_tier_lost()
        cache.remote.on_tier_lost(1)
    elif end == "is_forgotten":
        cache.table.remotes.clear()
        cache.answer(0, BROUGHT)
    elif end == "is_forgotten_and_tier_dies":
        cache.table.remotes.clear()
        cache.pieces.on_tier_lost()
        cache.remote.fetching.clear()  # nobody asks it any more
    elif end == "is_dropped":
        cache.answer(0, BROUGHT)
        cache.pieces.drop_all(cache.remote)
    assert cache.left() == []
    assert not cache.remote.fetching


def bring(cache: Cache, base_offset: int) -> int:
    """A piece of four offsets is asked for and comes; its file id."""
    cache.fetch(base_offset)
    body, on_answer = cache.asked.pop()
    with open(os.path.join(body["directory"], f"{base_offset:020d}.log"), "xb") as file:
        file.write(BATCH)
    on_answer(BROUGHT | {"base_offset": base_offset, "end_offset": base_offset + 4})
    return next(reversed(cache.pieces.cache))


def test_beyond_the_bound_the_piece_goes_that_was_not_used_for_the_longest_time(
    cache: Cache,
) -> None:
    cache.pieces.bytes_max = 2 * len(BATCH)
    first, second = bring(cache, 0), bring(cache, 4)
    cache.pieces.on_read(*cache.pieces.cache[first])
    third = bring(cache, 8)
    assert list(cache.pieces.cache) == [first, third]
    assert cache.table.store.dropped_file_ids == [second]
    cache.pieces.bytes_max = 1
    fourth = bring(cache, 12)
    assert list(cache.pieces.cache) == [fourth], "the last one is kept, however large"
    assert cache.pieces.bytes == len(BATCH) and len(cache.left()) == 1


def test_the_first_read_from_a_piece_fetches_the_next(cache: Cache) -> None:
    cache.log.local_start_offset = 8
    cache.remote.log.add(COPY._replace(base_offset=4, end_offset=9))
    first = bring(cache, 0)
    for _ in range(2):
        cache.pieces.on_read(*cache.pieces.cache[first])
        assert [body["offset"] for body, _ in cache.asked] == [4]
    cache.remote.fetching.clear()
    second = bring(cache, 4)
    cache.pieces.on_read(*cache.pieces.cache[second])
    assert len(cache.asked) == 1, "what follows is here"


@pytest.mark.parametrize(
    ("offsets", "asked"),
    [((1, 1), 1), ((1, 2), 2), (tuple(range(9)), FETCHES_MAX)],
)
def test_a_piece_is_asked_for_once_and_few_at_a_time(
    cache: Cache, offsets: tuple[int, ...], asked: int
) -> None:
    cache.fetch(*offsets)
    assert len(cache.asked) == asked


def test_after_a_failure_reads_are_refused_for_a_while(cache: Cache) -> None:
    cache.fetch(1)
    cache.answer(0, FAILED)
    for now, is_asked in ((FETCH_BACKOFF_MS, False), (FETCH_BACKOFF_MS + 1, True)):
        cache.table.steady_ms = lambda now=now: now
        error = cache.pieces.fetch(cache.remote, COPY, 1)
        assert error == (None if is_asked else KAFKA_STORAGE_ERROR)
        assert len(cache.asked) == 1 + is_asked


def test_a_reader_is_woken_by_what_comes_and_by_what_does_not(cache: Cache) -> None:
    woken: list[bytes] = []
    cache.table.wake = woken.append
    bring(cache, 0)
    cache.fetch(5)
    cache.answer(0, FAILED)
    assert woken == [cache.remote.partition.key] * 2


def test_a_process_begins_with_an_empty_cache_and_leaves_those_of_others(tmp_path: Path) -> None:
    for name in ("node-1.7", "node-12.1", "node-2.1"):
        (tmp_path / "cache" / name / "t-0").mkdir(parents=True)
    made = Cache(tmp_path)
    assert sorted(os.listdir(tmp_path / "cache")) == ["node-12.1", "node-2.1"]
    made.log.close(clean=False)
