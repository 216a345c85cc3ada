"""Segments on their way into the remote store and back: copy, list, delete, read again.

The tier's process calls these, so that an I/O worker never waits for a store.

   copy      derived files, then the log, then the manifest    no manifest: it isn't there
   delete    the manifest, then the rest                       no manifest: it isn't there any more
   load      manifests are read; what has none is removed
   fetch     into `<name>.tmp`, checked, then renamed          a `.tmp` is nobody's

Rules of this file:
* Every function may take long, keeps nothing but indexes that it has read (`Indexes`), and may be
  cut short by a kill at any point: what it leaves then counts for nothing.
* The manifest is written last and deleted first: what has one is whole.
* Nothing is copied, and nothing handed on, whose batches aren't whole, right by CRC-32C and in
  offset order. The offset of a batch isn't under its CRC, so it must continue the one before.
* An offset index in the store is a hint: where it is wrong or gone, the segment is read from its
  start. A transaction index that is gone is damage.
* A CorruptFault is about what is damaged, and trying again does not help. A StoreFault or another
  StorageFault may pass.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from struct import Struct
from threading import Lock
from typing import NamedTuple

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import encode_entries
from shmbroker.log.file_names import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, file_name
from shmbroker.log.offset_index import OffsetIndex
from shmbroker.log.time_index import TimeIndex
from shmbroker.log.transaction_index import ENTRY, AbortedTransaction, parse_entries
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_COUNT,
    H_CRC,
    H_LAST_OFFSET_DELTA,
    H_LENGTH,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
)
from shmbroker.records.time_lookup import first_not_older
from shmbroker.tier import manifest
from shmbroker.tier.manifest import PartitionName
from shmbroker.tier.object_store import MissingFault, ObjectStore
from shmbroker.tier.remote_log import RemoteSegment

FETCH_BYTES = 8 << 20
"""What is fetched at once: larger means fewer requests to the store, and a longer first wait."""
READ_BYTES = 4 << 20
OBJECT_BYTES_MAX = 64 << 20
"""The size of an index that is fetched whole; Kafka's are 10 MiB at most by default."""

_INDEX_ENTRY = OffsetIndex.ENTRY
_TIME_ENTRY = TimeIndex.ENTRY


class Copied(NamedTuple):
    """What a load has found."""

    segments: list[RemoteSegment]
    damaged: list[RemoteSegment]
    """Segments whose manifests can't be used; their objects are left alone."""
    complaints: list[str]
    """Lines that say what is wrong with these."""


class FileChunk(NamedTuple):
    """Whole batches of a remote segment, in a local file of their own."""

    base_offset: int
    end_offset: int
    size: int


