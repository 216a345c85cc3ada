"""Kafka's lock of a log directory, `.lock`: an fcntl lock, as Java's FileChannel takes it.

It is not inherited over fork, so the process that writes takes it itself (`log_directory`); a start
only asks who holds it.
"""

import fcntl
import os
from struct import Struct

LOCK = ".lock"
_FLOCK = Struct("hhxxxxqqi4x")
"""The kernel's struct flock: type, whence, start, length, pid."""


def lock_holder(path: str) -> int:
    """The process that holds this lock: 0 if none does, -1 if it can't be seen from here. OSError
    if there is no such file, or it can't be read."""
    with open(path, "rb") as file:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file.fileno(), fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else int(pid) or -1
