"""What is copied, deleted and listed, and how a log is brought together with a list, by table."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.tiering.lists import FOLLOWER_REFRESH_MS, Lists
from shmbroker.broker.tiering.remotes import BACKOFF_MS_MIN, Remote, RemoteTable
from shmbroker.broker.tiering.states import States
from shmbroker.broker.tiering.uploads import COPIES_MAX, Uploads
from shmbroker.errors import StorageFault
from shmbroker.log.config import LogConfig
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import raise_start
from shmbroker.log.retiring import delete_local_before
from shmbroker.records.batch import encode_batch
from shmbroker.replica.partition import Partition
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.wire.api_keys import TIER_COPY, TIER_DELETE, TIER_LOAD, TIER_STATE
from shmbroker.wire.error_codes import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, NONE
from tests.support.leadership import leadership

SEGMENTS = 4
"""Of one record each; the last one is active."""
BATCH = encode_batch([(1, None, b"value", ())])
NOW_MS = 5000


class Side:
    """A led partition with copies, and what is asked of the tier process about it."""

    def __init__(self, root: Path) -> None:
        config = LogConfig({"remote.storage.enable": "true"})
        self.log = PartitionLog.open(str(root / "t-0"), config, file_ids=itertools.count(1))
        for offset in range(SEGMENTS):
            if offset:
                self.log.roll(1)
            self.log.append(memoryview(BATCH), 0, 1, 0, 1)
        self.log.flush()
        self.partition = Partition(bytes(20), "t", bytes(16), 0, self.log)
        self.partition.on_leadership(1, leadership())
        self.store: Any = SimpleNamespace(
            is_log_start_moved=False,
            raise_log_start=lambda partition, offset: raise_start(partition.log, offset),
            retain=lambda _partition, _now_ms: None,
        )
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.answers: list[Callable[[dict[str, Any]], None]] = []
        self.table = RemoteTable(
            self.store, self.ask, lambda _key: None, lambda: NOW_MS, lambda: NOW_MS
        )
        self.loaded: list[Remote] = []
        self.let_lead: list[Partition] = []
        self.lists = Lists(self.table, States(self.table), self.loaded.append, self.let_lead.append)
        self.uploads = Uploads(self.table)
        self.remote = Remote(self.partition)
        self.table.remotes[self.partition.key] = self.remote

    def ask(self, key: int, _name: str, body: dict[str, Any], on_answer: Any) -> bool:
        self.asked.append((key, body))
        self.answers.append(on_answer)
        return True

    def answer(self, error: int = NONE, **more: Any) -> None:
        self.answers.pop(0)({"error_code": error, "error_message": "so it is", **more})

    def load(self, copies: list[RemoteSegment], damaged: tuple[tuple[int, int], ...] = ()) -> None:
        """The list comes."""
        self.remote.is_current = False
        self.lists.load(self.remote)
        segments = [one._asdict() for one in copies]
        lost = [{"base_offset": a, "end_offset": b, "leader_epoch": 0} for a, b in damaged]
        self.answer(segments=segments, damaged=lost)
        if self.asked[-1][0] == TIER_STATE:  # of an empty log, which goes on behind the copies
            self.answer(offset=self.asked[-1][1]["offset"] + 1, epochs=[], snapshot=b"")
        self.asked.clear()

    def copying(self) -> list[int]:
        return [body["base_offset"] for key, body in self.asked if key == TIER_COPY]


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    made = Side(tmp_path)
    yield made
    made.log.close(clean=False)


def copies(*spans: tuple[int, int]) -> list[RemoteSegment]:
    return [RemoteSegment(start, end, 0, len(BATCH), 1) for start, end in spans]


# ── copies ──────────────────────────────────────────────────────────────────────────────────────


def given_up(side: Side) -> None:
    side.remote.give_up("a test")


def not_to_be_copied(side: Side) -> None:
    settings = {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
    side.log.config = LogConfig(settings)


def not_on_the_disk(side: Side) -> None:
    side.log.recovery_point = 0


def not_committed(side: Side) -> None:
    side.partition.high_watermark = 0


def too_many(side: Side) -> None:
    side.uploads.under_way = COPIES_MAX


def throttled(side: Side) -> None:
    side.uploads.throttle.set_rate(1)
    side.uploads.throttle.take(1000, NOW_MS)


def all_copied(side: Side) -> None:
    side.remote.log.add(*copies((0, 3)))


def nothing(_side: Side) -> None:
    """It is as it is."""


@pytest.mark.parametrize(
    ("before", "copied"),
    [
        (nothing, [0]),
        (given_up, []),
        (not_to_be_copied, []),
        (not_on_the_disk, []),
        (not_committed, []),
        (too_many, []),
        (throttled, []),
        (all_copied, []),
    ],
)
def test_the_next_closed_segment_is_copied_unless(
    side: Side, before: Callable[[Side], None], copied: list[int]
) -> None:
    before(side)
    for _ in range(2):  # one at a time
        side.uploads.run(side.remote)
        assert side.copying() == copied


def test_one_copy_follows_the_other_until_all_closed_segments_are_there(side: Side) -> None:
    side.remote.is_asked = True  # a list is on its way, which may not name them
    side.uploads.run(side.remote)
    while side.answers:
        assert side.uploads.under_way == 1
        side.answer()
    assert side.copying() == [0, 1, 2] and side.uploads.under_way == 0
    assert side.remote.log.end_offset == 3
    assert [copy.base_offset for copy in side.remote.copied] == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "is_given_up", "is_current", "retry_ms"),
    [
        (CORRUPT_MESSAGE, True, True, 0),
        (KAFKA_STORAGE_ERROR, False, False, NOW_MS + BACKOFF_MS_MIN),
    ],
)
def test_after_a_copy_that_failed_the_list_is_asked_for_and_none_is_made_of_what_is_damaged(
    side: Side, error: int, is_given_up: bool, is_current: bool, retry_ms: int
) -> None:
    side.remote.is_current = True
    side.uploads.run(side.remote)
    side.answer(error)
    remote = side.remote
    assert (remote.is_given_up, remote.is_current) == (is_given_up, is_current)
    assert remote.retry_ms == retry_ms
    assert (remote.copying, side.uploads.under_way, side.copying()) == (None, 0, [0])


def test_a_disk_that_refuses_retention_behind_a_copy_is_named_and_copying_goes_on(
    side: Side, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_partition: Partition, _now_ms: int) -> None:
        raise StorageFault("no space")

    side.store.retain = refuse
    side.uploads.run(side.remote)
    side.answer()
    assert side.copying() == [0, 1]
    assert [row.getMessage() for row in caplog.records] == [
        "no space; retention is tried again later"
    ]


def test_a_copy_that_ends_after_its_topic_makes_room_alone(side: Side) -> None:
    side.uploads.run(side.remote)
    side.table.remotes.clear()
    side.answer()
    assert side.uploads.under_way == 0 and side.copying() == [0]


# ── deletions ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("is_moved", "is_given_up", "deleted"),
    [(False, False, [0, 1]), (True, False, []), (False, True, [])],
)
def test_copies_below_a_durable_log_start_are_deleted(
    side: Side, is_moved: bool, is_given_up: bool, deleted: list[int]
) -> None:
    side.load(copies((0, 1), (1, 2), (2, 3)))
    side.log.log_start_offset = side.log.local_start_offset = 2
    side.store.is_log_start_moved = is_moved
    side.remote.is_given_up = is_given_up
    for _ in range(2):  # once
        side.uploads.run(side.remote)
    found = [row["base_offset"] for key, body in side.asked for row in body["segments"]]
    assert found == deleted and {key for key, _ in side.asked} <= {TIER_DELETE}


@pytest.mark.parametrize(("error", "start"), [(NONE, 2), (KAFKA_STORAGE_ERROR, 0)])
def test_a_copy_is_known_until_it_is_deleted(side: Side, error: int, start: int) -> None:
    side.load(copies((0, 2), (2, 3)))
    side.log.log_start_offset = side.log.local_start_offset = 2
    side.uploads.run(side.remote)
    side.answer(error)
    assert side.remote.log.start_offset == start
    assert side.remote.retry_ms == (NOW_MS + BACKOFF_MS_MIN if error else 0)
    side.asked.clear()
    side.uploads.run(side.remote)
    assert [key for key, _ in side.asked] == ([TIER_DELETE] if error else [])


# ── lists ───────────────────────────────────────────────────────────────────────────────────────


def test_a_list_is_asked_for_once_and_not_while_it_is_current(side: Side) -> None:
    for _ in range(2):
        side.lists.load(side.remote)
    assert [key for key, _ in side.asked] == [TIER_LOAD]
    side.answer(segments=[], damaged=[])
    side.lists.load(side.remote)
    assert len(side.asked) == 1 and side.loaded == [side.remote]
    assert side.remote.refresh_ms == NOW_MS + FOLLOWER_REFRESH_MS


def test_a_list_that_can_not_be_had_is_asked_for_later(side: Side) -> None:
    side.lists.load(side.remote)
    side.answer(KAFKA_STORAGE_ERROR)
    remote = side.remote
    assert not (remote.is_asked or remote.is_current or remote.is_loaded or side.loaded)
    assert remote.retry_ms == NOW_MS + BACKOFF_MS_MIN


def test_the_list_of_a_topic_that_is_gone_is_dropped(side: Side) -> None:
    side.lists.load(side.remote)
    side.table.remotes.clear()
    side.answer(segments=[], damaged=[])
    assert not side.loaded and not side.remote.is_loaded


def test_what_is_copied_while_a_list_is_on_its_way_is_taken_in(side: Side) -> None:
    side.remote.copied = copies((2, 3))  # before it was asked for: named by it, if it is there
    side.lists.load(side.remote)
    side.remote.copied += copies((1, 2))
    side.answer(segments=[copies((0, 1))[0]._asdict()], damaged=[])
    assert side.remote.log.segments == copies((0, 1), (1, 2))


@pytest.mark.parametrize(
    ("spans", "damaged", "is_leader", "is_believed"),
    [
        ([], (), True, False),
        ([], (), False, True),
        ([], ((0, 1),), True, True),
        ([(0, 2)], (), True, True),
    ],
)
def test_an_empty_list_is_not_believed_where_the_log_begins_in_the_store(
    side: Side,
    spans: list[tuple[int, int]],
    damaged: tuple[tuple[int, int], ...],
    is_leader: bool,
    is_believed: bool,
) -> None:
    delete_local_before(side.log, 2)
    side.partition.is_leader = is_leader
    side.load(copies(*spans), damaged)
    assert side.remote.is_current is side.remote.is_loaded is is_believed
    assert side.log.log_start_offset == 0
    assert side.remote.retry_ms == (0 if is_believed else NOW_MS + BACKOFF_MS_MIN)


@pytest.mark.parametrize(
    ("local", "spans", "starts"),
    [
        (0, [], (0, 4)),
        (0, [(0, 3)], (0, 4)),
        (2, [(1, 2)], (1, 4)),  # nobody has offset 0
        (2, [(0, 1), (1, 3)], (0, 4)),
        (0, [(0, 3), (3, 9)], (0, 4)),  # the disk has lost some: nothing more is copied
        (4, [(0, 3), (3, 9)], (0, 9)),  # … and is empty: it goes on behind them
        (4, [(2, 9)], (2, 9)),
        (4, [(0, 3), (5, 9)], (0, 4)),  # … but they have a gap
    ],
)
def test_a_log_and_the_copies_of_it_are_brought_together(
    side: Side, local: int, spans: list[tuple[int, int]], starts: tuple[int, int]
) -> None:
    log = side.log
    if local == SEGMENTS:
        log.roll(1)
    delete_local_before(log, local)
    side.load(copies(*spans))
    assert (log.log_start_offset, log.log_end_offset) == starts
    assert side.remote.is_given_up is (log.log_end_offset < side.remote.log.end_offset)
    if log.log_end_offset > SEGMENTS:
        assert side.partition.high_watermark == log.log_end_offset
