"""Compaction of closed segments: the last record of each key stays (source: Kafka `Cleaner`).

Two passes over files that nobody changes any more:

   segments     [ clean, once before ][ dirty ][ dirty ] [ not yet: lag, active, undecided ]
   1  read                            └ keys -> last offset, until the memory for them is used up
   2  rewrite   └──── groups of segments, each one new segment ─────┘
                beside the old ones, as `.cleaned`, made durable

Of a record with a key, pass 2 keeps the one at the last offset of its key. Offsets never change.

 * A batch that stays whole is copied as it is. One that loses records keeps its header but for
   lengths, count, largest timestamp and CRC. One that loses all goes, unless it is the last of a
   producer: its header stays then, with no records, as sequences are known by it.
 * Tombstones (null values) stay `delete.retention.ms` from the first pass that kept them: their
   batch gets that moment, the delete horizon, for base timestamp (KIP-534). After it they go.
 * Control batches stay. Records of a transaction count as the last of their key only if its marker
   in what is read commits it; they are treated as all others otherwise.
 * Where the memory for keys was used up, the rest of the last segment is copied as it is: nothing
   is missing behind the offset up to which a log is said to be clean.
 * Records without a key can't be here by right (Produce refuses them) and go.

Per batch, in Python: one step from header to header and its CRC; per record nothing, but for those
of batches that change, and there only runs of survivors. Memory is bounded by CHUNK_BYTES, what a
batch may decompress to, and the map's bytes. Whatever is damaged is a CorruptFault.
"""

import os
from collections.abc import Callable, Iterator
from errno import EDQUOT, EFBIG, ENOSPC
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, ProtocolFault, StorageFault
from shmbroker.log.cleaned_files import cleaned_path, remove_cleaned
from shmbroker.log.faults import DiskFullFault
from shmbroker.log.file_names import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from shmbroker.log.key_offsets import SLACK_BYTES, KeyHash, KeyOffsets
from shmbroker.log.offset_index import OffsetIndex
from shmbroker.log.time_index import TimeIndex
from shmbroker.records import codecs
from shmbroker.records.batch import control_type, iterate_records
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CONTROL_COMMIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    RECORDS_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from shmbroker.records.batch_scan import HEADER, gather
from shmbroker.records.record_lengths import find_records, varints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]

CHUNK_BYTES = 4 << 20
"""Log bytes read at once, or bytes they are unpacked to: enough batches to share numpy's price."""

_OFFSETS_MAX = 2**31 - 1
_POSITION_MAX = 2**31 - 1
_LENGTH = Struct(">i")
_LENGTH_MIN = HEADER_SIZE - LOG_OVERHEAD
_AFTER_CRC = Struct(">hiqqqhii")
_FULL = (ENOSPC, EDQUOT, EFBIG)

# What becomes of a batch.
_COPY, _DROP, _EMPTY, _REWRITE = range(4)


class Source(NamedTuple):
    """A closed segment as its owner knows it."""

    base_offset: int
    size: int
    end_offset: int
    """The base offset of the next segment."""


class Settings(NamedTuple):
    """What a pass is to keep to; times in ms."""

    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int


class Group(NamedTuple):
    """A new segment: sources[first : first + length] become one of `size` bytes."""

    first: int
    length: int
    size: int


class Report:
    """What a pass has done so far."""

    __slots__ = ("bytes_read", "bytes_written", "end_offset", "groups", "kept", "records")

    def __init__(self) -> None:
        self.end_offset = 0
        """Everything before it is clean now."""
        self.groups: list[Group] = []
        self.bytes_read = self.bytes_written = 0
        self.records = self.kept = 0
        """Records read and kept by the second pass."""


