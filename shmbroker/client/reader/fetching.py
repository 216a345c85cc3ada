"""Planned ranges of offsets as raw batches over the Kafka protocol: for tasks without the files.

What comes is what the files hold, whole record batches as they lie in the log, so the same decoder
reads it. No client library hands out raw batches, hence the plain Fetch requests here:

    Fetch v13 ──► next offset known from the headers ──► next Fetch sent ──► batches handed out
                                                         (on its way while they are decoded)

Rules:

* The planned range is all that is read: the end is below the high watermark since it was planned,
  and the leader gives nothing beyond its own anyway.
* A leader that moves or restarts is looked for again, until nothing has come for the consumer's
  time. A topic that was made again is not the planned one: its id differs.
* What the leader no longer has is told by the exact range, and skipped if the query allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from shmbroker import clock
from shmbroker.client.connection import Connection
from shmbroker.client.faults import ClusterFault, LaterFault, refuse
from shmbroker.client.reader.aborted import AbortedRange, find_ends
from shmbroker.client.reader.asking import Consumer
from shmbroker.client.reader.planning import Piece
from shmbroker.client.retries import rests
from shmbroker.errors import CorruptFault, ProtocolFault
from shmbroker.ids import uuid_text
from shmbroker.records.batch_layout import (
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LOG_OVERHEAD,
)
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import FETCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.reader.leaders import KnownLeaders
    from shmbroker.wire.codec import Message


Lose = Callable[[str], None]
"""Called where records are gone, with what to say; raises if the query must not go on without
them."""

_HEAD = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_TOPIC_GONE = (
    error_codes.UNKNOWN_TOPIC_ID,
    error_codes.INCONSISTENT_TOPIC_ID,
    error_codes.UNKNOWN_TOPIC_OR_PARTITION,
)


class Fetched(NamedTuple):
    """Whole batches, the aborted transactions whose records must be left out, and the offset that
    was asked for: what the first batch has before it was handed out, or told as lost."""

    data: memoryview
    aborted: tuple[AbortedRange, ...]
    start_offset: int


def fetch(consumer: Consumer, piece: Piece, lose: Lose, leaders: KnownLeaders) -> Iterator[Fetched]:
    """Yield the batches that hold the piece's offsets, in order; ClusterFault if nobody answers."""
    yield from _Fetch(leaders, consumer, piece, lose).batches()


