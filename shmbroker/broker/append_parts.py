"""Batches that come in pieces, as each is larger than an entry of a ring may be.

APPEND_PART …    token, a piece of the batch, in their order
APPEND           with APPEND_FLAG_PARTS: the rest of the batch, behind the head of each APPEND
"""

from __future__ import annotations

from shmbroker.ipc.operation_layout import (
    APPEND_BATCH_AT,
    APPEND_FLAG_PARTS,
    APPEND_FLAG_TRANSACTIONAL,
    NAME_LENGTH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.ipc.peer import Peer

_FLAGS = slice(10, 12)
"""Where APPEND_HEAD has them."""


class AppendParts:
    """The pieces that one I/O worker has taken of batches whose rest has not come."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], bytearray] = {}
        """The beginnings of batches, by the slot of the network worker and the token."""

    def on_part(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """One APPEND_PART entry, with its payload at data[index:index+length]."""
        token = int.from_bytes(data[index : index + 8], "little")
        self._parts.setdefault((peer.slot, token), bytearray()).extend(
            data[index + 8 : index + length]
        )

    def whole(
        self, peer: Peer, token: int, data: memoryview, index: int, end: int, flags: int
    ) -> memoryview:
        """The payload of the APPEND in data[index:end] as if its batch had come in one."""
        part = self._parts.pop((peer.slot, token), bytearray())
        at = index + APPEND_BATCH_AT
        if flags & APPEND_FLAG_TRANSACTIONAL:
            at += NAME_LENGTH.size + NAME_LENGTH.unpack_from(data, at)[0]
        head = bytearray(data[index:at])
        head[_FLAGS] = (flags & ~APPEND_FLAG_PARTS).to_bytes(2, "little")
        part[:0] = head
        part += data[at:end]
        return memoryview(part)

    def drop_peer(self, slot: int) -> None:
        """Forget a dead network worker: the rest of its batches will not come."""
        self._parts = {key: part for key, part in self._parts.items() if key[0] != slot}
