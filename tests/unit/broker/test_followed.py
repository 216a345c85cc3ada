"""The numbers by which a session at a leader knows what is followed, and when they are free."""

from typing import Any

import pytest

from shmbroker.broker.replication import followed
from shmbroker.broker.replication.followed import CopiedRow, Link, Retries


class Files:
    """What the leader has passed."""

    def __init__(self) -> None:
        self.is_cleared = False

    def clear(self) -> None:
        self.is_cleared = True


NOBODY: Any = None
"""A link looks at neither its peer nor a partition."""


@pytest.fixture
def link() -> Link:
    files: Any = Files()
    return Link(NOBODY, files)


def add(link: Link, count: int = 1) -> list[CopiedRow]:
    """So many rows, each with something to say."""
    rows = [link.add(NOBODY) for _ in range(count)]
    for row in rows:
        assert row is not None and link.rows[row.which] is row
        link.changed[row] = None
    return [row for row in rows if row is not None]


def tell_gone(link: Link, token: int, count: int) -> None:
    """A READ with this token leaves, which ends the first so many numbers."""
    link.on_gone_told(token, link.gone[:count])


def numbers(rows: list[CopiedRow]) -> list[int]:
    return [row.which for row in rows]


def test_each_partition_has_a_number_of_its_own(link: Link) -> None:
    rows = add(link, 3)
    assert numbers(rows) == [0, 1, 2]
    link.remove(rows[1])
    assert numbers(add(link, 2)) == [3, 4], "that of the one that has gone is not free yet"


def test_what_has_gone_is_told_and_nothing_else_of_it(link: Link) -> None:
    one, two = add(link, 2)
    link.remove(one)
    assert link.rows == {two.which: two}
    assert link.changed == {two: None}
    assert link.gone == [one.which]


def test_a_number_is_free_when_the_read_that_ends_it_is_answered(link: Link) -> None:
    rows = add(link, 4)
    for row in rows[:3]:
        link.remove(row)
    tell_gone(link, 7, 2)
    assert link.gone == [2]
    link.free_until(6)
    assert numbers(add(link)) == [4], "an earlier answer may still name them"
    tell_gone(link, 8, 1)
    link.free_until(7)
    assert sorted(numbers(add(link, 3))) == [0, 1, 5]
    link.free_until(9)
    assert numbers(add(link, 2)) == [2, 6]
    assert link.freeing == []


def test_there_are_as_many_numbers_as_an_int16_has(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "ROWS_MAX", 2)
    rows = add(link, 3)
    assert numbers(rows) == [0, 1, 2]
    assert link.add(NOBODY) is None
    link.remove(rows[1])
    tell_gone(link, 1, 1)
    assert link.add(NOBODY) is None
    link.free_until(1)
    assert numbers(add(link)) == [1]
    assert link.add(NOBODY) is None


def test_a_leader_that_has_died_knows_nothing_of_the_session(link: Link) -> None:
    rows = add(link, 4)
    for row in rows[:2]:
        link.remove(row)
    tell_gone(link, 5, 1)
    link.is_new, link.token = False, 5
    link.changed.clear()
    for row in rows:
        row.is_compared = True
    link.on_lost()
    files: Any = link.files
    assert files.is_cleared
    assert (link.is_new, link.token, link.gone, link.freeing) == (True, 0, [], [])
    assert link.changed == dict.fromkeys(rows[2:])
    assert not any(row.is_compared for row in rows[2:])
    assert sorted(numbers(add(link, 3))) == [0, 1, 4], "every number that is not in use is free"


def test_a_new_row_is_compared_and_told_first(link: Link) -> None:
    (row,) = add(link)
    assert not row.is_compared and row.told_start < 0
    assert (row.leader_epoch, row.refused_epoch) == (-1, -1)
    assert link.is_new and link.token == 0


def test_a_row_is_read_again_when_its_time_has_come(link: Link) -> None:
    now = [1000]
    retries = Retries(lambda: now[0])
    assert retries.next_ms is None
    assert retries.take_due() == []
    early, late, gone = add(link, 3)
    for row, delay_ms in ((late, 20), (early, 10), (gone, 5)):
        row.is_compared = True
        retries.again(row, delay_ms)
        assert not row.is_compared
    retries.forget(gone)
    assert retries.next_ms == 1010
    now[0] = 1009
    assert retries.take_due() == []
    now[0] = 1010
    assert retries.take_due() == [early]
    assert retries.next_ms == 1020
    now[0] = 2000
    assert retries.take_due() == [late]
    assert retries.next_ms is None
