"""Acks that wait for the in-sync replicas: acks=all where there is more than one.

They wait by partition, in the order of their offsets, for its high watermark. What moves
that calls `complete`; a change of leader or too few in-sync replicas ends the wait with an error
that clients retry, and so does the time that the client gave it.

Rules of this file:
* Every ack that came in by `add` goes out exactly once, unless its network worker is dead.
* Expiry looks at all that wait, some times a second: a wait is rare in its length, not in number.

Source: Kafka's DelayedProduce. Unlike there, acks whose in-sync replicas get too few are told so
(NOT_ENOUGH_REPLICAS_AFTER_APPEND) at once, not when their time is over.
"""

from shmbroker.broker.waiting_ack import (
    ACK_DEADLINE_MS,
    ACK_END_OFFSET,
    ACK_PARTITION,
    ACK_PEER,
    ACK_TOKEN,
    WaitingAck,
)
from shmbroker.ipc.operation_layout import APPENDED, APPENDED_HEAD
from shmbroker.ipc.peer import Peer
from shmbroker.replica.offset_waits import OffsetWaits
from shmbroker.replica.partition import Partition
from shmbroker.wire import error_codes

EXPIRY_INTERVAL_MS = 100


class DelayedProduces(OffsetWaits[WaitingAck]):
    """The Produces of one broker that wait for their replicas."""

    __slots__ = ("_next_expiry_ms", "delayed", "expired")

    def __init__(self) -> None:
        super().__init__()
        self._next_expiry_ms = 0
        self.delayed = self.expired = 0
        """How many have waited, and how many of them in vain."""

    def add(self, ack: WaitingAck) -> None:
        """Answer when the high watermark is at its end offset."""
        self.wait(ack[ACK_PARTITION], ack[ACK_END_OFFSET], ack)
        self.delayed += 1

    def complete(self, partition: Partition) -> None:
        """Answer the acks that a partition's high watermark has reached."""
        start = partition.log.log_start_offset
        pack = APPENDED_HEAD.pack
        for peer, token, _, base_offset, append_time, _, _ in self.due(partition):
            peer.send(APPENDED, pack(token, 0, 0, 0, base_offset, append_time, start))

    def fail(self, partition: Partition, error_code: int) -> None:
        """Answer acks with an error: this broker can't tell any more when all replicas have the
        batches."""
        for ack in self.take(partition):
            _refuse(ack, error_code)

    def look_at(self, partition: Partition) -> None:
        """Look at the acks of a partition whose leader or in-sync replicas have changed."""
        if not partition.is_leader:
            self.fail(partition, error_codes.NOT_LEADER_OR_FOLLOWER)
        elif partition.is_under_min_in_sync:
            self.fail(partition, error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def expire(self, steady_ms: int) -> None:
        """End those whose time is over."""
        if steady_ms < self._next_expiry_ms:
            return
        self._next_expiry_ms = steady_ms + EXPIRY_INTERVAL_MS
        for ack in self.drop_where(lambda ack: ack[ACK_DEADLINE_MS] <= steady_ms):
            self.expired += 1
            _refuse(ack, error_codes.REQUEST_TIMED_OUT)

    def drop_peer(self, peer: Peer) -> None:
        """Drop the acks that a dead network worker waits for."""
        self.drop_where(lambda ack: ack[ACK_PEER] is peer)


def _refuse(ack: WaitingAck, error_code: int) -> None:
    head = APPENDED_HEAD.pack(ack[ACK_TOKEN], error_code, 0, 0, -1, -1, -1)
    ack[ACK_PEER].send(APPENDED, head)
