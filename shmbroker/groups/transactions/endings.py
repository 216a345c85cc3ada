"""The ends of transactions: from the decision, over its markers, to the record that says so.

    Prepare is appended ──► on its in-sync replicas ──► markers to all partitions
       (`begin`)              (`send_prepared`)         └► all are written ──► Complete
                                                              (`on_marked`)

Rules of this file:
* Markers leave only when the in-sync replicas have the decision: a successor finds the same one, or
  one that nobody has heard of.
* What is prepared is completed, here or by the next coordinator of the id. A Complete that can't be
  stored is tried again.
* Markers of an id that another broker coordinates by now end nothing here (`is_void`).

Source: KIP-98, KIP-890; Kafka's TransactionCoordinator, TransactionMarkerChannelManager.
"""

from __future__ import annotations

from shmbroker.groups.transactions.transaction import PREPARE_COMMIT, completed
from shmbroker.groups.transactions.transaction_table import RETRY_MS
from shmbroker.records.end_marker import EPOCH_BUMPS_FROM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.groups.transactions.transaction_table import (
        Entry,
        TransactionShard,
        TransactionTable,
    )


class Markers:
    """The markers that end one transaction: to be written to each of its partitions."""

    __slots__ = (
        "coordinator_epoch",
        "entry",
        "is_commit",
        "is_void",
        "partitions",
        "producer_epoch",
        "producer_id",
        "version",
    )

    def __init__(self, entry: Entry, coordinator_epoch: int) -> None:
        known = entry.known
        self.entry = entry
        self.producer_id = known.producer_id
        self.producer_epoch = known.producer_epoch
        self.is_commit = known.state == PREPARE_COMMIT
        self.coordinator_epoch = coordinator_epoch
        self.version = EPOCH_BUMPS_FROM if known.bumps_epoch else 0
        self.partitions = known.partitions
        self.is_void = False
        """Another broker coordinates the id by now."""


class Endings:
    """What is prepared, on its way to its end."""

    __slots__ = ("_on_ended", "_send", "_table")

    def __init__(
        self,
        table: TransactionTable,
        send: Callable[[Markers], None],
        on_ended: Callable[[Entry], None],
    ) -> None:
        """send: has markers written; `on_marked` is told when all are. on_ended: told of an entry
        whose transaction is complete."""
        self._table = table
        self._send = send
        self._on_ended = on_ended

    def begin(self, entry: Entry) -> None:
        """Begin an end that is decided: have the markers written as soon as the decision can't be
        lost."""
        shard = entry.shard
        entry.markers = markers = Markers(entry, shard.partition.leader_epoch)
        shard.prepared.append((shard.partition.log.log_end_offset, markers))
        self.send_prepared(shard)

    def send_prepared(self, shard: TransactionShard) -> None:
        """Send the markers of which the in-sync replicas have the decision."""
        prepared = shard.prepared
        while prepared and prepared[0][0] <= shard.partition.high_watermark:
            _, markers = prepared.popleft()
            if markers.partitions:
                self._send(markers)
            else:
                self.on_marked(markers)

    def on_marked(self, markers: Markers) -> None:
        """All of them are written: the transaction is complete, and who waits for that goes on."""
        entry = markers.entry
        if markers.is_void or entry.markers is not markers:
            return
        table = self._table
        if table.store(entry, completed(entry.known, table.now_ms())):
            table.timers.push(table.steady_ms() + RETRY_MS, markers)
            return
        entry.markers = None
        self._on_ended(entry)
