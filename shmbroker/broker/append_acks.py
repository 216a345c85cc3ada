"""The acks of batches that are in the log: given at once, or when others have the batch, too.

   stored ──► the disk is waited for?       group_commit ──► on_durable ──┐
          └─► the in-sync replicas are?     delayed ◄─────────────────────┤
          └─► neither: answered at once                    answered ◄─────┘

Rules of this file:
* acks=1 waits for the disk where the partition says so (`group_commit`), acks=all for the in-sync
  replicas besides (`delayed_produce`).
* What a coordinator appends waits for nobody here: its answers look at the high watermark, which
  goes no further than the disk where the disk is waited for.
"""

from __future__ import annotations

from shmbroker.broker.append_answers import answer, refuse
from shmbroker.broker.delayed_produce import DelayedProduces
from shmbroker.broker.group_commit import GroupCommit
from shmbroker.ipc.operation_layout import ACKS_ALL
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.broker.waiting_ack import WaitingAck
    from shmbroker.ipc.peer import Peer
    from shmbroker.replica.partition import Partition, Partitions

    Waiting = tuple[int, Partition, int, int, int]
    """An ack: token, partition, base offset, end offset, how long it waits in ms."""


class AppendAcks:
    """The acks of one I/O worker that wait for the disk or for replicas."""

    def __init__(
        self, partitions: Partitions, sync: Callable[..., None], steady_ms: Callable[[], int]
    ) -> None:
        """sync: makes logs durable, as `GroupCommit` says. steady_ms: what waits go by."""
        self.steady_ms = steady_ms
        self.appended: set[Partition] = set()
        """Partitions that got new batches."""
        self.moved: set[Partition] = set()
        """Partitions whose high watermark moved without an append."""
        self.group_commit = GroupCommit(
            sync,
            self.on_durable,
            self._on_synced,
            partitions.holds,
        )
        self.delayed = DelayedProduces()

    def acknowledge(
        self,
        peer: Peer,
        token: int,
        acks: int,
        timeout_ms: int,
        partition: Partition,
        base_offset: int,
        append_time: int,
    ) -> int:
        """What `Appender.append` returns for a batch that is stored: acks may wait for the disk or
        for the in-sync replicas."""
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
            answer(peer, token, base_offset, append_time, log.log_start_offset)
            return -1
        return base_offset

    def let_wait(self, peer: Peer, waiting: list[Waiting]) -> None:
        """Have acks that the kernel left wait for the replicas."""
        steady_ms = self.steady_ms()
        for token, partition, base_offset, end, timeout_ms in waiting:
            self.delayed.add((peer, token, partition, base_offset, -1, end, steady_ms + timeout_ms))

    def acknowledge_again(
        self,
        peer: Peer,
        token: int,
        acks: int,
        timeout_ms: int,
        partition: Partition,
        base_offset: int,
        append_time: int,
        end_offset: int,
    ) -> None:
        """Acknowledge a batch that was stored before, and came again."""
        ack = (
            peer, token, partition, base_offset, append_time, end_offset,
            self.steady_ms() + timeout_ms if acks == ACKS_ALL else 0,
        )  # fmt: skip
        if partition.is_fsync and base_offset >= partition.log.recovery_point:
            self.group_commit.add(ack)
        else:
            self.on_durable(ack, None)

    def on_stored(self, partition: Partition) -> None:
        """A coordinator has appended; where acks wait for the disk, its answers do too."""
        self.appended.add(partition)
        log = partition.log
        if log.log_end_offset - log.recovery_point >= partition.flush_messages:
            self.group_commit.want(partition)

    def _on_synced(self, partition: Partition) -> None:
        """What nobody is answered for is on the disk."""
        if partition.advance_high_watermark():
            self.moved.add(partition)

    def on_durable(self, ack: WaitingAck, fault: str | None) -> None:
        """The disk has it or has failed; with a deadline, the in-sync replicas must have it too."""
        peer, token, partition, base_offset, append_time, end_offset, deadline_ms = ack
        if fault is not None:
            refuse(peer, token, error_codes.KAFKA_STORAGE_ERROR, fault)
            return
        self._on_synced(partition)
        if deadline_ms and partition.high_watermark < end_offset:
            if not partition.is_leader or partition.is_under_min_in_sync:
                error = error_codes.NOT_LEADER_OR_FOLLOWER
                if partition.is_leader:
                    error = error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND
                refuse(peer, token, error, None)
                return
            self.delayed.add(ack)
            return
        answer(peer, token, base_offset, append_time, partition.log.log_start_offset)
