"""The bytes of a Fetch answer: what stands around the slices.

    size, header ─ throttle time, error, session ─ topics: partitions: [numbers, aborted
    transactions, length, RECORDS, tags] ─ tags

Rules of this file:
* Several small slices are read and become part of the answer's own bytes; a large one stays a
  `FileSlice`, which goes out by sendfile.
* Records are empty, never null; aborted transactions are null unless read_committed was asked.
* Most partitions of a large answer have nothing to tell: such a row is two pieces of bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from shmbroker.gateway.connection import LENT_BYTES_MAX
from shmbroker.gateway.fetch_rows import FLEXIBLE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM
from shmbroker.ipc.passed_files import INLINE_BYTES, FileSlice
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import FETCH
from shmbroker.wire.frame import response_header
from shmbroker.wire.primitives import array_head, uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.inflight import Part
    from shmbroker.gateway.ports import RequestContext

    Answer = list[Any]
    """What is answered about one partition; the constants `A_…` name its places. It is a list,
    because a fetch of thousands of partitions makes thousands of them."""
    Topics = Sequence[tuple[str, bytes, list[Answer]]]
    """Name, id, partitions."""

# Places in an Answer.
A_INDEX = 0
A_ERROR = 1
A_HIGH_WATERMARK = 2
A_LAST_STABLE_OFFSET = 3
A_LOG_START_OFFSET = 4
A_RECORDS = 5
"""Where the records are: None, bytes, or (file, position)."""
A_LENGTH = 6
"""The length of the records."""
A_DIVERGING_EPOCH = 7
A_DIVERGING_END = 8
"""The offset where the diverging epoch ends."""
A_ABORTED = 9
"""The aborted transactions: None, or a list of (producer id, first offset)."""

ANSWER_BYTES = 16
"""The size of an answer without partitions."""
ROW_BYTES = 40
"""The size of a partition in it, without its records."""
LOG_START_FROM = 5
REPLICAS_FROM = 11
"""A preferred read replica is told, which is none here (KIP-392)."""
LEADERS_FROM = 16
"""The first version that is told who leads, where it is somebody else (KIP-951)."""

INT = Struct(">i")
PARTITION_V4 = Struct(">ihqq")
PARTITION_V5 = Struct(">ihqqq")
HEAD = Struct(">ihi")
_ABORTED = Struct(">qq")
_LEADER_ERRORS = frozenset((error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.FENCED_LEADER_EPOCH))
_NO_TAGS = b"\0"


def new_answer(index: int, error: int = error_codes.NONE) -> Answer:
    """What is answered about a partition of which nothing is known, but for an error."""
    return [index, error, -1, -1, -1, None, 0, -1, -1, None]


class Untold(NamedTuple):
    """What stands in an answer beside the topics that are told of, packed."""

    topic_count: int
    topics: bytes
    rest: list[tuple[int, bytes]]
    """For each topic that is told of, how many partitions it has besides, and their rows."""


class FetchAnswer:
    """One answer that is put together. `connection` is told of leaders by its own listener."""

    __slots__ = ("_connection", "_gateway", "_leaders", "_version")

    def __init__(self, gateway: RequestContext, connection: Connection, version: int) -> None:
        self._gateway = gateway
        self._connection = connection
        self._version = version
        self._leaders: set[int] = set()
        """Whom its rows name as leaders."""

    def parts(
        self,
        topics: Topics,
        isolation: int,
        session_id: int,
        correlation_id: int,
        untold: Untold | None = None,
    ) -> list[Part]:
        """What is sent: bytes and slices of files, the frame's size first of all."""
        version = self._version
        is_flexible = version >= FLEXIBLE_FROM
        parts: list[Part] = []
        pieces: list[bytes | bytearray] = [b""]
        piece = pieces.append
        size = 0
        total = sum(answer[A_LENGTH] for _, _, answers in topics for answer in answers)
        is_inline = total <= INLINE_BYTES
        if total > LENT_BYTES_MAX:
            self._connection.asked_other_at = self._connection.last_active
        piece(HEAD.pack(0, 0, session_id) if version >= SESSIONS_FROM else bytes(4))
        others = rest_count = 0
        if untold is not None:
            others = untold.topic_count
        piece(array_head(len(topics) + others, is_flexible))
        middle = no_aborted(isolation, version)
        nothing = middle + no_records(version)
        pack_v5 = PARTITION_V5.pack
        for place, (name, topic_id, answers) in enumerate(topics):
            piece(named(name, topic_id, version))
            if untold is not None:
                rest_count, rest = untold.rest[place]
            piece(array_head(len(answers) + rest_count, is_flexible))
            for row in answers:
                index, error, high, stable, log_start, where, length, epoch, _, ended = row
                if version >= LOG_START_FROM:
                    head = pack_v5(index, error, high, stable, log_start)
                    if not length and not error and epoch < 0 and ended is None:
                        piece(head + nothing)  # as most of many
                        continue
                    piece(head)
                else:
                    piece(PARTITION_V4.pack(index, error, high, stable))
                piece(middle if ended is None else _aborted(ended, version))
                piece(uvarint(length + 1) if is_flexible else INT.pack(length))
                if type(where) is bytes:
                    piece(where)
                elif length:
                    file, position = where
                    part = FileSlice(file, position, length)
                    data = part.try_read() if is_inline else None
                    if data is not None:
                        piece(data)
                    else:
                        joined = b"".join(pieces)
                        size += len(joined) + length
                        parts += (joined, part)
                        pieces.clear()
                if is_flexible:
                    piece(self._tags(row, name, topic_id) if error or epoch >= 0 else _NO_TAGS)
            if rest_count:
                piece(rest)
            if is_flexible:
                piece(_NO_TAGS)
        if untold is not None:
            piece(untold.topics)
        if is_flexible:
            piece(self._node_endpoints() if self._leaders else _NO_TAGS)
        joined = b"".join(pieces)
        size += len(joined)
        parts.append(joined)
        header = response_header(FETCH, version, correlation_id)
        first: Any = parts[0]
        parts[0] = INT.pack(size + len(header)) + header + first
        return parts

    def _tags(self, row: Answer, name: str, topic_id: bytes) -> bytes:
        """The tagged fields of a partition: 0, from where on its log is another one than the
        client's (KIP-595); 1, who leads it (KIP-951)."""
        index, error, _, _, _, _, _, epoch, end, _ = row
        tagged: list[bytes] = []
        if epoch >= 0:
            tagged.append(_tagged(0, INT.pack(epoch) + end.to_bytes(8, "big", signed=True)))
        if self._version >= LEADERS_FROM and error in _LEADER_ERRORS:
            hint = self._gateway.leader_hint(name, topic_id, index)
            if hint is not None:
                self._leaders.add(hint[0])
                tagged.append(_tagged(1, INT.pack(hint[0]) + INT.pack(hint[1])))
        return uvarint(len(tagged)) + b"".join(tagged)

    def _node_endpoints(self) -> bytes:
        """The top-level tagged field 0: where the leaders named above are."""
        nodes = self._gateway.node_endpoints(self._connection, self._leaders)
        body = bytearray(uvarint(len(nodes) + 1))
        for node_id, host, port, rack in nodes:
            encoded = host.encode()
            body += INT.pack(node_id) + uvarint(len(encoded) + 1) + encoded + INT.pack(port)
            if rack is None:
                body += b"\0"
            else:
                body += uvarint(len(rack.encode()) + 1) + rack.encode()
            body += _NO_TAGS
        return b"\x01\x00" + uvarint(len(body)) + bytes(body)


