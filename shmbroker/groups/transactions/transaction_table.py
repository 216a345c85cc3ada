"""The transactional ids that one broker coordinates: stored, timed, counted, and expired.

    Entry              a transactional id: its last record, what ends it, who waits for that
    TransactionShard   the ids of one partition of `__transaction_state` led here
    TransactionTable   the ids of all shards; what the parts of the coordinator work on

Rules of this file:
* The next state of an id counts when its record is appended (`store`): then it is timed again, is
  unused or not, and where its end was decided, the end begins (`endings`).
* An id has one timer; one that comes too early is set again. Timers go by a steady clock, records
  by the wall clock: a jump of that ends nothing here. A coordinator that takes over an open
  transaction knows only what its record says, and trusts the wall clock once.
* Ids are bounded in number (`shmbroker.transactional.ids`): for a new one the id that was unused
  longest expires early. Its producer, should it live, is told that its producer id is unknown.

Source: Kafka's TransactionStateManager.
"""

from __future__ import annotations

from collections import deque

from shmbroker.groups import group_log
from shmbroker.groups.shards import BaseShard
from shmbroker.groups.transactions import transaction_log
from shmbroker.groups.transactions.transaction import AT_REST, ONGOING, PREPARED, STATE_NAMES
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.groups.timers import Timers
    from shmbroker.groups.transactions.endings import Markers
    from shmbroker.groups.transactions.producer_requests import Waiting
    from shmbroker.groups.transactions.transaction import Transaction
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig

RETRY_MS = 100
"""The time after which a record that could not be appended is appended again."""


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
        self.scheduled_ms = NEVER_MS
        self.ends_ms = NEVER_MS
        """When the open transaction has taken too long, by the steady clock; NEVER_MS: none is."""
        self.waiting: list[Waiting] = []

    def follow(self, known: Transaction, ends_ms: int) -> None:
        """Take the state of now; ends_ms: of a transaction that begins with it."""
        if known.state != ONGOING:
            self.ends_ms = NEVER_MS
        elif self.ends_ms == NEVER_MS:
            self.ends_ms = ends_ms
        self.known = known


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
        """Add a transactional id that was not here."""
        self.entries[entry.transactional_id] = entry
        self.states[entry.known.state] += 1

    def remove(self, entry: Entry) -> None:
        """Remove an entry that has expired."""
        del self.entries[entry.transactional_id]
        self.states[entry.known.state] -= 1


class TransactionTable:
    """The entries, and what is needed to store and to time one."""

    __slots__ = (
        "_expiration_ms",
        "_ids_max",
        "_on_appended",
        "_on_prepared",
        "now_ms",
        "shards",
        "steady_ms",
        "timers",
        "unused",
        "version",
    )

    def __init__(
        self,
        config: BrokerConfig,
        shards: dict[int, TransactionShard],
        timers: Timers[Entry | Markers],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        version: Callable[[], int],
        on_appended: Callable[[Partition], None],
        on_prepared: Callable[[Entry], None],
    ) -> None:
        """shards: those of the coordinator; on_prepared: told of an entry whose end is decided; the
        rest as the coordinator says."""
        self.shards = shards
        self.timers = timers
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.version = version
        self.unused: dict[Entry, None] = {}
        """Entries without a transaction, the one that was unused longest first."""
        self._on_appended = on_appended
        self._on_prepared = on_prepared
        self._expiration_ms = config["transactional.id.expiration.ms"]
        self._ids_max = config["shmbroker.transactional.ids"]

    def is_here(self, entry: Entry) -> bool:
        """Whether it is in a shard that is led here."""
        shard = entry.shard
        return (
            self.shards.get(shard.partition.partition) is shard
            and shard.entries.get(entry.transactional_id) is entry
        )

    # ── storing ─────────────────────────────────────────────────────────────────────────────────

    def _append(self, shard: TransactionShard, record: group_log.Record) -> int:
        error = group_log.append(shard.partition, [record], self.now_ms())
        self._on_appended(shard.partition)
        return error

    def store(self, entry: Entry, following: Transaction) -> int:
        """Append its next state, which counts from then on; the error code."""
        record = transaction_log.record(entry.transactional_id, following, self.version())
        if error := self._append(entry.shard, record):
            return error
        if self.is_here(entry):
            states = entry.shard.states
            states[entry.known.state] -= 1
            states[following.state] += 1
        entry.follow(following, self.steady_ms() + following.timeout_ms)
        self.unused.pop(entry, None)
        if following.state in AT_REST:
            self.unused[entry] = None
        if following.state in PREPARED:
            self._on_prepared(entry)
        else:
            self.schedule(entry)
        return 0

    def expire(self, entry: Entry) -> int:
        """Forget an id that has no transaction; the error code."""
        tombstone = transaction_log.record(entry.transactional_id, None, 0)
        if error := self._append(entry.shard, tombstone):
            return error
        entry.shard.remove(entry)
        self.unused.pop(entry, None)
        return 0

    def make_room(self) -> int:
        """Let the oldest of too many ids expire before a new one is added; give the error code."""
        while sum(len(shard.entries) for shard in self.shards.values()) >= self._ids_max:
            if not self.unused:
                return error_codes.COORDINATOR_NOT_AVAILABLE
            if error := self.expire(next(iter(self.unused))):
                return error
        return 0

    # ── timing ──────────────────────────────────────────────────────────────────────────────────

    def due_ms(self, entry: Entry) -> int:
        """When its open transaction has taken too long, or the id expires, by the steady clock."""
        known = entry.known
        if known.state == ONGOING:
            return entry.ends_ms
        if known.state in PREPARED:
            return NEVER_MS
        return self.steady_end_ms(known.update_ms, self._expiration_ms)

    def steady_end_ms(self, since_ms: int, lasts_ms: int) -> int:
        """When what a record says to have begun at `since_ms` has lasted for so long."""
        left_ms = since_ms + lasts_ms - self.now_ms()
        return self.steady_ms() + min(max(left_ms, 0), lasts_ms)

    def schedule(self, entry: Entry) -> None:
        """Set its timer, unless an earlier one is set."""
        due_ms = self.due_ms(entry)
        if due_ms < entry.scheduled_ms and self.is_here(entry):
            self.look_at(entry, due_ms)

    def look_at(self, entry: Entry, due_ms: int) -> None:
        """Have the coordinator look at it then."""
        entry.scheduled_ms = due_ms
        self.timers.push(due_ms, entry)
