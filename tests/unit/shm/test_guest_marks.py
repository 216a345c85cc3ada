"""Marks of guests: each pair of processes has its own, and all that share the mapping see them."""

from shmbroker.shm.guest_marks import MARKS, make_marks


def test_each_pair_has_marks_of_its_own() -> None:
    marks = make_marks([(3, 1), (3, 2)])
    marks[3, 1][MARKS - 1] = 1
    assert not any(marks[3, 2])
    assert [len(each) for each in marks.values()] == [MARKS, MARKS]


def test_a_family_without_network_workers_has_none() -> None:
    assert make_marks([]) == {}
