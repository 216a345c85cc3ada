"""Acks that wait for the in-sync replicas: acks=all where there is more than one.

They wait at their partition, in the order of their offsets, for its high watermark. Whoever moves
that calls `complete`; a change of leader or too few in-sync replicas ends the wait with an error
that clients retry, and so does the time that the client gave it.

Rules of this file:
* Every ack that came in by `add` goes out exactly once, unless its network worker is dead.
* Expiry looks at all that wait, some times a second: a wait is rare in its length, not in number.

Source: Kafka's DelayedProduce. Unlike there, acks whose in-sync replicas get too few are told so
(NOT_ENOUGH_REPLICAS_AFTER_APPEND) at once, not when their time is over.
"""

from shmbroker.ipc.operation_layout import APPENDED, APPENDED_HEAD
from shmbroker.ipc.peer import Peer
from shmbroker.replica.partition import Partition
from shmbroker.wire import error_codes

EXPIRY_INTERVAL_MS = 100


class DelayedProduces:
    """Those of one I/O worker."""

    __slots__ = ("_next_expiry_ms", "partitions")

    def __init__(self) -> None:
        self.partitions: dict[Partition, None] = {}
        """Those with acks that wait."""
        self._next_expiry_ms = 0

    def add(
        self,
        peer: Peer,
        token: int,
        partition: Partition,
        base_offset: int,
        append_time: int,
        end_offset: int,
        deadline_ms: int,
    ) -> None:
        """Answer when the high watermark is at `end_offset`."""
        partition.waiting.append((end_offset, peer, token, base_offset, append_time, deadline_ms))
        self.partitions[partition] = None

    def complete(self, partition: Partition) -> None:
        """Its high watermark has moved."""
        waiting = partition.waiting
        high_watermark = partition.high_watermark
        start = partition.log.log_start_offset
        pack = APPENDED_HEAD.pack
        while waiting and waiting[0][0] <= high_watermark:
            _, peer, token, base_offset, append_time, _ = waiting.popleft()
            peer.send(APPENDED, pack(token, 0, 0, 0, base_offset, append_time, start))
        if not waiting:
            self.partitions.pop(partition, None)

    def fail(self, partition: Partition, error_code: int) -> None:
        """Nobody here can say any more when it will be on all of them."""
        while partition.waiting:
            _refuse(partition.waiting.popleft(), error_code)
        self.partitions.pop(partition, None)

    def look_at(self, partition: Partition) -> None:
        """Its leader or its in-sync replicas have changed."""
        if not partition.is_leader:
            self.fail(partition, error_codes.NOT_LEADER_OR_FOLLOWER)
        elif partition.is_under_min_in_sync:
            self.fail(partition, error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def expire(self, now_ms: int) -> None:
        """End those whose time is over."""
        if now_ms < self._next_expiry_ms:
            return
        self._next_expiry_ms = now_ms + EXPIRY_INTERVAL_MS
        for partition in list(self.partitions):
            waiting = partition.waiting
            if all(row[5] > now_ms for row in waiting):
                continue
            for row in [row for row in waiting if row[5] <= now_ms]:
                waiting.remove(row)
                _refuse(row, error_codes.REQUEST_TIMED_OUT)
            if not waiting:
                del self.partitions[partition]

    def drop_peer(self, peer: Peer) -> None:
        """That network worker is dead: nobody waits for its acks."""
        for partition in list(self.partitions):
            kept = [row for row in partition.waiting if row[1] is not peer]
            partition.waiting.clear()
            partition.waiting.extend(kept)
            if not kept:
                del self.partitions[partition]


def _refuse(row: tuple[int, Peer, int, int, int, int], error_code: int) -> None:
    row[1].send(APPENDED, APPENDED_HEAD.pack(row[2], error_code, 0, 0, -1, -1, -1))
