"""What a log knows of its idempotent producers: the last five batches of each.

A retried batch is recognised and answered with its first offset; a gap is refused. The state is
derived from the log: a snapshot file holds what it was at one offset, and the batches behind that
give the rest.

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
          4  coordinator_epoch         -1
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
from struct import Struct

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import write_all
from shmbroker.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)

SNAPSHOT_HEADER = Struct(">hIi")
SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_VERSION = 1
_CRC_START = 6

_SEQUENCES = 2**31
BATCHES_KEPT = 5
"""Kafka's number: a client may have five batches in flight to a partition."""

PRODUCERS_MAX = 100_000
"""More than this many in one partition: those heard of longest ago are forgotten."""

REFUSED_MAX = 1_000
"""So many producers' refused batches are remembered; then the oldest goes."""

_ACCEPT = (NONE, -1, -1)
_OUT_OF_ORDER = (OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1)
_OLD_EPOCH = (INVALID_PRODUCER_EPOCH, -1, -1)


def _is_behind(sequence: int, other: int) -> bool:
    """Whether it comes after `other`; sequences begin again at 0 after 2^31 - 1."""
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2


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
        """Of the last record in this epoch; -1 if there is none."""
        return (self.next_sequence - 1) % _SEQUENCES if self.batches else -1


class ProducerState:
    """The producers of one partition; `check` before the append, `update` after it."""

    __slots__ = ("_producers", "_refused")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self._refused: dict[int, tuple[int, int, int]] = {}
        """By producer id: (epoch, base sequence, error) of the first batch that was refused."""

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """By producer id; for DescribeProducers. Read only."""
        return self._producers

    @property
    def last_offset(self) -> int:
        """Of the newest batch of any producer; -1 without one."""
        newest = [entry.batches[-1] for entry in self._producers.values() if entry.batches]
        return max((batch[2] + batch[1] for batch in newest), default=-1)

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
            for batch in entry.batches:
                if batch[0] == base_sequence and batch[1] == last_offset_delta:
                    return NONE, batch[2], batch[3]
            refused = self._behind_refused(producer_id, epoch, base_sequence, entry.next_sequence)
            return refused or _OUT_OF_ORDER
        if epoch < entry.epoch:
            return _OLD_EPOCH
        if not base_sequence:
            return _ACCEPT
        return self._behind_refused(producer_id, epoch, base_sequence) or _OUT_OF_ORDER

    def note_refused(self, producer_id: int, epoch: int, base_sequence: int, error: int) -> None:
        """A batch was refused with `error` before its sequence was looked at."""
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
        entry.next_sequence = (base_sequence + last_offset_delta + 1) % _SEQUENCES
        entry.timestamp = timestamp
        if self._refused:
            self._refused.pop(producer_id, None)

    def _add(self, producer_id: int, epoch: int) -> ProducerEntry:
        if len(self._producers) >= PRODUCERS_MAX:
            by_age = sorted(self._producers, key=lambda known: self._producers[known].timestamp)
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
        self._producers.clear()
        self._refused.clear()

    def merge(self, older: "ProducerState") -> None:
        """Take producers that are only in `older`."""
        for producer_id, entry in older.producers.items():
            self._producers.setdefault(producer_id, entry)

    # --- snapshots ---

    def encode_snapshot(self) -> bytes:
        entries = []
        for producer_id, entry in self._producers.items():
            sequence, delta, base_offset, _ = entry.batches[-1] if entry.batches else (0, 0, -1, -1)
            entries.append(
                SNAPSHOT_ENTRY.pack(
                    producer_id,
                    entry.epoch,
                    (sequence + delta) % _SEQUENCES if entry.batches else -1,
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
        """Not synced: one that is lost or torn is only a longer walk."""
        beside = path + ".tmp"
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                write_all(fd, self.encode_snapshot())
            finally:
                os.close(fd)
            os.rename(beside, path)
        except OSError as error:
            raise StorageFault(f"can't write {path}: {error}") from error


def read_snapshot(path: str) -> ProducerState:
    """CorruptFault unless it is whole."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error}") from error
    if len(raw) < SNAPSHOT_HEADER.size:
        raise CorruptFault(f"{path} is too short")
    version, crc, count = SNAPSHOT_HEADER.unpack_from(raw)
    if version != _VERSION or crc != crc32c(memoryview(raw)[_CRC_START:]):
        raise CorruptFault(f"{path} is no whole producer snapshot of version {_VERSION}")
    if len(raw) != SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size:
        raise CorruptFault(f"{path} does not hold {count} producers")
    state = ProducerState()
    for fields in SNAPSHOT_ENTRY.iter_unpack(memoryview(raw)[SNAPSHOT_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp = fields[:6]
        entry = state.producers[producer_id] = ProducerEntry(epoch)
        entry.timestamp = timestamp
        entry.coordinator_epoch, entry.current_txn_first_offset = fields[6:]
        if last_offset >= 0:
            base_sequence = (last_sequence - delta) % _SEQUENCES
            entry.batches.append((base_sequence, delta, last_offset - delta, timestamp))
            entry.next_sequence = (last_sequence + 1) % _SEQUENCES
    return state
