"""Memory for frames that are still arriving: where exactly each of its bounds lies."""

import pytest

from shmbroker.gateway.arriving import ArrivingMemory, Sender, next_room

KIB, MIB = 1 << 10, 1 << 20
READING = 256 * KIB
BOUND = 24 * MIB
USUAL = 18 * MIB
NOW = 1000.0


def sender(arrived: int, whole: int) -> Sender:
    made = Sender()
    made.arrive(arrived, whole, True, NOW)
    return made


def memory_with(held: int) -> tuple[ArrivingMemory[Sender], Sender]:
    """A memory of which one sender holds so much."""
    memory: ArrivingMemory[Sender] = ArrivingMemory(BOUND, READING)
    holder = sender(KIB, 100 * MIB)
    memory.hold(holder, held, NOW)
    return memory, holder


def test_what_an_asker_holds_is_not_counted_twice() -> None:
    memory, holder = memory_with(10 * MIB)
    assert memory.allowed(holder, USUAL, NOW) == USUAL


@pytest.mark.parametrize(("others", "is_allowed"), [(6 * MIB, True), (6 * MIB + 1, False)])
def test_a_frame_above_the_bound_gets_room_while_others_hold_a_quarter(
    others: int, is_allowed: bool
) -> None:
    memory, _ = memory_with(others)
    large = sender(KIB, 2 * BOUND)
    assert memory.allowed(large, 20 * MIB, NOW) == (20 * MIB if is_allowed else 0)


@pytest.mark.parametrize(("held", "is_short"), [(0, False), (1, True)])
def test_memory_is_short_when_a_read_may_bring_more_than_is_usual(
    held: int, is_short: bool
) -> None:
    memory, _ = memory_with(USUAL - READING + held)
    assert memory.is_short is is_short


def test_the_most_that_was_held_is_known_after_it_was_released() -> None:
    memory, holder = memory_with(5 * MIB)
    memory.release(holder)
    assert (memory.used, memory.peak) == (0, 5 * MIB)


def test_who_goes_waits_for_nothing_any_more() -> None:
    memory, _ = memory_with(0)
    asker = sender(KIB, MIB)
    memory.wait(asker, MIB, NOW)
    assert memory.in_turn() == [asker]
    memory.release(asker)
    assert memory.in_turn() == [] and not asker.waits_since
    assert memory.has_released


@pytest.mark.parametrize(
    ("room", "whole", "following"),
    [
        (4 * MIB, 100 * MIB, 8 * MIB),
        (8 * MIB, 100 * MIB, 10 * MIB),
        (8 * MIB, 9 * MIB, 9 * MIB),
        (8 * KIB, 8 * KIB, 12 * KIB),
    ],
)
def test_large_rooms_grow_by_a_quarter(room: int, whole: int, following: int) -> None:
    assert next_room(room, whole) == following
