"""Admin calls that a coordinator answers: which answers are waited out, which are told."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from shmbroker.cli.client import settled, waited
from shmbroker.cli.outcome import CommandFault
from shmbroker.client import retries

MOVING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


class Answer:
    """A call's future, with an answer: a number is an error's."""

    def __init__(self, answer: int | str | type[TimeoutError]) -> None:
        self.answer = answer

    def result(self, timeout: float | None = None) -> str:
        if isinstance(self.answer, int):
            raise KafkaException(KafkaError(self.answer))
        if not isinstance(self.answer, str):
            raise self.answer
        return self.answer


class Calls:
    """Gives these answers, one to each call."""

    def __init__(self, *answers: int | str | type[TimeoutError]) -> None:
        self.answers = list(answers)

    def __call__(self) -> Answer:
        return Answer(self.answers.pop(0))


@pytest.fixture(autouse=True)
def _without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "REST_S", 0.0)


def test_coordinator_that_begins_or_moves_is_asked_again() -> None:
    calls = Calls(*MOVING, "done", "never asked for")
    assert waited(settled(calls)) == "done"
    assert calls.answers == ["never asked for"]


@pytest.mark.parametrize("final", [KafkaError.GROUP_AUTHORIZATION_FAILED, TimeoutError])
def test_other_refusals_are_told_at_once(final: int | type[TimeoutError]) -> None:
    calls = Calls(final, "never asked for")
    with pytest.raises(CommandFault, match=r"^group g: "):
        waited(settled(calls), "group g")
    assert calls.answers == ["never asked for"]


def test_tries_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmbroker.cli.client.CHANGE_S", -1.0)
    calls = Calls(*MOVING)
    with pytest.raises(CommandFault, match="COORDINATOR_LOAD_IN_PROGRESS"):
        waited(settled(calls), "group g")
    assert len(calls.answers) == len(MOVING) - 1
