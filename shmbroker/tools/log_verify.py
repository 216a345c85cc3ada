"""Whether the files of a log directory are what they must be, without a broker.

Of each partition: batches are whole and right by CRC; offsets and leader epochs don't go back,
within a segment and from one to the next; the entries of the offset index name positions where a
batch begins that has not passed the offset; the entries of the time index name a batch with that
timestamp, and grow; snapshots, epochs, ids and checkpoints parse. With `with_records`, records are
walked too: as many as the header says, offsets within their batch.

Gaps between offsets are right: compaction leaves them, and damage that was mended. But no batch
goes beyond where the next segment begins, and no segment begins further behind the one before than
a segment can reach. The checkpoints of a log directory must not tell of offsets that a log does not
have, nor of a partition that is not there. The first fault of each directory is told.

A broker may work there: what its retention, compaction or deletion takes away meanwhile is no
fault.
"""

import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, ProtocolFault, StorageFault
from shmbroker.log.checkpoints import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    Offsets,
    read_offsets,
)
from shmbroker.log.file_names import DELETE, mark_of, parse_partition_directory, partition_directory
from shmbroker.log.segment import OFFSETS_MAX
from shmbroker.records.batch import iterate_records
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    H_BASE_OFFSET,
    H_COUNT,
    H_MAX_TIMESTAMP,
)
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
    """A verdict for each directory that holds files of a log, or for the one file; and for each
    partition that a checkpoint knows and that is not there."""
    directories: dict[str, list[str]] = {}
    for file in log_files.files_below(path):
        directories.setdefault(os.path.dirname(file), []).append(file)
    is_file = not os.path.isdir(path)
    checkpoints = Checkpoints()
    for directory, files in directories.items():
        verdict = _verify_files(path if is_file else directory, files, with_records, checkpoints)
        if verdict is not None:
            yield verdict
    if not is_file:
        for node in checkpoints.nodes(directories):
            for gone, fault in checkpoints.missing(node):
                yield Verdict(gone, 0, 0, 0, 0, None, None, fault)


def _verify_files(
    path: str, files: list[str], with_records: bool, checkpoints: "Checkpoints"
) -> Verdict | None:
    """The verdict on one log; None: all of it is gone meanwhile, with its directory."""
    walk = _Walk(with_records)
    fault = None
    segments = [file for file in files if file.endswith(log_files.LOG)]
    following = dict(itertools.pairwise(segments))
    try:
        for file in files:
            try:
                _verify_file(walk, file, following.get(file), with_records)
            except StorageFault:
                if not log_files.is_gone(file):
                    raise
        for file in files:
            if log_files.kind_of(file) in log_files.ENTRIES and len(files) == 1:
                walk.index_alone(file)
        if walk.segments and len(files) > 1:
            fault = checkpoints.fault_of(os.path.dirname(files[0]), walk.end_offset)
    except StorageFault as found:
        fault = str(found)
    if log_files.is_gone(os.path.dirname(files[0]) or "."):
        return None
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


def _verify_file(walk: "_Walk", file: str, following: str | None, with_records: bool) -> None:
    kind = log_files.kind_of(file)
    if kind == log_files.LOG and file.endswith(log_files.LOG):
        walk.segment(file, log_files.base_offset_of(following) if following else None)
    elif kind == log_files.METADATA_SNAPSHOT:
        _Walk(with_records).segment(file, None)
    elif kind not in log_files.ENTRIES and kind != log_files.LOG:
        for _ in dump(file):
            pass
    elif kind == log_files.TXN_INDEX:
        _verify_txn_index(file)