def compact(
    directory: str,
    sources: list[Source],
    dirty_offset: int,
    last_batches: dict[int, int],
    settings: Settings,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Write the `.cleaned` files for these segments of the log in `directory`.

    dirty_offset: everything before it has been clean since an earlier pass. last_batches: producer
    id -> last offset of its last batch. on_progress is called now and then with the bytes read or
    written since; what it raises ends the pass. Whatever ends it, no `.cleaned` file stays then.
    """
    report = Report()
    try:
        key_hash = KeyHash()
        offsets = _read_keys(directory, sources, dirty_offset, key_hash, settings, on_progress)
        report.end_offset = offsets[1]
        taken = [source for source in sources if source.base_offset < report.end_offset]
        first = 0
        for count in _group_counts(directory, taken, settings):
            group = _Rewriter(
                directory,
                taken[first : first + count],
                key_hash,
                offsets[0],
                last_batches,
                settings,
                on_progress,
                report,
            )
            size = group.run()
            if size >= 0:
                report.groups.append(Group(first, count, size))
            first += count
    except BaseException:
        remove_cleaned(directory)
        raise
    return report


def _group_counts(directory: str, sources: list[Source], settings: Settings) -> list[int]:
    """How many segments in a row make one each: up to what a segment and its indexes may hold."""
    counts: list[int] = []
    size = index = time_index = 0
    base_offset = 0
    for source in sources:
        sizes = [
            _size_of(os.path.join(directory, file_name(source.base_offset, suffix)))
            for suffix in (INDEX, TIME_INDEX)
        ]
        if (
            counts
            and size + source.size <= settings.segment_bytes
            and index + sizes[0] <= settings.segment_index_bytes
            and time_index + sizes[1] <= settings.segment_index_bytes
            and source.end_offset - 1 - base_offset <= _OFFSETS_MAX
        ):
            counts[-1] += 1
        else:
            counts.append(1)
            size = index = time_index = 0
            base_offset = source.base_offset
        size += source.size
        index += sizes[0]
        time_index += sizes[1]
    return counts


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


# --- reading -------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Batches that follow each other in a segment; those with `is_data` have records to look at."""

    raw: "Bytes"
    at: "Int64s"
    end: "Int64s"
    header: "NDArray[np.void]"
    is_data: "Flags"
    plain: "Bytes"
    """Holds the records of data batch i, decompressed, in [low[i], high[i])."""
    low: "Int64s"
    high: "Int64s"


def _chunks(directory: str, source: Source, position: int = 0) -> Iterator[Chunk]:
    """The batches of a segment. A chunk is good until the next one is asked for."""
    path = os.path.join(directory, file_name(source.base_offset, LOG))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageFault(f"can't open {path}: {error}") from error
    buffer = np.empty(min(CHUNK_BYTES, source.size) + SLACK_BYTES, np.uint8)
    next_offset = source.base_offset
    try:
        while position < source.size:
            want = min(len(buffer) - SLACK_BYTES, source.size - position)
            if os.preadv(fd, [buffer.data[:want]], position) != want:
                raise CorruptFault(f"{path} ends before {source.size}")
            found, used, need = _step(buffer.data[:want])
            if not found:
                if need <= want or need > source.size - position:
                    raise CorruptFault(f"{path} has no whole batch at {position}")
                buffer = np.empty(need + SLACK_BYTES, np.uint8)
                continue
            at = np.array(found, np.int64)
            end = np.append(at[1:], used)
            raw = buffer[: used + SLACK_BYTES]
            header = gather(raw, at, HEADER_SIZE).view(HEADER)
            next_offset = _check(path, position, header, next_offset, source.end_offset)
            try:
                yield from _unpack(raw, at, end, header)
            except (ProtocolFault, CorruptFault) as fault:
                raise CorruptFault(f"{path} behind {position}: {fault}") from fault
            position += used
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error}") from error
    finally:
        os.close(fd)


