"""Arrow batches in, encoded record batches in a file: all of them, before the first one is sent.

Whoever must know that every row can be encoded, or may not send yet, puts rows here first. Memory
is bounded: open batches take at most `memory_max` bytes, closed ones are in a temporary file that
has no name and goes with its process.

Rule: the same rows in the same order give the same batches, byte for byte: lots come from a seed,
the time of rows without one is given, and what is full by then does not depend on how fast anything
is. So a batch's content can be recognised by its digest when the rows come again.

Sequences, producer id and CRC are not in the file: they come when a batch is sent (`Batch.seal`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from types import TracebackType
from typing import NamedTuple

import numpy as np

from shmbroker import clock
from shmbroker.client.cluster import Cluster
from shmbroker.client.producer.buffers import OpenBatch
from shmbroker.client.producer.columns import ColumnChunk, chunks
from shmbroker.client.producer.delivery import Batch
from shmbroker.client.producer.placement import Sticky, by_partition, columns_of, place, runs
from shmbroker.client.producer.questions import find_topic
from shmbroker.crc32c import crc32c
from shmbroker.ids import TopicPartition
from shmbroker.records import codecs
from shmbroker.records.batch_layout import HEADER_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow as pa

    from shmbroker.client.producer.encoding import Columns, Rows

IN_MEMORY_BYTES = 8 << 20
"""What is smaller makes no file."""

_FIRST_BYTES = 4096
_DIGEST_BYTES = 16


class SpilledBatch(NamedTuple):
    """A batch in the file; `digest`: of all batches of its partition up to this one."""

    at: int
    size: int
    records: int
    base_timestamp: int
    max_timestamp: int
    digest: str


class Spill:
    """Rows of one task; `with Spill(…) as spill`. ConfigFault for rows that can't be taken,
    ClusterFault where a topic can't be found out about within `wait_s`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        batch_size: int,
        compression: str,
        memory_max: int,
        now_ms: int,
        seed: int,
        wait_s: float,
        directory: str | None = None,
    ) -> None:
        """`now_ms`: the time of rows that have none of their own."""
        self._cluster = cluster
        self._batch_size = batch_size
        self._codec = codecs.NAMES.index(compression)
        self._memory_max = memory_max
        self._now_ms = now_ms
        self._wait_s = wait_s
        lots = np.random.default_rng(seed)
        self._lots = lambda count: int(lots.integers(count))
        self._stickies: dict[str, Sticky] = {}
        self._open: dict[TopicPartition, OpenBatch] = {}
        self._memory = 0
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=directory)  # noqa: SIM115
        self._end = 0
        self.batches: dict[TopicPartition, list[SpilledBatch]] = {}
        """What is closed, in the order of the rows."""

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, rows: pa.RecordBatch, topic: str | None) -> None:
        """Encode rows with the columns that `Producer.send` takes."""
        for name, chunk in chunks(rows, topic, self._now_ms):
            self._add(name, chunk)

    def finish(self) -> None:
        """Close what is open: `batches` has everything."""
        for topic_partition in list(self._open):
            self._close(topic_partition)

    def load(self, stored: Sequence[SpilledBatch]) -> list[Batch]:
        """Batches as they are sent, but for what the header says."""
        loaded = []
        now_s = clock.monotonic()
        for one in stored:
            self._file.seek(one.at)
            buffer = bytearray(HEADER_SIZE) + self._file.read(one.size)
            batch = Batch(
                buffer, len(buffer), one.records, one.base_timestamp, one.max_timestamp, now_s
            )
            batch.is_compressed = bool(self._codec)
            loaded.append(batch)
        return loaded

    def _add(self, topic: str, chunk: ColumnChunk) -> None:
        count = len(find_topic(self._cluster, topic, self._wait_s).leaders)
        sticky = self._stickies.get(topic)
        if sticky is None:
            sticky = self._stickies[topic] = Sticky(self._batch_size, self._lots)
        placed = place(chunk, count, topic, sticky, lambda: [1] * count)
        columns = columns_of(chunk)
        for partition, rows, first, last in runs(placed) or by_partition(placed):
            self._append((topic, partition), columns, rows, first, last)

    def _append(
        self,
        topic_partition: TopicPartition,
        columns: Columns,
        rows: Rows | None,
        first: int,
        last: int,
    ) -> None:
        times = columns.timestamps
        while first < last:
            opened = self._open.get(topic_partition)
            if opened is None:
                row = first if rows is None else int(rows[first])
                time = self._now_ms if times is None else int(times[row])
                opened = self._begin(topic_partition, time)
            elif times is None and opened.base_timestamp != self._now_ms:
                times = np.full(columns.rows, self._now_ms)
                columns = columns._replace(timestamps=times)
            count = opened.put(columns, rows, first, last)
            first += count
            if not count:
                self._make_room(topic_partition, opened)

    def _begin(self, topic_partition: TopicPartition, time: int) -> OpenBatch:
        size = min(_FIRST_BYTES, self._batch_size)
        self._take_memory(size)
        opened = OpenBatch(bytearray(size), time, clock.monotonic())
        self._open[topic_partition] = opened
        return opened

    def _make_room(self, topic_partition: TopicPartition, opened: OpenBatch) -> None:
        """Make room in a full batch, up to twice as much; close it where it may not grow."""
        size = len(opened.buffer)
        if opened.count and size >= self._batch_size:
            self._close(topic_partition)
            return
        more = opened.growth(self._batch_size)
        self._take_memory(more)
        if topic_partition in self._open:
            opened.grow(more)
        else:
            self._memory -= more  # it was closed for the memory

    def _take_memory(self, size: int) -> None:
        """Close the largest batches until there is room for so many bytes, or none is open."""
        while self._memory + size > self._memory_max and self._open:
            largest = max(self._open, key=lambda one: (len(self._open[one].buffer), one))
            self._close(largest)
        self._memory += size

    def _close(self, topic_partition: TopicPartition) -> None:
        opened = self._open.pop(topic_partition)
        self._memory -= len(opened.buffer)
        if not opened.count:
            return
        content: bytes | memoryview = memoryview(opened.buffer)[HEADER_SIZE : opened.position]
        crc = crc32c(content)
        if self._codec:
            content = codecs.compress(self._codec, bytes(content))
        before = self.batches.setdefault(topic_partition, [])
        digest = blake2b(before[-1].digest.encode() if before else b"", digest_size=_DIGEST_BYTES)
        times = opened.base_timestamp, opened.max_timestamp
        digest.update(f"{crc} {opened.position} {opened.count} {times}".encode())
        self._file.seek(self._end)
        self._file.write(content)
        before.append(
            SpilledBatch(self._end, len(content), opened.count, *times, digest.hexdigest())
        )
        self._end += len(content)
