"""Which spare buffers a worker keeps, and which one a frame gets."""

from typing import Any

import pytest

from shmbroker.gateway.arriving import ArrivingMemory, Sender
from shmbroker.gateway.frame_buffers import SPARE_BYTES_MAX, SPARE_BYTES_MIN, SpareBuffers

KIB = 1024
MIB = KIB * KIB


class Spares:
    """Spare buffers of a memory of which so much is held."""

    def __init__(self, held: int = 0, bound: int = 64 * MIB) -> None:
        self.memory: ArrivingMemory[Any] = ArrivingMemory(bound, 64 * KIB)
        self.sender = Sender()
        self.hold(held)
        self.spare = SpareBuffers(self.memory)

    def hold(self, size: int) -> None:
        self.memory.hold(self.sender, size, 0.0)

    def keep(self, *sizes: int) -> "Spares":
        for size in sizes:
            self.spare.keep(bytearray(size))
        return self


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ((SPARE_BYTES_MIN,), SPARE_BYTES_MIN),
        ((SPARE_BYTES_MIN - 1,), 0),
        ((SPARE_BYTES_MAX,), SPARE_BYTES_MAX),
        ((SPARE_BYTES_MAX + 1,), 0),
        ((20 * KIB, 50 * KIB, 30 * KIB, 40 * KIB, 60 * KIB), 180 * KIB),
        ((6 * MIB, 3 * MIB), 6 * MIB),
    ],
)
def test_the_largest_few_are_kept(sizes: tuple[int, ...], kept: int) -> None:
    assert Spares().keep(*sizes).spare.size == kept


def test_none_is_kept_beyond_the_usual_memory_or_while_it_is_short() -> None:
    usual = 48 * MIB
    assert Spares(held=usual - MIB).keep(600 * KIB, 500 * KIB).spare.size == 600 * KIB
    assert Spares(held=usual).keep(16 * KIB).spare.size == 0


@pytest.mark.parametrize(("held", "left"), [(46 * MIB, MIB), (47 * MIB, MIB), (47 * MIB + 1, 0)])
def test_they_are_given_up_where_there_is_no_room_for_what_is_held(held: int, left: int) -> None:
    spares = Spares().keep(MIB)
    spares.hold(held)
    spares.spare.shrink()
    assert spares.spare.size == left


@pytest.mark.parametrize(
    ("wanted", "usual_size", "found"),
    [
        (16 * KIB, 0, 64 * KIB),
        (64 * KIB, 0, 64 * KIB),
        (15 * KIB, 0, 15 * KIB),
        (20 * KIB, 0, 64 * KIB),
        (65 * KIB, 0, 65 * KIB),
        (100 * KIB, MIB, MIB),
        (100 * KIB, 0, 100 * KIB),
    ],
)
def test_a_frame_gets_one_of_about_its_size(wanted: int, usual_size: int, found: int) -> None:
    spares = Spares().keep(MIB, 64 * KIB)
    assert len(spares.spare.take(wanted, usual_size)) == found


def test_a_larger_one_is_not_taken_where_memory_gets_short() -> None:
    spares = Spares().keep(64 * KIB)
    spares.hold(48 * MIB - 63 * KIB)
    assert len(spares.spare.take(16 * KIB, 0)) == 16 * KIB


def test_those_that_were_of_no_use_for_a_while_are_given_up() -> None:
    spares = Spares().keep(16 * KIB, 32 * KIB)
    spares.spare.take(32 * KIB, 0)
    spares.spare.sweep()
    assert spares.spare.size == 16 * KIB
    spares.spare.sweep()
    assert spares.spare.size == 0
