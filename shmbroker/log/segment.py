"""A log segment: one .log file of record batches, with its offset index and time index.

The active segment is mapped by its one writer. What the operating system makes of that:

 * Pages beyond the end of a file, or without room on the disk, answer a store with SIGBUS, which
   Python can't catch. So every page is allocated (`posix_fallocate`) before it is mapped: a full
   disk is an errno there. The file grows by extents, from 64 KiB, doubling while they fill within a
   second and halving when one lasts over four, at most 16 MiB.
 * The first store to a fresh page is a page fault (0.4-1.7 GB/s); after
   `madvise(MADV_POPULATE_WRITE)` it is a plain store (12-20 GB/s). CPython holds the GIL in
   `madvise`, so `populate_step` does 1 MiB at a time, between turns.
 * `mmap.resize` is ftruncate to the size the file already has, and mremap: populated pages stay so.
   It can't move while a view into the map exists: none outlives the function that made it.
 * The map holds a descriptor of its own (dup), so the one used to open the file is closed at once.
   Reading goes through `Descriptors`.

Valid bytes are [0, size); what lies behind is zeros up to the end of the file. Only the owner cuts
a file, and only the unused tail or above the high watermark; a reader elsewhere gets a short read.
"""

import mmap
import os
from collections.abc import Iterator
from errno import EDQUOT, EFBIG, ENOSPC

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.file_names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from shmbroker.log.offset_index import OffsetIndex
from shmbroker.log.time_index import TimeIndex
from shmbroker.records.batch_layout import BATCH_HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC

EXTENT_BYTES_MIN = 64 << 10
EXTENT_BYTES_MAX = 16 << 20
POPULATE_BYTES_MAX = 1 << 20

_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python 3.11's mmap
_EXTENT_MS_SHORT = 1000
_EXTENT_MS_LONG = 4000
_CHUNK_BYTES_MIN = 4096
_CHUNK_BYTES_MAX = 64 << 10
_PAGE = mmap.PAGESIZE
_FULL = (ENOSPC, EDQUOT, EFBIG)


