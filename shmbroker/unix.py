"""Unix sockets at paths of any length. An address holds 108 bytes, so the directory is named by a
descriptor of it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def at(path: str | os.PathLike[str], do: Callable[[str], object]) -> None:
    """Have `do`, a socket's `bind` or `connect`, called with a short address of a path. OSError if
    there is no such directory, or from it."""
    directory, name = os.path.split(path)
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        do(f"/proc/self/fd/{opened}/{name}")
    finally:
        os.close(opened)