class Checkpoints:
    """What the checkpoints of log directories say of the partitions there."""

    NAMES = (
        (RECOVERY_POINT, "flushed up to offset"),
        (HIGH_WATERMARK, "its high watermark is"),
        (LOG_START_OFFSET, "it begins at offset"),
    )

    def __init__(self) -> None:
        self._read: dict[str, list[tuple[str, Offsets, str]]] = {}

    def nodes(self, directories: dict[str, list[str]]) -> list[str]:
        """The directories that are a node's."""
        return [
            directory
            for directory, files in directories.items()
            if any(log_files.kind_of(file) == log_files.OFFSET_CHECKPOINT for file in files)
        ]

    def _of(self, node: str) -> list[tuple[str, Offsets, str]]:
        found = self._read.get(node)
        if found is None:
            found = self._read[node] = []
            for name, meaning in self.NAMES:
                path = os.path.join(node, name)
                try:
                    found.append((path, read_offsets(path), meaning))
                except StorageFault:
                    pass  # That is the node's own verdict.
        return found

    def fault_of(self, directory: str, end_offset: int) -> str | None:
        """What can't be of a log that ends there."""
        node, name = os.path.split(os.path.abspath(directory))
        log = parse_partition_directory(name)
        if log is None:
            return None
        for path, offsets, meaning in self._of(node):
            if offsets.get(log, 0) > end_offset:
                return (
                    f"{directory} ends at offset {end_offset}, and {path} says {meaning} "
                    f"{offsets[log]}"
                )
        return None

    def missing(self, node: str) -> Iterator[tuple[str, str]]:
        """(directory, fault) of each partition that had records and has no directory."""
        told: dict[tuple[str, int], list[str]] = {}
        for _, offsets, meaning in self._of(node):
            for log, offset in offsets.items():
                if offset:
                    told.setdefault(log, []).append(f"{meaning} {offset}")
        try:
            deleted = {name for name in os.listdir(node) if mark_of(name) == DELETE}
        except OSError:
            return
        for log, what in sorted(told.items()):
            name = partition_directory(*log)
            path = os.path.join(node, name)
            is_deleted = any(found.startswith(f"{name}.") for found in deleted)
            if not is_deleted and log_files.is_gone(path):
                yield path, f"{path} is gone, and checkpoints know it: {', '.join(what)}"


def _verify_txn_index(path: str) -> None:
    previous = -1
    for position, (version, _, first, last, stable) in log_files.read_entries(path):
        if version != 0 or not first <= last or last < previous or stable > last + 1:
            raise CorruptFault(f"{path} at position {position}: no aborted transaction stands here")
        previous = last


class _Walk:
    """A walk through the segments of a partition, in the order of their offsets."""

    def __init__(self, with_records: bool) -> None:
        self.with_records = with_records
        self.segments = self.batches = self.records = self.bytes = 0
        self.first_offset: int | None = None
        self.base_offset = self.end_offset = 0
        self.leader_epoch = -1

    def segment(self, path: str, following: int | None) -> None:
        """Check a segment and its two indexes in one pass; `following`: where the next begins."""
        with log_files.open_file(path):
            self.segments += 1  # It is still there.
        is_segment = log_files.kind_of(path) == log_files.LOG
        base = log_files.base_offset_of(path) if is_segment else 0
        if base < self.end_offset:
            raise CorruptFault(
                f"{path} begins before offset {self.end_offset}, where the segment before it ends"
            )
        if self.segments > 1 and base - self.base_offset > OFFSETS_MAX:
            raise CorruptFault(
                f"{path} begins {base - self.end_offset} offsets behind the segment before: "
                "nothing leads up to it"
            )
        self.end_offset = self.base_offset = base
        stem = path.removesuffix(log_files.LOG)
        by_position = _Entries(stem + log_files.INDEX, base) if is_segment else None
        by_time = _Entries(stem + log_files.TIME_INDEX, base) if is_segment else None
        for position, header, data in log_files.read_batches(path):
            self._batch(path, position, header, data)
            base_offset, end = header[H_BASE_OFFSET], self.end_offset
            if following is not None and end > following:
                raise CorruptFault(
                    f"{path} at position {position}: offsets {base_offset} to {end - 1}, and the "
                    f"next segment begins at {following}"
                )
            if by_position:
                by_position.check_position(position, base_offset)
            if by_time:
                by_time.check_time(base_offset, end - 1, header[H_MAX_TIMESTAMP])
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
        self.records += header[H_COUNT]
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
        self._entries = _grown(path) if os.path.exists(path) else iter(())
        self._next: tuple[int, tuple[int, ...]] | None = next(self._entries, None)

    def rest(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """What was not taken yet."""
        while self._next:
            yield self._next
            self._next = next(self._entries, None)

    def _fault(self, position: int, complaint: str) -> CorruptFault:
        return _entry_fault(self.path, position, complaint)

    def check_position(self, position: int, base_offset: int) -> None:
        """Check at each batch: an entry for its position must not lie before its offsets."""
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
        """Check at each batch: an entry for its offsets must have its timestamp."""
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
        """Check when the segment is over: no entry may be left."""
        if self._next:
            at, entry = self._next
            raise self._fault(at, f"entry {entry} lies behind the end of the segment")


def _grown(path: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The entries of an index, as long as they grow. It knows no `_Entries`: with that gone, its
    file is closed, too."""
    previous: tuple[int, ...] | None = None
    for position, entry in log_files.read_entries(path):
        if previous and (entry[0] <= previous[0] or entry[1] <= previous[1]):
            raise _entry_fault(path, position, f"entry {entry} does not grow from {previous}")
        previous = entry
        yield position, entry


def _entry_fault(path: str, position: int, complaint: str) -> CorruptFault:
    return CorruptFault(f"{path} at position {position}: {complaint}")
