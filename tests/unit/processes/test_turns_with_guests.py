"""The turns of a broker and of the gateway beside it: who takes one, and when."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.processes.turns_with_guests import TurnsWithGuests

DOORBELL = 9


class Turns:
    """One turn without guests, and who took part in it."""

    def __init__(self, is_behind: bool) -> None:
        self.taken: list[str] = []
        gateway = SimpleNamespace(
            link=SimpleNamespace(is_behind=lambda: is_behind),
            answer=lambda: 1.0,
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
        return 1.0

    def sleep(self, _seconds: float) -> list[tuple[int, int]]:
        self.must_stop = True
        return []

    def has_entries(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("is_behind", "taken"), [(False, ["broker"]), (True, ["gateway", "broker"])]
)
def test_changes_of_the_metadata_are_taken_in_without_guests(
    is_behind: bool, taken: list[str]
) -> None:
    assert Turns(is_behind).taken == taken
