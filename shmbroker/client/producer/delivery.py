"""One partition's record batches on their way to its leader, as a pure state machine.

    closed ─► waiting ─► in flight ─► delivered
                 ▲           │
                 └─ returned ◄┘  an error that may pass, or the connection ended

Rules

* Batches leave in the order of their sequences, at most `IN_FLIGHT_MAX` at a time: a broker knows
  the last five of a producer, so one that is sent again is recognised (KIP-98).
* When one comes back, no other is sent until all that are in flight have been answered; then those
  that came back go first, in their order. So nothing overtakes, whatever the broker refused.
* Nothing new is sent until those are delivered: one of them may be in the log already, and five
  new ones behind it would make the broker forget it.
* The first batch goes alone: a broker that has not heard of a producer takes whatever sequence it
  is shown, so a second batch could get in where the first was refused.
* Those in flight are at one broker: a new leader gets the next when the old one has answered.
* Without sequences (no idempotence) one batch is in flight at a time, which keeps the order too,
  but one that is sent again may be there twice.

What an answer means
  A  no error, or DUPLICATE_SEQUENCE_NUMBER                 delivered
  B  OUT_OF_ORDER_SEQUENCE_NUMBER behind another one         returned: what came before is missing
     that came back
  C  an error that Kafka calls retriable                    returned, with a look at the metadata
  D  too large, with more than one record                   split in two, which keep the numbers
  E  anything else                                          failed, for good

Times are seconds of a clock that never goes back.
"""

from collections import deque
from typing import NamedTuple

from shmbroker.crc32c import crc32c
from shmbroker.records import codecs
from shmbroker.records.batch import encode_batch, iterate_records
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CRC_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    SEQUENCES,
    TRANSACTIONAL_BIT,
)
from shmbroker.wire import error_codes

IN_FLIGHT_MAX = 5
"""Sequences wrap to 0 behind 2^31 - 1."""

DELIVERED = "delivered"
RETURNED = "returned"
SPLIT = "split"
FAILED = "failed"

