"""When a dead process may be followed."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.processes.acknowledgements import Acknowledgements
from shmbroker.shm.counters import INCARNATION, Counters, layout_size

GATEWAY, OTHER_GATEWAY, BROKER = 1, 2, 3
SLOTS = (GATEWAY, OTHER_GATEWAY, BROKER)


@pytest.fixture
def counters() -> Counters:
    return Counters(memoryview(bytearray(layout_size(4))), 4)


@pytest.fixture
def acknowledgements(counters: Counters) -> Acknowledgements:
    """Of a family that has started. Gateways do not talk to each other."""
    shared: Any = SimpleNamespace(counters=counters, talk=lambda one, other: BROKER in (one, other))
    made = Acknowledgements(shared)
    made.start(SLOTS)
    return made


def acknowledge(counters: Counters, who: int, dead: int) -> None:
    words = counters.words
    words[counters.acknowledgement(who, dead)] = words[counters.at(dead, INCARNATION)]


def test_nobody_is_late_before_there_is_a_death(acknowledgements: Acknowledgements) -> None:
    assert all(acknowledgements.late(index, SLOTS) == [] for index in SLOTS)


def test_who_talks_to_the_dead_is_late_until_it_has_acknowledged(
    acknowledgements: Acknowledgements, counters: Counters
) -> None:
    acknowledgements.on_death(BROKER)
    assert acknowledgements.late(BROKER, (GATEWAY, OTHER_GATEWAY)) == [GATEWAY, OTHER_GATEWAY]
    acknowledge(counters, GATEWAY, BROKER)
    assert acknowledgements.late(BROKER, (GATEWAY, OTHER_GATEWAY)) == [OTHER_GATEWAY]
    assert acknowledgements.late(BROKER, (GATEWAY,)) == [], "the other one is dead, too"
    acknowledgements.on_death(BROKER)
    assert acknowledgements.late(BROKER, (GATEWAY,)) == [GATEWAY], "that was the death before"


def test_who_does_not_talk_to_the_dead_is_not_waited_for(
    acknowledgements: Acknowledgements,
) -> None:
    acknowledgements.on_death(GATEWAY)
    assert acknowledgements.late(GATEWAY, (OTHER_GATEWAY, BROKER)) == [BROKER]


def test_successor_has_seen_the_deaths_before_its_own(
    acknowledgements: Acknowledgements,
) -> None:
    """Else both would wait for ever that the other acknowledges."""
    acknowledgements.on_death(GATEWAY)
    acknowledgements.on_death(BROKER)
    assert acknowledgements.late(GATEWAY, (BROKER,)) == [BROKER]
    acknowledgements.acknowledge_for(BROKER, (GATEWAY,))
    assert acknowledgements.late(GATEWAY, (BROKER,)) == []
    assert acknowledgements.late(BROKER, (GATEWAY,)) == [GATEWAY]