def _step(data: memoryview) -> tuple[list[int], int, int]:
    """(where whole batches begin, where the last of them ends, bytes that the first one needs)"""
    found: list[int] = []
    append, unpack, position, end = found.append, _LENGTH.unpack_from, 0, len(data)
    need = HEADER_SIZE
    last = end - HEADER_SIZE
    while position <= last:
        (length,) = unpack(data, position + LENGTH_POSITION)
        following = position + LOG_OVERHEAD + length
        if length < _LENGTH_MIN:
            need = 0
            break
        if following > end:
            need = following - position
            break
        append(position)
        position = following
    return found, position, need


def _check(
    path: str, position: int, header: "NDArray[np.void]", next_offset: int, end_offset: int
) -> int:
    """CorruptFault unless magic, offsets and counts are as they must be; the next offset."""
    base = header["base_offset"].astype(np.int64)
    delta = header["last_offset_delta"].astype(np.int64)
    count = header["count"]
    following = base + delta + 1
    is_bad = (header["magic"] != MAGIC) | (delta < 0) | (count < 0) | (count > delta + 1)
    is_bad |= base < np.append(next_offset, following[:-1])
    if is_bad.any() or following[-1] > end_offset:
        raise CorruptFault(f"{path} holds a batch that can't be, behind {position}")
    return int(following[-1])


def _unpack(
    raw: "Bytes", at: "Int64s", end: "Int64s", header: "NDArray[np.void]"
) -> Iterator[Chunk]:
    """One chunk, or where batches are compressed as many as keep what they unpack to in bounds."""
    is_data = (header["attributes"] & CONTROL_BIT == 0) & (header["count"] > 0)
    codec = np.where(is_data, header["attributes"] & COMPRESSION_MASK, 0)
    low, high = at + RECORDS_POSITION, end
    if not codec.any():
        yield Chunk(raw, at, end, header, is_data, raw, low[is_data], high[is_data])
        return
    view = raw.data
    first, used = 0, 0
    parts: list[bytes | memoryview] = []
    sizes: list[int] = []
    for number, is_one in enumerate(is_data.tolist()):
        if is_one:
            packed = view[int(low[number]) : int(high[number])]
            plain = codecs.decompress(int(codec[number]), packed)
            if parts and used + len(plain) > CHUNK_BYTES:
                part = slice(first, number)
                yield _joined(raw, at[part], end[part], header[part], is_data[part], parts, sizes)
                first, used, parts, sizes = number, 0, [], []
            parts.append(plain)
            sizes.append(len(plain))
            used += len(plain)
    part = slice(first, len(at))
    yield _joined(raw, at[part], end[part], header[part], is_data[part], parts, sizes)


def _joined(
    raw: "Bytes",
    at: "Int64s",
    end: "Int64s",
    header: "NDArray[np.void]",
    is_data: "Flags",
    parts: list[bytes | memoryview],
    sizes: list[int],
) -> Chunk:
    high = np.cumsum(np.array(sizes, np.int64))
    plain = np.frombuffer(b"".join([*parts, bytes(SLACK_BYTES)]), np.uint8)
    return Chunk(raw, at, end, header, is_data, plain, high - np.array(sizes, np.int64), high)


class Rows(NamedTuple):
    """The records of a chunk's data batches, in order; `batch` numbers those batches."""

    first: "Int64s"
    """Row of each batch's first record."""
    batch: "Int64s"
    offset: "Int64s"
    body: "Int64s"
    """Behind the record's length."""
    end: "Int64s"
    timestamp_delta: "Int64s"
    timestamp_end: "Int64s"
    key: "Int64s"
    key_length: "Int64s"
    value_length: "Int64s"
    """Meaningless if no values were asked for."""


