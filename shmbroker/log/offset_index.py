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
RELATIVE_OFFSET_MAX = 2**31 - 1


class OffsetIndex(IndexFile):
    """Entries (relative_offset, position), both growing."""

    ENTRY = Struct(">II")
    __slots__ = ()

    def position_before(self, relative_offset: int) -> int:
        """A batch begins here, and no batch before it holds the offset."""
        entry = self.floor(relative_offset, RELATIVE_OFFSET)
        return entry[POSITION] if entry else 0

    def boundary_before(self, position: int) -> int:
        """The last indexed beginning of a batch at or before `position`."""
        entry = self.floor(position, POSITION)
        return entry[POSITION] if entry else 0
