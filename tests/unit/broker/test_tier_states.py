"""Questions about what the store knows: each is answered, whatever becomes of who was asked."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.tiering.states import States
from shmbroker.log.truncation import StateAt
from shmbroker.wire import codec
from shmbroker.wire.api_keys import TIER_STATE
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR

NAME = {"topic": "t", "topic_id": bytes(16), "partition": 3}
FOUND = {
    "error_code": 0,
    "offset": 7,
    "epochs": [{"epoch": 2, "start_offset": 5}],
    "snapshot": b"producers",
}


class Asker:
    """A table of partitions; the questions wait."""

    def __init__(self) -> None:
        self.has_tier = True
        self.answers: list[Callable[[dict[str, Any]], None]] = []

    def ask(self, key: int, name: str, body: dict[str, Any], on_answer: Any) -> bool:
        assert key == TIER_STATE
        assert codec.decode(f"{name}Request", 0, codec.encode(f"{name}Request", 0, body))[0] == (
            NAME | {"offset": 6}
        )
        if self.has_tier:
            self.answers.append(on_answer)
        return self.has_tier

    def answer(self, body: dict[str, Any]) -> None:
        encoded = codec.encode_response("TierState", 0, body)
        self.answers.pop(0)(codec.decode("TierStateResponse", 0, encoded)[0])


@pytest.fixture
def asker() -> Asker:
    return Asker()


def find(states: States, told: list[StateAt | None]) -> None:
    remote: Any = SimpleNamespace(name=lambda: NAME)
    states.find(remote, 6, told.append)


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (FOUND, StateAt(7, [(2, 5)], b"producers")),
        (FOUND | {"snapshot": b""}, StateAt(7, [(2, 5)], None)),
        ({"error_code": 0, "offset": -1}, None),
        ({"error_code": KAFKA_STORAGE_ERROR, "error_message": "it is down"}, None),
    ],
)
def test_what_the_tier_process_says_is_told(
    asker: Asker, body: dict[str, Any], state: StateAt | None
) -> None:
    table: Any = asker
    states, told = States(table), list[StateAt | None]()
    find(states, told)
    assert told == []
    asker.answer(body)
    assert told == [state]
    states.on_tier_lost()
    assert told == [state]


def test_who_asks_a_tier_process_that_dies_or_is_not_there_is_told_so(
    asker: Asker,
) -> None:
    table: Any = asker
    states, told = States(table), list[StateAt | None]()
    find(states, told)
    states.on_tier_lost()
    assert told == [None]
    asker.has_tier = False
    find(states, told)
    assert told == [None, None]
