"""A log segment: one .log file of record batches, with its offset index and time index.

The active segment is mapped by its one writer. What the operating system makes of that:

 * Pages beyond the end of a file, or without room on the disk, answer a store with SIGBUS, which
   Python can't catch. So every page is allocated (`posix_fallocate`) before it is mapped: a full
   disk is an errno there. The file grows by extents, from 64 KiB, doubling while they fill within a
   second and halving when one lasts over four, at most 16 MiB.
 * The first store to a fresh page is a page fault; after `madvise(MADV_POPULATE_WRITE)` it is a
   plain store. Populating is twice as fast where zeros were written first: `pwrite` makes large
   folios, a page fault small ones. CPython holds the GIL in `madvise`, so `populate_step` does
   1 MiB at a time, between turns.
 * Where nothing is populated, a batch of 32 KiB and more is written with one `pwrite`: it costs
   less than zeros, fault and store together (docs/decisions/005).
 * `mmap.resize` is ftruncate to the size the file already has, and mremap: populated pages stay so.
   It can't move while a view into the map exists: none outlives the function that made it.
 * The map holds a descriptor of its own (dup), so the one used to open the file is closed at once.
   Reading goes through `Descriptors`.

Most segments of a start are never asked for anything, and there may be 100,000 of them: path, size
and the two indexes of one that was found on the disk are made when they are first used.

What a segment held before this process opened it may have been damaged since: a batch of it is
given out when it was judged once (`judge`), by CRC and by the offsets around it. What this process
has written it doesn't judge again.

Valid bytes are [0, size); what lies behind is zeros up to the end of the file. Only the owner cuts
a file, and only the unused tail or above the high watermark; a reader elsewhere gets a short read.
"""

import logging
import mmap
import os
from collections.abc import Iterator
from errno import EDQUOT, EFBIG, EINVAL, ENOSPC, ENOSYS
from typing import Any

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import residency
from shmbroker.log.checkpoints import remove_files
from shmbroker.log.config import LogConfig
from shmbroker.log.descriptors import Descriptors
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.file_names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from shmbroker.log.index_file import IndexFile
from shmbroker.log.offset_index import POSITION, RELATIVE_OFFSET, OffsetIndex
from shmbroker.log.quarantine import put_strangers_aside
from shmbroker.log.time_index import TIMESTAMP, TimeIndex
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    H_BASE_OFFSET,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
)
from shmbroker.signs import waiting_for_disk

TYPE_CHECKING = False

logger = logging.getLogger(__name__)

EXTENT_BYTES_MIN = 64 << 10
EXTENT_BYTES_MAX = 16 << 20
POPULATE_BYTES_MAX = 1 << 20
WRITE_BYTES_MIN = 32 << 10
"""Batches from here on are written, not stored, where the pages are not ready anyway."""

JUDGED_BYTES_MAX = 1 << 20
JUDGED_BATCHES_MAX = 512
"""By one read: half a millisecond, whatever the size of batches."""
_INDEX_GAP_BYTES = 1 << 20
"""More than this between two entries no append leaves: Kafka makes one for each that a follower
does, of at most 1 MiB."""

OFFSETS_MAX = 2**31
"""Offsets in one segment: what the indexes can hold, relative to its base. So no segment begins
further than that behind the one before it."""

_NOT_READ = -2
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python 3.11's mmap
_EXTENT_MS_SHORT = 1000
_EXTENT_MS_LONG = 4000
_CHUNK_BYTES_MIN = 4096
_CHUNK_BYTES_MAX = 64 << 10
_JUDGING_BYTES = 256 << 10
_PAGE = mmap.PAGESIZE
_ZEROS = memoryview(bytes(POPULATE_BYTES_MAX))
_FULL = (ENOSPC, EDQUOT, EFBIG)


