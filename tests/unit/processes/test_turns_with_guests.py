"""The turns of a broker and of the gateway beside it: who takes one, and when."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.processes.turns_with_guests import TurnsWithGuests

DOORBELL = 9
TIMES = 2
"""Turns. In the first, the gateway's answers are due."""


class Turns:
    """Some turns without guests, and who took part in them."""

    def __init__(self, is_behind: bool, finishes: bool = False) -> None:
        """finishes: the broker's turn has what a guest waits for; what was read is answered."""
        self.taken: list[str] = []
        self.finishes = finishes
        self.times = 0
        self.gateway = gateway = SimpleNamespace(
            link=SimpleNamespace(is_behind=lambda: is_behind),
            answer=self._answer,
            touched=set(),
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
            look_before_sleep=lambda _has_served: None,
        )
        broker: Any = SimpleNamespace(turn=self._turn, may_look=True)
        answers: Any = SimpleNamespace(reader=SimpleNamespace(poll=lambda: False))
        self.must_stop = False
        self.shared_core = None
        self.epoll: Any = None
        TurnsWithGuests(self, broker, beside, answers, DOORBELL).run()

    def _read(self, _events: object) -> bool:
        self.taken.append("gateway")
        return False

    def _turn(self) -> float:
        self.taken.append("broker")
        if self.times and self.finishes:
            self.gateway.touched.add("one")
        return 1.0

    def _answer(self) -> float:
        self.taken.append("answers")
        self.gateway.touched.clear()
        return 1e12  # nothing is due again

    def sleep(self, _seconds: float) -> list[tuple[int, int]]:
        self.times += 1
        self.must_stop = self.times == TIMES
        return []

    def has_entries(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("is_behind", "taken"),
    [(False, ["broker"] * 2), (True, ["gateway", "broker", "answers", "gateway", "broker"])],
)
def test_changes_of_the_metadata_are_taken_in_without_guests(
    is_behind: bool, taken: list[str]
) -> None:
    assert Turns(is_behind).taken == taken


def test_who_was_waited_for_is_answered_though_all_requests_were() -> None:
    taken = Turns(True, finishes=True).taken
    assert taken == ["gateway", "broker", "answers"] * 2
