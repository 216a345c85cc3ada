"""What the disk refused, or gave damaged: counted, logged, and looked at closer (`damage`)."""

from __future__ import annotations

import logging
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shmbroker.broker.damage import DamageMender
    from shmbroker.clock import Clock
    from shmbroker.errors import StorageFault
    from shmbroker.replica.partition import Partition

logger = logging.getLogger(__name__)

LINE_INTERVAL_S = 10.0


class StorageFaults:
    """The faults of one broker's appends and reads. count: told the name of their counter."""

    def __init__(
        self,
        clock: Clock,
        count: Callable[[str], None],
        damage: DamageMender,
        now_ms: Callable[[], int],
        partitions: Mapping[bytes, Partition],
    ) -> None:
        self._clock = clock
        self._count = count
        self._damage = damage
        self._now_ms = now_ms
        self._partitions = partitions
        self._next_line: dict[bytes, float] = {}
        self.met = 0
        """How many there were."""

    def on_fault(self, partition: Partition, fault: StorageFault) -> None:
        """The disk refused an append or a read, or gave something damaged.

        Logged every ten seconds for each partition.
        """
        self.met += 1
        self._count("storage_faults")
        now = self._clock.monotonic()
        if now >= self._next_line.get(partition.key, 0.0):
            self._next_line[partition.key] = now + LINE_INTERVAL_S
            logger.error("%s-%d: %s", partition.topic, partition.partition, fault)
        self._damage.on_fault(partition, fault, self._now_ms())

    def on_file_fault(self, fault: StorageFault) -> None:
        """The disk refused a file of a log, and whose that is has to be found."""
        directory = os.path.dirname(fault.path)
        for partition in self._partitions.values():
            if partition.log.directory == directory:
                self.on_fault(partition, fault)
                return
