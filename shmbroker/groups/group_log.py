"""A partition of `__consumer_offsets`: groups and offsets as Kafka's records, written and read.

    OffsetCommitKey    group, topic, partition  ->  OffsetCommitValue    the offset
    GroupMetadataKey   group                    ->  GroupMetadataValue   members and generation
    ConsumerGroup…Key          group, …             the new protocol's: `consumer_records`
    a null value                                    the key's last value is void

Rules of this file:
* The last record of a key counts. Loading keeps the last value of each key as bytes and decodes
  those only: a log that nothing has compacted holds many more.
* Records of a transaction count at its commit marker, at the offsets they stand at (KIP-98); those
  of open transactions are handed out as `pending`.
* Records of a kind that isn't known are passed over: a newer broker may have written them.

Source: Kafka's GroupCoordinatorRecordHelpers, CoordinatorLoaderImpl.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.errors import ProtocolFault, StorageFault
from shmbroker.groups.consumer import records as consumer_records
from shmbroker.groups.offset_store import NO_EXPIRY
from shmbroker.ids import ZERO_UUID
from shmbroker.records.batch import (
    batch_of_one,
    control_type,
    encode_batch,
    iterate_batches,
    iterate_records,
)
from shmbroker.records.batch_layout import (
    BASE_TIMESTAMP_POSITION,
    CONTROL_BIT,
    CONTROL_COMMIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.stamping import seal
from shmbroker.wire import coordinator_records, error_codes
from shmbroker.wire.coordinator_records import GROUP, GROUP_METADATA, OFFSET_COMMIT
from shmbroker.wire.primitives import uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from shmbroker.groups.offset_store import Committed
    from shmbroker.replica.partition import Partition

    Record = tuple[bytes, bytes | None]

_TYPES = consumer_records.TYPES | {OFFSET_COMMIT, GROUP_METADATA}
CHUNK_BYTES = 64 << 10
"""Read between two turns of the worker: some milliseconds of decoding."""

BATCH_ROOM = 1024
"""The room for what stands around the records of a batch, and around a record."""

# Of an OffsetCommitValue: version, offset, and then the leader epoch or the metadata's length.
_VALUE_1 = Struct(">hqh")
_VALUE_4 = Struct(">hqi")
_TIMES = Struct(">qq")
_COMMITTED = Struct(">qB")
"""The commit's time, and how many tagged fields follow."""
_MOVING = Struct(">qiBq")
"""The offset, the leader epoch, empty metadata, the commit's time."""
_MOVING_AT = 2
"""Behind the version."""
_TOPIC_ID = b"\0\x10"
"""Tag 0, of 16 bytes."""


def group_record(group_id: str, value: dict[str, Any] | None) -> Record:
    """The record of a group; None: its tombstone."""
    key = coordinator_records.encode_key(GROUP, GROUP_METADATA, {"group": group_id})
    if value is None:
        return key, None
    return key, coordinator_records.encode_value(
        GROUP, GROUP_METADATA, consumer_records.GROUP_METADATA_VERSION, value
    )


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset's record."""
    return coordinator_records.encode_key(
        GROUP, OFFSET_COMMIT, {"group": group_id, "topic": topic, "partition": partition}
    )


def offset_tombstone(group_id: str, topic: str, partition: int) -> Record:
    """The record of an offset that is gone."""
    return offset_key(group_id, topic, partition), None


def offset_value(committed: Committed) -> bytes:
    """The value of a committed offset's record.

    By hand, as each commit needs one: what the codec makes of an OffsetCommitValue of version 4, or
    of version 1, which alone has room for an expiry.
    """
    offset, leader_epoch, metadata, commit_ms, expiry_ms, topic_id = committed
    text = metadata.encode()
    if expiry_ms != NO_EXPIRY:
        return _VALUE_1.pack(1, offset, len(text)) + text + _TIMES.pack(commit_ms, expiry_ms)
    head = _VALUE_4.pack(4, offset, leader_epoch) + uvarint(len(text) + 1) + text
    if topic_id == ZERO_UUID:
        return head + _COMMITTED.pack(commit_ms, 0)
    return head + _COMMITTED.pack(commit_ms, 1) + _TOPIC_ID + topic_id


