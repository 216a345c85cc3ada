"""A log segment: one .log file of record batches, with its offset index and time index.

What is here opens, walks, cuts and removes these files. The map and the space that the active
segment is written in are in `segment_space`, what the indexes are worth in `segment_indexes`, and
what may be given out of a file that was there before the process in `judging`. Reading goes
through `Descriptors`.

Rules of this file:
* Valid bytes are [0, size), and `size` is a batch boundary; what lies behind is zeros up to the end
  of the file.
* Only the owner cuts a file, and only the unused tail or above the high watermark. A reader in
  another process then gets a short read.
* The .log is the truth. Indexes can be rebuilt from it, and may be behind it or missing.
* A cut below the log's end is durable before it returns: old bytes must not come back behind new
  ones.
* Most segments of a start are never asked for anything, and there may be 100,000 of them: path,
  size and the two indexes of one that was found on the disk are made when they are first used.
* A disk that refuses is a StorageFault, bytes that are wrong a CorruptFault; both name the file.
"""

import mmap
import os
from collections.abc import Iterator
from typing import Any

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import residency
from shmbroker.log.checkpoints import remove_files
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.faults import writing_fault
from shmbroker.log.file_names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from shmbroker.log.offset_index import POSITION, RELATIVE_OFFSET, OffsetIndex
from shmbroker.log.segment_indexes import (
    add_last_time,
    cut_indexes,
    indexed_position,
    load_indexes,
    rebuild_indexes,
    restore_timestamps,
)
from shmbroker.log.segment_space import EXTENT_BYTES_MIN
from shmbroker.log.time_index import TimeIndex
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    H_BASE_OFFSET,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    H_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
)
from shmbroker.signs import waiting_for_disk

TYPE_CHECKING = False

OFFSETS_MAX = 2**31
"""Offsets in one segment: what the indexes can hold, relative to its base. So no segment begins
further than that behind the one before it."""

_NOT_READ = -2
_CHUNK_BYTES_MIN = 4096
_CHUNK_BYTES_MAX = 64 << 10
_JUDGING_BYTES = 256 << 10


