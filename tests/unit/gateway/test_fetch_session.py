"""Fetch sessions: ids, epochs, bounds and who is evicted. What clients see is in the model test."""

import tracemalloc
from typing import Any

import pytest

from shmbroker.gateway.fetch_session import (
    EPOCH_LAST,
    EVICTION_MS,
    NOTHING_KNOWN,
    PARAMETERS,
    PARTITIONS_MAX,
    SESSION_PARTITIONS_MAX,
    FetchSession,
    FetchSessions,
    next_epoch,
)

PARAMETERS_OF_ONE = PARAMETERS.pack(1 << 20, -1, -1, 7)
BROKER = 1


def sessions_of(slots: int = 3, **more: Any) -> FetchSessions:
    return FetchSessions(range(100, 200), 5, slots, **more)


def create(sessions: FetchSessions, count: int, now_ms: int = 0) -> FetchSession | None:
    partitions = ((("t", index), PARAMETERS_OF_ONE, 0, 3, 0) for index in range(count))
    return sessions.try_create(BROKER, False, partitions, count, now_ms)


def changed(topic: str, count: int) -> list[Any]:
    """As a request says it."""
    return [((topic, index), PARAMETERS_OF_ONE) for index in range(count)]


def test_epochs_wrap_to_one() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, EPOCH_LAST)] == [1, 2, 1]


def test_ids_are_of_the_workers_range_and_never_zero() -> None:
    sessions = FetchSessions(range(4), 2, 10)
    ids = [create(sessions, 1).id for _ in range(3)]
    assert sorted(ids) == [1, 2, 3]


def test_a_session_belongs_to_one_broker() -> None:
    sessions = sessions_of()
    session = create(sessions, 1)
    assert sessions.get(session.id, BROKER) is session
    assert sessions.get(session.id, BROKER + 1) is None
    sessions.remove(session)
    assert sessions.get(session.id, BROKER) is None


def test_no_slots_no_sessions() -> None:
    assert create(sessions_of(0), 1) is None


def test_an_equal_or_smaller_session_evicts_nobody() -> None:
    sessions = sessions_of(2)
    for count in (3, 4):
        sessions.on_request(create(sessions, count), EVICTION_MS + 1)
    assert create(sessions, 3, EVICTION_MS + 2) is None
    assert len(sessions.sessions) == 2


def test_a_larger_session_takes_the_place_of_the_smallest_that_is_not_new() -> None:
    sessions = sessions_of(3)
    small, large, new = create(sessions, 3), create(sessions, 5), create(sessions, 1, EVICTION_MS)
    now_ms = EVICTION_MS + 1
    for session in (small, large, new):
        sessions.on_request(session, now_ms)
    taken = create(sessions, 4, now_ms)
    assert set(sessions.sessions.values()) == {large, new, taken}


def test_who_was_not_heard_of_goes_first() -> None:
    sessions = sessions_of(2)
    silent, busy = create(sessions, 9), create(sessions, 1)
    sessions.on_request(busy, EVICTION_MS)
    assert create(sessions, 1, EVICTION_MS) is None
    taken = create(sessions, 1, EVICTION_MS + 1)
    assert silent.id not in sessions.sessions
    assert set(sessions.sessions.values()) == {busy, taken}


def test_partitions_of_all_sessions_are_bounded() -> None:
    sessions = sessions_of(10, partitions_max=10)
    first = create(sessions, 6)
    assert create(sessions, 5) is None
    second = create(sessions, 4)
    assert not sessions.has_room(second, changed("u", 1))
    sessions.remove(second)
    assert sessions.has_room(first, changed("u", 4))
    first.change(changed("u", 4), [])
    sessions.on_request(first, 1)
    assert sessions.partition_count == 10
    assert create(sessions, 1) is None
    assert create(sessions, 10, EVICTION_MS + 2) is not None, "the first is silent"
    assert sessions.partition_count == 10


@pytest.mark.parametrize(
    ("count", "of", "changes", "has_room"),
    [
        (SESSION_PARTITIONS_MAX, "t", 1, True),
        (SESSION_PARTITIONS_MAX, "t", SESSION_PARTITIONS_MAX, True),
        (SESSION_PARTITIONS_MAX, "u", 0, True),
        (SESSION_PARTITIONS_MAX, "u", 1, False),
        (SESSION_PARTITIONS_MAX - 3000, "t", 3001, True),
        (SESSION_PARTITIONS_MAX - 3000, "u", 3000, True),
        (SESSION_PARTITIONS_MAX - 3000, "u", 3001, False),
    ],
)
def test_partitions_that_a_session_has_take_no_more_room(
    count: int, of: str, changes: int, has_room: bool
) -> None:
    sessions = sessions_of()
    session = create(sessions, count)
    assert sessions.has_room(session, changed(of, changes)) == has_room


@pytest.mark.parametrize("count", [SESSION_PARTITIONS_MAX, SESSION_PARTITIONS_MAX + 1])
def test_one_session_is_bounded(count: int) -> None:
    assert (create(sessions_of(), count) is not None) == (count <= SESSION_PARTITIONS_MAX)


def test_a_request_on_an_evicted_session_does_not_bring_it_back() -> None:
    sessions = sessions_of()
    session = create(sessions, 1)
    sessions.remove(session)
    sessions.on_request(session, 1)
    assert not sessions.sessions
    assert sessions.partition_count == 0


def test_a_partition_costs_what_the_docstring_says() -> None:
    sessions = sessions_of(1000)
    tracemalloc.start()
    for _ in range(10):
        session = create(sessions, 500)
        session.resolve(list(session.partitions), lambda key: bytes(16) + key[1].to_bytes(4, "big"))
        session.asked()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / 5000 < 280
    assert PARTITIONS_MAX * 280 <= 28_000_000


def test_forgotten_partitions_are_gone() -> None:
    session = create(sessions_of(), 3)
    session.resolve(list(session.partitions), lambda key: 3 if key[1] == 1 else bytes(20))
    session.change([], [("t", 0), ("t", 1), ("x", 9)])
    assert session.asked()[0] == [("t", 2)]
    assert session.errors == {}


def test_a_partition_that_comes_back_is_told_as_new() -> None:
    session = create(sessions_of(), 1)
    key = ("t", 0)
    session.resolve([key], lambda _: 3)
    assert session.asked() == ([], b"")
    session.resolve([key], lambda _: bytes(20))
    assert session.asked() == ([key], bytes(20) + PARAMETERS_OF_ONE + NOTHING_KNOWN)
