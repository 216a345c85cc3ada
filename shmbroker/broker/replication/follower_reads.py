"""READ by followers, on the leader's side: a session for each sibling that follows.

    follower   READ: what I have read of these, and since when    (others as before)
    leader     … something is appended, or a high watermark moved …
               READ_DONE: slices up to the log end offset, high watermarks

Rules of this file:
* A follower has one READ under way. What it names goes into its session, so that neither side walks
  all partitions for one that changed: an append marks the rows of its partition `ready`.
* The offset that a follower reads from says what it has; that moves the high watermark. A row whose
  slice is on its way waits for that before it is ready again.
* A high watermark by itself is worth no wake-up: it goes along with the next answer, or alone after
  HIGH_WATERMARK_DELAY_MS. A log start that DeleteRecords has raised is told at once, as its answer
  waits until the followers begin there.
* A follower whose log diverges is told where (KIP-595), one out of range where the log begins, one
  whose offset only the remote store has where the local log does (KIP-405).
* A row of a throttled replica that is not in sync is held back while there is no room (KIP-73).
"""

from collections.abc import Callable

from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    READ_DONE,
    READ_DONE_HEAD,
    READ_FLAG_NEW,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
)
from shmbroker.ipc.peer import Peer
from shmbroker.log.segment import Segment
from shmbroker.replica.follower import UNKNOWN, may_join
from shmbroker.replica.follower_session import FollowedRow, FollowerSession
from shmbroker.replica.partition import Partition, not_led_error
from shmbroker.replica.throttle import ReplicationThrottle
from shmbroker.wire import error_codes

SLICE_BYTES_MAX = 1 << 20
"""The bytes of one partition in one answer (Kafka: replica.fetch.max.bytes)."""
ANSWER_BYTES_MAX = 4 << 20
"""One answer's bytes; Kafka's replica.fetch.response.max.bytes is 10 MiB, but is copied there."""
INLINE_SLICE_BYTES = 8192
"""Slices that go in the ring entry: a copy of so few bytes costs less than reading the file."""
INLINE_BYTES = 128 << 10
HIGH_WATERMARK_DELAY_MS = 100
LOOK_AGAIN_MS = 2
LOOK_AGAIN_MS_MAX = 50
"""A READ that comes while there is something to say may come without a ring, where its sender
looked at other partitions than those: so it is looked for every 2 ms, for a while after the last
answer. (`LeaderRings.is_worth_one` looks at the rows that a READ names; all may be thousands.)
"""


_pack_slice = READ_SLICE.pack
_OUT_OF_RANGE = error_codes.OFFSET_OUT_OF_RANGE