def _rows(chunk: Chunk, *, has_values: bool = True) -> Rows:
    """Every field that compaction looks at; CorruptFault if a record isn't what it should be."""
    raw, header = chunk.plain, chunk.header[chunk.is_data]
    count = header["count"].astype(np.int64)
    body, end = find_records(raw[: len(raw) - SLACK_BYTES], chunk.low, chunk.high, count)
    batch = np.repeat(np.arange(len(count)), count)
    timestamp_delta, timestamp_end = varints(raw, body + 1, 10)
    offset_delta, at = varints(raw, timestamp_end, 5)
    key_length, key = varints(raw, at, 5)
    key_end = key + np.maximum(key_length, 0)
    is_bad = (key_length < -1) | (key_end >= end) | (offset_delta < 0)
    value_length = key_length
    if has_values:
        value_length, value = varints(raw, key_end, 5)
        is_bad |= (value_length < -1) | (value + np.maximum(value_length, 0) >= end)
    is_bad |= offset_delta > header["last_offset_delta"][batch]
    if is_bad.any():
        raise CorruptFault("a record does not fit its batch")
    offset = header["base_offset"].astype(np.int64)[batch] + offset_delta
    return Rows(
        np.cumsum(count) - count,
        batch,
        offset,
        body,
        end,
        timestamp_delta,
        timestamp_end,
        key,
        key_length,
        value_length,
    )


# --- the first pass ------------------------------------------------------------------------------


def _read_keys(
    directory: str,
    sources: list[Source],
    dirty_offset: int,
    key_hash: KeyHash,
    settings: Settings,
    on_progress: Callable[[int], None],
) -> tuple[KeyOffsets, int]:
    """(the last offset of each key from `dirty_offset` on, where the map was full or the end)."""
    offsets = KeyOffsets(settings.map_bytes)
    dirty = [source for source in sources if source.end_offset > dirty_offset]
    decided = _Transactions(directory, dirty)
    for source in dirty:
        for chunk in _chunks(directory, source):
            on_progress(int(chunk.end[-1] - chunk.at[0]))
            if not len(chunk.low):
                continue
            rows = _rows(chunk, has_values=False)
            is_counted = (rows.key_length >= 0) & (rows.offset >= dirty_offset)
            header = chunk.header[chunk.is_data]
            if (header["attributes"] & TRANSACTIONAL_BIT).any():
                is_counted &= decided.are_committed(chunk)[rows.batch]
            counted = np.flatnonzero(is_counted)
            if not len(counted):
                continue
            hashes = key_hash.hash(chunk.plain, rows.key[counted], rows.key_length[counted])
            if offsets.put(hashes, rows.offset[counted]) < len(counted):
                return offsets, offsets.latest_offset + 1
    return offsets, sources[-1].end_offset


class _Transactions:
    """How transactions ended, by the markers in some segments; they are only read if one is asked.

    A marker ends what its producer wrote before it.
    """

    __slots__ = ("_directory", "_markers", "_sources")

    def __init__(self, directory: str, sources: list[Source]) -> None:
        self._directory = directory
        self._sources = sources
        self._markers: dict[int, list[tuple[int, bool]]] | None = None

    def _read(self) -> dict[int, list[tuple[int, bool]]]:
        markers: dict[int, list[tuple[int, bool]]] = {}
        for source in self._sources:
            for chunk in _chunks(self._directory, source):
                is_control = chunk.header["attributes"] & CONTROL_BIT != 0
                for at in chunk.at[is_control].tolist():
                    header = BATCH_HEADER.unpack_from(chunk.raw.data, at)
                    for offset, _, key, _, _ in iterate_records(chunk.raw.data, at):
                        is_commit = control_type(key or b"") == CONTROL_COMMIT
                        markers.setdefault(header[9], []).append((offset, is_commit))
        return markers

    def are_committed(self, chunk: Chunk) -> "Flags":
        """For each data batch: not of a transaction, or of one that its marker commits."""
        if self._markers is None:
            self._markers = self._read()
        result = []
        for at in chunk.at[chunk.is_data].tolist():
            header = BATCH_HEADER.unpack_from(chunk.raw.data, at)
            is_committed = not header[5] & TRANSACTIONAL_BIT
            if not is_committed:
                for offset, is_commit in self._markers.get(header[9], ()):
                    if offset > header[0]:
                        is_committed = is_commit
                        break
            result.append(is_committed)
        return np.array(result, np.bool_)


