"""Segment and index files of a broker on the same host, read only.

The driver looks at index entries and single batch headers to plan; a task maps the bytes of its
piece and checks that they are the planned ones. What a file holds beyond the planned bytes, and
its size, say nothing: it is allocated ahead and written on.

A mapped file stays readable when retention unlinks it, and its valid bytes are never changed or
cut off, so a map of planned bytes can neither change nor fault.
"""

import mmap
import os
from collections.abc import Iterable
from struct import error as StructError

from shmbroker.client.faults import DataLossFault, NoFilesFault
from shmbroker.client.reader.aborted import AbortedRange, parse_index
from shmbroker.client.reader.access import forbidden
from shmbroker.client.reader.planning import BatchSpan, IndexEntries, ListedSegment, Piece
from shmbroker.errors import CorruptFault
from shmbroker.ids import uuid_from_text, uuid_text
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    H_MAGIC,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
)

DELETED = ".deleted"
"""The end of the names of files that are to be unlinked, but not yet."""


class GoneFault(DataLossFault):
    """A file that was listed is no longer there: a new list tells what is."""


class SegmentFiles:
    """The files looked at during one planning; closes them at the end."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._indexes: dict[str, IndexEntries] = {}

    def __enter__(self) -> "SegmentFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self._indexes.clear()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def index_of(self, segment: ListedSegment) -> IndexEntries:
        """The segment's offset index; an empty one if there is none."""
        index = self._indexes.get(segment.path)
        if index is None:
            index = IndexEntries(
                _file_bytes(_beside(segment.path, ".index")),
                segment.base_offset,
                segment.valid_bytes,
            )
            self._indexes[segment.path] = index
        return index

    def header_at(self, segment: ListedSegment, position: int) -> int | None:
        """The base offset of the batch at `position`; None if no whole one begins there."""
        batch = self.batch_at(segment, position)
        return None if batch is None else batch.base_offset

    def batch_at(self, segment: ListedSegment, position: int) -> BatchSpan | None:
        """The batch at `position`; None if no whole one begins there."""
        descriptor = self._descriptors.get(segment.path)
        if descriptor is None:
            descriptor = self._descriptors[segment.path] = _open(segment.path, segment.inode)
        try:
            header = BATCH_HEADER.unpack(os.pread(descriptor, HEADER_SIZE, position))
        except StructError:
            return None
        size = LOG_OVERHEAD + header[H_LENGTH]
        if header[H_MAGIC] != MAGIC or not HEADER_SIZE <= size <= segment.valid_bytes - position:
            return None
        base_offset = header[H_BASE_OFFSET]
        return BatchSpan(base_offset, base_offset + header[H_LAST_OFFSET_DELTA] + 1, size)


def aborted_transactions(
    segments: Iterable[ListedSegment], start_offset: int, end_offset: int
) -> tuple[AbortedRange, ...]:
    """The aborted transactions with records in this range; `segments` are those that reach beyond
    its start, as a marker may lie far behind its transaction."""
    return tuple(
        transaction
        for segment in segments
        for transaction in parse_index(_transaction_index(segment))
        if transaction.first_offset < end_offset and start_offset <= transaction.last_offset
    )


def _transaction_index(segment: ListedSegment) -> bytes:
    """The bytes of a segment's `.txnindex`; none if it has none, as where nothing was aborted.

    It can't be done without, so it must be that of the listed file: compaction and retention rename
    the `.log` first, then the index, to `.deleted`; only then another segment gets their names.
    """
    path = _beside(segment.path, ".txnindex")
    data = _needed_bytes(path)
    if _inode_of(segment.path) == segment.inode:
        return data or b""
    replaced = _needed_bytes(path + DELETED)
    if replaced is None:
        data = _needed_bytes(path)
        replaced = _needed_bytes(path + DELETED)  # it may have been renamed in between
    if _inode_of(segment.path + DELETED) != segment.inode:
        raise GoneFault(f"{segment.path} is gone, deleted or compacted since it was listed")
    return replaced or data or b""


def map_piece(piece: Piece) -> memoryview:
    """The bytes of a piece, mapped; DataLossFault or CorruptFault if they are not the planned ones.

    They are unmapped when the last reference to the view is gone.
    """
    check_topic_id(piece)
    descriptor = _open(piece.path, piece.inode)
    try:
        skip = piece.low % mmap.ALLOCATIONGRANULARITY
        if os.fstat(descriptor).st_size < piece.high:
            raise CorruptFault(f"{piece.path} is shorter than the {piece.high} bytes planned")
        mapped = mmap.mmap(
            descriptor,
            piece.high - piece.low + skip,
            prot=mmap.PROT_READ,
            offset=piece.low - skip,
        )
    finally:
        os.close(descriptor)
    data = memoryview(mapped)[skip:]
    if len(data) < HEADER_SIZE or BATCH_HEADER.unpack_from(data)[0] != piece.base_offset:
        raise CorruptFault(
            f"{piece.path} at {piece.low}: not the batch of offset {piece.base_offset} that was"
            " planned"
        )
    return data


def check_topic_id(piece: Piece) -> None:
    """The directory must still be that of the planned topic, not of a new one of the same name."""
    path = os.path.join(os.path.dirname(piece.path), "partition.metadata")
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            fields = dict(line.split(": ", 1) for line in file.read(4096).splitlines())
        topic_id = uuid_from_text(fields["topic_id"])
    except FileNotFoundError:
        raise GoneFault(f"{os.path.dirname(path)} is gone: was the topic deleted?") from None
    except PermissionError:
        raise _forbidden(path) from None
    except (KeyError, ValueError) as error:
        raise CorruptFault(f"{path} names no topic id: {error}") from None
    if topic_id != piece.topic_id:
        raise DataLossFault(
            f"topic {piece.topic} was deleted and made again: its id was"
            f" {uuid_text(piece.topic_id)}, now it is {uuid_text(topic_id)}"
        )


def _open(path: str, inode: int) -> int:
    # Compaction renames what it replaces, and unlinks it a minute later.
    for name in (path, path + DELETED):
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except PermissionError:
            raise _forbidden(path) from None
        if os.fstat(descriptor).st_ino == inode:
            return descriptor
        os.close(descriptor)
    if os.path.exists(path):
        raise GoneFault(f"{path} is another file than the one listed: was it compacted?")
    raise GoneFault(f"{path} is gone, deleted since it was listed, or is not to be seen here")


def _beside(log_path: str, suffix: str) -> str:
    return log_path.removesuffix(".log") + suffix


def _file_bytes(path: str) -> bytes:
    """The bytes of an index; none if there is no such file, as it can be done without."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        size = os.fstat(descriptor).st_size
        # its own bytes, not a map: an index may be cut to its real size at any time
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)


def _needed_bytes(path: str) -> bytes | None:
    """The bytes of a file; None if there is no such file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except PermissionError:
        raise _forbidden(path) from None


def _inode_of(path: str) -> int:
    """The inode of a file; -1 if there is no such file."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return -1


def _forbidden(path: str) -> NoFilesFault:
    return forbidden(path, "read", os.R_OK)
