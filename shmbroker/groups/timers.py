"""The timers of one coordinator: when to look at which group or transactional id, at which shard's
old offsets, at which markers.

Rules of this file:
* One timer for a group or an id, on a heap. One whose deadline moves back keeps its timer: it comes
  too early then, and is set again. So a heartbeat touches no heap.
* What is due again at once waits for the next turn.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from shmbroker.purgatory import NEVER_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

What = TypeVar("What")


class Timer(NamedTuple, Generic[What]):
    """The first in a heap of them is due first."""

    due_ms: int
    sequence: int
    """What is due at the same time goes in the order in which it was set."""
    what: What


class Timers(Generic[What]):
    """A heap of them."""

    __slots__ = ("_heap", "_on_first", "_sequence")

    def __init__(self, on_first: Callable[[int], None]) -> None:
        """on_first: told when the first is due, if that is earlier than before."""
        self._heap: list[Timer[What]] = []
        self._sequence = 0
        self._on_first = on_first

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first_ms(self) -> int:
        """When the first is due."""
        return self._heap[0].due_ms if self._heap else NEVER_MS

    def push(self, due_ms: int, what: What) -> None:
        """Set one more."""
        self._sequence += 1
        timer = Timer(due_ms, self._sequence, what)
        heappush(self._heap, timer)
        if self._heap[0] is timer:
            self._on_first(due_ms)

    def take_due(self, now_ms: int) -> list[Timer[What]]:
        """Timers whose time has come, the first of them first."""
        heap: list[Timer[What]] = self._heap
        due: list[Timer[What]] = []
        while heap and heap[0].due_ms <= now_ms:
            due.append(heappop(heap))
        return due
