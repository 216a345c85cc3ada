"""Transactional batches that wait until their coordinator knows of the partition (KIP-890).

    APPEND, the first of a transaction here   ──► ask(…): is the transaction under way, and is this
    further APPENDs of the producer, held          partition part of it?
    …                                         ◄── on_answer(error)
    all of them appended, or refused, in the order in which they came

A batch that begins a transaction is appended only if the coordinator will end it: otherwise no
marker ever came, and read_committed readers would wait at it for good.

Rules of this file:
* Only this producer's batches for this partition wait; nobody else does.
* A marker that comes meanwhile ends what the answer is about (another coordinator may have sent it,
  so the two are in no order): the answer counts no more, and the batches are refused. But not one
  that ends the transaction before.
* An answer is about one epoch. Batches of another one may have come behind it, as of a producer
  that took over while a coordinator was slow to answer its predecessor: whatever that is told,
  there is another question about them.
* What waits is bounded in bytes; beyond, batches are refused with an error that every producer
  retries.
"""

from __future__ import annotations

from shmbroker.broker.append_answers import refuse
from shmbroker.ipc.operation_layout import (
    APPEND_BATCH_AT,
    APPEND_FLAG_ADDS,
    APPEND_FLAG_NO_ABORTABLE,
    APPEND_HEAD,
    NAME_LENGTH,
)
from shmbroker.records.batch_layout import H_COUNT, H_PRODUCER_EPOCH, H_PRODUCER_ID
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.ipc.peer import Peer
    from shmbroker.replica.partition import Partition, Partitions

    Ask = Callable[["Partition", str, int, int, bool, Callable[[int], None]], None]
    """ask(partition, transactional id, producer id, epoch, may_add, on_answer): `on_answer` gets
    the error code for the producer, now or later, once. may_add: the partition becomes part of the
    transaction, if it isn't (transaction.version 2); else it must be (AddPartitionsToTxn)."""
    Held = tuple["Peer", memoryview, int]
    """A held APPEND: whose it is, a copy of its payload, as if it had come in one part, and its
    epoch."""

BYTES_MAX = 32 << 20

_WHY = {
    error_codes.INVALID_TXN_STATE: "Partition was not added to the transaction",
    error_codes.NOT_ENOUGH_REPLICAS: "Unable to verify the partition has been added to the "
    "transaction.",
}
"""What Kafka has a text for."""


def refuse_all(
    partition: Partition,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    may_add: bool,
    on_answer: Callable[[int], None],
) -> None:
    """The answer where nobody coordinates transactions."""
    on_answer(error_codes.INVALID_TXN_STATE)


class HeldBatches:
    """A question under way, and the batches that wait for its answer."""

    __slots__ = ("epoch", "held", "is_ended", "may_add")

    def __init__(self, epoch: int, may_add: bool) -> None:
        self.epoch = epoch
        self.may_add = may_add
        self.held: list[Held] = []
        self.is_ended = False
        """A marker came: whatever the answer is, it is about what was before."""


