"""What a client that reads on will ask for next, told beforehand.

   READ (READ_FLAG_AHEAD) ──► `broker.read` ──► READ_DONE: the slice that was asked for
                                   │ note
                                   ▼
                              ReadAhead ──run──► READ_AHEAD: the slices behind it

The client's next requests are then answered without this process (`gateway.fetch_ahead`).

Rules of this file:
* Nobody waits for it: it runs when a turn's answers are out, for one read in each turn.
* What is told is what a READ of that offset would be answered with now. A slice to which later
  appends would add is not told: the slices end before the last bytes that may be read.
* All slices lie in the segment of the first one, whose descriptor has been passed.
* Where aborted transactions may be among them, read_committed readers are told nothing.
* `ends` says that what was told holds no longer: records were deleted, the disk failed, or this
  broker follows newer metadata. It counts in shared memory, where the network workers look.
"""

from __future__ import annotations

from shmbroker.broker.read_lookup import READ_COMMITTED
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import READ_AHEAD, READ_AHEAD_HEAD, READ_AHEAD_ROW
from shmbroker.log.lookups import offset_at
from shmbroker.log.residency import ColdBytes, allow_waiting, refuse_waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.ipc.peer import Peer
    from shmbroker.log.segment import Segment
    from shmbroker.replica.partition import Partition

AHEAD_BYTES = 8 << 20
"""Of records, that are told at most; so many are sent in some milliseconds."""
AHEAD_SLICES = 8
"""A slice costs some 12 us."""
NOTED_MAX = 1024
"""Reads that wait until they are told what follows."""


class NotedRead:
    """A READ that was answered, and where its slice ended."""

    __slots__ = ("isolation", "limit", "min_bytes", "partition", "peer", "position", "segment",
                 "token")  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        token: int,
        limit: int,
        min_bytes: int,
        isolation: int,
        partition: Partition,
        segment: Segment,
        position: int,
    ) -> None:
        """limit: the most bytes of an answer."""
        self.peer = peer
        self.token = token
        self.limit = limit
        self.min_bytes = min_bytes
        self.isolation = isolation
        self.partition = partition
        self.segment = segment
        self.position = position


class ReadAhead:
    """Tells readers what follows. words[index]: this process's AHEAD_ENDS. `on_told` is
    told the partition, of how many slices, of how many bytes."""

    def __init__(
        self,
        words: memoryview,
        index: int,
        on_told: Callable[[Partition, int, int], None] = lambda _partition, _slices, _bytes: None,
    ) -> None:
        self._words = words
        self._index = index
        self._on_told = on_told
        self.noted: dict[tuple[int, bytes], NotedRead] = {}
        """By the reader's slot and the partition: the last one counts."""
        self.ends()  # those of the process before

    def ends(self) -> None:
        """What was told so far holds no longer."""
        self._words[self._index] += 1

    def note(self, read: NotedRead) -> None:
        """Tell it what follows, once the answers are out."""
        if len(self.noted) < NOTED_MAX:
            self.noted[read.peer.slot, read.partition.key] = read

    def run(self) -> None:
        """Tell one reader."""
        _, read = self.noted.popitem()
        partition = read.partition
        log = partition.log
        end = partition.high_watermark
        if read.isolation == READ_COMMITTED:
            end = partition.last_stable_offset
            if log.aborted:
                return
        if not partition.is_leader or not read.peer.incarnation:
            return
        refuse_waiting()
        try:
            rows, total = self._rows(read, end)
        except (ColdBytes, StorageFault):
            return  # whoever comes to it waits for the disk, or is told
        finally:
            allow_waiting()
        if rows:
            head = READ_AHEAD_HEAD.pack(
                read.token, self._words[self._index], read.segment.file_id,
                partition.high_watermark, partition.last_stable_offset, log.log_start_offset,
            )  # fmt: skip
            if read.peer.try_send(READ_AHEAD, head + b"".join(rows)):
                self._on_told(partition, len(rows), total)

    def _rows(self, read: NotedRead, end: int) -> tuple[list[bytes], int]:
        """READ_AHEAD_ROWs of the slices behind a read, before the offset `end`; their bytes."""
        log, segment = read.partition.log, read.segment
        rows: list[bytes] = []
        total = 0
        offset = offset_at(log, segment, read.position)
        while len(rows) < AHEAD_SLICES and total < AHEAD_BYTES:
            found = log.read(offset, read.limit, end)
            if found is None or found[0] is not segment or not found[2] >= read.min_bytes:
                break
            _, position, length = found
            following = offset_at(log, segment, position + length)
            if not length or following >= end or position < segment.unjudged_bytes:
                break
            rows.append(READ_AHEAD_ROW.pack(offset, position, length, 0))
            total += length
            offset = following
        return rows, total
