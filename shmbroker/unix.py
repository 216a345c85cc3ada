"""Unix sockets at paths of any length. An address holds 108 bytes, so the directory is named by a
descriptor of it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


CONTROL_SOCKET = "control.sock"
"""The socket's name in the data directory of a broker family: for the tools and readers of this
host. What is said there: `ipc.control_socket`."""


def at(path: str | os.PathLike[str], do: Callable[[str], object]) -> None:
    """Have `do`, a socket's `bind` or `connect`, called with a short address of a path. OSError if
    there is no such directory, or from it."""
    directory, name = os.path.split(path)
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        do(f"/proc/self/fd/{opened}/{name}")
    finally:
        os.close(opened)


def connect(path: str | os.PathLike[str], timeout_s: float) -> socket.socket:
    """Connected to who listens at a path; OSError if nobody does, or it may not be opened."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(timeout_s)
    try:
        at(path, connected.connect)
    except OSError:
        connected.close()
        raise
    return connected


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a socket whose end it is. What can't be removed, as from a disk that became read-only,
    stays: who binds it next takes it away."""
    with suppress(OSError):
        os.unlink(path)
