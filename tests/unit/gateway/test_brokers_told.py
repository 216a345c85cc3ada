"""Which brokers Metadata names: those that serve, and those that have served a moment ago."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.gateway.brokers_told import GONE_TOLD_S, BrokersTold

CONNECTION: Any = SimpleNamespace(
    listener=SimpleNamespace(config=SimpleNamespace(name="PLAINTEXT"), broker_id=1), host=None
)


def image(*fenced: int) -> Any:
    """A cluster in which both brokers are registered, these fenced."""
    rows = {each: SimpleNamespace(is_active=each not in fenced, rack=None) for each in (1, 2)}
    return SimpleNamespace(brokers=rows)


@pytest.fixture
def told() -> BrokersTold:
    """Broker 1 runs; 2 is registered, and has not run yet."""
    peers: Any = {1: SimpleNamespace(incarnation=1), 2: SimpleNamespace(incarnation=0)}
    listeners: Any = [
        SimpleNamespace(
            is_control=False,
            config=SimpleNamespace(name="PLAINTEXT"),
            broker_id=number,
            told=lambda number=number: ("host", 9091 + number),
        )
        for number in (1, 2)
    ]
    link: Any = SimpleNamespace(number=1)
    config: Any = SimpleNamespace()
    made = BrokersTold(image(), config, peers, listeners, link)
    made.on_running(1)
    return made


def named(told: BrokersTold) -> list[int]:
    return [row["node_id"] for row in told.broker_rows(CONNECTION, with_gone=True)]


def run(told: BrokersTold, number: int) -> None:
    told.io_peers[number].incarnation = 1
    told.on_running(number)


def die(told: BrokersTold, number: int, now: float) -> None:
    told.io_peers[number].incarnation = 0
    told.on_lost(number, now)


def test_broker_that_cannot_boot_is_not_named(told: BrokersTold) -> None:
    """It was registered before; each of its tries ends with a death, and the first with a fence."""
    assert named(told) == [1]
    die(told, 2, 0.0)
    told.image = image(2)
    assert told.look_at_fences(0.0) == {2}
    die(told, 2, 1.0)
    assert named(told) == [1]


def test_broker_that_has_run_is_named_for_a_while(told: BrokersTold) -> None:
    run(told, 2)
    assert named(told) == [1, 2]
    die(told, 2, 1.0)
    told.image = image(2)
    told.look_at_fences(1.0)
    assert named(told) == [1, 2]
    die(told, 2, GONE_TOLD_S)  # its successor can't boot
    assert told.forget_gone(1.1 + GONE_TOLD_S)
    assert named(told) == [1]


def test_broker_that_hangs_is_named_for_a_while(told: BrokersTold) -> None:
    run(told, 2)
    told.image = image(2)
    assert told.look_at_fences(1.0) == {2}
    assert named(told) == [1, 2]
    assert told.forget_gone(1.1 + GONE_TOLD_S)
    assert named(told) == [1]
