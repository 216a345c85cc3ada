"""What waits for the high watermark of a partition: the one way to wait for in-sync replicas.

By partition, in the order of offsets; who moves a high watermark asks what is due by it. What waits
for an append or a time is in the purgatory (`purgatory`), what waits for the disk in the next group
commit (`broker.group_commit`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.replica.partition import Partition

Waiter = TypeVar("Waiter")


class OffsetWaits(Generic[Waiter]):
    """Waiters of one kind. Each leaves once: due, taken or dropped."""

    __slots__ = ("partitions",)

    def __init__(self) -> None:
        self.partitions: dict[Partition, deque[tuple[int, Waiter]]] = {}
        """Partitions with waiters: the offset that each waits for, and the waiter."""

    def __len__(self) -> int:
        return sum(map(len, self.partitions.values()))

    def wait(self, partition: Partition, end_offset: int, waiter: Waiter) -> None:
        """Wait until the high watermark is at `end_offset`, which is none before those that
        wait."""
        waiting = self.partitions.get(partition)
        if waiting is None:
            waiting = self.partitions[partition] = deque()
        waiting.append((end_offset, waiter))

    def due(self, partition: Partition) -> list[Waiter]:
        """Waiters for whom the high watermark is far enough; they wait no more."""
        waiting = self.partitions.get(partition)
        if waiting is None:
            return []
        high_watermark = partition.high_watermark
        found = []
        while waiting and waiting[0][0] <= high_watermark:
            found.append(waiting.popleft()[1])
        if not waiting:
            del self.partitions[partition]
        return found

    def take(self, partition: Partition) -> list[Waiter]:
        """All of a partition; they wait no more."""
        return [waiter for _, waiter in self.partitions.pop(partition, ())]

    def drop_where(self, predicate: Callable[[Waiter], bool]) -> list[Waiter]:
        """Waiters that the predicate picks, of all partitions; they wait no more."""
        dropped: list[Waiter] = []
        for partition, waiting in list(self.partitions.items()):
            picked = [waiter for _, waiter in waiting if predicate(waiter)]
            if not picked:
                continue
            dropped += picked
            kept = deque(each for each in waiting if not predicate(each[1]))
            if kept:
                self.partitions[partition] = kept
            else:
                del self.partitions[partition]
        return dropped
