"""Compressed batches that unpack to more than is taken at once, in parts: whole records each.

A decoder has the records of a batch in one buffer. A batch that a client has compressed may be
larger than the memory, though a small one in the log, and Kafka's consumers read it, record by
record. So here, too, beyond a hundredfold and beyond `codecs.AT_ONCE_BYTES_MAX`: it is decompressed
step by step, and what is there is cut behind its last whole record.

Rules of this file:
* No more is held than a part and what the next record takes, whatever the header says.
* The records of all parts are as many as the header says, their offsets grow from part to part,
  and nothing is behind the last one; else it is a ProtocolFault, as `codecs` has it. What a part
  holds, its decoder checks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from shmbroker.errors import ProtocolFault
from shmbroker.records import codecs
from shmbroker.records.batch import Record, iterate_block, open_batch, read_varint
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    COMPRESSION_MASK,
    H_ATTRIBUTES,
    H_COUNT,
    H_LENGTH,
    LOG_OVERHEAD,
    RECORDS_POSITION,
    SNAPPY,
)

PART_BYTES = 32 << 20
"""What is decompressed before it is cut; more for a record that is larger."""

RECORD_BYTES_MAX = 1 << 30
"""What a single record may take: with its copy in an Arrow batch it is held twice."""

_STEP_BYTES = 1 << 20
_RECORD_LENGTH_MIN = 6
_LENGTH_SIZE_MAX = 5
_CUT_OFF = "its records end too early"


def parts(codec: int, packed: memoryview, count: int) -> Iterator[tuple[memoryview, int]]:
    """Yield the plain bytes of some of the `count` records, and how many these are."""
    if codec == SNAPPY:  # unpacks to 21 times its size at most: it is as large in the log, too
        raise ProtocolFault("snappy records decompress to more than 1 GiB")
    with pa.CompressedInputStream(pa.BufferReader(packed), codecs.NAMES[codec]) as stream:
        held, wanted, last_delta = bytearray(), PART_BYTES, -1
        while count:
            is_end = _fill(stream, held, wanted)
            end, found, last, needed = _whole_records(held, count)
            if found:
                if _offset_delta(held, 0) <= last_delta:
                    raise ProtocolFault("its record offsets do not grow")
                last_delta = _offset_delta(held, last)
                part, held = held, held[end:]
                yield memoryview(part)[:end], found
                count -= found
                wanted = PART_BYTES
            elif is_end:
                raise ProtocolFault(_CUT_OFF)
            elif needed > RECORD_BYTES_MAX:
                raise ProtocolFault(f"a record of it takes more than {RECORD_BYTES_MAX} bytes")
            else:
                wanted = max(PART_BYTES, needed)
        if held or _read(stream, 1):
            raise ProtocolFault("bytes are left over behind its last record")


def records_of(batch: bytes | memoryview, position: int) -> Iterator[Record]:
    """Yield the records of the whole batch at `position`, as `iterate_records` does, however much
    they unpack to; ProtocolFault as it has it."""
    try:
        yield from iterate_block(*open_batch(batch, position))
    except codecs.DecompressedTooLargeFault:
        header = BATCH_HEADER.unpack_from(batch, position)
        end = position + LOG_OVERHEAD + header[H_LENGTH]
        packed = memoryview(batch)[position + RECORDS_POSITION : end]
        codec = header[H_ATTRIBUTES] & COMPRESSION_MASK
        for plain, count in parts(codec, packed, header[H_COUNT]):
            part = (*header[:H_COUNT], count, *header[H_COUNT + 1 :])
            yield from iterate_block(part, bytes(plain))


def _fill(stream: pa.NativeFile, held: bytearray, wanted: int) -> bool:
    """Decompress until `wanted` bytes are held; whether the stream is at its end."""
    while len(held) < wanted:
        step = _read(stream, min(_STEP_BYTES, wanted - len(held)))
        if not step:
            return True
        held += step
    return False


def _read(stream: pa.NativeFile, size: int) -> bytes:
    try:
        step: bytes = stream.read(size)
    except OSError as error:
        raise ProtocolFault(f"its records can't be decompressed: {error}") from None
    return step


def _whole_records(held: bytearray, count: int) -> tuple[int, int, int, int]:
    """Find those of the first `count` records that are there: (where the last one ends, how many
    they are, where the last one begins, bytes from its end on that the next one takes)."""
    size = len(held)
    position = last = found = 0
    while found < count:
        at, length, shift = position, 0, 0
        while at < size:
            byte = held[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift == 7 * _LENGTH_SIZE_MAX:
                raise ProtocolFault("the length of a record has too many bytes")
        else:
            return position, found, last, at - position + _LENGTH_SIZE_MAX
        if length & 1 or length >> 1 < _RECORD_LENGTH_MIN:
            raise ProtocolFault("a record has no length that can be")
        end = at + (length >> 1)
        if end > size:
            return position, found, last, end - position
        last, position = position, end
        found += 1
    return position, found, last, 0


def _offset_delta(held: bytearray, position: int) -> int:
    """The offset delta of the whole record at this position."""
    size = len(held)
    _, at = read_varint(held, position, size)
    _, at = read_varint(held, at + 1, size)
    return read_varint(held, at, size)[0]
