"""What a READ in a session is answered with: what has changed, as a READ of all would tell it."""

from typing import Any

import pytest

from shmbroker.broker.read_sessions import REFRESH_MS
from shmbroker.ipc.operation_layout import READ_COMMITTED, UNKNOWN_SESSION
from shmbroker.wire import error_codes
from tests.support.reading import RECORD, Reading


def test_nothing_new_is_waited_for_and_told_when_it_comes() -> None:
    reading = Reading(4)
    reading.begin(4, max_wait_ms=500)
    assert reading.sent == []
    reading.append(2)
    found = reading.take()
    assert list(found) == [2]
    assert found[2][2:4] == (len(RECORD), 1)


def test_what_comes_between_two_reads_is_told_by_the_next() -> None:
    reading = Reading(4)
    reading.begin(4)
    assert reading.take() == {}
    reading.append(1)
    reading.append(3)
    reading.read(max_wait_ms=500)
    assert list(reading.take()) == [1, 3]


def test_who_names_another_offset_has_what_was_there_before_it() -> None:
    reading = Reading(2)
    reading.append(0, 3)
    reading.begin(2)
    assert list(reading.take()) == [0]
    reading.read((0, 3, 3, 0), max_wait_ms=500)
    assert reading.sent == []
    reading.append(0)
    assert reading.take()[0][2] == len(RECORD)


def test_who_names_no_other_offset_is_told_again() -> None:
    reading = Reading(2)
    reading.append(0)
    reading.begin(2)
    assert list(reading.take()) == [0]
    reading.read(max_wait_ms=500)
    assert list(reading.take()) == [0]


def test_a_full_answer_leaves_the_others_their_turn() -> None:
    reading = Reading(4)
    for which in range(4):
        reading.append(which, 5)
    reading.begin(4, max_bytes=500)
    turns = [list(reading.take())]
    for _ in range(3):
        (told,) = turns[-1]
        reading.append(told, 5)
        reading.read((told, 5, 5, 0), max_bytes=500)
        turns.append(list(reading.take()))
    assert turns == [[0], [1], [2], [3]]


def test_fewest_bytes_are_of_all_partitions_together() -> None:
    reading = Reading(3)
    reading.begin(3, max_wait_ms=500, min_bytes=300)
    for which in (0, 1, 0):
        assert reading.sent == []
        reading.append(which)
    assert {which: found[2] for which, found in reading.take().items()} == {0: 200, 1: 100}


def test_a_log_that_begins_later_is_told_after_a_while() -> None:
    reading = Reading(3)
    reading.begin(3)
    reading.take()
    reading.partition(1).log.log_start_offset = -5
    reading.read()
    assert reading.take() == {}
    reading.now_ms += REFRESH_MS
    reading.read()
    assert reading.take()[1][5] == -5


def test_a_read_that_waits_in_vain_looks_at_all() -> None:
    reading = Reading(3)
    reading.begin(3, max_wait_ms=500)
    reading.partition(1).log.log_start_offset = -5
    assert len(reading.purgatory.expire(500)) == 1
    assert list(reading.take()) == [1]
    assert reading.reader.waiting == {}


def test_an_error_is_told_each_time_and_then_that_it_is_well() -> None:
    reading = Reading(2)
    reading.partition(0).is_leader = False
    reading.partition(1).is_leader = False
    reading.begin(2, max_wait_ms=500)
    for _ in range(2):
        errors = {which: found[0] for which, found in reading.take().items()}
        assert errors == dict.fromkeys((0, 1), error_codes.NOT_LEADER_OR_FOLLOWER)
        reading.read(max_wait_ms=500)
    reading.take()
    reading.partition(0).is_leader = reading.partition(1).is_leader = True
    reading.read()
    assert {which: found[0] for which, found in reading.take().items()} == {0: 0, 1: 0}


def test_read_committed_waits_for_the_last_stable_offset() -> None:
    reading = Reading(2)
    reading.begin(2, max_wait_ms=500, isolation=READ_COMMITTED)
    partition = reading.partition(0)
    partition.log.log_end_offset = partition.high_watermark = 1
    reading.purgatory.check(partition.key)
    assert reading.sent == []
    partition.last_stable_offset = 1
    reading.purgatory.check(partition.key)
    assert reading.take()[0][2] == len(RECORD)


