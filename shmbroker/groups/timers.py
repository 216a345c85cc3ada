"""The timers of one coordinator: when to look at which group or transactional id, at which shard's
old offsets, at which markers.

Rules of this file:
* One timer for a group or an id, on a heap. One whose deadline moves back keeps its timer: it comes
  too early then, and is set again. So a heartbeat touches no heap.
* What is due again at once waits for the next turn.
* One whose deadline comes nearer gets another timer, and what is gone leaves its own behind: these
  are taken out when they may be half of the heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from shmbroker.purgatory import NEVER_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TIDY_FROM = 256
"""Fewer timers than this are not worth a look at all of them."""

What = TypeVar("What")


class Timer(NamedTuple, Generic[What]):
    """The first in a heap of them is due first."""

    due_ms: int
    sequence: int
    """What is due at the same time goes in the order in which it was set."""
    what: What


class Timers(Generic[What]):
    """A heap of them."""

    __slots__ = ("_heap", "_is_wanted", "_on_first", "_sequence", "_tidy_from")

    def __init__(
        self, on_first: Callable[[int], None], is_wanted: Callable[[int, What], bool]
    ) -> None:
        """on_first: told when the first is due, if that is earlier than before. is_wanted: whether
        a timer that is due at this time still has something to do."""
        self._heap: list[Timer[What]] = []
        self._sequence = 0
        self._on_first = on_first
        self._is_wanted = is_wanted
        self._tidy_from = TIDY_FROM

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first_ms(self) -> int:
        """When the first is due."""
        return self._heap[0].due_ms if self._heap else NEVER_MS

    def push(self, due_ms: int, what: What) -> None:
        """Set one more."""
        if len(self._heap) >= self._tidy_from:
            self._tidy()
        self._sequence += 1
        timer = Timer(due_ms, self._sequence, what)
        heappush(self._heap, timer)
        if self._heap[0] is timer:
            self._on_first(due_ms)

    def _tidy(self) -> None:
        self._heap = [each for each in self._heap if self._is_wanted(each.due_ms, each.what)]
        heapify(self._heap)
        self._tidy_from = max(TIDY_FROM, 2 * len(self._heap))

    def take_due(self, now_ms: int) -> list[Timer[What]]:
        """Timers whose time has come, the first of them first."""
        heap: list[Timer[What]] = self._heap
        due: list[Timer[What]] = []
        while heap and heap[0].due_ms <= now_ms:
            due.append(heappop(heap))
        return due
