"""One transactional id: what its record says, and which records may follow it.

           init                add                 end                    markers written
    (none) ────► Empty ───────────► Ongoing ───────────► PrepareCommit ──────────► CompleteCommit
                   ▲                 │  ▲                PrepareAbort  ──────────► CompleteAbort
                   │ init            │  │ add              ▲                         │
                   └─────────────────┼──┴──────────────────┼─────────────────────────┤
                                     └─────────────────────┘◄────────────────────────┘
                                     time-out, or init of a     abort of nothing
                                     successor: epoch + 1       (version 2)

Rules of this file:
* Pure. A `Transaction` never changes: a decision gives the next one, which counts when its record
  is in the log, or an error code. Time and new producer ids come in.
* What is prepared is never undone: from a Prepare state only its Complete state follows.
* The producer's epoch goes up at each InitProducerId, at each abort that the producer did not ask
  for, and with version 2 (KIP-890) at each end. So a batch of before can't get into what follows.
* Epoch 32767 is for the last abort of a producer id alone: from 32766 on, the next InitProducerId,
  or with version 2 the next end, gives a new producer id, and epoch 0.

Kafka names a state PrepareEpochFence, in which it never writes a record: here an InitProducerId, or
a time-out, that meets an open transaction prepares its abort in one step.

Source: KIP-98, KIP-360 (producer id and epoch of before), KIP-588, KIP-890; Kafka's
TransactionMetadata and TransactionCoordinator, and what Kafka 4.2.1 answers.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.ids import TopicPartition
from shmbroker.records.end_marker import EPOCH_BUMPS_FROM
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    NewId = Callable[[], int | None]
    """Gives a producer id that nobody has; None while there is none."""

EMPTY = 0
ONGOING = 1
PREPARE_COMMIT = 2
PREPARE_ABORT = 3
COMPLETE_COMMIT = 4
COMPLETE_ABORT = 5
DEAD = 6
PREPARE_EPOCH_FENCE = 7

STATE_NAMES = {
    EMPTY: "Empty",
    ONGOING: "Ongoing",
    PREPARE_COMMIT: "PrepareCommit",
    PREPARE_ABORT: "PrepareAbort",
    COMPLETE_COMMIT: "CompleteCommit",
    COMPLETE_ABORT: "CompleteAbort",
    DEAD: "Dead",
    PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
"""Names of the states, as DescribeTransactions and ListTransactions have them; the numbers are
those of the record."""

PREPARED = (PREPARE_COMMIT, PREPARE_ABORT)
AT_REST = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)

NO_ID = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_LAST = 32766
"""The highest epoch that a producer gets to see."""


class Transaction(NamedTuple):
    """A transactional id, as its last record has it."""

    producer_id: int
    producer_epoch: int
    previous_producer_id: int
    """The producer id whose epochs were exhausted: a retry may still name it."""
    next_producer_id: int
    """The producer id that the transactional id gets when what is prepared is complete."""
    last_epoch: int
    """The epoch that the last InitProducerId with an epoch, or the last end, has replaced. It is
    not in the record, so a retry that comes to another coordinator is fenced, as with Kafka."""
    timeout_ms: int
    state: int
    partitions: frozenset[TopicPartition]
    start_ms: int
    update_ms: int
    client_version: int
    """The `transaction.version` that the producer, or who aborts for it, goes by."""

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no further epoch for a producer of this id."""
        return self.producer_epoch >= EPOCH_LAST

    def is_promised(self, producer_id: int) -> bool:
        """Whether a producer has been told to go on with this id, and comes before what it has
        ended is complete."""
        return self.state in PREPARED and producer_id == self.next_producer_id

    @property
    def bumps_epoch(self) -> bool:
        """Whether the end of the transaction has given it a new epoch."""
        return self.client_version >= EPOCH_BUMPS_FROM


Decision = Transaction | int
"""The transaction that follows, or an error code; the same one if nothing is to be stored."""


