"""Produce requests that name several partitions, walked without decoding them.

A producer with many partitions sends one batch for each in one request. Decoded into dicts, such a
request costs more than its appends do; here it is a list of places in the connection's buffer.

Rules of this file:
* A request that is anything but plain is not walked, and `produce` decodes it: one with a
  transactional id, tags, null or old or doubtful records, odd acks. So there is one place that
  knows what to answer to those.
* `walk` looks at each batch as far as Kafka does before it stores any: whole, alone, of magic 2.
* Nothing behind the end of the frame is looked at, though the buffer goes on.

Source: ProduceRequest.json and ProduceResponse.json of Kafka 4.2 (field by field in `wire`).
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from shmbroker.errors import ProtocolFault
from shmbroker.ipc.operation_layout import APPEND_ROW_PARTS, APPENDED_ROW
from shmbroker.kernels import native
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
)
from shmbroker.wire.primitives import (
    array_head,
    compact_string,
    read_compact_string,
    read_length,
    read_string,
    string,
    uvarint_rest,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.wire.primitives import Buffer

VERSION_MIN = 8
"""Below it answers have other fields, and clients are of before 2019."""
LOG_START_FROM = 5
ZSTD_FROM = 7
FLEXIBLE_FROM = 9
LEADERS_FROM = 10
ABORTABLE_FROM = 11
"""The first version whose clients know TRANSACTION_ABORTABLE."""
ADDS_FROM = 12
"""The first version that adds its partitions to a transaction (KIP-890)."""
TOPIC_IDS_FROM = 13
NO_APPEND_TIME = -1
PLACE = RESULT = 3
"""Numbers of a batch: where it lies, what came of it."""
_UNKNOWN = b"\xff" * 8 * RESULT
"""-1 each."""

_ACKS_TIMEOUT = Struct(">hi")
_INT = Struct(">i")
_SHORT = Struct(">h")
_ATTRIBUTES_AT = ATTRIBUTES_POSITION + 1
ROW_BYTES_MIN = 4 + 1 + HEADER_SIZE
"""The least that a partition with a batch takes: room for more than there can be is not made."""
_ROWS = {
    # index, error, base offset, append time, log start; then no record errors, no message, no tags
    False: Struct(">ihqqq6s"),
    True: Struct(">ihqqq3s"),
}
_TAILS = {False: b"\0\0\0\0\xff\xff", True: b"\1\0\0"}


class WalkedTopic(NamedTuple):
    """One topic of a request, and where its batches lie."""

    name: str
    """Empty where `topic_id` says which."""
    topic_id: bytes
    places: memoryview
    """int32 of each batch: partition, position, bytes."""

    @property
    def batches(self) -> int:
        """How many."""
        return len(self.places) // PLACE


class Walked(NamedTuple):
    """A request that is plain."""

    acks: int
    timeout_ms: int
    topics: list[WalkedTopic]


class ManyProduce:
    """What is known of the answers to a walked request. Batch n of it has the token
    `first_token` + n."""

    __slots__ = ("errors", "first_token", "results", "topics")

    def __init__(self, walked: Walked, first_token: int) -> None:
        self.topics = walked.topics
        self.first_token = first_token
        count = sum(topic.batches for topic in walked.topics)
        self.results = memoryview(bytearray(_UNKNOWN * count)).cast("q")
        """int64 of each batch: base offset, append time, log start offset."""
        self.errors: dict[int, tuple[int, Any]] = {}
        """(error code, detail) by n."""

    def put(self, n: int, base_offset: int, append_time_ms: int, log_start_offset: int) -> None:
        """Note what came of batch n."""
        at = n * RESULT
        self.results[at] = base_offset
        self.results[at + 1] = append_time_ms
        self.results[at + 2] = log_start_offset


def walk(buffer: bytearray | memoryview, at: int, end: int, version: int) -> Walked | None:
    """The plain request whose body is buffer[at:end]; None for any other one."""
    try:
        return _walk(buffer, at, end, version)
    except (IndexError, StructError, ProtocolFault):
        return None


def _walk(buffer: bytearray | memoryview, at: int, end: int, version: int) -> Walked | None:
    is_flexible = version >= FLEXIBLE_FROM
    if is_flexible:
        if buffer[at]:
            return None
        at += 1
    else:
        if _SHORT.unpack_from(buffer, at)[0] != -1:
            return None
        at += 2
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, at)
    at += _ACKS_TIMEOUT.size
    topics: list[WalkedTopic] = []
    count, at = read_length(buffer, at, is_flexible)
    for _ in range(count):
        name: str | None = ""
        topic_id = bytes(16)
        if version >= TOPIC_IDS_FROM:
            topic_id = bytes(buffer[at : at + 16])
            at += 16
        else:
            name, at = read_compact_string(buffer, at) if is_flexible else read_string(buffer, at)
        rows, at = read_length(buffer, at, is_flexible)
        if name is None or rows <= 0 or at > end:
            return None
        if rows > (end - at) // ROW_BYTES_MIN:
            return None
        places = memoryview(bytearray(4 * PLACE * rows)).cast("i")
        at = find(buffer, at, end, is_flexible, places)
        if at < 0:
            return None
        topics.append(WalkedTopic(name, topic_id, places))
        if is_flexible:
            if buffer[at]:
                return None
            at += 1
    if is_flexible:
        if buffer[at]:
            return None
        at += 1
    return Walked(acks, timeout_ms, topics) if at == end and topics else None


def encode_answer(many: ManyProduce, version: int) -> bytes:
    """The body of the answer where no batch was refused."""
    is_flexible = version >= FLEXIBLE_FROM
    parts = [array_head(len(many.topics), is_flexible)]
    first = 0
    for topic in many.topics:
        if version >= TOPIC_IDS_FROM:
            parts.append(topic.topic_id)
        else:
            parts.append(compact_string(topic.name) if is_flexible else string(topic.name))
        parts.append(array_head(topic.batches, is_flexible))
        parts.append(answer_rows(topic.places, many.results, first, is_flexible))
        first += topic.batches
        if is_flexible:
            parts.append(b"\0")
    parts.append(b"\0\0\0\0\0" if is_flexible else b"\0\0\0\0")  # throttle time, tags
    return b"".join(parts)


def answers_of(many: ManyProduce) -> list[dict[str, Any]]:
    """The answers as the codec takes them, where some batches were refused."""
    topics = []
    n = 0
    for name, topic_id, places in many.topics:
        rows = []
        for index in places[::PLACE]:
            base, time, start = many.results[n * RESULT : (n + 1) * RESULT]
            row: dict[str, Any] = {
                "index": index,
                "error_code": 0,
                "base_offset": base,
                "log_append_time_ms": time,
                "log_start_offset": start,
            }
            if n in many.errors:
                row["error_code"], detail = many.errors[n]
                if detail is not None:
                    row["error_message"], errors = detail
                    row["record_errors"] = [
                        {"batch_index": at, "batch_index_error_message": text}
                        for at, text in errors
                    ]
            rows.append(row)
            n += 1
        topics.append({"name": name, "topic_id": topic_id, "partition_responses": rows})
    return topics


# ── loops over the batches: as the kernels do them ──────────────────────────────────────────────


def find_by_python(buffer: Buffer, at: int, end: int, is_flexible: bool, places: memoryview) -> int:
    """Fill `places` with the batches of a topic, from its first partition at buffer[at:end], and
    answer the position behind them. -1, or what `walk` catches: one of them is not plain."""
    unpack_int = _INT.unpack_from
    for row in range(0, len(places), PLACE):
        if end - at < 5:
            return -1
        index = unpack_int(buffer, at)[0]
        at += 4
        if is_flexible:
            size = buffer[at]
            at += 1
            if size > 127:
                size, at = uvarint_rest(buffer, at, size)
            size -= 1
        else:
            size = unpack_int(buffer, at)[0]
            at += 4
        if (
            size < HEADER_SIZE
            or at + size > end
            or buffer[at + MAGIC_POSITION] != MAGIC
            or unpack_int(buffer, at + LENGTH_POSITION)[0] != size - LOG_OVERHEAD
            or buffer[at + _ATTRIBUTES_AT] & TRANSACTIONAL_BIT
        ):
            return -1
        places[row], places[row + 1], places[row + 2] = index, at, size
        at += size
        if is_flexible:
            if at == end or buffer[at]:
                return -1
            at += 1
    return at


def pack_by_python(
    target: bytearray | memoryview,
    to: int,
    buffer: Buffer,
    places: memoryview,
    first: int,
    count: int,
    topic_id: bytes,
) -> int:
    """Put rows of an APPEND_MANY and their batches to target[to:]; the position behind them."""
    pack = APPEND_ROW_PARTS.pack_into
    for row in range(first * PLACE, (first + count) * PLACE, PLACE):
        index, at, size = places[row : row + PLACE]
        pack(target, to, topic_id, index, size)
        to += APPEND_ROW_PARTS.size
        target[to : to + size] = buffer[at : at + size]
        to += size
    return to


def put_by_python(results: memoryview, first: int, packed: Buffer) -> None:
    """Put the rows of an APPENDED_MANY, whose first batch is `first`, into `results`."""
    for which, base_offset, log_start_offset in APPENDED_ROW.iter_unpack(packed):
        at = (first + which) * RESULT
        results[at], results[at + 1], results[at + 2] = (
            base_offset,
            NO_APPEND_TIME,
            log_start_offset,
        )


def answer_by_python(
    places: memoryview, results: memoryview, first: int, is_flexible: bool
) -> bytes:
    """Rows of the answer, of `places` and of as many results from `first` on."""
    pack, tail = _ROWS[is_flexible].pack, _TAILS[is_flexible]
    numbers = results[first * RESULT :].tolist()
    return b"".join(
        pack(index, 0, *numbers[at : at + RESULT], tail)
        for at, index in zip(range(0, len(numbers), RESULT), places[::PLACE], strict=False)
    )


find, pack, put_stored, answer_rows = (
    find_by_python, pack_by_python, put_by_python, answer_by_python,
)  # fmt: skip
if native is not None:
    find, pack, put_stored, answer_rows = (
        native.find_appends, native.pack_appends, native.put_stored, native.answer_appends,
    )  # fmt: skip
