"""Acks that wait for replicas: each is answered once, for its reason, to who has asked."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.delayed_produce import EXPIRY_INTERVAL_MS, DelayedProduces
from shmbroker.ipc.operation_layout import APPENDED, APPENDED_HEAD
from shmbroker.wire import error_codes

START = 3
NEVER_MS = 1 << 40


class Asker:
    """A network worker, and what it has been answered."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, ...]] = []

    def send(self, operation: int, payload: bytes) -> None:
        assert operation == APPENDED
        self.answers.append(APPENDED_HEAD.unpack(payload))


class Place:
    """A partition that this broker leads."""

    def __init__(self) -> None:
        self.high_watermark = 0
        self.is_leader = True
        self.is_under_min_in_sync = False
        self.log = SimpleNamespace(log_start_offset=START)


def done(token: int, base_offset: int) -> tuple[int, ...]:
    return token, error_codes.NONE, 0, 0, base_offset, 77, START


def refused(token: int, error: int) -> tuple[int, ...]:
    return token, error, 0, 0, -1, -1, -1


@pytest.fixture
def delayed() -> DelayedProduces:
    return DelayedProduces()


def add(
    delayed: DelayedProduces, asker: Asker, place: Any, token: int, end: int, by_ms: int = NEVER_MS
) -> None:
    peer: Any = asker
    delayed.add((peer, token, place, end - 2, 77, end, by_ms))


def test_an_ack_is_given_when_all_have_its_batch(delayed: DelayedProduces) -> None:
    asker, place = Asker(), Place()
    for token, end in ((1, 2), (2, 4), (3, 6)):
        add(delayed, asker, place, token, end)
    partition: Any = place
    delayed.complete(partition)
    assert asker.answers == []
    place.high_watermark = 5
    delayed.complete(partition)
    assert asker.answers == [done(1, 0), done(2, 2)]
    place.high_watermark = 6
    for _ in range(2):
        delayed.complete(partition)
    assert asker.answers[2:] == [done(3, 4)]
    assert (delayed.delayed, delayed.expired) == (3, 0)


@pytest.mark.parametrize(
    ("is_leader", "is_under", "error"),
    [
        (True, False, None),
        (True, True, error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        (False, False, error_codes.NOT_LEADER_OR_FOLLOWER),
        (False, True, error_codes.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_another_leader_or_too_few_replicas_end_the_wait(
    delayed: DelayedProduces, is_leader: bool, is_under: bool, error: int | None
) -> None:
    asker, place, other = Asker(), Place(), Place()
    add(delayed, asker, place, 1, 2)
    add(delayed, asker, other, 2, 2)
    place.is_leader, place.is_under_min_in_sync = is_leader, is_under
    partition: Any = place
    delayed.look_at(partition)
    assert asker.answers == ([] if error is None else [refused(1, error)])
    assert len(delayed) == (2 if error is None else 1)


def test_whose_time_is_over_is_told_so_within_an_interval(delayed: DelayedProduces) -> None:
    asker, place = Asker(), Place()
    late = error_codes.REQUEST_TIMED_OUT
    delayed.expire(0)
    for token, by_ms in ((1, 50), (2, EXPIRY_INTERVAL_MS), (3, EXPIRY_INTERVAL_MS + 1)):
        add(delayed, asker, place, token, 2 * token, by_ms)
    delayed.expire(EXPIRY_INTERVAL_MS - 1)
    assert asker.answers == [], "the acks are looked through seldom"
    delayed.expire(EXPIRY_INTERVAL_MS)
    assert asker.answers == [refused(1, late), refused(2, late)]
    delayed.expire(2 * EXPIRY_INTERVAL_MS)
    assert asker.answers[2:] == [refused(3, late)]
    assert (delayed.delayed, delayed.expired, len(delayed)) == (3, 3, 0)


def test_who_has_died_is_answered_no_more(delayed: DelayedProduces) -> None:
    dead, alive, place = Asker(), Asker(), Place()
    add(delayed, dead, place, 1, 2)
    add(delayed, alive, place, 2, 4)
    peer: Any = dead
    delayed.drop_peer(peer)
    place.high_watermark = 4
    partition: Any = place
    delayed.complete(partition)
    assert dead.answers == []
    assert alive.answers == [done(2, 2)]
    assert delayed.expired == 0