def init_producer_id(
    known: Transaction | None,
    producer_id: int,
    producer_epoch: int,
    timeout_ms: int,
    new_id: NewId,
    now_ms: int,
    server_version: int,
) -> Decision:
    """InitProducerId: a producer begins, or begins again with what it knows (-1, -1: nothing).

    Where a transaction is open, the decision is its abort: the producer asks once more after it.
    """
    if known is None:
        given = new_id()
        if given is None:
            return error_codes.COORDINATOR_LOAD_IN_PROGRESS
        return Transaction(
            given, 0, NO_ID, NO_ID, NO_EPOCH, timeout_ms, EMPTY, frozenset(), NO_TIME, now_ms, 0
        )
    is_expected = producer_id != NO_ID
    if is_expected and known.is_promised(producer_id):
        return error_codes.CONCURRENT_TRANSACTIONS
    if is_expected and not (
        producer_id == known.producer_id
        or (producer_id == known.previous_producer_id and producer_epoch >= EPOCH_LAST)
    ):
        return error_codes.PRODUCER_FENCED
    if known.state in PREPARED:
        return error_codes.CONCURRENT_TRANSACTIONS
    if known.state == ONGOING:
        return fence(known, now_ms, server_version)
    begun = known._replace(
        timeout_ms=timeout_ms,
        state=EMPTY,
        partitions=frozenset(),
        start_ms=NO_TIME,
        update_ms=now_ms,
    )
    epoch = known.producer_epoch
    if known.is_exhausted and (not is_expected or producer_epoch == epoch):
        given = new_id()
        if given is None:
            return error_codes.COORDINATOR_LOAD_IN_PROGRESS
        return begun._replace(
            producer_id=given,
            producer_epoch=0,
            previous_producer_id=known.producer_id,
            last_epoch=epoch if is_expected else NO_EPOCH,
        )
    if not is_expected:
        return begun._replace(producer_epoch=epoch + 1, last_epoch=NO_EPOCH)
    if producer_epoch == epoch:
        return begun._replace(producer_epoch=epoch + 1, last_epoch=epoch)
    if producer_epoch == known.last_epoch:
        return begun  # it has asked before, and did not get the answer
    return error_codes.PRODUCER_FENCED


def add_partitions(
    known: Transaction | None,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TopicPartition],
    now_ms: int,
    client_version: int,
) -> Decision:
    """Partitions become part of the transaction, the first ones begin it."""
    error = _judge(known, producer_id, producer_epoch)
    if error or known is None:
        return error
    added = known.partitions.union(partitions)
    if known.state == ONGOING and len(added) == len(known.partitions):
        return known
    return known._replace(
        state=ONGOING,
        partitions=added,
        start_ms=known.start_ms if known.state == ONGOING else now_ms,
        update_ms=now_ms,
        client_version=client_version,
    )


def verify(
    known: Transaction | None,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, int]:
    """The error code of each partition that a leader is about to append a first batch to."""
    error = _judge(known, producer_id, producer_epoch)
    if error or known is None:
        return dict.fromkeys(partitions, error)
    return {
        each: 0 if each in known.partitions else error_codes.TRANSACTION_ABORTABLE
        for each in partitions
    }


def _judge(known: Transaction | None, producer_id: int, producer_epoch: int) -> int:
    if known is not None and known.is_promised(producer_id):
        return error_codes.CONCURRENT_TRANSACTIONS
    if known is None or known.producer_id != producer_id:
        return error_codes.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer_epoch:
        return error_codes.PRODUCER_FENCED
    return error_codes.CONCURRENT_TRANSACTIONS if known.state in PREPARED else 0


