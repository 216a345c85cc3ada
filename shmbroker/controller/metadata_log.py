"""The metadata log `__cluster_metadata-0`: KRaft's, with this node as its only voter.

* `open` recovers it and begins a new epoch: `quorum-state` first, so that the epoch never repeats,
  then a LeaderChange control batch as the epoch's first.
* `append` makes one decision durable: one batch, one fdatasync. Only then is it committed, and
  only what is committed may be told to anybody (`committed_offset`).
* A fault of the disk is final: the caller ends; the next start recovers.
* Only the last batch can be torn, as each is flushed before the next. A damaged batch with a whole
  one behind it is a damaged disk: refused, for a cut there would forget committed topics, and
  forgotten topics are deleted logs.

Source: KIP-595, KIP-631; Kafka's `KafkaRaftClient`, `LeaderState`.
"""

from __future__ import annotations

import itertools
import mmap
import os

from shmbroker.controller.quorum_state import (
    QuorumState,
    read_quorum_state,
    write_quorum_state,
)
from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, Fault
from shmbroker.ids import METADATA_TOPIC_ID
from shmbroker.log.config import LogConfig
from shmbroker.log.file_names import (
    LOG,
    PARTITION_METADATA,
    offset_of,
    partition_directory,
)
from shmbroker.log.partition_log import PartitionLog
from shmbroker.log.partition_metadata import write_partition_metadata
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.records.batch import control_batch, encode_batch
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CONTROL_LEADER_CHANGE,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
)
from shmbroker.wire import codec
from shmbroker.wire.metadata_records import encode_metadata_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Record = tuple[str, int, dict[str, Any]]
    """name, version, message"""


BATCH_BYTES_MAX = 8 << 20
"""Of one decision (Kafka: `KafkaRaftClient.MAX_BATCH_SIZE_BYTES`)."""


class TooLargeFault(Fault):
    """A decision that doesn't fit into one batch; nothing was written."""


class MetadataLog:
    """The one writer of the metadata log. Make one with `open`."""

    __slots__ = ("_log", "directory", "epoch", "node_id")

    def __init__(self, log: PartitionLog, directory: str, node_id: int, epoch: int) -> None:
        self._log = log
        self.directory = directory
        self.node_id = node_id
        self.epoch = epoch
        """Controller epoch: the leader epoch of what is appended."""

    @classmethod
    def open(cls, node_directory: str, node_id: int, now_ms: int) -> MetadataLog:
        """Recover the log in `node_directory`, or create it, and begin a new epoch as leader.

        CorruptFault if committed records are damaged, StorageFault if the disk fails.
        """
        directory = os.path.join(node_directory, partition_directory(METADATA_TOPIC, 0))
        os.makedirs(directory, exist_ok=True)
        metadata_path = os.path.join(directory, PARTITION_METADATA)
        if not os.path.exists(metadata_path):
            write_partition_metadata(metadata_path, METADATA_TOPIC_ID)
        _refuse_damage(directory)
        log = PartitionLog.open(
            directory,
            LogConfig(),
            file_ids=itertools.count(1),
            clean=False,
            recovery_point=_snapshot_offset(directory),
            now_ms=now_ms,
        )
        state = read_quorum_state(directory)
        epoch = max(state.leader_epoch, log.leader_epochs.latest, 0) + 1
        write_quorum_state(directory, QuorumState(node_id, epoch, state.data_version), [node_id])
        self = cls(log, directory, node_id, epoch)
        self._append_leader_change(now_ms)
        return self

    @property
    def committed_offset(self) -> int:
        """One past the last record that is durable: what the others may read up to."""
        return self._log.recovery_point

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log.log_end_offset

    def append(self, records: list[Record], now_ms: int) -> int:
        """Append one decision as one batch and flush it; the new committed offset.

        TooLargeFault, DiskFullFault: nothing was written. Any other StorageFault is final.
        """
        batch = encode_batch(
            [(now_ms, None, encode_metadata_record(*record), ()) for record in records]
        )
        if len(batch) > BATCH_BYTES_MAX:
            raise TooLargeFault(f"{len(batch)} bytes in one batch of metadata")
        return self._append(batch, len(records) - 1, now_ms)

    def close(self) -> None:
        """Flush and close; a clean end."""
        self._log.close(True)

    def _append_leader_change(self, now_ms: int) -> None:
        voter = {"voter_id": self.node_id}
        value = codec.encode(
            "LeaderChangeMessage",
            0,
            {
                "version": 0,
                "leader_id": self.node_id,
                "voters": [voter],
                "granting_voters": [voter],
            },
        )
        self._append(control_batch(CONTROL_LEADER_CHANGE, value, timestamp=now_ms), 0, now_ms)

    def _append(self, batch: bytes, last_offset_delta: int, now_ms: int) -> int:
        log = self._log
        log.append(memoryview(batch), last_offset_delta, now_ms, self.epoch, now_ms)
        log.flush()
        return log.recovery_point


def _snapshot_offset(directory: str) -> int:
    """Where the latest snapshot ends (Kafka's): what led there needn't be looked at any more."""
    names = os.listdir(directory)
    return max(
        (int(name[:20]) for name in names if name.endswith(".checkpoint") and name[:20].isdigit()),
        default=0,
    )


def _refuse_damage(directory: str) -> None:
    """CorruptFault if whole batches follow where the scan would cut; looks at the last segment.

    The scan cuts at the first batch that is not whole or doesn't continue the offsets and epochs.
    """
    bases = [base for name in os.listdir(directory) if (base := offset_of(name, LOG)) is not None]
    if not bases:
        return
    expected = max(bases)
    path = os.path.join(directory, f"{expected:020d}{LOG}")
    if not os.path.getsize(path):
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        position = epoch = 0
        while header := _whole_batch(content, position):
            if header[0] != expected or header[2] < epoch:
                break
            expected, epoch = header[0] + header[6] + 1, header[2]
            position += header[1] + LOG_OVERHEAD
        # A length may be what is damaged, so look everywhere behind for a batch's magic.
        magic = position + MAGIC_POSITION
        while (magic := content.find(bytes([MAGIC]), magic)) >= 0:
            if _whole_batch(content, magic - MAGIC_POSITION):
                raise CorruptFault(
                    f"{path}: the batch at position {position} is damaged, and committed records "
                    "follow it; restore the file from a copy"
                )
            magic += 1


def _whole_batch(content: mmap.mmap, position: int) -> tuple[int, ...] | None:
    """The header of the batch at `position`, if it is one and right by its CRC."""
    if position + HEADER_SIZE > len(content):
        return None
    header = BATCH_HEADER.unpack_from(content, position)
    end = position + LOG_OVERHEAD + header[1]
    if header[3] != MAGIC or not position + HEADER_SIZE <= end <= len(content):
        return None
    if header[4] != crc32c(content[position + ATTRIBUTES_POSITION : end]):
        return None
    return header
