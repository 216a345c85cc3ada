"""Memory for record batches: the batch that is still open, and what all of them hold together.

A batch begins in a buffer for what is known to come, a batch's size halved as often as that fits,
and grows from there: many partitions with few records each take little. Buffers of the usual size
are used again.

Rules

* Memory is at most `buffer_memory`, from the first record until the answer; who needs more waits
  (`filling`). A batch that is larger by itself is alone.
* A buffer grows by being copied into another, never in place: somebody may look at it still.
* Everything here needs the lock of the backlog, but for `Buffers.keep`.
"""

from __future__ import annotations

from shmbroker.client.producer.delivery import Batch
from shmbroker.client.producer.encoding import COUNT, NEWEST, POSITION, encode
from shmbroker.errors import ConfigFault
from shmbroker.records.batch_layout import HEADER_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.producer.encoding import Columns, Rows

RECORD_BYTES_MAX = 64 << 20
"""Brokers close the connection at a request of 100 MiB, so no answer would ever come."""

_SLOT_BYTES_MIN = 1024


class OpenBatch:
    """A batch that still takes records."""

    __slots__ = ("base_timestamp", "buffer", "count", "created_s", "max_timestamp", "position")

    def __init__(self, buffer: bytearray, base_timestamp: int, now_s: float) -> None:
        self.buffer = buffer
        self.position = HEADER_SIZE
        self.count = 0
        self.base_timestamp = base_timestamp
        self.max_timestamp = base_timestamp
        self.created_s = now_s

    def state(self) -> tuple[int, int, int, int, int]:
        """The state of the buffer, as `scatter` takes it."""
        end = len(self.buffer)
        return self.position, end, self.count, self.base_timestamp, self.max_timestamp

    def take(self, state: list[int]) -> int:
        """What `scatter` has made of it; how many records came."""
        more = state[COUNT] - self.count
        self.position, self.count, self.max_timestamp = state[POSITION], state[COUNT], state[NEWEST]
        return more

    def put(self, columns: Columns, rows: Rows | None, first: int, last: int) -> int:
        """Encode as many of the rows as there is room for; return how many."""
        count, self.position, newest = encode(
            self.buffer,
            self.position,
            len(self.buffer),
            self.count,
            rows,
            first,
            last,
            self.base_timestamp,
            columns,
        )
        self.count += count
        self.max_timestamp = max(self.max_timestamp, newest)
        return count

    def growth(self, batch_size: int) -> int:
        """How many bytes it grows by: twice the room, for more records, or for one that is larger
        than a batch. ConfigFault where no broker would take that one."""
        size = len(self.buffer)
        more = size if size >= batch_size else min(size, batch_size - size)
        if size + more > 2 * RECORD_BYTES_MAX:
            raise ConfigFault(f"a record is larger than {RECORD_BYTES_MAX} bytes")
        return more

    def grow(self, more: int) -> None:
        """Make room for so many bytes more."""
        self.buffer = self.buffer + bytes(more)  # not in place: it may be looked at still


class Buffers:
    """What batches of a producer hold."""

    def __init__(self, batch_size: int, memory_max: int) -> None:
        self.memory = 0
        self._batch_size = batch_size
        self._memory_max = memory_max
        self._spare: list[bytearray] = []

    def size_for(self, want: int) -> int:
        """The size of a buffer for so many bytes: a batch's, halved as often as they fit."""
        size = self._batch_size
        while size > _SLOT_BYTES_MIN and size // 2 >= want:
            size //= 2
        return size

    def must_wait(self, size: int) -> bool:
        """Whether there is no memory for a buffer of this size now."""
        return bool(self.memory) and self.memory + size > self._memory_max

    def take(self, size: int) -> bytearray:
        """A buffer of this size, whatever else there is: `must_wait` was asked."""
        self.memory += size
        return self._spare.pop() if size == self._batch_size and self._spare else bytearray(size)

    def grow(self, opened: OpenBatch) -> None:
        """Twice the room for a batch, whatever else there is."""
        more = opened.growth(self._batch_size)
        opened.grow(more)
        self.memory += more

    def release(self, batch: Batch) -> None:
        """A batch is delivered, or in halves."""
        self.memory -= batch.size
        self.keep(batch.buffer)

    def keep(self, buffer: bytearray) -> None:
        """Keep a buffer of the usual size for the next batch."""
        room = self._memory_max - self.memory
        if len(buffer) == self._batch_size and len(self._spare) < room // self._batch_size:
            self._spare.append(buffer)

    def clear(self) -> None:
        """No batch is left."""
        self._spare.clear()
        self.memory = 0
