"""The transactional ids that one broker coordinates: found by id, timed, stored, loaded, expired.

A transactional id belongs to the partition of `__transaction_state` that it hashes to; who leads
that partition coordinates it. Each partition led here has a `TransactionShard`.

    TransactionCoordinator   loads shards, looks at what is due, tells which ids there are
    ├─ .requests             what producers ask for                        producer_requests.py
    ├─ .endings              what is decided, its markers, its end         endings.py
    └─ .table                the ids that all of them work on              transaction_table.py

Rules of these files:
* What is answered is in the log. A decision counts when its record is appended; where the log has
  several replicas, the answer is held until the in-sync ones have it (`groups.held_answers`), and
  markers leave only then.
* A transaction that takes longer than its producer has said is aborted, and its producer fenced.
* A shard loads a chunk for each turn of its owner; what its predecessor had prepared is completed.

Source: KIP-98, KIP-664, KIP-890; Kafka's TransactionCoordinator and TransactionStateManager.
"""

from __future__ import annotations

import logging

from shmbroker.groups import group_log
from shmbroker.groups.shards import Sharded
from shmbroker.groups.timers import Timers
from shmbroker.groups.transactions import transaction_log
from shmbroker.groups.transactions.endings import Endings, Markers
from shmbroker.groups.transactions.producer_requests import ProducerRequests
from shmbroker.groups.transactions.transaction import ONGOING, PREPARED, STATE_NAMES, fence
from shmbroker.groups.transactions.transaction_table import (
    RETRY_MS,
    Entry,
    TransactionShard,
    TransactionTable,
)
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shmbroker.groups.transactions.transaction import Transaction
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

REPLAYS_PER_STEP = 100


class TransactionCoordinator(Sharded[TransactionShard]):
    """Everything about transactional ids that one broker does."""

    WHAT = "transactions"

    def __init__(
        self,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        new_id: Callable[[], int | None],
        version: Callable[[], int],
        on_appended: Callable[[Partition], None],
        send: Callable[[Markers], None],
    ) -> None:
        """
        now_ms: what the wall clock shows, which may jump; steady_ms: what timers go by.
        new_id: gives a producer id that nobody has.
        version: the level of `transaction.version`.
        on_appended: told of each partition that got records, to wake who reads it.
        send: has markers written; `endings.on_marked` is told when all are.
        """
        super().__init__()
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.version = version
        self.timeout_ms_max = config["transaction.max.timeout.ms"]
        self.table = TransactionTable(
            config,
            self.shards,
            Timers(self._wake_by, self._is_wanted),
            now_ms,
            steady_ms,
            version,
            on_appended,
            lambda entry: self.endings.begin(entry),
        )
        self.requests = ProducerRequests(self.table, self.shard_of, new_id, self._wake_by, config)
        self.endings = Endings(self.table, send, self.requests.go_on)

    # ── partitions ──────────────────────────────────────────────────────────────────────────────

    def _new_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(partition)

    def _on_shard_gone(self, shard: TransactionShard) -> None:
        for entry in shard.entries.values():
            self.table.unused.pop(entry, None)
            if entry.markers is not None:
                entry.markers.is_void = True
            for waiting in entry.waiting:
                if not waiting.is_over:
                    waiting.is_over = True
                    waiting.done(error_codes.NOT_COORDINATOR, None)

    def on_high_watermark(self, partition: Partition) -> None:
        super().on_high_watermark(partition)
        shard = self.shards.get(partition.partition)
        if shard is not None and shard.partition is partition:
            self.endings.send_prepared(shard)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def run_due(self) -> None:
        """Load some more, and end what has waited long enough."""
        now_ms = self.steady_ms()
        if self.loading:
            self._load_some(self.loading[0])
        self.requests.end_waits(now_ms)
        table = self.table
        for due_ms, _, what in table.timers.take_due(now_ms):
            if isinstance(what, Markers):
                self.endings.on_marked(what)
            elif self._is_wanted(due_ms, what):
                what.scheduled_ms = NEVER_MS
                if table.due_ms(what) <= now_ms:
                    self._on_time(what, now_ms)
                else:
                    table.schedule(what)
        self._set_wake()

    def _is_wanted(self, due_ms: int, what: Entry | Markers) -> bool:
        """Whether this timer is the one that counts, of what is coordinated here."""
        if isinstance(what, Markers):
            return not what.is_void
        return due_ms == what.scheduled_ms and self.table.is_here(what)

    def _on_time(self, entry: Entry, now_ms: int) -> None:
        """Abort a transaction that has taken too long, or let an id expire that was not used for
        long."""
        table = self.table
        if entry.known.state == ONGOING:
            logger.info(
                "the transaction of %s was open for %d ms: it is aborted, and its producer fenced",
                entry.transactional_id,
                now_ms - entry.ends_ms + entry.known.timeout_ms,
            )
            if not table.store(entry, fence(entry.known, self.now_ms(), self.version())):
                return
        elif not table.expire(entry):
            return
        table.look_at(entry, now_ms + RETRY_MS)

    def _set_wake(self) -> None:
        wake_ms = min(self.table.timers.first_ms, self.requests.first_ms)
        self.wake_ms = 0 if self.loading else wake_ms

    def _wake_by(self, due_ms: int) -> None:
        if due_ms < self.wake_ms:
            self.wake_ms = due_ms

    # ── loading ─────────────────────────────────────────────────────────────────────────────────

    def _load(self, shard: TransactionShard) -> Iterator[None]:
        loader = group_log.Loader(shard.partition)
        while not loader.step():
            yield
        for count, (key, value) in enumerate(loader.latest, 1):
            found = transaction_log.decode(key, value)
            if found is not None:
                name, known = found
                entry = Entry(name, known, shard)
                entry.follow(known, self.table.steady_end_ms(known.start_ms, known.timeout_ms))
                shard.add(entry)
            if count % REPLAYS_PER_STEP == 0:
                yield
        shard.is_active = True
        for count, entry in enumerate(list(shard.entries.values()), 1):
            if entry.known.state in PREPARED:
                self.endings.begin(entry)
            elif entry.known.state != ONGOING:
                self.table.unused[entry] = None
            self.table.schedule(entry)
            if count % REPLAYS_PER_STEP == 0:
                yield
        if shard.entries:
            logger.info(
                "%d transactional ids of %s-%d loaded",
                len(shard.entries),
                shard.partition.topic,
                shard.partition.partition,
            )

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    def describe(self, transactional_id: str) -> tuple[int, Transaction | None]:
        """DescribeTransactions of one id."""
        if not transactional_id:
            return error_codes.INVALID_REQUEST, None
        shard, error = self.shard_of(transactional_id)
        if shard is None:
            return error, None
        entry = shard.entries.get(transactional_id)
        if entry is None:
            return error_codes.TRANSACTIONAL_ID_NOT_FOUND, None
        return 0, entry.known

    def states(self) -> list[int]:
        """How many transactional ids are in each state, by its number."""
        of_shards = [shard.states for shard in self.shards.values()]
        return [sum(counts) for counts in zip(*of_shards, strict=True)] or [0] * len(STATE_NAMES)

    def all_known(self) -> tuple[int, list[tuple[str, Transaction]]]:
        """ListTransactions: (error code, each id that is coordinated here)."""
        if self.loading or self.is_opening:
            return error_codes.COORDINATOR_LOAD_IN_PROGRESS, []
        return 0, [
            (name, entry.known)
            for shard in self.shards.values()
            if shard.partition.is_leader
            for name, entry in shard.entries.items()
        ]
