"""What a log knows of its producers: the last five batches of each, and its open transactions.

A retried batch is recognised and answered with its first offset; a gap is refused. The state is
derived from the log: a snapshot file holds what it was at one offset, and the batches behind that
give the rest.

   offsets   … [a] [b] [a] [A: a is committed] [b] [B: b is aborted] …
                │   └ first unstable offset: b is open until B
                └ undecided for readers until A is below the high watermark, too

A transaction is open in a partition from the first transactional batch of its producer to the
marker that ends it. Readers with isolation level read_committed see what lies before the first one
that is open, or that ended with a marker which is not yet below the high watermark
(`stable_end`; source: KIP-98, Kafka `ProducerStateManager`).

Snapshot `<20 digits>.snapshot`, the state before the offset in its name
(source: Kafka `ProducerStateManager`, schema ProducerSnapshotEntry):

   at  size  field
    0     2  version                   1
    2     4  crc                       CRC-32C from `count` to the end
    6     4  count                     entries
   10        per producer, 46 bytes:
          8  producer_id
          2  producer_epoch
          4  last_sequence
          8  last_offset               -1: no data batch in this epoch
          4  offset_delta              last offset - first offset of that batch
          8  timestamp                 ms; largest of the last batch
          4  coordinator_epoch         of its last marker; -1: none
          8  current_txn_first_offset  -1: no open transaction

Only the last batch of a producer is in it, so a restart also walks a stretch of the log before the
snapshot: enough to know the batches that were still unanswered.

Beside it, for this process alone: the first batch of a producer that was refused before its
sequence was looked at (no leader, too few replicas in sync). Those that were sent behind it on
the way are refused with the same error, which clients retry in order, not with
OUT_OF_ORDER_SEQUENCE_NUMBER: on that one librdkafka raises its epoch, and under a new epoch it
sends again what other partitions may have stored.
"""

import os
from collections import deque
from struct import Struct

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import write_all
from shmbroker.records.batch_layout import SEQUENCES
from shmbroker.records.end_marker import EPOCH_BUMPS_FROM, EndMarker
from shmbroker.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
)

SNAPSHOT_HEADER = Struct(">hIi")
SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_VERSION = 1
_CRC_START = 6

BATCHES_KEPT = 5
"""Kafka's number: a client may have five batches in flight to a partition."""

PRODUCERS_MAX = 100_000
"""More than this many in one partition: those heard of longest ago are forgotten."""

REFUSED_MAX = 1_000
"""The most producers whose refused batches are remembered; then the oldest goes."""

_ACCEPT = (NONE, -1, -1)
_OUT_OF_ORDER = (OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1)
_OLD_EPOCH = (INVALID_PRODUCER_EPOCH, -1, -1)


def _is_behind(sequence: int, other: int) -> bool:
    """Whether it comes after `other`; sequences begin again at 0 after 2^31 - 1."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2


class ProducerEntry:
    """One producer id in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "epoch",
        "next_sequence",
        "timestamp",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: list[tuple[int, int, int, int]] = []
        """(base sequence, last offset delta, base offset, timestamp), oldest first, this epoch."""
        self.timestamp = -1
        self.coordinator_epoch = -1
        self.current_txn_first_offset = -1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record in this epoch; -1 if there is none, or if it has
        none: what a group's coordinator appends for a transaction."""
        if not self.batches or self.batches[-1][0] < 0:
            return -1
        return (self.next_sequence - 1) % SEQUENCES

    @property
    def last_offset(self) -> int:
        """The last offset of the last batch in this epoch; -1 if there is none."""
        return self.batches[-1][1] + self.batches[-1][2] if self.batches else -1


