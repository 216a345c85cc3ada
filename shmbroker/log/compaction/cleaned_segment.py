"""A new segment from compaction: its log and its indexes, written as `.cleaned` and made durable.

    Kept, chunk by chunk ──► N.log.cleaned          what is kept, as it is
                         └─► N.index, N.timeindex   an entry every `index.interval.bytes`
         at the end      ──► N.txnindex             aborted transactions that are still there

Rules of this file:
* The files are as an append would have made them, and as old as what they replace: retention goes
  by that where no record has a timestamp.
* What would be as the old segment is, is not written: the old one stays.
* What the disk refuses is a StorageFault, a full one a DiskFullFault.
"""

import os
from collections.abc import Iterable
from errno import EDQUOT, EFBIG, ENOSPC

import numpy as np

from shmbroker.errors import StorageFault
from shmbroker.log.compaction.chunks import Source
from shmbroker.log.compaction.cleaned_files import cleaned_path, remove_cleaned
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.file_names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from shmbroker.log.offset_index import OffsetIndex
from shmbroker.log.time_index import TimeIndex
from shmbroker.log.transaction_index import AbortedTransaction, encode_entries
from shmbroker.signs import waiting_for_disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shmbroker.log.compaction.compactor import Settings
    from shmbroker.log.compaction.survivors import KeptBatches

    Int64s = NDArray[np.int64]

_POSITION_MAX = 2**31 - 1
_FULL = (ENOSPC, EDQUOT, EFBIG)


class CleanedSegment:
    """One new segment, in place of these sources."""

    __slots__ = (
        "_base_offset",
        "_directory",
        "_index_interval_bytes",
        "_indexed_at",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offset_index",
        "_path",
        "_sources",
        "_time_index",
        "size",
    )

    def __init__(self, directory: str, sources: list[Source], settings: "Settings") -> None:
        self._directory = directory
        self._sources = sources
        self._base_offset = base_offset = sources[0].base_offset
        self._path = cleaned_path(directory, base_offset, LOG)
        self._index_interval_bytes = settings.index_interval_bytes
        index_bytes_max = settings.segment_index_bytes
        self._offset_index = OffsetIndex(
            cleaned_path(directory, base_offset, INDEX), index_bytes_max
        )
        self._time_index = TimeIndex(
            cleaned_path(directory, base_offset, TIME_INDEX), index_bytes_max
        )
        self._indexed_at = 0
        self._max_timestamp = self._max_timestamp_offset = -1
        self.size = 0

    def write(self, chunks: "Iterable[KeptBatches]", aborted: list[AbortedTransaction]) -> bool:
        """Write what is kept of all chunks; False if that is what the old segment is, so nothing
        was written. aborted: filled while the chunks are read."""
        is_changed = len(self._sources) > 1
        try:
            with open(self._path, "wb", buffering=1 << 20) as file:
                for kept in chunks:
                    is_changed |= kept.is_changed
                    self._index(kept.size, kept.last_offset, kept.max_timestamp)
                    for piece in kept.pieces():
                        file.write(piece)
                if is_changed:
                    file.flush()
                    with waiting_for_disk():
                        os.fsync(file.fileno())
            if is_changed:
                self._finish(aborted)
            else:
                remove_cleaned(self._directory, self._base_offset)
        except OSError as error:
            kind = DiskFullFault if error.errno in _FULL else StorageFault
            raise kind(f"can't write {self._path}: {error.strerror}", self._path) from error
        finally:
            self._offset_index.close()
            self._time_index.close()
        return is_changed

    def _index(self, size: "Int64s", last_offset: "Int64s", max_timestamp: "Int64s") -> None:
        """Index the batches that stay, as an append does: one entry every so many bytes."""
        if not size.all():
            stays = np.flatnonzero(size)
            size, last_offset, max_timestamp = size[stays], last_offset[stays], max_timestamp[stays]
        if not len(size):
            return
        end = self.size + np.cumsum(size)
        position = end - size
        self.size = int(end[-1])
        if self.size > _POSITION_MAX:
            raise StorageFault(f"{self._path} would outgrow what an index can point to", self._path)
        # The batch that holds the largest timestamp so far is where it grew last.
        largest = np.maximum.accumulate(np.append(self._max_timestamp, max_timestamp))
        grew = np.flatnonzero(largest[1:] > largest[:-1])
        holder = np.append(self._max_timestamp_offset, last_offset[grew])
        chosen = self._chosen(position)
        if len(chosen):
            entries = np.stack((last_offset[chosen] - self._base_offset, position[chosen]), 1)
            stored = self._offset_index.extend(entries.astype(">u4").tobytes())
            chosen = chosen[:stored]
            holders = holder[np.searchsorted(grew, chosen, "right")] - self._base_offset
            self._time_index.maybe_extend(
                zip(largest[chosen + 1].tolist(), holders.tolist(), strict=True)
            )
        self._max_timestamp, self._max_timestamp_offset = int(largest[-1]), int(holder[-1])

    def _chosen(self, position: "Int64s") -> "NDArray[np.intp]":
        """The batches that get an index entry."""
        interval = self._index_interval_bytes
        last = len(position)
        if position[0] > self._indexed_at + interval and (np.diff(position) > interval).all():
            self._indexed_at = int(position[-1])
            return np.arange(last)
        chosen = []
        number = int(position.searchsorted(self._indexed_at + interval, "right"))
        while number < last:
            chosen.append(number)
            self._indexed_at = int(position[number])
            number = int(position.searchsorted(self._indexed_at + interval, "right"))
        return np.array(chosen, np.intp)

    def _finish(self, aborted: list[AbortedTransaction]) -> None:
        """Write the last time index entry; all files get durable, as old as what they replace."""
        if self._max_timestamp >= 0:
            self._time_index.append_last(
                self._max_timestamp, self._max_timestamp_offset - self._base_offset
            )
        for index in (self._offset_index, self._time_index):
            fd = os.open(index.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                index.truncate(index.count)
                index.close()
                with waiting_for_disk():
                    os.fsync(fd)
            finally:
                os.close(fd)
        if aborted:
            with open(cleaned_path(self._directory, self._base_offset, TXN_INDEX), "wb") as file:
                file.write(encode_entries(aborted))
                file.flush()
                with waiting_for_disk():
                    os.fsync(file.fileno())
        last = os.path.join(self._directory, file_name(self._sources[-1].base_offset, LOG))
        modified_ns = os.stat(last).st_mtime_ns
        os.utime(self._path, ns=(modified_ns, modified_ns))
