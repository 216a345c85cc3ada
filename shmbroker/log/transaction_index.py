"""The transaction indexes of one log: which transactions were aborted, and where.

A segment's `.txnindex` has an entry for each aborted transaction whose marker lies in it, in the
order of the markers (source: KIP-98, Kafka `TransactionIndex`, `AbortedTxn`). A segment without any
has no such file.

   at  size  field
    0     2  version             0
    2     8  producer_id
   10     8  first_offset        of the transaction
   18     8  last_offset         that of its marker
   26     8  last_stable_offset  behind the marker: every transaction that began before is ended

Example: producer 1 wrote offset 5, and was aborted at 9 while none was open
   0000: 00 00  00 00 00 00 00 00 00 01  00 00 00 00 00 00 00 05
   0012: 00 00 00 00 00 00 00 09  00 00 00 00 00 00 00 0a

Rules
 * Derived: where entries are missing or wrong, they are made again from the batches
   (`recovery.producers`), which begins at a producer snapshot. So no snapshot is taken, and
   nothing counts as flushed, while an entry that the disk has refused is in memory alone.
 * An index is read as a whole when it is first asked for, and kept: of each log those of the
   KEPT segments that were asked for last.
"""

import logging
import os
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

from shmbroker.errors import StorageFault
from shmbroker.log.checkpoints import write_all
from shmbroker.log.file_names import TXN_INDEX, file_name

logger = logging.getLogger(__name__)

ENTRY = Struct(">hqqqq")
VERSION = 0
KEPT = 4
_LAST_OFFSET = Struct(">q")
_LAST_OFFSET_AT = 18
_ENTRY_BYTES = ENTRY.size


