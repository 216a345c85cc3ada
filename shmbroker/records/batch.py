"""Record batches: judging them on Produce, making them, and looking inside.

A broker judges a batch by its header and CRC and passes the records on untouched; `split_frame` and
`check_batch` are that hot path. `iterate_records` walks the records one by one: for cold paths
(timestamp lookup, internal topics, tools) and as the oracle of the vectorised decoders' tests.

A record, inside the (decompressed) records block; every integer is a zigzag varint
(source: Kafka `DefaultRecord`):

   length | attributes (1 byte, 0) | timestamp delta | offset delta
   | key length (-1: null) | key | value length (-1: null) | value
   | header count | per header: key length | key | value length (-1: null) | value

Rules: bad bytes are an error code (Produce) or ProtocolFault (walks), nothing else; nothing is
allocated from a length that lies beyond the bytes at hand.
"""

from collections.abc import Iterable, Iterator
from struct import Struct

from shmbroker.crc32c import crc32c
from shmbroker.errors import ProtocolFault
from shmbroker.records import codecs
from shmbroker.records.batch_layout import (
    AFTER_CRC,
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    COMPRESSION_MASK,
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_COUNT,
    H_LENGTH,
    H_MAGIC,
    HEADER_SIZE,
    LENGTH_MIN,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RECORD_SIZE_MIN,
    RECORDS_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    ZSTD,
)
from shmbroker.wire.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NONE,
    UNKNOWN_SERVER_ERROR,
)
from shmbroker.wire.primitives import varint

Headers = Iterable[tuple[bytes, bytes | None]]
Record = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
"""offset, timestamp, key, value, headers"""

NO_HEADER: tuple[int, ...] = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

_INT32 = Struct(">i")
_CONTROL_KEY = Struct(">hh")
_BEFORE_CRC = Struct(">qiibI")


# --- Produce -------------------------------------------------------------------------------------


