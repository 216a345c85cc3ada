"""Chooses the log to compact next, and takes over what the cleaner process made of it.

   this worker                                   cleaner (`processes.cleaner`)
   chooses a log, names its closed segments  →   reads them, writes `.cleaned` files, syncs them
   .cleaned → .swap; syncs the directory     ←   which segments become one, how far it came
   (in the flushing thread), then swaps

Rules of this file:
* One log at a time. The worker stays the only one that changes it: where segments went meanwhile,
  the result is thrown away. Between .swap and the end retention leaves the log alone.
* First a log with records that wait longer than max.compaction.lag.ms, then the one with most
  dirt, if it is over min.cleanable.dirty.ratio (Kafka `LogCleanerManager`).
* A log that can't be cleaned is given up until the worker starts again: damaged, or the cleaner
  died of it DEATHS_MAX times in a row. One line says so, a counter counts it, the others go on.
* When the next pass begins goes by steady milliseconds, how old records are by the wall clock.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from shmbroker import logs
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.swaps import Swap
from shmbroker.errors import StorageFault
from shmbroker.log.compaction.cleanable import Cleanable, find_cleanable
from shmbroker.log.compaction.cleaned_files import try_remove_cleaned
from shmbroker.log.compaction.swap import prepare_swap
from shmbroker.log.segment import Segment
from shmbroker.replica.partition import Partition
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR, NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.ipc.asking import OnAnswer
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

DEATHS_MAX = 5
CHECKPOINT_INTERVAL_MS = 10_000


class Compaction:
    """Asked once a second by `run`; `current` is the pass under way.

    ask: sends a CleanLog request to the cleaner, and tells the answer; False if none runs yet (it
    is woken then). now_ms: what the wall clock shows.
    count: adds one to a counter.
    """

    def __init__(
        self,
        store: PartitionStore,
        config: BrokerConfig,
        ask: Callable[[dict[str, Any], OnAnswer], bool],
        now_ms: Callable[[], int],
        count: Callable[[str], None],
    ) -> None:
        self.store = store
        self.is_enabled = config["log.cleaner.enable"]
        self.backoff_ms = config["log.cleaner.backoff.ms"]
        self.map_bytes = config["log.cleaner.dedupe.buffer.size"]
        self.ask = ask
        self.count = count
        self._now_ms = now_ms
        self._steady_ms = store.steady_ms
        self.current: tuple[Partition, list[Segment]] | None = None
        self.quarantined: set[bytes] = set()
        self._deaths: dict[bytes, int] = {}
        self._next_ms = 0
        self._next_checkpoint_ms = 0

    def on_config(self, backoff_ms: int, map_bytes: int) -> None:
        """The broker's settings may have changed: a pass looks at them when it begins."""
        self.backoff_ms, self.map_bytes = backoff_ms, map_bytes
        self._next_ms = min(self._next_ms, self._steady_ms() + backoff_ms)

    def run(self, now_ms: int) -> None:
        """Begin a pass if one is due; write the checkpoint if that is. now_ms: by the wall
        clock."""
        offsets = self.store.log_directory
        steady_ms = self._steady_ms()
        if offsets.is_cleaned_moved and steady_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = steady_ms + CHECKPOINT_INTERVAL_MS
            try:
                offsets.checkpoint_cleaned()
            except StorageFault as fault:
                logger.warning("%s; tried again later", fault, extra=logs.seldom("checkpoint"))
                offsets.is_cleaned_moved = True
        if not self.is_enabled or self.current is not None or steady_ms < self._next_ms:
            return
        chosen = self._choose(now_ms)
        if chosen is None:
            self._next_ms = steady_ms + self.backoff_ms
            return
        partition, cleanable = chosen
        body = _request(partition, cleanable, now_ms) | {"map_bytes": self.map_bytes}
        if self.ask(body, self.on_answer):
            self.current = partition, cleanable.segments

    def is_on(self, key: bytes) -> bool:
        """Whether a pass over this partition is under way."""
        return self.current is not None and self.current[0].key == key

    def _choose(self, now_ms: int) -> tuple[Partition, Cleanable] | None:
        best: tuple[Partition, Cleanable] | None = None
        cleaned = self.store.log_directory.cleaned_offsets
        for partition in self.store.partitions.values():
            log = partition.log
            if not log.config.is_compacted or len(log.segments) < 2:
                continue
            if partition.key in self.quarantined or partition.key in self.store.swapping:
                continue
            try:
                log.aborted.check()
                found = find_cleanable(
                    log,
                    cleaned.get((partition.topic, partition.partition), -1),
                    # Behind a flush, so that a hole is never one that a power cut has made.
                    min(partition.last_stable_offset, log.recovery_point),
                    now_ms,
                )
            except StorageFault as fault:
                self._give_up(partition, str(fault))
                continue
            if found is None or not (
                found.is_overdue or found.dirty_ratio > log.config.min_cleanable_dirty_ratio
            ):
                continue
            if best is None or found.urgency > best[1].urgency:
                best = partition, found
        return best

    def _put_off(self, partition: Partition, fault: object) -> None:
        """The disk is full or bad: the pass is worth another try, but not at once."""
        again = "compaction is tried again"
        logger.warning("%s; %s", fault, again, extra=logs.seldom(again))
        self.current = None
        try_remove_cleaned(partition.log.directory)
        self._next_ms = self._steady_ms() + self.backoff_ms

    def _give_up(self, partition: Partition, reason: str) -> None:
        self.quarantined.add(partition.key)
        self.count("logs_not_compacted")
        logger.error(
            "%s-%d is not compacted any more until the next start: %s",
            partition.topic,
            partition.partition,
            reason,
        )

    def on_cleaner_lost(self) -> None:
        """The cleaner is dead; what it had begun is removed."""
        if self.current is None:
            return
        (partition, _), self.current = self.current, None
        try_remove_cleaned(partition.log.directory)
        deaths = self._deaths[partition.key] = self._deaths.get(partition.key, 0) + 1
        if deaths >= DEATHS_MAX:
            self._give_up(partition, f"the cleaner died of it {deaths} times")

    def on_answer(self, body: dict[str, Any]) -> None:
        """What the cleaner answers to the last request."""
        assert self.current is not None
        partition, segments = self.current
        self._next_ms = self._steady_ms()
        if body["error_code"] != NONE:
            why = body.get("error_message")
            if body["error_code"] == KAFKA_STORAGE_ERROR:
                self._put_off(partition, why)
            else:
                self.current = None
                try_remove_cleaned(partition.log.directory)
                self._give_up(partition, why or "the cleaner failed")
            return
        self._deaths.pop(partition.key, None)
        groups = [
            (segments[group["first"] : group["first"] + group["count"]], group["size"])
            for group in body["groups"]
        ]
        if not self._is_as_before(partition, segments):
            self.current = None
            try_remove_cleaned(partition.log.directory)
        elif groups:
            self._swap(partition, groups, body["end_offset"], self._now_ms())
        else:
            self.current = None
            self._done(partition, body["end_offset"])

    def _is_as_before(self, partition: Partition, segments: list[Segment]) -> bool:
        log = partition.log
        return (
            self.store.partitions.holds(partition)
            and log.config.is_compacted
            and segments[-1] is not log.active
            and log.segments[: len(segments)] == segments
        )

    def _swap(
        self, partition: Partition, groups: list[tuple[list[Segment], int]], end: int, now_ms: int
    ) -> None:
        """`.swap` names, made durable by the flushing thread, then the rest.

        Before all of it the checkpoint: a recovery takes a hole behind it for lost segments.
        """
        log, store = partition.log, self.store
        name = partition.topic, partition.partition
        cleaned_before = store.log_directory.cleaned_offsets.get(name)
        store.log_directory.note_cleaned(name, end)
        directory = -1
        try:
            store.log_directory.checkpoint_cleaned()
            directory = os.open(log.directory, os.O_RDONLY | os.O_CLOEXEC)
            prepare_swap(log.directory, groups)
        except (OSError, StorageFault) as fault:
            if directory >= 0:
                os.close(directory)
            store.log_directory.note_cleaned(name, cleaned_before)
            self._put_off(partition, fault)
            return

        def on_done(is_done: bool) -> None:
            if is_done:
                self._done(partition, end)

        self.current = None
        store.swaps.begin(Swap(partition, groups, now_ms, on_done), directory)

    def _done(self, partition: Partition, end_offset: int) -> None:
        log = partition.log
        log.cleaned_offset = max(log.cleaned_offset, end_offset)
        name = partition.topic, partition.partition
        self.store.log_directory.note_cleaned(name, end_offset)
        self.count("logs_compacted")


def _request(partition: Partition, cleanable: Cleanable, now_ms: int) -> dict[str, Any]:
    log = partition.log
    config = log.config
    return {
        "directory": log.directory,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "size": segment.size,
                "end_offset": segment.end_offset,
            }
            for segment in cleanable.segments
        ],
        "dirty_offset": cleanable.first_dirty_offset,
        "now_ms": now_ms,
        "delete_retention_ms": config.delete_retention_ms,
        "segment_bytes": config.segment_bytes,
        "segment_index_bytes": config.segment_index_bytes,
        "index_interval_bytes": config.index_interval_bytes,
        "producers": [
            {
                "producer_id": producer_id,
                "last_offset": entry.last_offset,
                "epoch": entry.epoch,
            }
            for producer_id, entry in log.producers.producers.items()
        ],
    }
