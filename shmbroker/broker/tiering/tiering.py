"""Tiered storage of one broker, as the rest of it sees it (`broker.tier_port.Tier`).

Tiering       partitions come and go; what is due is looked at; questions are passed on
├─ .lists     asks for what the store has                     lists.py
├─ .uploads   copies, and deletes copies                      uploads.py
├─ .pieces    the cache                                       pieces.py
├─ .reader    reads before the local start                    reads.py
├─ .indexes   … and the aborted transactions of them          transaction_indexes.py
├─ .lookups   offsets by time                                 time_lookups.py
├─ .states    what was known where a copy ends                states.py
└─ .table     the copies that all of them work on             remotes.py
"""

from __future__ import annotations

from shmbroker.broker.tiering.lists import Lists
from shmbroker.broker.tiering.pieces import Pieces
from shmbroker.broker.tiering.reads import RemoteReader
from shmbroker.broker.tiering.remotes import Remote, RemoteTable
from shmbroker.broker.tiering.retention import retain
from shmbroker.broker.tiering.states import States
from shmbroker.broker.tiering.time_lookups import Find, TimeLookups
from shmbroker.broker.tiering.transaction_indexes import TransactionIndexes
from shmbroker.broker.tiering.uploads import Uploads
from shmbroker.tier.remote_log import ABSENT
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.broker.tier_port import OnState, Slice
    from shmbroker.broker.tiering.remotes import Ask
    from shmbroker.log.segment import Segment
    from shmbroker.log.transaction_index import AbortedTransaction
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig


