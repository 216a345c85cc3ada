"""Produces that repeat the bytes of one before them, but for the records.

A client sends the same bytes again and again between the correlation id and the records: client id,
acks, timeout, topic, partition. `FastProduce` keeps them, with what they mean; a request that
repeats them for its only partition needs no decoding.

   0       4             8        prefix_end             end
   +-------+-------------+--------+------+---------+-----+
   | first | correlation | prefix | size | records | 000 |   000: flexible versions only
   +-------+-------------+--------+------+---------+-----+

Rules of this file:
* What the bytes mean was allowed and found when they were decoded: it holds for one kind of
  connection (`Connection.scope`), and as long as its topic is the same (`TopicMeaning.holds`).
* Nothing may lie behind the records.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.apis.table import PRODUCE
from shmbroker.gateway.connection import LENT_BYTES_MAX
from shmbroker.gateway.produce_many import FLEXIBLE_FROM, LOG_START_FROM
from shmbroker.gateway.produce_sending import HEAD
from shmbroker.gateway.recogniser import TopicMeaning, forget_gone, key_of
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import ACKS_ALL
from shmbroker.ipc.peer import Peer
from shmbroker.kernels import native
from shmbroker.known import Known
from shmbroker.wire import codec
from shmbroker.wire.frame import response_header
from shmbroker.wire.primitives import uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from shmbroker.gateway.connection import Connection, Meaning
    from shmbroker.gateway.produce import ProduceRequest
    from shmbroker.metadata.image import MetadataImage

KNOWN_MAX = 4096
"""Kinds of requests that a worker remembers for all connections."""
FAST_ENDS_MAX = 4
"""Lengths of the constant bytes that a connection looks for: one for each topic name, mostly."""
SMALL_BYTES_MAX = 32 * 1024
"""The most bytes that the kernel of the straight way stores: a segment stores more another way."""
REQUEST_END = b"\0\0\0"
"""The bytes behind the records of a flexible version."""
_INT = Struct(">i")
_ASKED = Struct("<hhI")
"""How an APPEND_CONSTANT begins: acks, flags, timeout in ms."""


class FastProduce(TopicMeaning):
    """What the constant bytes of one-partition requests mean; of one topic, as it was then."""

    __slots__ = (
        "acks",
        "answer",
        "answer_head",
        "answer_size",
        "answer_tail",
        "batch_at",
        "constant",
        "first",
        "flags",
        "head",
        "is_flexible",
        "key",
        "lent_bytes_max",
        "named",
        "partition_key",
        "peer",
        "prefix",
        "prefix_end",
        "straight",
        "timeout_ms",
        "topic",
        "version",
    )
    acks: int
    answer: Struct
    answer_head: bytes
    answer_size: int
    answer_tail: bytes
    batch_at: int
    constant: bytes
    first: bytes
    flags: int
    """APPEND_FLAG_…"""
    head: Struct
    is_flexible: bool
    key: int
    lent_bytes_max: int
    """The most bytes that a lent client sends at once; 0 where acks wait for replicas."""
    named: bytes
    partition_key: bytes
    peer: Peer
    prefix: bytes
    prefix_end: int
    straight: Meaning | None
    """What `kernels/straight.c` knows of it; None where it must not serve that."""
    timeout_ms: int
    topic: dict[str, Any]
    version: int

    def answered(
        self, correlation_id: int, base_offset: int, append_time_ms: int, log_start_offset: int
    ) -> bytes:
        """The frame that answers a batch which is stored."""
        if self.version >= LOG_START_FROM:
            return self.answer.pack(
                self.answer_size, correlation_id, self.answer_head,
                0, base_offset, append_time_ms, log_start_offset, self.answer_tail,
            )  # fmt: skip
        return self.answer.pack(
            self.answer_size, correlation_id, self.answer_head,
            0, base_offset, append_time_ms, self.answer_tail,
        )  # fmt: skip


class KnownProduces:
    """What a worker has learnt, for all its connections."""

    def __init__(self) -> None:
        self.kept: Known[tuple[Hashable, bytes], FastProduce] = Known(KNOWN_MAX)
        """What is kept, by the scope of the connection and the bytes up to the size of the
        records."""

    def recall(self, connection: Connection, buffer: bytearray, start: int) -> FastProduce | None:
        """What other requests than the last have taught; a client takes turns with partitions."""
        scope = connection.scope
        for prefix_end in connection.fast_ends:
            found = self.kept.get((scope, key_of(buffer, start, start + prefix_end)))
            if found is not None:
                connection.fast_produce = found
                return found
        return None

    def forget_gone(self, image: MetadataImage) -> None:
        """Drop what does not hold in this image."""
        forget_gone(self.kept, image)

    def learn(
        self,
        request: ProduceRequest,
        image: MetadataImage,
        view: memoryview,
        records_at: int,
        constant: bytes,
        named: bytes,
    ) -> None:
        """Keep what this request's constant bytes mean, for those that repeat them. Its records
        begin at view[records_at]; constant, named: what its batch was sent with."""
        fast = _meaning_of(request, image, view, records_at, constant, named)
        if fast is None:
            return
        connection = request.connection
        connection.fast_produce = fast
        self.kept.keep((connection.scope, fast.first + fast.prefix), fast)
        prefix_end = fast.prefix_end
        ends = connection.fast_ends
        if prefix_end in ends:
            ends.remove(prefix_end)
        ends.insert(0, prefix_end)
        del ends[FAST_ENDS_MAX:]


def _meaning_of(
    request: ProduceRequest,
    image: MetadataImage,
    view: memoryview,
    records_at: int,
    constant: bytes,
    named: bytes,
) -> FastProduce | None:
    """What the bytes of this request mean, of its only partition; see `KnownProduces.learn`.

    A  where its constant bytes end, and what they ask for
    B  the answer, encoded once around its four moving fields
    C  where it may go: lent, or the straight way
    """
    version, acks = request.api_version, request.acks
    peer, [topic] = request.peer, request.topics
    assert peer is not None, "its batch was sent"
    # A
    is_flexible = version >= FLEXIBLE_FROM
    record_bytes = len(view) - records_at - (3 if is_flexible else 0)
    size = uvarint(record_bytes + 1) if is_flexible else _INT.pack(record_bytes)
    prefix_end = records_at - len(size)
    if view[prefix_end:records_at] != size or (is_flexible and view[-3:] != REQUEST_END):
        return None  # something lies behind the records
    partition = topic["partition_responses"][0]
    fast = FastProduce()
    fast.first = bytes(view[:4])
    fast.prefix = bytes(view[8:prefix_end])
    fast.prefix_end = prefix_end
    fast.is_flexible = is_flexible
    fast.version = version
    fast.acks, fast.flags, fast.timeout_ms = _ASKED.unpack_from(constant)
    fast.constant = constant
    fast.named = named
    fast.head = Struct(f"{HEAD.format}{len(named)}s")
    fast.batch_at = fast.head.size
    fast.peer = peer
    fast.image = image
    fast.topic_image = (
        image.topics_by_id.get(topic["topic_id"]) or image.topics_by_name[topic["name"]]
    )
    fast.topic = {"name": topic["name"], "topic_id": topic["topic_id"]}
    fast.key = partition["index"]
    # B
    marker = 0x7BADC0DE7BADC0DE
    probe = {"index": partition["index"], "error_code": 0x7E7E, "base_offset": marker}
    probe |= {"log_append_time_ms": marker, "log_start_offset": marker}
    body = codec.encode(
        "ProduceResponse",
        version,
        {"responses": [fast.topic | {"partition_responses": [probe]}]},
    )
    has_log_start = version >= LOG_START_FROM
    moving = Struct(">hqqq" if has_log_start else ">hqq")
    at = body.index(moving.pack(*([0x7E7E] + [marker] * (3 if has_log_start else 2))))
    head = response_header(PRODUCE.API_KEY, version, 0)[4:] + body[:at]
    tail = body[at + moving.size :]
    fast.answer = Struct(f">ii{len(head)}s{moving.format[1:]}{len(tail)}s")
    fast.answer_size = fast.answer.size - 4
    fast.answer_head = head
    fast.answer_tail = tail
    # C
    fast.partition_key = partition_key(fast.topic_image.topic_id, fast.key)
    fast.straight = None
    replicas = fast.topic_image.partitions[fast.key].replicas
    goes_straight = native is not None and acks and not named
    waits = acks == ACKS_ALL and len(replicas) > 1
    fast.lent_bytes_max = LENT_BYTES_MAX if goes_straight or not waits else 0
    if goes_straight:
        fast.straight = (
            fast.first, fast.prefix, constant, head, tail, is_flexible, has_log_start,
        )  # fmt: skip
    return fast