class Segment:
    """One segment of one log. `PartitionLog` writes the fields; others read them."""

    __slots__ = (
        "_are_indexes_loaded",
        "_config",
        "_descriptors",
        "_extent_ms",
        "_inode",
        "_judged",
        "allocated_bytes",
        "base_offset",
        "created_ms",
        "directory",
        "end_offset",
        "extent_bytes",
        "file_id",
        "first_timestamp",
        "held_until_ms",
        "is_rebuilt",
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
        extent_bytes: int = EXTENT_BYTES_MIN,
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
        self._judged = (0, 0, -1)
        """[from, to) of that which is judged all the same, and the offset that follows; -1: of the
        first batch none is known."""
        self.map: mmap.mmap | None = None
        self.allocated_bytes = 0
        self.ready_bytes = 0
        """Populated up to here. While mapped: size <= ready_bytes <= allocated_bytes."""
        self.extent_bytes = extent_bytes
        self._extent_ms = created_ms
        self.created_ms = created_ms
        self.first_timestamp = -1
        """Max timestamp of the first batch: what `segment.ms` counts from; -1 while empty."""
        self.max_timestamp_so_far = _NOT_READ
        """See `max_timestamp`; known for the active segment."""
        self.max_timestamp_offset = -1
        self._config = config
        self._are_indexes_loaded = False
        self.is_rebuilt = False
        """The indexes were made anew because they were wrong: once, then it is the .log itself."""
        self._descriptors = descriptors
        self._inode = 0
        self.held_until_ms = 0
        """Readers outside the family mean to open its file until then: see `PartitionLog.hold`."""

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
                value = OffsetIndex(self._sibling(INDEX), self._config.segment_index_bytes)
            elif name == "time_index":
                value = TimeIndex(self._sibling(TIME_INDEX), self._config.segment_index_bytes)
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

    def forget(self) -> None:
        """Its descriptor is closed: keep in memory no longer what was read of it."""
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
            raise StorageFault(f"can't stat {self.path}: {error}") from error
        self._inode = found.st_ino
        return found

    def modified_ms(self) -> int:
        """When the file was last written to: stands in where no record has a timestamp."""
        return int(self._stat().st_mtime * 1000)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp (ms), or -1; of a finished segment, from its time index."""
        if self.max_timestamp_so_far == _NOT_READ:
            self.load_indexes()
            self.restore_timestamps(self.size)
            if not self.time_index.count and self.first_timestamp > 0:
                self.rebuild_indexes()
        return self.max_timestamp_so_far

    def set_max_timestamp(self, timestamp: int, offset: int) -> None:
        """`offset`: the last one of the batch that holds the timestamp."""
        self.max_timestamp_so_far = timestamp
        self.max_timestamp_offset = offset

    def restore_timestamps(self, end: int) -> None:
        """Take the timestamps from the time index and the first batch of [0, end).

        The first batch because a time index entry for it may be (0, 0), the end mark, and because
        `segment.ms` counts from it. Where the index is wrong and can't be rebuilt, it is that batch
        alone.
        """
        last = self.time_index.last()
        try:
            if last and not self.is_time_sound(last):
                self.rebuild_indexes()
                last = self.time_index.last()
        except CorruptFault:
            last = None
        self.set_max_timestamp(-1, -1)
        if last:
            self.set_max_timestamp(last[0], self.base_offset + last[1])
        self.first_timestamp = -1
        try:
            for _, header in self.headers(0, end):
                self.first_timestamp = header[H_MAX_TIMESTAMP]
                if header[H_MAX_TIMESTAMP] > self.max_timestamp_so_far:
                    self.set_max_timestamp(
                        header[H_MAX_TIMESTAMP], header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
                    )
                break
        except CorruptFault:
            pass  # Whoever reads there is told.

    def load_indexes(self) -> None:
        """Count the entries of the index files, once.

        Those of a finished segment are rebuilt where they are torn or missing.
        """
        if self._are_indexes_loaded:
            return
        is_torn = False
        for index in (self.offset_index, self.time_index):
            if not index.count:
                self._load(index)
                is_torn |= index.is_torn
        self._are_indexes_loaded = True
        is_finished = self.end_offset > self.base_offset and self.map is None and self.size
        try:
            if is_finished and (is_torn or not self.are_indexes_whole()):
                self.mend_indexes()
        except residency.ColdBytes:
            self._are_indexes_loaded = False
            raise

    def begin_indexes(self) -> None:
        """Drop what both indexes have: every batch is looked at, and indexed again."""
        for index in (self.offset_index, self.time_index):
            self._load(index)
            index.truncate(0)
        self._are_indexes_loaded = True

    def _load(self, index: IndexFile) -> None:
        try:
            index.load()
        except StorageFault:
            if not put_strangers_aside(self.directory):
                raise
            index.load()

    def mend_indexes(self) -> None:
        """Rebuild both indexes; where the segment is damaged, whoever reads there is told."""
        try:
            self.rebuild_indexes()
        except CorruptFault:
            pass

    def are_indexes_whole(self, *, is_finished: bool = True) -> bool:
        """Whether the indexes, as far as they are loaded, lead to the last batches: an end that is
        lost looks like any other end. Finished, a segment has its last timestamp in the index."""
        last = self.offset_index.last()
        start = last[1] if last else 0
        gap = self._config.index_interval_bytes + (_INDEX_GAP_BYTES if last else 0)
        try:
            if last and not self._is_sound(last):
                return False
            newest = self.time_index.last()
            for position, header in self.headers(start, self.size):
                if position - start > gap or (
                    newest and is_finished and header[H_MAX_TIMESTAMP] > newest[0]
                ):
                    return False
            if newest or not is_finished:
                return newest is None or self.is_time_sound(newest)
            return all(
                header[H_MAX_TIMESTAMP] <= 0
                for _, header in self.headers(0, min(self.size, start + 1))
            )
        except CorruptFault:
            return True  # It is the segment itself: whoever reads there is told.

    def has_indexes(self) -> bool:
        """Whether both index files are there and hold whole entries."""
        try:
            return not any(
                os.stat(index.path).st_size % index.ENTRY.size
                for index in (self.offset_index, self.time_index)
            )
        except OSError:
            return False

    def is_time_sound(self, entry: tuple[int, ...]) -> bool:
        """Whether a time index entry names a batch with that timestamp."""
        offset = self.base_offset + entry[1]
        _, header = self.find(offset)
        # Older Kafka stored the offset of the record, not of the batch's last one.
        return (
            header is not None
            and header[H_MAX_TIMESTAMP] == entry[0]
            and header[H_BASE_OFFSET] <= offset
        )

    def indexed_position(self, target: int, column: int) -> int:
        """Where an indexed batch at or before the target begins: looked at, then believed."""
        self.load_indexes()
        index = self.offset_index
        entry = index.floor(target, column)
        if entry is None:
            return 0
        if not self._is_sound(entry):
            self.rebuild_indexes()
            entry = index.floor(target, column)
        return entry[1] if entry else 0

    def _is_sound(self, entry: tuple[int, ...]) -> bool:
        try:
            for _, header in self.headers(entry[1], self.size):
                return (
                    header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
                    == self.base_offset + entry[0]
                )
        except CorruptFault:
            pass
        return False

    def rebuild_indexes(self) -> None:
        """Make both indexes anew from the batches' headers.

        CorruptFault if those are damaged: then the indexes stay, for what they still lead to.
        """
        if self.is_rebuilt:
            raise CorruptFault(f"{self.path} is damaged")
        self.is_rebuilt = self._are_indexes_loaded = True
        with residency.waiting():
            for position, header in self.headers(0, self.size):
                if (
                    not 0
                    <= header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] - self.base_offset
                    < 1 << 31
                ):
                    raise CorruptFault(f"{self.path}: the batch at position {position} is damaged")
            logger.warning("%s: an index is missing or wrong; both are rebuilt", self.path)
            self._rebuild_indexes()

    def _rebuild_indexes(self) -> None:
        self.offset_index.truncate(0)
        self.time_index.truncate(0)
        self.set_max_timestamp(-1, -1)
        indexed_at = 0
        for position, header in self.headers(0, self.size):
            last_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
            if header[H_MAX_TIMESTAMP] > self.max_timestamp_so_far:
                self.set_max_timestamp(header[H_MAX_TIMESTAMP], last_offset)
            if position - indexed_at > self._config.index_interval_bytes:
                indexed_at = position
                self.add_index_entry(position, last_offset)
        if self.map is None:
            self.finish()

    def add_index_entry(self, position: int, last_offset: int) -> None:
        """Index the batch at `position`; the largest timestamp up to it must be known."""
        if self.offset_index.append(last_offset - self.base_offset, position):
            self.time_index.maybe_append(
                self.max_timestamp_so_far, self.max_timestamp_offset - self.base_offset
            )

    def _add_last_time(self) -> None:
        if self.max_timestamp_so_far >= 0:
            self.time_index.maybe_append(
                self.max_timestamp_so_far, self.max_timestamp_offset - self.base_offset
            )

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
                    raise StorageFault(f"can't read {self.path}: {error}") from error
                if len(chunk) < HEADER_SIZE:
                    raise CorruptFault(f"{self.path} ends in a batch at {position}")
            header = BATCH_HEADER.unpack_from(chunk, at)
            size = header[H_LENGTH] + LOG_OVERHEAD
            if header[H_MAGIC] != MAGIC or not HEADER_SIZE <= size <= end - position:
                raise CorruptFault(f"{self.path} has no whole batch at {position}")
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
            raise StorageFault(f"can't read {self.path}: {error}") from error

    def judge(self, position: int, limit: int, offset: int, end_offset: int) -> tuple[int, int]:
        """(end, next offset or -1 where `end` is `limit`) of what in [position, limit), two batch
        boundaries, may be given out.

        The first batch is that of `offset` and the others continue it, or, for offset -1, some may
        be missing; none ends behind `end_offset`. Of what was not judged before at most
        JUDGED_BYTES_MAX and JUDGED_BATCHES_MAX are looked at, but one batch. CorruptFault if that
        is damaged.
        """
        start, end, following = self._judged
        if start <= position < end:
            return (limit, -1) if limit <= end else (end, following)
        if position != end or following < 0:
            start, end, following = position, position, -1
        is_dense = offset >= 0
        bound = position + JUDGED_BYTES_MAX
        last: tuple[int, tuple[int, ...], int] | None = None
        try:
            for _, (at, header) in zip(
                range(JUDGED_BATCHES_MAX), self.good_batches(position, limit), strict=False
            ):
                base_offset, next_offset = (
                    header[H_BASE_OFFSET],
                    header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1,
                )
                if (
                    header[H_LAST_OFFSET_DELTA] < 0
                    or next_offset > end_offset
                    or base_offset < self.base_offset
                ):
                    break
                if following < 0:
                    if is_dense and not base_offset <= offset < next_offset:
                        break
                elif base_offset != following if is_dense else base_offset < following:
                    break
                last = at, header, following
                following = next_offset
                end = at + header[H_LENGTH] + LOG_OVERHEAD
                if end >= bound:
                    break
            if last is not None and not self._is_in_place(*last, is_dense=is_dense):
                end, _, following = last
        except residency.ColdBytes:
            self.read_ahead(position, min(limit - position, JUDGED_BYTES_MAX))
            if last is not None:
                end, _, following = last  # What is behind it was not seen.
            if end == position:
                raise
        if end == position:
            raise CorruptFault(f"{self.path}: the batch at position {position} is damaged")
        self._judged = start, end, following
        if start == 0 and end >= self.unjudged_bytes:
            self.unjudged_bytes = 0
        return end, following

    def _is_in_place(
        self, position: int, header: tuple[int, ...], expected: int, *, is_dense: bool
    ) -> bool:
        """Whether a batch's base offset, which no CRC covers, is that of its place: the batch
        behind continues it, or else goes back and is the one that is wrong by the batch before.

        expected: where the batch before ends; -1: nobody has looked.
        """
        end = position + header[H_LENGTH] + LOG_OVERHEAD
        next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
        try:
            for _, behind in self.headers(end, self.size):
                if behind[H_BASE_OFFSET] == next_offset or (
                    not is_dense and behind[H_BASE_OFFSET] > next_offset
                ):
                    return True
                before = self.end_before(position) if expected < 0 else expected
                return header[H_BASE_OFFSET] == before or (
                    not is_dense and behind[H_BASE_OFFSET] < before
                )
        except CorruptFault:
            pass  # A neighbour that is damaged says nothing.
        return True

    def end_before(self, position: int) -> int:
        """One past the last offset of what lies before `position`, a batch boundary."""
        end_offset = self.base_offset
        start = self.indexed_position(position - 1, POSITION) if position else 0
        for _, header in self.headers(start, position):
            end_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
        return end_offset

    def note_judged(self, start: int, end: int, next_offset: int) -> None:
        """A scan has looked at [start, end), behind which `next_offset` follows."""
        self._judged = start, end, next_offset
        if start == 0 and end >= self.unjudged_bytes:
            self.unjudged_bytes = 0

    def on_rewritten(self) -> None:
        """Its file was replaced: nothing of what is known of the old one counts."""
        self._descriptors.close(self.file_id)
        self.offset_index.truncate(0)
        self.time_index.truncate(0)
        self.set_max_timestamp(-1, -1)
        self.size = self.unjudged_bytes = self._stat().st_size
        self._judged = (0, 0, -1)
        self.is_rebuilt = False

    def read_bytes(self, position: int, length: int) -> bytes:
        """Exactly these bytes; StorageFault if the file has fewer."""
        try:
            data = residency.read(self.fd, length, position)
        except OSError as error:
            raise StorageFault(f"can't read {self.path}: {error}") from error
        if len(data) != length:
            raise CorruptFault(f"{self.path} ends before {position + length}")
        return data

    def batch_at(self, position: int) -> bytes:
        """The whole batch that begins at `position`."""
        for _, header in self.headers(position, self.size):
            return self.read_bytes(position, header[H_LENGTH] + LOG_OVERHEAD)
        raise CorruptFault(f"{self.path} has no batch at {position}")

    def offset_before(self, timestamp: int) -> int:
        """An offset before which every record of the segment is older than `timestamp`."""
        self.load_indexes()
        entry = self.time_index.floor(timestamp - 1, TIMESTAMP)
        if entry and not self.is_time_sound(entry):
            self.rebuild_indexes()
            entry = self.time_index.floor(timestamp - 1, TIMESTAMP)
        return self.base_offset + (entry[1] if entry else 0)

    def find(self, offset: int) -> tuple[int, tuple[int, ...] | None]:
        """(position, header) of the first batch whose last offset is at least `offset`.

        (size, None) if there is none: the offset lies behind the segment, or in a compacted gap at
        its end.
        """
        relative = offset - self.base_offset
        position = self.indexed_position(relative, RELATIVE_OFFSET) if relative > 0 else 0
        for found, header in self.headers(position, self.size):
            if header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] >= offset:
                return found, header
        return self.size, None

    def whole_batches(self, position: int, limit: int) -> tuple[int, int]:
        """(end, next offset) of the whole batches in [position, limit); (position, -1) for none."""
        end, next_offset = max(self.indexed_position(limit, POSITION), position), -1
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

    # --- writing ---

    def make_ready(self, need: int, now_ms: int, bytes_max: int) -> None:
        """Map the file with `need` bytes behind `size` that take a store without a page fault.

        Or, from WRITE_BYTES_MIN on, a `write`: then `ready_bytes` may end before them. The file is
        created or grown for it, to at most `bytes_max` if that is enough.
        DiskFullFault if there is no space, StorageFault for anything else; nothing changed then.
        """
        end = self.size + need
        if self.map is None or end > self.allocated_bytes:
            self._grow(end, now_ms, bytes_max)
        if end > self.ready_bytes and need < WRITE_BYTES_MIN:
            # Faults one by one cost ten times as much as this, so never leave them to the append.
            self._populate(max(end, min(self.size + EXTENT_BYTES_MIN, self.allocated_bytes)))

    def write(self, position: int, batch: memoryview, stamp: bytes) -> None:
        """Put a batch where `make_ready` has made room for it, with `stamp` over its start: there
        in `batch` itself, if that may be written to.

        The end of it counts as ready then, so that `populate_step` leaves such a log alone.
        """
        fd = self._open_to_write()
        try:
            if batch.readonly:
                _write_all(fd, batch[len(stamp) :], position + len(stamp))
                _write_all(fd, stamp, position)
            else:
                batch[: len(stamp)] = stamp
                _write_all(fd, batch, position)
        except OSError as error:
            raise _fault(error, self.path) from error
        finally:
            os.close(fd)
        self.ready_bytes = position + len(batch)

    def _open_to_write(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _fault(error, self.path) from error

    def _grow(self, end: int, now_ms: int, bytes_max: int) -> None:
        fd = self._open_to_write()
        try:
            if self.map is None:
                # What stands behind `size` must be zeros: drop whatever it is.
                os.ftruncate(fd, self.size)
                self.allocated_bytes = self.ready_bytes = self.size
            elif now_ms - self._extent_ms < _EXTENT_MS_SHORT:
                self.extent_bytes = min(self.extent_bytes * 2, EXTENT_BYTES_MAX)
            elif now_ms - self._extent_ms > _EXTENT_MS_LONG:
                self.extent_bytes = max(self.extent_bytes // 2, EXTENT_BYTES_MIN)
            goal = max(end, min(self.allocated_bytes + self.extent_bytes, bytes_max))
            self._allocate(fd, _page_up(goal), _page_up(end))
            self._extent_ms = now_ms
        except OSError as error:
            raise _fault(error, self.path) from error
        finally:
            os.close(fd)

    def _allocate(self, fd: int, goal: int, least: int) -> None:
        """Allocate and map up to `goal`, or to `least` where space is short."""
        while True:
            try:
                os.posix_fallocate(fd, self.allocated_bytes, goal - self.allocated_bytes)
                break
            except OSError as error:
                os.ftruncate(fd, self.allocated_bytes)
                if error.errno not in _FULL or goal == least:
                    raise
                goal = least
        if self.map is None:
            self.map = mmap.mmap(fd, goal)
        else:
            self.map.resize(goal)
        self.allocated_bytes = goal

    def populate_step(self, now_ms: int, bytes_max: int) -> bool:
        """Ready up to 1 MiB more, an extent ahead of `size`; True if there is still more to do."""
        if self.map is None or self.ready_bytes == self.size:
            return False
        near = min(self.size + self.extent_bytes // 2, bytes_max)
        if near > self.allocated_bytes:
            try:
                self._grow(near, now_ms, bytes_max)
            except DiskFullFault:
                pass  # The append that needs it will say so.
        goal = min(self.size + self.extent_bytes, self.allocated_bytes)
        end = min(goal, self.ready_bytes + POPULATE_BYTES_MAX)
        if end > self.ready_bytes:
            self._populate(end)
        return end < goal

    def _populate(self, end: int) -> None:
        assert self.map is not None
        start = self.ready_bytes // _PAGE * _PAGE
        end = min(_page_up(end), self.allocated_bytes)
        fd = self._open_to_write()
        try:
            position = self.ready_bytes
            while position < end:
                position += os.pwrite(fd, _ZEROS[: end - position], position)
            self.map.madvise(_MADV_POPULATE_WRITE, start, end - start)
        except OSError as error:
            if error.errno not in (EINVAL, ENOSYS):
                raise _fault(error, self.path) from error
            # A kernel before 5.14: zeros over the zeros that stand there.
            for position in range(max(start, self.size), end, _PAGE):
                self.map[position] = 0
        finally:
            os.close(fd)
        self.ready_bytes = end

    def park(self) -> None:
        """Give back the map, the unused tail and the descriptors; the next append takes them again.

        This is also how a segment ends when it rolls or closes, as Kafka leaves it.
        """
        if self.map is not None:
            self.map.close()
            self.map = None
        if self.allocated_bytes > self.size:
            self.cut_file(self.size)  # If that is refused, the next try does it.
            self.allocated_bytes = self.ready_bytes = self.size
        self.extent_bytes = EXTENT_BYTES_MIN
        for index in (self.offset_index, self.time_index):
            if index.count:
                index.truncate(index.count)
            index.close()
        self._descriptors.close(self.file_id)

    def finish(self) -> None:
        """Roll or clean close: the last time index entry, files cut to what is in them."""
        self._add_last_time()
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
                    with waiting_for_disk():
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
        self.size = self.allocated_bytes = self.ready_bytes = size
        self.end_offset = end_offset
        self.cut_indexes()

    def cut_indexes(self) -> None:
        """Drop index entries at or behind `end_offset`; the largest timestamp follows."""
        relative = self.end_offset - self.base_offset
        self.offset_index.truncate(self.offset_index.count_below(relative, 0))
        self.time_index.truncate(self.time_index.count_below(relative, 1))
        self.restore_timestamps(self.size)
        last = self.offset_index.last()
        self.walk_timestamps(last[1] if last else 0, self.size)

    def walk_timestamps(self, position: int, end: int) -> tuple[int, tuple[int, ...]] | None:
        """Take in the timestamps of the batches in [position, end); the last batch's place."""
        place = None
        for place in self.headers(position, end):
            header = place[1]
            if header[H_MAX_TIMESTAMP] > self.max_timestamp_so_far:
                self.set_max_timestamp(
                    header[H_MAX_TIMESTAMP], header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA]
                )
        return place

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
        indexes = (self.offset_index.path, self.time_index.path, self._sibling(TXN_INDEX))
        remove_files((self.path, *indexes))


def _write_all(fd: int, data: memoryview | bytes, position: int) -> None:
    while written := os.pwrite(fd, data, position):
        if written == len(data):
            return
        data = data[written:]
        position += written


def _page_up(position: int) -> int:
    return -(-position // _PAGE) * _PAGE


def _fault(error: OSError, path: str) -> StorageFault:
    if error.errno in _FULL:
        return DiskFullFault(f"no space for {path}: {error.strerror}")
    return StorageFault(f"can't write {path}: {error}")