def split_frame(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Where the one batch of a Produce ends: (error, end of the batch).

    CORRUPT_MESSAGE: garbage, at the position that is returned or behind the batch that ends there.
    INVALID_RECORD: no whole batch, more than one, or an old magic. Up to 11 bytes behind the
    batch, or the beginning of another one, are left out, as Kafka does
    (`ProduceRequest.validateRecords`, `ByteBufferLogInputStream`).
    """
    first = _next_batch(data, position, end)
    if first <= 0:
        return (CORRUPT_MESSAGE if first else INVALID_RECORD), position
    if data[position + MAGIC_POSITION] != MAGIC:
        return INVALID_RECORD, first
    if first != end:
        second = _next_batch(data, first, end)
        if second:
            return (CORRUPT_MESSAGE if second < 0 else INVALID_RECORD), first
    return NONE, first


def _next_batch(data: memoryview, position: int, end: int) -> int:
    """The end of the batch at `position`; 0: no whole one there; -1: garbage."""
    left = end - position
    if left < LOG_OVERHEAD:
        return 0
    length: int = _INT32.unpack_from(data, position + LENGTH_POSITION)[0]
    if length < LENGTH_MIN:
        return -1
    if left <= MAGIC_POSITION:
        return 0
    if data[position + MAGIC_POSITION] > MAGIC:
        return -1
    if length > left - LOG_OVERHEAD:
        return 0
    return position + LOG_OVERHEAD + length


def check_batch(
    data: memoryview, position: int, end: int, message_bytes_max: int = 2**31 - 1
) -> tuple[int, tuple[int, ...]]:
    """Judge the batch that fills [position, end) as a client's: (error, header).

    `header` is what BATCH_HEADER unpacks (places: `batch_layout.H_*`), or NO_HEADER where there is
    none. The order of the checks is Kafka's (`UnifiedLog.analyzeAndValidateRecords`,
    `LogValidator.validateBatch`). What depends on the topic or the producer (timestamps,
    sequences, sizes of segments) is judged by the caller.
    """
    size = end - position
    if size < HEADER_SIZE:
        # A batch that announces so little can't carry its own header.
        error, _ = split_frame(data, position, end)
        return error or CORRUPT_MESSAGE, NO_HEADER
    header = BATCH_HEADER.unpack_from(data, position)
    base_offset, length, _, magic, crc, attributes, last_delta, _, _, producer_id, _, seq, n = (
        header
    )
    if magic != MAGIC or length != size - LOG_OVERHEAD:
        error, batch_end = split_frame(data, position, end)
        if error or batch_end - position < HEADER_SIZE:
            return error or CORRUPT_MESSAGE, header
        return check_batch(data, position, batch_end, message_bytes_max)
    if base_offset:
        return INVALID_RECORD, header
    if size > message_bytes_max:
        return MESSAGE_TOO_LARGE, header
    if crc32c(data[position + ATTRIBUTES_POSITION : end]) != crc:
        return CORRUPT_MESSAGE, header
    if attributes & COMPRESSION_MASK > ZSTD:
        return UNKNOWN_SERVER_ERROR, header
    if n <= 0 or n != last_delta + 1 or attributes & CONTROL_BIT:
        return INVALID_RECORD, header
    if n > (size - HEADER_SIZE) // RECORD_SIZE_MIN and not attributes & COMPRESSION_MASK:
        return INVALID_RECORD, header
    if seq < 0 and producer_id >= 0:
        return INVALID_RECORD, header
    return NONE, header


# --- making batches ------------------------------------------------------------------------------


def encode_batch(
    records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    codec: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """A batch of records given as (timestamp in ms, key, value, headers), offsets consecutive.

    With `log_append_time` the batch carries that time for all its records.
    """
    parts = []
    base_timestamp = max_timestamp = 0
    for at, (timestamp, key, value, headers) in enumerate(records):
        if not at:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        parts.append(encode_record(timestamp - base_timestamp, at, key, value, headers))
    return batch_of_encoded(
        parts,
        base_timestamp,
        max_timestamp,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        is_control=is_control,
        log_append_time=log_append_time,
    )


def batch_of_encoded(
    parts: list[bytes],
    base_timestamp: int,
    max_timestamp: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    codec: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """A batch of records as `encode_record` made them, of offset deltas from 0 on."""
    count = len(parts)
    if not count:
        raise ValueError("a batch holds at least one record")
    attributes = codec
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if is_control:
        attributes |= CONTROL_BIT
    if log_append_time is not None:
        attributes |= TIMESTAMP_TYPE_BIT
        max_timestamp = log_append_time
    block = codecs.compress(codec, b"".join(parts))
    crc = crc32c(
        AFTER_CRC.pack(
            attributes,
            count - 1,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
    )
    header = BATCH_HEADER.pack(
        base_offset,
        HEADER_SIZE - LOG_OVERHEAD + len(block),
        leader_epoch,
        MAGIC,
        crc32c(block, crc),
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    return header + block


def batch_of_one(timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    """`encode_batch` of one record without headers, and nothing about it out of the ordinary: in a
    third of the time."""
    body = b"".join((_NO_DELTAS, *_sized(key), *_sized(value), _NO_HEADERS))
    block = varint(len(body)) + body
    after = AFTER_CRC.pack(0, 0, timestamp, timestamp, NO_PRODUCER_ID, -1, NO_SEQUENCE, 1)
    head = _BEFORE_CRC.pack(
        0,
        HEADER_SIZE - LOG_OVERHEAD + len(block),
        NO_LEADER_EPOCH,
        MAGIC,
        crc32c(block, crc32c(after)),
    )
    return head + after + block


_NO_DELTAS = b"\0\0\0"
"""Attributes, and the first record's deltas of time and offset."""
_NO_HEADERS = b"\0"


def control_batch(
    control_type: int,
    value: bytes,
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
) -> bytes:
    """A control batch of one record (`batch_layout.CONTROL_*`); a producer's is transactional."""
    return encode_batch(
        [(timestamp, _CONTROL_KEY.pack(0, control_type), value, ())],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=producer_id != NO_PRODUCER_ID,
        is_control=True,
    )


def control_type(key: bytes) -> int:
    """The type in a control record's key; ProtocolFault if it is none."""
    if len(key) < _CONTROL_KEY.size:
        raise ProtocolFault("key of a control record is too short")
    kind: int = _CONTROL_KEY.unpack_from(key)[1]
    return kind


