"""The partitions of one broker and the upkeep of their logs: open, roll, retain, flush, delete.

Rules of this file:
* A directory belongs to the topic id in its `partition.metadata`; one of another topic, or so
  damaged that it can't be opened, is renamed to `-stray` and left alone.
* What was here and is gone is named before anything else takes its place: a directory that
  checkpoints know, or the positions of the worker before.
* How a log is opened depends on what is known of its last writer: the positions in shared memory
  (it died, this family lives), a clean stop, or nothing (scan from the recovery point).
* fdatasync runs in a thread; here descriptors go out and recovery points come back. A failed
  one fences the log directory: it is never tried again.
* Anything else that the disk refuses to upkeep is logged and comes round again.
* The position of an open log is stored at once, so that a successor need not scan.
"""

import functools
import heapq
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from shmbroker import clock
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.ids import partition_key, random_uuid
from shmbroker.log.checkpoints import remove_files
from shmbroker.log.compaction.cleaned_files import deleted_paths
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import (
    DELETE,
    FUTURE,
    LOG,
    PARTITION_METADATA,
    STRAY,
    mark_of,
    marked_directory,
    parse_partition_directory,
    partition_directory,
)
from shmbroker.log.flushing import flush_targets
from shmbroker.log.log_directory import LogDirectory, remove_deleted
from shmbroker.log.partition_log import NEVER, PartitionLog
from shmbroker.log.partition_metadata import (
    mark_directory,
    read_mark,
    read_partition_metadata,
    write_partition_metadata,
)
from shmbroker.log.quarantine import put_strangers_aside
from shmbroker.log.retention import delete_records, retain
from shmbroker.log.retiring import delete_log, delete_segments_before
from shmbroker.log.segment import Segment
from shmbroker.metadata.image import TopicImage
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.replica.partition import Partition, Partitions
from shmbroker.shm.positions import PositionSlot, PositionTable
from shmbroker.signs import sign

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_MS = 60_000
RETENTION_DELAY_MS = 30_000
"""Before the first look at retention (Kafka: log.initial.task.delay.ms)."""
SOON_MS = 1000
FAULT_LINE_INTERVAL_MS = 10_000
RETENTION_CHECKS_PER_ROUND = 100
"""Partitions: 2 µs each where nothing is to do, whatever the number of its segments; 0.25 ms where
the oldest one was not looked at yet."""
REMOVALS_PER_ROUND = 20
"""Directories of deleted partitions: some 50 µs each where little is in them."""
UNLINKS_PER_ROUND = 200
UNLINK_BYTES_PER_ROUND = 1 << 30
ROLL_CHECKS_PER_ROUND = 200
"""Partitions looked at in one round of upkeep, so that a round stays short with thousands."""
_DAMAGED_BITS_MAX = 12
REMOVE_S = 1.0
"""How long a stop removes what is deleted."""
IDLE_PARK_MS = 60_000
"""A log without appends for this long gives its map and its allocated tail back."""


