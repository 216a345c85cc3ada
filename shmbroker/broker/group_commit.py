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
"""

from __future__ import annotations

from shmbroker.errors import StorageFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.ipc.peer import Peer
    from shmbroker.replica.partition import Partition

    Waiting = tuple[Peer, int, Partition, int, int, int, int]


class GroupCommit:
    """The acks of one I/O worker that wait for the disk."""

    __slots__ = ("_answer", "_is_syncing", "_sync", "waiting")

    def __init__(
        self,
        sync: Callable[[list[Any], Callable[[Exception | None], None]], None],
        answer: Callable[[Peer, int, Partition, int, int, int, int, str | None], None],
    ) -> None:
        """`sync(logs, on_done)`: make logs durable. `answer`: a row of `waiting`, and a fault."""
        self._sync = sync
        self._answer = answer
        self.waiting: list[Waiting] = []
        """(peer, token, partition, base offset, append time, end offset, deadline) of the next job.
        """
        self._is_syncing = False

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
        """Answer this append once all that its log holds now is durable.

        deadline_ms: 0, or how long it then may wait for the in-sync replicas.
        """
        self.waiting.append(
            (peer, token, partition, base_offset, append_time, end_offset, deadline_ms)
        )

    def start(self, *, at_once: bool = False) -> None:
        """Begin the next job, unless one is under way or nobody waits.

        at_once: beside one that is under way, for the end of the process.
        """
        if not self.waiting or (self._is_syncing and not at_once):
            return
        rows, self.waiting = self.waiting, []
        logs = list(dict.fromkeys(row[2].log for row in rows))
        self._is_syncing = True
        try:
            self._sync(logs, lambda fault: self._on_done(rows, fault))
        except StorageFault as fault:
            self._on_done(rows, fault)

    def _on_done(self, rows: list[Waiting], fault: Exception | None) -> None:
        self._is_syncing = False
        detail = None if fault is None else str(fault)
        for row in rows:
            self._answer(*row, detail)

    def drop_peer(self, peer: Peer) -> None:
        """That network worker is dead: nobody waits for its acks."""
        self.waiting = [row for row in self.waiting if row[0] is not peer]
