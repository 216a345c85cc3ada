"""What tasks, the keeper and the driver say to each other: JSON, behind its length, over a socket.

Tasks come over TCP, from other hosts, too. Both sides show that they know the writer's token, which
Spark brings to its tasks, and do not tell it: each answers the other's challenge by a HMAC of it.

    keeper → task   challenge, 32 bytes
    task → keeper   HMAC("task" + challenge), own challenge
    keeper → task   HMAC("keeper" + challenge)

The driver comes over a Unix socket in the kernel's namespace, where a process's user is known.

FarFault: the other side is gone, or is not what it should be.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
from struct import Struct
from typing import Any

from shmbroker.errors import Fault

MESSAGE_BYTES_MAX = 16 << 20
"""A task names all of its partitions in one message."""
_GREETING_BYTES_MAX = 64
_SIZE = Struct(">I")
_CHALLENGE_BYTES = 32
_GREETING_S = 30.0
_CREDENTIALS = Struct("3i")
"""Process, user and group, as SO_PEERCRED gives them."""

Fields = dict[str, Any]


class FarFault(Fault):
    """The keeper or a task does not answer any more, or is a stranger."""


class Channel:
    """One connection; used by one thread at a time."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        if stream.family != socket.AF_UNIX:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # a host that went without a word is noticed after 20 s
            for option, value in (
                (socket.TCP_KEEPIDLE, 10),
                (socket.TCP_KEEPINTVL, 5),
                (socket.TCP_KEEPCNT, 2),
                (socket.TCP_USER_TIMEOUT, 20_000),
            ):
                stream.setsockopt(socket.IPPROTO_TCP, option, value)

    def close(self) -> None:
        self._stream.close()

    def ask(self, **fields: object) -> Fields:
        """Say something, and what is answered; the fault that the answer tells."""
        self.say(fields)
        return self.hear()

    def say(self, fields: Fields) -> None:
        """Send one message."""
        self._send(json.dumps(fields).encode())

    def hear(self, bytes_max: int = MESSAGE_BYTES_MAX) -> Fields:
        """The next message."""
        try:
            found = json.loads(self._receive(bytes_max))
        except ValueError as error:
            raise FarFault(f"a message is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise FarFault("a message is no object")
        return found

    # --- who is there ----------------------------------------------------------------------------

    def let_in(self, token: bytes) -> None:
        """The keeper's side: FarFault for who does not know the token."""
        self._stream.settimeout(_GREETING_S)
        challenge = os.urandom(_CHALLENGE_BYTES)
        self._send(challenge)
        answer = self._receive(_GREETING_BYTES_MAX)
        proof, theirs = answer[:_CHALLENGE_BYTES], answer[_CHALLENGE_BYTES:]
        if len(theirs) != _CHALLENGE_BYTES or not hmac.compare_digest(
            proof, _proof(token, b"task", challenge)
        ):
            raise FarFault("somebody who does not know the token asked for leases")
        self._send(_proof(token, b"keeper", theirs))
        self._stream.settimeout(None)

    def come_in(self, token: bytes) -> None:
        """A task's side."""
        self._stream.settimeout(_GREETING_S)
        challenge = self._receive(_GREETING_BYTES_MAX)
        mine = os.urandom(_CHALLENGE_BYTES)
        self._send(_proof(token, b"task", challenge) + mine)
        if not hmac.compare_digest(
            self._receive(_GREETING_BYTES_MAX), _proof(token, b"keeper", mine)
        ):
            raise FarFault("what answers there is not the keeper")
        self._stream.settimeout(None)

    def is_of_same_user(self) -> bool:
        """Whether the other side of a Unix socket runs as this process's user."""
        size = _CREDENTIALS.size
        told = self._stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        user: int = _CREDENTIALS.unpack(told)[1]
        return user == os.geteuid()

    # --- bytes -----------------------------------------------------------------------------------

    def _send(self, content: bytes) -> None:
        try:
            self._stream.sendall(_SIZE.pack(len(content)) + content)
        except OSError as error:
            raise FarFault(f"the other side is gone: {error}") from None

    def _receive(self, bytes_max: int) -> bytes:
        size: int = _SIZE.unpack(self._exactly(_SIZE.size))[0]
        if size > bytes_max:
            raise FarFault(f"a message of {size} bytes is larger than {bytes_max}")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                part = self._stream.recv(size - len(found))
            except OSError as error:
                raise FarFault(f"the other side is gone: {error}") from None
            if not part:
                raise FarFault("the other side is gone")
            found += part
        return bytes(found)


def _proof(token: bytes, who: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token, who + challenge, "sha256")