def test_another_isolation_looks_at_all() -> None:
    reading = Reading(2)
    reading.partition(0).high_watermark = reading.partition(0).log.log_end_offset = 1
    reading.begin(2, isolation=READ_COMMITTED)
    assert reading.take()[0][2] == 0
    reading.read(isolation=0)
    assert reading.take()[0][2] == len(RECORD)


def test_another_read_takes_the_place_of_one_that_waits() -> None:
    reading = Reading(2)
    reading.begin(2, max_wait_ms=500)
    first = reading.token
    second = reading.read(max_wait_ms=500)
    assert reading.sent == [(first, 0, {})]
    reading.sent.clear()
    reading.append(1)
    assert [token for token, _, _ in reading.sent] == [second]
    assert len(reading.purgatory) == 0


@pytest.mark.parametrize("row", [(), ((3, 0, 0, 0),)], ids=["a session", "a partition"])
def test_what_is_not_known_is_to_be_named(row: tuple[Any, ...]) -> None:
    reading = Reading(4)
    reading.begin(2)
    reading.sent.clear()
    token = reading.read(*row, number=1 if row else 2)
    assert reading.sent == [(token, UNKNOWN_SESSION, {})]


def test_the_end_of_a_session_leaves_nothing_and_is_not_answered() -> None:
    reading = Reading(3)
    reading.begin(3)
    reading.take()
    assert set(reading.purgatory.watched) == set(reading.keys)
    reading.read(new=True)
    assert reading.sent == []
    assert reading.purgatory.watched == {}
    assert len(reading.sessions) == 0


def test_a_dead_gateways_sessions_are_forgotten() -> None:
    reading = Reading(3)
    reading.begin(3, max_wait_ms=500)
    reading.reader.drop_peer(reading.slot)
    reading.sessions.drop_peer(reading.slot)
    assert reading.sent == []
    assert reading.purgatory.watched == {}
    assert len(reading.sessions) == len(reading.purgatory) == 0


def test_rows_are_bounded_and_who_goes_is_answered() -> None:
    reading = Reading(4, rows_max=6)
    reading.begin(4, max_wait_ms=500)
    first = reading.token
    reading.read(*((which, 0, 0, 0) for which in range(4)), new=True, number=2)
    assert [token for token, _, _ in reading.sent] == [first, reading.token]
    assert len(reading.sessions) == 1
    reading.sent.clear()
    assert reading.read(number=1) == reading.sent[0][0]
    assert reading.sent[0][1] == UNKNOWN_SESSION


def test_rows_that_are_ready_are_watched_only_while_a_read_waits() -> None:
    """Appends to what is watched cost more."""
    reading = Reading(2)
    reading.begin(2)
    reading.take()
    reading.append(0)
    assert set(reading.purgatory.watched) == {reading.keys[1]}
    reading.read(max_wait_ms=500, min_bytes=1000)
    assert set(reading.purgatory.watched) == set(reading.keys)


def rows(count: int) -> list[tuple[int, int, int, int]]:
    return [(which, 0, 0, 0) for which in range(count)]


def test_who_has_not_read_for_the_longest_time_goes_first() -> None:
    reading = Reading(2, rows_max=4)
    for number in (1, 2):
        reading.read(*rows(2), new=True, number=number)
    reading.read(number=1)
    reading.read(*rows(2), new=True, number=3)
    reading.sent.clear()
    for number in (1, 2, 3):
        reading.read(number=number)
    assert [count == UNKNOWN_SESSION for _, count, _ in reading.sent] == [False, True, False]


def test_rows_of_sessions_that_have_ended_or_begun_anew_count_no_more() -> None:
    reading = Reading(4, rows_max=4)
    for number in (1, 1, 1, 2):
        reading.read(*rows(2), new=True, number=number)
    assert len(reading.sessions) == 2
    reading.read(new=True, number=1)
    reading.read(*rows(2), new=True, number=3)
    assert len(reading.sessions) == 2


def test_a_session_of_more_than_all_may_have_is_the_only_one() -> None:
    reading = Reading(4, rows_max=3)
    reading.begin(4)
    assert len(reading.sessions) == 1
    reading.sent.clear()
    reading.read()
    assert reading.sent[0][1] != UNKNOWN_SESSION


def test_the_sessions_of_other_gateways_outlive_one() -> None:
    reading = Reading(2)
    reading.begin(2)
    reading.sessions.drop_peer(reading.slot + 1)
    assert len(reading.sessions) == 1
