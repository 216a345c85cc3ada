"""New segments take the place of old ones: what compaction and repairs of damage have written.

   .swap names are durable    the flushing thread has synced the directory
   swapped, group by group    `log.compaction.swap`
   refused by the disk        that group is as it was; all that is left is tried again later
   can't be undone either     the log directory is offline, and the next start mends it

Rules of this file:
* From the sync to the end the partition is in `store.swapping`: whoever else takes out segments
  leaves it alone.
* A refusal ends no process: the log is read and appended to as before.
"""

from __future__ import annotations

import logging

from shmbroker import logs
from shmbroker.errors import StorageFault
from shmbroker.log.compaction.swap import NotUndoneFault, replace_segments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.log.segment import Segment
    from shmbroker.replica.partition import Partition

logger = logging.getLogger(__name__)

AGAIN_MS = 5_000


class Swap:
    """One that is under way. on_done: told whether all of it was done; False: the partition or its
    disk is gone."""

    def __init__(
        self,
        partition: Partition,
        groups: list[tuple[list[Segment], int]],
        now_ms: int,
        on_done: Callable[[bool], None],
    ) -> None:
        """groups: the segments that become one, and the size of that one; those to be done."""
        self.partition = partition
        self.groups = groups
        self.now_ms = now_ms
        self.on_done = on_done


class Swaps:
    """The swaps in one store."""

    def __init__(self, store: PartitionStore) -> None:
        self.store = store
        self._refused: list[Swap] = []
        self._next_ms = 0

    def begin(self, swap: Swap, directory_fd: int) -> None:
        """Make the `.swap` names durable, then swap. directory_fd: it is closed."""
        store = self.store

        def finish(fault: OSError | None) -> None:
            if fault is not None:
                store.fence(fault)
            self._go_on(swap)

        store.swapping.add(swap.partition.key)
        store.submit_flush([directory_fd], finish)

    def run(self) -> None:
        """Try those again that were refused."""
        if self._refused and self.store.steady_ms() >= self._next_ms:
            again, self._refused = self._refused, []
            for swap in again:
                self._go_on(swap)

    def _go_on(self, swap: Swap) -> None:
        store, partition, log = self.store, swap.partition, swap.partition.log
        is_there = not store.is_fenced and store.partitions.holds(partition)
        while is_there and swap.groups:
            old, size = swap.groups[0]
            try:
                paths = replace_segments(log, old, size, swap.now_ms)
            except NotUndoneFault as fault:
                store.fence(fault)
                is_there = False
                break
            except StorageFault as fault:
                again = "segments that can't be replaced are tried again"
                logger.error("%s; %s", fault, again, extra=logs.seldom(again))
                self._refused.append(swap)
                self._next_ms = store.steady_ms() + AGAIN_MS
                return
            del swap.groups[0]
            store.removals.unlink_later(paths, old, log.config.file_delete_delay_ms)
        store.swapping.discard(partition.key)
        swap.on_done(is_there)