def end(
    known: Transaction | None,
    producer_id: int,
    producer_epoch: int,
    is_commit: bool,
    new_id: NewId,
    now_ms: int,
    client_version: int,
) -> Decision:
    """EndTxn: commit or abort. The same transaction for what is done already."""
    if known is None:
        return error_codes.INVALID_PRODUCER_ID_MAPPING
    bumps = client_version >= EPOCH_BUMPS_FROM
    if bumps and known.state in PREPARED:
        # Whoever asks: it may know the next epoch, or the next id, already, as the last end was
        # answered before its markers were written.
        return error_codes.CONCURRENT_TRANSACTIONS
    is_retry = bumps and is_retry_of_end(known, producer_id, producer_epoch)
    if producer_id != known.producer_id and not is_retry:
        return error_codes.INVALID_PRODUCER_ID_MAPPING
    is_current = producer_epoch == known.producer_epoch
    if known.state == ONGOING:
        if not is_current:
            return error_codes.PRODUCER_FENCED
        wanted = PREPARE_COMMIT if is_commit else PREPARE_ABORT
        return _prepared(known, wanted, new_id, now_ms, client_version)
    if known.state in PREPARED:
        return error_codes.CONCURRENT_TRANSACTIONS if is_current else error_codes.PRODUCER_FENCED
    if not is_current and (not is_retry or known.state == EMPTY):
        return error_codes.PRODUCER_FENCED
    if known.state != EMPTY and (is_retry or not bumps):
        is_done = known.state == (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT)
        return known if is_done else error_codes.INVALID_TXN_STATE
    if is_commit or not bumps:
        return error_codes.INVALID_TXN_STATE
    # Nothing was added, but a batch may be on its way: it must not come into what follows.
    begun = known._replace(start_ms=now_ms)
    return _prepared(begun, PREPARE_ABORT, new_id, now_ms, client_version)


def is_retry_of_end(known: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether a producer of version 2 that names this epoch has not heard that its end was done.

    Not where the last end was one of version 1: that has kept its epoch, and who names the epoch
    before is a producer that was replaced.
    """
    if not known.bumps_epoch:
        return False
    if producer_id == known.producer_id:
        return producer_epoch == known.producer_epoch - 1
    return (
        producer_id == known.previous_producer_id
        and producer_epoch == EPOCH_LAST
        and known.producer_epoch == 0
    )


def fence(known: Transaction, now_ms: int, server_version: int) -> Transaction:
    """The abort of an open transaction that its producer did not ask for: it is fenced."""
    assert known.state == ONGOING
    epoch = known.producer_epoch
    bumps = server_version >= EPOCH_BUMPS_FROM
    return known._replace(
        producer_epoch=epoch + 1,
        last_epoch=epoch if bumps else NO_EPOCH,
        state=PREPARE_ABORT,
        update_ms=now_ms,
        client_version=EPOCH_BUMPS_FROM if bumps else 0,
    )


def _prepared(
    known: Transaction, state: int, new_id: NewId, now_ms: int, client_version: int
) -> Decision:
    following = known._replace(state=state, update_ms=now_ms, client_version=client_version)
    if client_version < EPOCH_BUMPS_FROM:
        return following
    if known.is_exhausted:
        given = new_id()
        if given is None:
            return error_codes.COORDINATOR_LOAD_IN_PROGRESS
        following = following._replace(next_producer_id=given)
    return following._replace(
        producer_epoch=known.producer_epoch + 1, last_epoch=known.producer_epoch
    )


def completed(known: Transaction, now_ms: int) -> Transaction:
    """All markers of what is prepared are written."""
    assert known.state in PREPARED
    following = known._replace(
        state=COMPLETE_COMMIT if known.state == PREPARE_COMMIT else COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
        next_producer_id=NO_ID,
    )
    if known.next_producer_id == NO_ID:
        return following
    return following._replace(
        producer_id=known.next_producer_id,
        producer_epoch=0,
        previous_producer_id=known.producer_id,
    )


def after_end(known: Transaction) -> tuple[int, int]:
    """(producer id, epoch) with which the producer goes on after its EndTxn."""
    if known.next_producer_id != NO_ID:
        return known.next_producer_id, 0
    return known.producer_id, known.producer_epoch


def error_in_version(error: int, version: int, fenced_from: int) -> int:
    """The error in a version of a request: PRODUCER_FENCED came later (KIP-588)."""
    if error == error_codes.PRODUCER_FENCED and version < fenced_from:
        return error_codes.INVALID_PRODUCER_EPOCH
    return error
