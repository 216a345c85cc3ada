"""The metadata log `__cluster_metadata-0` on one voter's disk, with its snapshots.

    20 digits.log                        segments, as of any log (`log.partition_log`)
    20 digits-10 digits.checkpoint       snapshots: one past their last offset, and its epoch
    20 digits-10 digits.checkpoint.part  one on its way from the leader
    quorum-state                         see `quorum_state`

* `open` recovers it. What the voter may say about it is `quorum`'s business (a `QuorumLog` there):
  nothing here counts before `flush`.
* A fault of the disk is final: the caller ends; the next start recovers.
* Only what was appended since the last flush can be torn. A damaged batch with a whole one behind
  it is a damaged disk: refused, for a cut there would forget committed topics, and forgotten topics
  are deleted logs.
* The log start is 0 or the end of a snapshot: what is before it is in that snapshot.
* Segments go when all of them lies before the log start, and that moves when there are snapshots
  enough: `retain`.

Source: KIP-595, KIP-630, KIP-631; Kafka's `KafkaRaftLog`, `Snapshots`.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os

from shmbroker.controller.raft.quorum_messages import SNAPSHOT_BYTES_MAX, SnapshotId
from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, Fault, StorageFault
from shmbroker.ids import METADATA_TOPIC_ID
from shmbroker.log.checkpoints import remove_files, sync_directory, sync_names, write_all_at
from shmbroker.log.compaction.cleaned_files import deleted_paths
from shmbroker.log.config import LogConfig
from shmbroker.log.faults import writing_fault
from shmbroker.log.file_names import (
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    offset_of,
    parse_partition_directory,
    partition_directory,
)
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.partition_metadata import read_partition_metadata, write_partition_metadata
from shmbroker.log.quarantine import (
    find_whole_batch,
    put_aside,
    put_strangers_aside,
    whole_batch_at,
)
from shmbroker.log.restoring import is_active_file_gone, restore_active
from shmbroker.log.retiring import advance_log_start, delete_segments_before
from shmbroker.log.truncation import truncate_fully, truncate_to
from shmbroker.metadata.log_reader import snapshot_ids, snapshot_name
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.records.batch import (
    batch_of_encoded,
    control_batch,
    encode_record,
    iterate_batches,
)
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    CONTROL_LEADER_CHANGE,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LEADER_EPOCH,
    H_LENGTH,
    LOG_OVERHEAD,
)
from shmbroker.signs import sign, waiting_for_disk
from shmbroker.wire import codec
from shmbroker.wire.metadata_records import encode_metadata_record

logger = logging.getLogger(__name__)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.wire.primitives import Buffer


BATCH_BYTES_MAX = 8 << 20
"""The bytes of one decision (Kafka: `KafkaRaftClient.MAX_BATCH_SIZE_BYTES`)."""
PART = ".part"
NO_PART = -1, ""


class DecisionTooLargeFault(Fault):
    """A decision that doesn't fit into one batch; nothing was written."""


