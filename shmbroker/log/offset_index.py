"""Offset index: where in the segment an offset is to be looked for (source: Kafka `OffsetIndex`).

   at  size  field
    0     4  relative_offset  last offset of a batch, minus the segment's base offset
    4     4  position         byte in the .log file where that batch begins

One entry for every `index.interval.bytes` of log. Position 0 never gets an entry (it needs none),
so (0, 0) is free to mean the end. Example: base offset 368769, entry (10, 4120): the batch that
begins at byte 4120 ends with offset 368779.
"""

from struct import Struct

from shmbroker.log.index_file import IndexFile

RELATIVE_OFFSET = 0
POSITION = 1


class OffsetIndex(IndexFile):
    """Entries (relative_offset, position), both growing."""

    ENTRY = Struct(">II")
    __slots__ = ()