class _Fetch:
    """One range on its way."""

    def __init__(self, leaders: KnownLeaders, consumer: Consumer, piece: Piece, lose: Lose) -> None:
        self.leaders = leaders
        self.client = leaders.client(consumer)
        self.consumer = consumer
        self.piece = piece
        self.lose = lose
        self.offset = piece.start_offset
        self.connection: Connection | None = None
        self.leader = -1  # whose connection it is
        self.name = f"{piece.topic}-{piece.partition}"

    def batches(self) -> Iterator[Fetched]:
        """The answers, as far as they hold something; the next one is asked for in advance."""
        deadline = clock.monotonic() + self.consumer.timeout_s
        resting = rests()
        is_well = False
        try:
            while self.offset < self.piece.end_offset:
                try:
                    fetched = self._next()
                except (LaterFault, OSError) as fault:
                    self._disconnect()
                    rest_s = next(resting)
                    if clock.monotonic() + rest_s > deadline:
                        raise ClusterFault(
                            f"offsets {self.offset} to {self.piece.end_offset - 1} of {self.name}"
                            f" did not come within {self.consumer.timeout_s:.0f} s, at last:"
                            f" {fault}"
                        ) from fault
                    clock.sleep(rest_s)
                except ProtocolFault as fault:
                    raise ClusterFault(f"the leader of {self.name} answers: {fault}") from fault
                else:
                    if fetched is not None:
                        yield fetched
                        deadline = clock.monotonic() + self.consumer.timeout_s
                        resting = rests()
                    elif clock.monotonic() > deadline:
                        raise ClusterFault(
                            f"the leader of {self.name} has nothing from offset {self.offset} on,"
                            f" though {self.piece.end_offset} was below its high watermark"
                        )
            is_well = True
        finally:
            if self.connection is not None and not self.connection.is_waiting and is_well:
                self.leaders.give_back(self.leader, self.connection)
            else:
                self._disconnect()

    def _next(self) -> Fetched | None:
        """The next answer, after which one more is asked for; None if nothing has come yet."""
        if self.connection is None:
            topic = self.leaders.topic(self.client, self.piece.topic, self.piece.topic_id)
            if topic is None:
                self._lose(self.piece.end_offset, "the topic was deleted")
                return None
            if topic.topic_id != self.piece.topic_id:
                self._lose(
                    self.piece.end_offset,
                    "the topic was deleted and made again, its id was"
                    f" {uuid_text(self.piece.topic_id)}, now it is {uuid_text(topic.topic_id)}",
                )
                return None
            self.leader = topic.leader_of(self.piece.partition)
            self.connection = self.leaders.take(self.client, topic, self.piece.partition)
        if not self.connection.is_waiting:
            self._send()
        fetched = self._take(self.connection.receive())
        if fetched is not None and self.offset < self.piece.end_offset:
            self._send()
        return fetched

    def _disconnect(self) -> None:
        self.leaders.forget(self.piece.topic)
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _send(self) -> None:
        assert self.connection is not None
        partition = {
            "partition": self.piece.partition,
            "fetch_offset": self.offset,
            "partition_max_bytes": self.consumer.fetch_bytes,
        }
        body = {
            "max_wait_ms": self.consumer.fetch_wait_ms,
            "min_bytes": 1,
            "max_bytes": self.consumer.fetch_bytes,
            "isolation_level": int(self.consumer.is_read_committed),
            "topics": [{"topic_id": self.piece.topic_id, "partitions": [partition]}],
            "rack_id": "",
        }
        self.connection.send(FETCH, body)

    def _take(self, answer: Message) -> Fetched | None:
        """What an answer holds; moves `offset` on. None if it holds nothing yet."""
        _refuse(answer["error_code"], self.name)
        (topic,) = answer["responses"] or [{"partitions": []}]
        if not topic["partitions"]:
            raise LaterFault(f"the leader of {self.name} left it out of its answer")
        (partition,) = topic["partitions"]
        error = partition["error_code"]
        if error == error_codes.OFFSET_OUT_OF_RANGE:
            self._out_of_range()
            return None
        _refuse(error, self.name)
        records = partition["records"]
        if not records:
            return None
        size, next_offset = whole_batches(records)
        if next_offset <= self.offset:
            raise CorruptFault(f"the leader of {self.name} answers with older batches than asked")
        aborted = [
            (t["producer_id"], t["first_offset"]) for t in partition["aborted_transactions"] or ()
        ]
        start_offset, self.offset = self.offset, next_offset
        data = memoryview(records)[:size]
        return Fetched(data, find_ends(data, aborted) if aborted else (), start_offset)

    def _out_of_range(self) -> None:
        """The range begins before the log does, or reaches beyond it."""
        starts = {(self.piece.topic, self.piece.partition): -2}
        topics = self.client.topics([self.piece.topic])
        first = self.client.offsets(topics, starts)[self.piece.topic, self.piece.partition]
        if first <= self.offset:
            self._lose(self.piece.end_offset, "the log ends before them")
        else:
            self._lose(min(first, self.piece.end_offset), "deleted by retention")

    def _lose(self, end_offset: int, why: str) -> None:
        self.lose(f"offsets {self.offset} to {end_offset - 1} of {self.name} are lost: {why}")
        self.offset = end_offset


def whole_batches(data: memoryview) -> tuple[int, int]:
    """(bytes of the whole batches at its begin, the offset behind the last of them).

    CorruptFault if not even the first batch is whole.
    """
    position, end, last = 0, len(data), -1
    unpack = _HEAD.unpack_from
    while end - position >= HEADER_SIZE:
        _, length = unpack(data, position)
        following = position + LOG_OVERHEAD + length
        if length < HEADER_SIZE - LOG_OVERHEAD or following > end:
            break
        last = position
        position = following
    if last < 0:
        raise CorruptFault("a fetched batch is not whole")
    base_offset = unpack(data, last)[0]
    delta = _LAST_OFFSET_DELTA.unpack_from(data, last + LAST_OFFSET_DELTA_POSITION)[0]
    return position, base_offset + delta + 1


def _refuse(error: int, name: str) -> None:
    if error in _TOPIC_GONE:
        raise LaterFault(
            f"Fetch of {name}: {error_codes.name_of(error)} ({error_codes.message_of(error)})"
        )
    refuse(error, f"Fetch of {name}")