class BatchWalk:
    """Walks batches that come in pieces, and judges them; `next_offset` is where they have got."""

    __slots__ = ("end_offset", "name", "next_offset")

    def __init__(self, name: str, base_offset: int, end_offset: int) -> None:
        self.name = name
        self.next_offset = base_offset
        self.end_offset = end_offset

    def walk(self, data: memoryview, at: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(position in `data`, header) of its whole batches; `at`: where `data` lies in the log.

        CorruptFault for one that isn't right. The last may be cut off: it is left out.
        """
        unpack = BATCH_HEADER.unpack_from
        position, end = 0, len(data)
        next_offset, end_offset = self.next_offset, self.end_offset
        while end - position >= HEADER_SIZE:
            header = unpack(data, position)
            batch_end = position + header[H_LENGTH] + LOG_OVERHEAD
            if (
                header[H_MAGIC] != MAGIC
                or batch_end < position + HEADER_SIZE
                or header[H_LAST_OFFSET_DELTA] < 0
            ):
                raise CorruptFault(f"{self.name} has no batch at {at + position}")
            if batch_end > end:
                return
            if crc32c(data[position + ATTRIBUTES_POSITION : batch_end]) != header[H_CRC]:
                raise CorruptFault(f"{self.name} has a wrong CRC at {at + position}")
            if (
                header[H_BASE_OFFSET] < next_offset
                or header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] >= end_offset
            ):
                raise CorruptFault(
                    f"{self.name} has offset {header[H_BASE_OFFSET]} at {at + position}"
                )
            next_offset = self.next_offset = header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1
            yield position, header
            position = batch_end


# --- copy ---


def copy_segment(
    store: ObjectStore,
    prefix: str,
    name: PartitionName,
    directory: str,
    segment: RemoteSegment,
    epochs: list[tuple[int, int]],
    on_progress: Callable[[int], None],
) -> None:
    """Put a closed segment of the log in `directory`, and all that goes with it, into the store.

    epochs: (leader epoch, start offset), the history up to the segment's end. `on_progress` is told
    of bytes read; what it raises ends the copy. CorruptFault: the segment is damaged, nothing of it
    is in the store. StoreFault and other StorageFaults: to be tried again.
    """
    stem = manifest.stem_of(segment.base_offset, segment.end_offset, segment.leader_epoch)
    path = os.path.join(directory, file_name(segment.base_offset, LOG))
    objects = {manifest.LOG: (segment.size, _check_log(path, segment, on_progress))}
    for kind, content in _derived(directory, segment, epochs):
        store.put(f"{prefix}{stem}.{kind}", content)
        objects[kind] = len(content), crc32c(content)
    store.put_file(f"{prefix}{stem}.{manifest.LOG}", path, segment.size)
    store.put(
        f"{prefix}{stem}.{manifest.MANIFEST}", manifest.encode_manifest(name, segment, objects)
    )


def _derived(
    directory: str, segment: RemoteSegment, epochs: list[tuple[int, int]]
) -> Iterator[tuple[str, bytes]]:
    base, end = segment.base_offset, segment.end_offset
    for suffix, offset in ((INDEX, base), (TIME_INDEX, base), (TXN_INDEX, base), (SNAPSHOT, end)):
        path = os.path.join(directory, file_name(offset, suffix))
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            continue  # What can be derived may be missing.
        except OSError as error:
            raise StorageFault(f"can't read {path}: {error.strerror}") from error
        yield suffix.removeprefix("."), content
    lines = [f"{epoch} {start}" for epoch, start in epochs if start < end]
    yield manifest.LEADER_EPOCHS, encode_entries(lines).encode()


def _check_log(path: str, segment: RemoteSegment, on_progress: Callable[[int], None]) -> int:
    """The CRC-32C of a segment's file, after a look at each batch."""
    batches = BatchWalk(path, segment.base_offset, segment.end_offset)
    crc = 0
    position, rest = 0, b""
    try:
        with open(path, "rb", buffering=0) as file:
            while position + len(rest) < segment.size:
                left = segment.size - position - len(rest)
                piece = file.read(min(max(READ_BYTES, len(rest)), left))
                if not piece:
                    raise CorruptFault(f"{path} ends before {segment.size} bytes")
                crc = crc32c(piece, crc)
                data = memoryview(rest + piece if rest else piece)
                used = 0
                for at, header in batches.walk(data, position):
                    used = at + header[H_LENGTH] + LOG_OVERHEAD
                position += used
                rest = bytes(data[used:])
                on_progress(len(piece))
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error.strerror}") from error
    if rest:
        raise CorruptFault(f"{path} ends in a batch at {position}")
    return crc


# --- load and delete ---


def load_segments(
    store: ObjectStore, prefix: str, name: PartitionName, *, must_sweep: bool
) -> Copied:
    """What is in the store of a partition. must_sweep: remove what has no manifest.

    Only while nobody copies segments of the partition may it be swept.
    """
    kinds: dict[str, list[str]] = {}
    for key, _ in store.list_objects(prefix):
        if (parts := manifest.split_key(key)) is not None:
            kinds.setdefault(parts[0], []).append(parts[1])
    found = Copied([], [], [])
    orphans = []
    for stem, there in kinds.items():
        if manifest.MANIFEST not in there:
            orphans += [f"{prefix}{stem}.{kind}" for kind in there]
            continue
        key = f"{prefix}{stem}.{manifest.MANIFEST}"
        try:
            data = store.get(key, 0, manifest.MANIFEST_BYTES_MAX)
            segment, _ = manifest.parse_manifest(key, data, name)
            if manifest.LOG not in there:
                raise CorruptFault(f"{key} speaks of a log that isn't there")
        except MissingFault:
            continue  # deleted a moment ago
        except CorruptFault as fault:
            found.damaged.append(manifest.damaged_copy(stem))
            found.complaints.append(str(fault))
            continue
        found.segments.append(segment)
    if must_sweep:
        store.sweep(prefix)
        if orphans:
            store.delete(orphans)
    return found


def delete_segments(store: ObjectStore, prefix: str, stems: list[str]) -> None:
    """Remove segments: manifests first, so that half of one is never taken for a whole."""
    store.delete([f"{prefix}{stem}.{manifest.MANIFEST}" for stem in stems])
    kinds = (manifest.LOG, *manifest.DERIVED)
    store.delete([f"{prefix}{stem}.{kind}" for stem in stems for kind in kinds])


