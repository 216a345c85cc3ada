"""What a broker removes when its time has come: files of segments, directories of partitions.

   segment retired, replaced    N.log.deleted …     unlinked file.delete.delay.ms later, or when
                                                    no query holds it any more
   partition deleted            name.uuid-delete    removed file.delete.delay.ms later

Rules of this file:
* Until then answers under way may still name the files, and planned queries open them.
* Little in one round: it is done between the turns of the broker.
* What the disk refuses to remove is tried again.
* A start finds by their names what a stop has left, and removes it.
* A directory goes only when no checkpoint knows its log any more: without it, one that is made
  again under its name and is not there would look lost (`PartitionDirectories`).
* All times are steady milliseconds: a wall clock that is set back would keep the files.
"""

from __future__ import annotations

import heapq
import logging

from shmbroker import logs
from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import remove_files
from shmbroker.log.log_directory import remove_deleted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.log.descriptors import Descriptors
    from shmbroker.log.segment import Segment

logger = logging.getLogger(__name__)

DIRECTORIES_PER_ROUND = 20
"""The most directories of deleted partitions in one round: some 50 µs each where little is in
them."""
UNLINKS_PER_ROUND = 200
UNLINK_BYTES_PER_ROUND = 1 << 30
AGAIN_MS = 30_000
"""The time after which what the disk did not let go is tried again."""
REMOVE_S = 1.0
"""How long a stop removes what is deleted."""


class Removals:
    """The removals from one log directory. dropped_file_ids: gets what is unlinked."""

    def __init__(
        self,
        descriptors: Descriptors,
        dropped_file_ids: list[int],
        steady_ms: Callable[[], int],
        write_gone: Callable[[], None],
    ) -> None:
        """write_gone: has the checkpoints say nothing of logs that are gone."""
        self.segments_deleted = 0
        self._write_gone = write_gone
        self._steady_ms = steady_ms
        self._descriptors = descriptors
        self._dropped_file_ids = dropped_file_ids
        self._to_unlink: list[tuple[int, list[int], list[str], int, int]] = []
        """A heap: (when, file ids, paths, bytes, when at the earliest)."""
        self._to_remove: list[tuple[int, str]] = []
        """A heap: (when, path)."""

    def remove_later(self, directory: str, delay_ms: int) -> None:
        """Remove what is left of a partition, `delay_ms` from now."""
        heapq.heappush(self._to_remove, (self._steady_ms() + delay_ms, directory))

    def unlink_later(self, paths: list[str], segments: list[Segment], delay_ms: int) -> None:
        """Unlink the `.deleted` files of these segments `delay_ms` (file.delete.delay.ms) from now,
        or when nobody holds them any more; a start before that does it too.

        Until then answers under way may still name them, and planned queries open them.
        """
        due_ms = self._steady_ms() + delay_ms
        held_until_ms = max(segment.held_until_ms for segment in segments)
        file_ids = [segment.file_id for segment in segments]
        size_bytes = sum(segment.size for segment in segments)
        # The ids make equal times comparable, and are never the same.
        entry = (max(due_ms, held_until_ms), file_ids, paths, size_bytes, due_ms)
        heapq.heappush(self._to_unlink, entry)

    def release_held(self) -> None:
        """The disk is nearly full: files that are only held for queries go when they are due."""
        self._to_unlink = [
            (due_ms, ids, paths, size, due_ms) for _, ids, paths, size, due_ms in self._to_unlink
        ]
        heapq.heapify(self._to_unlink)

    def run(self, attempt: Callable[..., bool]) -> None:
        """Do a round, of what is due. attempt: does a thing that the disk may refuse."""
        steady_ms = self._steady_ms()
        for _ in range(DIRECTORIES_PER_ROUND):
            if not (self._to_remove and self._to_remove[0][0] <= steady_ms):
                break
            _, path = heapq.heappop(self._to_remove)
            if not attempt(self._remove, path):
                heapq.heappush(self._to_remove, (steady_ms + AGAIN_MS, path))
        self._unlink_due(steady_ms, attempt)

    def _remove(self, path: str) -> None:
        self._write_gone()
        remove_deleted(path)

    def _unlink_due(self, steady_ms: int, attempt: Callable[..., bool]) -> None:
        """Unlink what is due, not too much in one round: the kernel takes some ten milliseconds for
        a GiB."""
        room_bytes = UNLINK_BYTES_PER_ROUND
        for _ in range(UNLINKS_PER_ROUND):
            if not self._to_unlink or self._to_unlink[0][0] > steady_ms or room_bytes <= 0:
                return
            entry = heapq.heappop(self._to_unlink)
            _, file_ids, paths, size_bytes, _ = entry
            room_bytes -= size_bytes
            if not attempt(remove_files, paths):
                again_ms = steady_ms + AGAIN_MS
                heapq.heappush(self._to_unlink, (again_ms, *entry[1:4], again_ms))
                continue
            self._dropped_file_ids += file_ids
            self.segments_deleted += len(file_ids)
            for file_id in file_ids:
                self._descriptors.close(file_id)

    def finish(self, monotonic: Callable[[], float]) -> None:
        """Remove directories before their time, at a stop: for as long as that may take, and as far
        as the disk lets them be removed."""
        deadline = monotonic() + REMOVE_S
        for _, path in self._to_remove:
            if monotonic() < deadline:
                try:
                    self._remove(path)
                except StorageFault as fault:
                    logger.error("%s; the next start does", fault, extra=logs.seldom("is left"))
