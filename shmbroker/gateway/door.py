"""Doors: what stands before a listener that wants to know who comes in.

   accepted ──► door.open(connection) ──► … ──► Clients.admit(connection, principal)

* Until it is admitted, a connection may ask only for what its door's `submit` serves; afterwards
  for what everybody may, or what the guard lets through.
* A listener without a door admits everybody as User:ANONYMOUS, at once.
* A client that has to show first who it is, is a `Stranger`: it takes the frames of its connection
  itself, one after the other, until it is admitted.
"""

from __future__ import annotations

import pwd
import socket
from struct import Struct
from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.gateway.connection import Connection

PEER_CREDENTIALS = Struct("iII")
"""Process, user and group: `struct ucred` of unix(7)."""


class Door(Protocol):
    """What stands before one listener, in one gateway."""

    def open(self, connection: Connection) -> None:
        """A client has come: admit it, or give it the `submit` of those who have to show first who
        they are."""


def peer_credentials(accepted: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a Unix socket, as they were when it connected."""
    packed = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    process, user, _ = PEER_CREDENTIALS.unpack(packed)
    return process, user


class Stranger(Protocol):
    """A client that has not shown yet who it is."""

    @property
    def frame_bytes_max(self) -> int:
        """A larger frame ends the connection before it has come."""

    def on_frame(self, buffer: bytearray, start: int, end: int) -> None:
        """A frame, without its size, is in buffer[start:end]: answer it, now or later.
        ProtocolFault ends the connection."""


class PeerDoor:
    """Admits who comes by a Unix socket, as the user of the host that it is."""

    def __init__(
        self,
        admit: Callable[[Connection, str], None],
        name_of: Callable[[int], str] = lambda user: pwd.getpwuid(user).pw_name,
    ) -> None:
        """name_of: a user's name by its number; KeyError where it has none."""
        self._admit = admit
        self._name_of = name_of
        self._principals: dict[int, str] = {}

    def open(self, connection: Connection) -> None:
        """Its principal is User:<name>, or User:<number> of a user without a name."""
        _, user = peer_credentials(connection.socket)
        principal = self._principals.get(user)
        if principal is None:
            try:
                name = self._name_of(user)
            except KeyError:
                name = str(user)
            principal = self._principals[user] = f"User:{name}"
        self._admit(connection, principal)