def delete_everything(store: ObjectStore, prefix: str) -> int:
    """Remove all objects below a prefix, manifests first; how many."""
    keys = [key for key, _ in store.list_objects(prefix)]
    manifests = [key for key in keys if key.endswith(f".{manifest.MANIFEST}")]
    if keys:
        store.delete(manifests)
        store.delete(keys)
    store.sweep(prefix)
    return len(keys)


# --- read again ---


def fetch_chunk(
    store: ObjectStore,
    prefix: str,
    segment: RemoteSegment,
    offset: int,
    directory: str,
    indexes: "Indexes",
    index_interval_bytes: int,
    bytes_max: int = FETCH_BYTES,
) -> FileChunk:
    """Fetch batches from the one with `offset` on into `<base offset>.log` in `directory`.

    At most `bytes_max`, except for one batch that is larger. The file gets its indexes beside
    it, with the interval that its reader expects. CorruptFault: what the store has is damaged;
    StorageFault: the local disk.
    """
    reader = _Reader(store, prefix, segment, indexes)
    data: bytes = b""
    found: list[_Batch] = []
    position = end = 0
    next_offset = segment.base_offset
    for position, data, found in reader.pieces(offset, bytes_max):  # noqa: B007
        next_offset, end = reader.batches.next_offset, found[-1][2]
        if next_offset > offset:
            break
    if position + end >= segment.size:
        next_offset = segment.end_offset
    # A gap before the first batch belongs to it.
    base = min(found[0][1], offset) if position else segment.base_offset
    if not base <= offset < next_offset:
        raise CorruptFault(f"{reader.key} has no offset {offset}")
    index = _index_of(found, base, index_interval_bytes)
    _write_chunk(directory, base, memoryview(data)[:end], index, _time_index_of(found, base))
    return FileChunk(base, next_offset, end)


