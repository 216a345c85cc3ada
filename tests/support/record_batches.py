"""Record batches for tests, written by hand so that they can be sparse, or wrong."""

import itertools
from collections.abc import Iterable
from typing import Any

from crc32c import crc32c

from shmbroker.errors import ProtocolFault
from shmbroker.records import codecs
from shmbroker.records.batch import iterate_batches, iterate_records
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    CONTROL_BIT,
    H_ATTRIBUTES,
    TIMESTAMP_TYPE_BIT,
)

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]
"""offset delta, timestamp, key, value, headers"""

Found = tuple[bytes | None, bytes | None, int, int, int, list[tuple[str, bytes | None]]]
"""A record as readers get it: `rows_by_loop` says what is in it."""


def varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _content(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(base_timestamp: int, row: Row) -> bytes:
    delta, timestamp, key, value, headers = row
    body = b"".join(
        [
            b"\0",
            varint(timestamp - base_timestamp),
            varint(delta),
            _content(key),
            _content(value),
            varint(len(headers)),
            *(_content(name) + _content(content) for name, content in headers),
        ]
    )
    return varint(len(body)) + body


def batch(
    base_offset: int,
    rows: list[Row],
    *,
    codec: int = 0,
    attributes: int = 0,
    last_delta: int | None = None,
    base_timestamp: int | None = None,
    records: bytes | None = None,
    count: int | None = None,
    crc: int | None = None,
    producer_id: int = -1,
) -> bytes:
    """A batch of these rows; whatever else is given replaces what would follow from them."""
    if base_timestamp is None:
        base_timestamp = rows[0][1] if rows else -1
    if last_delta is None:
        last_delta = rows[-1][0] if rows else 0
    if records is None:
        records = b"".join(record(base_timestamp, row) for row in rows)
    records = bytes(codecs.compress(codec, records))
    fields = [
        base_offset,
        49 + len(records),
        0,
        2,
        0,
        attributes | codec,
        last_delta,
        base_timestamp,
        max((row[1] for row in rows), default=-1),
        producer_id,
        -1,
        -1,
        len(rows) if count is None else count,
    ]
    plain = BATCH_HEADER.pack(*fields) + records
    fields[4] = crc32c(plain[21:]) if crc is None else crc
    return BATCH_HEADER.pack(*fields) + records


def with_right_crc(data: bytes | bytearray) -> bytes:
    """One whole batch with its CRC made right."""
    out = bytearray(data)
    out[17:21] = crc32c(bytes(out[21:])).to_bytes(4, "big")
    return bytes(out)


def rows_by_loop(data: bytes, start: int, end: int) -> list[Found]:
    """What a reader must get: (key, value, offset, µs, timestamp type, headers); the plain loop.

    ProtocolFault as the loop raises it.
    """
    found = []
    position = 0
    for position, header in iterate_batches(data):
        if header[0] >= end:
            break
        if header[H_ATTRIBUTES] & CONTROL_BIT or header[0] + header[6] < start:
            continue
        kind = int(bool(header[H_ATTRIBUTES] & TIMESTAMP_TYPE_BIT))
        for offset, timestamp, key, value, headers in iterate_records(data, position):
            if start <= offset < end:
                texts = [(name.decode(errors="replace"), content) for name, content in headers]
                found.append((key, value, offset, _microseconds(timestamp), kind, texts))
    return found


def _microseconds(ms: int) -> int:
    """As 64-bit arithmetic has it: the sum wraps as in Java, the product stops at the ends."""
    ms = (ms + 2**63) % 2**64 - 2**63
    most = 2**63 // 1000 - 1
    return max(-most, min(ms, most)) * 1000


def is_readable(data: bytes) -> bool:
    """Whether the plain loop reads these batches, and their offsets grow."""
    try:
        offsets = [row[2] for row in rows_by_loop(data, 0, 1 << 62)]
    except ProtocolFault:
        return False
    return all(a < b for a, b in itertools.pairwise(offsets))


def rows_of(batches: Iterable[Any]) -> list[Found]:
    """Arrow batches of all columns as the same tuples."""
    found = []
    for arrow in batches:
        arrow.validate(full=True)
        columns = [arrow.column(i) for i in range(arrow.num_columns)]
        key, value, topic, partition, offset, timestamp, kind, headers = columns
        assert set(topic.to_pylist()) <= {"a topic"}
        assert set(partition.to_pylist()) <= {7}
        for row in zip(
            key.to_pylist(),
            value.to_pylist(),
            offset.to_pylist(),
            timestamp.cast("int64").to_pylist(),
            kind.to_pylist(),
            headers.to_pylist(),
            strict=True,
        ):
            *plain, pairs = row
            found.append((*plain, [(p["key"], p["value"]) for p in pairs or []]))
    return found
