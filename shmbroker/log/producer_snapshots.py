"""The producer snapshots of one log: which there are, and which are worth keeping.

   t-0/00000000000000000812.snapshot    the producers as of offset 812, before its batch

A start reads the newest good one and walks the batches behind it only. They are derived: one that
the disk refuses is left out, and costs the next start a walk. What is in them is in
`producer_state`.

Kept are those at the beginnings of segments, and the newest two of the others.
"""

import os
from bisect import insort
from collections.abc import Iterable

from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import write_file
from shmbroker.log.file_names import SNAPSHOT, file_name
from shmbroker.log.producer_state import ProducerState
from shmbroker.log.transaction_index import AbortedTransactions


class ProducerSnapshots:
    """Writes and removes them. Recovery says which ones it has found."""

    __slots__ = ("_aborted", "_directory", "_producers", "offsets")

    def __init__(
        self, directory: str, producers: ProducerState, aborted: AbortedTransactions
    ) -> None:
        self._directory = directory
        self._producers = producers
        self._aborted = aborted
        self.offsets: list[int] = []
        """The offsets of those on disk, ascending."""

    def _path(self, offset: int) -> str:
        return os.path.join(self._directory, file_name(offset, SNAPSHOT))

    def paths_from(self, offset: int) -> list[str]:
        """The files of those at `offset` and behind it, newest first."""
        paths = []
        for taken in reversed(self.offsets):
            if taken < offset:
                break
            paths.append(self._path(taken))
        return paths

    def take(self, end_offset: int, bases: Iterable[int]) -> None:
        """Write the producers, which are known before `end_offset`, if they are not written yet.

        bases: where the log's segments begin.
        """
        if end_offset in self.offsets:
            return
        try:
            self._aborted.write()
            self._producers.write_snapshot(self._path(end_offset))
        except StorageFault:
            return  # It only saves a walk.
        insort(self.offsets, end_offset)
        self.prune(bases)

    def put(self, offset: int, content: bytes) -> None:
        """Write, durably, one that was taken elsewhere; StorageFault if the disk refuses."""
        write_file(self._path(offset), content)
        if offset not in self.offsets:
            insort(self.offsets, offset)

    def prune(self, bases: Iterable[int]) -> None:
        """Keep only the newest two between segments' beginnings: the others are not worth it."""
        known = set(bases)
        for taken in self.offsets[:-2]:
            if taken not in known:
                self.remove(taken)

    def remove_before(self, offset: int) -> None:
        """Remove those from before the first segment: nothing is rebuilt from them."""
        for taken in [taken for taken in self.offsets[:-1] if taken < offset]:
            self.remove(taken)

    def remove_behind(self, offset: int) -> None:
        """Remove those that a log which ends at `offset` can't have."""
        for taken in [taken for taken in self.offsets if taken > offset]:
            self.remove(taken)

    def remove(self, offset: int) -> None:
        """Forget the snapshot at this offset, whether or not the disk lets it go."""
        self.offsets.remove(offset)
        try:
            os.unlink(self._path(offset))
        except OSError:
            pass
