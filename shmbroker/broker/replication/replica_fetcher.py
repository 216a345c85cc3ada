"""Follows partitions that siblings lead: reads what they have, appends it as it is.

    for each leader one link: its session there, the rows that it follows (`followed`)
       READ (what has changed here)  ──►  leader
       READ_DONE (slices)            ◄──  copied from its segment files, checked, appended
                                          the next READ says how far this replica is

Rules of this file:
* A READ is under way at each link, always: the leader answers when it has something to say. If
  something changes here meanwhile, a second one says so and takes the place of the first.
* A batch is taken only if it is whole, right by its CRC, of no later leader epoch than is followed,
  and continues the log. What was read is appended with the offsets and epochs that it carries. One
  of a later epoch is there where the leader was deposed, and has cut its file, before it is read:
  taken without a comparison, it would hide from every later one that the logs have parted.
* A log that does not fit its leader's is cut before anything is appended (`cutting`).
* A row that can't go on (an epoch that the leader doesn't know yet, a full disk, a file that is
  still on its way) is read again after a while; the others go on.
* The leader is woken by the last follower alone: one that has something before another in-sync
  follower has it publishes its READ and rings nobody, as the high watermark can't move yet. Each
  looks at the ends of the others, and at the leader's, after it has stored its own and published,
  so of two at least one sees both (`leader_rings`).
* Where the leader's log begins later, this one does, too, and its next READ says so and rings:
  DeleteRecords waits for that.
* With `shmbroker.ack.durability=fsync` a follower says that it has something when its disk has it.

Source: Kafka's AbstractFetcherThread, ReplicaFetcherThread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from shmbroker import logs
from shmbroker.broker.replication.cutting import Cutting
from shmbroker.broker.replication.followed import RETRY_MS, STORAGE_RETRY_MS, Link, Retries
from shmbroker.crc32c import crc32c
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    NEED_FILE,
    READ,
    READ_DONE_HEAD,
    READ_FLAG_FOLLOWER,
    READ_FLAG_NEW,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
    TOKEN,
)
from shmbroker.ipc.peer import Peer
from shmbroker.log.markers import note_marker
from shmbroker.log.truncation import truncate_fully
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.end_marker import parse_marker
from shmbroker.replica.partition import Partition
from shmbroker.replica.throttle import ReplicationThrottle
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.replication.cutting import FindState
    from shmbroker.broker.replication.followed import CopiedRow
    from shmbroker.ipc.passed_files import FileTable

logger = logging.getLogger(__name__)

ROWS_LOOKED_AT_MAX = 8
"""Above that, one of them will be worth a ring."""
SCRATCH_BYTES = 1 << 20

_unpack_header = BATCH_HEADER.unpack_from


class ReplicaFetcher:
    """What one I/O worker follows.

    on_appended: told of each partition that got batches. on_storage_fault(partition, fault): the
    disk refused. on_gap(partition): offsets are missing in what was read (the leader has compacted
    it). on_ahead(partition): its leader lacks committed records that are here.
    is_worth_a_ring(partition): the leader must hear at once how far this replica is.
    raise_log_start(partition, offset): as `PartitionStore.raise_log_start`.
    find_state(partition, offset, on_state): as `Tier.find_state`.
    flush(logs, on_done): as `PartitionStore.flush`.
    """

    def __init__(
        self,
        links: Mapping[int, tuple[Peer, FileTable]],
        new_token: Callable[[], int],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        on_appended: Callable[[Partition], None],
        on_storage_fault: Callable[[Partition, StorageFault], None],
        on_gap: Callable[[Partition], None],
        on_ahead: Callable[[Partition], None],
        is_worth_a_ring: Callable[[Partition], bool],
        raise_log_start: Callable[[Partition, int], None],
        flush: Callable[..., None],
        find_state: FindState,
        broker_id: int,
    ) -> None:
        self.links = {number: Link(*link) for number, link in links.items()}
        """The links, by the broker id of the leader."""
        self.rows: dict[bytes, CopiedRow] = {}
        """The rows, by the key of the partition."""
        self._new_token = new_token
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._on_appended = on_appended
        self._on_storage_fault = on_storage_fault
        self._on_gap = on_gap
        self._is_worth_a_ring = is_worth_a_ring
        self._raise_log_start = raise_log_start
        self._flush = flush
        self.broker_id = broker_id
        self.throttle = ReplicationThrottle()
        self.retries = Retries(steady_ms)
        self._cutting = Cutting(broker_id, self.retries, on_storage_fault, on_ahead, find_state)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.copied_bytes = 0

    # ── what is followed ────────────────────────────────────────────────────────────────────────

    def follow(self, partition: Partition) -> None:
        """Read from the partition's leader, in its epoch, or go on doing so."""
        row = self.rows.get(partition.key)
        link = self.links.get(partition.leader_id)
        if row is not None and (row.link is not link or row.partition is not partition):
            self.unfollow(partition.key)
            row = None
        if link is None:
            return
        if row is None:
            row = link.add(partition)
            if row is None:
                why = "too many partitions"
                logger.error(
                    "%s can't be followed: %s", partition.topic, why, extra=logs.seldom(why)
                )
                return
            self.rows[partition.key] = row
        if row.leader_epoch != partition.leader_epoch:
            row.leader_epoch = partition.leader_epoch
            row.is_compared = False
            link.changed[row] = None

    def unfollow(self, key: bytes) -> None:
        """Stop following a partition: it is led here now, or no longer here."""
        row = self.rows.pop(key, None)
        if row is None:
            return
        row.link.remove(row)
        self.retries.forget(row)

    def on_peer_lost(self, peer: Peer) -> None:
        """Note that a sibling is dead."""
        link = self.links.get(peer.number)
        if link is not None and link.peer is peer:
            link.on_lost()

    def drop_file(self, peer: Peer, file_id: int) -> None:
        """The leader has deleted a file."""
        self.links[peer.number].files.drop(file_id)

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    def send_all(self) -> None:
        """Have a READ under way at every leader that is followed."""
        if self.retries.waiting:
            for row in self.retries.take_due():
                self._read_on(row)
        for link in self.links.values():
            is_due = link.changed or link.gone or (link.rows and not link.token)
            if is_due and link.peer.incarnation:
                self._send(link)

    def _send(self, link: Link) -> None:
        peer = link.peer
        rows_max = (peer.writer.payload_bytes_max - READ_HEAD.size) // READ_PARTITION.size
        gone = link.gone[:rows_max]
        parts = [READ_PARTITION.pack(bytes(20), which, -1, -1, -1, -1, -1) for which in gone]
        rows = []
        for row in list(link.changed)[: rows_max - len(gone)]:
            partition = row.partition
            log = partition.log
            if partition.is_fsync and log.recovery_point < log.log_end_offset:
                del link.changed[row]
                self._say_when_durable(row)
                continue
            rows.append(row)
            last_epoch = -1 if row.is_compared else log.leader_epochs.latest
            parts.append(
                READ_PARTITION.pack(
                    partition.key, row.which, partition.leader_epoch, last_epoch,
                    log.log_end_offset, partition.high_watermark, log.log_start_offset,
                )
            )  # fmt: skip
        if not parts and link.token:
            return  # nothing to say after all
        flags = READ_FLAG_FOLLOWER | (READ_FLAG_NEW if link.is_new else 0)
        token = self._new_token()
        head = READ_HEAD.pack(token, 0, 1, 0, 0, flags, len(parts), 0)
        was_to_show = peer in peer.outbox
        if not peer.try_send(READ, head + b"".join(parts)):
            return  # its ring is full: tried again next turn
        link.token = token
        link.is_new = False
        if gone:
            link.on_gone_told(token, gone)
        # One without rows comes after an answer that told a high watermark alone: ten a second.
        is_urgent = bool(gone) or not 0 < len(rows) <= ROWS_LOOKED_AT_MAX
        for row in rows:
            del link.changed[row]
        if not is_urgent:
            peer.writer.publish()
            is_urgent = any(
                not row.is_compared
                or row.told_start != row.partition.log.log_start_offset
                or self._is_worth_a_ring(row.partition)
                for row in rows
            )
            if not (was_to_show or is_urgent):
                del peer.outbox[peer]
        for row in rows:
            row.told_start = row.partition.log.log_start_offset

    # ── what comes ──────────────────────────────────────────────────────────────────────────────

    def on_read_done(self, peer: Peer, data: memoryview, index: int) -> None:
        """One READ_DONE entry."""
        token, count, _ = READ_DONE_HEAD.unpack_from(data, index)
        link = self.links[peer.number]
        if token == link.token:
            link.token = 0  # else another READ has followed it meanwhile, and waits there
        if link.freeing:
            link.free_until(token)
        at = index + READ_DONE_HEAD.size
        inline_at = at + count * READ_SLICE.size
        for place in range(at, inline_at, READ_SLICE.size):
            found = READ_SLICE.unpack_from(data, place)
            row = link.rows.get(found[1])
            if row is not None:
                self._take(row, found, data, inline_at)

    def _take(
        self, row: CopiedRow, found: tuple[Any, ...], data: memoryview, inline_at: int
    ) -> None:
        (
            error, _, length, high_watermark, _, log_start, file_id, position, end_epoch, epoch,
            end_offset,
        ) = found  # fmt: skip
        partition = row.partition
        if partition.is_leader or partition.is_offline:
            return
        if error == error_codes.OFFSET_OUT_OF_RANGE:
            self._cutting.fit(row, log_start, end_offset)
            return
        if error == error_codes.OFFSET_MOVED_TO_TIERED_STORAGE:
            self._cutting.begin_behind(row, log_start, end_offset)
            return
        if error or epoch != partition.leader_epoch:
            is_refused = error == error_codes.KAFKA_STORAGE_ERROR
            self.retries.again(row, STORAGE_RETRY_MS if is_refused else RETRY_MS)
            return
        if end_epoch >= 0:
            self._cutting.cut(row, end_epoch, end_offset)
            return
        row.is_compared = True
        if length:
            if file_id:
                read = self._read(row, file_id, position, length)
                if read is None:
                    return
                data, position = read, 0
            else:
                position += inline_at
            if not self._append(row, data, position, position + length):
                return
        partition.follow_high_watermark(high_watermark)
        log = partition.log
        if log.log_start_offset < (start := min(log_start, partition.high_watermark)):
            self._raise_log_start(partition, start)
        if length:
            if self.broker_id in partition.follower_throttled:
                self.throttle.take(length, self._steady_ms())
            self._read_on(row)
        elif row.told_start != log.log_start_offset:
            self._read_on(row)  # It may have been raised here, before the leader said so.

    def _read_on(self, row: CopiedRow) -> None:
        """Have the next READ name it, unless it is throttled and there is no room (KIP-73)."""
        partition = row.partition
        if (
            self.broker_id in partition.follower_throttled
            and self.broker_id not in partition.in_sync_replicas
            and not self.throttle.room(steady_ms := self._steady_ms())
        ):
            self.retries.waiting.append((steady_ms + self.throttle.wait_ms(), row))
        else:
            row.link.changed[row] = None

    def _read(self, row: CopiedRow, file_id: int, position: int, length: int) -> memoryview | None:
        """Bytes of the leader's file; None if the row is to be read again, as its descriptor is not
        here or the disk refuses."""
        file = row.link.files.find(file_id)
        if file is None:
            row.link.peer.send(NEED_FILE, TOKEN.pack(file_id))
            self.retries.again(row, RETRY_MS)
            return None
        if length > len(self._scratch):
            self._scratch = memoryview(bytearray(length))
        view = self._scratch[:length]
        try:
            count = os.preadv(file.fd, [view], position)
        except OSError as fault:
            partition = row.partition
            logger.error(
                "%s-%d: the log of broker %d can't be read at offset %d: %s",
                partition.topic, partition.partition, partition.leader_id,
                partition.log.log_end_offset, fault, extra=logs.seldom("a leader's log"),
            )  # fmt: skip
            self.retries.again(row, STORAGE_RETRY_MS)
            return None
        if count != length:
            self.retries.again(row, RETRY_MS)
            return None
        return view

    def _append(self, row: CopiedRow, data: memoryview, at: int, end: int) -> bool:
        """Append the batches in data[at:end]; False if the row is to be read again."""
        partition = row.partition
        log = partition.log
        producers = partition.producers
        now_ms = self._now_ms()
        append = log.append
        start = at
        is_gap = False
        try:
            while at < end:
                if end - at < HEADER_SIZE:
                    return self._refuse(row, "it ends in the middle of a batch")
                (
                    base_offset, batch_length, epoch, magic, crc, attributes, last_offset_delta, _,
                    max_timestamp, producer_id, producer_epoch, base_sequence, _,
                ) = _unpack_header(data, at)  # fmt: skip
                batch_end = at + LOG_OVERHEAD + batch_length
                if magic != MAGIC or batch_length < HEADER_SIZE - LOG_OVERHEAD or batch_end > end:
                    return self._refuse(row, "it holds no whole batch")
                if crc32c(data[at + ATTRIBUTES_POSITION : batch_end]) != crc:
                    return self._refuse(row, "a batch is damaged")
                if epoch > partition.leader_epoch:
                    return self._refuse(row, "it is of a later leader epoch")
                if base_offset != log.log_end_offset:
                    if base_offset + last_offset_delta < log.log_end_offset:
                        at = batch_end  # read twice
                        continue
                    if base_offset > log.log_end_offset:
                        log.skip_to(base_offset)
                        is_gap = True
                    elif log.log_start_offset < log.log_end_offset:
                        return self._refuse(row, f"offset {base_offset} is here already")
                    else:
                        # It is empty, and the leader's begins amid this batch (DeleteRecords).
                        truncate_fully(log, base_offset)
                        partition.on_truncated()
                append(data[at:batch_end], last_offset_delta, max_timestamp, epoch, now_ms)
                if producer_id < 0:
                    pass
                elif attributes & CONTROL_BIT:
                    marker = parse_marker(data, at)
                    if marker is not None:
                        note_marker(log, marker, base_offset, max_timestamp)
                else:
                    producers.update(
                        producer_id, producer_epoch, base_sequence, last_offset_delta,
                        base_offset, max_timestamp,
                    )  # fmt: skip
                    if attributes & TRANSACTIONAL_BIT:
                        producers.begin(producer_id, base_offset)
                at = batch_end
        except StorageFault as fault:
            self._on_storage_fault(partition, fault)
            self.retries.again(row, STORAGE_RETRY_MS)
            return False
        finally:
            if at > start:
                self.copied_bytes += at - start
                self._on_appended(partition)
            if is_gap:
                self._on_gap(partition)
        return True

    def _refuse(self, row: CopiedRow, why: str) -> bool:
        partition = row.partition
        logger.error(
            "%s-%d: what broker %d sent at offset %d is refused: %s",
            partition.topic, partition.partition, partition.leader_id,
            partition.log.log_end_offset, why, extra=logs.seldom(f"refused: {why}"),
        )  # fmt: skip
        self.retries.again(row, STORAGE_RETRY_MS)
        return False

    def _say_when_durable(self, row: CopiedRow) -> None:
        def on_done(fault: Exception | None) -> None:
            if fault is None and self.rows.get(row.partition.key) is row:
                row.link.changed[row] = None

        try:
            self._flush([row.partition.log], on_done)
        except StorageFault as fault:  # as the disk is full
            self._on_storage_fault(row.partition, fault)
            if not row.partition.is_offline:
                self.retries.again(row, STORAGE_RETRY_MS)