class Unverified:
    """The batches of one I/O worker that wait to be verified. append: takes a held batch again, as
    an APPEND, once the coordinator has said yes."""

    __slots__ = ("_append", "_bytes", "_partitions", "ask", "asked")

    def __init__(
        self,
        partitions: Partitions,
        append: Callable[[Peer, memoryview, int, int, HeldBatches], None],
        ask: Ask,
    ) -> None:
        self._partitions = partitions
        self._append = append
        self.ask = ask
        self.asked: dict[tuple[bytes, int], HeldBatches] = {}
        """The held batches whose coordinator is asked, by partition key and producer id."""
        self._bytes = 0

    def is_known(
        self, partition: Partition, header: tuple[int, ...], verified: HeldBatches | None
    ) -> bool:
        """Whether the transaction of a batch is open here, or its coordinator has said yes."""
        producer_id, epoch = header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH]
        if verified is not None and verified.epoch == epoch:
            return True
        if (partition.key, producer_id) in self.asked:
            return False  # those behind one that waits do so, too
        return partition.producers.is_open(producer_id, epoch)

    @staticmethod
    def begins_late(partition: Partition, header: tuple[int, ...], verified: HeldBatches) -> bool:
        """Whether a verified batch is not the first of its producer: one that adds its partitions
        begins with sequence 0 where nothing is known of it."""
        producer_id, _, base_sequence = header[H_PRODUCER_ID:H_COUNT]
        is_new = producer_id not in partition.producers.producers
        return verified.may_add and base_sequence != 0 and is_new

    def hold(
        self,
        peer: Peer,
        token: int,
        partition: Partition,
        header: tuple[int, ...],
        payload: memoryview,
    ) -> None:
        """Let a batch wait until the coordinator has said whether this partition is part of its
        transaction, and ask unless that is done; refuse it if too much waits.

        `payload` belongs to the ring, or to another caller: it is copied.
        """
        if self._bytes + len(payload) > BYTES_MAX:
            why = "too many batches wait for a coordinator"
            refuse(peer, token, error_codes.NOT_ENOUGH_REPLICAS, why)
            return
        producer_id, epoch = header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH]
        key = partition.key, producer_id
        asked = self.asked.get(key)
        is_first = asked is None
        may_add = APPEND_HEAD.unpack_from(payload)[2] & APPEND_FLAG_ADDS != 0
        if asked is None:
            asked = self.asked[key] = HeldBatches(epoch, may_add)
        self._bytes += len(payload)
        asked.held.append((peer, memoryview(bytes(payload)), epoch))
        if is_first:
            question = asked

            def on_answer(error: int) -> None:
                self._on_answer(key, question, error)

            transactional_id = _transactional_id(payload)
            self.ask(partition, transactional_id, producer_id, epoch, may_add, on_answer)

    def _on_answer(self, key: tuple[bytes, int], asked: HeldBatches, error: int) -> None:
        if self.asked.get(key) is not asked:
            return  # nobody waits any more
        del self.asked[key]
        if asked.is_ended and not error:
            error = error_codes.INVALID_TXN_STATE
        for peer, payload, epoch in asked.held:
            self._bytes -= len(payload)
            if error and epoch == asked.epoch:
                self._refuse(peer, payload, error)
            else:
                self._append(peer, payload, 0, len(payload), asked)

    def _refuse(self, peer: Peer, payload: memoryview, error: int) -> None:
        """No log has looked at the batch: the answer has no log start."""
        token, _, flags, _, _, _ = APPEND_HEAD.unpack_from(payload)
        if error == error_codes.TRANSACTION_ABORTABLE and flags & APPEND_FLAG_NO_ABORTABLE:
            error = error_codes.INVALID_TXN_STATE
        refuse(peer, token, error, _WHY.get(error))

    def on_marker(self, key: bytes, producer_id: int, epoch: int) -> None:
        """A marker of the producer was appended.

        With transaction.version 2 it bears the epoch of the producer's next transaction, which may
        have begun to ask here before the marker came.
        """
        asked = self.asked.get((key, producer_id))
        if asked is not None and (epoch > asked.epoch or not asked.may_add):
            asked.is_ended = True

    def drop_peer(self, slot: int) -> None:
        """Drop the batches of a dead network worker."""
        for key, asked in list(self.asked.items()):
            gone = [held for held in asked.held if held[0].slot == slot]
            self._bytes -= sum(len(payload) for _, payload, _ in gone)
            asked.held = [held for held in asked.held if held[0].slot != slot]
            if not asked.held:
                del self.asked[key]


def _transactional_id(payload: memoryview) -> str:
    """What an APPEND with APPEND_FLAG_TRANSACTIONAL names."""
    at = APPEND_BATCH_AT + NAME_LENGTH.size
    end = at + NAME_LENGTH.unpack_from(payload, APPEND_BATCH_AT)[0]
    return str(payload[at:end], "utf-8", "replace")