_TOO_LARGE = (error_codes.MESSAGE_TOO_LARGE, error_codes.RECORD_LIST_TOO_LARGE)
_UNDECIDED = (
    error_codes.NETWORK_EXCEPTION,
    error_codes.REQUEST_TIMED_OUT,
    error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""Errors after which a batch may be in the log."""


class ProducerIdentity(NamedTuple):
    """A producer id with its epoch; NO_IDENTITY: not idempotent."""

    producer_id: int
    epoch: int
    is_transactional: bool = False


NO_IDENTITY = ProducerIdentity(NO_PRODUCER_ID, -1)


class Batch:
    """Records that travel together. `buffer` holds them from HEADER_SIZE to `end`."""

    __slots__ = (
        "base_timestamp",
        "buffer",
        "count",
        "created_s",
        "end",
        "error",
        "frame",
        "is_compressed",
        "max_timestamp",
        "sequence",
        "tries",
    )

    def __init__(
        self,
        buffer: bytearray,
        end: int,
        count: int,
        base_timestamp: int,
        max_timestamp: int,
        created_s: float,
    ) -> None:
        self.buffer = buffer
        self.end = end
        self.count = count
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.created_s = created_s
        self.sequence = NO_SEQUENCE
        self.tries = 0
        self.error = error_codes.NONE  # of the last try
        self.frame: memoryview | None = None
        self.is_compressed = False  # by the codec that `seal` is told

    @property
    def size(self) -> int:
        """Bytes that it holds in memory."""
        return len(self.buffer)

    def seal(self, identity: ProducerIdentity, codec: int) -> memoryview:
        """The bytes to send, made at the first call: compressed, with header and CRC."""
        if self.frame is not None:
            return self.frame
        if codec and not self.is_compressed:
            plain = memoryview(self.buffer)[HEADER_SIZE : self.end]
            self.buffer = bytearray(HEADER_SIZE) + codecs.compress(codec, bytes(plain))
            self.end = len(self.buffer)
        frame = memoryview(self.buffer)[: self.end]
        BATCH_HEADER.pack_into(
            frame,
            0,
            0,
            self.end - LOG_OVERHEAD,
            NO_LEADER_EPOCH,
            MAGIC,
            0,
            codec | TRANSACTIONAL_BIT if identity.is_transactional else codec,
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            identity.producer_id,
            identity.epoch,
            self.sequence,
            self.count,
        )
        crc = crc32c(frame[ATTRIBUTES_POSITION:])
        frame[CRC_POSITION:ATTRIBUTES_POSITION] = crc.to_bytes(4, "big")
        self.frame = frame
        return frame

    def halves(self, identity: ProducerIdentity, codec: int) -> "tuple[Batch, Batch]":
        """Split the records into two batches, which go on with its sequences. It must be sealed."""
        assert self.frame is not None and self.count > 1
        records = [record[1:] for record in iterate_records(self.frame)]
        middle = len(records) // 2
        parts = []
        for low, high in ((0, middle), (middle, len(records))):
            times = [record[0] for record in records[low:high]]
            sequence = self.sequence
            if sequence != NO_SEQUENCE:
                sequence = (sequence + low) % SEQUENCES
            frame = encode_batch(
                records[low:high],
                codec=codec,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=sequence,
                is_transactional=identity.is_transactional,
            )
            buffer = bytearray(frame)
            part = Batch(buffer, len(frame), high - low, times[0], max(times), self.created_s)
            part.sequence, part.tries, part.error = sequence, self.tries, self.error
            part.frame = memoryview(buffer)
            parts.append(part)
        return parts[0], parts[1]


class PartitionQueue:
    """The batches of one partition, and what became of them."""

    __slots__ = (
        "_returned",
        "accepted_records",
        "broker_id",
        "delivered_records",
        "filled_bytes",
        "first_offset",
        "has_sequences",
        "in_flight",
        "is_known",
        "last_offset",
        "marked",
        "next_sequence",
        "partition",
        "retry_s",
        "topic",
        "waiting",
    )

    def __init__(
        self, topic: str, partition: int, has_sequences: bool = True, next_sequence: int = 0
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.has_sequences = has_sequences
        self.next_sequence = next_sequence
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self._returned: list[Batch] = []
        self.broker_id = -1  # where those in flight are
        self.retry_s = 0.0  # nothing is sent before
        self.accepted_records = 0
        self.filled_bytes = 0  # of the batch that was closed last
        self.is_known = False  # to the broker, by a batch that it has taken
        self.delivered_records = 0
        self.first_offset = -1
        self.last_offset = -1
        self.marked = (0, -1, -1)  # what the last three were at the last commit

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def is_idle(self) -> bool:
        """Whether everything that was closed is delivered."""
        return not (self.waiting or self.in_flight or self._returned)

    def depth(self) -> int:
        """Batches that are not delivered."""
        return len(self.waiting) + len(self.in_flight) + len(self._returned)

    def add(self, batch: Batch) -> None:
        """A batch was closed: it gets its sequence and waits."""
        if self.has_sequences:
            batch.sequence = self.next_sequence
            self.next_sequence = (self.next_sequence + batch.count) % SEQUENCES
        self.waiting.append(batch)

    def is_sendable(self, broker_id: int, now_s: float) -> bool:
        """Whether the next batch may go to this broker, the leader."""
        if not self.waiting or self._returned or now_s < self.retry_s:
            return False
        if not self.in_flight:
            return True
        if not self.waiting[0].tries and any(batch.tries > 1 for batch in self.in_flight):
            return False
        room = IN_FLIGHT_MAX if self.has_sequences and self.is_known else 1
        return self.broker_id == broker_id and len(self.in_flight) < room

    def send(self, broker_id: int) -> Batch:
        """The next batch, from now on in flight."""
        self.broker_id = broker_id
        batch = self.waiting.popleft()
        batch.tries += 1
        self.in_flight.append(batch)
        return batch

    def on_answer(self, batch: Batch, error: int, base_offset: int, retry_s: float) -> str:
        """What the broker said: DELIVERED, RETURNED (sent again from `retry_s` on), SPLIT, FAILED.

        After SPLIT the caller hands the halves to `on_split`.
        """
        if error in (error_codes.NONE, error_codes.DUPLICATE_SEQUENCE_NUMBER):  # A
            self.in_flight.remove(batch)
            self.is_known = True
            self.delivered_records += batch.count
            if base_offset >= 0:
                if self.first_offset < 0 or base_offset < self.first_offset:
                    self.first_offset = base_offset
                self.last_offset = max(self.last_offset, base_offset + batch.count - 1)
            self._take_back()
            return DELIVERED
        batch.error = error
        if error in _TOO_LARGE and batch.count > 1:  # D
            return SPLIT
        is_behind = error == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER and (
            bool(self._returned) or batch is not self.in_flight[0]
        )
        if not is_behind and not error_codes.is_retriable(error):  # E
            self.in_flight.remove(batch)
            return FAILED
        self.on_returned(batch, retry_s)  # B if it is behind, else C
        return RETURNED

    def on_returned(self, batch: Batch, retry_s: float) -> None:
        """A batch in flight was refused, or its connection ended: it waits for another try."""
        self.in_flight.remove(batch)
        self._returned.append(batch)
        self.retry_s = retry_s
        self._take_back()

    def on_split(self, batch: Batch, first: Batch, second: Batch) -> None:
        """A batch in flight was too large: its halves are sent instead."""
        self.in_flight.remove(batch)
        self._returned += (first, second)
        self._take_back()

    def _take_back(self) -> None:
        """Take back the batches that came back, once none is in flight: they are the next, in their
        order."""
        if self._returned and not self.in_flight:
            # They are fewer than half of all sequences, so those before the wrap come first.
            origin = self._returned[0].sequence
            half = SEQUENCES // 2
            self._returned.sort(key=lambda b: (b.sequence - origin + half) % SEQUENCES)
            self.waiting.extendleft(reversed(self._returned))
            self._returned.clear()

    def oldest(self) -> Batch | None:
        """The batch that has been on its way for longest."""
        batches = [queue[0] for queue in (self.in_flight, self.waiting) if queue]
        batches += self._returned
        return min(batches, key=lambda batch: batch.created_s) if batches else None

    def undecided(self) -> int:
        """Records that were sent, and may or may not be in the log."""
        batches = [*self.in_flight, *self._returned, *self.waiting]
        return sum(
            batch.count
            for batch in batches
            if batch.tries and (batch in self.in_flight or batch.error in _UNDECIDED)
        )

    def mark(self) -> None:
        """A transaction was committed."""
        self.marked = self.delivered_records, self.first_offset, self.last_offset

    def restart(self) -> None:
        """The transaction is aborted, and another epoch begins, with sequence 0."""
        self.clear()
        self.delivered_records, self.first_offset, self.last_offset = self.marked
        self.accepted_records = self.delivered_records
        self.next_sequence = 0
        self.is_known = False
        self.retry_s = 0.0

    def clear(self) -> None:
        """Forget all that is not delivered."""
        self.in_flight.clear()
        self._returned.clear()
        self.waiting.clear()
