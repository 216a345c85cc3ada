"""Fetch of one partition, again and again: the same bytes but for correlation id and offset.

A client that reads a single partition without a session says so each time:

    head, all up to the offset   │ OFFSET │ log start offset, max bytes, nothing more
    ── key, but correlation id ──┘ moves  └────────────── rest of the key

What the key means was noted when it was decoded, a `KnownFetch`: the READ around the offset, and
the answer around the numbers and the records.

Rules of this file:
* Only what is usual is noted: one partition that is there and may be read, a client, no session, no
  rack, nothing forgotten, no tags. So the READ and the answer have the bytes that `fetch` would
  give them.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.apis.table import FETCH
from shmbroker.gateway.connection import LENT_BYTES_MAX
from shmbroker.gateway.fetch_answer import (
    HEAD,
    INT,
    PARTITION_V4,
    PARTITION_V5,
    named,
    new_answer,
    no_aborted,
)
from shmbroker.gateway.fetch_request import (
    API_KEY,
    FetchRequest,
    Limits,
    bounded,
    may_read,
)
from shmbroker.gateway.fetch_rows import FLEXIBLE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM
from shmbroker.gateway.recogniser import TopicMeaning
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    READ,
    READ_FLAG_AHEAD,
    READ_HEAD,
    READ_PARTITION,
    READ_SLICE,
    TOKEN,
)
from shmbroker.ipc.passed_files import INLINE_BYTES, FileSlice
from shmbroker.wire import codec
from shmbroker.wire.frame import response_header
from shmbroker.wire.primitives import array_head, uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.fetch_rows import Asked
    from shmbroker.gateway.inflight import Part
    from shmbroker.gateway.ports import RequestContext
    from shmbroker.ipc.passed_files import FileTable, OpenFile
    from shmbroker.ipc.peer import Peer

REPEATED_BYTES_MAX = 512
"""Longer frames are not looked at: any with one partition is shorter, but for long names."""
CORRELATION_ID_BYTES = 4


def _bytes_behind_offset(version: int) -> int:
    """Where there is one partition, nothing forgotten, no rack and no tagged field."""
    if version >= FLEXIBLE_FROM:
        return 4 + 8 + 4 + 5  # last fetched epoch, log start, max bytes; five times nothing
    return 4 + (8 if version >= 5 else 0) + (4 if version >= 7 else 0) + (2 if version >= 11 else 0)


OFFSET_FROM_END = {
    version: _bytes_behind_offset(version) + 8
    for version in range(FETCH.VERSION_MIN, FETCH.VERSION_MAX + 1)
}
OFFSET = Struct(">q")
_READ = Struct("<Q24s32sq16s")
"""Token; the rest of READ_HEAD; READ_PARTITION up to its offset; the offset; what follows."""
assert _READ.size == READ_HEAD.size + READ_PARTITION.size
_ANSWER_START = Struct(">ii")
"""The frame's size, the correlation id."""


