"""One node's log directory: who owns it, which logs are in it, how it was left.

   meta.properties                         node, cluster and directory id
   .lock                                   fcntl lock of the process that writes here
   .kafka_cleanshutdown                    there only after a clean stop (KIP-966 gave it content)
   recovery-point-offset-checkpoint        } see `checkpoints`
   replication-offset-checkpoint           }
   log-start-offset-checkpoint             }
   cleaner-offset-checkpoint               }
   <topic>-<partition>/ …

Only what Apache Kafka knows may stand here: it refuses to start on a directory it can't place.
The lock is an fcntl lock because that is what Kafka (Java's FileChannel) respects; it isn't
inherited over fork, so the process that writes takes it itself.

The clean marker is removed, durably, before the first write; a start without it scans from the
recovery points. `.kafka_cleanshutdown`, as 4.2 writes it: {"version":0,"brokerEpoch":11}
"""

import fcntl
import logging
import os
from collections.abc import Iterable

from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.ids import random_uuid
from shmbroker.log.checkpoints import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    Offsets,
    read_offsets,
    sync_directory,
    sync_names,
    write_file,
    write_offsets,
)
from shmbroker.log.closing import close_all
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.directory_lock import LOCK
from shmbroker.log.file_names import (
    CLEAN_SHUTDOWN,
    DELETE,
    META_PROPERTIES,
    mark_of,
    parse_partition_directory,
)
from shmbroker.log.meta_properties import (
    MetaProperties,
    check_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.quarantine import put_aside
from shmbroker.log.raised_start import forget_raised
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.signs import sign

logger = logging.getLogger(__name__)


Logs = Iterable[tuple[str, int, PartitionLog]]
"""(topic, partition, log)"""


class LogDirectory:
    """The directory that one I/O worker (or controller) writes to; make it with `open`."""

    __slots__ = (
        "_gone",
        "_has_begun",
        "_lock_fd",
        "are_cleaned_known",
        "clean_broker_epoch",
        "cleaned_offsets",
        "cluster_id",
        "descriptors",
        "directory_id",
        "has_remote_store",
        "high_watermarks",
        "is_clean",
        "is_cleaned_moved",
        "log_start_offsets",
        "node_id",
        "path",
        "recovery_points",
    )

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.node_id = -1
        self.cluster_id = ""
        self.directory_id = b""
        self.is_clean = False
        """Whether it was closed cleanly, and nothing has written here since."""
        self.clean_broker_epoch = -1
        """The epoch of the broker that closed it cleanly, as the marker says; -1 if it doesn't."""
        self.recovery_points: Offsets = {}
        self.high_watermarks: Offsets = {}
        self.log_start_offsets: Offsets = {}
        self.has_remote_store = False
        """Whether topics may be tiered in this family."""
        self.cleaned_offsets: Offsets = {}
        """Where the last compaction of a log ended: before it, it is clean."""
        self.are_cleaned_known = True
        """The file of these could be read: behind them no log has holes."""
        self.is_cleaned_moved = False
        self.descriptors = Descriptors()
        """Bounds the open files of all logs here: hand it to `PartitionLog.open`."""
        self._gone: set[tuple[str, int]] = set()
        self._has_begun = False
        """Logs were made since the last checkpoint."""
        self._lock_fd = -1

    @classmethod
    def open(
        cls, path: str, node_id: int, cluster_id: str, *, descriptors_max: int = 512
    ) -> "LogDirectory":
        """Take the directory, making it if need be. ConfigFault if it belongs to somebody else."""
        self = cls(path)
        self.descriptors.limit = descriptors_max
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise ConfigFault(f"can't make the log directory {self.path}: {error}") from error
        self._take_lock()
        try:
            self._take_identity(node_id, cluster_id)
            self._take_marker()
            self.recovery_points = self._load(RECOVERY_POINT)
            self.high_watermarks = self._load(HIGH_WATERMARK)
            self.log_start_offsets = self._load(LOG_START_OFFSET)
            self.cleaned_offsets = self._load_cleaned()
        except BaseException:
            self.unlock()
            raise
        return self

    def _take_lock(self) -> None:
        path = os.path.join(self.path, LOCK)
        try:
            self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.lockf(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise ConfigFault(
                f"{self.path} is in use by another process; stop it or choose another directory"
            ) from None
        except OSError as error:
            self.unlock()
            raise ConfigFault(f"can't lock {path}: {error}") from error

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
        self._lock_fd = -1

    def _take_identity(self, node_id: int, cluster_id: str) -> None:
        path = os.path.join(self.path, META_PROPERTIES)
        found = read_meta_properties(path)
        cleaner = os.path.join(self.path, CLEANER)
        if not os.path.exists(cleaner) and not any(
            parsed[0] != METADATA_TOPIC
            for name in os.listdir(self.path)
            if (parsed := parse_partition_directory(name))
        ):
            write_offsets(cleaner, {})  # Nothing is here, so nothing is compacted.
        if found is None:
            found = MetaProperties(node_id, cluster_id, random_uuid())
            write_meta_properties(path, found)
        check_meta_properties(path, found, node_id, cluster_id)
        self.node_id, self.cluster_id = node_id, cluster_id
        self.directory_id = found.directory_id

    def _take_marker(self) -> None:
        path = os.path.join(self.path, CLEAN_SHUTDOWN)
        self.is_clean = os.path.isfile(path)
        if not self.is_clean and os.path.exists(path):
            self._put_aside(path)
        if self.is_clean:
            with open(path, encoding="utf-8", errors="replace") as file:
                epoch = file.read(1024).rpartition('"brokerEpoch":')[2].strip(" }\n")
            self.clean_broker_epoch = int(epoch) if epoch.isdecimal() else -1
            os.unlink(path)
            sync_directory(self.path)

    def _load(self, name: str) -> Offsets:
        """A damaged checkpoint costs a longer scan, never the start."""
        path = os.path.join(self.path, name)
        try:
            found = self._read(path)
            if self.is_clean and not (os.path.exists(path) and os.path.getsize(path)):
                # A clean stop leaves it, with no entries at least.
                raise CorruptFault(f"{path} is missing or empty after a clean stop", path)
        except CorruptFault as fault:
            logger.warning("%s; going on without it", fault)
            self.is_clean = False
            return {}
        return found

    def _read(self, path: str) -> Offsets:
        try:
            return read_offsets(path)
        except StorageFault as fault:
            if isinstance(fault, CorruptFault) or not os.path.isdir(path):
                raise
            self._put_aside(path)
            return {}

    def _put_aside(self, path: str) -> None:
        """Something has the name of a file of ours and is none."""
        put_aside(os.path.join(self.path, ""), [path])
        logger.error("%s can't be there; it is in quarantine/ now", path)

    def _load_cleaned(self) -> Offsets:
        path = os.path.join(self.path, CLEANER)
        try:
            offsets = self._read(path)
            self.are_cleaned_known = os.path.exists(path)
        except CorruptFault as fault:
            logger.warning("%s; going on without it", fault)
            self.are_cleaned_known = False
            return {}
        return offsets

    def cleaned_offset(self, log: tuple[str, int]) -> int:
        """Where the last compaction of a log ended; 0: none was; -1: that is not known."""
        return self.cleaned_offsets.get(log, 0 if self.are_cleaned_known else -1)

    def logs(self) -> list[tuple[str, int, str]]:
        """(topic, partition, directory) of every log here; leftovers of deletions are removed."""
        found = []
        for name in sorted(os.listdir(self.path)):
            path = os.path.join(self.path, name)
            if mark_of(name) == DELETE:
                remove_deleted(path)
            elif (parsed := parse_partition_directory(name)) and os.path.isdir(path):
                found.append((*parsed, path))
        return found

    def known(self, log: tuple[str, int]) -> dict[str, int]:
        """What checkpoints say of a log that had records: {meaning: offset}; nothing of one that
        was deleted."""
        if log in self._gone:
            return {}
        told = {
            "flushed up to offset": self.recovery_points.get(log, 0),
            "its high watermark": self.high_watermarks.get(log, 0),
            "its first offset": self.log_start_offsets.get(log, 0),
        }
        return {meaning: offset for meaning, offset in told.items() if offset}

    def high_watermark(self, log: tuple[str, int]) -> int:
        """The high watermark that the checkpoint says; 0 of one that was deleted."""
        return 0 if log in self._gone else self.high_watermarks.get(log, 0)

    def knows(self, log: tuple[str, int]) -> bool:
        """Whether a checkpoint names a log; not one that was deleted."""
        named = (self.recovery_points, self.high_watermarks, self.log_start_offsets)
        return log not in self._gone and any(log in offsets for offsets in named)

    def checkpoint(self, logs: Logs, high_watermarks: Offsets | None = None) -> None:
        """Write the recovery points and log start offsets of these logs, and high watermarks.

        What the files say of logs that could not be opened stays. Directories are durable before
        they are named here for the first time: one that is named and not there was lost.
        """
        if self._has_begun:
            sync_names(self.path)
            self._has_begun = False
        logs = list(logs)
        points = {(topic, partition): log.recovery_point for topic, partition, log in logs}
        self.recovery_points = self._store(
            RECOVERY_POINT, self._kept(self.recovery_points) | points, self.recovery_points
        )
        self.checkpoint_log_starts(logs)
        if high_watermarks is not None:
            stored = self.high_watermarks
            self.high_watermarks = self._store(
                HIGH_WATERMARK, self._kept(stored) | high_watermarks, stored
            )
        self._gone.clear()

    def checkpoint_log_starts(self, logs: Logs) -> None:
        """Write the log start offsets; those at the beginning of a segment need no entry.

        Unless there may be segments before it in the store (as Kafka's `LogManager` has it), now or
        by the next start: without an entry such a log begins at 0, whatever the store has. Where
        none is needed since DeleteRecords, the unlinks are made durable first: nothing of what was
        deleted comes back. None goes beyond what is on the disk of the log, so that after a power
        cut one beyond the log's end is known to be wrong.
        """
        offsets = self._kept(self.log_start_offsets)
        told = []
        for topic, partition, log in logs:
            name = topic, partition
            # One that is stored was on the disk then, though its recovery point may be lost.
            start = min(log.log_start_offset, max(log.recovery_point, offsets.get(name, 0)))
            if (
                start > log.segments[0].base_offset
                or log.config.is_tiered
                or (self.has_remote_store and start)
            ):
                offsets[name] = start
            elif offsets.pop(name, None) is not None or log.is_start_raised:
                sync_names(log.directory)
            if log.is_start_raised and start == log.log_start_offset:
                told.append(log)
        self.log_start_offsets = self._store(LOG_START_OFFSET, offsets, self.log_start_offsets)
        for log in told:
            forget_raised(log)

    def lower_recovery_point(self, log: tuple[str, int], offset: int) -> None:
        """The log is about to end at `offset`, or was found to end there.

        A scan that begins behind that would miss what is torn before it.
        """
        if self.recovery_points.get(log, 0) <= offset:
            return
        lowered = self.recovery_points | {log: offset}
        self.recovery_points = self._store(RECOVERY_POINT, lowered, self.recovery_points)

    def forget(self, log: tuple[str, int]) -> None:
        """A log is gone: the next checkpoint says nothing of it any more."""
        self._gone.add(log)
        self.note_cleaned(log, None)

    def named(self) -> set[tuple[str, int]]:
        """All logs that checkpoints name."""
        return {*self.recovery_points, *self.high_watermarks, *self.log_start_offsets}

    def begin(self, log: tuple[str, int]) -> None:
        """A log is made: what the files say of one of its name, deleted before, must not count."""
        self._has_begun = True
        self.note_cleaned(log, None)
        if self.is_cleaned_moved:
            # Else a start after a power cut would take what is lost for what compaction removed.
            self.checkpoint_cleaned()
        known = (self.recovery_points, self.log_start_offsets, self.high_watermarks)
        if any(log in offsets for offsets in known):
            self._gone.add(log)
            self.write_gone()

    def write_gone(self) -> None:
        """Write now that nothing is known of logs that are gone. A process that is killed before
        the next checkpoint would let its successor take them for lost."""
        if not self._gone:
            return
        for name, offsets in (
            (RECOVERY_POINT, self.recovery_points),
            (LOG_START_OFFSET, self.log_start_offsets),
            (HIGH_WATERMARK, self.high_watermarks),
        ):
            kept = self._kept(offsets)
            if kept != offsets:
                write_offsets(os.path.join(self.path, name), kept)
                offsets.clear()
                offsets.update(kept)
        self._gone.clear()

    def note_cleaned(self, log: tuple[str, int], offset: int | None) -> None:
        """A log is clean up to `offset`; None: it is gone. `checkpoint_cleaned` writes it."""
        if offset is None:
            self.is_cleaned_moved |= self.cleaned_offsets.pop(log, None) is not None
        else:
            self.cleaned_offsets[log] = offset
            self.is_cleaned_moved = True

    def checkpoint_cleaned(self) -> None:
        """Write how far logs are compacted. What is lost here is only done once more."""
        self.is_cleaned_moved = False
        write_offsets(os.path.join(self.path, CLEANER), self.cleaned_offsets)

    def _store(self, name: str, offsets: Offsets, stored: Offsets) -> Offsets:
        """Write offsets over those that are stored; what the file holds then."""
        path = os.path.join(self.path, name)
        # Two fsyncs a file are saved where nothing moved.
        if offsets != stored or not os.path.exists(path):
            write_offsets(path, offsets)
        return offsets

    def _kept(self, stored: Offsets) -> Offsets:
        return {log: offset for log, offset in stored.items() if log not in self._gone}

    def close_clean(
        self, logs: Logs, high_watermarks: Offsets | None = None, broker_epoch: int = -1
    ) -> None:
        """Close every log, write all checkpoints and the clean marker, let go of the directory."""
        logs = list(logs)
        close_all([log for _, _, log in logs])
        self.checkpoint(logs, high_watermarks)
        if self.is_cleaned_moved or not os.path.exists(os.path.join(self.path, CLEANER)):
            self.checkpoint_cleaned()
        marker = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
        write_file(os.path.join(self.path, CLEAN_SHUTDOWN), marker)
        self.close()

    def close(self) -> None:
        """Let go of the directory as it is; the next start scans."""
        self.descriptors.close_all()
        self.unlock()


def remove_deleted(path: str) -> None:
    """Remove a partition's directory that `retiring.delete_log` renamed away."""
    import shutil  # with all of its archive formats: nothing for a start

    try:
        for name in os.listdir(path):
            sign()  # the kernel takes some ten milliseconds for a GiB
            if not os.path.isdir(os.path.join(path, name)):
                os.unlink(os.path.join(path, name))
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageFault(f"can't remove {path}: {error}", path) from error
