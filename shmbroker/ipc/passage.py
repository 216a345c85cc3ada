"""A passage: a Unix socket pair on which client connections go from one process of the family to
another, between two of their requests.

A message is one packet: a tuple of plain values, and the descriptors that belong to it, passed by
SCM_RIGHTS.
Both ends are made before the fork, so nobody else ever writes to one.
"""

from __future__ import annotations

import array
import marshal
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MESSAGE_BYTES_MAX = 64 << 10
DESCRIPTORS_MAX = 2


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a passage, before the fork."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setblocking(False)
    return pair


class Passage:
    """One end."""

    __slots__ = ("_socket",)

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: tuple[Any, ...], descriptors: Sequence[int] = ()) -> bool:
        """Hand over a message, which arrives as a plain tuple; False where there is no room for it
        now, or it is too large."""
        data = marshal.dumps(tuple(message))
        if len(data) > MESSAGE_BYTES_MAX:
            return False
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            self._socket.sendmsg([data], [rights] if descriptors else [])
        except OSError:
            return False
        return True

    def receive(self) -> tuple[tuple[Any, ...], list[int]] | None:
        """The next message and its descriptors, which are the caller's now; None: there is none."""
        size = socket.CMSG_LEN(DESCRIPTORS_MAX * 4)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                MESSAGE_BYTES_MAX, size, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return None
        if not data:
            return None
        found = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(payload[: len(payload) // 4 * 4])
        return marshal.loads(data), list(found)

    def drain(self) -> None:
        """Forget what lies here: it was for a process that is dead."""
        while (found := self.receive()) is not None:
            for descriptor in found[1]:
                os.close(descriptor)