def find_timestamp(
    store: ObjectStore,
    prefix: str,
    segment: RemoteSegment,
    timestamp: int,
    start: int,
    indexes: "Indexes",
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record from offset `start` on that isn't older."""
    reader = _Reader(store, prefix, segment, indexes)
    first = max(reader.offset_before(timestamp), start)
    for _, data, found in reader.pieces(min(first, segment.end_offset - 1), FETCH_BYTES):
        for at, base, end, max_timestamp, last, has_one_timestamp in found:
            if max_timestamp < timestamp or last < start:
                continue
            if has_one_timestamp:
                return max_timestamp, max(base, start)
            record = first_not_older(memoryview(data)[at:end], timestamp, start)
            if record is not None:
                return record
    return None


def read_aborted(
    store: ObjectStore, prefix: str, segment: RemoteSegment
) -> list[AbortedTransaction]:
    """The entries of a segment's transaction index; CorruptFault if it isn't whole."""
    stem = manifest.stem_of(segment.base_offset, segment.end_offset, segment.leader_epoch)
    key = f"{prefix}{stem}.{manifest.TXN_INDEX}"
    try:
        data = store.get(key, 0, OBJECT_BYTES_MAX)
    except MissingFault:
        raise CorruptFault(f"{key} is gone") from None
    entries = parse_entries(data)
    if len(entries) * ENTRY.size != len(data):
        raise CorruptFault(f"{key} is damaged")
    return entries


_Batch = tuple[int, int, int, int, int, bool]
"""Position in the bytes, base offset, end in the bytes, max timestamp, last offset, and whether one
timestamp holds for all of its records."""


class Indexes:
    """The index objects used last, up to `bytes_max` of them; for any number of threads."""

    def __init__(self, bytes_max: int = 64 << 20) -> None:
        self.bytes_max = bytes_max
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, store: ObjectStore, key: str) -> bytes:
        """The whole object; nothing where there is none."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        try:
            data = store.get(key, 0, OBJECT_BYTES_MAX)
        except MissingFault:
            data = b""
        with self._lock:
            self._bytes += len(data) - len(self._entries.pop(key, b""))
            self._entries[key] = data
            while self._bytes > self.bytes_max:
                self._bytes -= len(self._entries.popitem(last=False)[1])
        return data


class _Reader:
    """Ranges of one remote segment, as judged batches."""

    def __init__(
        self, store: ObjectStore, prefix: str, segment: RemoteSegment, indexes: Indexes
    ) -> None:
        self.store = store
        self.segment = segment
        self.indexes = indexes
        stem = manifest.stem_of(segment.base_offset, segment.end_offset, segment.leader_epoch)
        self.path = f"{prefix}{stem}"
        self.key = f"{self.path}.{manifest.LOG}"
        self.batches = BatchWalk(self.key, segment.base_offset, segment.end_offset)

    def pieces(self, offset: int, bytes_max: int) -> Iterator[tuple[int, bytes, list[_Batch]]]:
        """(position, bytes, whole batches in them), a range of the object each.

        They begin with a batch at or before `offset`, by the index; where that turns out wrong,
        with the first.
        """
        index = self.indexes.get(self.store, f"{self.path}.index")
        entry = _floor(index, _INDEX_ENTRY, offset - self.segment.base_offset)
        position = 0
        if entry is not None and 0 < entry[1] < self.segment.size:
            try:
                data, found = self._piece(entry[1], bytes_max)
                if found[0][4] == self.segment.base_offset + entry[0]:
                    yield entry[1], data, found
                    position = entry[1] + found[-1][2]
            except CorruptFault:
                pass
            if not position:
                self.batches.next_offset = self.segment.base_offset
        while position < self.segment.size:
            data, found = self._piece(position, bytes_max)
            yield position, data, found
            position += found[-1][2]

    def _piece(self, position: int, bytes_max: int) -> tuple[bytes, list[_Batch]]:
        """Read at least one whole batch from `position` on; CorruptFault if there is none."""
        left = self.segment.size - position
        data = self.store.get(self.key, position, min(bytes_max, left))
        found = self._walk(data, position)
        if not found:
            need = _batch_bytes(data)
            if len(data) < need <= left:
                data = self.store.get(self.key, position, need)
                found = self._walk(data, position)
        if not found:
            raise CorruptFault(f"{self.key} has no whole batch at {position}")
        return data, found

    def _walk(self, data: bytes, position: int) -> list[_Batch]:
        return [
            (
                at,
                header[H_BASE_OFFSET],
                at + header[H_LENGTH] + LOG_OVERHEAD,
                header[H_MAX_TIMESTAMP],
                header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA],
                bool(header[H_ATTRIBUTES] & TIMESTAMP_TYPE_BIT)
                and header[H_COUNT] == header[H_LAST_OFFSET_DELTA] + 1,
            )
            for at, header in self.batches.walk(memoryview(data), position)
        ]

    def offset_before(self, timestamp: int) -> int:
        """An offset before which every record of the segment is older, as far as is known."""
        index = self.indexes.get(self.store, f"{self.path}.timeindex")
        entry = _floor(index, _TIME_ENTRY, timestamp - 1)
        return self.segment.base_offset + (entry[1] if entry else 0)


def _floor(entries: bytes, entry: Struct, target: int) -> tuple[int, ...] | None:
    """The last of sorted entries whose first field is at most `target`."""
    size = entry.size
    low, high = 0, len(entries) // size
    while low < high:
        middle = (low + high) // 2
        if entry.unpack_from(entries, middle * size)[0] <= target:
            low = middle + 1
        else:
            high = middle
    return entry.unpack_from(entries, (low - 1) * size) if low else None


def _batch_bytes(data: bytes) -> int:
    """How large the batch at the start says it is."""
    if len(data) < HEADER_SIZE:
        return HEADER_SIZE
    return int(BATCH_HEADER.unpack_from(data)[1]) + LOG_OVERHEAD


def _index_of(found: list[_Batch], base: int, interval_bytes: int) -> bytes:
    """An offset index over a chunk's batches."""
    entries = bytearray()
    indexed_at = 0
    for at, _, _, _, last, _ in found:
        if at - indexed_at > interval_bytes:
            indexed_at = at
            entries += _INDEX_ENTRY.pack(last - base, at)
    return bytes(entries)


def _time_index_of(found: list[_Batch], base: int) -> bytes:
    """A time index over a chunk's batches: the last entry, which no finished segment is without."""
    _, _, _, max_timestamp, last, _ = max(found, key=lambda batch: batch[3])
    return _TIME_ENTRY.pack(max_timestamp, last - base) if max_timestamp > 0 else b""


def _write_chunk(
    directory: str, base: int, data: memoryview, index: bytes, time_index: bytes
) -> None:
    """Write the indexes first: with the log the chunk is there."""
    files = (TIME_INDEX, memoryview(time_index)), (INDEX, memoryview(index)), (LOG, data)
    for suffix, content in files:
        path = os.path.join(directory, file_name(base, suffix))
        beside = f"{path}.tmp"
        try:
            with open(beside, "wb", buffering=0) as file:
                while content:
                    content = content[file.write(content) :]
            os.rename(beside, path)
        except OSError as error:
            try:
                os.unlink(beside)
            except OSError:
                pass
            raise StorageFault(f"can't write {path}: {error.strerror}") from error
