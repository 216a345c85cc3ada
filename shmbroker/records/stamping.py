"""A batch with the timestamp type and the largest timestamp that its topic wants.

Copied, so it costs more than an append as it is: for those whose header says something else.
"""

from struct import Struct

from shmbroker.crc32c import crc32c
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    MAX_TIMESTAMP_POSITION,
    TIMESTAMP_TYPE_BIT,
)

_INT16 = Struct(">h")
_INT64 = Struct(">q")
_UINT32 = Struct(">I")


def stamped(batch: memoryview, max_timestamp: int, *, is_log_append_time: bool) -> memoryview:
    """A copy of a valid batch with the topic's type and `max_timestamp`, and its new CRC.

    max_timestamp: on a LogAppendTime topic the time of all its records, on a CreateTime topic the
    largest of them.
    """
    copy = bytearray(batch)
    (attributes,) = _INT16.unpack_from(copy, ATTRIBUTES_POSITION)
    if is_log_append_time:
        attributes |= TIMESTAMP_TYPE_BIT
    else:
        attributes &= ~TIMESTAMP_TYPE_BIT
    _INT16.pack_into(copy, ATTRIBUTES_POSITION, attributes)
    _INT64.pack_into(copy, MAX_TIMESTAMP_POSITION, max_timestamp)
    view = memoryview(copy)
    seal(view)
    return view


def seal(batch: memoryview) -> None:
    """Give a whole batch, in place, the CRC of what stands behind it."""
    _UINT32.pack_into(batch, CRC_POSITION, crc32c(batch[ATTRIBUTES_POSITION:]))