class Segment:
    """One segment of one log. `PartitionLog` writes the fields; others read them."""

    __slots__ = (
        "_descriptors",
        "_extent_ms",
        "_inode",
        "allocated_bytes",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "extent_bytes",
        "file_id",
        "first_timestamp",
        "map",
        "max_timestamp_offset",
        "max_timestamp_so_far",
        "offset_index",
        "path",
        "populated_bytes",
        "size",
        "time_index",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        index_bytes_max: int,
        file_id: int,
        descriptors: Descriptors,
        *,
        created_ms: int = 0,
        extent_bytes: int = EXTENT_BYTES_MIN,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.end_offset = base_offset
        """One past the last offset. For the active segment read the log's `log_end_offset`."""
        self.path = os.path.join(directory, file_name(base_offset, LOG))
        self.file_id = file_id
        """Never used again for another file: what slices name (`Slices` in ARCHITECTURE.md)."""
        self.size = 0
        """Valid bytes: a batch boundary."""
        self.map: mmap.mmap | None = None
        self.allocated_bytes = 0
        self.populated_bytes = 0
        """size <= allocated_bytes; populated_bytes only tells what costs no fault."""
        self.extent_bytes = extent_bytes
        self._extent_ms = created_ms
        self.created_ms = created_ms
        self.first_timestamp = -1
        """Max timestamp of the first batch: what `segment.ms` counts from; -1 while empty."""
        self.max_timestamp_so_far: int | None = None
        """None: not read yet, see `max_timestamp`. Known for the active segment."""
        self.max_timestamp_offset = -1
        self.offset_index = OffsetIndex(self._sibling(INDEX), index_bytes_max)
        self.time_index = TimeIndex(self._sibling(TIME_INDEX), index_bytes_max)
        self._descriptors = descriptors
        self._inode = 0

    def _sibling(self, suffix: str) -> str:
        return os.path.join(self.directory, file_name(self.base_offset, suffix))

    # --- reading ---

    @property
    def fd(self) -> int:
        """A descriptor to read or send from; opened on demand, one of a bounded number."""
        return self._descriptors.of(self.file_id, self.path)

    @property
    def inode(self) -> int:
        if not self._inode:
            try:
                self._inode = os.stat(self.path).st_ino
            except OSError as error:
                raise StorageFault(f"can't stat {self.path}: {error}") from error
        return self._inode

    def modified_ms(self) -> int:
        """When the file was last written to: stands in where no record has a timestamp."""
        try:
            return int(os.stat(self.path).st_mtime * 1000)
        except OSError as error:
            raise StorageFault(f"can't stat {self.path}: {error}") from error

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp (ms), or -1; of a finished segment, from its time index."""
        if self.max_timestamp_so_far is None:
            self.load_indexes()
            self.restore_max_timestamp()
        return self.max_timestamp_so_far

    def set_max_timestamp(self, timestamp: int, offset: int) -> None:
        """`offset`: the last one of the batch that holds the timestamp."""
        self.max_timestamp_so_far = timestamp
        self.max_timestamp_offset = offset

    def restore_max_timestamp(self) -> None:
        """Take the largest timestamp from the time index."""
        index = self.time_index
        if index.count:
            timestamp, relative_offset = index.entry(index.count - 1)
            self.set_max_timestamp(timestamp, self.base_offset + relative_offset)
        else:
            self.set_max_timestamp(-1, -1)

    def load_indexes(self) -> None:
        """Count the entries of the index files, once."""
        if not self.offset_index.count:
            self.offset_index.load()
        if not self.time_index.count:
            self.time_index.load()

    def headers(self, position: int, end: int) -> Iterator[tuple[int, tuple]]:
        """(position, header) of the batches in [position, end), two batch boundaries.

        CorruptFault where there is no whole batch.
        """
        if position >= end:
            return
        fd = self.fd
        chunk_bytes = _CHUNK_BYTES_MIN
        chunk, start = b"", position
        while position < end:
            at = position - start
            if at + HEADER_SIZE > len(chunk):
                start, at = position, 0
                try:
                    # Asked again each time: the walker may hold this generator for long.
                    fd = self.fd
                    chunk = os.pread(fd, min(chunk_bytes, end - position), position)
                except OSError as error:
                    raise StorageFault(f"can't read {self.path}: {error}") from error
                if len(chunk) < HEADER_SIZE:
                    raise CorruptFault(f"{self.path} ends in a batch at {position}")
            header = BATCH_HEADER.unpack_from(chunk, at)
            size = header[1] + LOG_OVERHEAD
            if header[3] != MAGIC or not HEADER_SIZE <= size <= end - position:
                raise CorruptFault(f"{self.path} has no whole batch at {position}")
            yield position, header
            position += size
            # Small batches are read many at a time, large ones by their headers only.
            if size * 8 < chunk_bytes:
                chunk_bytes = min(chunk_bytes * 2, _CHUNK_BYTES_MAX)
            else:
                chunk_bytes = _CHUNK_BYTES_MIN

    def read_bytes(self, position: int, length: int) -> bytes:
        """Exactly these bytes; StorageFault if the file has fewer."""
        try:
            data = os.pread(self.fd, length, position)
        except OSError as error:
            raise StorageFault(f"can't read {self.path}: {error}") from error
        if len(data) != length:
            raise CorruptFault(f"{self.path} ends before {position + length}")
        return data

    def batch_at(self, position: int) -> bytes:
        """The whole batch that begins at `position`."""
        for _, header in self.headers(position, self.size):
            return self.read_bytes(position, header[1] + LOG_OVERHEAD)
        raise CorruptFault(f"{self.path} has no batch at {position}")

    def find(self, offset: int) -> tuple[int, tuple | None]:
        """(position, header) of the first batch whose last offset is at least `offset`.

        (size, None) if there is none: the offset lies behind the segment, or in a compacted gap at
        its end.
        """
        index = self.offset_index
        relative = offset - self.base_offset
        position = index.position_before(relative) if relative > 0 and index.count else 0
        for found, header in self.headers(position, self.size):
            if header[0] + header[6] >= offset:
                return found, header
        return self.size, None

    def whole_batches(self, position: int, limit: int) -> tuple[int, int]:
        """(end, next offset) of the whole batches in [position, limit); (position, -1) for none."""
        index = self.offset_index
        start = index.boundary_before(limit) if index.count else 0
        end, next_offset = max(start, position), -1
        for found, header in self.headers(end, self.size):
            batch_end = found + header[1] + LOG_OVERHEAD
            if batch_end > limit:
                return found, header[0] if found > position else -1
            end, next_offset = batch_end, header[0] + header[6] + 1
        return end, next_offset

    # --- writing ---

    def open_for_append(self, need: int, now_ms: int, bytes_max: int) -> None:
        """Map the file with room for `need` bytes behind `size`, creating or growing it.

        DiskFullFault if there is no space, StorageFault for anything else; nothing changed then.
        """
        end = self.size + need
        if self.map is not None and end <= self.allocated_bytes:
            return
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _fault(error, self.path) from error
        try:
            if self.map is None:
                # What stands behind `size` must be zeros: drop whatever it is.
                os.ftruncate(fd, self.size)
                self.allocated_bytes = self.populated_bytes = self.size
                self._extent_ms = now_ms
            elif now_ms - self._extent_ms < _EXTENT_MS_SHORT:
                self.extent_bytes = min(self.extent_bytes * 2, EXTENT_BYTES_MAX)
            elif now_ms - self._extent_ms > _EXTENT_MS_LONG:
                self.extent_bytes = max(self.extent_bytes // 2, EXTENT_BYTES_MIN)
            goal = max(end, min(self.allocated_bytes + self.extent_bytes, bytes_max))
            goal = -(-goal // _PAGE) * _PAGE
            self._allocate(fd, goal, end)
            self._extent_ms = now_ms
        except OSError as error:
            raise _fault(error, self.path) from error
        finally:
            os.close(fd)

    def _allocate(self, fd: int, goal: int, least: int) -> None:
        """Allocate and map up to `goal`, or at least `least` where space is short."""
        while True:
            try:
                os.posix_fallocate(fd, self.allocated_bytes, goal - self.allocated_bytes)
                break
            except OSError as error:
                os.ftruncate(fd, self.allocated_bytes)
                least = -(-least // _PAGE) * _PAGE
                if error.errno not in _FULL or goal == least:
                    raise
                goal = least
        if self.map is None:
            self.map = mmap.mmap(fd, goal)
        else:
            self.map.resize(goal)
        self.allocated_bytes = goal

    def populate_step(self) -> bool:
        """Make up to 1 MiB of the pages ahead writable without a fault; True if more is needed."""
        if self.map is None:
            return False
        start = max(self.populated_bytes, self.size) // _PAGE * _PAGE
        end = min(self.size + self.extent_bytes, self.allocated_bytes)
        length = min(end - start, POPULATE_BYTES_MAX)
        if length <= 0:
            return False
        try:
            self.map.madvise(_MADV_POPULATE_WRITE, start, length)
        except OSError as error:
            if error.errno in (22, 38):  # EINVAL, ENOSYS: a kernel before 5.14
                for page in range(max(start, self.size), start + length, _PAGE):
                    self.map[page] = 0
            else:
                raise StorageFault(f"can't populate {self.path}: {error}") from error
        self.populated_bytes = start + length
        return self.populated_bytes < end

    def park(self) -> None:
        """Give back the map, the unused tail and the descriptors; the next append takes them again.

        This is also how a segment ends when it rolls or closes, as Kafka leaves it.
        """
        if self.map is not None:
            self.map.close()
            self.map = None
            self.cut_file(self.size)
            self.allocated_bytes = self.populated_bytes = self.size
        self.extent_bytes = EXTENT_BYTES_MIN
        for index in (self.offset_index, self.time_index):
            if index.count:
                index.truncate(index.count)
            index.close()
        self._descriptors.close(self.file_id)

    def finish(self) -> None:
        """Roll or clean close: the last time index entry, files cut to what is in them."""
        if self.max_timestamp_so_far is not None and self.max_timestamp_so_far >= 0:
            relative = self.max_timestamp_offset - self.base_offset
            if relative <= 2**31 - 1:
                self.time_index.maybe_append(self.max_timestamp_so_far, relative)
        self.park()
        if self.size:
            self.create_files()

    def create_files(self) -> None:
        """Let all three files exist, as Kafka expects of a segment, empty or not."""
        for path in (self.path, self.offset_index.path, self.time_index.path):
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            except OSError as error:
                raise _fault(error, path) from error

    def cut_file(self, size: int, *, is_synced: bool = False) -> None:
        """Cut the file at `size`: what is allocated behind it later reads as zeros."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, size)
                if is_synced:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageFault(f"can't cut {self.path}: {error}") from error

    def truncate(self, size: int, end_offset: int) -> None:
        """Cut at a batch boundary, durably; indexes and the largest timestamp follow."""
        if self.map is not None:
            self.map.close()
            self.map = None
        self.cut_file(size, is_synced=True)
        self.size = self.allocated_bytes = self.populated_bytes = size
        self.end_offset = end_offset
        relative = end_offset - self.base_offset
        for index, column in ((self.offset_index, 0), (self.time_index, 1)):
            low, high = 0, index.count
            while low < high:
                middle = (low + high) // 2
                if index.entry(middle)[column] < relative:
                    low = middle + 1
                else:
                    high = middle
            index.truncate(low)
        self.restore_max_timestamp()
        if not size:
            self.first_timestamp = -1
        last = (
            self.offset_index.entry(self.offset_index.count - 1)[1]
            if (self.offset_index.count)
            else 0
        )
        for _, header in self.headers(last, size):
            if header[8] > self.max_timestamp_so_far:
                self.set_max_timestamp(header[8], header[0] + header[6])

    def close(self) -> None:
        """Let go of everything without touching a file."""
        if self.map is not None:
            self.map.close()
            self.map = None
        self.offset_index.close()
        self.time_index.close()
        self._descriptors.close(self.file_id)

    def remove(self) -> None:
        """Unlink the files. Who holds a descriptor or a map of them reads on undisturbed."""
        self.close()
        for path in (
            self.path,
            self.offset_index.path,
            self.time_index.path,
            self._sibling(TXN_INDEX),
        ):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise StorageFault(f"can't remove {path}: {error}") from error


def _fault(error: OSError, path: str) -> StorageFault:
    if error.errno in _FULL:
        return DiskFullFault(f"no space for {path}: {error.strerror}")
    return StorageFault(f"can't write {path}: {error}")