def append(
    partition: Partition,
    records: list[Record],
    now_ms: int,
    producer: tuple[int, int] | None = None,
    *,
    is_divisible: bool = False,
) -> int:
    """Append as leader; the error code to answer.

    producer: (producer id, epoch) of the transaction that the records are part of.
    is_divisible: each record stands for itself, and they go in as few batches as the topic's limit
    allows; an error may come after some of them, and so may a death. All others go in one batch:
    half of a change is no state that the group was ever in. Where that is over the limit Kafka
    refuses it, and such a group stands still; here the limit is one for each record, and the
    segment's one for all.
    """
    if producer is not None:
        known = partition.producers.producers.get(producer[0])
        if known is not None and producer[1] < known.epoch:
            return error_codes.INVALID_PRODUCER_EPOCH
    if len(records) == 1 and producer is None:
        return append_one(partition, *records[0], now_ms)
    batch: list[Record] = []
    batch_bytes = 0
    record_bytes_max = min(partition.message_bytes_max, partition.segment_bytes_max) - BATCH_ROOM
    bytes_max = record_bytes_max if is_divisible else partition.segment_bytes_max - BATCH_ROOM
    for key, value in records:
        record_bytes = len(key) + len(value or b"") + 32
        if record_bytes > record_bytes_max:
            return error_codes.UNKNOWN_SERVER_ERROR
        if batch_bytes + record_bytes > bytes_max:
            if not is_divisible:
                return error_codes.UNKNOWN_SERVER_ERROR
            if error := _append_batch(partition, batch, now_ms, producer):
                return error
            batch, batch_bytes = [], 0
        batch.append((key, value))
        batch_bytes += record_bytes
    return _append_batch(partition, batch, now_ms, producer) if batch else 0


def append_one(partition: Partition, key: bytes, value: bytes | None, now_ms: int) -> int:
    """`append` of one record: most commits are no more."""
    if _needs_bytes(key, value) > min(partition.message_bytes_max, partition.segment_bytes_max):
        return error_codes.UNKNOWN_SERVER_ERROR
    if error := _refuses(partition):
        return error
    return _store(partition, memoryview(batch_of_one(now_ms, key, value)), 0, now_ms)


class CommitBatch:
    """The batch of a commit that comes again. Of its one record only the offset, the leader epoch
    and the time move, of its header the time and the CRC: these alone are packed anew."""

    __slots__ = ("_needs_bytes", "_value_at", "_view")

    def __init__(self, key: bytes, topic_id: bytes) -> None:
        """The commit has no metadata, and no expiry of its own."""
        value = offset_value((0, -1, "", 0, NO_EXPIRY, topic_id))
        batch = bytearray(batch_of_one(0, key, value))
        self._value_at = len(batch) - len(value) - 1  # the last byte: no headers
        self._needs_bytes = _needs_bytes(key, value)
        self._view = memoryview(batch)

    def append(self, partition: Partition, offset: int, leader_epoch: int, commit_ms: int) -> int:
        """`append` of this record with that time, which is now: the error code."""
        if self._needs_bytes > min(partition.message_bytes_max, partition.segment_bytes_max):
            return error_codes.UNKNOWN_SERVER_ERROR
        if error := _refuses(partition):
            return error
        view = self._view
        _MOVING.pack_into(view, self._value_at + _MOVING_AT, offset, leader_epoch, 1, commit_ms)
        _TIMES.pack_into(view, BASE_TIMESTAMP_POSITION, commit_ms, commit_ms)
        seal(view)
        return _store(partition, view, 0, commit_ms)


def _needs_bytes(key: bytes, value: bytes | None) -> int:
    """The room that a batch of one record takes, about."""
    return len(key) + len(value or b"") + 32 + BATCH_ROOM


def _refuses(partition: Partition) -> int:
    if not partition.is_leader:
        return error_codes.NOT_COORDINATOR
    return error_codes.COORDINATOR_NOT_AVAILABLE if partition.is_under_min_in_sync else 0


