"""Whose word counts while a family starts: what brokers have told holds until they begin again."""

import pytest

from shmbroker.controller.decisions.doubts import Doubts

NOBODY: frozenset[int] = frozenset()


@pytest.fixture
def doubts() -> Doubts:
    """Broker 1 is in doubt, and has told all."""
    made = Doubts()
    made.note(1, False)
    made.tell(1, [], True)
    assert made.can_be_settled(NOBODY, True)
    return made


def test_nobody_in_doubt_leaves_nothing_to_settle() -> None:
    doubts = Doubts()
    assert not doubts.can_be_settled(NOBODY, True)
    doubts.note(1, True)
    assert not doubts.can_be_settled(NOBODY, True)


def test_who_begins_again_has_told_nothing(doubts: Doubts) -> None:
    doubts.note(1, False)
    assert not doubts.can_be_settled(NOBODY, True)
    doubts.tell(1, [], False)
    assert not doubts.can_be_settled(NOBODY, True), "that was not all"
    doubts.tell(1, [], True)
    assert doubts.can_be_settled(NOBODY, True)


def test_who_comes_back_from_a_clean_stop_is_in_no_doubt(doubts: Doubts) -> None:
    doubts.note(1, True)
    assert (doubts.safe, doubts.unclean) == ({1}, set())
    doubts.note(1, False)
    assert (doubts.safe, doubts.unclean) == (set(), {1})
    assert not doubts.can_be_settled(NOBODY, True)


def test_who_tells_another_controller_is_in_doubt_there() -> None:
    doubts = Doubts()
    doubts.note(1, True)
    doubts.tell(1, [], True)
    assert (doubts.safe, doubts.unclean) == (set(), {1})


def test_who_has_died_is_absent_again(doubts: Doubts) -> None:
    doubts.note(2, True)
    assert doubts.absent(frozenset({1, 2, 3})) == {3}
    for broker_id in (1, 2):
        doubts.forget(broker_id)
    assert doubts.absent(frozenset({1, 2, 3})) == {1, 2, 3}
    assert not doubts.can_be_settled(NOBODY, True)


def test_all_in_doubt_are_waited_for_and_the_absent_for_a_while(doubts: Doubts) -> None:
    pending = frozenset({1, 2, 3})
    doubts.note(2, False)
    assert not doubts.can_be_settled(pending, False)
    doubts.tell(2, [], True)
    assert not doubts.can_be_settled(pending, True)
    assert doubts.can_be_settled(pending, False)
    doubts.note(3, True)
    assert doubts.can_be_settled(pending, True)