# --- the second pass -----------------------------------------------------------------------------


class _Rewriter:
    """Writes one new segment from a group of old ones."""

    def __init__(
        self,
        directory: str,
        sources: list[Source],
        key_hash: KeyHash,
        offsets: KeyOffsets,
        last_batches: dict[int, int],
        settings: Settings,
        on_progress: Callable[[int], None],
        report: Report,
    ) -> None:
        self.directory = directory
        self.sources = sources
        self.key_hash = key_hash
        self.offsets = offsets
        ids = sorted(last_batches)
        self.last_batches = (
            np.array(ids, np.int64),
            np.array([last_batches[producer_id] for producer_id in ids], np.int64),
        )
        self.settings = settings
        self.on_progress = on_progress
        self.report = report
        self.base_offset = base_offset = sources[0].base_offset
        self.path = cleaned_path(directory, base_offset, LOG)
        index_bytes_max = settings.segment_index_bytes
        self.offset_index = OffsetIndex(
            cleaned_path(directory, base_offset, INDEX), index_bytes_max
        )
        self.time_index = TimeIndex(
            cleaned_path(directory, base_offset, TIME_INDEX), index_bytes_max
        )
        self.size = 0
        self.indexed_at = 0
        self.max_timestamp = self.max_timestamp_offset = -1
        self.is_changed = len(sources) > 1

    def run(self) -> int:
        """The new segment's size; -1 if it would be what the old one is, so nothing was written."""
        try:
            with open(self.path, "wb", buffering=1 << 20) as file:
                for source in self.sources:
                    for chunk in _chunks(self.directory, source):
                        before = self.size
                        for piece in self._survivors(chunk):
                            file.write(piece)
                        self.report.bytes_read += int(chunk.end[-1] - chunk.at[0])
                        self.report.bytes_written += self.size - before
                        self.on_progress(int(chunk.end[-1] - chunk.at[0]) + self.size - before)
                if self.is_changed:
                    file.flush()
                    os.fsync(file.fileno())
            if not self.is_changed:
                remove_cleaned(self.directory, self.base_offset)
                return -1
            self._finish()
        except OSError as error:
            kind = DiskFullFault if error.errno in _FULL else StorageFault
            raise kind(f"can't write {self.path}: {error.strerror}") from error
        finally:
            self.offset_index.close()
            self.time_index.close()
        return self.size

    def _finish(self) -> None:
        """The last time index entry, all files there and durable, and as old as what they replace:
        retention goes by that where no record has a timestamp."""
        if self.max_timestamp >= 0:
            self.time_index.maybe_append(
                self.max_timestamp, self.max_timestamp_offset - self.base_offset
            )
        for index in (self.offset_index, self.time_index):
            fd = os.open(index.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                index.truncate(index.count)
                index.close()
                os.fsync(fd)
            finally:
                os.close(fd)
        transactions = b""
        for source in self.sources:
            try:
                with open(
                    os.path.join(self.directory, file_name(source.base_offset, TXN_INDEX)), "rb"
                ) as file:
                    transactions += file.read()
            except FileNotFoundError:
                pass
        if transactions:
            with open(cleaned_path(self.directory, self.base_offset, TXN_INDEX), "wb") as file:
                file.write(transactions)
                file.flush()
                os.fsync(file.fileno())
        last = os.path.join(self.directory, file_name(self.sources[-1].base_offset, LOG))
        modified_ns = os.stat(last).st_mtime_ns
        os.utime(self.path, ns=(modified_ns, modified_ns))

    def _survivors(self, chunk: Chunk) -> Iterator[bytes | memoryview]:
        """What of the chunk goes into the new segment."""
        raw, at, end, header = chunk.raw, chunk.at, chunk.end, chunk.header
        _check_crcs(raw.data, at, end, header["crc"])
        fate = np.full(len(at), _COPY)
        plan: _Plan | None = None
        if len(chunk.low):
            plan = _Plan(chunk, self.key_hash, self.offsets, self.settings, self.report.end_offset)
            self.report.records += len(plan.keep)
            self.report.kept += plan.count_kept()
            fate[chunk.is_data] = plan.fate
        is_clean = header["base_offset"] < self.report.end_offset
        is_gone = ((fate == _DROP) | (header["count"] == 0)) & is_clean
        is_gone &= header["attributes"] & CONTROL_BIT == 0
        fate[is_gone] = np.where(self._are_last(header[is_gone]), _EMPTY, _DROP)
        self.is_changed |= bool((fate[header["count"] > 0] != _COPY).any() | (fate == _DROP).any())
        size = end - at
        size[fate == _DROP] = 0
        max_timestamp = header["max_timestamp"].astype(np.int64)
        made: dict[int, bytes] = {}
        for number in np.flatnonzero(fate == _EMPTY).tolist():
            made[number] = _empty_batch(raw.data, int(at[number]))
            size[number] = HEADER_SIZE
        if plan is not None:
            data_numbers = np.flatnonzero(chunk.is_data)
            for number, batch, timestamp in plan.rewritten(data_numbers):
                made[number] = batch
                size[number] = len(batch)
                max_timestamp[number] = timestamp
        self._index(size, header, max_timestamp)
        edges = np.flatnonzero(np.diff(fate) != 0) + 1
        view = raw.data
        for begin, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(at)], strict=True):
            if fate[begin] == _COPY:
                yield view[int(at[begin]) : int(end[stop - 1])]
            elif fate[begin] != _DROP:
                yield b"".join([made[number] for number in range(begin, stop)])

    def _are_last(self, header: "NDArray[np.void]") -> "Flags":
        """Whether these are the last batches of their producers."""
        ids, offsets = self.last_batches
        if not len(ids):
            return np.zeros(len(header), np.bool_)
        producer_id = header["producer_id"].astype(np.int64)
        place = np.minimum(np.searchsorted(ids, producer_id), len(ids) - 1)
        last_offset = header["base_offset"] + header["last_offset_delta"]
        found: Flags = (ids[place] == producer_id) & (offsets[place] == last_offset)
        return found

    def _index(self, size: "Int64s", header: "NDArray[np.void]", max_timestamp: "Int64s") -> None:
        """Index the batches that stay, as an append does: one entry every so many bytes."""
        stays = np.flatnonzero(size)
        if not len(stays):
            return
        position = self.size + np.cumsum(size[stays]) - size[stays]
        self.size += int(size[stays].sum())
        if self.size > _POSITION_MAX:
            raise StorageFault(f"{self.path} would outgrow what an index can point to")
        last_offset = (header["base_offset"] + header["last_offset_delta"]).astype(np.int64)[stays]
        timestamps = max_timestamp[stays]
        largest = np.maximum.accumulate(timestamps)
        # The batch that holds the largest so far is where it grew last.
        grew = np.append(True, largest[1:] > largest[:-1])
        holder = np.maximum.accumulate(np.where(grew, np.arange(len(stays)), 0))
        interval = self.settings.index_interval_bytes
        number = int(np.searchsorted(position, self.indexed_at + interval, "right"))
        while number < len(stays):
            self.indexed_at = int(position[number])
            self._note(int(largest[number]), int(last_offset[holder[number]]))
            if self.offset_index.append(
                int(last_offset[number]) - self.base_offset, self.indexed_at
            ):
                self.time_index.maybe_append(
                    self.max_timestamp, self.max_timestamp_offset - self.base_offset
                )
            number = int(np.searchsorted(position, self.indexed_at + interval, "right"))
        self._note(int(largest[-1]), int(last_offset[holder[-1]]))

    def _note(self, timestamp: int, offset: int) -> None:
        if timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = timestamp, offset


