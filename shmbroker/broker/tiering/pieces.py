"""The cache: pieces of copied segments, fetched by the tier process into files of this worker.

Rules of this file:
* A piece is whole batches in a file that is used as any segment's. It ends with the worker: the
  next one begins with an empty cache.
* Each fetch has a directory of its own: two may bring the same piece, as readers of different
  offsets can't know which batch it begins with.
* All pieces together have a bound; the one that nobody has used for the longest time goes first.
* With the first read from a piece the next one is fetched: readers go on.
* Nothing is fetched while what was fetched has used up
  remote.log.manager.fetch.max.bytes.per.second. Readers then wait as for a piece on its way.
"""

from __future__ import annotations

import itertools
import logging
import os
from bisect import bisect_right
from collections import OrderedDict

from shmbroker import logs
from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import remove_files
from shmbroker.log.segment import Segment
from shmbroker.replica.throttle import ReplicationThrottle
from shmbroker.wire.api_keys import TIER_FETCH
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.broker.tiering.remotes import Remote, RemoteTable
    from shmbroker.tier.remote_log import RemoteSegment

logger = logging.getLogger(__name__)

FETCHES_MAX = 4
"""The most fetches under way at once for one partition."""


class Pieces:
    """The pieces that are here, of all partitions."""

    def __init__(self, table: RemoteTable, root: str, incarnation: int, bytes_max: int) -> None:
        self.table = table
        self.bytes_max = bytes_max
        self.bytes = 0
        self.throttle = ReplicationThrottle()
        self.cache: OrderedDict[int, tuple[Remote, Segment]] = OrderedDict()
        """The segments by file id, the one used last at the end."""
        self.unread: set[int] = set()
        """File ids of pieces that nobody has read from yet: with the first read the next comes."""
        node = os.path.basename(table.store.log_directory.path)
        self.directory = os.path.join(root, f"{node}.{incarnation}")
        self._numbers = itertools.count()
        self._coming: set[str] = set()
        """The directories of fetches under way, also of partitions that are gone."""
        _clear(root, f"{node}.")

    # ── they come ───────────────────────────────────────────────────────────────────────────────

    def fetch(self, remote: Remote, copy: RemoteSegment, offset: int) -> int | None:
        """Ask for a piece, if it isn't on the way; KAFKA_STORAGE_ERROR soon after a failure."""
        if self.table.steady_ms() < remote.fault_until_ms:
            return KAFKA_STORAGE_ERROR
        if offset in remote.fetching or len(remote.fetching) >= FETCHES_MAX:
            return None
        if not self.throttle.room(self.table.steady_ms()):
            return None
        directory = os.path.join(self.directory, str(next(self._numbers)))
        try:
            os.makedirs(directory)
        except OSError as error:
            raise StorageFault(f"can't make {directory}: {error}") from error
        body = remote.name() | copy._asdict()
        interval = remote.partition.log.config.index_interval_bytes
        body |= {"offset": offset, "directory": directory, "index_interval_bytes": interval}

        def on_answer(answer: dict[str, Any]) -> None:
            self._on_fetched(remote, offset, directory, answer)

        if self.table.ask(TIER_FETCH, "TierFetch", body, on_answer):
            remote.fetching.add(offset)
            self._coming.add(directory)
        else:
            _remove(directory)
        return None

    def _on_fetched(
        self, remote: Remote, offset: int, directory: str, body: dict[str, Any]
    ) -> None:
        remote.fetching.discard(offset)
        self._coming.discard(directory)
        if body["error_code"]:
            _remove(directory)
            remote.refuse_reads(self.table.steady_ms())
        else:
            self.throttle.take(body["size"], self.table.steady_ms())
            store = self.table.store
            chunk = Segment(
                directory,
                body["base_offset"],
                remote.partition.log.config,
                next(store.file_ids),
                store.log_directory.descriptors,
            )
            chunk.size = body["size"]
            chunk.end_offset = body["end_offset"]
            if not self.table.has(remote):
                _remove(directory)
                return
            self._add(remote, chunk)
        self.table.wake(remote.partition.key)

    def _add(self, remote: Remote, chunk: Segment) -> None:
        for other in remote.chunks[:]:
            if other.base_offset == chunk.base_offset:
                self._drop(remote, other)
        place = bisect_right(remote.chunks, chunk.base_offset, key=lambda one: one.base_offset)
        remote.chunks.insert(place, chunk)
        self.cache[chunk.file_id] = remote, chunk
        self.unread.add(chunk.file_id)
        self.bytes += chunk.size
        while self.bytes > self.bytes_max and len(self.cache) > 1:
            self._drop(*next(iter(self.cache.values())))

    # ── they are read ───────────────────────────────────────────────────────────────────────────

    def on_read(self, remote: Remote, chunk: Segment) -> None:
        """A reader gets something of this one."""
        self.cache.move_to_end(chunk.file_id)
        if chunk.file_id in self.unread:
            self.unread.discard(chunk.file_id)
            self._read_ahead(remote, chunk.end_offset)

    def _read_ahead(self, remote: Remote, offset: int) -> None:
        """A reader has begun with the piece before: it will want this one."""
        if offset >= remote.partition.log.local_start_offset or remote.chunk_of(offset):
            return
        copy = remote.log.find(offset)
        if copy is not None:
            self.fetch(remote, copy, max(offset, copy.base_offset))

    # ── they go ─────────────────────────────────────────────────────────────────────────────────

    def drop_all(self, remote: Remote) -> None:
        """Drop those of one partition."""
        for chunk in remote.chunks[:]:
            self._drop(remote, chunk)

    def on_tier_lost(self) -> None:
        """Remove what is left of fetches that nobody answers any more."""
        for directory in self._coming:
            _remove(directory)
        self._coming.clear()

    def _drop(self, remote: Remote, chunk: Segment) -> None:
        remote.chunks.remove(chunk)
        del self.cache[chunk.file_id]
        self.unread.discard(chunk.file_id)
        self.bytes -= chunk.size
        remote.boundaries = {
            offset: place for offset, place in remote.boundaries.items() if place[0] is not chunk
        }
        chunk.close()
        _remove(chunk.directory)
        self.table.store.dropped_file_ids.append(chunk.file_id)


def _remove(directory: str) -> None:
    """Remove a fetch's directory, whatever it has brought."""
    try:
        remove_files([os.path.join(directory, name) for name in os.listdir(directory)])
        os.rmdir(directory)
    except (OSError, StorageFault) as fault:
        logger.error("%s", fault, extra=logs.seldom("a cached piece is left"))


def _clear(root: str, mine: str) -> None:
    """Begin with an empty cache: nobody knows the pieces of the one before."""
    import shutil  # with all of its archive formats: nothing for a start

    try:
        os.makedirs(root, exist_ok=True)
        for name in os.listdir(root):
            if name.startswith(mine):
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    except OSError as error:
        raise StorageFault(f"can't make the cache directory {root}: {error}") from error
