"""The partitions of one broker and what is done with their logs: open, delete, retain, flush.

   .directories     whose a directory is, and what was lost of them     partition_directories.py
   .removals        files and directories that go later                 removals.py
   .swaps           segments that take the place of others              swaps.py

What is due by time alone, `upkeep` does, in rounds.

Rules of this file:
* How a log is opened depends on what is known of its last writer: the positions in shared memory
  (it died, this family lives), a clean stop, or nothing (scan from the recovery point). One so
  damaged that it can't be opened is renamed to `-stray` and left alone.
* fdatasync runs in a thread; here descriptors go out and recovery points come back. A failed
  one fences the log directory: it is never tried again.
* The position of an open log is stored at once, so that a successor need not scan.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shmbroker.broker.partition_directories import PartitionDirectories
from shmbroker.broker.removals import Removals
from shmbroker.broker.swaps import Swaps
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.ids import partition_key
from shmbroker.log.compaction.cleaned_files import deleted_paths
from shmbroker.log.config import LogConfig
from shmbroker.log.flushing import Flush, flush_targets
from shmbroker.log.log_directory import LogDirectory
from shmbroker.log.mending import NO_LIMIT
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.retention import delete_records, raise_start, retain
from shmbroker.log.retiring import delete_segments_before
from shmbroker.metadata.image import TopicImage
from shmbroker.replica.partition import Partition, Partitions
from shmbroker.shm.positions import PositionSlot, PositionTable
from shmbroker.signs import sign

logger = logging.getLogger(__name__)

SOON_MS = 1000
"""The time until a checkpoint says which logs there are now."""


class LastKnown(NamedTuple):
    """What is known of a partition before its log is opened."""

    key: bytes
    name: tuple[str, int]
    slot: int | None
    """The slot in the position table; None: the table is full."""
    position_slot: PositionSlot | None
    trusted: tuple[int, int, int] | None
    """The positions that a writer of this family has stored; None: they are not to be trusted."""
    end: int
    """Where the log ended, at least, by the checkpoints and by what the process before stored; -1:
    neither knows it."""
    high_watermark: int
    is_only_replica: bool


def _ignore(_what: object) -> None:
    """What a store tells whose owner does not ask."""


class PartitionStore:
    """Owns the log directory. `partitions` is shared with those who append and read."""

    def __init__(
        self,
        log_directory: LogDirectory,
        positions: PositionTable,
        file_id_base: int,
        is_successor: bool,
        submit_flush: Callable[[list[int], Callable[[OSError | None], None]], None],
        steady_ms: Callable[[], int],
        count: Callable[[str], None] = _ignore,
        on_readable: Callable[[bytes], object] = _ignore,
    ) -> None:
        """steady_ms: the time, for what waits: it never goes back. count: told the name of a
        counter for each thing that is found lost or damaged. on_readable: told the key of a
        partition of which less can be read now: it begins later, or its disk has failed."""
        self.log_directory = log_directory
        self.positions = positions
        self.file_ids = itertools.count(file_id_base + 1)
        self.is_successor = is_successor
        self.submit_flush = submit_flush
        self.steady_ms = steady_ms
        self.partitions = Partitions()
        self.dropped_file_ids: list[int] = []
        self.is_fenced = False
        self.retain_tiered: Callable[[Partition, int], bool] = lambda partition, now_ms: True
        """Retention of a tiered log (`Tier.retain`)."""
        self.swapping: set[bytes] = set()
        """Keys of the partitions of which segments are about to be replaced."""
        self.next_checkpoint_ms = 0
        """The time from which a round of upkeep writes checkpoints, in steady milliseconds."""
        self.is_log_start_moved = False
        """A log start offset is not durable yet: the next round of upkeep sees to it."""
        self.on_readable = on_readable
        self.count = count
        self.removals = Removals(
            log_directory.descriptors, self.dropped_file_ids, steady_ms, log_directory.write_gone
        )
        self.swaps = Swaps(self)
        self.directories = PartitionDirectories(log_directory, count, self.removals.remove_later)

    # ── open and delete ─────────────────────────────────────────────────────────────────────────

    def open(self, topic: TopicImage, index: int, config: LogConfig, now_ms: int) -> Partition:
        """The partition with its log, made if there is none."""
        if self.is_fenced:
            raise StorageFault(f"{self.log_directory.path} is offline")
        key = partition_key(topic.topic_id, index)
        slot = self.positions.find(key)
        trusted = None if slot is None or not self.is_successor else self.positions.load(slot)
        directory = self.directories.find(topic, index, trusted)
        known = self._look_up(topic, index, slot, trusted)  # `find` knows what is of another topic
        is_new = directory is None
        if directory is None:
            self._checkpoint_soon()  # which tells a loss from what never was durable
            directory = self.directories.make(topic, index, trusted)
        try:
            log = self._open_log(directory, known, config, is_new, now_ms)
        except CorruptFault as fault:
            if is_new:
                raise
            self._give_up(known, fault)
            return self.open(topic, index, config, now_ms)
        self._note_opened(known.name, log)
        partition = self._new_partition(topic, index, known, log)
        partition.waits_for_store = (
            is_new and config.is_tiered and self.log_directory.has_remote_store
        )
        if log.log_end_offset < known.end:
            partition.lost_below = known.end
            if not is_new:
                logger.error(
                    "%s ends at offset %d, and ended at %d or behind: what is between is lost here",
                    directory,
                    log.log_end_offset,
                    known.end,
                )
        self.partitions[known.key] = partition
        return partition

    def _look_up(
        self, topic: TopicImage, index: int, slot: int | None, trusted: tuple[int, int, int] | None
    ) -> LastKnown:
        """What is known of a partition. It gets a slot if it has none, and there is room."""
        key = partition_key(topic.topic_id, index)
        name = (topic.name, index)
        ends = list(self.log_directory.known(name).values())
        if slot is not None and (stored := self.positions.load(slot)) is not None:
            ends += [stored[2], self.positions.high_watermark(key)]
        if slot is None:
            slot = self.positions.allocate(key)
        return LastKnown(
            key,
            name,
            slot,
            None if slot is None else PositionSlot(self.positions, slot),
            trusted,
            max(ends, default=-1),
            max(self.log_directory.high_watermark(name), self.positions.high_watermark(key)),
            len(topic.partitions[index].replicas) == 1,
        )

    def _open_log(
        self, directory: str, known: LastKnown, config: LogConfig, is_new: bool, now_ms: int
    ) -> PartitionLog:
        """Open a log by what is known of its last writer. CorruptFault: it can't be."""
        checkpoints = self.log_directory
        return PartitionLog.open(
            directory,
            config,
            file_ids=self.file_ids,
            position_slot=known.position_slot,
            trusted=known.trusted,
            clean=is_new or checkpoints.is_clean,
            recovery_point=checkpoints.recovery_points.get(known.name, 0),
            log_start_offset=checkpoints.log_start_offsets.get(known.name, 0),
            decided_below=NO_LIMIT if known.is_only_replica else known.high_watermark,
            cleaned_offset=checkpoints.cleaned_offset(known.name),
            is_only_replica=known.is_only_replica,
            now_ms=now_ms,
            descriptors=checkpoints.descriptors,
        )

    def _give_up(self, known: LastKnown, fault: CorruptFault) -> None:
        """Set aside what can't be opened, and forget where it was."""
        logger.error("%s", fault)
        self.directories.set_aside(*known.name, "it can't be opened")
        self.count("partitions_lost")
        if known.slot is not None:
            self.positions.free(known.slot)

    def _note_opened(self, name: tuple[str, int], log: PartitionLog) -> None:
        """Have the checkpoints, the disk and the shared memory say what the opening has found."""
        for _ in range(log.damage_count):
            self.count("log_damage")
        if log.cleaned_offset > self.log_directory.cleaned_offset(name):
            self.log_directory.note_cleaned(name, log.cleaned_offset)
            self.log_directory.checkpoint_cleaned()
        if log.config.is_fsync and log.recovery_point < log.log_end_offset:
            log.flush()  # What can be read from now on must outlive a power cut.
        self.log_directory.lower_recovery_point(name, log.recovery_point)
        log.on_cut = functools.partial(self.log_directory.lower_recovery_point, name)
        log.store_position()
        known_start = self.log_directory.log_start_offsets.get(name, 0)
        if self.log_directory.has_remote_store and log.log_start_offset > known_start:
            raise_start(log, log.log_start_offset)  # It may be tiered by the next start: `retain`.
        self.is_log_start_moved |= log.is_start_raised

    @staticmethod
    def _new_partition(
        topic: TopicImage, index: int, known: LastKnown, log: PartitionLog
    ) -> Partition:
        partition = Partition(known.key, topic.name, topic.topic_id, index, log)
        partition.known_high_watermark = known.high_watermark
        if known.position_slot is not None:
            partition.store_high_watermark = known.position_slot.store_high_watermark
        partition.is_internal = topic.is_internal
        return partition

    def _checkpoint_soon(self) -> None:
        self.next_checkpoint_ms = min(self.next_checkpoint_ms, self.steady_ms() + SOON_MS)

    def note_gap(self, partition: Partition) -> None:
        """Note that the leader's log lacks offsets, so this one does: recovery must not stumble
        over it."""
        log = partition.log
        if not partition.is_compacted and log.log_end_offset > log.cleaned_offset:
            log.cleaned_offset = log.log_end_offset
            name = (partition.topic, partition.partition)
            self.log_directory.note_cleaned(name, log.cleaned_offset)

    def delete(self, partition: Partition) -> None:
        """Take the log away at once, its files after file.delete.delay.ms."""
        sign()
        del self.partitions[partition.key]
        self.directories.lost.discard(partition.key)
        self.log_directory.forget((partition.topic, partition.partition))
        self._checkpoint_soon()  # one that knows it would let the next look lost
        partition.is_leader = False
        slot = self.positions.find(partition.key)
        if slot is not None:
            self.positions.free(slot)
        self.dropped_file_ids += [segment.file_id for segment in partition.log.segments]
        self.directories.delete(partition.log, partition.log.config.file_delete_delay_ms)

    def take_stock(self, topics_by_id: Mapping[bytes, TopicImage]) -> None:
        """Take stock at boot: remove what a deletion left behind, set logs without a topic
        aside."""
        opened = {(one.topic, one.partition) for one in self.partitions.values()}
        for path in self.directories.left_behind(topics_by_id, opened):
            self.removals.remove_later(path, 0)

    # ── what goes out of logs ───────────────────────────────────────────────────────────────────

    def retain(self, partition: Partition, now_ms: int) -> None:
        """Take out what retention allows. now_ms: by the wall clock, as records say their age."""
        if partition.key in self.swapping:
            return
        log = partition.log
        start = log.log_start_offset
        try:
            is_judged_here = not log.config.is_tiered or self.retain_tiered(partition, now_ms)
            start = log.log_start_offset
            if is_judged_here:
                retain(log, partition.high_watermark, now_ms)
            else:
                delete_segments_before(log, log.log_start_offset)
        finally:  # A full disk may refuse a new segment, and must not keep the old ones.
            self._let_go(partition, start)

    def _let_go(self, partition: Partition, start: int) -> None:
        """See to what has gone out of a log, which began at `start`."""
        log = partition.log
        if log.retired:
            delay_ms = log.config.file_delete_delay_ms
            for segment in log.retired:
                paths = deleted_paths(log.directory, segment.base_offset)
                self.removals.unlink_later(paths, [segment], delay_ms)
            log.retired.clear()
        if log.log_start_offset != start:
            if log.config.is_tiered or self.log_directory.has_remote_store:
                # Of a tiered log, as it is or may be by the next start, the first segment does not
                # say so.
                self.raise_log_start(partition, log.log_start_offset)
            else:
                self.on_readable(partition.key)

    def delete_records(self, partition: Partition, offset: int) -> int | None:
        """Raise the log start offset (-1: to the high watermark); what it is then, None if that is
        out of range. All processes may die now; the next round of upkeep makes it durable."""
        log = partition.log
        before = log.log_start_offset
        start = delete_records(log, offset, partition.high_watermark)
        if log.log_start_offset != before:
            self.is_log_start_moved = True
            self.on_readable(partition.key)
        return start

    def raise_log_start(self, partition: Partition, offset: int) -> None:
        """Let a log begin at `offset`, as `delete_records` does: all processes may die now."""
        raise_start(partition.log, offset)
        self.is_log_start_moved = True
        self.on_readable(partition.key)

    # ── on the disk ─────────────────────────────────────────────────────────────────────────────

    def logs(self) -> list[tuple[str, int, PartitionLog]]:
        """All that are open: topic, partition, log."""
        return [
            (partition.topic, partition.partition, partition.log)
            for partition in self.partitions.values()
        ]

    def _high_watermarks(self) -> dict[tuple[str, int], int]:
        return {
            (partition.topic, partition.partition): partition.high_watermark
            for partition in self.partitions.values()
        }

    def flush(
        self,
        logs: list[PartitionLog],
        on_done: Callable[[Exception | None], None] | None = None,
    ) -> None:
        """Make logs durable in the background: their recovery points follow, then `on_done(fault)`.

        StorageFault if the log directory is offline, or a file can't be opened: then all of these
        logs are as they were.
        """
        if self.is_fenced:
            raise StorageFault(f"{self.log_directory.path} is offline")
        flushes: list[Flush] = []
        try:
            for log in logs:
                flush = flush_targets(log)
                flushes.append(flush)
        except StorageFault:
            for flush in flushes:
                flush.drop()
            raise
        descriptors = [descriptor for flush in flushes for descriptor in flush.begin()]

        def on_flushed(fault: OSError | None) -> None:
            if fault is not None:
                self.fence(fault)
            else:
                for flush in flushes:
                    flush.end()
            if on_done is not None:
                on_done(fault)

        self.submit_flush(descriptors, on_flushed)

    def fence(self, fault: OSError | StorageFault) -> None:
        """The kernel may have dropped what it could not write, or names could be neither changed
        nor changed back: nothing here is to be trusted."""
        if self.is_fenced:
            return
        self.is_fenced = True
        if isinstance(fault, StorageFault):
            logger.error("%s; %s is offline", fault, self.log_directory.path)
        else:
            logger.error("fdatasync in %s: %s; it is offline", self.log_directory.path, fault)
        for partition in self.partitions.values():
            partition.take_offline()
            self.on_readable(partition.key)

    def checkpoint(self) -> None:
        """Write the checkpoint files: recovery points, log starts, high watermarks."""
        self.log_directory.checkpoint(self.logs(), self._high_watermarks())

    def close(self, broker_epoch: int, monotonic: Callable[[], float]) -> None:
        """End cleanly: everything flushed, checkpoints, marker. What deletions have left is gone
        too, or else when the next start has taken stock."""
        if self.is_fenced:
            self.log_directory.close()
            return
        self.directories.rename_all_refused()
        self.removals.finish(monotonic)
        self.log_directory.close_clean(self.logs(), self._high_watermarks(), broker_epoch)
