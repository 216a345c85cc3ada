"""APPEND, on the log's side: one batch from a ring into the log of a partition.

Rules of this file:
* The hot path is `on_append`. It judges the batch by its header and its CRC and touches no record,
  except where the topic asks for it (`shmbroker.validation`) or the answer depends on single
  records: keys on compacted topics, limits of timestamps.
* Checks run in Kafka's order (protocol.md, Produce): leadership, size, form and CRC, timestamps,
  then the producer's sequence.
* The batch lies in the ring until `release`; the segment gets its own copy, stamped there.
* Every APPEND gets exactly one APPENDED, whatever happens; some of them when the disk has it
  (`group_commit`), those with acks=all when the in-sync replicas have it (`delayed_produce`).
"""

from collections.abc import Callable, Sequence

from shmbroker.broker.delayed_produce import DelayedProduces
from shmbroker.broker.group_commit import GroupCommit
from shmbroker.broker.waiting_ack import WaitingAck
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    APPEND_BATCH_AT,
    APPEND_FLAG_NO_ZSTD,
    APPEND_FLAG_PARTS,
    APPEND_FLAG_TRANSACTIONAL,
    APPEND_HEAD,
    APPENDED,
    APPENDED_HEAD,
    pack_record_errors,
)
from shmbroker.ipc.peer import Peer
from shmbroker.records.batch import check_batch
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    COMPRESSION_MASK,
    H_ATTRIBUTES,
    H_COUNT,
    H_LENGTH,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    H_PRODUCER_ID,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    ZSTD,
)
from shmbroker.records.validation import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Refusal,
    Rules,
    judge_records,
    plain_bytes_max,
    refuse_stamps,
)
from shmbroker.replica.partition import Partition, not_led_error
from shmbroker.wire import error_codes

ACKS_ALL = -1