class Segment:
    """One segment of one log. `PartitionLog` writes the fields; others read them."""

    __slots__ = (
        "_descriptors",
        "_inode",
        "allocated_bytes",
        "are_indexes_loaded",
        "base_offset",
        "config",
        "created_ms",
        "directory",
        "end_offset",
        "extent_bytes",
        "extent_ms",
        "file_id",
        "first_timestamp",
        "held_until_ms",
        "is_rebuilt",
        "judged",
        "map",
        "max_timestamp_offset",
        "max_timestamp_so_far",
        "offset_index",
        "path",
        "ready_bytes",
        "size",
        "time_index",
        "unjudged_bytes",
    )
    path: str
    size: int
    """Valid bytes: a batch boundary."""
    offset_index: OffsetIndex
    time_index: TimeIndex
    unjudged_bytes: int
    """What lies before this was there when the process began, and is judged when it is read."""

    def __init__(
        self,
        directory: str,
        base_offset: int,
        config: LogConfig,
        file_id: int,
        descriptors: Descriptors,
        *,
        created_ms: int = 0,
        is_found: bool = False,
    ) -> None:
        """is_found: its files are there, and its size is that of the .log."""
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = base_offset
        """One past the last offset. For the active segment read the log's `log_end_offset`."""
        self.file_id = file_id
        """Never used again for another file: what slices name (`broker.read`)."""
        if not is_found:
            self.size = self.unjudged_bytes = 0
        self.judged = (0, 0, -1)
        """[from, to) of that which is judged all the same, and the offset that follows; -1: of the
        first batch none is known."""
        self.map: mmap.mmap | None = None
        self.allocated_bytes = 0
        self.ready_bytes = 0
        """Populated up to here. While mapped: size <= ready_bytes <= allocated_bytes."""
        self.extent_bytes = EXTENT_BYTES_MIN
        self.extent_ms = created_ms
        """When the last extent was allocated."""
        self.created_ms = created_ms
        self.first_timestamp = -1
        """Max timestamp of the first batch: what `segment.ms` counts from; -1 while empty."""
        self.max_timestamp_so_far = _NOT_READ
        """See `max_timestamp`; known for the active segment."""
        self.max_timestamp_offset = -1
        self.config = config
        self.are_indexes_loaded = False
        """See `segment_indexes.load_indexes`."""
        self.is_rebuilt = False
        """Whether the indexes were rebuilt as they were wrong: once, then it is the .log itself."""
        self._descriptors = descriptors
        self._inode = 0
        self.held_until_ms = 0
        """Readers outside the family mean to open its file until then: see `lookups.hold`."""

    if not TYPE_CHECKING:  # Those that it makes are annotated above.

        def __getattr__(self, name: str) -> Any:
            """Asked for a slot that is empty: what it holds is made now. StorageFault for `size`,
            if the file can't be looked at."""
            if name == "path":
                value = self._sibling(LOG)
            elif name == "size":
                value = self._stat().st_size
            elif name == "unjudged_bytes":
                value = self.size
            elif name == "offset_index":
                value = OffsetIndex(self._sibling(INDEX), self.config.segment_index_bytes)
            elif name == "time_index":
                value = TimeIndex(self._sibling(TIME_INDEX), self.config.segment_index_bytes)
            else:
                raise AttributeError(name)
            setattr(self, name, value)
            return value

    def _sibling(self, suffix: str) -> str:
        return f"{self.directory}/{file_name(self.base_offset, suffix)}"

    # --- reading ---

    @property
    def fd(self) -> int:
        """A descriptor to read or send from; opened on demand, one of a bounded number."""
        return self._descriptors.of(self)

    @property
    def write_fd(self) -> int:
        """A descriptor to write to its file, which is there; one of a bounded number. StorageFault
        if it can't be opened."""
        try:
            return self._descriptors.to_write(self)
        except OSError as error:
            raise writing_fault(error, self.path) from error

    def forget(self) -> None:
        """Forget what was read of the file, as its descriptor is closed."""
        self.offset_index.forget_block()
        self.time_index.forget_block()

    @property
    def inode(self) -> int:
        if not self._inode:
            self._stat()
        return self._inode

    def _stat(self) -> os.stat_result:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise StorageFault(f"can't stat {self.path}: {error}", self.path) from error
        self._inode = found.st_ino
        return found

    def modified_ms(self) -> int:
        """When the file was last written to: stands in where no record has a timestamp."""
        return int(self._stat().st_mtime * 1000)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp (ms), or -1; of a finished segment, from its time index."""
        if self.max_timestamp_so_far == _NOT_READ:
            load_indexes(self)
        if self.max_timestamp_so_far == _NOT_READ:  # else they were rebuilt, batch by batch
            restore_timestamps(self, self.size)
            if not self.time_index.count and self.first_timestamp > 0:
                rebuild_indexes(self)
        return self.max_timestamp_so_far

    def set_max_timestamp(self, timestamp: int, offset: int) -> None:
        """`offset`: the last one of the batch that holds the timestamp."""
        self.max_timestamp_so_far = timestamp
        self.max_timestamp_offset = offset

    def headers(self, position: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(position, header) of the batches in [position, end), two batch boundaries.

        CorruptFault where there is no whole batch.
        """
        if position >= end:
            return
        chunk_bytes = _CHUNK_BYTES_MIN
        chunk, start = b"", position
        while position < end:
            at = position - start
            if at + HEADER_SIZE > len(chunk):
                start, at = position, 0
                try:
                    # `fd` is asked for each time: the walker may hold this generator for long.
                    chunk = residency.read(self.fd, min(chunk_bytes, end - position), position)
                except OSError as error:
                    raise StorageFault(f"can't read {self.path}: {error}", self.path) from error
                if len(chunk) < HEADER_SIZE:
                    raise CorruptFault(f"{self.path} ends in a batch at {position}", self.path)
            header = BATCH_HEADER.unpack_from(chunk, at)
            size = header[H_LENGTH] + LOG_OVERHEAD
            if header[H_MAGIC] != MAGIC or not HEADER_SIZE <= size <= end - position:
                raise CorruptFault(f"{self.path} has no whole batch at {position}", self.path)
            yield position, header
            position += size
            # Small batches are read many at a time, large ones by their headers only.
            if size * 8 < chunk_bytes:
                chunk_bytes = min(chunk_bytes * 2, _CHUNK_BYTES_MAX)
            else:
                chunk_bytes = _CHUNK_BYTES_MIN

    def good_batches(self, position: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(position, header) of the batches in [position, end) that are whole and right by CRC,
        until one isn't."""
        unpack = BATCH_HEADER.unpack_from
        data, start = memoryview(b""), position
        while end - position >= HEADER_SIZE:
            at = position - start
            if at + HEADER_SIZE > len(data):
                data, start, at = self._chunk(position, end, _JUDGING_BYTES), position, 0
                if len(data) < HEADER_SIZE:
                    return
            header = unpack(data, at)
            size = header[H_LENGTH] + LOG_OVERHEAD
            if header[H_MAGIC] != MAGIC or not HEADER_SIZE <= size <= end - position:
                return
            if at + size > len(data):
                data, start, at = self._chunk(position, end, max(size, _JUDGING_BYTES)), position, 0
                if len(data) < size:
                    return
            if crc32c(data[at + ATTRIBUTES_POSITION : at + size]) != header[H_CRC]:
                return
            yield position, header
            position += size

    def _chunk(self, position: int, end: int, length: int) -> memoryview:
        try:
            return memoryview(residency.read(self.fd, min(length, end - position), position))
        except OSError as error:
            raise StorageFault(f"can't read {self.path}: {error}", self.path) from error

    def end_before(self, position: int) -> int:
        """One past the last offset of what lies before `position`, a batch boundary."""
        end_offset = self.base_offset
        start = indexed_position(self, position - 1, POSITION) if position else 0
        for _, header in self.headers(start, position):
            end_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
        return end_offset

    def on_rewritten(self) -> None:
        """Forget what is known of the old file, which was replaced."""
        self._descriptors.close(self.file_id)
        self.offset_index.truncate(0)
        self.time_index.truncate(0)
        self.set_max_timestamp(-1, -1)
        self.size = self.unjudged_bytes = self._stat().st_size
        self.judged = (0, 0, -1)
        self.is_rebuilt = False

    def has_other_names(self) -> bool:
        """Whether its file is a hard link of others."""
        return self._stat().st_nlink > 1

    def on_restored(self, fresh: mmap.mmap | None, file_id: int) -> int:
        """Take over the map of a file that was written again; the file id that it had before."""
        self._descriptors.close(self.file_id)
        self._unmap()
        self.map, self.ready_bytes, self._inode = fresh, self.size, 0
        before, self.file_id = self.file_id, file_id
        return before

    def read_bytes(self, position: int, length: int) -> bytes:
        """Exactly these bytes; StorageFault if the file has fewer."""
        try:
            data = residency.read(self.fd, length, position)
        except OSError as error:
            raise StorageFault(f"can't read {self.path}: {error}", self.path) from error
        if len(data) != length:
            raise CorruptFault(f"{self.path} ends before {position + length}", self.path)
        return data

    def batch_at(self, position: int) -> bytes:
        """The whole batch that begins at `position`."""
        for _, header in self.headers(position, self.size):
            return self.read_bytes(position, header[H_LENGTH] + LOG_OVERHEAD)
        raise CorruptFault(f"{self.path} has no batch at {position}", self.path)

    def find(self, offset: int) -> tuple[int, tuple[int, ...] | None]:
        """(position, header) of the first batch whose last offset is at least `offset`.

        (size, None) if there is none: the offset lies behind the segment, or in a compacted gap at
        its end.
        """
        relative = offset - self.base_offset
        position = indexed_position(self, relative, RELATIVE_OFFSET) if relative > 0 else 0
        for found, header in self.headers(position, self.size):
            if header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] >= offset:
                return found, header
        return self.size, None

    def whole_batches(self, position: int, limit: int) -> tuple[int, int]:
        """(end, next offset) of the whole batches in [position, limit); (position, -1) for none."""
        end, next_offset = max(indexed_position(self, limit, POSITION), position), -1
        for found, header in self.headers(end, self.size):
            batch_end = found + header[H_LENGTH] + LOG_OVERHEAD
            if batch_end > limit:
                return found, header[H_BASE_OFFSET] if found > position else -1
            end, next_offset = batch_end, header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
        return end, next_offset

    def read_ahead(self, position: int, length: int) -> None:
        """Have the next bytes read in while their reader is busy with the last."""
        last = min(position + length, self.size) - 1
        if position <= last and residency.is_cold(self.fd, last):
            residency.will_need(self.fd, position, last + 1 - position)

    # --- cutting and letting go ---

    def park(self) -> None:
        """Give back the map, the unused tail and the descriptors; the next append takes them again.

        This is also how a segment ends when it rolls or closes, as Kafka leaves it. StorageFault:
        what is left to be done the next try does, or the next append takes up again.
        """
        if self.map is not None or self.allocated_bytes > self.size:
            self.cut_file(self.size)
            self.allocated_bytes = self.size
        self.extent_bytes = EXTENT_BYTES_MIN
        for index in (self.offset_index, self.time_index):
            if index.count:
                index.truncate(index.count)
            index.close()
        self._descriptors.close(self.file_id)

    def finish(self) -> None:
        """Roll or clean close: the last time index entry, files cut to what is in them."""
        add_last_time(self)
        self.park()
        if self.size:
            self.create_files()

    def create_files(self) -> None:
        """Let all three files exist, as Kafka expects of a segment, empty or not."""
        for path in (self.path, self.offset_index.path, self.time_index.path):
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            except OSError as error:
                raise writing_fault(error, path) from error

    def cut_file(self, size: int, *, is_synced: bool = False) -> None:
        """Let go of the map and cut the file at `size`: what is allocated behind it later reads as
        zeros. The file is opened first, as it may be gone, and the map has all of it."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._unmap()
                os.ftruncate(fd, size)
                if is_synced:
                    with waiting_for_disk():
                        os.fdatasync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageFault(f"can't cut {self.path}: {error}", self.path) from error

    def _unmap(self) -> None:
        """Nothing is ready to be stored into then: the next append maps the file, or writes."""
        if self.map is not None:
            self.map.close()
            self.map = None
            self.ready_bytes = 0

    def truncate(self, size: int, end_offset: int) -> None:
        """Cut at a batch boundary, durably; indexes and the largest timestamp follow."""
        self.cut_file(size, is_synced=True)
        self.size = self.allocated_bytes = self.ready_bytes = size
        self.end_offset = end_offset
        cut_indexes(self)

    def close(self) -> None:
        """Let go of everything without touching a file."""
        self._unmap()
        self.offset_index.close()
        self.time_index.close()
        self._descriptors.close(self.file_id)

    def remove(self) -> None:
        """Unlink the files. Who holds a descriptor or a map of them reads on undisturbed."""
        self.close()
        indexes = (self.offset_index.path, self.time_index.path, self._sibling(TXN_INDEX))
        remove_files((self.path, *indexes))
