"""Asking another process to answer a request that is not hot: EXECUTE, and its EXECUTED.

The body travels as the client sent it, so the asking side need not understand it. What is larger
than a ring's entry may be goes in parts, of one request at a time.
"""

from __future__ import annotations

from shmbroker.ipc.operation_layout import (
    EXECUTE,
    EXECUTE_FLAG_PARTS,
    EXECUTE_HEAD,
    EXECUTE_PART,
    EXECUTED_HEAD,
    TOKEN,
)
from shmbroker.ipc.peer import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.primitives import Buffer


def try_execute(
    peer: Peer,
    token: int,
    api_key: int,
    api_version: int,
    client_id: bytes | None,
    body: Buffer,
    identity: bytes = b"",
    flags: int = 0,
) -> bool:
    """Send a request body for `peer` to answer; False if the ring has no room now.

    identity: of the client that asks, by `pack_identity`; nothing where the family asks itself.
    flags: EXECUTE_FLAG_BY_USE, or none.
    """
    name = client_id or b""
    room = peer.writer.payload_bytes_max - EXECUTE_HEAD.size
    head = EXECUTE_HEAD.pack(token, api_key, api_version, len(name), flags, len(identity))
    if len(name) + len(identity) + len(body) <= room:
        return peer.try_send(EXECUTE, b"".join((head, name, identity, body)))
    if peer.backlog:
        return False
    content = b"".join((name, identity, body))
    at = 0
    while len(content) - at > room:
        peer.send(EXECUTE_PART, TOKEN.pack(token) + content[at : at + room])
        at += room
    flags |= EXECUTE_FLAG_PARTS
    head = EXECUTE_HEAD.pack(token, api_key, api_version, len(name), flags, len(identity))
    peer.send(EXECUTE, head + content[at:])
    return True


class PartialResults:
    """Bodies of which only some pieces have come (EXECUTED_PART), by who sends them and token."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], bytearray] = {}

    def __len__(self) -> int:
        """How many bodies are not whole yet."""
        return len(self._parts)

    def add(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """Add one EXECUTED_PART entry."""
        token = EXECUTED_HEAD.unpack_from(data, index)[0]
        piece = data[index + EXECUTED_HEAD.size : index + length]
        self._parts.setdefault((peer.slot, token), bytearray()).extend(piece)

    def finish(
        self, peer: Peer, data: memoryview, index: int, length: int
    ) -> tuple[int, int, bytes]:
        """One EXECUTED entry: (token, flags, the whole body)."""
        token, flags, _ = EXECUTED_HEAD.unpack_from(data, index)
        piece = bytes(data[index + EXECUTED_HEAD.size : index + length])
        if self._parts and (before := self._parts.pop((peer.slot, token), None)):
            piece = bytes(before) + piece
        return token, flags, piece

    def drop_peer(self, peer: Peer) -> None:
        """The rest of what it has begun does not come, or nobody wants it."""
        for key in [key for key in self._parts if key[0] == peer.slot]:
            del self._parts[key]
