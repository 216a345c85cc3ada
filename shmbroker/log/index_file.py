"""What the offset index and the time index of a segment share: a file of sorted, fixed entries.

Rules
 * An index is derived: whatever is lost or wrong here is built again from the segment, so an entry
   that the disk refuses is left out.
 * An entry is one pwrite, of 8 or 12 bytes at a multiple of its size. Space is allocated 4 KiB at a
   time, so a file that is being appended to ends in zeros, and an all-zero entry ends the index
   (none is ever stored). A file is cut to its entries when the segment rolls or closes, as Kafka
   does it (Kafka `AbstractIndex`).
"""

import os
from struct import Struct

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import residency

_GROW_BYTES = 4096
_BLOCK_ENTRIES = 512
"""Entries read at once where a search ends: 4 KiB of the offset index."""


class IndexFile:
    """Sorted entries on disk. The descriptor is opened by the first append, closed by `close`."""

    ENTRY: Struct
    __slots__ = (
        "_allocated",
        "_block",
        "_block_end",
        "_block_first",
        "_fd",
        "bytes_max",
        "count",
        "is_torn",
        "path",
    )

    def __init__(self, path: str, bytes_max: int) -> None:
        self.path = path
        self.bytes_max = bytes_max
        self.count = 0
        """Entries; known after `load`, kept by `append`."""
        self.is_torn = False
        """Whether the file was not there when it was loaded, or ended within an entry."""
        self._fd = -1
        self._allocated = 0
        self.forget_block()

    def forget_block(self) -> None:
        """Let go of what is kept in memory for the next search."""
        self._block = b""
        self._block_first = self._block_end = 0

    def is_full(self) -> bool:
        return (self.count + 1) * self.ENTRY.size > self.bytes_max

    def load(self) -> None:
        """Count the entries of an existing file: up to the first all-zero one, or its end."""
        try:
            self._count()
        except FileNotFoundError:
            self.is_torn = True
        except OSError as error:
            raise StorageFault(f"can't read {self.path}: {error}", self.path) from error

    def _count(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = self.ENTRY.size
            high, rest = divmod(os.fstat(fd).st_size, size)
            self.is_torn = rest > 0
            low = 0
            zero = bytes(size)
            # Entries grow, so zeros are one run at the end.
            while low < high:
                middle = (low + high) // 2
                if residency.read(fd, size, middle * size) == zero:
                    high = middle
                else:
                    low = middle + 1
            self.count = low
        finally:
            os.close(fd)

    def append(self, *entry: int) -> bool:
        """Store an entry behind the last; False if the disk has no room for it or it is full."""
        size = self.ENTRY.size
        position = self.count * size
        if position + size > self.bytes_max:
            return False
        if position + size > self._allocated and not self._grow(position + size):
            return False
        try:
            is_stored = os.pwrite(self._fd, self.ENTRY.pack(*entry), position) == size
        except OSError:
            return False
        self.count += is_stored
        return is_stored

    def extend(self, entries: bytes) -> int:
        """Store entries behind the last, with one write: how many, fewer if there is no room."""
        size = self.ENTRY.size
        position = self.count * size
        entries = entries[: (self.bytes_max - position) // size * size]
        while position + len(entries) > self._allocated:
            if not self._grow(position + len(entries)):
                entries = entries[: (self._allocated - position) // size * size]
                break
        try:
            stored = os.pwrite(self._fd, entries, position) // size if entries else 0
        except OSError:
            stored = 0
        self.count += stored
        return stored

    def _grow(self, need: int) -> bool:
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                self._allocated = os.fstat(self._fd).st_size
            if need > self._allocated:
                os.posix_fallocate(self._fd, self._allocated, _GROW_BYTES)
                self._allocated += _GROW_BYTES
        except OSError:
            return False
        return True

    def entry(self, number: int) -> tuple[int, ...]:
        """The entry with this number."""
        return self.ENTRY.unpack(self._read_raw(number, 1))

    def read(self, first: int, count: int) -> list[tuple[int, ...]]:
        """`count` entries from `first` on."""
        return list(self.ENTRY.iter_unpack(self._read_raw(first, count))) if count else []

    def last(self) -> tuple[int, ...] | None:
        """The last entry, or None."""
        return self.entry(self.count - 1) if self.count else None

    def _read_raw(self, first: int, count: int) -> bytes:
        size = self.ENTRY.size
        try:
            fd = self._fd if self._fd >= 0 else os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                raw = residency.read(fd, count * size, first * size)
            finally:
                if fd != self._fd:
                    os.close(fd)
        except OSError as error:
            raise StorageFault(f"can't read {self.path}: {error}", self.path) from error
        if len(raw) != count * size:
            raise CorruptFault(f"{self.path} ends before entry {first + count}", self.path)
        return raw

    def floor(self, target: int, column: int) -> tuple[int, ...] | None:
        """The last entry whose `column` is at most `target`; None if there is none."""
        place = self.floor_number(target, column)
        if place < 0:
            return None
        return self.ENTRY.unpack_from(self._block, (place - self._block_first) * self.ENTRY.size)

    def floor_number(self, target: int, column: int) -> int:
        """The number of that entry, or -1. Afterwards its block is kept.

        A sequential reader thus mostly searches memory; nothing is unpacked that isn't looked at.
        """
        unpack, size = self.ENTRY.unpack_from, self.ENTRY.size
        low, high = self._block_first, self._block_end
        block = self._block
        is_kept = (
            low < high
            and unpack(block, 0)[column] <= target
            and (high == self.count or target < unpack(block, len(block) - size)[column])
        )
        if not is_kept:
            low, high = 0, self.count
            while high - low > _BLOCK_ENTRIES:
                middle = (low + high) // 2
                if self.entry(middle)[column] <= target:
                    low = middle
                else:
                    high = middle
            # As far as the block goes, for the next search.
            high = min(low + _BLOCK_ENTRIES, self.count)
            block = self._block = self._read_raw(low, high - low) if low < high else b""
            self._block_first, self._block_end = low, high
        first = low
        while low < high:
            middle = (low + high) // 2
            if unpack(block, (middle - first) * size)[column] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1 if low > first else -1

    def count_below(self, target: int, column: int) -> int:
        """How many entries have a `column` smaller than `target`."""
        return self.floor_number(target - 1, column) + 1

    def count_sound(self, count: int) -> int:
        """How many of the first `count` entries grow as they must: lost pages read as zeros."""
        previous: tuple[int, ...] = (-1, -1)
        for number, entry in enumerate(self.read(0, count)):
            if entry[0] <= previous[0] or entry[1] <= previous[1]:
                return number
            previous = entry
        return count

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries and give the rest of the file back."""
        self.count = min(self.count, count)
        self.forget_block()
        try:
            os.truncate(self.path, self.count * self.ENTRY.size)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageFault(f"can't cut {self.path}: {error}", self.path) from error
        self._allocated = self.count * self.ENTRY.size

    def close(self) -> None:
        """Close the descriptor; the file stays as it is."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._allocated = 0
        self.forget_block()

    def remove(self) -> None:
        """Unlink the file, if it is there; it is empty then."""
        self.close()
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        self.count = 0