def _check_crcs(data: memoryview, at: "Int64s", end: "Int64s", crcs: "NDArray[np.uint32]") -> None:
    begins = (at + ATTRIBUTES_POSITION).tolist()
    for begin, stop, crc in zip(begins, end.tolist(), crcs.tolist(), strict=True):
        if crc32c(data[begin:stop]) != crc:
            raise CorruptFault("the CRC of a batch is wrong")


def _empty_batch(data: memoryview, at: int) -> bytes:
    """The header of a batch with nothing in it (Kafka `DefaultRecordBatch.writeEmptyHeader`)."""
    fields = list(BATCH_HEADER.unpack_from(data, at))
    fields[5] &= TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT
    fields[7] = NO_TIMESTAMP
    fields[12] = 0
    return _sealed(fields, b"")


def _sealed(fields: list[int], block: bytes) -> bytes:
    """A batch of these header fields and records: its length and CRC are made."""
    fields[1] = HEADER_SIZE - LOG_OVERHEAD + len(block)
    fields[4] = crc32c(block, crc32c(_AFTER_CRC.pack(*fields[5:])))
    return BATCH_HEADER.pack(*fields) + block


class _Plan:
    """Which records of a chunk stay, and what that makes of its data batches."""

    __slots__ = ("chunk", "fate", "gets_horizon", "horizon_ms", "keep", "kept", "rows")

    def __init__(
        self,
        chunk: Chunk,
        key_hash: KeyHash,
        offsets: KeyOffsets,
        settings: Settings,
        end_offset: int,
    ) -> None:
        self.chunk = chunk
        self.rows = rows = _rows(chunk)
        header = chunk.header[chunk.is_data]
        keep = rows.key_length >= 0
        keyed = np.flatnonzero(keep)
        hashes = key_hash.hash(chunk.plain, rows.key[keyed], rows.key_length[keyed])
        keep[keyed] = rows.offset[keyed] >= offsets.get(hashes)
        is_tombstone = rows.value_length < 0
        has_horizon = header["attributes"] & DELETE_HORIZON_BIT != 0
        is_over = has_horizon & (header["base_timestamp"] <= settings.now_ms)
        if is_over.any():
            keep &= ~(is_tombstone & is_over[rows.batch])
        self.keep = keep
        self.kept = np.add.reduceat(keep, rows.first, dtype=np.int64)
        self.horizon_ms = settings.now_ms + settings.delete_retention_ms
        self.gets_horizon = ~has_horizon
        if is_tombstone.any():
            self.gets_horizon &= np.logical_or.reduceat(keep & is_tombstone, rows.first)
        else:
            self.gets_horizon[:] = False
        self.fate = np.full(len(header), _REWRITE)
        self.fate[(self.kept == header["count"]) & ~self.gets_horizon] = _COPY
        self.fate[self.kept == 0] = _DROP
        self.fate[header["base_offset"] >= end_offset] = _COPY

    def count_kept(self) -> int:
        """Records that stay."""
        count = self.chunk.header["count"][self.chunk.is_data]
        return int(np.where(self.fate == _COPY, count, self.kept).sum())

    def rewritten(self, data_numbers: "NDArray[np.intp]") -> Iterator[tuple[int, bytes, int]]:
        """(number in the chunk, batch, its largest timestamp) of those that change."""
        wanted = np.flatnonzero(self.fate == _REWRITE)
        if not len(wanted):
            return
        chunk, rows = self.chunk, self.rows
        header = chunk.header[chunk.is_data]
        base = header["base_timestamp"].astype(np.int64)
        timestamp = base[rows.batch] + rows.timestamp_delta
        is_append_time = header["attributes"] & TIMESTAMP_TYPE_BIT != 0
        max_timestamp = np.maximum.reduceat(np.where(self.keep, timestamp, -1), rows.first)
        max_timestamp = np.where(is_append_time, header["max_timestamp"], max_timestamp)
        if is_append_time.any():
            of_append = is_append_time[rows.batch]
            timestamp[of_append] = max_timestamp[rows.batch[of_append]]
        runs = self._runs()
        moved = self._moved(timestamp)
        view = chunk.plain.data
        at = chunk.at[chunk.is_data]
        for batch in wanted.tolist():
            if self.gets_horizon[batch]:
                block = moved[batch]
            else:
                block = b"".join([view[low:high] for low, high in runs[batch]])
            fields = list(BATCH_HEADER.unpack_from(chunk.raw.data, at[batch]))
            if self.gets_horizon[batch]:
                fields[5] |= DELETE_HORIZON_BIT
                fields[7] = self.horizon_ms
            fields[8] = int(max_timestamp[batch])
            fields[12] = int(self.kept[batch])
            packed = codecs.compress(fields[5] & COMPRESSION_MASK, block)
            yield int(data_numbers[batch]), _sealed(fields, packed), fields[8]

    def _runs(self) -> dict[int, list[tuple[int, int]]]:
        """Of batches that keep their base timestamp: where runs of surviving records stand."""
        rows = self.rows
        taken = (self.fate == _REWRITE) & ~self.gets_horizon
        runs: dict[int, list[tuple[int, int]]] = {}
        keep = self.keep & taken[rows.batch]
        if not keep.any():
            return runs
        before = np.append(False, keep[:-1])
        before[rows.first] = False
        after = np.append(keep[1:], False)
        after[rows.first[1:] - 1] = False
        first, last = np.flatnonzero(keep & ~before), np.flatnonzero(keep & ~after)
        start = np.append(0, rows.end[:-1])
        start[rows.first] = self.chunk.low
        for batch, low, high in zip(
            rows.batch[first].tolist(), start[first].tolist(), rows.end[last].tolist(), strict=True
        ):
            runs.setdefault(batch, []).append((low, high))
        return runs

    def _moved(self, timestamp: "Int64s") -> dict[int, bytes]:
        """Of batches that get a delete horizon: their records, with timestamps relative to it."""
        rows, raw = self.rows, self.chunk.plain
        chosen = np.flatnonzero(self.keep & self.gets_horizon[rows.batch])
        if not len(chosen):
            return {}
        body, end, behind = rows.body[chosen], rows.end[chosen], rows.timestamp_end[chosen]
        delta, delta_size = _to_varints(timestamp[chosen] - self.horizon_ms)
        length, length_size = _to_varints(end - behind + 1 + delta_size)
        # Length, attributes and timestamp delta of each record, as long as they come.
        heads = np.zeros((len(chosen), 24), np.uint8)
        every = np.arange(len(chosen))
        heads[:, :10] = length
        heads[every, length_size] = raw[body]
        for place in range(10):
            heads[every, length_size + 1 + place] = delta[:, place]
        head = heads.tobytes()
        view = raw.data
        parts: list[bytes | memoryview] = []
        for row, stop, low, high in zip(
            range(0, len(head), 24),
            (length_size + 1 + delta_size).tolist(),
            behind.tolist(),
            end.tolist(),
            strict=True,
        ):
            parts += (head[row : row + stop], view[low:high])
        batch, index = np.unique(rows.batch[chosen], return_index=True)
        cuts = [*(2 * index).tolist(), len(parts)]
        return {
            number: b"".join(parts[cuts[i] : cuts[i + 1]])
            for i, number in enumerate(batch.tolist())
        }


def _to_varints(numbers: "Int64s") -> tuple["Bytes", "Int64s"]:
    """(zigzag varints, ten bytes for each, and how many of them count)"""
    left = (numbers << 1 ^ numbers >> 63).view(np.uint64)
    out = np.zeros((len(numbers), 10), np.uint8)
    size = np.ones(len(numbers), np.int64)
    for place in range(10):
        rest = left >> np.uint64(7)
        is_more = rest != 0
        out[:, place] = (left & np.uint64(0x7F)).astype(np.uint8) | is_more.astype(np.uint8) << 7
        size += is_more
        left = rest
        if not is_more.any():
            break
    return out, size