def _append_batch(
    partition: Partition, records: list[Record], now_ms: int, producer: tuple[int, int] | None
) -> int:
    if error := _refuses(partition):
        return error
    rows = [(now_ms, key, value, ()) for key, value in records]
    if producer is None:
        batch = encode_batch(rows)
    else:
        batch = encode_batch(
            rows, producer_id=producer[0], producer_epoch=producer[1], is_transactional=True
        )
    return _store(partition, memoryview(batch), len(records) - 1, now_ms, producer)


def _store(
    partition: Partition,
    batch: memoryview,
    last: int,
    now_ms: int,
    producer: tuple[int, int] | None = None,
) -> int:
    """last: the offset of its last record, counted from its first."""
    try:
        offset = partition.log.append(batch, last, now_ms, partition.leader_epoch, now_ms)
    except StorageFault:
        return error_codes.NOT_COORDINATOR
    if producer is not None:
        partition.producers.update(*producer, NO_SEQUENCE, last, offset, now_ms)
        partition.producers.begin(producer[0], offset)
    partition.advance_high_watermark()
    return 0


class Loader:
    """Reads a partition from its start to its end, a chunk at each `step`.

    When that answers True, `latest` holds the last value of each key that has one, and `pending`
    what open transactions would change.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._offset = partition.log.log_start_offset
        self._end_offset = partition.log.log_end_offset
        self._latest: dict[bytes, tuple[int, bytes | None]] = {}
        self._open: dict[int, list[tuple[int, bytes, bytes | None]]] = {}

    @property
    def latest(self) -> Iterator[tuple[bytes, bytes]]:
        """The latest records, in the order of the log: a group's last kind is the one that
        counts."""
        for key, (_, value) in sorted(self._latest.items(), key=lambda item: item[1][0]):
            if value is not None:
                yield key, value

    @property
    def pending(self) -> Iterator[tuple[int, int, bytes, bytes | None]]:
        """(producer id, offset, key, value); without a value if the log has a later one. A later
        tombstone has ended it."""
        for producer_id, records in self._open.items():
            for offset, key, value in records:
                last_offset, last_value = self._latest.get(key, (-1, None))
                if last_offset < offset:
                    yield producer_id, offset, key, value
                elif last_value is not None:
                    yield producer_id, offset, key, None

    def step(self) -> bool:
        """Read some more; True when all is read. Faults of the log pass through."""
        if self._offset >= self._end_offset:
            return True
        found = self.partition.log.read(self._offset, CHUNK_BYTES, self._end_offset)
        if found is None or not found[2]:
            return True
        segment, position, length = found
        data = segment.read_bytes(position, length)
        for at, header in iterate_batches(data):
            end_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
            if end_offset > self._offset:
                self._take(data, at, header)
                self._offset = end_offset
        return self._offset >= self._end_offset

    def _take(self, data: bytes, at: int, header: tuple[int, ...]) -> None:
        attributes = header[H_ATTRIBUTES]
        records = [(record[0], record[2], record[3]) for record in iterate_records(data, at)]
        producer_id = header[H_PRODUCER_ID]
        if attributes & CONTROL_BIT:
            held = self._open.pop(producer_id, ())
            if records and control_type(records[0][1] or b"") == CONTROL_COMMIT:
                self._keep(held)
        elif attributes & TRANSACTIONAL_BIT:
            held = self._open.setdefault(producer_id, [])
            held += [(offset, key, value) for offset, key, value in records if key is not None]
        else:
            self._keep(records)

    def _keep(self, records: Iterable[tuple[int, bytes | None, bytes | None]]) -> None:
        latest = self._latest
        for offset, key, value in records:
            if key is not None:
                known = latest.get(key)
                if known is None or known[0] < offset:
                    latest[key] = offset, value


def decode(key: bytes, value: bytes | None) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
    """(record type, key, value) of a record; None if it isn't one that is served here."""
    try:
        record_type, name = coordinator_records.decode_key(GROUP, key)
        if record_type not in _TYPES or name is None:
            return None
        if value is None:
            return record_type, name, {}
        return record_type, name, coordinator_records.decode_value(GROUP, record_type, value)[1]
    except ProtocolFault:
        return None