class Tiering:
    """Tiered storage of one broker's partitions."""

    def __init__(
        self,
        store: PartitionStore,
        config: BrokerConfig,
        ask: Ask,
        wake: Callable[[bytes], object],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        cache_root: str,
        incarnation: int,
        on_decided: Callable[[Partition], None],
    ) -> None:
        """ask, wake, now_ms, steady_ms: as `RemoteTable` has them. on_decided: as `Lists`."""
        self.is_there = True
        self.store = store
        self.interval_ms = config["remote.log.manager.task.interval.ms"]
        self.find_timeout_ms = config["remote.list.offsets.request.timeout.ms"]
        cache_bytes_max = config["shmbroker.tier.cache.bytes"] // config["shmbroker.io.workers"]
        self.table = RemoteTable(store, ask, wake, now_ms, steady_ms)
        self.states = States(self.table)
        self.lists = Lists(self.table, self.states, self._on_loaded, on_decided)
        self.uploads = Uploads(self.table)
        self.copied = self.uploads.throttle
        self.pieces = Pieces(self.table, cache_root, incarnation, cache_bytes_max)
        self.fetched = self.pieces.throttle
        self.reader = RemoteReader(self.table, self.lists, self.pieces)
        self.indexes = TransactionIndexes(self.table)
        self.lookups = TimeLookups(self.table, self.lists)
        self._next_ms = 0

    # ── partitions come and go ──────────────────────────────────────────────────────────────────

    def on_partition(self, partition: Partition) -> None:
        """Note a partition that is here now, or whose leader or settings have changed."""
        remote = self.table.get(partition)
        if not partition.log.config.is_tiered:
            if remote is not None:
                self._forget(remote)
                # What only the store had is not readable any more; the tier process removes it.
                self.store.raise_log_start(partition, partition.log.local_start_offset)
            self.lists.on_untiered(partition)
            return
        if remote is None:
            remote = Remote(partition)
            self.table.remotes[partition.key] = remote
        remote.is_current = False
        self.lists.load(remote)

    def on_deleted(self, key: bytes) -> None:
        """The topic is deleted."""
        remote = self.table.remotes.get(key)
        if remote is not None:
            self._forget(remote)

    def _forget(self, remote: Remote) -> None:
        del self.table.remotes[remote.partition.key]
        self.lookups.on_forgotten(remote)
        self.pieces.drop_all(remote)

    def on_tier_lost(self) -> None:
        """The tier process died with all that it was asked."""
        steady_ms = self.table.steady_ms()
        self.pieces.on_tier_lost()
        for remote in self.table.remotes.values():
            remote.on_tier_lost(steady_ms)
        self.uploads.on_tier_lost()
        self.lookups.on_tier_lost()
        self.states.on_tier_lost()

    def on_tier_running(self) -> None:
        """Note that there is a tier process (again)."""
        for remote in self.table.remotes.values():
            self.lists.load(remote)
            self.table.wake(remote.partition.key)

    # ── upkeep ──────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Look which partition has something to do."""
        steady_ms = self.table.steady_ms()
        self.lookups.end_late(steady_ms)
        if steady_ms < self._next_ms:
            return
        self._next_ms = steady_ms + self.interval_ms
        self.lookups.drop_done()
        for remote in self.table.remotes.values():
            if steady_ms < remote.retry_ms:
                continue
            if not remote.is_current:
                self.lists.load(remote)
            elif remote.partition.is_leader:
                self.uploads.run(remote)
            elif steady_ms >= remote.refresh_ms and len(remote.partition.log.segments) > 1:
                remote.is_current = False
                self.lists.load(remote)

    def _on_loaded(self, remote: Remote) -> None:
        if remote.partition.is_leader:
            self.uploads.run(remote)
        self.lookups.on_loaded(remote)

    def retain(self, partition: Partition, now_ms: int) -> bool:
        """Retention, as `retention.retain`; nothing is known to be copied without a list."""
        remote = self.table.get(partition)
        if remote is None or not remote.is_loaded:
            return False
        return retain(remote, self.store, now_ms)

    # ── for Fetch ───────────────────────────────────────────────────────────────────────────────

    def read(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int,
        end_offset: int,
        min_one_batch: bool,
    ) -> Slice | int | None:
        """Whole batches from the one with `offset` on, which lies before the local start, up to
        `end_offset`. (What is in the store ends before the last stable offset.)

        (segment, position, length) as `PartitionLog.read` has it; an error code; None: they are
        on the way, and reads that watch the partition are woken.
        """
        remote = self.table.get(partition)
        if remote is None:
            return KAFKA_STORAGE_ERROR
        return self.reader.read(remote, offset, max_bytes, end_offset, min_one_batch)

    def aborted_in(
        self, partition: Partition, offset: int, segment: Segment, position: int, end_offset: int
    ) -> list[AbortedTransaction] | int | None:
        """The aborted transactions of a slice that `read` gave, as `lookups.aborted_in` finds them;
        or an error code, or None as there."""
        remote = self.table.get(partition)
        if remote is None:
            return KAFKA_STORAGE_ERROR
        return self.indexes.aborted_in(remote, offset, segment, position, end_offset)

    # ── for followers ───────────────────────────────────────────────────────────────────────────

    def find_state(self, partition: Partition, offset: int, on_state: OnState) -> None:
        """Look for what was known where the copy with `offset` ends."""
        remote = self.table.get(partition)
        if remote is None:
            on_state(None)
        else:
            self.states.find(remote, offset, on_state)

    # ── for ListOffsets ─────────────────────────────────────────────────────────────────────────

    def is_older_here(self, partition: Partition, timestamp: int) -> bool:
        """Whether a lookup by this time has to go to the store first."""
        remote = self.table.get(partition)
        log = partition.log
        if remote is None or log.log_start_offset >= log.local_start_offset:
            return False
        return not remote.is_loaded or (
            remote.log.newer_than(timestamp, log.log_start_offset, log.local_start_offset)
            is not None
        )

    def max_timestamp(self, partition: Partition) -> int:
        """The largest timestamp of what only the store has, or ABSENT."""
        remote = self.table.get(partition)
        if remote is None:
            return ABSENT
        log = partition.log
        return remote.log.max_timestamp(log.log_start_offset, log.local_start_offset)

    def find_time(
        self, partition: Partition, timestamp: int, on_done: Callable[[int, int, int], None]
    ) -> None:
        """Look for the first record that isn't older, among what only the store has."""
        remote = self.table.remotes[partition.key]
        deadline_ms = self.table.steady_ms() + self.find_timeout_ms
        self.lookups.begin(Find(remote, timestamp, deadline_ms, on_done))

    def end_offset(self, partition: Partition) -> int:
        """One past the last offset that is in the store, or ABSENT."""
        remote = self.table.get(partition)
        return remote.log.end_offset if remote is not None else ABSENT
