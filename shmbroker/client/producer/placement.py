"""The partition that each record goes to: Kafka's default partitioner on whole columns.

    a record with                goes to
    a partition of its own       that one
    a key, the empty one too     (murmur2(key) & 0x7fffffff) % partitions
    no key                       the sticky partition: one for about `batch_size` bytes of records,
                                 then another one by lot

The hash places as the Java client's default and librdkafka's `murmur2_random` do. The lot is
uniform if all queues are equal, and favours partitions with shorter queues, as KIP-794 has it;
partitions without a leader are left out as long as there are others.

Source: Kafka `BuiltInPartitioner`, KIP-480, KIP-794.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from shmbroker.client.producer.columns import ColumnChunk
from shmbroker.client.producer.encoding import BinaryColumn, Columns, murmur2
from shmbroker.errors import ConfigFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shmbroker.client.producer.encoding import Ints, Rows

Weights = Callable[[], Sequence[int]]
"""How likely each partition shall be chosen; asked at each change."""

_RUNS_MAX = 16

_RECORD_OVERHEAD = 10
"""About what a record has beside key and value."""


class Sticky:
    """Where a topic's records without a key go."""

    __slots__ = ("_bytes_max", "_lots", "_partition", "_taken")

    def __init__(self, bytes_max: int, lots: Callable[[int], int]) -> None:
        """`lots(n)`: a number below n, by lot."""
        self._bytes_max = bytes_max
        self._lots = lots
        self._partition = -1
        self._taken = 0

    def place(self, sizes: Ints, weights: Weights) -> Rows:
        """int32 partitions of records of these sizes (bytes), in order."""
        placed = np.empty(len(sizes), np.int32)
        ends = np.cumsum(sizes)
        at, behind = 0, 0
        while at < len(placed):
            if self._partition < 0 or self._taken >= self._bytes_max:
                self._partition = self._draw(weights())
                self._taken = 0
            # up to and with the record that fills it
            room = behind + self._bytes_max - self._taken
            until = min(int(np.searchsorted(ends, room, side="left")) + 1, len(placed))
            placed[at:until] = self._partition
            self._taken += int(ends[until - 1]) - behind
            behind = int(ends[until - 1])
            at = until
        return placed

    def _draw(self, weights: Sequence[int]) -> int:
        ends = np.cumsum(weights)
        if not int(ends[-1]):
            return self._lots(len(weights))
        return int(np.searchsorted(ends, self._lots(int(ends[-1])), side="right"))


def place(chunk: ColumnChunk, count: int, topic: str, sticky: Sticky, weights: Weights) -> Rows:
    """int32 partitions of a chunk's rows; ConfigFault for one that the topic does not have."""
    own = chunk.partitions
    if own is not None:
        largest = int(own.max())
        if largest >= count:
            raise ConfigFault(f"topic {topic} has no partition {largest}: it has {count}")
    if chunk.key is None or chunk.key_array is None:
        placed = None
        free = np.ones(chunk.rows, bool)
    else:
        placed = _of_hashes(murmur2(chunk.key, chunk.rows), count)
        free = None
        if chunk.key_array.null_count:
            free = chunk.key_array.is_null().to_numpy(zero_copy_only=False)
    if own is not None:
        placed = own.copy() if placed is None else np.where(own >= 0, own, placed)
        free = None if free is None else free & (own < 0)
    if placed is not None and (free is None or not free.any()):
        return placed
    if placed is None or free is None or free.all():
        return sticky.place(_sizes(chunk), weights)
    rows = np.flatnonzero(free)
    placed[rows] = sticky.place(_sizes(chunk)[rows], weights)
    return placed


def of_keys(keys: pa.Array, count: int) -> Rows:
    """int32 partitions of binary keys, of `count`; those of null mean nothing."""
    return _of_hashes(murmur2(BinaryColumn(keys), len(keys)), count)


def _of_hashes(hashes: NDArray[np.uint32], count: int) -> Rows:
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int32)


def runs(placed: Rows) -> list[tuple[int, None, int, int]]:
    """(partition, None, first, last) of rows that lie next to each other, as `by_partition` has
    them; empty if they are many."""
    changes = np.flatnonzero(placed[1:] != placed[:-1]) + 1
    if len(changes) >= _RUNS_MAX:
        return []
    ends = [0, *changes.tolist(), len(placed)]
    return [(int(placed[low]), None, low, ends[i + 1]) for i, low in enumerate(ends[:-1])]


def by_partition(placed: Rows) -> list[tuple[int, Rows, int, int]]:
    """(partition, rows, first, last) of each partition, rows in their order: `encode`'s arguments.

    `rows` are those of all partitions, sorted.
    """
    # 16 bits are sorted by counting, in one pass
    small = placed.astype(np.uint16) if int(placed.max()) < 1 << 16 else placed
    order = np.argsort(small, kind="stable").astype(np.int32)
    ordered = placed[order]
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    bounds = [0, *changes.tolist(), len(ordered)]
    return [(int(ordered[low]), order, low, bounds[i + 1]) for i, low in enumerate(bounds[:-1])]


def columns_of(chunk: ColumnChunk) -> Columns:
    """A chunk as the encoder takes it."""
    return Columns(chunk.key, chunk.value, chunk.timestamps, chunk.headers, chunk.rows)


def _sizes(chunk: ColumnChunk) -> Ints:
    """About what each record takes, in bytes; headers left out."""
    sizes = np.full(chunk.rows, _RECORD_OVERHEAD, np.int64)
    for column in (chunk.key, chunk.value):
        if column is not None:
            at = np.frombuffer(column.native[1], np.int32)[column.native[3] :]
            sizes += at[1 : chunk.rows + 1] - at[: chunk.rows]
    return sizes
