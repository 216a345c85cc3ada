"""What a Fetch asks for: a row for each partition, by a quick walk or out of the codec's dicts.

A client without a session names all its partitions in each request, thousands perhaps, in another
order each time (librdkafka does): no bytes repeat that would be worth remembering. But all rows of
a topic are of one size, and one `struct` reads them.

    versions  row
    4-8       index, offset, [log start offset from 5 on,] max bytes
    9-11      index, leader epoch, offset, log start offset, max bytes
    12-18     index, leader epoch, offset, last fetched epoch, log start offset, max bytes, no tags

Rules of this file:
* Pure.
* A walk gives what the codec would give, or None: whatever is not usual (tags, partitions that are
  forgotten, text that is not ASCII, a replica, bytes missing or left over) is the codec's.
* No row is read before it is there.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from shmbroker.errors import ProtocolFault
from shmbroker.wire.primitives import read_length, read_uvarint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Row = tuple[int, int, int, int, int]
    """Index, leader epoch, offset, last fetched epoch, most bytes; epochs -1 if not named."""
    Topics = list[tuple[str, bytes, list[Row]]]
    """Name, id, rows: the name is "" from version 13 on, the id zeros before."""

SESSIONS_FROM, RACK_FROM, FLEXIBLE_FROM, TOPIC_IDS_FROM, STATE_FROM = 7, 11, 12, 13, 15

_INT = Struct(">i")
_SHORT = Struct(">h")
_LIMITS = Struct(">iiib")
"""Most milliseconds, fewest bytes, most bytes, isolation level."""
_SESSION = Struct(">ii")
_ROW_4 = Struct(">iqi")
_ROW_5 = Struct(">iq8xi")
_ROW_9 = Struct(">iiq8xi")
_ROW_12 = Struct(">iiqi8xix")
_NO_ID = bytes(16)


class Asked:
    """A request, decoded. `forgotten`: (name or id, index)."""

    __slots__ = ("forgotten", "isolation", "max_bytes", "max_wait_ms", "min_bytes", "replica_id",
                 "session_epoch", "session_id", "topics")  # fmt: skip

    def __init__(
        self,
        limits: tuple[int, int, int, int],
        session: tuple[int, int],
        topics: Topics,
        forgotten: list[tuple[str | bytes, int]],
        replica_id: int,
    ) -> None:
        """limits: `_LIMITS`. session: its id and epoch. replica_id: negative for clients."""
        self.max_wait_ms, self.min_bytes, self.max_bytes, self.isolation = limits
        self.session_id, self.session_epoch = session
        self.topics = topics
        self.forgotten = forgotten
        self.replica_id = replica_id


def of_body(body: dict[str, Any], version: int) -> Asked:
    """What the codec has decoded."""
    name = "topic_id" if version >= TOPIC_IDS_FROM else "topic"
    state = body["replica_state"] if version >= STATE_FROM else body
    return Asked(
        (body["max_wait_ms"], body["min_bytes"], body["max_bytes"], body["isolation_level"]),
        (body["session_id"], body["session_epoch"]),
        [
            (
                topic["topic"],
                topic["topic_id"],
                [
                    (
                        row["partition"],
                        row["current_leader_epoch"],
                        row["fetch_offset"],
                        row["last_fetched_epoch"],
                        row["partition_max_bytes"],
                    )
                    for row in topic["partitions"]
                ],
            )
            for topic in body["topics"]
        ],
        [
            (topic[name], index)
            for topic in body["forgotten_topics_data"]
            for index in topic["partitions"]
        ],
        state["replica_id"],
    )


def walk(buffer: bytearray, at: int, end: int, version: int) -> Asked | None:
    """The body at buffer[at:end]; None where it is not a usual one."""
    is_flexible = version >= FLEXIBLE_FROM
    try:
        if version < STATE_FROM:
            if _INT.unpack_from(buffer, at)[0] != -1:
                return None
            at += 4
        limits = _LIMITS.unpack_from(buffer, at)
        at += _LIMITS.size
        session = (0, -1)
        if version >= SESSIONS_FROM:
            session = _SESSION.unpack_from(buffer, at)
            at += 8
        count, at = read_length(buffer, at, is_flexible)
        topics: Topics = []
        for _ in range(count):
            if at >= end:
                return None
            name, topic_id = "", _NO_ID
            if version >= TOPIC_IDS_FROM:
                topic_id = bytes(buffer[at : at + 16])
                at += 16
            else:
                encoded, at = _text(buffer, at, end, is_flexible)
                if not encoded.isascii():
                    return None
                name = encoded.decode()
            rows, at = read_length(buffer, at, is_flexible)
            following = at + rows * _row(version).size
            if rows < 0 or following > end:
                return None
            topics.append((name, topic_id, list(_rows(buffer, at, following, version))))
            if is_flexible:
                tags = buffer[at + _ROW_12.size - 1 : following : _ROW_12.size]
                if any(tags) or buffer[following]:
                    return None
                following += 1
            at = following
        if count < 0:
            return None
        if version >= SESSIONS_FROM:
            count, at = read_length(buffer, at, is_flexible)
            if count:
                return None
        if version >= RACK_FROM:
            encoded, at = _text(buffer, at, end, is_flexible)
            if not encoded.isascii():
                return None
        if is_flexible:
            if buffer[at]:
                return None
            at += 1
    except (StructError, IndexError, ValueError, ProtocolFault):
        return None
    return Asked(limits, session, topics, [], -1) if at == end else None


def _row(version: int) -> Struct:
    if version >= FLEXIBLE_FROM:
        return _ROW_12
    return _ROW_9 if version >= 9 else _ROW_5 if version >= 5 else _ROW_4


def _rows(buffer: bytearray, at: int, end: int, version: int) -> Iterator[Any]:
    found: Iterator[Any] = _row(version).iter_unpack(buffer[at:end])
    if version >= FLEXIBLE_FROM:
        return found
    if version >= 9:
        return ((index, epoch, offset, -1, most) for index, epoch, offset, most in found)
    return ((index, -1, offset, -1, most) for index, offset, most in found)


def _text(buffer: bytearray, at: int, end: int, is_flexible: bool) -> tuple[bytes, int]:
    """(the bytes of a string, where it ends). ValueError: there is none, or not all of it."""
    if is_flexible:
        size, at = read_uvarint(buffer, at)
        size -= 1
    else:
        size, at = _SHORT.unpack_from(buffer, at)[0], at + 2
    if size < 0 or at + size > end:
        raise ValueError("no such text")
    return bytes(buffer[at : at + size]), at + size
