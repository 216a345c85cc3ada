"""The transactional ids that one broker coordinates: found by id, timed, stored, loaded, expired.

A transactional id belongs to the partition of `__transaction_state` that it hashes to; who leads
that partition coordinates it. Each partition led here has a `TransactionShard`.

    EndTxn ──► Prepare is appended ──► on its in-sync replicas ──► markers to all partitions
                                    └► the answer leaves       └► all are written ──► Complete

Rules of this file:
* What is answered is in the log. A decision counts when its record is appended; where the log has
  several replicas, the answer is held until the in-sync ones have it (`groups.held_answers`), and
  markers leave only then: a successor finds the same decision, or one that nobody has heard of.
* An operation that meets a transaction which is just ending waits up to WAIT_MS for its end instead
  of being told CONCURRENT_TRANSACTIONS: clients sleep 20 to 100 ms on that, a round of markers
  takes less than one.
* One timer for an id, on a heap; one that comes too early is set again. Timers go by a steady
  clock, records by the wall clock: a jump of that ends nothing here. Who takes over an open
  transaction knows only what its record says, and trusts the wall clock once.
* Ids are bounded in number (`shmbroker.transactional.ids`): for a new one the id that was unused
  longest expires early. Its producer, should it live, is told that its producer id is unknown.
* A shard loads a chunk for each turn of its owner; what its predecessor had prepared is completed.

Source: KIP-98, KIP-664, KIP-890; Kafka's TransactionCoordinator and TransactionStateManager.
"""

from __future__ import annotations

import logging
from collections import deque
from heapq import heappop, heappush

from shmbroker.groups import group_log
from shmbroker.groups.classic.member import NEVER
from shmbroker.groups.shards import BaseShard, Sharded
from shmbroker.groups.transactions import transaction_log
from shmbroker.groups.transactions.transaction import (
    AT_REST,
    EPOCH_BUMPS_FROM,
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    STATE_NAMES,
    Transaction,
    add_partitions,
    completed,
    end,
    fence,
    init_producer_id,
    verify,
)
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shmbroker.groups.transactions.transaction import Decision, TopicPartition
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig

    Decide = Callable[[Transaction | None, int], Decision]
    """From what is known, at this time in ms."""
    Done = Callable[[int, Transaction | None], None]
    """Told the error code, and the transaction as it is then."""

logger = logging.getLogger(__name__)

WAIT_MS = 20
"""How long an operation waits for a transaction that is ending."""
RETRY_MS = 100
"""After which a record is appended again that could not be."""
REPLAYS_PER_STEP = 100


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


class Entry:
    """A transactional id: its last record, and who waits for it."""

    __slots__ = (
        "ends_ms",
        "known",
        "markers",
        "scheduled_ms",
        "shard",
        "transactional_id",
        "waiting",
    )

    def __init__(self, transactional_id: str, known: Transaction, shard: TransactionShard) -> None:
        self.transactional_id = transactional_id
        self.known = known
        self.shard = shard
        self.markers: Markers | None = None
        """The markers that are on their way."""
        self.scheduled_ms = NEVER
        self.ends_ms = NEVER
        """When the open transaction has taken too long, by the steady clock; NEVER: none is."""
        self.waiting: list[Waiting] = []

    def follow(self, known: Transaction, ends_ms: int) -> None:
        """This is its state now; ends_ms: of a transaction that begins with it."""
        if known.state != ONGOING:
            self.ends_ms = NEVER
        elif self.ends_ms == NEVER:
            self.ends_ms = ends_ms
        self.known = known


class Waiting:
    """An operation that waits for the end of a transaction."""

    __slots__ = ("deadline_ms", "decide", "done", "is_over")

    def __init__(self, decide: Decide, done: Done, deadline_ms: int) -> None:
        self.decide = decide
        self.done = done
        self.deadline_ms = deadline_ms
        self.is_over = False