def _tagged(tag: int, fields: bytes) -> bytes:
    """A tagged field that is a struct without tags of its own."""
    return uvarint(tag) + uvarint(len(fields) + 1) + fields + _NO_TAGS


def named(name: str, topic_id: bytes, version: int) -> bytes:
    """How an answer names a topic."""
    if version >= TOPIC_IDS_FROM:
        return topic_id
    encoded = name.encode()
    if version >= FLEXIBLE_FROM:
        return uvarint(len(encoded) + 1) + encoded
    return len(encoded).to_bytes(2, "big") + encoded


def packed_head(answer: Answer, version: int) -> bytes:
    """The numbers with which the row of a partition begins."""
    if version >= LOG_START_FROM:
        return PARTITION_V5.pack(*answer[: A_LOG_START_OFFSET + 1])
    return PARTITION_V4.pack(*answer[: A_LAST_STABLE_OFFSET + 1])


def no_records(version: int) -> bytes:
    """The end of a row without records: their length, and no tags."""
    return b"\x01" + _NO_TAGS if version >= FLEXIBLE_FROM else bytes(4)


def no_aborted(isolation: int, version: int) -> bytes:
    """`_aborted` where there are none: null, unless read_committed was asked for."""
    if version >= FLEXIBLE_FROM:
        aborted = b"\0" if isolation == 0 else b"\x01"
    else:
        aborted = b"\xff\xff\xff\xff" if isolation == 0 else bytes(4)
    return aborted + (b"\xff\xff\xff\xff" if version >= REPLICAS_FROM else b"")


def _aborted(ended: list[tuple[int, int]], version: int) -> bytes:
    """The aborted transactions of a partition, and that there is no preferred read replica."""
    is_flexible = version >= FLEXIBLE_FROM
    end = _NO_TAGS if is_flexible else b""
    rows = [_ABORTED.pack(*row) + end for row in ended]
    replica = b"\xff\xff\xff\xff" if version >= REPLICAS_FROM else b""
    return b"".join((array_head(len(rows), is_flexible), *rows, replica))


def size_about(lengths: list[int]) -> int:
    """About as many bytes as an answer with records of these lengths has: what each partition
    takes besides is a guess."""
    return ANSWER_BYTES + ROW_BYTES * len(lengths) + sum(lengths)
