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
* A transactional batch is appended to a transaction that is open here, or that its coordinator has
  just said to be under way here (`unverified`, KIP-890). Markers come from coordinators alone
  (`append_marker`).
"""

from collections.abc import Callable, Sequence

from shmbroker.broker.delayed_produce import DelayedProduces
from shmbroker.broker.group_commit import GroupCommit
from shmbroker.broker.unverified import Asked, Unverified
from shmbroker.broker.waiting_ack import WaitingAck
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    APPEND_BATCH_AT,
    APPEND_FLAG_ADDS,
    APPEND_FLAG_NO_ABORTABLE,
    APPEND_FLAG_NO_ZSTD,
    APPEND_FLAG_PARTS,
    APPEND_FLAG_TRANSACTIONAL,
    APPEND_HEAD,
    APPEND_MANY_HEAD,
    APPEND_ROW,
    APPENDED,
    APPENDED_HEAD,
    APPENDED_MANY,
    APPENDED_MANY_HEAD,
    APPENDED_ROW,
    NAME_LENGTH,
    pack_record_errors,
)
from shmbroker.ipc.peer import Peer
from shmbroker.kernels import native
from shmbroker.log.markers import append_marker
from shmbroker.records.batch import check_batch
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    COMPRESSION_MASK,
    H_ATTRIBUTES,
    H_COUNT,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    ZSTD,
)
from shmbroker.records.end_marker import EndMarker
from shmbroker.records.stamping import stamped
from shmbroker.records.validation import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    Refusal,
    Rules,
    judge_records,
    plain_bytes_max,
    refuse_stamps,
)
from shmbroker.replica.partition import Partition, Partitions, not_led_error
from shmbroker.wire import error_codes

ACKS_ALL = -1

Waiting = tuple[int, Partition, int, int, int]
"""An ack: token, partition, base offset, end offset, how long it waits in ms."""

append_plain = None if native is None else native.append_plain
append_rows = None if native is None else native.append_rows

_STORAGE = error_codes.KAFKA_STORAGE_ERROR
_NOT_LEADER = error_codes.NOT_LEADER_OR_FOLLOWER
_NOT_ENOUGH = error_codes.NOT_ENOUGH_REPLICAS
_OUT_OF_ORDER = error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER
_TOO_LARGE = error_codes.MESSAGE_TOO_LARGE
_JUDGED_BEFORE_THE_LOG = (
    error_codes.CORRUPT_MESSAGE,
    error_codes.MESSAGE_TOO_LARGE,
    error_codes.UNSUPPORTED_COMPRESSION_TYPE,
    error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_HAS_MORE = APPEND_FLAG_PARTS | APPEND_FLAG_TRANSACTIONAL
_FLAGS = slice(10, 12)
"""Where APPEND_HEAD has them."""


class Appender:
    """Appends for one I/O worker. `appended` collects the partitions that got new batches."""

    def __init__(
        self,
        partitions: Partitions,
        now_ms: Callable[[], int],
        on_storage_fault: Callable[[Partition, StorageFault], None],
        sync: Callable[..., None],
        steady_ms: Callable[[], int],
    ) -> None:
        """now_ms: what the wall clock shows, which may jump; steady_ms: what waits go by."""
        self.partitions = partitions
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.on_storage_fault = on_storage_fault
        self.appended: set[Partition] = set()
        self.moved: set[Partition] = set()
        """Those whose high watermark moved without an append."""
        self.is_disk_low = False
        """Produce is refused, but for internal topics (`disk_reserve`)."""
        self.group_commit = GroupCommit(
            sync,
            self.on_durable,
            self._on_synced,
            lambda partition: partitions.get(partition.key) is partition,
        )
        self.delayed = DelayedProduces()
        self.unverified = Unverified(self._on_verified)
        self.parts: dict[tuple[int, int], bytearray] = {}
        self.batches_in = self.bytes_in = 0

    def on_part(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """A piece of a batch that is larger than a ring entry may be."""
        token = int.from_bytes(data[index : index + 8], "little")
        self.parts.setdefault((peer.slot, token), bytearray()).extend(
            data[index + 8 : index + length]
        )

    def drop_parts(self, slot: int) -> None:
        """That network worker is dead: the rest of its batches will not come."""
        self.parts = {key: part for key, part in self.parts.items() if key[0] != slot}
        self.unverified.drop_peer(slot)

    def take_plain(self, peer: Peer, entries_max: int, bytes_max: int) -> int:
        """Take the APPENDs that come next on a peer's ring, as far as nothing of them is to be
        looked at closer, and answer them: how many. 0 without the compiled kernels."""
        if append_plain is None or self.is_disk_low or peer.backlog:
            return 0
        waiting: list[Waiting] = []
        entries, size = append_plain(
            peer.reader, peer.writer, self.partitions, self.now_ms(), entries_max, bytes_max,
            self.appended, waiting,
        )  # fmt: skip
        if entries:
            self.batches_in += entries
            self.bytes_in += size
            if entries > len(waiting):
                peer.unpublished = True
            self._let_wait(peer, waiting)
        return int(entries)

    def _let_wait(self, peer: Peer, waiting: list[Waiting]) -> None:
        """Have acks that the kernel left wait for the replicas."""
        now_ms = self.steady_ms()
        for token, partition, base_offset, end, timeout_ms in waiting:
            self.delayed.add((peer, token, partition, base_offset, -1, end, now_ms + timeout_ms))

    def on_append(
        self,
        peer: Peer,
        data: memoryview,
        index: int,
        length: int,
        verified: Asked | None = None,
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
                part = self.parts.pop((peer.slot, token), bytearray())
                data, payload_at = _whole(data, index, end, part, flags & ~APPEND_FLAG_PARTS)
                at, end = payload_at + APPEND_BATCH_AT, len(data)
            if flags & APPEND_FLAG_TRANSACTIONAL:
                at += NAME_LENGTH.size + NAME_LENGTH.unpack_from(data, at)[0]
        partition = self.partitions.get(key) or self.partitions.open_due(key)
        base_offset = self._append(
            peer, token, acks, flags, timeout_ms, partition, data, at, end, payload_at, verified
        )
        if base_offset < 0 or partition is None:
            return
        # The result, written where it goes.
        writer = peer.writer
        index = -1 if peer.backlog else writer.claim(APPENDED, 40)
        if index < 0:
            self.done(peer, token, base_offset, -1, partition.log.log_start_offset)
            return
        APPENDED_HEAD.pack_into(
            writer.data, index, token, 0, 0, 0, base_offset, -1, partition.log.log_start_offset
        )
        peer.unpublished = True

    def on_append_many(self, peer: Peer, data: memoryview, index: int) -> None:
        """One APPEND_MANY entry, from its payload at data[index:] to its APPENDED_MANY."""
        token, acks, flags, timeout_ms, count, _ = APPEND_MANY_HEAD.unpack_from(data, index)
        at = index + APPEND_MANY_HEAD.size
        partitions = self.partitions
        unpack_row, pack_row = APPEND_ROW.unpack_from, APPENDED_ROW.pack
        rows = []
        which = 0
        while True:
            if append_rows is not None and not self.is_disk_low:
                waiting: list[Waiting] = []
                done, behind, stored = append_rows(
                    data, at, which, count, token, acks, flags, timeout_ms, partitions,
                    self.now_ms(), self.appended, waiting,
                )  # fmt: skip
                self.batches_in += done - which
                self.bytes_in += behind - at - (done - which) * APPEND_ROW.size
                rows.append(stored)
                self._let_wait(peer, waiting)
                which, at = done, behind
            if which == count:
                break
            key, size = unpack_row(data, at)
            at += APPEND_ROW.size
            end = at + size
            partition = partitions.get(key) or partitions.open_due(key)
            base_offset = self._append(
                peer, token + which, acks, flags, timeout_ms, partition, data, at, end
            )
            if base_offset >= 0 and partition is not None:
                rows.append(pack_row(which, base_offset, partition.log.log_start_offset))
            at = end
            which += 1
        if packed := b"".join(rows):
            head = APPENDED_MANY_HEAD.pack(token, len(packed) // APPENDED_ROW.size, 0)
            peer.send(APPENDED_MANY, head + packed)

    def _append(
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
        verified: Asked | None = None,
    ) -> int:
        """Judge and store the batch in data[at:end]: its base offset, which the caller answers. -1:
        it is answered, or will be, with an APPENDED of its own.

        payload_at: where the APPEND begins, which is kept if a coordinator is to be asked.
        """
        if (
            partition is None
            or not partition.is_leader
            or (self.is_disk_low and not partition.is_internal)
            or (acks == ACKS_ALL and partition.is_under_min_in_sync)
        ):
            self._turn_away(peer, token, partition, data, at, end)
            return -1
        error, header = check_batch(data, at, end, partition.message_bytes_max)
        if error:
            self.refuse(peer, token, error, None, (), partition)
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
            batch = data[at:batch_end]
            found_timestamp, refusal = self.look_closer(partition, batch, header, flags, now_ms)
            batch.release()
            if refusal is not None:
                self.refuse(peer, token, *refusal, partition)
                return -1
            if attributes & TRANSACTIONAL_BIT and not self._is_known(partition, header, verified):
                self._verify(peer, token, partition, header, data[payload_at:end], verified)
                return -1
            must_stamp = found_timestamp != max_timestamp or attributes & TIMESTAMP_TYPE_BIT != 0
            max_timestamp = found_timestamp
            if partition.is_log_append_time:
                append_time = max_timestamp = now_ms
                must_stamp = True
        log = partition.log
        if producer_id >= 0 and not self._is_next(peer, token, partition, header, acks, timeout_ms):
            return -1
        if batch_end - at > partition.segment_bytes_max:
            self.refuse(peer, token, error_codes.RECORD_LIST_TOO_LARGE, None)
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
            self.refuse(peer, token, _STORAGE, str(fault))
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
        if partition is None or not partition.is_leader:
            error = not_led_error(partition)
        elif self.is_disk_low and not partition.is_internal:
            self.refuse(peer, token, _STORAGE, "the disk is nearly full")
            return
        else:
            error = _NOT_ENOUGH
        self.refuse(peer, token, error, None)
        note_refused(partition, data, at, end, error)

    def _verify(
        self,
        peer: Peer,
        token: int,
        partition: Partition,
        header: tuple[int, ...],
        payload: memoryview,
        verified: Asked | None,
    ) -> None:
        """Have a batch of a transaction wait until the coordinator has said whether this partition
        is part of it; refuse it where that was asked."""
        if verified is None or verified.epoch != header[H_PRODUCER_EPOCH]:
            self._hold(peer, payload, partition, header)
        else:
            self.refuse(peer, token, _OUT_OF_ORDER, None, (), partition)

    def _acknowledge(
        self,
        peer: Peer,
        token: int,
        acks: int,
        timeout_ms: int,
        partition: Partition,
        base_offset: int,
        append_time: int,
    ) -> int:
        """What `_append` returns for a batch that is stored: acks may wait for the disk or for the
        in-sync replicas."""
        log = partition.log
        if log.log_end_offset - log.recovery_point >= partition.flush_messages:
            self.group_commit.add((
                peer, token, partition, base_offset, append_time, log.log_end_offset,
                self.steady_ms() + timeout_ms if acks == ACKS_ALL else 0,
            ))  # fmt: skip
            return -1
        if acks == ACKS_ALL and partition.high_watermark < log.log_end_offset:
            self.delayed.add((
                peer, token, partition, base_offset, append_time, log.log_end_offset,
                self.steady_ms() + timeout_ms,
            ))  # fmt: skip
            return -1
        if append_time >= 0:
            self.done(peer, token, base_offset, append_time, log.log_start_offset)
            return -1
        return base_offset

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
        if error:
            self.refuse(peer, token, error, None, (), partition)
            return False
        if duplicate_offset >= 0:
            ack = (
                peer, token, partition, duplicate_offset, duplicate_time,
                duplicate_offset + last_offset_delta + 1,
                self.steady_ms() + timeout_ms if acks == ACKS_ALL else 0,
            )  # fmt: skip
            if partition.is_fsync and duplicate_offset >= partition.log.recovery_point:
                self.group_commit.add(ack)
            else:
                self.on_durable(ack, None)
            return False
        if producers.open and not attributes & TRANSACTIONAL_BIT and producer_id in producers.open:
            self.refuse(peer, token, error_codes.INVALID_TXN_STATE, None, (), partition)
            return False
        return True

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
            if header[H_PRODUCER_ID] < 0:
                return -1, Refusal(error_codes.INVALID_RECORD, None, [])
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

    def on_stored(self, partition: Partition) -> None:
        """A coordinator has appended; where acks wait for the disk, its answers do too."""
        self.appended.add(partition)
        log = partition.log
        if log.log_end_offset - log.recovery_point >= partition.flush_messages:
            self.group_commit.want(partition)

    # ── transactions ────────────────────────────────────────────────────────────────────────────

    def _is_known(
        self, partition: Partition, header: tuple[int, ...], verified: Asked | None
    ) -> bool:
        """Whether the transaction of a batch is open here, or may begin here as it is verified.

        A producer that adds its partitions begins with sequence 0 where nothing is known of it.
        """
        producer_id, epoch, base_sequence = header[H_PRODUCER_ID:H_COUNT]
        producers = partition.producers
        if verified is None or verified.epoch != epoch:
            if self.unverified.is_waiting(partition.key, producer_id):
                return False
            return producers.is_open(producer_id, epoch)
        return not (verified.may_add and base_sequence and producer_id not in producers.producers)

    def _hold(
        self, peer: Peer, payload: memoryview, partition: Partition, header: tuple[int, ...]
    ) -> None:
        """Ask the coordinator about the transaction that the batch begins."""
        token, _, flags, _, _, _ = APPEND_HEAD.unpack_from(payload)
        at = APPEND_BATCH_AT + NAME_LENGTH.size
        end = at + NAME_LENGTH.unpack_from(payload, APPEND_BATCH_AT)[0]
        transactional_id = str(payload[at:end], "utf-8", "replace")
        producer_id, epoch = header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH]
        may_add = flags & APPEND_FLAG_ADDS != 0
        if not self.unverified.hold(
            peer, payload, partition, transactional_id, producer_id, epoch, may_add
        ):
            self.refuse(peer, token, _NOT_ENOUGH, "too many batches wait for a coordinator")

    def _on_verified(self, peer: Peer, payload: memoryview, error: int, asked: Asked) -> None:
        """A batch that was held."""
        if error:
            token, _, flags, _, key, _ = APPEND_HEAD.unpack_from(payload)
            if error == error_codes.TRANSACTION_ABORTABLE and flags & APPEND_FLAG_NO_ABORTABLE:
                error = error_codes.INVALID_TXN_STATE
            self.refuse(peer, token, error, None, (), self.partitions.get(key))
        else:
            self.on_append(peer, payload, 0, len(payload), asked)

    def append_marker(
        self, partition: Partition, marker: EndMarker, transaction_version: int
    ) -> tuple[int, int]:
        """End a transaction in a partition, as its coordinator asks: (error code, end offset).

        The marker counts once the high watermark is at the end offset: that is the caller's to wait
        for. A marker of a transaction that is not open here is appended all the same; it may be the
        coordinator's second try. Errors as Kafka's: INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, and those of an append with acks=all.
        """
        if not partition.is_leader:
            return not_led_error(partition), -1
        if partition.is_under_min_in_sync:
            return _NOT_ENOUGH, -1
        error = partition.producers.check_marker(marker, transaction_version)
        if error:
            return error, -1
        now_ms = self.now_ms()
        try:
            append_marker(partition.log, marker, now_ms, partition.leader_epoch, now_ms)
        except StorageFault as fault:
            self.on_storage_fault(partition, fault)
            return _STORAGE, -1
        self.unverified.on_marker(partition.key, marker.producer_id, marker.producer_epoch)
        if partition.is_fsync:
            self.group_commit.want(partition)
        partition.advance_high_watermark()
        self.appended.add(partition)
        return error_codes.NONE, partition.log.log_end_offset

    def _on_synced(self, partition: Partition) -> None:
        """What nobody is answered for is on the disk."""
        if partition.advance_high_watermark():
            self.moved.add(partition)

    def on_durable(self, ack: WaitingAck, fault: str | None) -> None:
        """The disk has it or has failed; with a deadline, the in-sync replicas must have it too."""
        peer, token, partition, base_offset, append_time, end_offset, deadline_ms = ack
        if fault is not None:
            self.refuse(peer, token, _STORAGE, fault)
            return
        self._on_synced(partition)
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


def _whole(
    data: memoryview, index: int, end: int, part: bytearray, flags: int
) -> tuple[memoryview, int]:
    """An APPEND whose batch came in pieces, as if it had come in one: (data, its place there)."""
    at = index + APPEND_BATCH_AT
    if flags & APPEND_FLAG_TRANSACTIONAL:
        at += NAME_LENGTH.size + NAME_LENGTH.unpack_from(data, at)[0]
    head = bytearray(data[index:at])
    head[_FLAGS] = flags.to_bytes(2, "little")
    part[:0] = head
    part += data[at:end]
    return memoryview(part), 0


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