class TransactionShard(BaseShard):
    """The transactional ids of one partition."""

    __slots__ = ("entries", "prepared", "states")

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition)
        self.entries: dict[str, Entry] = {}
        self.prepared: deque[tuple[int, Markers]] = deque()
        """Markers that wait until the in-sync replicas have all below this offset."""
        self.states = [0] * len(STATE_NAMES)
        """How many entries are in each state."""

    def add(self, entry: Entry) -> None:
        """A transactional id that was not here."""
        self.entries[entry.transactional_id] = entry
        self.states[entry.known.state] += 1

    def remove(self, entry: Entry) -> None:
        """It has expired."""
        del self.entries[entry.transactional_id]
        self.states[entry.known.state] -= 1


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
        send: has markers written; `on_marked` is told when all are.
        """
        super().__init__()
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.new_id = new_id
        self.version = version
        self.on_appended = on_appended
        self.send = send
        self.timeout_ms_max = config["transaction.max.timeout.ms"]
        self.expiration_ms = config["transactional.id.expiration.ms"]
        self.ids_max = config["shmbroker.transactional.ids"]
        self._timers: list[tuple[int, int, Entry | Markers]] = []
        self._sequence = 0
        self._waiting: deque[Waiting] = deque()
        self._unused: dict[Entry, None] = {}
        """Entries without a transaction, the one that was unused longest first."""

    # ── partitions ──────────────────────────────────────────────────────────────────────────────

    def _new_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(partition)

    def _on_shard_gone(self, shard: TransactionShard) -> None:
        for entry in shard.entries.values():
            self._unused.pop(entry, None)
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
            self._send_prepared(shard)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def run_due(self) -> None:
        """Load some more, and end what has waited long enough."""
        now_ms = self.steady_ms()
        if self.loading:
            self._load_some(self.loading[0])
        waiting = self._waiting
        while waiting and (waiting[0].is_over or waiting[0].deadline_ms <= now_ms):
            over = waiting.popleft()
            if not over.is_over:
                over.is_over = True
                over.done(error_codes.CONCURRENT_TRANSACTIONS, None)
        timers = self._timers
        due = []
        while timers and timers[0][0] <= now_ms:
            due.append(heappop(timers))
        for due_ms, _, what in due:
            if isinstance(what, Markers):
                self.on_marked(what)
            elif due_ms == what.scheduled_ms and self._is_here(what):
                what.scheduled_ms = NEVER
                if self._due_ms(what) <= now_ms:
                    self._on_time(what, now_ms)
                else:
                    self._schedule(what)
        self._set_wake()

    def _on_time(self, entry: Entry, now_ms: int) -> None:
        """Its transaction has taken too long, or nobody has used the id for long."""
        if entry.known.state == ONGOING:
            logger.info(
                "the transaction of %s was open for %d ms: it is aborted, and its producer fenced",
                entry.transactional_id,
                now_ms - entry.ends_ms + entry.known.timeout_ms,
            )
            if not self._store(entry, fence(entry.known, self.now_ms(), self.version())):
                self._schedule(entry)  # if it is complete already
                return
        elif not self._expire(entry):
            return
        self._push(now_ms + RETRY_MS, entry)

    def _expire(self, entry: Entry) -> int:
        """Forget an id that has no transaction; the error code."""
        tombstone = transaction_log.record(entry.transactional_id, None, 0)
        if error := self._append(entry.shard, tombstone):
            return error
        entry.shard.remove(entry)
        self._unused.pop(entry, None)
        return 0

    def _make_room(self) -> int:
        """Before a new id is added; the error code."""
        while sum(len(shard.entries) for shard in self.shards.values()) >= self.ids_max:
            if not self._unused:
                return error_codes.COORDINATOR_NOT_AVAILABLE
            if error := self._expire(next(iter(self._unused))):
                return error
        return 0

    def _is_here(self, entry: Entry) -> bool:
        shard = entry.shard
        return (
            self.shards.get(shard.partition.partition) is shard
            and shard.entries.get(entry.transactional_id) is entry
        )

    def _due_ms(self, entry: Entry) -> int:
        """When its open transaction has taken too long, or the id expires, by the steady clock."""
        known = entry.known
        if known.state == ONGOING:
            return entry.ends_ms
        if known.state in PREPARED:
            return NEVER
        return self._steady(known.update_ms, self.expiration_ms)

    def _steady(self, since_ms: int, lasts_ms: int) -> int:
        """When what a record says to have begun at `since_ms` has lasted for so long."""
        left_ms = since_ms + lasts_ms - self.now_ms()
        return self.steady_ms() + min(max(left_ms, 0), lasts_ms)

    def _schedule(self, entry: Entry) -> None:
        due_ms = self._due_ms(entry)
        if due_ms < entry.scheduled_ms and self._is_here(entry):
            self._push(due_ms, entry)

    def _push(self, due_ms: int, what: Entry | Markers) -> None:
        if isinstance(what, Entry):
            what.scheduled_ms = due_ms
        self._sequence += 1
        heappush(self._timers, (due_ms, self._sequence, what))
        self.wake_ms = min(self.wake_ms, due_ms)

    def _set_wake(self) -> None:
        wake_ms = self._timers[0][0] if self._timers else NEVER
        if self._waiting:
            wake_ms = min(wake_ms, self._waiting[0].deadline_ms)
        self.wake_ms = 0 if self.loading else wake_ms

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
                entry.follow(known, self._steady(known.start_ms, known.timeout_ms))
                shard.add(entry)
            if count % REPLAYS_PER_STEP == 0:
                yield
        shard.is_active = True
        for count, entry in enumerate(list(shard.entries.values()), 1):
            if entry.known.state in PREPARED:
                self._prepare(entry)
            elif entry.known.state != ONGOING:
                self._unused[entry] = None
            self._schedule(entry)
            if count % REPLAYS_PER_STEP == 0:
                yield
        if shard.entries:
            logger.info(
                "%d transactional ids of %s-%d loaded",
                len(shard.entries),
                shard.partition.topic,
                shard.partition.partition,
            )

    # ── finding and storing ─────────────────────────────────────────────────────────────────────

    def _append(self, shard: TransactionShard, record: group_log.Record) -> int:
        error = group_log.append(shard.partition, [record], self.now_ms())
        self.on_appended(shard.partition)
        return error

    def _store(self, entry: Entry, following: Transaction) -> int:
        """Append its next state, which counts from then on; the error code."""
        record = transaction_log.record(entry.transactional_id, following, self.version())
        if error := self._append(entry.shard, record):
            return error
        if self._is_here(entry):
            states = entry.shard.states
            states[entry.known.state] -= 1
            states[following.state] += 1
        entry.follow(following, self.steady_ms() + following.timeout_ms)
        self._unused.pop(entry, None)
        if following.state in AT_REST:
            self._unused[entry] = None
        if following.state in PREPARED:
            self._prepare(entry)
        else:
            self._schedule(entry)
        return 0

    # ── ending ──────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, entry: Entry) -> None:
        """Its end is decided: have the markers written as soon as the decision can't be lost."""
        shard = entry.shard
        entry.markers = markers = Markers(entry, shard.partition.leader_epoch)
        shard.prepared.append((shard.partition.log.log_end_offset, markers))
        self._send_prepared(shard)

    def _send_prepared(self, shard: TransactionShard) -> None:
        prepared = shard.prepared
        while prepared and prepared[0][0] <= shard.partition.high_watermark:
            _, markers = prepared.popleft()
            if markers.partitions:
                self.send(markers)
            else:
                self.on_marked(markers)

    def on_marked(self, markers: Markers) -> None:
        """All of them are written: the transaction is complete, and who waits for that goes on."""
        entry = markers.entry
        if markers.is_void or entry.markers is not markers:
            return
        if self._store(entry, completed(entry.known, self.now_ms())):
            self._push(self.steady_ms() + RETRY_MS, markers)
            return
        entry.markers = None
        waiting, entry.waiting = entry.waiting, []
        for each in waiting:
            if not each.is_over:
                each.is_over = True
                self._decide(entry.transactional_id, each.decide, each.done, each.deadline_ms)

    # ── operations ──────────────────────────────────────────────────────────────────────────────

    def _decide(
        self, transactional_id: str, decide: Decide, done: Done, deadline_ms: int = -1
    ) -> None:
        """Have an operation; its caller is told at once, or at the end of what is ending."""
        shard, error = self.shard_of(transactional_id)
        if shard is None:
            done(error, None)
            return
        entry = shard.entries.get(transactional_id)
        known = entry.known if entry is not None else None
        now_ms = self.now_ms()
        following = decide(known, now_ms)
        if isinstance(following, int):
            if following == error_codes.CONCURRENT_TRANSACTIONS and entry is not None:
                self._wait(entry, decide, done, deadline_ms)
            else:
                done(following, known)
            return
        if following is not known:
            if entry is None:
                if error := self._make_room():
                    done(error, None)
                    return
                entry = Entry(transactional_id, following, shard)
            if error := self._store(entry, following):
                done(error, known)
                return
            if transactional_id not in shard.entries:
                shard.add(entry)
            self._schedule(entry)
        done(0, following)

    def _wait(self, entry: Entry, decide: Decide, done: Done, deadline_ms: int) -> None:
        now_ms = self.steady_ms()
        if deadline_ms < 0:
            deadline_ms = now_ms + WAIT_MS
        if deadline_ms <= now_ms or entry.markers is None:
            done(error_codes.CONCURRENT_TRANSACTIONS, None)
            return
        waiting = Waiting(decide, done, deadline_ms)
        entry.waiting.append(waiting)
        self._waiting.append(waiting)
        self.wake_ms = min(self.wake_ms, self._waiting[0].deadline_ms)

    def init_producer_id(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        timeout_ms: int,
        done: Done,
    ) -> None:
        """InitProducerId; an open transaction is aborted first."""
        if not transactional_id:
            done(error_codes.INVALID_REQUEST, None)
            return
        if not 0 < timeout_ms <= self.timeout_ms_max:
            done(error_codes.INVALID_TRANSACTION_TIMEOUT, None)
            return

        def decide(known: Transaction | None, now_ms: int) -> Decision:
            return init_producer_id(
                known, producer_id, producer_epoch, timeout_ms, self.new_id, now_ms, self.version()
            )

        def on_decided(error: int, known: Transaction | None) -> None:
            if not error and known is not None and known.state in PREPARED:
                self._decide(transactional_id, decide, on_decided)  # waits for the abort
            else:
                done(error, known)

        self._decide(transactional_id, decide, on_decided)

    def _refused(self, transactional_id: str, client_version: int) -> int:
        """The error code for who can't be served whatever the state is. At level 0 the records have
        no room for what newer clients go by."""
        if not transactional_id:
            return error_codes.INVALID_REQUEST
        return error_codes.UNSUPPORTED_VERSION if client_version and not self.version() else 0

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        client_version: int,
        done: Done,
    ) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn, and what Produce and TxnOffsetCommit add."""
        if error := self._refused(transactional_id, client_version):
            done(error, None)
            return
        self._decide(
            transactional_id,
            lambda known, now_ms: add_partitions(
                known, producer_id, producer_epoch, partitions, now_ms, client_version
            ),
            done,
        )

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """AddPartitionsToTxn that adds nothing: the error code of each partition."""
        if not transactional_id:
            return dict.fromkeys(partitions, error_codes.INVALID_REQUEST)
        shard, error = self.shard_of(transactional_id)
        if shard is None:
            return dict.fromkeys(partitions, error)
        entry = shard.entries.get(transactional_id)
        return verify(
            entry.known if entry is not None else None, producer_id, producer_epoch, partitions
        )

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,
        client_version: int,
        done: Done,
    ) -> None:
        """EndTxn."""
        if error := self._refused(transactional_id, client_version):
            done(error, None)
            return
        self._decide(
            transactional_id,
            lambda known, now_ms: end(
                known, producer_id, producer_epoch, is_commit, self.new_id, now_ms, client_version
            ),
            done,
        )

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
