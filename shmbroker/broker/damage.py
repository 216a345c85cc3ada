"""Damage that readers meet in a log that no other replica has: a hole is left, and they go on.

   reader      KAFKA_STORAGE_ERROR; clients try again
   thread      looks at the segment (`log.mending`), writes what is right of it to N.log.tmp, and
               the damaged bytes to quarantine/
   main loop   notes the hole (cleaner-offset-checkpoint, durable), then puts the file in the place
               of the damaged one, as compaction does (`log.compaction.cleaned_files`)
   reader      is given what comes behind the hole

It is the same that a start does where it scans. One segment at a time; an active one is rolled
first. What is no damage of a segment stays refused, and so is everything where other replicas have
the records.

Nothing is lost of an active segment whose file somebody removes: it is written again from the map
(`log.restoring`), whether or not other replicas have it.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable

from shmbroker import logs
from shmbroker.broker.partition_store import PartitionStore
from shmbroker.broker.swaps import Swap
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import remove_files
from shmbroker.log.compaction.cleaned_files import SWAP, cleaned_path
from shmbroker.log.file_names import LOG, PARTITION_METADATA
from shmbroker.log.mending import NO_LIMIT, Hole, Mend, lines_of, look_at, write_mended
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.partition_metadata import mark_directory, write_partition_metadata
from shmbroker.log.places import segment_number
from shmbroker.log.quarantine import put_strangers_aside
from shmbroker.log.restoring import is_active_file_gone, restore_active
from shmbroker.log.retiring import put_aside_stray
from shmbroker.log.segment import Segment
from shmbroker.replica.partition import Partition

logger = logging.getLogger(__name__)

WAITING_MAX = 1000


class DamageMender:
    """Mends logs: it is told of what readers met (`on_fault`), and works when the main loop lets it
    (`run`)."""

    def __init__(self, store: PartitionStore, is_compacting: Callable[[bytes], bool]) -> None:
        self.store = store
        self.is_compacting = is_compacting
        self._waiting: deque[tuple[Partition, Segment]] = deque()
        self._seen: set[int] = set()
        """File ids: each is looked at once."""
        self._current: tuple[Partition, Segment] | None = None
        self._found: deque[Mend | StorageFault | None] = deque()
        """What the thread found, one entry for each time that it was started. None: the segment
        does not belong there, as the one before goes on behind its beginning."""

    @property
    def looked_at(self) -> Segment | None:
        """What the thread looks at, or has, until its find is taken."""
        return self._current[1] if self._current is not None else None

    def on_fault(self, partition: Partition, fault: StorageFault, now_ms: int) -> None:
        """A read met damage, in the file that the fault names. Clients that try again keep this
        going."""
        segment = next((one for one in partition.log.segments if one.path == fault.path), None)
        if segment is partition.log.active and is_active_file_gone(partition.log):
            self._restore(partition)
        elif segment is not None and len(partition.replicas) == 1:
            self._add(partition, segment, fault, now_ms)
        self.run(now_ms)

    def restore_removed(self, partitions: Iterable[Partition]) -> None:
        """Write again what somebody has removed of these, before the process ends that has it."""
        for partition in partitions:
            if is_active_file_gone(partition.log):
                self._restore(partition)

    def _restore(self, partition: Partition) -> None:
        """Write a log's segment to a file again: its file is gone, and the map has all of it.
        Rolled, it would be lost. If the directory was removed, what says whose it is comes back."""
        log = partition.log
        path, identity = log.active.path, f"{log.directory}/{PARTITION_METADATA}"
        try:
            if not self.store.is_fenced:
                self.store.dropped_file_ids.append(restore_active(log))
                if not os.path.lexists(identity):
                    write_partition_metadata(identity, partition.topic_id)
                    mark_directory(log.directory, partition.topic_id)
                    log.leader_epochs.is_written = False
                    log.write_epochs()
                logger.error("%s was removed by somebody; it is there again, whole", path)
                self.store.count("log_damage")
        except StorageFault as fault:
            why = "a removed file can't be written again"
            logger.error("%s: %s", why, fault, extra=logs.seldom(why))

    def _add(
        self, partition: Partition, segment: Segment, fault: StorageFault, now_ms: int
    ) -> None:
        log = partition.log
        if (
            (not isinstance(fault, CorruptFault) and os.path.isfile(segment.path))
            or segment.file_id in self._seen
            or len(self._waiting) >= WAITING_MAX
            or self.store.is_fenced
        ):
            return
        self._seen.add(segment.file_id)
        if segment is log.active:
            try:
                log.roll(now_ms)
            except StorageFault:
                return
        self._waiting.append((partition, segment))

    def run(self, now_ms: int) -> None:
        """Take what the thread has found; give it the next."""
        if self._current is not None:
            partition, segment = self._current
            is_busy = partition.key in self.store.swapping or self.is_compacting(partition.key)
            if not self._found or is_busy:
                return
            self._current = None
            self._take(partition, segment, self._found.popleft(), now_ms)
        while self._waiting and self._current is None:
            partition, segment = self._waiting.popleft()
            if self._is_there(partition, segment):
                self._current = partition, segment
                log = partition.log
                number = log.segments.index(segment)
                before = log.segments[number - 1] if number else None
                gaps_end = NO_LIMIT if partition.is_compacted else log.cleaned_offset
                threading.Thread(
                    target=self._work,
                    args=(segment, segment.end_offset, before, gaps_end),
                    name="mender",
                    daemon=True,
                ).start()

    def _is_there(self, partition: Partition, segment: Segment) -> bool:
        return self.store.partitions.holds(partition) and segment in partition.log.segments[:-1]

    def _work(self, segment: Segment, limit: int, before: Segment | None, gaps_end: int) -> None:
        """Do the thread's work; whatever happens, it leaves something for the main loop to find."""
        found: Mend | StorageFault | None
        try:
            found = _look(segment, limit, before, gaps_end)
        except StorageFault as fault:
            found = fault
        except OSError as error:
            found = StorageFault(f"can't look at {segment.path}: {error}")
        except Exception as failure:
            logger.exception("the look at %s failed", segment.path)
            found = StorageFault(f"can't look at {segment.path}: {failure!r}")
        self._found.append(found)

    def _take(
        self,
        partition: Partition,
        segment: Segment,
        found: Mend | StorageFault | None,
        now_ms: int,
    ) -> None:
        log, store, written = partition.log, self.store, segment.path + ".tmp"
        if found is None:
            if self._is_there(partition, segment):
                put_aside_stray(log, segment)
                store.count("log_damage")
            return
        if isinstance(found, StorageFault):
            logger.error("%s", found)
            return
        if not found.is_any:
            return
        try:
            if not self._is_there(partition, segment) or store.is_fenced:
                remove_files((written,))
                return
            for line in lines_of(segment.path, found):
                logger.error("%s", line)
                store.count("log_damage")
            if not partition.is_compacted and found.holes:
                log.cleaned_offset = max(log.cleaned_offset, found.holes[-1].end_offset)
                name = partition.topic, partition.partition
                store.log_directory.note_cleaned(name, log.cleaned_offset)
                store.log_directory.checkpoint_cleaned()
            if not os.path.exists(written):
                return
            if not os.path.isfile(segment.path):
                put_strangers_aside(log.directory)
                segment.create_files()
            groups = [([segment], os.path.getsize(written))]
            os.rename(written, cleaned_path(log.directory, segment.base_offset, LOG, SWAP))
            directory = os.open(log.directory, os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, StorageFault) as fault:
            logger.error("%s can't be mended: %s", segment.path, fault)
            return

        def on_done(is_done: bool) -> None:
            if is_done:
                self._complete(log, segment.base_offset)
            self.run(now_ms)

        store.swaps.begin(Swap(partition, groups, now_ms, on_done), directory)

    @staticmethod
    def _complete(log: PartitionLog, base_offset: int) -> None:
        """Make the indexes of a segment that was mended."""
        try:
            log.segments[segment_number(log, base_offset)].create_files()
        except StorageFault as fault:
            logger.error("%s; the next start makes it", fault)


def _look(segment: Segment, limit: int, before: Segment | None, gaps_end: int) -> Mend | None:
    """What is wrong with it, and what is right written beside it; None: it does not belong there.

    What was there when the process began is no torn write any more.
    """
    path, base = segment.path, segment.base_offset
    written = path + ".tmp"
    if not os.path.isfile(path):
        os.close(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        return Mend([], [Hole(0, 0, base, limit)], [], limit, -1, 0)
    mend = look_at(path, base, -1, limit, gaps_end, NO_LIMIT)
    if not mend.kept and before is not None:
        start = before.base_offset
        if look_at(before.path, start, -1, limit, gaps_end, 0).end_offset > base:
            return None
    # One that was cut at the end of a batch is written, too: readers go by the size of before.
    if mend.is_of_bytes or (mend.is_any and os.path.getsize(path) < segment.size):
        write_mended(path, mend, written)
    return mend