class ProducerState:
    """The producers of one partition; `check` before the append, `update` after it."""

    __slots__ = ("_producers", "_refused", "ended", "knows_last_only", "open")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self.open: dict[int, int] = {}
        """First offsets of the open transactions by producer id, ascending."""
        self.ended: deque[tuple[int, int]] = deque()
        """(offset of the marker, first offset) of transactions whose marker may not be below the
        high watermark yet, ascending by marker; `settle` takes them out."""
        self._refused: dict[int, tuple[int, int, int]] = {}
        """The first batch that was refused, by producer id: (epoch, base sequence, error)."""
        self.knows_last_only = False
        """Whether of each producer only the last batch is known, as a snapshot has it, until
        `recall`: what is before it takes too long to read for each log at a start."""

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """The producers by their ids. Others read it."""
        return self._producers

    @property
    def last_offset(self) -> int:
        """The last offset of the newest batch of any producer; -1 without one."""
        return max((entry.last_offset for entry in self._producers.values()), default=-1)

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, last_offset_delta: int
    ) -> tuple[int, int, int]:
        """Judge a batch: (error, base offset, timestamp) - the last two of a duplicate, else -1.

        A duplicate of one of the last five batches is error NONE with the original's offset.
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return self._behind_refused(producer_id, epoch, base_sequence) or _ACCEPT
        if epoch == entry.epoch:
            if base_sequence == entry.next_sequence:
                return _ACCEPT
            for first, delta, base_offset, timestamp in entry.batches:
                if first == base_sequence and delta == last_offset_delta:
                    return NONE, base_offset, timestamp
            refused = self._behind_refused(producer_id, epoch, base_sequence, entry.next_sequence)
            return refused or _OUT_OF_ORDER
        if epoch < entry.epoch:
            return _OLD_EPOCH
        if not base_sequence:
            return _ACCEPT
        return self._behind_refused(producer_id, epoch, base_sequence) or _OUT_OF_ORDER

    def note_refused(self, producer_id: int, epoch: int, base_sequence: int, error: int) -> None:
        """A batch was refused with `error`, whatever its sequence."""
        known = self._refused.get(producer_id)
        if known is not None:
            entry = self._producers.get(producer_id)
            is_awaited = entry is None or entry.epoch != epoch or entry.next_sequence == known[1]
            if is_awaited and known[0] == epoch and _is_behind(base_sequence, known[1]):
                return
            del self._refused[producer_id]
        elif len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[producer_id] = (epoch, base_sequence, error)

    def _behind_refused(
        self, producer_id: int, epoch: int, base_sequence: int, awaited: int = -1
    ) -> tuple[int, int, int] | None:
        """The answer to a batch behind one that was refused; None: there is no such one.

        `awaited`: the sequence that comes next; -1 if it isn't known.
        """
        known = self._refused.get(producer_id)
        if known is None or known[0] != epoch or not _is_behind(base_sequence, known[1]):
            return None
        return (known[2], -1, -1) if awaited in (-1, known[1]) else None

    def update(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        last_offset_delta: int,
        base_offset: int,
        timestamp: int,
    ) -> None:
        """Note a batch that was appended. `timestamp`: its largest, or the append time."""
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._add(producer_id, epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        batches = entry.batches
        batches.append((base_sequence, last_offset_delta, base_offset, timestamp))
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        entry.next_sequence = (base_sequence + last_offset_delta + 1) % SEQUENCES
        entry.timestamp = timestamp
        if self._refused:
            self._refused.pop(producer_id, None)

    # --- transactions ---

    def begin(self, producer_id: int, base_offset: int) -> None:
        """Note that a batch just given to `update` is transactional."""
        if producer_id not in self.open:
            self.open[producer_id] = base_offset
            self._producers[producer_id].current_txn_first_offset = base_offset

    def has_transactions(self) -> bool:
        """Whether any producer has ended or begun a transaction, as far as is known."""
        return bool(self.open) or any(
            entry.coordinator_epoch >= 0 for entry in self._producers.values()
        )

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether this producer has a transaction open here, in this epoch."""
        return producer_id in self.open and self._producers[producer_id].epoch == epoch

    def check_marker(self, marker: EndMarker, transaction_version: int) -> int:
        """The error code of a marker that a coordinator wants to append.

        It may come twice, as after a lost answer: without an open transaction it changes nothing.
        """
        entry = self._producers.get(marker.producer_id)
        if entry is None:
            return NONE
        epoch = marker.producer_epoch
        is_old = epoch < entry.epoch or (
            transaction_version >= EPOCH_BUMPS_FROM
            and epoch == entry.epoch
            and entry.current_txn_first_offset >= 0
        )
        if is_old:
            return INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch < entry.coordinator_epoch:
            return TRANSACTION_COORDINATOR_FENCED
        return NONE

    def end(self, marker: EndMarker, offset: int, timestamp: int) -> tuple[int, int] | None:
        """Note a marker that was appended at `offset`: (first offset of the transaction, the last
        stable offset behind it). None: there was none open, so readers need not know of it."""
        entry = self._producers.get(marker.producer_id)
        if entry is None:
            entry = self._add(marker.producer_id, marker.producer_epoch)
        elif entry.epoch != marker.producer_epoch:
            entry.epoch = marker.producer_epoch
            entry.batches.clear()
            entry.next_sequence = 0
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.timestamp = timestamp
        entry.current_txn_first_offset = -1
        first_offset = self.open.pop(marker.producer_id, -1)
        if first_offset < 0:
            return None
        self.ended.append((offset, first_offset))
        return first_offset, next(iter(self.open.values()), offset + 1)

    def fits(self, recent: "ProducerState", *, is_dense: bool) -> bool:
        """Whether a snapshot, this, can be of a log whose last batches before it gave `recent`.

        Only what transactions hang on is judged. is_dense: compaction has taken no batch away.
        Where it may have, the batches left may be older than the snapshot, and say nothing of the
        transactions that it has seen begin since.
        """
        for producer_id, before in recent.producers.items():
            entry = self._producers.get(producer_id)
            if entry is None:
                continue  # It may have expired.
            is_newer = not is_dense and entry.last_offset > before.last_offset
            if not is_newer and (producer_id in self.open) != (producer_id in recent.open):
                return False
            if entry.coordinator_epoch < 0 and producer_id not in self.open:
                continue
            if before.epoch > entry.epoch:
                return False
            is_same = before.epoch == entry.epoch and before.batches
            if is_dense and is_same and entry.last_offset != before.last_offset:
                return False
        return True

    def settle(self, high_watermark: int) -> None:
        """Markers below the high watermark are decided for good."""
        ended = self.ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()

    def stable_end(self, high_watermark: int, log_start_offset: int) -> int:
        """The last stable offset: exclusive end of what read_committed readers may see."""
        self.settle(high_watermark)
        first = next(iter(self.open.values()), high_watermark)
        for _, began in self.ended:
            first = min(first, began)
        return min(max(first, log_start_offset), high_watermark)

    def _add(self, producer_id: int, epoch: int) -> ProducerEntry:
        if len(self._producers) >= PRODUCERS_MAX:
            by_age = sorted(
                (known for known in self._producers if known not in self.open),
                key=lambda known: self._producers[known].timestamp,
            )
            for known in by_age[: PRODUCERS_MAX // 10]:
                del self._producers[known]
        entry = self._producers[producer_id] = ProducerEntry(epoch)
        return entry

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers not heard of for this long (KIP-854); how many went."""
        limit = now_ms - expiration_ms
        old = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.timestamp <= limit and entry.current_txn_first_offset < 0
        ]
        for producer_id in old:
            del self._producers[producer_id]
        return len(old)

    def clear(self) -> None:
        """Forget everything."""
        self._producers.clear()
        self._refused.clear()
        self.open.clear()
        self.ended.clear()

    def take(self, known: "ProducerState", recent: "ProducerState") -> None:
        """Begin with what a snapshot knows, and with the batches shortly before it, which are
        believed where they are of the same epoch.

        Producers that are in `recent` alone have expired, or were forgotten: they do no harm.
        """
        for producer_id, entry in known.producers.items():
            before = recent.producers.get(producer_id)
            if before is not None and before.batches and before.epoch >= entry.epoch:
                entry.epoch = before.epoch
                entry.batches = before.batches
                entry.next_sequence = before.next_sequence
            self._producers[producer_id] = entry
        for producer_id, entry in recent.producers.items():
            self._producers.setdefault(producer_id, entry)
        self.open = known.open

    def recall(self, recent: "ProducerState") -> None:
        """Know what the batches shortly before the log's end, all that `recent` knows, tell."""
        for producer_id, before in recent.producers.items():
            entry = self._producers.get(producer_id)
            if entry and (entry.epoch, entry.last_offset) == (before.epoch, before.last_offset):
                entry.batches = before.batches

    # --- snapshots ---

    def encode_snapshot(self) -> bytes:
        """The content of a `.snapshot` file, as Kafka's ProducerStateManager writes it."""
        entries = []
        for producer_id, entry in self._producers.items():
            _, delta, base_offset, _ = entry.batches[-1] if entry.batches else (0, 0, -1, -1)
            entries.append(
                SNAPSHOT_ENTRY.pack(
                    producer_id,
                    entry.epoch,
                    entry.last_sequence,
                    base_offset + delta,
                    delta,
                    entry.timestamp,
                    entry.coordinator_epoch,
                    entry.current_txn_first_offset,
                )
            )
        body = Struct(">i").pack(len(entries)) + b"".join(entries)
        return Struct(">hI").pack(_VERSION, crc32c(body)) + body

    def write_snapshot(self, path: str) -> None:
        """Write a snapshot, not synced: one that is lost or torn is only a longer walk."""
        beside = path + ".tmp"
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                write_all(fd, self.encode_snapshot())
            finally:
                os.close(fd)
            os.rename(beside, path)
        except OSError as error:
            raise StorageFault(f"can't write {path}: {error}", path) from error


def read_snapshot(path: str) -> ProducerState:
    """CorruptFault unless it is whole."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error}", path) from error
    if len(raw) < SNAPSHOT_HEADER.size:
        raise CorruptFault(f"{path} is too short", path)
    version, crc, count = SNAPSHOT_HEADER.unpack_from(raw)
    if version != _VERSION or crc != crc32c(memoryview(raw)[_CRC_START:]):
        raise CorruptFault(f"{path} is no whole producer snapshot of version {_VERSION}", path)
    if len(raw) != SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size:
        raise CorruptFault(f"{path} does not hold {count} producers", path)
    state = ProducerState()
    for fields in SNAPSHOT_ENTRY.iter_unpack(memoryview(raw)[SNAPSHOT_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp = fields[:6]
        entry = state._producers[producer_id] = ProducerEntry(epoch)
        entry.timestamp = timestamp
        entry.coordinator_epoch, entry.current_txn_first_offset = fields[6:]
        if last_offset >= 0:
            base_sequence = (last_sequence - delta) % SEQUENCES if last_sequence >= 0 else -1
            entry.batches.append((base_sequence, delta, last_offset - delta, timestamp))
            entry.next_sequence = (last_sequence + 1) % SEQUENCES
    begun = (
        (entry.current_txn_first_offset, producer_id)
        for producer_id, entry in state._producers.items()
        if entry.current_txn_first_offset >= 0
    )
    state.open |= {producer_id: first_offset for first_offset, producer_id in sorted(begun)}
    return state
