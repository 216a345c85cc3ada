"""APPEND, on the log's side: one batch from a ring into the log of a partition.

   .parts         batches that come in pieces                                  append_parts.py
   look_closer    the checks that most batches do not need                     append_checks.py
   .unverified    transactional batches that wait for their coordinator        unverified.py
   .acks          what is in the log, and answered at once or later            append_acks.py

`append_runs` has many of them done in one call of a kernel, where nothing is to be looked at
closer. Markers come from coordinators alone (`end_markers`).

Rules of this file:
* The hot path is `append`, for the ring `on_append`. It judges the batch by its header and its CRC
  and touches no record, except where the topic asks for it (`shmbroker.validation`) or the answer
  depends on single records: keys on compacted topics, limits of timestamps.
* Checks run in the order of Apache Kafka's broker:
     A  leadership, and whether the partition takes anything now (`_turn_away`)
     B  the transaction, which its coordinator may have to be asked about (`_is_held_up`)
     C  size, form and CRC
     D  timestamps, and the records where they are looked at (`look_closer`)
     E  the producer's sequence (`_is_next`)
     F  whether a segment has room for a batch of that size
  B comes with what C has unpacked, but before its verdict.
* The batch lies in the ring until `release`; the segment gets its own copy, stamped there.
* Every APPEND gets exactly one APPENDED, whatever happens; some of them when the disk has it
  (`group_commit`), those with acks=all when the in-sync replicas have it (`delayed_produce`).
* A transactional batch is appended to a transaction that is open here, or that its coordinator has
  just said to be under way here (`unverified`, KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable

from shmbroker.broker.append_acks import AppendAcks
from shmbroker.broker.append_answers import answer, refuse
from shmbroker.broker.append_checks import look_closer
from shmbroker.broker.append_parts import AppendParts
from shmbroker.broker.unverified import HeldBatches, Unverified, refuse_all
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    ACKS_ALL,
    APPEND_BATCH_AT,
    APPEND_FLAG_PARTS,
    APPEND_FLAG_TRANSACTIONAL,
    APPEND_HEAD,
    APPENDED,
    APPENDED_HEAD,
    NAME_LENGTH,
)
from shmbroker.ipc.peer import Peer
from shmbroker.log.recovery.producers import recall_batches
from shmbroker.records.batch import check_batch, split_frame
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    H_ATTRIBUTES,
    H_COUNT,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    H_MAGIC,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.stamping import stamped
from shmbroker.replica.partition import Partition, Partitions, not_led_error
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.unverified import Ask

_STORAGE = error_codes.KAFKA_STORAGE_ERROR
_NOT_ENOUGH = error_codes.NOT_ENOUGH_REPLICAS
_APPENDED_BYTES = APPENDED_HEAD.size
_HAS_MORE = APPEND_FLAG_PARTS | APPEND_FLAG_TRANSACTIONAL


class Appender:
    """Appends for one I/O worker. `appended` collects the partitions that got new batches."""

    def __init__(
        self,
        partitions: Partitions,
        now_ms: Callable[[], int],
        on_storage_fault: Callable[[Partition, StorageFault], None],
        sync: Callable[..., None],
        steady_ms: Callable[[], int],
        verify: Ask = refuse_all,
    ) -> None:
        """now_ms: what the wall clock shows, which may jump; steady_ms: what waits go by. verify:
        asks the coordinator of a transaction."""
        self.partitions = partitions
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.on_storage_fault = on_storage_fault
        self.is_disk_low = False
        """Produce is refused, but for internal topics (`disk_reserve`)."""
        self.acks = AppendAcks(partitions, sync, steady_ms)
        self.appended = self.acks.appended
        self.unverified = Unverified(partitions, self.on_append, verify)
        self.parts = AppendParts()
        self._acknowledge = self.acks.acknowledge
        self.batches_in = self.bytes_in = 0

    def populate(self, partition: Partition) -> None:
        """Ready a log for the next batches, between turns. Where the disk does not let it, or too
        many files are open, the append that needs it is refused."""
        try:
            partition.log.populate_step(self.now_ms())
        except StorageFault as fault:
            self.on_storage_fault(partition, fault)

    def on_append(
        self,
        peer: Peer,
        data: memoryview,
        index: int,
        length: int,
        verified: HeldBatches | None = None,
    ) -> None:
        """One APPEND entry, from its payload at data[index:index+length] to its APPENDED.

        verified: it was held, and its coordinator has said yes.
        """
        token, acks, flags, timeout_ms, key, _ = APPEND_HEAD.unpack_from(data, index)
        at = index + APPEND_BATCH_AT
        end = index + length
        payload_at = index
        if flags & _HAS_MORE:
            if flags & APPEND_FLAG_PARTS:
                data = self.parts.whole(peer, token, data, index, end, flags)
                payload_at, at, end = 0, APPEND_BATCH_AT, len(data)
            if flags & APPEND_FLAG_TRANSACTIONAL:
                at += NAME_LENGTH.size + NAME_LENGTH.unpack_from(data, at)[0]
        partition = self.partitions.get(key) or self.partitions.open_due(key)
        base_offset = self.append(
            peer, token, acks, flags, timeout_ms, partition, data, at, end, payload_at, verified
        )
        if base_offset < 0 or partition is None:
            return
        # The result, written where it goes.
        writer = peer.writer
        index = -1 if peer.backlog else writer.claim(APPENDED, _APPENDED_BYTES)
        if index < 0:
            answer(peer, token, base_offset, -1, partition.log.log_start_offset)
            return
        APPENDED_HEAD.pack_into(
            writer.data, index, token, 0, 0, 0, base_offset, -1, partition.log.log_start_offset
        )
        peer.outbox[peer] = None

    def append(
        self,
        peer: Peer,
        token: int,
        acks: int,
        flags: int,
        timeout_ms: int,
        partition: Partition | None,
        data: memoryview,
        at: int,
        end: int,
        payload_at: int = -1,
        verified: HeldBatches | None = None,
    ) -> int:
        """Judge and store the batch in data[at:end]: its base offset, which the caller answers. -1:
        it is answered, or will be, with an APPENDED of its own.

        payload_at: where the APPEND begins, which is kept if a coordinator is to be asked.
        """
        # A
        if (
            partition is None
            or not partition.is_leader
            or (self.is_disk_low and not partition.is_internal)
            or (acks == ACKS_ALL and partition.is_under_min_in_sync)
        ):
            self._turn_away(peer, token, partition, data, at, end)
            return -1
        # C
        error, header = check_batch(data, at, end, partition.message_bytes_max)
        if error:
            is_whole = not split_frame(data, at, end)[0]  # what isn't, no log looks at
            # B
            if not is_whole or not self._is_held_up(
                peer, token, flags, partition, header, data[payload_at:end], verified
            ):
                refuse(peer, token, error, None, (), partition if is_whole else None)
            return -1
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
            # B
            if attributes & TRANSACTIONAL_BIT and self._is_held_up(
                peer, token, flags, partition, header, data[payload_at:end], verified
            ):
                return -1
            # D
            batch = data[at:batch_end]
            found_timestamp, refusal = look_closer(partition, batch, header, flags, now_ms)
            batch.release()
            if refusal is not None:
                refuse(peer, token, *refusal, partition)
                return -1
            # E
            if verified is not None and self.unverified.begins_late(partition, header, verified):
                refuse(peer, token, error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, None, (), partition)
                return -1
            must_stamp = found_timestamp != max_timestamp or attributes & TIMESTAMP_TYPE_BIT != 0
            max_timestamp = found_timestamp
            if partition.is_log_append_time:
                append_time = max_timestamp = now_ms
                must_stamp = True
        log = partition.log
        # E
        if producer_id >= 0 and not self._is_next(peer, token, partition, header, acks, timeout_ms):
            return -1
        # F
        if batch_end - at > partition.segment_bytes_max:
            refuse(peer, token, error_codes.RECORD_LIST_TOO_LARGE, None)
            return -1
        batch = data[at:batch_end]
        if must_stamp:
            is_log_append_time = log.config.is_log_append_time
            batch = stamped(batch, max_timestamp, is_log_append_time=is_log_append_time)
        try:
            base_offset = log.append(
                batch, last_offset_delta, max_timestamp, partition.leader_epoch, now_ms
            )
        except StorageFault as fault:
            self.on_storage_fault(partition, fault)
            refuse(peer, token, _STORAGE, str(fault))
            note_refused(partition, data, at, end, _STORAGE)
            return -1
        finally:
            batch.release()
        if producer_id >= 0:
            producers = partition.producers
            producers.update(
                producer_id, producer_epoch, base_sequence, last_offset_delta, base_offset,
                max_timestamp,
            )  # fmt: skip
            if attributes & TRANSACTIONAL_BIT:
                producers.begin(producer_id, base_offset)
        self.bytes_in += end - at
        self.batches_in += 1
        partition.advance_high_watermark()
        self.appended.add(partition)
        return self._acknowledge(peer, token, acks, timeout_ms, partition, base_offset, append_time)

    def _turn_away(
        self,
        peer: Peer,
        token: int,
        partition: Partition | None,
        data: memoryview,
        at: int,
        end: int,
    ) -> None:
        """Answer a batch that this partition takes from nobody now, whatever is in it."""
        detail = None
        if partition is None or not partition.is_leader:
            error = not_led_error(partition)
        elif self.is_disk_low and not partition.is_internal:
            error, detail = _STORAGE, "the disk is nearly full"
        else:
            error = _NOT_ENOUGH
        refuse(peer, token, error, detail)
        note_refused(partition, data, at, end, error)

    def _is_held_up(
        self,
        peer: Peer,
        token: int,
        flags: int,
        partition: Partition,
        header: tuple[int, ...],
        payload: memoryview,
        verified: HeldBatches | None,
    ) -> bool:
        """Whether a batch goes no further because of its transaction: it names none or is of a
        producer that was fenced here, and is refused, or it waits for its coordinator, whatever
        else may be wrong with it."""
        if not header[H_ATTRIBUTES] & TRANSACTIONAL_BIT:
            return False
        if not flags & APPEND_FLAG_TRANSACTIONAL:
            refuse(peer, token, error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None)
            return True
        producer_id = header[H_PRODUCER_ID]
        if producer_id < 0 or self.unverified.is_known(partition, header, verified):
            return False
        known = partition.producers.producers.get(producer_id)
        if known is not None and header[H_PRODUCER_EPOCH] < known.epoch:
            refuse(peer, token, error_codes.INVALID_PRODUCER_EPOCH, None)
        else:
            self.unverified.hold(peer, token, partition, header, payload)
        return True

    def _is_next(
        self,
        peer: Peer,
        token: int,
        partition: Partition,
        header: tuple[int, ...],
        acks: int,
        timeout_ms: int,
    ) -> bool:
        """Whether a producer's batch is the next of its sequence (KIP-98); one that is here already
        is answered as it was, any other is refused."""
        attributes, last_offset_delta = header[H_ATTRIBUTES], header[H_LAST_OFFSET_DELTA]
        producer_id, producer_epoch, base_sequence = header[H_PRODUCER_ID:H_COUNT]
        producers = partition.producers
        error, duplicate_offset, duplicate_time = producers.check(
            producer_id, producer_epoch, base_sequence, last_offset_delta
        )
        if error and producers.knows_last_only:
            # An ack that the stop before has cost, or one that waited for replicas that left first.
            recall_batches(partition.log)
            error, duplicate_offset, duplicate_time = producers.check(
                producer_id, producer_epoch, base_sequence, last_offset_delta
            )
        if error:
            refuse(peer, token, error, None, (), partition)
            return False
        if duplicate_offset >= 0:
            self.acks.acknowledge_again(
                peer, token, acks, timeout_ms, partition, duplicate_offset, duplicate_time,
                duplicate_offset + last_offset_delta + 1,
            )  # fmt: skip
            return False
        if producers.open and not attributes & TRANSACTIONAL_BIT and producer_id in producers.open:
            refuse(peer, token, error_codes.INVALID_TXN_STATE, None, (), partition)
            return False
        return True


def note_refused(
    partition: Partition | None, data: memoryview, at: int, end: int, error: int
) -> None:
    """Remember which batch of an idempotent producer was not taken, though it may be the next one:
    those that were on their way behind it are not to be taken before it."""
    if partition is None or end - at < HEADER_SIZE:
        return
    header = BATCH_HEADER.unpack_from(data, at)
    producer_id, epoch, base_sequence = header[H_PRODUCER_ID:H_COUNT]
    if header[H_MAGIC] == MAGIC and producer_id >= 0 and epoch >= 0 and base_sequence >= 0:
        partition.producers.note_refused(producer_id, epoch, base_sequence, error)
