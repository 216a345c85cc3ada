"""What producers ask a `TransactionCoordinator`: InitProducerId, AddPartitionsToTxn, EndTxn.

    request ──► decide(what is known) ──► the next state is stored ──► done(error code, state)
                └► just ending: waits ──► `go_on`, or CONCURRENT_TRANSACTIONS

Rules of this file:
* Each request is a function of what is known of the id (`transaction`): the next state, or an error
  code. `done` is told once, at once or later.
* A request that meets a transaction which is just ending waits up to WAIT_MS for its end instead of
  being told CONCURRENT_TRANSACTIONS: clients sleep 20 to 100 ms on that, a round of markers takes
  less than one.

Source: KIP-98, KIP-890; Kafka's TransactionCoordinator.
"""

from __future__ import annotations

from collections import deque

from shmbroker.groups.transactions.transaction import (
    PREPARED,
    add_partitions,
    end,
    init_producer_id,
    verify,
)
from shmbroker.groups.transactions.transaction_table import Entry
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shmbroker.groups.transactions.transaction import Decision, Transaction
    from shmbroker.groups.transactions.transaction_table import TransactionShard, TransactionTable
    from shmbroker.ids import TopicPartition
    from shmbroker.settings.broker_config import BrokerConfig

    Decide = Callable[[Transaction | None, int], Decision]
    """From what is known, at this time in ms."""
    Done = Callable[[int, Transaction | None], None]
    """Told the error code, and the transaction as it is then."""

WAIT_MS = 20
"""How long a request waits for a transaction that is ending."""


class Waiting:
    """A request that waits for the end of a transaction."""

    __slots__ = ("deadline_ms", "decide", "done", "is_over")

    def __init__(self, decide: Decide, done: Done, deadline_ms: int) -> None:
        self.decide = decide
        self.done = done
        self.deadline_ms = deadline_ms
        self.is_over = False


class ProducerRequests:
    """The part of a coordinator that decides what producers ask for."""

    __slots__ = ("_new_id", "_shard_of", "_table", "_timeout_ms_max", "_waiting", "_wake_by")

    def __init__(
        self,
        table: TransactionTable,
        shard_of: Callable[[str], tuple[TransactionShard | None, int]],
        new_id: Callable[[], int | None],
        wake_by: Callable[[int], None],
        config: BrokerConfig,
    ) -> None:
        """shard_of, new_id: as the coordinator says; wake_by: told when `end_waits` is due."""
        self._table = table
        self._shard_of = shard_of
        self._new_id = new_id
        self._wake_by = wake_by
        self._timeout_ms_max = config["transaction.max.timeout.ms"]
        self._waiting: deque[Waiting] = deque()

    # ── requests ────────────────────────────────────────────────────────────────────────────────

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
        if not 0 < timeout_ms <= self._timeout_ms_max:
            done(error_codes.INVALID_TRANSACTION_TIMEOUT, None)
            return

        def decide(known: Transaction | None, now_ms: int) -> Decision:
            return init_producer_id(
                known,
                producer_id,
                producer_epoch,
                timeout_ms,
                self._new_id,
                now_ms,
                self._table.version(),
            )

        def on_decided(error: int, known: Transaction | None) -> None:
            if not error and known is not None and known.state in PREPARED:
                self._decide(transactional_id, decide, on_decided)  # waits for the abort
            else:
                done(error, known)

        self._decide(transactional_id, decide, on_decided)

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
        self._serve(
            transactional_id,
            client_version,
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
        shard, error = self._shard_of(transactional_id)
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
        self._serve(
            transactional_id,
            client_version,
            lambda known, now_ms: end(
                known, producer_id, producer_epoch, is_commit, self._new_id, now_ms, client_version
            ),
            done,
        )

    def _serve(
        self, transactional_id: str, client_version: int, decide: Decide, done: Done
    ) -> None:
        """Decide a request, unless it can't be served whatever the state is. At level 0 the records
        have no room for what newer clients go by."""
        if not transactional_id:
            done(error_codes.INVALID_REQUEST, None)
        elif client_version and not self._table.version():
            done(error_codes.UNSUPPORTED_VERSION, None)
        else:
            self._decide(transactional_id, decide, done)

    # ── deciding, now or at the end of what is ending ───────────────────────────────────────────

    def _decide(
        self, transactional_id: str, decide: Decide, done: Done, deadline_ms: int = -1
    ) -> None:
        """Decide a request; its caller is told at once, or at the end of what is ending."""
        shard, error = self._shard_of(transactional_id)
        if shard is None:
            done(error, None)
            return
        entry = shard.entries.get(transactional_id)
        known = entry.known if entry is not None else None
        table = self._table
        now_ms = table.now_ms()
        following = decide(known, now_ms)
        if isinstance(following, int):
            if following == error_codes.CONCURRENT_TRANSACTIONS and entry is not None:
                self._wait(entry, decide, done, deadline_ms)
            else:
                done(following, known)
            return
        if following is not known:
            if entry is None:
                if error := table.make_room():
                    done(error, None)
                    return
                entry = Entry(transactional_id, following, shard)
            if error := table.store(entry, following):
                done(error, known)
                return
            if transactional_id not in shard.entries:
                shard.add(entry)
            table.schedule(entry)
        done(0, following)

    def _wait(self, entry: Entry, decide: Decide, done: Done, deadline_ms: int) -> None:
        now_ms = self._table.steady_ms()
        if deadline_ms < 0:
            deadline_ms = now_ms + WAIT_MS
        if deadline_ms <= now_ms or entry.markers is None:
            done(error_codes.CONCURRENT_TRANSACTIONS, None)
            return
        waiting = Waiting(decide, done, deadline_ms)
        entry.waiting.append(waiting)
        self._waiting.append(waiting)
        self._wake_by(self._waiting[0].deadline_ms)

    def go_on(self, entry: Entry) -> None:
        """Decide what has waited for a transaction that is complete now."""
        waiting, entry.waiting = entry.waiting, []
        for each in waiting:
            if not each.is_over:
                each.is_over = True
                self._decide(entry.transactional_id, each.decide, each.done, each.deadline_ms)

    @property
    def first_ms(self) -> int:
        """When the first that waits has waited long enough."""
        return self._waiting[0].deadline_ms if self._waiting else NEVER_MS

    def end_waits(self, now_ms: int) -> None:
        """Send away who has waited long enough."""
        waiting = self._waiting
        while waiting and (waiting[0].is_over or waiting[0].deadline_ms <= now_ms):
            over = waiting.popleft()
            if not over.is_over:
                over.is_over = True
                over.done(error_codes.CONCURRENT_TRANSACTIONS, None)
