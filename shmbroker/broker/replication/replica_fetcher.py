"""Follows partitions that siblings lead: reads what they have, appends it as it is.

    for each leader one link: its session there, the rows that it follows
       READ (what has changed here)  ──►  leader
       READ_DONE (slices)            ◄──  copied from its segment files, checked, appended
                                          the next READ says how far this replica is

Rules of this file:
* A READ is under way at each link, always: the leader answers when it has something to say. If
  something changes here meanwhile, a second one says so and takes the place of the first.
* A batch is taken only if it is whole, right by its CRC, and continues the log. What was read is
  appended with the offsets and epochs that it carries.
* In a new leader epoch the log is compared first: READ names the epoch of its last batch, and where
  the leader's history parts from it, it is cut (KIP-101, KIP-279, KIP-595).
* Never below the high watermark: a leader that lacks what was committed is not followed. It is
  said, the controller is told, and the row waits for another epoch, or for the leader to have it.
  Only where an operator has allowed such leaders is it cut, after what goes was put aside.
* A row that can't go on (an epoch that the leader doesn't know yet, a full disk, a file that is
  still on its way) is read again after a while; the others go on.
* The leader is woken by the last follower alone: one that has something before another in-sync
  follower has it publishes its READ and rings nobody, as the high watermark can't move yet. Each
  looks at the ends of the others, and at the leader's, after it has stored its own and published,
  so of two at least one sees both (`leader_rings`).
* With `shmbroker.ack.durability=fsync` a follower says that it has something when its disk has it.

Source: Kafka's AbstractFetcherThread, ReplicaFetcherThread, KIP-227 (sessions).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from shmbroker import logs
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
from shmbroker.log.quarantine import put_end_aside
from shmbroker.log.retiring import advance_log_start
from shmbroker.log.truncation import truncate_fully, truncate_to
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
    from shmbroker.ipc.passed_files import FileTable

logger = logging.getLogger(__name__)

ROWS_MAX = 32767
"""Partitions that one broker can follow of one leader: `which` is an int16."""
ROWS_LOOKED_AT_MAX = 8
"""Above that, one of them will be worth a ring."""
ASIDE_BYTES_MAX = 64 << 20
"""What is copied before a cut below the high watermark, at most: others wait meanwhile."""
RETRY_MS = 10
STORAGE_RETRY_MS = 1000
AHEAD_RETRY_MS = 1000
"""Before a leader that lacks what is here is asked again."""
SCRATCH_BYTES = 1 << 20

_unpack_header = BATCH_HEADER.unpack_from


class CopiedRow:
    """A followed partition."""

    __slots__ = ("is_compared", "leader_epoch", "link", "partition", "refused_epoch", "which")

    def __init__(self, link: Link, partition: Partition, which: int) -> None:
        self.link = link
        self.partition = partition
        self.which = which
        self.leader_epoch = -1
        self.is_compared = False
        """The leader has found this log to be a part of its own, in this epoch."""
        self.refused_epoch = -1
        """In which it was said that the leader lacks what is here."""


class Link:
    """One leader: the READ under way there, and what is followed of it."""

    __slots__ = ("changed", "files", "free", "freeing", "gone", "is_new", "next_which", "peer",
                 "rows", "token")  # fmt: skip

    def __init__(self, peer: Peer, files: FileTable) -> None:
        self.peer = peer
        self.files = files
        self.rows: dict[int, CopiedRow] = {}
        self.next_which = 0
        self.free: list[int] = []
        """Numbers of rows that mean nothing to the leader any more."""
        self.freeing: list[tuple[int, list[int]]] = []
        """Numbers that a READ has ended, by its token: free once that one or a later is answered,
        as an answer that is on its way may still name them."""
        self.changed: dict[CopiedRow, None] = {}
        """Rows that the next READ names."""
        self.gone: list[int] = []
        """Numbers of rows that the leader is to forget."""
        self.token = 0
        """The token of the last READ; 0 once it is answered."""
        self.is_new = True


class ReplicaFetcher:
    """What one I/O worker follows.

    on_appended: told of each partition that got batches. on_storage_fault(partition, fault): the
    disk refused. on_gap(partition): offsets are missing in what was read (the leader has compacted
    it). on_ahead(partition): its leader lacks committed records that are here.
    is_worth_a_ring(partition): the leader must hear at once how far this replica is.
    flush(logs, on_done): as `PartitionStore.flush`.
    """

    def __init__(
        self,
        links: Mapping[int, tuple[Peer, Any]],
        new_token: Callable[[], int],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        on_appended: Callable[[Partition], None],
        on_storage_fault: Callable[[Partition, StorageFault], None],
        on_gap: Callable[[Partition], None],
        on_ahead: Callable[[Partition], None],
        is_worth_a_ring: Callable[[Partition], bool],
        flush: Callable[..., None],
        broker_id: int,
    ) -> None:
        self.links = {number: Link(*link) for number, link in links.items()}
        """By the broker id of the leader."""
        self.rows: dict[bytes, CopiedRow] = {}
        """By the key of the partition."""
        self._new_token = new_token
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._on_appended = on_appended
        self._on_storage_fault = on_storage_fault
        self._on_gap = on_gap
        self._on_ahead = on_ahead
        self._is_worth_a_ring = is_worth_a_ring
        self._flush = flush
        self.broker_id = broker_id
        self.throttle = ReplicationThrottle()
        self._retries: list[tuple[int, CopiedRow]] = []
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
            which = link.free.pop() if link.free else link.next_which
            if which > ROWS_MAX:
                why = "too many partitions"
                logger.error(
                    "%s can't be followed: %s", partition.topic, why, extra=logs.seldom(why)
                )
                return
            link.next_which = max(link.next_which, which + 1)
            row = link.rows[which] = self.rows[partition.key] = CopiedRow(link, partition, which)
        if row.leader_epoch != partition.leader_epoch:
            row.leader_epoch = partition.leader_epoch
            row.is_compared = False
            link.changed[row] = None

    def unfollow(self, key: bytes) -> None:
        """It is led here now, or no longer here."""
        row = self.rows.pop(key, None)
        if row is None:
            return
        link = row.link
        link.changed.pop(row, None)
        link.rows.pop(row.which, None)
        link.gone.append(row.which)
        self._retries = [retry for retry in self._retries if retry[1] is not row]

    def on_peer_lost(self, peer: Peer) -> None:
        """That sibling is dead: its successor knows nothing of the session."""
        link = self.links.get(peer.number)
        if link is None or link.peer is not peer:
            return
        link.files.clear()
        link.token = 0
        link.is_new = True
        link.free += link.gone
        for _, numbers in link.freeing:
            link.free += numbers
        link.gone, link.freeing = [], []
        for row in link.rows.values():
            row.is_compared = False
            link.changed[row] = None

    def drop_file(self, peer: Peer, file_id: int) -> None:
        """The leader has deleted a file."""
        self.links[peer.number].files.drop(file_id)

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    @property
    def next_ms(self) -> int | None:
        """When some row is due to be read again."""
        return min((due for due, _ in self._retries), default=None)

    def send_all(self) -> None:
        """Have a READ under way at every leader that is followed."""
        if self._retries:
            self._retry()
        for link in self.links.values():
            is_due = link.changed or link.gone or (link.rows and not link.token)
            if is_due and link.peer.incarnation:
                self._send(link)

    def _retry(self) -> None:
        now_ms = self._steady_ms()
        due = [row for due_ms, row in self._retries if due_ms <= now_ms]
        if due:
            self._retries = [retry for retry in self._retries if retry[0] > now_ms]
            for row in due:
                self._read_on(row)

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
        was_unpublished = peer.unpublished
        if not peer.try_send(READ, head + b"".join(parts)):
            return  # its ring is full: tried again next turn
        link.token = token
        link.is_new = False
        if gone:
            del link.gone[: len(gone)]
            link.freeing.append((token, gone))
        # One without rows comes after an answer that told a high watermark alone: ten a second.
        is_urgent = bool(gone) or not 0 < len(rows) <= ROWS_LOOKED_AT_MAX
        for row in rows:
            del link.changed[row]
        if not is_urgent:
            peer.writer.publish()
            is_urgent = any(
                not row.is_compared or self._is_worth_a_ring(row.partition) for row in rows
            )
            peer.unpublished = was_unpublished or is_urgent

    # ── what comes ──────────────────────────────────────────────────────────────────────────────

    def on_read_done(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """One READ_DONE entry."""
        token, count, _ = READ_DONE_HEAD.unpack_from(data, index)
        link = self.links[peer.number]
        if token == link.token:
            link.token = 0  # else another READ has followed it meanwhile, and waits there
        while link.freeing and link.freeing[0][0] <= token:
            link.free += link.freeing.pop(0)[1]
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
            self._fit(row, log_start, end_offset)
            return
        if error == error_codes.OFFSET_MOVED_TO_TIERED_STORAGE:
            self._begin_behind(row, log_start, end_offset)
            return
        if error or epoch != partition.leader_epoch:
            self._again(row, RETRY_MS)
            return
        if end_epoch >= 0:
            self._cut(row, end_epoch, end_offset)
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
        if log_start > log.log_start_offset:
            advance_log_start(log, min(log_start, partition.high_watermark))
        if length:
            if self.broker_id in partition.follower_throttled:
                self.throttle.take(length, self._steady_ms())
            self._read_on(row)

    def _read_on(self, row: CopiedRow) -> None:
        """Have the next READ name it, unless it is throttled and there is no room (KIP-73)."""
        partition = row.partition
        if (
            self.broker_id in partition.follower_throttled
            and self.broker_id not in partition.in_sync_replicas
            and not self.throttle.room(now_ms := self._steady_ms())
        ):
            self._retries.append((now_ms + self.throttle.wait_ms(), row))
        else:
            row.link.changed[row] = None

    def _again(self, row: CopiedRow, delay_ms: int) -> None:
        """Read it again after a while."""
        row.is_compared = False
        self._retries.append((self._steady_ms() + delay_ms, row))

    def _read(self, row: CopiedRow, file_id: int, position: int, length: int) -> memoryview | None:
        """Bytes of the leader's file; None if the row is to be read again, as its descriptor is not
        here or the disk refuses."""
        file = row.link.files.find(file_id)
        if file is None:
            row.link.peer.send(NEED_FILE, TOKEN.pack(file_id))
            self._again(row, RETRY_MS)
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
            self._again(row, STORAGE_RETRY_MS)
            return None
        if count != length:
            self._again(row, RETRY_MS)
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
                if base_offset != log.log_end_offset:
                    if base_offset + last_offset_delta < log.log_end_offset:
                        at = batch_end  # read twice
                        continue
                    if base_offset < log.log_end_offset:
                        return self._refuse(row, f"offset {base_offset} is here already")
                    log.skip_to(base_offset)
                    is_gap = True
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
            self._again(row, STORAGE_RETRY_MS)
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
        self._again(row, STORAGE_RETRY_MS)
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
                self._again(row, STORAGE_RETRY_MS)

    # ── cutting ─────────────────────────────────────────────────────────────────────────────────

    def _cut(self, row: CopiedRow, end_epoch: int, end_offset: int) -> None:
        """The leader's history parts from this one at the end of that epoch."""
        log = row.partition.log
        own_epoch, own_end = log.leader_epochs.end_offset_for(end_epoch, log.log_end_offset)
        offset = min(end_offset, log.log_end_offset)
        if own_epoch >= 0:
            offset = min(offset, own_end) if own_epoch == end_epoch else min(own_end, offset)
        self._truncate(row, max(offset, log.log_start_offset))

    def _fit(self, row: CopiedRow, log_start: int, end_offset: int) -> None:
        """The leader doesn't have the offset that this log goes on at."""
        partition = row.partition
        log = partition.log
        if log.log_end_offset < log_start:
            if self.broker_id in partition.in_sync_replicas and partition.high_watermark:
                # Nothing is retained beyond what all in-sync replicas have.
                self._stop(row, log_start)
                return
            logger.warning(
                "%s-%d begins anew at offset %d: its leader has nothing before",
                partition.topic, partition.partition, log_start,
                extra=logs.seldom("a follower begins anew"),
            )  # fmt: skip
            self._change(row, lambda: truncate_fully(log, log_start))
        elif log.log_end_offset > end_offset >= 0:
            self._truncate(row, end_offset)
        else:
            self._again(row, RETRY_MS)

    def _begin_behind(self, row: CopiedRow, log_start: int, local_start: int) -> None:
        """The leader has that offset in the remote store alone: go on where its own log begins.

        The log start offset stays the leader's: who leads serves the rest from the store.
        """
        partition = row.partition
        log = partition.log
        if not partition.log.config.is_tiered or local_start <= log.log_end_offset:
            self._again(row, RETRY_MS)
            return
        logger.info(
            "%s-%d goes on at offset %d: what is before is in the remote store",
            partition.topic, partition.partition, local_start,
        )  # fmt: skip
        self._change(row, lambda: truncate_fully(log, local_start, log_start))

    def _truncate(self, row: CopiedRow, offset: int) -> None:
        partition = row.partition
        if offset < partition.high_watermark:
            if not (partition.may_be_cut or partition.log.config.is_unclean_allowed):
                self._stop(row, offset)
                return
            if not self._put_aside(row, offset):
                return
        self._change(row, lambda: truncate_to(partition.log, offset))

    def _stop(self, row: CopiedRow, offset: int) -> None:
        """The leader lacks what was committed: follow it no further, and keep what is here."""
        partition = row.partition
        if row.refused_epoch != partition.leader_epoch:
            row.refused_epoch = partition.leader_epoch
            logger.error(
                "%s-%d: broker %d leads it and lacks what was committed: here it ends at offset "
                "%d, with a high watermark of %d, and would have to be cut to %d. Nothing is cut; "
                "this replica does not follow that leader",
                partition.topic, partition.partition, partition.leader_id,
                partition.log.log_end_offset, partition.high_watermark, offset,
            )  # fmt: skip
            self._on_ahead(partition)
        self._again(row, AHEAD_RETRY_MS)

    def _put_aside(self, row: CopiedRow, offset: int) -> bool:
        """Keep a copy of what is cut below the high watermark; False if there is no room for it."""
        partition = row.partition
        log = partition.log
        try:
            kept = put_end_aside(log, offset, ASIDE_BYTES_MAX)
        except StorageFault as fault:
            self._on_storage_fault(partition, fault)
            self._again(row, STORAGE_RETRY_MS)
            return False
        logger.warning(
            "%s-%d is cut from offset %d to %d, below its high watermark %d: its leader was "
            "elected uncleanly. What goes is %s",
            partition.topic, partition.partition, log.log_end_offset, offset,
            partition.high_watermark, "in quarantine/" if kept else "lost, too much to copy",
        )  # fmt: skip
        return True

    def _change(self, row: CopiedRow, work: Callable[[], Any]) -> None:
        partition = row.partition
        try:
            work()
        except StorageFault as fault:
            self._on_storage_fault(partition, fault)
            self._again(row, STORAGE_RETRY_MS)
            return
        partition.on_truncated()
        row.link.changed[row] = None