_STORAGE = error_codes.KAFKA_STORAGE_ERROR
_NOT_LEADER = error_codes.NOT_LEADER_OR_FOLLOWER
_NOT_ENOUGH = error_codes.NOT_ENOUGH_REPLICAS
_TOO_LARGE = error_codes.MESSAGE_TOO_LARGE
_JUDGED_BEFORE_THE_LOG = (
    error_codes.CORRUPT_MESSAGE,
    error_codes.MESSAGE_TOO_LARGE,
    error_codes.UNSUPPORTED_COMPRESSION_TYPE,
    error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


class Appender:
    """Appends for one I/O worker. `appended` collects the partitions that got new batches."""

    def __init__(
        self,
        partitions: dict[bytes, Partition],
        now_ms: Callable[[], int],
        on_storage_fault: Callable[[Partition, StorageFault], None],
        sync: Callable[..., None],
    ) -> None:
        self.partitions = partitions
        self.now_ms = now_ms
        self.on_storage_fault = on_storage_fault
        self.appended: set[Partition] = set()
        self.moved: set[Partition] = set()
        """Those whose high watermark moved without an append."""
        self.is_disk_low = False
        """Produce is refused, but for internal topics (`disk_reserve`)."""
        self.group_commit = GroupCommit(sync, self.on_durable)
        self.delayed = DelayedProduces()
        self.parts: dict[tuple[int, int], bytearray] = {}
        self.bytes_in = 0

    def on_part(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """A piece of a batch that is larger than a ring entry may be."""
        token = int.from_bytes(data[index : index + 8], "little")
        self.parts.setdefault((peer.slot, token), bytearray()).extend(
            data[index + 8 : index + length]
        )

    def drop_parts(self, slot: int) -> None:
        """That network worker is dead: the rest of its batches will not come."""
        self.parts = {key: part for key, part in self.parts.items() if key[0] != slot}

    def on_append(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """One APPEND entry, from its payload at data[index:index+length] to its APPENDED."""
        token, acks, flags, timeout_ms, key, _ = APPEND_HEAD.unpack_from(data, index)
        at = index + APPEND_BATCH_AT
        end = index + length
        if flags & APPEND_FLAG_PARTS:
            whole = self.parts.pop((peer.slot, token), bytearray())
            whole.extend(data[at:end])
            data, at, end = memoryview(whole), 0, len(whole)
        partition = self.partitions.get(key)
        if partition is None or not partition.is_leader:
            error = not_led_error(partition)
            self.refuse(peer, token, error, None)
            note_refused(partition, data, at, end, error)
            return
        if self.is_disk_low and not partition.is_internal:
            self.refuse(peer, token, _STORAGE, "the disk is nearly full")
            return
        if acks == ACKS_ALL and partition.is_under_min_in_sync:
            self.refuse(peer, token, _NOT_ENOUGH, None)
            note_refused(partition, data, at, end, _NOT_ENOUGH)
            return
        error, header = check_batch(data, at, end, partition.message_bytes_max)
        if error:
            self.refuse(peer, token, error, None, (), partition)
            return
        batch_end = at + LOG_OVERHEAD + header[H_LENGTH]
        (
            _, _, _, _, _, attributes, last_offset_delta, _, max_timestamp,
            producer_id, producer_epoch, base_sequence, _,
        ) = header  # fmt: skip
        now_ms = self.now_ms()
        append_time = -1
        must_stamp = False
        if (
            attributes & 0x1F
            or partition.is_walked
            or partition.is_log_append_time
            or max_timestamp - now_ms > partition.timestamp_after_max_ms
        ):
            batch = data[at:batch_end]
            found_timestamp, refusal = self.look_closer(partition, batch, header, flags, now_ms)
            batch.release()
            if refusal is not None:
                self.refuse(peer, token, *refusal, partition)
                return
            must_stamp = found_timestamp != max_timestamp or attributes & TIMESTAMP_TYPE_BIT != 0
            max_timestamp = found_timestamp
            if partition.is_log_append_time:
                append_time = max_timestamp = now_ms
                must_stamp = True
        log = partition.log
        if producer_id >= 0:
            error, duplicate_offset, duplicate_time = partition.producers.check(
                producer_id, producer_epoch, base_sequence, last_offset_delta
            )
            if error or duplicate_offset >= 0:
                if error:
                    self.refuse(peer, token, error, None, (), partition)
                    return
                end_offset = duplicate_offset + last_offset_delta + 1
                deadline_ms = now_ms + timeout_ms if acks == ACKS_ALL else 0
                ack = (
                    peer, token, partition, duplicate_offset, duplicate_time, end_offset,
                    deadline_ms,
                )  # fmt: skip
                if partition.is_fsync and duplicate_offset >= log.recovery_point:
                    self.group_commit.add(ack)
                else:
                    self.on_durable(ack, None)
                return
        if batch_end - at > partition.segment_bytes_max:
            self.refuse(peer, token, error_codes.RECORD_LIST_TOO_LARGE, None)
            return
        batch = data[at:batch_end]
        try:
            if must_stamp:
                base_offset = log.append_stamped(
                    batch, last_offset_delta, max_timestamp, partition.leader_epoch, now_ms
                )
            else:
                base_offset = log.append(
                    batch, last_offset_delta, max_timestamp, partition.leader_epoch, now_ms
                )
        except StorageFault as fault:
            self.on_storage_fault(partition, fault)
            self.refuse(peer, token, _STORAGE, str(fault))
            return
        finally:
            batch.release()
        if producer_id >= 0:
            partition.producers.update(
                producer_id, producer_epoch, base_sequence, last_offset_delta, base_offset,
                max_timestamp,
            )  # fmt: skip
        self.bytes_in += end - at
        partition.advance_high_watermark()
        self.appended.add(partition)
        if log.log_end_offset - log.recovery_point >= partition.flush_messages:
            self.group_commit.add((
                peer, token, partition, base_offset, append_time, log.log_end_offset,
                now_ms + timeout_ms if acks == ACKS_ALL else 0,
            ))  # fmt: skip
            return
        if acks == ACKS_ALL and partition.high_watermark < log.log_end_offset:
            self.delayed.add((
                peer, token, partition, base_offset, append_time, log.log_end_offset,
                now_ms + timeout_ms,
            ))  # fmt: skip
            return
        # The result, written where it goes.
        writer = peer.writer
        index = -1 if peer.backlog else writer.claim(APPENDED, 40)
        if index < 0:
            self.done(peer, token, base_offset, append_time, log.log_start_offset)
            return
        APPENDED_HEAD.pack_into(
            writer.data, index, token, 0, 0, 0, base_offset, append_time, log.log_start_offset
        )
        peer.unpublished = True

    def look_closer(
        self,
        partition: Partition,
        batch: memoryview,
        header: tuple[int, ...],
        flags: int,
        now_ms: int,
    ) -> tuple[int, Refusal | None]:
        """The checks that most batches do not need: (largest timestamp, why it is refused)."""
        attributes, max_timestamp = header[H_ATTRIBUTES], header[H_MAX_TIMESTAMP]
        if attributes & COMPRESSION_MASK == ZSTD and flags & APPEND_FLAG_NO_ZSTD:
            return -1, Refusal(error_codes.UNSUPPORTED_COMPRESSION_TYPE, None, [])
        if attributes & TRANSACTIONAL_BIT:
            if not flags & APPEND_FLAG_TRANSACTIONAL:
                return -1, Refusal(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None, [])
            return -1, Refusal(error_codes.INVALID_TXN_STATE, "transactions are not served", [])
        is_stamped_here = partition.is_log_append_time
        newest_ms = min(now_ms + partition.timestamp_after_max_ms, TIMESTAMP_MAX)
        must_walk = partition.is_walked or (max_timestamp > newest_ms and not is_stamped_here)
        is_bad_claim = attributes & TIMESTAMP_TYPE_BIT != 0 and (
            is_stamped_here or max_timestamp == NO_TIMESTAMP
        )
        if not must_walk and not is_bad_claim:
            return max_timestamp, None
        rules = Rules(
            f"{partition.topic}-{partition.partition}",
            partition.is_compacted,
            is_stamped_here,
            max(now_ms - partition.timestamp_before_max_ms, TIMESTAMP_MIN),
            newest_ms,
            plain_bytes_max(partition.message_bytes_max),
        )
        if must_walk:
            return judge_records(batch, header, rules)
        return max_timestamp, refuse_stamps(header, rules)

    def on_durable(self, ack: WaitingAck, fault: str | None) -> None:
        """The disk has it or has failed; with a deadline, the in-sync replicas must have it too."""
        peer, token, partition, base_offset, append_time, end_offset, deadline_ms = ack
        if fault is not None:
            self.refuse(peer, token, _STORAGE, fault)
            return
        if partition.advance_high_watermark():
            self.moved.add(partition)
        if deadline_ms and partition.high_watermark < end_offset:
            if not partition.is_leader or partition.is_under_min_in_sync:
                error = error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                self.refuse(peer, token, error if partition.is_leader else _NOT_LEADER, None)
                return
            self.delayed.add(ack)
            return
        self.done(peer, token, base_offset, append_time, partition.log.log_start_offset)

    def done(
        self, peer: Peer, token: int, base_offset: int, append_time: int, log_start_offset: int
    ) -> None:
        """Answer an append that is (or was already) in the log."""
        peer.send(
            APPENDED,
            APPENDED_HEAD.pack(token, 0, 0, 0, base_offset, append_time, log_start_offset),
        )

    def refuse(
        self,
        peer: Peer,
        token: int,
        error_code: int,
        detail: str | None,
        record_errors: Sequence[tuple[int, str]] = (),
        partition: Partition | None = None,
    ) -> None:
        """Answer an append that was not stored; with the log start if the log has looked at it."""
        text = detail.encode()[:1024] if detail is not None else b""
        count, errors = 0, b""
        if record_errors:
            room = peer.writer.payload_bytes_max - APPENDED_HEAD.size - len(text)
            count, errors = pack_record_errors(record_errors, room)
        start = -1
        if partition is not None and error_code not in _JUDGED_BEFORE_THE_LOG:
            start = partition.log.log_start_offset
        head = APPENDED_HEAD.pack(token, error_code, len(text), count, -1, -1, start)
        peer.send(APPENDED, head + text + errors)


def note_refused(
    partition: Partition | None, data: memoryview, at: int, end: int, error: int
) -> None:
    """Remember which batch of an idempotent producer was not looked at."""
    if partition is None or end - at < HEADER_SIZE:
        return
    header = BATCH_HEADER.unpack_from(data, at)
    producer_id, epoch, base_sequence = header[H_PRODUCER_ID:H_COUNT]
    if header[H_MAGIC] == MAGIC and producer_id >= 0 and epoch >= 0 and base_sequence >= 0:
        partition.producers.note_refused(producer_id, epoch, base_sequence, error)
