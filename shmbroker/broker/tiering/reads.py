"""Reads before the local start of a log: slices of pieces that are here; else pieces are fetched.

A reader comes back at the offset where its last slice ended. Where it ended within a piece, the
position there is remembered (`Remote.boundaries`), so that no index is searched for it.

Records that a copy should have and none has are never skipped: reads of them are refused.
"""

from __future__ import annotations

import logging

from shmbroker import logs
from shmbroker.errors import StorageFault
from shmbroker.records.batch_layout import (
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    LOG_OVERHEAD,
)
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.tier_port import Slice
    from shmbroker.broker.tiering.lists import Lists
    from shmbroker.broker.tiering.pieces import Pieces
    from shmbroker.broker.tiering.remotes import Remote, RemoteTable
    from shmbroker.log.segment import Segment

logger = logging.getLogger(__name__)

BOUNDARIES_KEPT = 64


class RemoteReader:
    """Answers reads from pieces."""

    def __init__(self, table: RemoteTable, lists: Lists, pieces: Pieces) -> None:
        self.table = table
        self.lists = lists
        self.pieces = pieces

    def read(
        self, remote: Remote, offset: int, max_bytes: int, end_offset: int, min_one_batch: bool
    ) -> Slice | int | None:
        """Read as `Tiering.read` says."""
        log = remote.partition.log
        try:
            while offset < log.local_start_offset:
                place = remote.boundaries.get(offset)
                if place is None:
                    chunk = remote.chunk_of(offset)
                    if chunk is None:
                        copy = remote.log.find(offset)
                        if copy is not None and copy.base_offset <= offset:
                            return self.pieces.fetch(remote, copy, offset)
                        if not remote.is_current:
                            return self._await_list(remote)
                        gap_end = log.local_start_offset
                        if copy is not None:
                            gap_end = min(gap_end, copy.base_offset)
                        if remote.is_lost(gap_end):
                            return KAFKA_STORAGE_ERROR
                        offset = gap_end
                        continue
                    place = chunk, chunk.find(offset)[0]
                chunk, position = place
                if position < chunk.size:
                    self.pieces.on_read(remote, chunk)
                    return _slice(remote, chunk, position, max_bytes, min_one_batch)
                offset = chunk.end_offset  # a gap at its end
        except StorageFault as fault:
            again = "it is fetched again"
            logger.error("%s; %s", fault, again, extra=logs.seldom(again))
            self.pieces.drop_all(remote)
            remote.refuse_reads(self.table.steady_ms())
            return KAFKA_STORAGE_ERROR
        return log.read(offset, max_bytes, end_offset, min_one_batch)

    def _await_list(self, remote: Remote) -> int | None:
        if self.table.steady_ms() < remote.retry_ms:
            return KAFKA_STORAGE_ERROR
        self.lists.load(remote)
        return None


def _slice(
    remote: Remote, chunk: Segment, position: int, max_bytes: int, min_one_batch: bool
) -> Slice:
    """Whole batches of a piece; where they end is remembered."""
    limit, next_offset = chunk.size, chunk.end_offset
    if limit - position > max_bytes:
        limit, next_offset = chunk.whole_batches(position, position + max_bytes)
        if limit == position:
            if not min_one_batch:
                return chunk, position, 0
            for found, header in chunk.headers(position, chunk.size):
                limit = found + header[H_LENGTH] + LOG_OVERHEAD
                next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
                break
    if next_offset != chunk.end_offset:
        if len(remote.boundaries) >= BOUNDARIES_KEPT:
            del remote.boundaries[next(iter(remote.boundaries))]
        remote.boundaries[next_offset] = chunk, limit
    return chunk, position, limit - position
