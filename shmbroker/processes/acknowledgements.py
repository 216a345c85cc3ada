"""Acknowledgements: when a dead process may be followed, as everybody who talks to it knows of the
death.

    a death ──► the next incarnation of its slot
            ──► every living process that talks to the slot has acknowledged it
            ──► the successor has acknowledged all who live ──► its start

A successor starts with rings that everyone has reset: that is what is acknowledged. Who forks, who
is told and who is killed is decided by others. Words in shared memory, and nothing else.
"""

from __future__ import annotations

from shmbroker.shm.counters import INCARNATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from shmbroker.processes.shared_resources import SharedResources


class Acknowledgements:
    """Knows who has acknowledged which death. Processes are named by their slots' indexes; the
    living are an argument."""

    __slots__ = ("_counters", "_talk", "_words")

    def __init__(self, shared: SharedResources) -> None:
        self._counters = shared.counters
        self._words = shared.counters.words
        self._talk = shared.talk

    def start(self, slots: Collection[int]) -> None:
        """Begin with the first incarnation of each, which all of them have acknowledged."""
        for index in slots:
            self._words[self._counters.at(index, INCARNATION)] = 1
            for other in slots:
                self._words[self._counters.acknowledgement(index, other)] = 1

    def on_death(self, index: int) -> None:
        """The process of this slot is dead; nobody has acknowledged it."""
        self._words[self._counters.at(index, INCARNATION)] += 1

    def late(self, index: int, living: Iterable[int]) -> list[int]:
        """Name those of the living that have not acknowledged the last death in this slot."""
        words, counters = self._words, self._counters
        incarnation = words[counters.at(index, INCARNATION)]
        return [
            other
            for other in living
            if self._talk(other, index)
            and words[counters.acknowledgement(other, index)] != incarnation
        ]

    def acknowledge_for(self, index: int, living: Iterable[int]) -> None:
        """A successor has seen the deaths before its own: its rings with all who live are new."""
        words, counters = self._words, self._counters
        for other in living:
            words[counters.acknowledgement(index, other)] = words[counters.at(other, INCARNATION)]
