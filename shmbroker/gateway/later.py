"""What a gateway does at a later time: an answer that is held back, an end that is put off."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Later:
    """Callbacks by the monotonic second at which they are due."""

    __slots__ = ("_count", "_heap", "due")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()
        self.due = float("inf")
        """When the next one is."""

    def at(self, due: float, do: Callable[[], None]) -> None:
        """Have this done then; of those with the same time, the one that was said first."""
        heappush(self._heap, (due, next(self._count), do))
        self.due = self._heap[0][0]

    def run(self, now: float) -> None:
        """Do what is due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            heappop(heap)[2]()
        self.due = heap[0][0] if heap else float("inf")
