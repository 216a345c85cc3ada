"""The turns of a broker and of the gateway beside it: who takes one, and when."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from shmbroker.processes import turns_with_guests
from shmbroker.processes.turns_with_guests import TurnsWithGuests

DOORBELL = 9
TIMES = 3
"""Turns. In the first with the gateway, its answers are due."""


class Turns:
    """Some turns without guests, and who took part in them."""

    def __init__(self, is_behind: bool, finishes: bool = False, **of_broker: Any) -> None:
        """finishes: the broker's turn has what a guest waits for; what was read is answered.
        of_broker: what it says of itself; then the sockets bring something each time."""
        self.taken: list[str] = []
        self.finishes = finishes
        self.times = 0
        self.gateway = gateway = SimpleNamespace(
            link=SimpleNamespace(is_behind=lambda: is_behind),
            answer=self._answer,
            touched=set(),
            loop=SimpleNamespace(blocked=[]),
            close=lambda: None,
            is_over=True,
        )
        guests = SimpleNamespace(
            present={},
            next_look=float("inf"),
            rested=lambda _now: None,
            stays_up=lambda _now: None,
            close=lambda: None,
        )
        beside: Any = SimpleNamespace(
            gateway=gateway,
            guests=guests,
            read=self._read,
            look_before_sleep=self._look,
        )
        self.events = [(5, 1)] if of_broker else []
        of_broker = {"appended": {}, "has_work": False, "may_wait": True} | of_broker
        self.looked: list[bool] = []
        """For each look whether it was for what acks wait for."""
        broker: Any = SimpleNamespace(
            turn=self._turn,
            run_once=self._run_once,
            rest=self._rest,
            acks=SimpleNamespace(
                appended=of_broker["appended"],
                delayed=SimpleNamespace(partitions=of_broker.get("delayed", {})),
            ),
            may_wait=lambda: of_broker["may_wait"],
            steady_ms=lambda: 0,
            purgatory=SimpleNamespace(next_deadline=lambda: None),
        )
        answers: Any = SimpleNamespace(reader=SimpleNamespace(poll=lambda: False))
        self.must_stop = False
        self.shared_core = None
        self.epoll: Any = None
        turns = TurnsWithGuests(self, broker, beside, answers, DOORBELL)
        with mock.patch.object(turns_with_guests, "has_work", lambda _: of_broker["has_work"]):
            turns.run()

    def _read(self, _events: object) -> bool:
        self.taken.append("gateway")
        return False

    def _look(self, _has_served: bool, waits: bool = False) -> None:
        self.looked.append(waits)

    def _turn(self) -> float:
        self._run_once()
        return 1e12

    def _run_once(self) -> bool:
        self.taken.append("broker")
        if self.times and self.finishes:
            self.gateway.touched.add("one")
        return False

    def _rest(self) -> float:
        return 1e12

    def _answer(self) -> float:
        self.taken.append("answers")
        self.gateway.touched.clear()
        return 1e12  # nothing is due again

    def sleep(self, _seconds: float) -> list[tuple[int, int]]:
        self.times += 1
        self.must_stop = self.times == TIMES
        return self.events

    def has_entries(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("is_behind", "taken"),
    [
        (False, ["broker"] * 3),
        (True, ["gateway", "broker", "answers", *["gateway", "broker"] * 2]),
    ],
)
def test_changes_of_the_metadata_are_taken_in_without_guests(
    is_behind: bool, taken: list[str]
) -> None:
    assert Turns(is_behind).taken == taken


def test_who_was_waited_for_is_answered_though_all_requests_were() -> None:
    taken = Turns(True, finishes=True).taken
    assert taken == ["gateway", "broker", "answers"] * 3


@pytest.mark.parametrize(
    ("of_broker", "is_taken"),
    [
        ({"has_work": False}, False),
        ({"has_work": True}, True),
        ({"may_wait": False}, True),
        ({"appended": {"one": None}}, False),
    ],
    ids=str,
)
def test_a_turn_of_the_broker_that_finds_nothing_is_left_out(
    of_broker: dict[str, Any], is_taken: bool
) -> None:
    """And one behind an append comes later, where nobody waits for its records."""
    turn = ["broker"] * is_taken
    with mock.patch.object(turns_with_guests, "APPENDED_WAITS_S", 1e9):
        taken = Turns(False, **of_broker).taken
    assert taken == ["broker", "gateway", *turn, "answers", "gateway", *turn]


def test_what_an_append_brings_about_does_not_wait_for_ever() -> None:
    with mock.patch.object(turns_with_guests, "APPENDED_WAITS_S", 0.0):
        taken = Turns(False, appended={"one": None}).taken
    assert taken == ["broker", "gateway", "broker", "answers", "gateway", "broker"]


@pytest.mark.parametrize("delayed", [{}, {"one": None}])
def test_it_stays_awake_for_what_acks_wait_for(delayed: dict[str, None]) -> None:
    assert any(Turns(True, delayed=delayed).looked) is bool(delayed)