class FollowerReads:
    """The reads that followers send to one I/O worker, which is their leader `broker_id`. `moved`
    collects partitions whose high watermark has moved, `may_join` those whose in-sync replicas a
    follower could join."""

    def __init__(
        self,
        partitions: dict[bytes, Partition],
        steady_ms: Callable[[], int],
        pass_file: Callable[[Peer, Segment], None],
        moved: set[Partition],
        on_storage_fault: Callable[[Partition, StorageFault], None],
        on_log_start: Callable[[Partition], object],
        broker_id: int,
    ) -> None:
        """on_log_start: told of each partition of which a follower's log begins elsewhere."""
        self._on_storage_fault = on_storage_fault
        self._on_log_start = on_log_start
        self.partitions = partitions
        self.steady_ms = steady_ms
        self.pass_file = pass_file
        self.moved = moved
        self.may_join: set[Partition] = set()
        self.sessions: dict[int, FollowerSession] = {}
        self.broker_id = broker_id
        self.throttle = ReplicationThrottle()
        self.held: dict[FollowedRow, None] = {}
        """Rows that wait for room."""
        self.held_until_ms = 0

    # ── what followers ask ──────────────────────────────────────────────────────────────────────

    def on_read(self, peer: Peer, data: memoryview, index: int) -> None:
        """One READ entry with READ_FLAG_FOLLOWER."""
        token, _, _, _, _, flags, count, _ = READ_HEAD.unpack_from(data, index)
        session = self.sessions.get(peer.slot)
        if session is None or flags & READ_FLAG_NEW:
            self.drop_peer(peer.slot)
            session = self.sessions[peer.slot] = FollowerSession(peer)
        session.token = token
        at = index + READ_HEAD.size
        size = READ_PARTITION.size
        rows = session.rows
        for place in range(at, at + size * count, size):
            key, which, epoch, last_epoch, offset, high_watermark, log_start = (
                READ_PARTITION.unpack_from(data, place)
            )
            row = rows.get(which)
            if offset < 0:
                if row is not None:
                    self._forget(row)
                continue
            partition = self.partitions.get(key)
            if row is None:
                row = rows[which] = FollowedRow(session, which)
            if row.partition is not partition:
                self._detach(row)
                row.partition = partition
                if partition is not None:
                    partition.followed_rows.append(row)
            row.fetch_offset = offset
            row.known_high_watermark = high_watermark
            row.known_log_start = log_start
            row.diverging = None
            row.error = self._judge(row, partition, epoch, last_epoch, offset)
            row.is_waiting = False
            self.held.pop(row, None)
            if row.error or row.diverging:
                session.ready[row] = None
                continue
            assert partition is not None
            self._note(partition, peer.number, offset, log_start)
            if offset < partition.log.log_end_offset or log_start < partition.log.log_start_offset:
                session.ready[row] = None
            else:
                row.is_waiting = True
                if (
                    high_watermark != partition.high_watermark
                    or log_start != partition.log.log_start_offset
                ):
                    self._say_behind(session)

    def _judge(
        self,
        row: FollowedRow,
        partition: Partition | None,
        epoch: int,
        last_epoch: int,
        offset: int,
    ) -> int:
        """The error code of a row that can't be served; sets `row.diverging`."""
        if partition is None or not partition.is_leader:
            return not_led_error(partition)
        if epoch != partition.leader_epoch:
            if epoch < partition.leader_epoch:
                return error_codes.FENCED_LEADER_EPOCH
            return error_codes.UNKNOWN_LEADER_EPOCH
        log = partition.log
        if last_epoch >= 0:
            end_epoch, end_offset = log.leader_epochs.end_offset_for(last_epoch, log.log_end_offset)
            if end_epoch < 0:
                return _OUT_OF_RANGE
            if end_epoch < last_epoch or end_offset < offset:
                row.diverging = (end_epoch, end_offset)
                return 0
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return _OUT_OF_RANGE
        if offset < log.local_start_offset:
            return error_codes.OFFSET_MOVED_TO_TIERED_STORAGE
        return 0

    def _note(self, partition: Partition, broker_id: int, offset: int, log_start: int) -> None:
        """A follower has everything from `log_start` to before `offset`."""
        follower = partition.followers.get(broker_id)
        if follower is None:
            return
        if log_start != follower.log_start_offset:
            follower.log_start_offset = log_start
            self._on_log_start(partition)
        if offset < follower.log_end_offset:
            return
        follower.log_end_offset = offset
        if offset >= partition.log.log_end_offset:
            follower.caught_up_ms = self.steady_ms()
        if partition.advance_high_watermark():
            self.moved.add(partition)
        if (
            broker_id not in partition.in_sync_replicas
            and partition.pending_in_sync is None
            and (may_join(partition, follower))
        ):
            self.may_join.add(partition)

    # ── what happens here ───────────────────────────────────────────────────────────────────────

    def on_appended(self, partition: Partition) -> None:
        """Tell a partition's followers that it has new batches, or none (a group's records may be
        refused). A follower that has all waits on: an answer without a slice would be followed by
        no READ."""
        end_offset = partition.log.log_end_offset
        for row in partition.followed_rows:
            if row.is_waiting and row.fetch_offset < end_offset:
                row.is_waiting = False
                row.session.ready[row] = None
                follower = partition.followers.get(row.session.peer.number)
                if follower is not None:
                    follower.caught_up_ms = self.steady_ms()

    def on_log_start(self, partition: Partition) -> None:
        """Tell a partition's followers at once that it begins later."""
        for row in partition.followed_rows:
            if row.is_waiting:
                row.is_waiting = False
                row.session.ready[row] = None

    def on_high_watermark(self, partition: Partition) -> None:
        """Let the followers know that a high watermark has moved, not at once."""
        for row in partition.followed_rows:
            if row.is_waiting:
                self._say_behind(row.session)

    def _say_behind(self, session: FollowerSession) -> None:
        if not session.behind_since_ms:
            session.behind_since_ms = self.steady_ms()

    def on_leadership(self, partition: Partition) -> None:
        """Note that a partition's leader, epoch or replicas have changed: followers read again when
        they know too."""
        for row in list(partition.followed_rows):
            if row in self.held:
                del self.held[row]
                row.session.ready[row] = None  # perhaps it is in sync now
            if not partition.is_leader:
                row.error = not_led_error(partition)
                row.is_waiting = False
                row.session.ready[row] = None

    def on_deleted(self, partition: Partition) -> None:
        for row in list(partition.followed_rows):
            self._forget(row)

    @property
    def next_ms(self) -> int | None:
        """When `answer_all` has something to do though nothing happens."""
        due = [self.held_until_ms] if self.held else []
        for session in self.sessions.values():
            if session.token:
                if session.behind_since_ms:
                    due.append(session.behind_since_ms + HIGH_WATERMARK_DELAY_MS)
            elif session.ready:
                steady_ms = self.steady_ms()
                if steady_ms < session.answered_ms + LOOK_AGAIN_MS_MAX:
                    due.append(steady_ms + LOOK_AGAIN_MS)
        return min(due, default=None)

    def answer_all(self) -> None:
        """Answer the READs about which there is something to say."""
        if self.held and self.held_until_ms <= self.steady_ms():
            for row in self.held:
                row.session.ready[row] = None
            self.held.clear()
        for session in self.sessions.values():
            if not session.token:
                continue
            if session.ready:
                self._answer(session)
            elif (
                session.behind_since_ms
                and session.behind_since_ms + HIGH_WATERMARK_DELAY_MS <= self.steady_ms()
            ):
                self._answer_behind(session)

    def _answer(self, session: FollowerSession) -> None:
        peer = session.peer
        parts: list[bytes] = []
        inline: list[bytes] = []
        inline_bytes = total = 0
        room = peer.writer.payload_bytes_max - READ_DONE_HEAD.size
        inline_max = min(INLINE_BYTES, room >> 1)
        rows_max = (room - inline_max) // READ_SLICE.size
        for row in list(session.ready)[:rows_max]:
            del session.ready[row]
            partition = row.partition
            error, diverging, length, file_id, position = row.error, row.diverging, 0, 0, 0
            if partition is not None and not error and diverging is None:
                log = partition.log
                bytes_max = min(SLICE_BYTES_MAX, ANSWER_BYTES_MAX - total)
                is_throttled = self.broker_id in partition.leader_throttled
                if is_throttled and peer.number not in partition.in_sync_replicas:
                    bytes_max = min(bytes_max, self.throttle.room(self.steady_ms()))
                    if not bytes_max:
                        self._hold(row)
                        continue
                found = self._look_up(partition, row.fetch_offset, bytes_max, total == 0)
                if isinstance(found, int):
                    error = found
                else:
                    segment, position, length = found
                    if not length:
                        if row.fetch_offset < log.log_end_offset:
                            session.ready[row] = None  # in the next answer
                            continue
                        row.is_waiting = True  # no READ comes for an answer without a slice
                    total += length
                    if is_throttled:
                        self.throttle.take(length, self.steady_ms())
                    if (
                        0 < length <= INLINE_SLICE_BYTES
                        and segment.map is not None
                        and inline_bytes + length <= inline_max
                    ):
                        inline.append(segment.map[position : position + length])
                        position = inline_bytes
                        inline_bytes += length
                    elif length:
                        try:
                            self.pass_file(peer, segment)
                            file_id = segment.file_id
                        except StorageFault as fault:
                            error, length, position = self._refused(partition, fault), 0, 0
            parts.append(_slice_of(row, error, diverging, length, file_id, position))
            if total >= ANSWER_BYTES_MAX:
                break
        if parts:
            self._send(session, parts, inline)

    def _look_up(
        self, partition: Partition, offset: int, bytes_max: int, min_one_batch: bool
    ) -> tuple[Segment, int, int] | int:
        """(segment, position, length), or an error code. The follower judges every batch itself."""
        log = partition.log
        end_offset = log.log_end_offset
        try:
            found = log.read(offset, bytes_max, end_offset, min_one_batch, is_judged=False)
        except StorageFault as fault:
            return self._refused(partition, fault)
        if found is not None:
            return found
        if log.log_start_offset <= offset < log.local_start_offset:
            return error_codes.OFFSET_MOVED_TO_TIERED_STORAGE
        return _OUT_OF_RANGE

    def _refused(self, partition: Partition, fault: StorageFault) -> int:
        """The error code of a row whose log the disk does not give, which is told."""
        self._on_storage_fault(partition, fault)
        return error_codes.KAFKA_STORAGE_ERROR

    def _hold(self, row: FollowedRow) -> None:
        self.held_until_ms = self.steady_ms() + self.throttle.wait_ms()
        self.held[row] = None

    def _answer_behind(self, session: FollowerSession) -> None:
        """Tell high watermarks and log starts alone."""
        session.behind_since_ms = 0
        rows_max = (session.peer.writer.payload_bytes_max - 64) // READ_SLICE.size
        parts = []
        for row in session.rows.values():
            partition = row.partition
            if (
                row.is_waiting
                and partition is not None
                and (
                    row.known_high_watermark != partition.high_watermark
                    or row.known_log_start != partition.log.log_start_offset
                )
            ):
                row.known_high_watermark = partition.high_watermark
                row.known_log_start = partition.log.log_start_offset
                parts.append(_slice_of(row, 0, None, 0, 0, 0))
                if len(parts) == rows_max:
                    self._say_behind(session)
                    break
        if parts:
            self._send(session, parts, [])

    def _send(self, session: FollowerSession, parts: list[bytes], inline: list[bytes]) -> None:
        head = READ_DONE_HEAD.pack(session.token, len(parts), 0)
        session.token = 0
        session.answered_ms = self.steady_ms()
        session.peer.send(READ_DONE, b"".join((head, *parts, *inline)))

    # ── coming and going ────────────────────────────────────────────────────────────────────────

    def drop_peer(self, slot: int) -> None:
        """Forget what a follower had: it is dead, or begins again."""
        session = self.sessions.pop(slot, None)
        if session is None:
            return
        for row in list(session.rows.values()):
            partition = row.partition
            if partition is not None:
                follower = partition.followers.get(session.peer.number)
                if follower is not None:
                    follower.log_end_offset = follower.log_start_offset = UNKNOWN
            self._detach(row)

    def _forget(self, row: FollowedRow) -> None:
        self._detach(row)
        row.session.ready.pop(row, None)
        row.session.rows.pop(row.which, None)

    def _detach(self, row: FollowedRow) -> None:
        self.held.pop(row, None)
        if row.partition is not None and row in row.partition.followed_rows:
            row.partition.followed_rows.remove(row)
        row.partition = None


def _slice_of(
    row: FollowedRow,
    error: int,
    diverging: tuple[int, int] | None,
    length: int,
    file_id: int,
    position: int,
) -> bytes:
    partition = row.partition
    if partition is None:
        return _pack_slice(error, row.which, 0, -1, -1, -1, 0, 0, -1, -1, -1)
    high_watermark = partition.high_watermark
    log_start = partition.log.log_start_offset
    row.known_high_watermark = high_watermark
    row.known_log_start = log_start
    end_epoch, end_offset = diverging or (-1, -1)
    if error == _OUT_OF_RANGE:
        end_offset = partition.log.log_end_offset
    elif error == error_codes.OFFSET_MOVED_TO_TIERED_STORAGE:
        end_offset = partition.log.local_start_offset
    return _pack_slice(
        error, row.which, length, high_watermark, high_watermark, log_start,
        file_id, position, end_epoch, partition.leader_epoch, end_offset,
    )  # fmt: skip
