"""The mark by which a store's directory is told from the bare one that is there while it is not
mounted.

   <store>/.shmbroker-store               an id, made with the first object that is written
   <data directory>/tier-store.mark       the directory's path and its id, as this family knows it

A store that is known and has not its id is a fault, whatever lies there: nothing is read from it,
written to it, or believed to be gone from it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Lock

from shmbroker.errors import StorageFault
from shmbroker.ids import random_uuid, uuid_text
from shmbroker.log.checkpoints import read_file, write_file
from shmbroker.tier.object_store import StoreFault

MARK = ".shmbroker-store"
KNOWN = "tier-store.mark"


class StoreMark:
    """The mark of the store at `root`; known: the file that this family remembers it in."""

    def __init__(self, root: str, known: str) -> None:
        self._root = root
        self._known = known
        self._path = os.path.join(root, MARK)
        self._lock = Lock()
        self._id = ""

    def check(self) -> None:
        """StoreFault if this is not the store that was written to before."""
        wanted = self._wanted()
        if wanted and _read(self._path) != wanted:
            raise StoreFault(
                f"{self._root} is not the store that was written to before: is it mounted? "
                f"(If that is lost for good, remove {self._known}.)"
            )

    def make(self) -> None:
        """Mark a store that is about to be written to for the first time. It is there.

        Where there is no room here to remember it, that is tried again with the next object:
        copies make room.
        """
        with self._lock:
            if self._wanted():
                return
            found = _read(self._path)
            try:
                if not found:
                    found = uuid_text(random_uuid())
                    write_file(self._path, found)
            except StorageFault as fault:
                raise StoreFault(str(fault)) from fault
            with suppress(StorageFault):
                write_file(self._known, f"{self._root}\n{found}")
                self._id = found

    def _wanted(self) -> str:
        """The id that the store has to have; empty: it was never written to."""
        if not self._id:
            root, _, found = _read(self._known).partition("\n")
            if root == self._root:
                self._id = found
        return self._id


def _read(path: str) -> str:
    try:
        return (read_file(path) or "").strip()
    except StorageFault:
        return ""