class MetadataLog:
    """The only writer of the metadata log's files. Make one with `open`."""

    __slots__ = ("_log", "_now_ms", "_part", "_snapshots", "directory")

    def __init__(self, log: PartitionLog, directory: str, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._snapshots = snapshot_ids(directory)
        """Ascending."""
        self._part = NO_PART
        """Descriptor and path of the snapshot that is on its way from the leader."""
        self.directory = directory

    @classmethod
    def open(
        cls, node_directory: str, now_ms: Callable[[], int], config: LogConfig | None = None
    ) -> MetadataLog:
        """Recover the log in `node_directory`, or create it.

        CorruptFault if committed records are damaged, StorageFault if the disk fails.
        """
        directory = os.path.join(node_directory, partition_directory(METADATA_TOPIC, 0))
        try:
            _tidy(node_directory, directory)
            snapshots = snapshot_ids(directory)
        except OSError as error:
            raise StorageFault(f"can't open {directory}: {error}") from error
        latest_end = snapshots[-1][0] if snapshots else 0
        log = PartitionLog.open(
            directory,
            config or LogConfig(),
            file_ids=itertools.count(1),
            clean=False,
            recovery_point=latest_end,
            log_start_offset=_log_start(directory, snapshots),
            now_ms=now_ms(),
        )
        if log.log_end_offset < latest_end:
            _begin_anew(log, latest_end)
        # What a killed process has written is there, but may not be durable.
        log.flush()
        return cls(log, directory, now_ms)

    def close(self) -> None:
        """Flush and close; a clean end."""
        self.flush()  # Its producer snapshot says how far the log was durable: `_refuse_loss`.
        self._log.close(True)

    # ── appending ───────────────────────────────────────────────────────────────────────────────

    def append(
        self,
        epoch: int,
        records: list[MetadataRecord],
        now_ms: int,
        encoded: list[bytes] | None = None,
    ) -> int:
        """Append one decision as one batch, not flushed; the log's new end.

        encoded: the records as of `encode_records`, where they are already.
        DecisionTooLargeFault, DiskFullFault: nothing was written. Any other StorageFault is final.
        """
        batch = batch_of_encoded(encoded or encode_records(records), now_ms, now_ms)
        if len(batch) > BATCH_BYTES_MAX:
            raise DecisionTooLargeFault(f"{len(batch)} bytes in one batch of metadata")
        self._log.append(memoryview(batch), len(records) - 1, now_ms, epoch, now_ms)
        return self._log.log_end_offset

    def append_leader_change(
        self, epoch: int, leader_id: int, voters: Iterable[int], granting: Iterable[int]
    ) -> None:
        """Append the first batch of an epoch."""
        now_ms = self._now_ms()
        value = codec.encode(
            "LeaderChangeMessage",
            0,
            {
                "version": 0,
                "leader_id": leader_id,
                "voters": [{"voter_id": voter} for voter in voters],
                "granting_voters": [{"voter_id": voter} for voter in granting],
            },
        )
        batch = control_batch(CONTROL_LEADER_CHANGE, value, timestamp=now_ms)
        self._log.append(memoryview(batch), 0, now_ms, epoch, now_ms)

    def append_fetched(self, records: Buffer) -> None:
        """Batches from the leader, as they are. CorruptFault if they don't continue the log."""
        now_ms = self._now_ms()
        log = self._log
        view = memoryview(records)
        for position, header in iterate_batches(view):
            base_offset, length, epoch, _, crc, _, last_delta, _, timestamp = header[:9]
            batch = view[position : position + LOG_OVERHEAD + length]
            if crc32c(batch[ATTRIBUTES_POSITION:]) != crc or base_offset != log.log_end_offset:
                raise CorruptFault(f"a batch of the leader's at offset {base_offset} is damaged")
            log.append(batch, last_delta, timestamp, epoch, now_ms)

    def flush(self) -> None:
        """Make all of it durable. A StorageFault is final; where somebody has removed the file, it
        is there again, for the next to open this log."""
        try:
            self._log.flush()
        except StorageFault:
            if is_active_file_gone(self._log):
                restore_active(self._log)
                logger.error("%s was removed by somebody; it is there again", self._log.active.path)
            raise

    def truncate_to(self, offset: int) -> None:
        """Cut, durably."""
        _cut(self._log, offset)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_start_epoch(self) -> int:
        """The epoch of the snapshot that ends at the log start; 0 where there is none."""
        start = self._log.log_start_offset
        return next((epoch for end, epoch in self._snapshots if end == start), 0)

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log.log_end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, in the log or in the snapshot that it begins with."""
        return max(self._log.leader_epochs.latest, self.log_start_epoch, 0)

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    def read(self, offset: int) -> bytes:
        """Whole batches from the one with `offset` on: some MiB, or one that is larger."""
        log = self._log
        found = log.read(offset, BATCH_BYTES_MAX, log.log_end_offset)
        if found is None or not found[2]:
            return b""
        segment, position, length = found
        return segment.read_bytes(position, length)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not above `epoch`, and where it ends; (-1, -1) above all."""
        return self._log.end_offset_for_epoch(epoch)

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────

    def latest_snapshot(self) -> SnapshotId | None:
        return SnapshotId(*self._snapshots[-1]) if self._snapshots else None

    def read_snapshot(self, snapshot: SnapshotId, position: int) -> tuple[int, bytes] | None:
        """(size of all, a piece from `position` on); None if it is not here (any more)."""
        if tuple(snapshot) not in self._snapshots:
            return None
        try:
            with open(self._path(snapshot), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                return size, os.pread(file.fileno(), SNAPSHOT_BYTES_MAX, max(0, position))
        except OSError as error:
            raise StorageFault(f"can't read {self._path(snapshot)}: {error}") from error

    def write_snapshot(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """Write a piece of the leader's snapshot, in order."""
        path = self._path(snapshot) + PART
        try:
            if position == 0:
                self._drop_part()
                flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self._part = os.open(path, flags, 0o644), path
            write_all_at(self._part[0], data, position)
        except OSError as error:
            raise writing_fault(error, path) from error

    def install_snapshot(self, snapshot: SnapshotId) -> None:
        """Take a snapshot that is written whole: the log goes on, empty, where it ends."""
        fd, self._part = self._part[0], NO_PART
        self._finish(fd, snapshot)
        _begin_anew(self._log, snapshot.end_offset)
        self._remove_snapshots([each for each in self._snapshots if each != tuple(snapshot)])

    def add_snapshot(self, snapshot: SnapshotId, content: Iterable[bytes]) -> None:
        """Write one of our own, of what is committed. DiskFullFault: nothing has changed."""
        if tuple(snapshot) in self._snapshots:
            return
        path = self._path(snapshot) + PART
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            with open(fd, "wb", closefd=False) as file:
                for piece in content:
                    file.write(piece)
                    sign()
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            remove_files([path])
            raise writing_fault(error, path) from error
        self._finish(fd, snapshot)

    def retain(self, bytes_max: int, ms_max: int) -> None:
        """Let snapshots go that are too old or too many, and the segments before the others.

        The latest one stays; -1 is no limit. As Kafka's metadata.max.retention.*.
        """
        while len(self._snapshots) > 1:
            oldest, following = (SnapshotId(*each) for each in self._snapshots[:2])
            size = self.size_bytes + sum(
                os.path.getsize(self._path(SnapshotId(*each))) for each in self._snapshots
            )
            age_ms = self._now_ms() - os.path.getmtime(self._path(oldest)) * 1000
            if not (0 <= bytes_max < size or 0 <= ms_max < age_ms):
                return
            self._remove_snapshots([(oldest.end_offset, oldest.epoch)])
            advance_log_start(self._log, following.end_offset)
            delete_segments_before(self._log, following.end_offset)
            for segment in self._log.retired:
                remove_files(deleted_paths(self.directory, segment.base_offset))
            self._log.retired.clear()

    def _finish(self, fd: int, snapshot: SnapshotId) -> None:
        """Make a written .part the snapshot, durably."""
        path = self._path(snapshot)
        try:
            with waiting_for_disk():
                os.fsync(fd)
            os.close(fd)
            os.rename(path + PART, path)
            sync_directory(self.directory)
        except OSError as error:
            raise StorageFault(f"can't write {path}: {error}") from error
        self._snapshots = sorted({*self._snapshots, (snapshot.end_offset, snapshot.epoch)})

    def _drop_part(self) -> None:
        """Forget a snapshot of the leader's that has not come whole."""
        (fd, path), self._part = self._part, NO_PART
        if fd >= 0:
            os.close(fd)
            remove_files([path])

    def _remove_snapshots(self, snapshots: list[tuple[int, int]]) -> None:
        self._snapshots = [each for each in self._snapshots if each not in snapshots]
        remove_files(self._path(SnapshotId(*each)) for each in snapshots)

    def _path(self, snapshot: SnapshotId) -> str:
        return os.path.join(self.directory, snapshot_name(*snapshot))


def _begin_anew(log: PartitionLog, offset: int) -> None:
    """Have the log go on, empty, where a snapshot ends; one that leads elsewhere may reach further.

    What reaches further goes first, so that none of it is ever taken for what follows the snapshot.
    """
    _cut(log, offset)
    truncate_fully(log, offset, epochs=[])


def _cut(log: PartitionLog, offset: int) -> None:
    if offset < log.log_end_offset:
        # Else they would tell of a log that has lost something.
        log.snapshots.remove_behind(offset)
        sync_names(log.directory)
    truncate_to(log, offset)


def encode_records(records: list[MetadataRecord], first: int = 0) -> list[bytes]:
    """Records of a decision as they stand in its batch, where they are the `first` and so on."""
    return [
        encode_record(0, at, None, encode_metadata_record(*record), ())
        for at, record in enumerate(records, first)
    ]


def _tidy(node_directory: str, directory: str) -> None:
    """Make the directory, and put away what is no part of the log."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    put_strangers_aside(directory)
    _take_identity(node_directory, os.path.join(directory, PARTITION_METADATA))
    _refuse_damage(directory)
    _put_damaged_snapshots_aside(directory)
    remove_files(
        os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(PART)
    )


def _take_identity(node_directory: str, path: str) -> None:
    """Make sure that the log has its `partition.metadata`, durable before anything is committed."""
    try:
        if read_partition_metadata(path) == METADATA_TOPIC_ID:
            return
    except CorruptFault as fault:
        logger.warning("%s; written anew", fault)
    sync_directory(node_directory)
    write_partition_metadata(path, METADATA_TOPIC_ID, is_synced=True)


def _log_start(directory: str, snapshots: list[tuple[int, int]]) -> int:
    """Where the log begins: at 0, or at the end of the first snapshot that its files continue."""
    bases = [base for name in os.listdir(directory) if (base := offset_of(name, LOG)) is not None]
    first = min(bases, default=0)
    if not first:
        return 0
    for end_offset, _ in snapshots:
        if end_offset >= first:
            return end_offset
    raise CorruptFault(
        f"{directory} begins at offset {first}, and no snapshot leads there; "
        "restore its files from a copy"
    )


def _put_damaged_snapshots_aside(directory: str) -> None:
    """The latest one is what everybody reads; before a damaged one, the log or an older one counts,
    if they lead there (`_log_start`)."""
    for snapshot in reversed(snapshot_ids(directory)):
        path = os.path.join(directory, snapshot_name(*snapshot))
        position = size = os.path.getsize(path)
        if size:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as map_:
                position = 0
                while header := whole_batch_at(map_, position):
                    position += header[H_LENGTH] + LOG_OVERHEAD
        if size and position == size:
            return
        put_aside(directory, [path])
        logger.error("%s is damaged at position %d; it is in quarantine/ now", path, position)


def _refuse_loss(directory: str, path: str, end_offset: int) -> None:
    """CorruptFault if the log, `path` being its last file, was longer once.

    A producer snapshot of a clean end lies at the end of what was durable; and where there are logs
    of topics, there were records of them.
    """
    names = os.listdir(directory)
    taken = [offset for name in names if (offset := offset_of(name, SNAPSHOT)) is not None]
    others = [
        name
        for name in os.listdir(os.path.dirname(directory))
        if (parsed := parse_partition_directory(name)) and parsed[0] != METADATA_TOPIC
    ]
    end = max([end_offset, *(end for end, _ in snapshot_ids(directory))])
    last = max(taken, default=0)
    if end < last:
        why = f"and was durable up to {last}"
    elif not end and others:
        why = f"and there are logs of topics, as {others[0]}"
    else:
        return
    raise CorruptFault(
        f"{path} ends at offset {end_offset}, {why}: committed records are lost; "
        "restore the file from a copy"
    )


def _refuse_damage(directory: str) -> None:
    """CorruptFault if whole batches follow where the scan would cut, or if the log was longer;
    looks at the last segment.

    The scan cuts at the first batch that is not whole or doesn't continue the offsets and epochs.
    """
    bases = [base for name in os.listdir(directory) if (base := offset_of(name, LOG)) is not None]
    expected = max(bases, default=0)
    path = os.path.join(directory, f"{expected:020d}{LOG}")
    if not bases or not os.path.getsize(path):
        _refuse_loss(directory, path, expected)
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        position = epoch = 0
        while header := whole_batch_at(content, position):
            if header[H_BASE_OFFSET] != expected or header[H_LEADER_EPOCH] < epoch:
                break
            expected, epoch = (
                header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1,
                header[H_LEADER_EPOCH],
            )
            position += header[H_LENGTH] + LOG_OVERHEAD
        if find_whole_batch(content, position) >= 0:
            raise CorruptFault(
                f"{path}: the batch at position {position} is damaged, and committed records "
                "follow it; restore the file from a copy"
            )
    _refuse_loss(directory, path, expected)
