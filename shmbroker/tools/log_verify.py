"""Whether the files of a log directory are what they must be, without a broker.

Of each partition: batches are whole and right by CRC; offsets and leader epochs don't go back,
within a segment and from one to the next; the entries of the offset index name positions where a
batch begins that has not passed the offset; the entries of the time index name a batch with that
timestamp, and grow; snapshots, epochs, ids and checkpoints parse. With `with_records`, records are
walked too: as many as the header says, offsets within their batch.

Gaps between offsets are right: compaction leaves them. The first fault of each directory is told.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, ProtocolFault, StorageFault
from shmbroker.records.batch import iterate_records
from shmbroker.records.batch_layout import ATTRIBUTES_POSITION
from shmbroker.tools import log_files
from shmbroker.tools.log_dump import dump


class Verdict(NamedTuple):
    """What was found in one directory, or one file."""

    path: str
    segments: int
    batches: int
    records: int
    bytes: int
    first_offset: int | None
    end_offset: int | None
    """Exclusive. None: no batch."""
    fault: str | None
    """The first; None: all is right."""


def verify(path: str, *, with_records: bool = False) -> Iterator[Verdict]:
    """A verdict for each directory that holds files of a log, or for the one file."""
    directories: dict[str, list[str]] = {}
    for file in log_files.files_below(path):
        directories.setdefault(os.path.dirname(file), []).append(file)
    for directory, files in directories.items():
        yield _verify_files(directory if os.path.isdir(path) else path, files, with_records)


def _verify_files(path: str, files: list[str], with_records: bool) -> Verdict:
    walk = _Walk(with_records)
    fault = None
    try:
        for file in files:
            kind = log_files.kind_of(file)
            if kind == log_files.LOG and file.endswith(log_files.LOG):
                walk.segment(file)
            elif kind == log_files.METADATA_SNAPSHOT:
                _Walk(with_records).segment(file)
            elif kind not in log_files.ENTRIES and kind != log_files.LOG:
                for _ in dump(file):
                    pass
            elif kind == log_files.TXN_INDEX:
                _verify_txn_index(file)
        for file in files:
            if log_files.kind_of(file) in log_files.ENTRIES and len(files) == 1:
                walk.index_alone(file)
    except StorageFault as found:
        fault = str(found)
    return Verdict(
        path,
        walk.segments,
        walk.batches,
        walk.records,
        walk.bytes,
        walk.first_offset,
        walk.end_offset if walk.batches else None,
        fault,
    )


def _verify_txn_index(path: str) -> None:
    previous = -1
    for position, (version, _, first, last, stable) in log_files.read_entries(path):
        if version != 0 or not first <= last or last < previous or stable > last + 1:
            raise CorruptFault(f"{path} at position {position}: no aborted transaction stands here")
        previous = last


class _Walk:
    """Through the segments of a partition, in the order of their offsets."""

    def __init__(self, with_records: bool) -> None:
        self.with_records = with_records
        self.segments = self.batches = self.records = self.bytes = 0
        self.first_offset: int | None = None
        self.end_offset = 0
        self.leader_epoch = -1

    def segment(self, path: str) -> None:
        """Check a segment and its two indexes in one pass."""
        self.segments += 1
        is_segment = log_files.kind_of(path) == log_files.LOG
        base = log_files.base_offset_of(path) if is_segment else 0
        if base < self.end_offset:
            raise CorruptFault(
                f"{path} begins before offset {self.end_offset}, where the segment before it ends"
            )
        self.end_offset = base
        stem = path.removesuffix(log_files.LOG)
        by_position = _Entries(stem + log_files.INDEX, base) if is_segment else None
        by_time = _Entries(stem + log_files.TIME_INDEX, base) if is_segment else None
        for position, header, data in log_files.read_batches(path):
            self._batch(path, position, header, data)
            end = self.end_offset
            if by_position:
                by_position.check_position(position, header[0])
            if by_time:
                by_time.check_time(header[0], end - 1, header[8])
        for entries in (by_position, by_time):
            if entries:
                entries.check_end()

    def _batch(self, path: str, position: int, header: tuple[int, ...], data: memoryview) -> None:
        base_offset, _, leader_epoch, _, crc, _, last_delta = header[:7]
        if crc32c(data[ATTRIBUTES_POSITION:]) != crc:
            raise CorruptFault(f"{path} at position {position}: wrong CRC")
        if base_offset < self.end_offset or last_delta < 0:
            raise CorruptFault(
                f"{path} at position {position}: offsets {base_offset} to "
                f"{base_offset + last_delta} where {self.end_offset} or more is due"
            )
        if leader_epoch < self.leader_epoch:
            raise CorruptFault(
                f"{path} at position {position}: leader epoch {leader_epoch} follows "
                f"{self.leader_epoch}"
            )
        if self.with_records:
            try:
                previous = base_offset - 1
                for record in iterate_records(data):
                    if not previous < record[0] <= base_offset + last_delta:
                        raise ProtocolFault(f"offset {record[0]} does not belong into its batch")
                    previous = record[0]
            except ProtocolFault as fault:
                raise CorruptFault(f"{path} at position {position}: {fault}") from None
        if self.first_offset is None:
            self.first_offset = base_offset
        self.end_offset = base_offset + last_delta + 1
        self.leader_epoch = leader_epoch
        self.batches += 1
        self.records += header[12]
        self.bytes += len(data)

    def index_alone(self, path: str) -> None:
        """Check an index without its segment: that its entries grow."""
        if log_files.kind_of(path) != log_files.TXN_INDEX:
            for _ in _Entries(path, log_files.base_offset_of(path)).rest():
                pass


class _Entries:
    """The entries of an index, taken in step with the batches of its segment."""

    def __init__(self, path: str, base: int) -> None:
        self.path = path
        self.base = base
        self._entries = self._grown() if os.path.exists(path) else iter(())
        self._next: tuple[int, tuple[int, ...]] | None = next(self._entries, None)
        self._is_time = log_files.kind_of(path) == log_files.TIME_INDEX

    def _grown(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        previous: tuple[int, ...] | None = None
        for position, entry in log_files.read_entries(self.path):
            if previous and (entry[0] <= previous[0] or entry[1] <= previous[1]):
                raise self._fault(position, f"entry {entry} does not grow from {previous}")
            previous = entry
            yield position, entry

    def rest(self) -> Iterator[Any]:
        """What was not taken yet."""
        while self._next:
            yield self._next
            self._next = next(self._entries, None)

    def _fault(self, position: int, complaint: str) -> CorruptFault:
        return CorruptFault(f"{self.path} at position {position}: {complaint}")

    def check_position(self, position: int, base_offset: int) -> None:
        """Told of each batch: an entry for its position must not lie before its offsets."""
        while self._next and self._next[1][1] <= position:
            at, (relative, target) = self._next
            if target != position:
                raise self._fault(at, f"no batch begins at position {target} of the segment")
            if self.base + relative < base_offset:
                raise self._fault(
                    at, f"offset {self.base + relative} is before the batch at {target}"
                )
            self._next = next(self._entries, None)

    def check_time(self, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Told of each batch: an entry for its offsets must have its timestamp."""
        while self._next and self.base + self._next[1][1] <= last_offset:
            at, (timestamp, relative) = self._next
            if self.base + relative < base_offset:
                raise self._fault(at, f"no batch holds offset {self.base + relative}")
            if timestamp != max_timestamp:
                raise self._fault(
                    at,
                    f"timestamp {timestamp}, but the batch of offset {self.base + relative} "
                    f"has {max_timestamp}",
                )
            self._next = next(self._entries, None)

    def check_end(self) -> None:
        """Told when the segment is over: no entry may be left."""
        if self._next:
            at, entry = self._next
            raise self._fault(at, f"entry {entry} lies behind the end of the segment")
