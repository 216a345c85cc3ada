"""The upkeep of a broker's logs, in rounds between its turns: what is due, of some of them.

   each round           renames and swaps that were refused; removals that are due; a part of the
                        partitions: flush, park
   retention check      a part of the partitions: what retention allows goes
   log starts moved     flush up to them, then make them durable
   once a minute        checkpoints

Rules of this file:
* A round stays short with thousands of partitions: it goes on where the one before has ended.
* Whatever the disk refuses is logged and comes round again: a full disk must not end the process
  that could make room.
* Whatever comes again after a while goes by steady milliseconds: when the wall clock is set back,
  rounds, flushes and checkpoints go on. The wall clock's time is for the age of records alone.
"""

from __future__ import annotations

import logging
from itertools import islice

from shmbroker.errors import StorageFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.replica.partition import Partition

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_MS = 60_000
RETENTION_DELAY_MS = 30_000
"""The time before the first look at retention (Kafka: log.initial.task.delay.ms)."""
FAULT_LINE_INTERVAL_MS = 10_000
RETENTION_CHECKS_PER_ROUND = 100
"""Partitions: 2 µs each where nothing is to do, whatever the number of its segments; 0.25 ms where
the oldest one was not looked at yet."""
ROLL_CHECKS_PER_ROUND = 200
"""Partitions looked at in one round, so that it stays short with thousands."""
RENAMES_PER_ROUND = 100
"""The most directories renamed in one round that could not be renamed before."""
IDLE_PARK_MS = 60_000
"""A log without appends for this long gives its map and its allocated tail back."""


class Upkeep:
    """The upkeep of the logs in one store. retention_check_ms: how often retention is looked at."""

    def __init__(self, store: PartitionStore, retention_check_ms: int) -> None:
        self.store = store
        self.partitions = store.partitions
        self.retention_check_ms = retention_check_ms
        self._steady_ms = store.steady_ms
        self._to_retain: list[Partition] = []
        self._round: list[Partition] = []
        self._next_retention_ms = 0
        self._next_fault_line_ms = 0
        self._is_start_flushing = self._is_start_flushed = False
        self._clean_ms: dict[bytes, int] = {}
        """When a log was last seen to be on the disk as a whole, in steady milliseconds."""
        self._sizes: dict[bytes, tuple[int, int]] = {}
        """The size of a mapped segment, and since when it has that size."""

    def forget(self, key: bytes) -> None:
        """Forget a partition whose log is deleted."""
        self._clean_ms.pop(key, None)
        self._sizes.pop(key, None)

    def run(self, now_ms: int) -> list[Partition]:
        """Do a round: some partitions' flushes and parking; retention and checkpoints when due.
        The partitions that it was about.

        now_ms: by the wall clock.
        """
        store = self.store
        steady_ms = self._steady_ms()
        for name in list(islice(store.directories.refused, RENAMES_PER_ROUND)):
            self._try(store.directories.rename_refused, name)
        store.removals.run(self._try)
        store.swaps.run()
        if not self._round:
            self._round = list(self.partitions.values())
        due, self._round = (
            self._round[:ROLL_CHECKS_PER_ROUND],
            self._round[ROLL_CHECKS_PER_ROUND:],
        )
        for partition in due:
            log = partition.log
            if partition.key not in self.partitions:
                continue
            if self._is_flush_due(partition, steady_ms) and not store.is_fenced:
                self._try(store.flush, [log])
            self._try(self._park_if_idle, partition, steady_ms)
        if not self._next_retention_ms:
            self._next_retention_ms = steady_ms + min(RETENTION_DELAY_MS, self.retention_check_ms)
            store.next_checkpoint_ms = steady_ms + CHECKPOINT_INTERVAL_MS
        if steady_ms >= self._next_retention_ms and not self._to_retain:
            self._next_retention_ms = steady_ms + self.retention_check_ms
            self._to_retain = list(self.partitions.values())
        for partition in self._to_retain[:RETENTION_CHECKS_PER_ROUND]:
            if partition.key in self.partitions:
                self._try(store.retain, partition, now_ms)
        del self._to_retain[:RETENTION_CHECKS_PER_ROUND]
        if store.is_log_start_moved:
            self._checkpoint_log_starts()
        if steady_ms >= store.next_checkpoint_ms:
            store.next_checkpoint_ms = steady_ms + CHECKPOINT_INTERVAL_MS
            self._try(store.checkpoint)
        return due

    def _checkpoint_log_starts(self) -> None:
        """Make log start offsets durable, of logs that are on the disk up to there: those that are
        not are flushed first, and it is done in a later round."""
        store = self.store
        ahead = [
            partition.log
            for partition in self.partitions.values()
            if partition.log.log_start_offset > partition.log.recovery_point
        ]
        if store.is_fenced or not ahead or self._is_start_flushed:
            checkpoint = store.log_directory.checkpoint_log_starts
            is_done = self._try(checkpoint, store.logs())
            store.is_log_start_moved = not is_done or (bool(ahead) and not store.is_fenced)
            self._is_start_flushed = False
        elif not self._is_start_flushing:

            def on_done(fault: Exception | None) -> None:
                self._is_start_flushing = False
                self._is_start_flushed = fault is None

            self._is_start_flushing = True
            if not self._try(store.flush, ahead, on_done):
                self._is_start_flushing = False

    def _is_flush_due(self, partition: Partition, steady_ms: int) -> bool:
        """A finished segment is not on the disk, or `flush.ms` is over."""
        log = partition.log
        if log.recovery_point == log.log_end_offset:
            self._clean_ms[partition.key] = steady_ms
            return False
        waited_ms = steady_ms - self._clean_ms.setdefault(partition.key, steady_ms)
        is_rolled = log.recovery_point < log.active.base_offset
        return bool(is_rolled or waited_ms >= log.config.flush_ms)

    def _park_if_idle(self, partition: Partition, steady_ms: int) -> None:
        segment = partition.log.active
        if segment.map is None:
            self._sizes.pop(partition.key, None)
            return
        size, since = self._sizes.get(partition.key, (-1, 0))
        if size != segment.size:
            self._sizes[partition.key] = (segment.size, steady_ms)
        elif steady_ms - since > IDLE_PARK_MS:
            self.store.dropped_file_ids.append(segment.file_id)
            partition.log.park()

    def _try(self, work: Callable[..., None], *arguments: Any) -> bool:
        """Do a piece of upkeep; a full disk must not end the process that could make room.

        False if it was refused.
        """
        try:
            work(*arguments)
            return True
        except StorageFault as fault:
            if (steady_ms := self._steady_ms()) >= self._next_fault_line_ms:
                self._next_fault_line_ms = steady_ms + FAULT_LINE_INTERVAL_MS
                logger.error("%s; tried again later", fault)
        return False