class KnownFetch(TopicMeaning):
    """What the bytes around correlation id and offset mean; of one topic, as it was then."""

    __slots__ = ("after", "answer_end", "answer_head", "answer_middle", "before", "client_id",
                 "head", "head_ahead", "index", "is_large", "isolation", "max_bytes", "max_wait_ms",
                 "min_bytes", "name", "row", "topic_id")  # fmt: skip
    after: bytes
    answer_end: bytes
    """What an answer has behind the records."""
    answer_head: bytes
    """What stands before the partition's numbers, but for the frame's size and the correlation id.
    """
    answer_middle: bytes
    """What stands between the partition's numbers and the records' length."""
    before: bytes
    client_id: bytes | None
    head: bytes
    head_ahead: bytes
    """The head of a READ that asks to be told what follows."""
    index: int
    is_large: bool
    """The last answer was a slice that is sent from its file: more such requests will come."""
    isolation: int
    max_bytes: int
    max_wait_ms: int
    min_bytes: int
    name: str
    row: tuple[bytes, int, int, int]
    """Its READ_PARTITION up to the offset."""
    topic_id: bytes

    def request(self, connection: Connection, version: int, correlation_id: int) -> FetchRequest:
        """One more such request."""
        request = FetchRequest(connection, API_KEY, version, correlation_id)
        request.client_id = self.client_id
        request.isolation = self.isolation
        request.known = self
        request.session = request.wanted = None
        answer = new_answer(self.index)
        request.asked = [answer]
        request.topics = [(self.name, self.topic_id, request.asked)]
        return request

    def try_send(
        self,
        gateway: RequestContext,
        connection: Connection,
        peer: Peer,
        offset: int,
        version: int,
        correlation_id: int,
        is_told_ahead: bool,
    ) -> bool:
        """Start one more such request, of this offset; False if the ring has no room."""
        token = gateway.token + 1
        head = self.head_ahead if is_told_ahead else self.head
        read = _READ.pack(token, head, self.before, offset, self.after)
        if connection.throttle is not None:
            read = bounded(connection.throttle, self.client_id, read)
        if not peer.try_send(READ, read):
            return False
        gateway.token = token
        request = self.request(connection, version, correlation_id)
        request.token = token
        request.peer = peer
        gateway.pending[token] = request
        connection.inflight.append(request)
        return True

    def has_answered(
        self, request: FetchRequest, data: memoryview, at: int, files: FileTable
    ) -> bool:
        """The usual answer to such a request: a slice of a file that is sent from there, or few
        records, or none, in one piece. Its READ_SLICE is at data[at]. False where it is not that:
        then `fetch` builds it, to the same bytes."""
        (
            error, _, length, high_watermark, stable, log_start,
            file_id, position, diverging_epoch, _, _,
        ) = READ_SLICE.unpack_from(data, at)  # fmt: skip
        if error or diverging_epoch >= 0 or request.connection.throttle is not None:
            return False
        numbers = high_watermark, stable, log_start
        told = request.connection.ahead
        if told is not None:
            told.numbers = numbers  # it was told before
        if file_id:
            file = files.find(file_id)
            if length <= INLINE_BYTES or file is None:
                return False
            self.is_large = True
            request.response = self.answer_of_slice(request, numbers, file, position, length)
            return True
        self.is_large = False
        start = at + READ_SLICE.size + position
        request.response = [self.answer_of_bytes(request, numbers, data[start : start + length])]
        return True

    def answer_of_bytes(
        self, request: FetchRequest, numbers: tuple[int, int, int], records: bytes | memoryview
    ) -> bytes:
        """An answer with few records, in one piece. numbers: see `answer_of_slice`."""
        head = self._answer_head(request, numbers, len(records))
        return b"".join((head, records, self.answer_end))

    def answer_of_slice(
        self,
        request: FetchRequest,
        numbers: tuple[int, int, int],
        file: OpenFile,
        position: int,
        length: int,
        is_hot: bool = False,
    ) -> list[Part]:
        """An answer with a large slice. numbers: high watermark, last stable offset, log start.
        is_hot: see `FileSlice`."""
        if length > LENT_BYTES_MAX:
            connection = request.connection
            connection.asked_other_at = connection.last_active
        head = self._answer_head(request, numbers, length)
        answer: list[Part] = [head, FileSlice(file, position, length, is_hot)]
        if self.answer_end:
            answer.append(self.answer_end)
        return answer

    def _answer_head(
        self, request: FetchRequest, numbers: tuple[int, int, int], length: int
    ) -> bytes:
        """All that stands before so many bytes of records."""
        version = request.api_version
        high_watermark, stable, log_start = numbers
        if version >= 5:
            row = PARTITION_V5.pack(self.index, 0, high_watermark, stable, log_start)
        else:
            row = PARTITION_V4.pack(self.index, 0, high_watermark, stable)
        parts = (
            self.answer_head,
            row,
            self.answer_middle,
            uvarint(length + 1) if version >= FLEXIBLE_FROM else INT.pack(length),
        )
        size = CORRELATION_ID_BYTES + sum(map(len, parts)) + length + len(self.answer_end)
        return b"".join((_ANSWER_START.pack(size, request.correlation_id), *parts))


def meaning_of(
    gateway: RequestContext,
    request: FetchRequest,
    body: Asked,
    decoded: dict[str, Any],
    encoded: memoryview,
) -> KnownFetch | None:
    """What the same bytes with another offset will mean; None where that is not plain. The request
    names one partition and no session: `body`, out of `decoded`, out of `encoded`."""
    version = request.api_version
    topic = decoded["topics"][0]
    name, topic_id, rows = body.topics[0]
    index, epoch, offset, last_fetched_epoch, max_bytes = rows[0]
    image = gateway.topic_of(topic, version >= TOPIC_IDS_FROM)
    if (
        image is None
        or not 0 <= index < len(image.partitions)
        or not may_read(gateway.guard, request.connection, image.name)
        or body.isolation not in (0, 1)
        or body.replica_id >= 0
        or body.session_id
        or decoded["rack_id"]
        or body.forgotten
        or codec.encode("FetchRequest", version, decoded) != encoded
    ):
        return None
    limits = Limits(body, request.client_id, gateway.fetch_bytes_max)
    known = KnownFetch()
    known.client_id = request.client_id
    known.isolation = limits.isolation
    known.max_bytes = limits.max_bytes
    known.max_wait_ms = limits.max_wait_ms
    known.min_bytes = limits.min_bytes
    known.image = gateway.image
    known.topic_image = image
    known.name = name
    known.topic_id = topic_id
    known.index = index
    known.head = limits.pack_head(0, 1)[TOKEN.size :]
    known.head_ahead = limits.pack_head(0, 1, READ_FLAG_AHEAD)[TOKEN.size :]
    known.is_large = False
    key = partition_key(image.topic_id, index)
    entry = READ_PARTITION.pack(key, max_bytes, epoch, last_fetched_epoch, offset, -1, -1)
    known.before, known.after = entry[:32], entry[40:]
    known.row = key, max_bytes, epoch, last_fetched_epoch
    is_flexible = version >= FLEXIBLE_FROM
    known.answer_head = b"".join(
        (
            response_header(API_KEY, version, 0)[CORRELATION_ID_BYTES:],
            HEAD.pack(0, 0, 0) if version >= SESSIONS_FROM else b"\0\0\0\0",
            array_head(1, is_flexible),
            named(name, topic_id, version),
            array_head(1, is_flexible),
        )
    )
    known.answer_middle = no_aborted(known.isolation, version)
    known.answer_end = b"\0\0\0" if is_flexible else b""
    return known