class AbortedTransaction(NamedTuple):
    """One entry. Its records lie at offsets [first_offset, last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """What a file with these holds."""
    return b"".join(ENTRY.pack(VERSION, *entry) for entry in entries)


def parse_entries(data: bytes | bytearray) -> list[AbortedTransaction]:
    """The entries of an index, up to the first that can't be: lost pages read as zeros."""
    entries: list[AbortedTransaction] = []
    previous = -1
    for position in range(0, len(data) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
        version, *fields = ENTRY.unpack_from(data, position)
        entry = AbortedTransaction(*fields)
        is_in_order = 0 <= entry.first_offset < entry.last_offset > previous
        if version != VERSION or not is_in_order:
            break
        previous = entry.last_offset
        entries.append(entry)
    return entries


class AbortedTransactions:
    """What one log has of aborted transactions. False where no segment has an index, as in most."""

    __slots__ = ("_bases", "_contents", "_find_again", "_unwritten", "directory")

    def __init__(
        self, directory: str, find_again: Callable[[int], list[AbortedTransaction]]
    ) -> None:
        """find_again: what the batches of the segment with this base offset say."""
        self.directory = directory
        self._find_again = find_again
        self._bases: list[int] = []
        """Base offsets of the segments that have an index, ascending."""
        self._contents: dict[int, bytearray] = {}
        """Whole entries by base offset, least recently used first."""
        self._unwritten: dict[int, int] = {}
        """The byte from which the file lacks what is here, by base offset."""

    def __bool__(self) -> bool:
        return bool(self._bases)

    def forget_log(self) -> None:
        """The log is deleted. It is freed at once if nothing here refers to it any more: the
        garbage collector seldom looks at what has lived for long."""
        self._find_again = lambda _: []

    def path(self, base_offset: int) -> str:
        """The index of the segment that begins there."""
        return os.path.join(self.directory, file_name(base_offset, TXN_INDEX))

    def has(self, base_offset: int) -> bool:
        """Whether the segment that begins there has an index."""
        return base_offset in self._bases

    @property
    def paths(self) -> list[str]:
        """All index files."""
        return [self.path(base_offset) for base_offset in self._bases]

    def paths_from(self, base_offset: int) -> list[str]:
        """The index files of the segments that begin there or later."""
        return [self.path(base) for base in self._bases if base >= base_offset]

    # --- which segments have one ---

    def found(self, base_offset: int) -> None:
        """Note that a segment's file is there, or is another one now."""
        self._contents.pop(base_offset, None)
        if base_offset not in self._bases:
            insort(self._bases, base_offset)

    def dropped(self, base_offset: int) -> None:
        """The segment is no longer of this log."""
        self._contents.pop(base_offset, None)
        self._unwritten.pop(base_offset, None)
        if base_offset in self._bases:
            self._bases.remove(base_offset)

    def keep(self, first: int, last: int) -> None:
        """Leave only segments that begin in [first, last]."""
        for base_offset in [base for base in self._bases if not first <= base <= last]:
            self.dropped(base_offset)

    def check(self) -> None:
        """Look at all of them, and rebuild those that are missing or wrong: before a process
        reads the files that has no log to ask."""
        self.write()
        for base_offset in self._bases:
            self._content(base_offset)

    # --- entries ---

    def append(self, base_offset: int, entry: AbortedTransaction) -> None:
        """Add one to the index of the active segment. What the disk refuses is kept in memory, and
        written later (`write`)."""
        if base_offset not in self._bases:
            insort(self._bases, base_offset)
            self._contents[base_offset] = bytearray()
        content = self._content(base_offset)
        self._unwritten.setdefault(base_offset, len(content))
        content += ENTRY.pack(VERSION, *entry)
        try:
            self.write()
        except StorageFault:
            pass  # The next flush says so.

    def write(self) -> None:
        """Write what is only in memory; StorageFault if the disk refuses."""
        for base_offset, begin in list(self._unwritten.items()):
            path = self.path(base_offset)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    os.ftruncate(fd, begin)
                    os.lseek(fd, begin, os.SEEK_SET)
                    write_all(fd, bytes(self._contents[base_offset][begin:]))
                finally:
                    os.close(fd)
            except OSError as error:
                raise StorageFault(f"can't write {path}: {error}", path) from error
            del self._unwritten[base_offset]

    def stored(self, base_offset: int) -> list[AbortedTransaction]:
        """What the file of one segment holds, as far as it is right."""
        if base_offset not in self._bases:
            return []
        if base_offset in self._unwritten:
            return parse_entries(self._contents[base_offset])
        return parse_entries(_read(self.path(base_offset)) or b"")

    def set_right(self, base_offset: int, entries: list[AbortedTransaction]) -> None:
        """Replace the index of a segment unless its file is exactly this."""
        is_unread = base_offset not in self._bases or base_offset in self._unwritten
        if is_unread or _read(self.path(base_offset)) != encode_entries(entries):
            self.replace(base_offset, entries)

    def replace(self, base_offset: int, entries: list[AbortedTransaction]) -> None:
        """Make the index of a segment these entries; as `append`, where the disk refuses.

        What is right in the file is not touched: it may be durable, and a flush makes nothing
        durable again that lies below the recovery point.
        """
        if base_offset not in self._bases:
            if not entries:
                return
            insort(self._bases, base_offset)
        content = encode_entries(entries)
        known = _read(self.path(base_offset)) or b""
        right = 0
        while right < len(content) and known.startswith(
            content[right : right + _ENTRY_BYTES], right
        ):
            right += _ENTRY_BYTES
        self._contents[base_offset] = bytearray(content)
        self._unwritten[base_offset] = right
        try:
            self.write()
        except StorageFault:
            pass  # The next flush says so.

    def find(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records or a marker in [offset, end_offset).

        A marker may lie far behind: later segments are looked at until an entry says that all that
        began before `end_offset` is ended.
        """
        found: list[AbortedTransaction] = []
        first = max(bisect_right(self._bases, offset) - 1, 0)
        for base_offset in self._bases[first:]:
            content = self._content(base_offset)
            count = len(content) // _ENTRY_BYTES
            low, high = 0, count
            while low < high:
                middle = (low + high) // 2
                at = middle * _ENTRY_BYTES + _LAST_OFFSET_AT
                if _LAST_OFFSET.unpack_from(content, at)[0] < offset:
                    low = middle + 1
                else:
                    high = middle
            for number in range(low, count):
                _, *fields = ENTRY.unpack_from(content, number * _ENTRY_BYTES)
                entry = AbortedTransaction(*fields)
                if entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found
        return found

    def _content(self, base_offset: int) -> bytearray:
        contents = self._contents
        content = contents.pop(base_offset, None)
        if content is None:
            path = self.path(base_offset)
            raw = _read(path)
            content = bytearray(raw or b"")
            if raw is None or len(parse_entries(raw)) * _ENTRY_BYTES != len(raw):
                logger.warning("%s is missing or wrong; it is made anew from the batches", path)
                self.replace(base_offset, self._find_again(base_offset))
                content = contents.pop(base_offset)
        contents[base_offset] = content
        if len(contents) > KEPT:
            for oldest in contents:
                if oldest not in self._unwritten and oldest != base_offset:
                    del contents[oldest]
                    break
        return content


def _read(path: str) -> bytes | None:
    """None: it is not there."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error}", path) from error
