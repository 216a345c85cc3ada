"""The batches of a Produce, on their way to the ring.

   A  one batch            APPEND         all that its partition's log has to know, and the batch
   B  a larger one         APPEND_PART …  then the APPEND, with what is left of it
   C  several small ones   APPEND_MANY    of a walked request (`produce_many`), in its order

Rules of this file:
* A request of any shape is sent as a whole or not at all: who sends has asked `has_room` before.
* What the room was not enough for waits in the peer's backlog, in order.
"""

from __future__ import annotations

from struct import Struct

from shmbroker.gateway.produce_many import (
    ABORTABLE_FROM,
    ADDS_FROM,
    PLACE,
    ZSTD_FROM,
    Walked,
    pack,
)
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    APPEND,
    APPEND_BATCH_AT,
    APPEND_CONSTANT,
    APPEND_FLAG_ADDS,
    APPEND_FLAG_ADMIN_CLIENT,
    APPEND_FLAG_NO_ABORTABLE,
    APPEND_FLAG_NO_ZSTD,
    APPEND_FLAG_PARTS,
    APPEND_FLAG_TRANSACTIONAL,
    APPEND_MANY,
    APPEND_MANY_HEAD,
    APPEND_PART,
    APPEND_ROW_PARTS,
    NAME_LENGTH,
)
from shmbroker.ipc.peer import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONSTANT_BYTES = APPEND_CONSTANT.size - 4
HEAD = Struct(f"<Q{CONSTANT_BYTES}sI")
"""The head of an APPEND: token, the constant but for the batch's size, and that size."""

TOGETHER_MAX = 25
"""The most batches in one APPEND_MANY."""
TOGETHER_BYTES_MAX = 64 * 1024
"""About the most bytes in one APPEND_MANY. A batch of more goes alone."""


def has_room(peer: Peer, needed: int) -> bool:
    """Whether all of a request's batches fit, or the ring is empty and takes them as it drains."""
    if peer.backlog:
        return False
    return peer.writer.free_bytes() >= min(needed + 4096, peer.capacity_bytes)


def said_of_all(body: dict[str, Any], version: int, is_admin: bool) -> tuple[int, bytes]:
    """What each batch of a request is appended with: flags, and the transactional id as `_named`
    packs it."""
    flags = 0 if version >= ZSTD_FROM else APPEND_FLAG_NO_ZSTD
    if is_admin:
        flags |= APPEND_FLAG_ADMIN_CLIENT
    if body["transactional_id"] is None:
        return flags, b""
    flags |= APPEND_FLAG_TRANSACTIONAL | (APPEND_FLAG_ADDS if version >= ADDS_FROM else 0)
    if version < ABORTABLE_FROM:
        flags |= APPEND_FLAG_NO_ABORTABLE
    return flags, _named(body["transactional_id"])


def _named(transactional_id: str) -> bytes:
    """A transactional id as it stands before a batch."""
    encoded = transactional_id.encode()
    return NAME_LENGTH.pack(len(encoded)) + encoded


def send_batch(peer: Peer, token: int, constant: bytes, named: bytes, records: memoryview) -> None:
    """Send one batch to the ring, in parts if it is larger than an entry may be."""
    length = len(records)
    largest = peer.writer.payload_bytes_max - APPEND_BATCH_AT - len(named)
    if length > largest:  # B
        flags = int.from_bytes(constant[2:4], "little") | APPEND_FLAG_PARTS
        constant = constant[:2] + flags.to_bytes(2, "little") + constant[4:]
        at = 0
        head = token.to_bytes(8, "little")
        while length - at > largest:
            peer.send(APPEND_PART, head, records[at : at + largest])
            at += largest
        records = records[at:]
    # A
    peer.send(APPEND, HEAD.pack(token, constant, length) + named, records)


def send_batches(
    peer: Peer,
    token: int,
    walked: Walked,
    topics: list[tuple[bytes, memoryview]],
    view: memoryview,
) -> None:
    """Batches to the ring: (topic id, places) of each topic, small ones together. What is written
    is published before more is: the I/O worker begins meanwhile."""
    timeout_ms = max(0, walked.timeout_ms)
    writer = peer.writer
    left = sum(len(places) for _, places in topics) // PLACE
    pieces: list[tuple[bytes, memoryview, int, int]] = []
    """The entry that is being put together: topic id, places, first and how many."""
    count = total = 0

    def send() -> None:
        nonlocal token, count, total
        if not count:
            return
        head = APPEND_MANY_HEAD.pack(token, walked.acks, 0, timeout_ms, count, 0)
        size = len(head) + total
        place = -1 if peer.backlog else writer.claim(APPEND_MANY, size)
        data: memoryview | bytearray = writer.data if place >= 0 else bytearray(size)
        to = max(place, 0)
        data[to : to + len(head)] = head
        to += len(head)
        for topic_id, places, first, batches in pieces:
            to = pack(data, to, view, places, first, batches, topic_id)
        if place < 0:
            peer.send(APPEND_MANY, bytes(data))
        elif left:
            peer.publish()
        else:
            peer.outbox[peer] = None
        token += count
        pieces.clear()
        count = total = 0

    for topic_id, places in topics:
        first = 0
        for n, size in enumerate(places[2::PLACE].tolist()):
            if size > TOGETHER_BYTES_MAX or count == TOGETHER_MAX or total > TOGETHER_BYTES_MAX:
                if n > first:
                    pieces.append((topic_id, places, first, n - first))
                send()
                first = n
            left -= 1
            if size > TOGETHER_BYTES_MAX:  # A, B
                key = partition_key(topic_id, places[n * PLACE])
                constant = APPEND_CONSTANT.pack(walked.acks, 0, timeout_ms, key, 0)
                position = places[n * PLACE + 1]
                send_batch(
                    peer, token, constant[:CONSTANT_BYTES], b"", view[position : position + size]
                )
                token += 1
                first = n + 1
                continue
            # C
            count += 1
            total += APPEND_ROW_PARTS.size + size
        if first * PLACE < len(places):
            pieces.append((topic_id, places, first, len(places) // PLACE - first))
    send()
