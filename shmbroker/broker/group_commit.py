"""Group commit: acks that wait until what they promise is on the disk.

    appends of a turn ──► waiting ──► one job: fdatasync of every log in it ──► answered together
                             ▲                          │
                             └── appends meanwhile ─────┘ the next job

Rules of this file:
* One job at a time, for all partitions of the log directory: whatever arrives while the disk works
  goes into the next one, so the busier it is, the more acks share an fdatasync.
* Which acks wait is the partition's matter: with `shmbroker.ack.durability=fsync` all of them, with
  `flush.messages` those that make a log reach it.
* A failed fdatasync fences the log directory (`partition_store`); who waits is told so.
* A job that can't begin, as the disk is full, is tried again for what is wanted without an ack, as
  nobody else would ask for that. It is a job of its own then: it fails no ack of another partition.
"""

from __future__ import annotations

from shmbroker.broker.waiting_ack import ACK_PARTITION, ACK_PEER
from shmbroker.errors import StorageFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.broker.waiting_ack import WaitingAck
    from shmbroker.ipc.peer import Peer
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.replica.partition import Partition


class GroupCommit:
    """The acks of one I/O worker that wait for the disk."""

    __slots__ = (
        "_answer",
        "_has_failed",
        "_is_here",
        "_is_syncing",
        "_on_synced",
        "_sync",
        "waiting",
        "wanted",
    )

    def __init__(
        self,
        sync: Callable[[list[PartitionLog], Callable[[Exception | None], None]], None],
        answer: Callable[[WaitingAck, str | None], None],
        on_synced: Callable[[Partition], None],
        is_here: Callable[[Partition], bool],
    ) -> None:
        """`sync(logs, on_done)`: make logs durable. `answer`: an ack, and a fault. on_synced: one
        of `wanted` is durable. is_here: whether a partition was not deleted or moved away."""
        self._sync = sync
        self._answer = answer
        self._on_synced = on_synced
        self._is_here = is_here
        self.wanted: dict[Partition, None] = {}
        """What the next job makes durable for the high watermark alone: no ack waits."""
        self.waiting: list[WaitingAck] = []
        """Acks that wait for the next job."""
        self._is_syncing = False
        self._has_failed = False
        """Whether some of `wanted` could not be flushed the last time."""

    def add(self, ack: WaitingAck) -> None:
        """Answer this append once all that its log holds now is durable."""
        self.waiting.append(ack)

    def want(self, partition: Partition) -> None:
        """Make durable what its log holds now."""
        self.wanted[partition] = None

    def start(self, *, at_once: bool = False) -> None:
        """Begin the next job, unless one is under way or nobody waits.

        at_once: beside one that is under way, for the end of the process.
        """
        if not (self.waiting or self.wanted) or (self._is_syncing and not at_once):
            return
        if self._has_failed and self.wanted and not at_once:
            wanted, self.wanted = self.wanted, {}
            if self._begin([], wanted):
                self._has_failed = False
                return
            if not self.waiting:
                return
            acks, self.waiting = self.waiting, []
            self._begin(acks, {})
            return
        acks, self.waiting = self.waiting, []
        wanted, self.wanted = self.wanted, {}
        self._begin(acks, wanted)

    def _begin(self, acks: list[WaitingAck], wanted: dict[Partition, None]) -> bool:
        """Have a job run; False if it can't, which the acks are told."""
        logs = [ack[ACK_PARTITION].log for ack in acks] + [one.log for one in wanted]
        self._is_syncing = True
        try:
            self._sync(list(dict.fromkeys(logs)), lambda fault: self._on_done(acks, wanted, fault))
        except StorageFault as fault:
            # One that is gone for good would fail every job after this.
            left = [one for one in wanted if not one.is_offline and self._is_here(one)]
            self.wanted.update(dict.fromkeys(left))
            self._has_failed |= bool(left)
            self._on_done(acks, {}, fault)
            return False
        return True

    def _on_done(
        self, acks: list[WaitingAck], wanted: dict[Partition, None], fault: Exception | None
    ) -> None:
        self._is_syncing = False
        detail = None if fault is None else str(fault)
        for ack in acks:
            self._answer(ack, detail)
        if fault is None:
            for partition in wanted:
                self._on_synced(partition)

    def drop_peer(self, peer: Peer) -> None:
        """Drop the acks that a dead network worker waits for."""
        self.waiting = [ack for ack in self.waiting if ack[ACK_PEER] is not peer]
