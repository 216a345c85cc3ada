"""The bucket of throttled replicas, and who is one."""

import pytest

from shmbroker.replica.throttle import (
    UNLIMITED,
    WAIT_MS_MAX,
    ReplicationThrottle,
    throttled_brokers,
)


def test_a_second_is_there_at_once_and_no_more() -> None:
    throttle = ReplicationThrottle(1000)
    assert throttle.room(5000) == 1000
    throttle.take(400, 5000)
    assert throttle.room(5000) == 600
    assert throttle.room(5100) == 700
    assert throttle.room(99_000) == 1000


def test_what_is_owed_is_waited_for() -> None:
    throttle = ReplicationThrottle(1000)
    assert throttle.room(0) == 1000
    throttle.take(1500, 0)
    assert throttle.room(0) == 0 and throttle.wait_ms() == 502
    assert throttle.room(500) == 0
    assert throttle.room(502) > 0


def test_what_replicas_in_sync_take_is_owed_for_a_while_only() -> None:
    throttle = ReplicationThrottle(1_000_000)
    throttle.room(0)
    for _ in range(100):
        throttle.take(1_000_000, 0)
    assert throttle.wait_ms() == WAIT_MS_MAX
    assert throttle.room(9_999) == 0
    assert throttle.room(10_001) > 0


def test_another_rate_counts_from_now_on() -> None:
    throttle = ReplicationThrottle(10)
    throttle.room(0)
    throttle.take(1 << 20, 0)
    assert throttle.room(1) == 0
    throttle.set_rate(10)
    assert throttle.room(2) == 0, "the same rate is no change"
    throttle.set_rate(UNLIMITED)
    assert throttle.room(3) == UNLIMITED
    throttle.take(1 << 40, 3)
    assert throttle.room(3) == UNLIMITED


def test_at_a_rate_of_nothing_there_is_never_room() -> None:
    throttle = ReplicationThrottle(0)
    assert throttle.room(0) == throttle.room(10**9) == 0
    assert throttle.wait_ms() == WAIT_MS_MAX


@pytest.mark.parametrize(
    ("items", "brokers"),
    [
        ([], []),
        ([""], []),
        (["*"], [1, 2, 3]),
        (["0:1", "7:2", "7:3"], [2, 3]),
        (["70:1", " 7:2 "], [2]),
    ],
)
def test_who_is_throttled(items: list[str], brokers: list[int]) -> None:
    found = throttled_brokers(items, 7)
    assert [broker for broker in (1, 2, 3) if broker in found] == brokers
