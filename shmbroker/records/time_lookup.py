"""The first record of a batch that is not older than a time: what ListOffsets asks for.

Any client may have stored the batch and any may ask, so it takes some 50 ms at most, whatever the
records are: the kernels look at all of them; where they can't tell (a batch that was compacted, or
whose offsets nobody has judged; no kernels at all), a loop that passes over keys, values and
headers looks at RECORDS_MAX. Of what is larger, or can't be read, the batch stands for its records.
"""

from __future__ import annotations

from shmbroker.errors import ProtocolFault
from shmbroker.kernels import native
from shmbroker.records import codecs
from shmbroker.records.batch_layout import (
    BATCH_HEADER,
    COMPRESSION_MASK,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_TIMESTAMP,
    H_COUNT,
    H_LENGTH,
    H_MAX_TIMESTAMP,
    LOG_OVERHEAD,
    RECORD_SIZE_MIN,
    RECORDS_POSITION,
    TIMESTAMP_TYPE_BIT,
)
from shmbroker.records.validation import (
    PLAIN_BYTES_MAX,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    uvarint,
)

RECORDS_MAX = 50_000


def first_not_older(
    batch: bytes | memoryview, timestamp: int, start_offset: int
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record from `start_offset` on that is not older; or None."""
    header = BATCH_HEADER.unpack_from(batch)
    itself = header[H_MAX_TIMESTAMP], max(header[H_BASE_OFFSET], start_offset)
    end = LOG_OVERHEAD + header[H_LENGTH]
    codec, count = header[H_ATTRIBUTES] & COMPRESSION_MASK, header[H_COUNT]
    try:
        records = codecs.decompress(codec, batch[RECORDS_POSITION:end], PLAIN_BYTES_MAX)
        if count > len(records) // RECORD_SIZE_MIN:
            return itself
        delta = timestamp - header[H_BASE_TIMESTAMP]
        is_stamped = header[H_ATTRIBUTES] & TIMESTAMP_TYPE_BIT
        if native is not None and not is_stamped and TIMESTAMP_MIN < delta <= TIMESTAMP_MAX:
            _, _, found = native.walk(records, count, TIMESTAMP_MIN, delta - 1, False, 1)
            if not found:
                return None
            index, what = found[0]
            if what == native.WALK_TIMESTAMP and header[H_BASE_OFFSET] + index >= start_offset:
                # All before it are older, so that it is the latest up to there.
                _, latest, _ = native.walk(
                    records, index + 1, TIMESTAMP_MIN, TIMESTAMP_MAX, False, 1
                )
                return header[H_BASE_TIMESTAMP] + latest, header[H_BASE_OFFSET] + index
        if count > RECORDS_MAX:
            return itself
        return _step(bytes(records), header, timestamp, start_offset)
    except (ProtocolFault, IndexError):
        # Records nobody can read were stored as they came.
        return itself


def _step(
    data: bytes, header: tuple[int, ...], timestamp: int, start_offset: int
) -> tuple[int, int] | None:
    """Step from record to record, by their lengths."""
    at = 0
    is_stamped = header[H_ATTRIBUTES] & TIMESTAMP_TYPE_BIT
    base_offset, base_timestamp = header[H_BASE_OFFSET], header[H_BASE_TIMESTAMP]
    for _ in range(header[H_COUNT]):
        number, at = uvarint(data, at, 32)
        following = at + (number >> 1)
        number, at = uvarint(data, at + 1, 64)
        found = base_timestamp + (number >> 1 ^ -(number & 1))
        if is_stamped:
            found = header[H_MAX_TIMESTAMP]
        if found >= timestamp:
            number, at = uvarint(data, at, 32)
            offset = base_offset + (number >> 1 ^ -(number & 1))
            if offset >= start_offset:
                return found, offset
        at = following
    if at != len(data):
        raise ProtocolFault("bytes are left over behind the last one")
    return None
