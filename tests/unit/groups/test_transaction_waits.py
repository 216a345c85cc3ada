"""Operations on a transactional id that wait for the markers of what has ended: for how long, and
that each is told once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.groups.transactions.producer_requests import WAIT_MS
from shmbroker.groups.transactions.transaction import EMPTY, ONGOING
from shmbroker.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
)
from tests.unit.groups.transactions_at_work import DAY_MS, Broker, assert_counts, open_one, state_of


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    assert_counts(broker)


def test_what_comes_during_the_markers_waits_for_them(broker: Broker) -> None:
    known = open_one(broker)
    following = broker.end(known).known
    added = broker.add(following, ("t", 5))
    ended = broker.end(known)  # its own retry
    assert added.is_waiting and ended.is_waiting
    broker.mark()
    assert added.known.state == ONGOING
    assert added.known.partitions == {("t", 5)}
    # The next transaction has begun already: the retry is of one that is not the last any more.
    assert ended.error == PRODUCER_FENCED


def test_what_waits_is_told_after_a_while(broker: Broker) -> None:
    following = broker.end(open_one(broker)).known
    answers = [broker.add(following), broker.init(), broker.end(following, epoch=0)]
    assert broker.transactions.wake_ms == broker.now_ms + WAIT_MS
    broker.wait(WAIT_MS - 1)
    assert all(answer.is_waiting for answer in answers)
    broker.wait(1)
    assert [answer.error for answer in answers] == [CONCURRENT_TRANSACTIONS] * 3
    broker.mark()
    assert all(not answer.is_waiting for answer in answers)
    assert state_of(broker) == "CompleteCommit"


def test_what_waits_is_not_forgotten_over_other_turns(broker: Broker) -> None:
    following = broker.end(open_one(broker)).known
    answer = broker.add(following)
    broker.transactions.run_due()
    assert answer.is_waiting
    broker.wait(WAIT_MS)
    assert answer.error == CONCURRENT_TRANSACTIONS


def test_what_has_waited_is_told_once(broker: Broker) -> None:
    following = broker.end(open_one(broker)).known
    broker.wait(WAIT_MS // 2)
    early, late = broker.add(following, ("t", 5)), broker.add(following, ("t", 6))
    broker.mark()
    assert early.known.partitions == {("t", 5)}
    assert late.known.partitions == {("t", 5), ("t", 6)}
    broker.wait(2 * WAIT_MS)
    assert (early.error, late.error) == (0, 0)


def test_a_second_producer_waits_for_the_abort_of_the_first(broker: Broker) -> None:
    known = open_one(broker)
    second = broker.init(timeout_ms=5)
    assert second.is_waiting
    (markers,) = broker.sent
    assert (markers.is_commit, markers.producer_epoch) == (False, 1)
    broker.mark()
    assert (second.known.producer_epoch, second.known.state) == (2, EMPTY)
    assert second.known.timeout_ms == 5
    for answer in (broker.add(known), broker.end(known), broker.init("x", 100, 0)):
        assert answer.error == PRODUCER_FENCED


def test_who_waits_is_sent_to_another_coordinator(broker: Broker) -> None:
    following = broker.end(open_one(broker)).known
    waiting = broker.add(following)
    (markers,) = broker.sent
    broker.partitions[0].is_leader = False
    broker.transactions.on_partition(broker.partitions[0], 1)
    assert waiting.error == NOT_COORDINATOR
    assert markers.is_void
    end_offset = broker.partitions[0].log.log_end_offset
    broker.mark()
    broker.wait(DAY_MS)
    assert broker.partitions[0].log.log_end_offset == end_offset
    assert broker.init().error == NOT_COORDINATOR


def test_who_has_waited_long_enough_is_told_nothing_of_another_coordinator(broker: Broker) -> None:
    waiting = broker.add(broker.end(open_one(broker)).known)
    broker.wait(WAIT_MS)
    broker.partitions[0].is_leader = False
    broker.transactions.on_partition(broker.partitions[0], 1)
    assert waiting.error == CONCURRENT_TRANSACTIONS


def test_who_waits_for_two_ends_waits_no_longer_than_for_one(broker: Broker) -> None:
    following = broker.end(open_one(broker)).known
    broker.end(following, is_commit=False)  # of nothing, when the first end is over
    waiting = broker.init()
    broker.wait(WAIT_MS - 1)
    broker.replicate_slowly()
    broker.mark()
    assert state_of(broker) == "PrepareAbort"
    assert waiting.is_waiting
    broker.wait(1)
    assert waiting.error == CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("jump_ms", (-DAY_MS, DAY_MS))
def test_an_operation_waits_no_longer_where_the_wall_clock_jumps(
    broker: Broker, jump_ms: int
) -> None:
    known = open_one(broker)
    broker.end(known)
    answer = broker.init()
    broker.wall_ahead_ms += jump_ms
    broker.wait(WAIT_MS - 1)
    assert answer.is_waiting
    broker.wait(1)
    assert answer.error == CONCURRENT_TRANSACTIONS
