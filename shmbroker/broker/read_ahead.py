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

from shmbroker.broker.read_lookup import P_BYTES_MAX, P_LAST_FETCHED_EPOCH
from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import (
    READ_AHEAD,
    READ_AHEAD_HEAD,
    READ_AHEAD_ROW,
    READ_COMMITTED,
)
from shmbroker.log.lookups import offset_at
from shmbroker.log.residency import ColdBytes, allow_waiting, refuse_waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.broker.read import DelayedRead, Reader
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment
    from shmbroker.replica.partition import Partition

AHEAD_BYTES = 8 << 20
"""The most bytes of records that are told ahead; so many are sent in some milliseconds."""
AHEAD_SLICES = 8
"""A slice costs some 12 us."""
NOTED_MAX = 1024
"""Reads that wait until they are told what follows."""


class ReadAhead:
    """Tells the clients of a Reader what follows. words[index]: this process's AHEAD_ENDS."""

    def __init__(self, reader: Reader, words: memoryview, index: int) -> None:
        self._reader = reader
        self._words = words
        self._index = index
        self.noted: dict[tuple[int, bytes], tuple[DelayedRead, Partition, Segment, int]] = {}
        """READs that were answered, and where their slices ended, by the slot of who has asked and
        the partition: the last one counts."""
        reader.note_ahead = self.note
        self.ends()  # those of the process before

    def ends(self) -> None:
        """What was told so far holds no longer."""
        self._words[self._index] += 1

    def note(self, read: DelayedRead, partition: Partition, segment: Segment, end: int) -> None:
        """Tell its client what follows, once the answers are out."""
        if end < segment.size and len(self.noted) < NOTED_MAX:
            self.noted[read.peer.slot, partition.key] = read, partition, segment, end

    def run(self) -> None:
        """Tell one reader."""
        _, (read, partition, segment, position) = self.noted.popitem()
        log = partition.log
        end = partition.high_watermark
        if read.isolation == READ_COMMITTED:
            end = partition.last_stable_offset
            if log.aborted:
                return
        last_fetched_epoch = read.partitions[0][P_LAST_FETCHED_EPOCH]
        if last_fetched_epoch >= 0 and last_fetched_epoch != log.leader_epochs.latest:
            return  # what follows may diverge
        if not partition.is_leader or not read.peer.incarnation:
            return
        refuse_waiting()
        try:
            rows, total = self._rows(read, log, segment, position, end)
        except (ColdBytes, StorageFault):
            return  # the read that comes to it waits for the disk, or is told
        finally:
            allow_waiting()
        if rows:
            head = READ_AHEAD_HEAD.pack(
                read.token, self._words[self._index], segment.file_id,
                partition.high_watermark, partition.last_stable_offset, log.log_start_offset,
            )  # fmt: skip
            if read.peer.try_send(READ_AHEAD, head + b"".join(rows)):
                self._reader.count(partition, len(rows), total)

    def _rows(
        self, read: DelayedRead, log: PartitionLog, segment: Segment, position: int, end: int
    ) -> tuple[list[bytes], int]:
        """READ_AHEAD_ROWs of the slices that follow in a segment behind a position, before the
        offset `end`; their bytes."""
        rows: list[bytes] = []
        total = 0
        limit = min(read.max_bytes, read.partitions[0][P_BYTES_MAX])
        offset = offset_at(log, segment, position)
        if offset < log.local_start_offset:
            return rows, total  # it was deleted a moment ago
        while len(rows) < AHEAD_SLICES and total < AHEAD_BYTES:
            found = log.read(offset, limit, end)
            if found is None or found[0] is not segment or max(limit, found[2]) < read.min_bytes:
                break
            _, position, length = found
            following = offset_at(log, segment, position + length)
            if not length or following >= end or position < segment.unjudged_bytes:
                break
            rows.append(READ_AHEAD_ROW.pack(offset, position, length, 0))
            total += length
            offset = following
        return rows, total