def encode_record(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> bytes:
    """A record as it stands in a batch."""
    headers = list(headers)
    parts = [
        b"\0",
        varint(timestamp_delta),
        varint(offset_delta),
        *_sized(key),
        *_sized(value),
        varint(len(headers)),
    ]
    for name, content in headers:
        parts += _sized(name)
        parts += _sized(content)
    body = b"".join(parts)
    return varint(len(body)) + body


def _sized(content: bytes | None) -> tuple[bytes, bytes]:
    """What stands for a key, a value or a header in a record: its length and its bytes."""
    return (_NULL, b"") if content is None else (varint(len(content)), content)


_NULL = varint(-1)


# --- looking inside ------------------------------------------------------------------------------


def iterate_batches(data: bytes | memoryview) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(position, header) of every whole batch in `data`; ProtocolFault where it isn't one.

    The last batch may be cut off, as in the answer to a Fetch; it is left out.
    """
    position, end = 0, len(data)
    while end - position >= HEADER_SIZE:
        header = BATCH_HEADER.unpack_from(data, position)
        size = header[H_LENGTH] + LOG_OVERHEAD
        if size < HEADER_SIZE or header[H_MAGIC] != MAGIC:
            raise ProtocolFault(f"no record batch at position {position}")
        if size > end - position:
            return
        yield position, header
        position += size


def iterate_records(batch: bytes | memoryview, position: int = 0) -> Iterator[Record]:
    """The records of the whole batch at `position`: (offset, timestamp, key, value, headers).

    The CRC is not looked at. ProtocolFault if the batch or a record in it is malformed, the records
    are not as many as the header says, or bytes are left over.
    """
    yield from iterate_block(*open_batch(batch, position))


def open_batch(
    batch: bytes | memoryview, position: int = 0, bytes_max: int = 1 << 30
) -> tuple[tuple[int, ...], bytes]:
    """(header, plain bytes of the records) of the whole batch at `position`; ProtocolFault if it is
    none, DecompressedTooLargeFault if they would be more than `bytes_max`."""
    if len(batch) - position < HEADER_SIZE:
        raise ProtocolFault("batch is shorter than its header")
    header = BATCH_HEADER.unpack_from(batch, position)
    end = position + LOG_OVERHEAD + header[H_LENGTH]
    if header[H_MAGIC] != MAGIC or not HEADER_SIZE <= end - position <= len(batch) - position:
        raise ProtocolFault("no whole record batch of magic 2")
    packed = memoryview(batch)[position + RECORDS_POSITION : end]
    block = codecs.decompress(header[H_ATTRIBUTES] & COMPRESSION_MASK, packed, bytes_max)
    return header, block if isinstance(block, bytes) else bytes(block)


def iterate_block(header: tuple[int, ...], block: bytes) -> Iterator[Record]:
    """The records in a batch's plain bytes; ProtocolFault as `iterate_records` has it."""
    base_offset, _, _, _, _, attributes, _, base_timestamp, max_timestamp = header[:9]
    at, end = 0, len(block)
    for _ in range(header[H_COUNT]):
        at, timestamp_delta, offset_delta, key, value, headers = _decode_record(block, at, end)
        timestamp = base_timestamp + timestamp_delta
        if attributes & TIMESTAMP_TYPE_BIT:
            timestamp = max_timestamp
        yield base_offset + offset_delta, timestamp, key, value, headers
    if at != end:
        raise ProtocolFault("bytes are left over behind the last record")


def _decode_record(
    data: bytes, position: int, end: int
) -> tuple[int, int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]:
    """Decode one record: its end, deltas of timestamp and offset, key, value, headers."""
    length, position = read_varint(data, position, end)
    record_end = position + length
    if length < 1 or record_end > end:
        raise ProtocolFault("record length is beyond the batch")
    timestamp_delta, position = read_varint(data, position + 1, record_end)
    offset_delta, position = read_varint(data, position, record_end)
    key, position = _bytes(data, position, record_end)
    value, position = _bytes(data, position, record_end)
    count, position = read_varint(data, position, record_end)
    if not 0 <= count <= record_end - position:
        raise ProtocolFault("record announces more headers than it has room for")
    headers = []
    for _ in range(count):
        name, position = _bytes(data, position, record_end)
        if name is None:
            raise ProtocolFault("record header without a key")
        content, position = _bytes(data, position, record_end)
        headers.append((name, content))
    if position != record_end:
        raise ProtocolFault("record is longer than its content")
    return position, timestamp_delta, offset_delta, key, value, headers


def read_varint(data: bytes | bytearray, position: int, end: int) -> tuple[int, int]:
    """A zigzag varint and where it ends; ProtocolFault if that is behind `end`."""
    shift = value = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise ProtocolFault("varint is too long")
    raise ProtocolFault("record ends inside a varint")


def _bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position, end)
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise ProtocolFault("length of a key, value or header is beyond its record")
    return data[position : position + length], position + length
