"""The control socket in the data directory: for the broker's own user, who may open the files too.

It is no broker's port, so a request has to say which broker it is for. What readers of files ask
says so in its body (keys from 20000 on). Any other says so in its client id:

    shmbroker-observer@2     broker 2 answers; without @ the first one does
"""

from __future__ import annotations

import os
import socket

from shmbroker import unix

_AT = "@"


def client_id_for(name: str, broker_id: int) -> str:
    """The client id of requests that a broker is to answer."""
    return f"{name}{_AT}{broker_id}"


def broker_of(client_id: bytes | None) -> int | None:
    """The broker that a client id names; None: none."""
    _, at, number = (client_id or b"").decode(errors="replace").rpartition(_AT)
    return int(number) if at and number.isascii() and number.isdecimal() else None


def bind(directory: str | os.PathLike[str]) -> socket.socket:
    """A socket bound there, that does not listen yet; OSError if it can't be."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unix.at(os.path.join(directory, unix.CONTROL_SOCKET), bound.bind)
    return bound
