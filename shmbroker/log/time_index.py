"""Time index: the largest timestamp up to an offset (source: Kafka `TimeIndex`).

   at  size  field
    0     8  timestamp        ms; the largest in the segment up to and with that offset
    8     4  relative_offset  last offset of the batch that holds it, minus the base offset

Stored at the same moments as offset index entries, if the timestamp grew, and once more when the
segment rolls or closes, so the last entry of a finished segment is its largest timestamp.
"""

from collections.abc import Iterable
from struct import Struct

from shmbroker.log.index_file import IndexFile

TIMESTAMP = 0
RELATIVE_OFFSET = 1


class TimeIndex(IndexFile):
    """Entries (timestamp, relative_offset); timestamps grow strictly."""

    ENTRY = Struct(">qI")
    __slots__ = ("last_timestamp",)

    def __init__(self, path: str, bytes_max: int) -> None:
        super().__init__(path, bytes_max)
        self.last_timestamp = -1
        """Timestamp of the last entry; -1 without one."""

    def is_full(self) -> bool:
        """Whether only the place of the last entry is left, that of a finished segment (Kafka
        `TimeIndex`)."""
        return (self.count + 2) * self.ENTRY.size > self.bytes_max

    def load(self) -> None:
        super().load()
        last = self.last()
        self.last_timestamp = last[TIMESTAMP] if last else -1

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Store the pair if its timestamp is larger than the last entry's."""
        # (0, 0) would read as the end.
        if (
            timestamp > self.last_timestamp
            and (timestamp or relative_offset)
            and self.append(timestamp, relative_offset)
        ):
            self.last_timestamp = timestamp

    def append_last(self, timestamp: int, relative_offset: int) -> None:
        """`maybe_append` the largest timestamp of a finished segment. There is always room for it,
        also where `segment.index.bytes` was lowered: retention and lookups by time go by it."""
        self.bytes_max = max(self.bytes_max, (self.count + 1) * self.ENTRY.size)
        self.maybe_append(timestamp, relative_offset)

    def maybe_extend(self, pairs: Iterable[tuple[int, int]]) -> None:
        """`maybe_append` for each of them, with one write."""
        last, entries = self.last_timestamp, []
        for pair in pairs:
            if pair[0] > last and any(pair):
                entries.append(pair)
                last = pair[0]
        stored = self.extend(b"".join(self.ENTRY.pack(*entry) for entry in entries))
        if stored:
            self.last_timestamp = entries[stored - 1][0]

    def truncate(self, count: int) -> None:
        super().truncate(count)
        last = self.last()
        self.last_timestamp = last[TIMESTAMP] if last else -1
