"""What others may see of a broker: its counters and gauges, and how long its stages take
(`shm.counters`, `shm.latencies`)."""

from __future__ import annotations

from shmbroker.broker.open_transactions import open_transactions
from shmbroker.shm.latencies import STAGE_APPEND, STAGE_FLUSH, STAGE_RING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.append import Appender
    from shmbroker.broker.flusher import Flushing
    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.broker.read import Reader
    from shmbroker.broker.replication.replication import Replication
    from shmbroker.clock import Clock
    from shmbroker.groups.coordinator import GroupCoordinator
    from shmbroker.groups.transactions.coordinator import TransactionCoordinator
    from shmbroker.ipc.member import FamilyMember
    from shmbroker.purgatory import Purgatory
    from shmbroker.shm.latencies import Latencies

TRANSACTIONAL_IDS = (
    "transactional_ids_empty",
    "transactional_ids_ongoing",
    "transactional_ids_prepare_commit",
    "transactional_ids_prepare_abort",
    "transactional_ids_complete_commit",
    "transactional_ids_complete_abort",
)
"""Gauges, by the number of the state; no id is in another."""


class BrokerShown:
    """What one broker shows."""

    def __init__(self, clock: Clock, member: FamilyMember, latencies: Latencies) -> None:
        self._clock = clock
        self._member = member
        self._latencies = latencies
        self.sampled_at = 0.0
        """When this turn has taken what it measures; 0: it measures nothing."""

    def on_stamp(self, stamp_ns: int) -> None:
        """What is taken now was stamped by its sender: it is measured."""
        self.sampled_at = self._clock.monotonic()
        self._latencies.of(STAGE_RING).add((self._clock.monotonic_ns() - stamp_ns) // 1000)

    def end_sample(self) -> None:
        """The results of what was measured are about to be published."""
        now = self._clock.monotonic()
        self._latencies.of(STAGE_APPEND).add(int((now - self.sampled_at) * 1e6))
        self.sampled_at = 0.0
        self._member.stamp(now)

    def work(
        self,
        turns: int,
        appender: Appender,
        reader: Reader,
        purgatory: Purgatory,
        replication: Replication,
    ) -> None:
        """Show what was appended, read, copied, and what waits."""
        show, store = self._member.tally.show, self._member.tally.set
        self._member.show_claims()
        show("turns", turns)
        show("batches_appended", appender.batches_in)
        show("appended_bytes", appender.bytes_in)
        show("replicated_bytes", replication.fetcher.copied_bytes)
        show("reads_served", reader.served)
        show("read_bytes", reader.bytes_out)
        delayed = appender.acks.delayed
        show("operations_delayed", purgatory.delayed + delayed.delayed)
        show("operations_expired", purgatory.expired + delayed.expired)
        store("delayed_reads", len(purgatory))
        store("delayed_appends", len(delayed))

    def disk(self, store: PartitionStore, flusher: Flushing, reader: Reader) -> None:
        """Segments, flushes, and the bytes that were read of each partition."""
        tally = self._member.tally
        for key, count in reader.bytes_of.items():
            store.positions.add_read_bytes(key, count)
        reader.bytes_of.clear()
        tally.show("segments_deleted", store.removals.segments_deleted)
        took_us = flusher.took_us()
        for took in took_us:
            self._latencies.of(STAGE_FLUSH).add(took)
        tally.add("flushes", len(took_us))
        tally.add("flush_us", sum(took_us))
        tally.set("flushes_waiting", flusher.waiting)

    def groups(self, groups: GroupCoordinator) -> None:
        """Show how many groups there are, and what they take."""
        store = self._member.tally.set
        store("groups", len(groups.groups))
        store("groups_bytes", groups.memory.held_bytes)
        store("groups_loading", len(groups.loading))

    def transactions(
        self, store: PartitionStore, transactions: TransactionCoordinator, now_ms: int
    ) -> None:
        """Transactional ids by state, and the transactions that are open in the logs."""
        show = self._member.tally.set
        for name, count in zip(TRANSACTIONAL_IDS, transactions.states(), strict=False):
            show(name, count)
        show("transactions_loading", len(transactions.loading))
        found = open_transactions(store.partitions.values(), now_ms, transactions.timeout_ms_max)
        show("open_transactions", found.transactions)
        show("stable_lag_records", found.lag_records)
        show("late_transaction_partitions", found.late_partitions)

    def latencies(self) -> None:
        """Show how long the stages took."""
        self._latencies.show()