class PartitionStore:
    """Owns the log directory. `partitions` is shared with those who append and read."""

    def __init__(
        self,
        log_directory: LogDirectory,
        positions: PositionTable,
        file_id_base: int,
        is_successor: bool,
        submit_flush: Callable[[list[int], Callable[[OSError | None], None]], None],
        retention_check_ms: int,
    ) -> None:
        self.log_directory = log_directory
        self.positions = positions
        self.file_ids = itertools.count(file_id_base + 1)
        self.is_successor = is_successor
        self.submit_flush = submit_flush
        self.retention_check_ms = retention_check_ms
        self.partitions = Partitions()
        self.lost: set[bytes] = set()
        """Keys of the partitions whose directories were here, by the checkpoints or the process
        before, and had to be made again."""
        self.dropped_file_ids: list[int] = []
        self.segments_deleted = 0
        self.is_fenced = False
        self.retain_tiered: Callable[[Partition, int], bool] = lambda partition, now_ms: True
        """Retention of a tiered log (`Tier.retain`)."""
        self.swapping: set[bytes] = set()
        """Keys of the partitions of which segments are about to be replaced."""
        self._to_unlink: list[tuple[int, list[int], list[str], int, int]] = []
        """A heap: (when, file ids, paths, bytes)."""
        self._to_retain: list[Partition] = []
        self._to_remove: deque[tuple[int, str]] = deque()
        self._round: list[Partition] = []
        self._next_checkpoint_ms = 0
        self._next_retention_ms = 0
        self._next_fault_line_ms = 0
        self._is_log_start_moved = False
        self._is_start_flushing = self._is_start_flushed = False
        self.on_readable: Callable[[bytes], object] = lambda key: None
        """Told the key of a partition of which less can be read now: it begins later, or its disk
        has failed."""
        self.count: Callable[[str], None] = lambda name: None
        """Told the name of a counter for each thing that is found lost or damaged."""
        self._clean_ms: dict[bytes, int] = {}
        """When a log was last seen to be on the disk as a whole."""
        self._sizes: dict[bytes, tuple[int, int]] = {}

    # ── open and delete ─────────────────────────────────────────────────────────────────────────

    def open(self, topic: TopicImage, index: int, config: LogConfig, now_ms: int) -> Partition:
        """The partition with its log, made if there is none."""
        if self.is_fenced:
            raise StorageFault(f"{self.log_directory.path} is offline")
        key = partition_key(topic.topic_id, index)
        name = (topic.name, index)
        slot = self.positions.find(key)
        known_end = self._known_end(name, key)
        trusted = None
        if slot is None:
            slot = self.positions.allocate(key)
        elif self.is_successor:
            trusted = self.positions.load(slot)
        known_high_watermark = max(
            self.log_directory.high_watermarks.get(name, 0), self.positions.high_watermark(key)
        )
        is_only_replica = len(topic.partitions[index].replicas) == 1
        directory, is_new = self._directory_of(topic, index, trusted, now_ms)
        position_slot = PositionSlot(self.positions, slot) if slot is not None else None
        try:
            log = PartitionLog.open(
                directory,
                config,
                file_ids=self.file_ids,
                position_slot=position_slot,
                trusted=trusted,
                clean=is_new or self.log_directory.is_clean,
                recovery_point=self.log_directory.recovery_points.get(name, 0),
                log_start_offset=self.log_directory.log_start_offsets.get(name, 0),
                decided_below=NEVER if is_only_replica else known_high_watermark,
                cleaned_offset=self.log_directory.cleaned_offset(name),
                is_only_replica=is_only_replica,
                now_ms=now_ms,
                descriptors=self.log_directory.descriptors,
            )
        except CorruptFault as fault:
            if is_new:
                raise
            logger.error("%s", fault)
            self._set_aside(topic.name, index, "it can't be opened")
            self.count("partitions_lost")
            if slot is not None:
                self.positions.free(slot)
            return self.open(topic, index, config, now_ms)
        for _ in range(log.damage_count):
            self.count("log_damage")
        if log.cleaned_offset > self.log_directory.cleaned_offset(name):
            self.log_directory.note_cleaned(name, log.cleaned_offset)
            self.log_directory.checkpoint_cleaned()
        if config.is_fsync and log.recovery_point < log.log_end_offset:
            log.flush()  # What can be read from now on must outlive a power cut.
        self.log_directory.lower_recovery_point(name, log.recovery_point)
        log.on_cut = functools.partial(self.log_directory.lower_recovery_point, name)
        log.store_position()
        partition = Partition(key, topic.name, topic.topic_id, index, log)
        partition.known_high_watermark = known_high_watermark
        if log.log_end_offset < known_end:
            partition.lost_below = known_end
            if not is_new:
                logger.error(
                    "%s ends at offset %d, and ended at %d or behind: what is between is lost here",
                    directory,
                    log.log_end_offset,
                    known_end,
                )
        if position_slot is not None:
            partition.store_high_watermark = position_slot.store_high_watermark
        partition.is_internal = topic.is_internal
        self.partitions[key] = partition
        return partition

    def _known_end(self, name: tuple[str, int], key: bytes) -> int:
        """Where a log ended, at least, by the checkpoints and by what the process before stored; -1
        where neither knows it."""
        known = list(self.log_directory.known(name).values())
        slot = self.positions.find(key)
        if slot is not None and (stored := self.positions.load(slot)) is not None:
            known += [stored[2], self.positions.high_watermark(key)]
        return max(known, default=-1)

    def _directory_of(
        self, topic: TopicImage, index: int, trusted: tuple[int, int, int] | None, now_ms: int
    ) -> tuple[str, bool]:
        """Its directory, with the right topic id in it, and whether it was made just now."""
        path = os.path.join(self.log_directory.path, partition_directory(topic.name, index))
        metadata = os.path.join(path, PARTITION_METADATA)
        if os.path.isdir(path):
            found = self._identity_of(path, (topic.name, index), topic.topic_id)
            if found == topic.topic_id:
                return path, False
            why = "it belongs to another topic id" if found else "nothing says whose it is"
            self._set_aside(topic.name, index, why)
            if not found:
                self.count("partitions_lost")
        else:
            self._name_loss(path, (topic.name, index), trusted)
        if trusted is not None or self.log_directory.knows((topic.name, index)):
            self.lost.add(partition_key(topic.topic_id, index))
        self.log_directory.begin((topic.name, index))
        # Soon, so that a loss of the directory can be told from its never having been durable.
        self._next_checkpoint_ms = min(self._next_checkpoint_ms, now_ms + SOON_MS)
        try:
            os.mkdir(path)
        except OSError as fault:
            raise StorageFault(f"can't make {path}: {fault}") from fault
        write_partition_metadata(metadata, topic.topic_id)
        mark_directory(path, topic.topic_id)
        return path, True

    def _name_loss(
        self, path: str, name: tuple[str, int], trusted: tuple[int, int, int] | None
    ) -> None:
        """Say it if a directory that is not there is known to have been. One that no checkpoint
        knows may be of a topic that was just created."""
        known = self.log_directory.known(name)
        if trusted is not None and trusted[2]:
            known["its end"] = trusted[2]
        if known:
            what = ", ".join(f"{meaning} {offset}" for meaning, offset in known.items())
            logger.error("%s is gone, and was there (%s): it begins anew, empty", path, what)
            self.count("partitions_lost")

    def _identity_of(self, path: str, name: tuple[str, int], topic_id: bytes) -> bytes | None:
        """The topic id of a directory that is there; None if nobody can say.

        Its file is durable from the first flush on. Lost before that, by a power cut, it may have
        been that of a topic of the same name which is deleted since: so, where the directory itself
        doesn't bear the id, only a log that is empty or was flushed is taken for the topic that is
        asked for (Kafka: a log without topic id is stray).
        """
        metadata = os.path.join(path, PARTITION_METADATA)
        try:
            try:
                found = read_partition_metadata(metadata)
            except CorruptFault:
                raise
            except StorageFault:
                if not put_strangers_aside(path):
                    raise
                found = read_partition_metadata(metadata)
            if found == topic_id:
                mark_directory(path, topic_id)
                return found
            if found is not None and not _is_nearly(found, topic_id):
                return found
            is_lost = found is None
            if found is not None:
                logger.warning("%s is damaged", metadata)
        except CorruptFault as fault:
            logger.warning("%s", fault)
            is_lost = _is_zeros(metadata)
        mark = read_mark(path)
        if mark is not None and mark != topic_id:
            return mark
        is_flushed = (
            mark or self.log_directory.is_clean or self.log_directory.recovery_points.get(name)
        )
        if is_lost and not is_flushed and _has_batches(path):
            return None
        why = "of its directory" if mark else "of that name"
        logger.warning("%s is written anew, with the topic id %s", metadata, why)
        write_partition_metadata(metadata, topic_id)
        mark_directory(path, topic_id)
        return topic_id

    def _set_aside(self, topic: str, index: int, why: str) -> None:
        path = os.path.join(self.log_directory.path, partition_directory(topic, index))
        stray = marked_directory(topic, index, STRAY, random_uuid().hex())
        logger.warning("%s is renamed to %s: %s", path, stray, why)
        try:
            os.rename(path, os.path.join(self.log_directory.path, stray))
        except OSError as fault:
            raise StorageFault(f"can't rename {path}: {fault}") from fault

    def note_gap(self, partition: Partition) -> None:
        """Its leader's log lacks offsets, so this one does: recovery must not stumble over it."""
        log = partition.log
        if not partition.is_compacted and log.log_end_offset > log.cleaned_offset:
            log.cleaned_offset = log.log_end_offset
            name = (partition.topic, partition.partition)
            self.log_directory.note_cleaned(name, log.cleaned_offset)

    def delete(self, partition: Partition, now_ms: int) -> None:
        """Take the log away at once, its files after file.delete.delay.ms."""
        sign()
        del self.partitions[partition.key]
        self.lost.discard(partition.key)
        self.log_directory.forget((partition.topic, partition.partition))
        # Soon, as a checkpoint that knows it would let the next of that name look lost.
        self._next_checkpoint_ms = min(self._next_checkpoint_ms, now_ms + SOON_MS)
        partition.is_leader = False
        self._clean_ms.pop(partition.key, None)
        self._sizes.pop(partition.key, None)
        slot = self.positions.find(partition.key)
        if slot is not None:
            self.positions.free(slot)
        self.dropped_file_ids += [segment.file_id for segment in partition.log.segments]
        away = delete_log(partition.log, random_uuid().hex())
        self._to_remove.append((now_ms + partition.log.config.file_delete_delay_ms, away))

    def take_stock(self, topics_by_id: Mapping[bytes, TopicImage], now_ms: int) -> None:
        """At boot: what a deletion left behind is removed, a log without a topic set aside.

        A log without a topic id is one of those, if its name is no topic's.
        """
        directory = self.log_directory.path
        names = {topic.name for topic in topics_by_id.values()}
        opened = {(one.topic, one.partition) for one in self.partitions.values()}
        for name in os.listdir(directory):
            sign()
            path = os.path.join(directory, name)
            if mark_of(name) == DELETE:
                self._to_remove.append((now_ms, path))
            elif mark_of(name) == FUTURE:
                logger.warning("%s is a copy that Apache Kafka was making: it is left alone", path)
            elif (
                (parsed := parse_partition_directory(name))
                and parsed not in opened
                and parsed[0] != METADATA_TOPIC
            ):
                try:
                    topic_id = read_partition_metadata(os.path.join(path, PARTITION_METADATA))
                    is_stray = topic_id is not None and topic_id not in topics_by_id
                except StorageFault as fault:
                    logger.warning("%s", fault)
                    is_stray = False
                if is_stray or parsed[0] not in names:
                    self._set_aside(*parsed, "its topic was deleted")
        self.log_directory.forget_topics_but(names)

    # ── upkeep ──────────────────────────────────────────────────────────────────────────────────

    def upkeep(self, now_ms: int) -> None:
        """One round: some partitions' flushes and parking; retention and checkpoints when due."""
        for _ in range(REMOVALS_PER_ROUND):
            if not (self._to_remove and self._to_remove[0][0] <= now_ms):
                break
            _, path = self._to_remove.popleft()
            self._try(now_ms, remove_deleted, path)
        self._unlink_due(now_ms)
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
            if self._is_flush_due(partition, now_ms) and not self.is_fenced:
                self._try(now_ms, self.flush, [log])
            self._try(now_ms, self._park_if_idle, partition, now_ms)
        if not self._next_retention_ms:
            self._next_retention_ms = now_ms + min(RETENTION_DELAY_MS, self.retention_check_ms)
            self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
        if now_ms >= self._next_retention_ms and not self._to_retain:
            self._next_retention_ms = now_ms + self.retention_check_ms
            self._to_retain = list(self.partitions.values())
        for partition in self._to_retain[:RETENTION_CHECKS_PER_ROUND]:
            if partition.key in self.partitions:
                self._try(now_ms, self.retain, partition, now_ms)
        del self._to_retain[:RETENTION_CHECKS_PER_ROUND]
        if self._is_log_start_moved:
            self._checkpoint_log_starts(now_ms)
        if now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
            self._try(now_ms, self.checkpoint)

    def _checkpoint_log_starts(self, now_ms: int) -> None:
        """Make log start offsets durable, of logs that are on the disk up to there: those that are
        not are flushed first, and it is done in a later round."""
        ahead = [
            partition.log
            for partition in self.partitions.values()
            if partition.log.log_start_offset > partition.log.recovery_point
        ]
        if self.is_fenced or not ahead or self._is_start_flushed:
            checkpoint = self.log_directory.checkpoint_log_starts
            is_done = self._try(now_ms, checkpoint, self._logs())
            self._is_log_start_moved = not is_done or (bool(ahead) and not self.is_fenced)
            self._is_start_flushed = False
        elif not self._is_start_flushing:

            def on_done(fault: Exception | None) -> None:
                self._is_start_flushing = False
                self._is_start_flushed = fault is None

            self._is_start_flushing = True
            if not self._try(now_ms, self.flush, ahead, on_done):
                self._is_start_flushing = False

    def _is_flush_due(self, partition: Partition, now_ms: int) -> bool:
        """A finished segment is not on the disk, or `flush.ms` is over."""
        log = partition.log
        if log.recovery_point == log.log_end_offset:
            self._clean_ms[partition.key] = now_ms
            return False
        waited_ms = now_ms - self._clean_ms.setdefault(partition.key, now_ms)
        is_rolled = log.recovery_point < log.active.base_offset
        return bool(is_rolled or waited_ms >= log.config.flush_ms)

    def _try(self, now_ms: int, work: Callable[..., None], *arguments: Any) -> bool:
        """Do a piece of upkeep; a full disk must not end the process that could make room.

        False if it was refused.
        """
        try:
            work(*arguments)
            return True
        except StorageFault as fault:
            if now_ms >= self._next_fault_line_ms:
                self._next_fault_line_ms = now_ms + FAULT_LINE_INTERVAL_MS
                logger.error("%s; tried again later", fault)
        return False

    def _park_if_idle(self, partition: Partition, now_ms: int) -> None:
        segment = partition.log.active
        if segment.map is None:
            self._sizes.pop(partition.key, None)
            return
        size, since = self._sizes.get(partition.key, (-1, 0))
        if size != segment.size:
            self._sizes[partition.key] = (segment.size, now_ms)
        elif now_ms - since > IDLE_PARK_MS:
            self.dropped_file_ids.append(segment.file_id)
            partition.log.park()

    def retain(self, partition: Partition, now_ms: int) -> None:
        """Take out what retention allows."""
        if partition.key in self.swapping:
            return
        log = partition.log
        if not log.config.is_tiered or self.retain_tiered(partition, now_ms):
            retain(log, partition.high_watermark, now_ms)
        else:
            delete_segments_before(log, log.log_start_offset)
        if log.retired:
            due_ms = now_ms + log.config.file_delete_delay_ms
            for segment in log.retired:
                paths = deleted_paths(log.directory, segment.base_offset)
                self.remove_later(paths, [segment], due_ms)
            log.retired.clear()

    def remove_later(self, paths: list[str], segments: list[Segment], due_ms: int) -> None:
        """Unlink the `.deleted` files of these segments at `due_ms` (file.delete.delay.ms from
        now), or when nobody holds them any more; a start before that does it too.

        Until then answers under way may still name them, and planned queries open them.
        """
        held_until_ms = max(segment.held_until_ms for segment in segments)
        file_ids = [segment.file_id for segment in segments]
        size_bytes = sum(segment.size for segment in segments)
        # The ids make equal times comparable, and are never the same.
        entry = (max(due_ms, held_until_ms), file_ids, paths, size_bytes, due_ms)
        heapq.heappush(self._to_unlink, entry)

    def release_held(self) -> None:
        """The disk is nearly full: files that are only held for queries go when they are due."""
        self._to_unlink = [
            (due_ms, ids, paths, size, due_ms) for _, ids, paths, size, due_ms in self._to_unlink
        ]
        heapq.heapify(self._to_unlink)

    def _unlink_due(self, now_ms: int) -> None:
        """Not too much in one round: the kernel takes some ten milliseconds for a GiB."""
        room_bytes = UNLINK_BYTES_PER_ROUND
        for _ in range(UNLINKS_PER_ROUND):
            if not self._to_unlink or self._to_unlink[0][0] > now_ms or room_bytes <= 0:
                return
            _, file_ids, paths, size_bytes, _ = heapq.heappop(self._to_unlink)
            room_bytes -= size_bytes
            self._try(now_ms, remove_files, paths)
            self.dropped_file_ids += file_ids
            self.segments_deleted += len(file_ids)
            for file_id in file_ids:
                self.log_directory.descriptors.close(file_id)

    def note_log_start(self) -> None:
        """A log start offset has moved: the next round of upkeep makes it durable."""
        self._is_log_start_moved = True

    def delete_records(self, partition: Partition, offset: int) -> int | None:
        """Raise the log start offset (-1: to the high watermark); what it is then, None if that is
        out of range. The next round of upkeep makes it durable."""
        log = partition.log
        before = log.log_start_offset
        start = delete_records(log, offset, partition.high_watermark)
        if log.log_start_offset != before:
            self._is_log_start_moved = True
            self.on_readable(partition.key)
        return start

    def _logs(self) -> list[tuple[str, int, PartitionLog]]:
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

        StorageFault if the log directory is offline, or a file can't be opened.
        """
        if self.is_fenced:
            raise StorageFault(f"{self.log_directory.path} is offline")
        descriptors: list[int] = []
        recovery_points = []
        try:
            for log in logs:
                found, recovery_point = flush_targets(log)
                descriptors += found
                recovery_points.append((log, recovery_point))
        except StorageFault:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

        def on_flushed(fault: OSError | None) -> None:
            if fault is not None:
                self.fence(fault)
            else:
                for log, recovery_point in recovery_points:
                    log.on_flushed(recovery_point)
            if on_done is not None:
                on_done(fault)

        self.submit_flush(descriptors, on_flushed)

    def fence(self, fault: OSError) -> None:
        """The kernel may have dropped what it could not write: nothing here is to be trusted."""
        if self.is_fenced:
            return
        self.is_fenced = True
        logger.error("fdatasync in %s: %s; it is offline", self.log_directory.path, fault)
        for partition in self.partitions.values():
            partition.take_offline()
            self.on_readable(partition.key)

    def checkpoint(self) -> None:
        """Write the checkpoint files: recovery points, log starts, high watermarks."""
        self.log_directory.checkpoint(self._logs(), self._high_watermarks())

    def close(self, broker_epoch: int) -> None:
        """The clean end: everything flushed, checkpoints, marker. What deletions have left is gone
        too, or else when the next start has taken stock."""
        if self.is_fenced:
            self.log_directory.close()
            return
        deadline = clock.monotonic() + REMOVE_S
        for _, path in self._to_remove:
            if clock.monotonic() < deadline:
                remove_deleted(path)
        self.log_directory.close_clean(self._logs(), self._high_watermarks(), broker_epoch)


def _has_batches(directory: str) -> bool:
    return any(
        name.endswith(LOG) and os.path.getsize(os.path.join(directory, name))
        for name in os.listdir(directory)
    )


def _is_nearly(found: bytes, topic_id: bytes) -> bool:
    """Whether an id differs in one letter of its text, 6 bits, or two: ids of 122 random bits are
    never that near to each other."""
    difference = int.from_bytes(found, "big") ^ int.from_bytes(topic_id, "big")
    return 0 < difference.bit_count() <= _DAMAGED_BITS_MAX


def _is_zeros(path: str) -> bool:
    """What a power cut makes of a small file, where it doesn't lose it: it has its size alone."""
    with open(path, "rb") as file:
        return not file.read().strip(b"\0")
