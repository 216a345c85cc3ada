"""What a follower cuts, and where it begins anew, by what its leader tells."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.replication import cutting
from shmbroker.broker.replication.cutting import AHEAD_RETRY_MS, Cutting
from shmbroker.broker.replication.followed import RETRY_MS, Link, Retries
from shmbroker.log.truncation import StateAt

BROKER = 2
END = 20
"""Where the follower's log ends."""


class Follower:
    """A follower's log, of which is noted how it changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own = (-1, -1)
        self.changes: list[tuple[Any, ...]] = []
        self.ahead: list[Any] = []
        epochs = SimpleNamespace(end_offset_for=lambda _epoch, _end: self.own)
        self.log: Any = SimpleNamespace(
            leader_epochs=epochs,
            log_end_offset=END,
            log_start_offset=0,
            config=SimpleNamespace(is_tiered=False, is_unclean_allowed=False),
        )
        self.partition: Any = SimpleNamespace(
            log=self.log, topic="t", partition=0, leader_id=1, leader_epoch=5, may_be_cut=False,
            high_watermark=0, in_sync_replicas=(1,), on_truncated=lambda: None,
            is_offline=False,
        )  # fmt: skip
        peer: Any = None
        files: Any = None
        row = Link(peer, files).add(self.partition)
        assert row is not None
        self.row = row
        for name in ("truncate_to", "truncate_fully", "begin_at"):
            monkeypatch.setattr(cutting, name, self.noting(name))
        self.retries = Retries(lambda: 0)
        self.asked: list[tuple[Any, ...]] = []
        self.cutting = Cutting(
            BROKER, self.retries, self.no_fault, self.ahead.append, self.find_state
        )

    def noting(self, name: str) -> Any:
        return lambda log, *offsets: self.changes.append((name, *offsets))

    def find_state(self, *question: Any) -> None:
        self.asked.append(question)

    def no_fault(self, *_: object) -> None:
        raise AssertionError

    def retried_ms(self) -> list[int]:
        assert self.row.link.changed == {} or not self.retries.waiting
        return [due for due, _ in self.retries.waiting]


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> Follower:
    return Follower(monkeypatch)


@pytest.mark.parametrize(
    ("own", "leader", "offset"),
    [
        ((3, 12), (3, 15), 12),
        ((3, 18), (3, 15), 15),
        ((0, 12), (0, 15), 12),
        ((1, 12), (3, 15), 12),
        ((-1, -1), (3, 15), 15),
        ((3, 30), (3, 40), END),
        ((3, 2), (3, 15), 4),
    ],
)
def test_it_is_cut_to_the_least_of_both_ends_of_an_epoch(
    follower: Follower, own: tuple[int, int], leader: tuple[int, int], offset: int
) -> None:
    """Where its own log does not end, and not before it begins."""
    follower.own, follower.log.log_start_offset = own, 4
    follower.cutting.cut(follower.row, *leader)
    assert follower.changes == [("truncate_to", offset)]
    assert follower.row in follower.row.link.changed, "the next READ asks from there"


@pytest.mark.parametrize(
    ("in_sync", "high_watermark", "begins_anew"),
    [((1,), 0, True), ((1,), 7, True), ((1, BROKER), 0, True), ((1, BROKER), 7, False)],
)
def test_it_begins_anew_behind_its_end_unless_it_is_in_sync(
    follower: Follower, in_sync: tuple[int, ...], high_watermark: int, begins_anew: bool
) -> None:
    """What is committed is on all that are in sync: a leader without it is not to be followed."""
    partition = follower.partition
    partition.in_sync_replicas, partition.high_watermark = in_sync, high_watermark
    follower.cutting.fit(follower.row, END + 1, 100)
    if begins_anew:
        assert follower.changes == [("truncate_fully", END + 1)]
        assert follower.ahead == follower.retried_ms() == []
    else:
        assert follower.changes == []
        assert follower.ahead == [partition]
        assert follower.retried_ms() == [AHEAD_RETRY_MS]
        follower.cutting.fit(follower.row, END + 1, 100)
        assert follower.ahead == [partition], "it is said once in an epoch"


@pytest.mark.parametrize(
    ("leader_end", "changes"),
    [
        (END - 1, [("truncate_to", END - 1)]),
        (0, [("truncate_to", 0)]),
        (END, []),
        (END + 1, []),
        (-1, []),
    ],
)
def test_it_is_cut_where_its_leader_ends(
    follower: Follower, leader_end: int, changes: list[tuple[Any, ...]]
) -> None:
    follower.cutting.fit(follower.row, 0, leader_end)
    assert follower.changes == changes
    assert follower.retried_ms() == ([] if changes else [RETRY_MS])


def test_a_log_that_ends_where_its_leaders_begins_goes_on(follower: Follower) -> None:
    follower.cutting.fit(follower.row, END, END + 5)
    assert follower.changes == []
    assert follower.retried_ms() == [RETRY_MS]


@pytest.mark.parametrize(
    ("is_tiered", "local_start", "begins_anew"),
    [(True, END + 1, True), (True, END, False), (False, END + 1, False)],
)
def test_what_is_in_the_remote_store_alone_is_passed_over(
    follower: Follower, is_tiered: bool, local_start: int, begins_anew: bool
) -> None:
    follower.log.config.is_tiered = is_tiered
    follower.cutting.begin_behind(follower.row, 3, local_start)
    assert follower.retried_ms() == ([] if begins_anew else [RETRY_MS])
    for partition, offset, on_state in follower.asked:
        assert (partition, offset) == (follower.partition, local_start - 1)
        assert follower.changes == []
        state = StateAt(local_start + 2, [(0, 0)], b"")
        on_state(state)
        assert follower.changes == [("begin_at", state, 3)]
    assert len(follower.asked) == begins_anew


def test_what_was_committed_is_not_cut(follower: Follower) -> None:
    follower.partition.high_watermark = 16
    follower.cutting.fit(follower.row, 0, 16)
    assert follower.changes == [("truncate_to", 16)]
    follower.row.link.changed.clear()
    follower.cutting.fit(follower.row, 0, 15)
    assert follower.changes == [("truncate_to", 16)]
    assert follower.ahead == [follower.partition]
    assert follower.retried_ms() == [AHEAD_RETRY_MS]
