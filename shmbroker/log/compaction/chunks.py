"""The batches of a closed segment, in chunks for compaction, decompressed and checked.

A chunk is whole batches that follow each other. Everything that their headers say is compared with
what is there, for all of them at once; CRCs are left to the code that copies a batch. Memory is
bounded by CHUNK_BYTES, or what a single batch may decompress to.
"""

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, ProtocolFault, StorageFault
from shmbroker.log.compaction.key_offsets import SLACK_BYTES
from shmbroker.log.file_names import LOG, file_name
from shmbroker.records import codecs
from shmbroker.records.batch_layout import (
    AFTER_CRC,
    BATCH_HEADER,
    COMPRESSION_MASK,
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_CRC,
    H_LENGTH,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    RECORDS_POSITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]

CHUNK_BYTES = 4 << 20
"""Log bytes read at once, or bytes they are unpacked to: enough batches to share numpy's price."""


class Source(NamedTuple):
    """A closed segment as its owner knows it."""

    base_offset: int
    size: int
    end_offset: int
    """The base offset of the next segment."""


class Batches(NamedTuple):
    """Batch headers, column by column (F_… in `kernels.h`), and where the batches are."""

    at: "Int64s"
    end: "Int64s"
    base_offset: "Int64s"
    magic: "Int64s"
    crc: "Int64s"
    attributes: "Int64s"
    last_offset_delta: "Int64s"
    base_timestamp: "Int64s"
    max_timestamp: "Int64s"
    producer_id: "Int64s"
    record_count: "Int64s"

    def chosen(self, which: "Flags | slice") -> "Batches":
        """The chosen ones alone."""
        return Batches(*(column[which] for column in self))


class LogChunk(NamedTuple):
    """Batches that follow each other in a segment; those with `is_data` have records to look at."""

    raw: "Bytes"
    batches: Batches
    is_data: "Flags"
    data: Batches
    """Batches with `is_data`."""
    plain: "Bytes"
    """Holds the records of data batch i, decompressed, in [low[i], high[i])."""
    low: "Int64s"
    high: "Int64s"


FindBatches = Callable[[memoryview], tuple[Batches, int, int]]
"""(whole batches, where the last of them ends, bytes that the next one needs; 0: it is none)"""


def read_chunks(directory: str, source: Source, find_batches: FindBatches) -> Iterator[LogChunk]:
    """The batches of a segment. A chunk is good until the next one is asked for."""
    path = os.path.join(directory, file_name(source.base_offset, LOG))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageFault(f"can't open {path}: {error}", path) from error
    buffer = np.empty(min(CHUNK_BYTES, source.size) + SLACK_BYTES, np.uint8)
    next_offset, position = source.base_offset, 0
    try:
        while position < source.size:
            want = min(len(buffer) - SLACK_BYTES, source.size - position)
            if os.preadv(fd, [buffer.data[:want]], position) != want:
                raise CorruptFault(f"{path} ends before {source.size}", path)
            batches, used, need = find_batches(buffer.data[:want])
            if not len(batches.at):
                if need <= want or need > source.size - position:
                    raise CorruptFault(f"{path} has no whole batch at {position}", path)
                buffer = np.empty(need + SLACK_BYTES, np.uint8)
                continue
            next_offset = _check(path, position, batches, next_offset, source.end_offset)
            try:
                yield from _unpack(buffer[: used + SLACK_BYTES], batches)
            except (ProtocolFault, CorruptFault) as fault:
                raise CorruptFault(f"{path} behind {position}: {fault}", path) from fault
            position += used
    except OSError as error:
        raise StorageFault(f"can't read {path}: {error}", path) from error
    finally:
        os.close(fd)


def _check(path: str, position: int, batches: Batches, next_offset: int, end_offset: int) -> int:
    """CorruptFault unless magic, offsets and counts are as they must be; the next offset."""
    base, delta, count = batches.base_offset, batches.last_offset_delta, batches.record_count
    following = base + delta + 1
    is_bad = (batches.magic != MAGIC) | (delta < 0) | (count < 0) | (count > delta + 1)
    is_bad[1:] |= base[1:] < following[:-1]
    if is_bad.any() or base[0] < next_offset or following[-1] > end_offset:
        raise CorruptFault(f"{path} holds a batch that can't be, behind {position}", path)
    return int(following[-1])


def _unpack(raw: "Bytes", batches: Batches) -> Iterator[LogChunk]:
    """One chunk, or where batches are compressed as many as keep what they unpack to in bounds."""
    is_data = (batches.attributes & CONTROL_BIT == 0) & (batches.record_count > 0)
    data = batches if is_data.all() else batches.chosen(is_data)
    low, high = data.at + RECORDS_POSITION, data.end
    codec = data.attributes & COMPRESSION_MASK
    if not codec.any():
        yield LogChunk(raw, batches, is_data, data, raw, low, high)
        return
    view = raw.data
    parts: list[bytes | memoryview] = []
    first, used = 0, 0
    cut_at, numbers = 0, np.flatnonzero(is_data).tolist()
    packed = zip(codec.tolist(), low.tolist(), high.tolist(), strict=True)
    for number, (kind, begin, end) in enumerate(packed):
        plain = codecs.decompress(kind, view[begin:end])
        if parts and used + len(plain) > CHUNK_BYTES:
            cut = numbers[number]
            yield _joined(
                raw,
                batches.chosen(slice(cut_at, cut)),
                is_data[cut_at:cut],
                data.chosen(slice(first, number)),
                parts,
            )
            cut_at, first, used, parts = cut, number, 0, []
        parts.append(plain)
        used += len(plain)
    rest = batches.chosen(slice(cut_at, None))
    yield _joined(raw, rest, is_data[cut_at:], data.chosen(slice(first, None)), parts)


def _joined(
    raw: "Bytes",
    batches: Batches,
    is_data: "Flags",
    data: Batches,
    parts: list[bytes | memoryview],
) -> LogChunk:
    size = np.array([len(part) for part in parts], np.int64)
    high = np.cumsum(size)
    plain = np.frombuffer(b"".join([*parts, bytes(SLACK_BYTES)]), np.uint8)
    return LogChunk(raw, batches, is_data, data, plain, high - size, high)


def sealed(fields: list[int], block: bytes) -> bytes:
    """A batch of these header fields and records: its length and CRC are made."""
    fields[H_LENGTH] = HEADER_SIZE - LOG_OVERHEAD + len(block)
    fields[H_CRC] = crc32c(block, crc32c(AFTER_CRC.pack(*fields[H_ATTRIBUTES:])))
    return BATCH_HEADER.pack(*fields) + block
