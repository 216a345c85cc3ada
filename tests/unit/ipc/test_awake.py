"""When a process looks before it sleeps, and for how long."""

import pytest

from shmbroker.ipc.awake import AFTER_S, WAITS_S, Awake
from shmbroker.ipc.core import ENTRIES, EVENTS, LOST, NOTHING, Core


class Looks(Core):
    """Finds what the test says."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, ())
        self.finds = ENTRIES
        self.others_compute = False
        self.rows: list[tuple[float, int]] = []

    def is_wanted(self) -> bool:
        return self.others_compute

    def look(self, for_s: float, between: int = 1) -> int:
        self.rows.append((for_s, between))
        return self.finds


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def awake(looks: Looks) -> Awake:
    return Awake(looks, sockets_between=(16, 2))


def test_it_looks_for_an_answer_then_for_the_next_request(awake: Awake, looks: Looks) -> None:
    assert awake.look(waits=True) == ENTRIES
    looks.finds = EVENTS
    assert awake.look(waits=False) == EVENTS
    assert awake.look(waits=False) == NOTHING, "nothing was waited for before"
    assert looks.rows == [(WAITS_S, 16), (AFTER_S, 2)]


def test_it_looks_after_work_that_nobody_waits_for(looks: Looks) -> None:
    awake = Awake(looks, after_s=1.0)
    assert awake.look(waits=False, has_worked=True) == ENTRIES
    assert looks.rows == [(1.0, 1)]


def test_it_ends_to_look_for_requests_that_do_not_come(awake: Awake, looks: Looks) -> None:
    for finds in (NOTHING,) * 20:
        looks.finds = ENTRIES
        assert awake.look(waits=True) == ENTRIES
        looks.finds = finds
        assert awake.look(waits=False) == NOTHING
    after = [row for row in looks.rows if row[0] == AFTER_S]
    assert len(after) < 5


def test_a_core_that_was_lost_says_nothing_of_what_pays(awake: Awake, looks: Looks) -> None:
    for _ in range(20):
        looks.finds = ENTRIES
        assert awake.look(waits=True) == ENTRIES
        looks.finds = LOST
        assert awake.look(waits=False) == LOST


def test_where_others_compute_it_sleeps(awake: Awake, looks: Looks) -> None:
    looks.others_compute = True
    assert awake.look(waits=True) == NOTHING
    assert not looks.rows
