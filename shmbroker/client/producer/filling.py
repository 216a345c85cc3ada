"""Rows of columns into the open batch of each partition, in the caller's thread.

    append    rows of one partition that lie together, or are listed
    scatter   rows of many partitions in turn, each to its own, in one pass of the kernel

Either goes on until a batch is full. Then that one gets a larger buffer, or is closed and another
begins, and waits for memory where there is none.

Rules

* A partition's rows keep their order; the caller lets one send in at a time.
* All of it needs the lock of the backlog, which is free while memory is waited for: meanwhile the
  sending thread closes what is open. So an open batch says what is in it before anybody waits, and
  is looked up again behind it.
* Nothing here is done once for each record: the loops turn once for each batch.
"""

from __future__ import annotations

import numpy as np

from shmbroker import clock
from shmbroker.client.producer.backlog import Backlog
from shmbroker.client.producer.buffers import OpenBatch
from shmbroker.client.producer.delivery import PartitionQueue
from shmbroker.client.producer.encoding import CLOSED, Columns, scatter
from shmbroker.client.producer.settings import ProducerSettings
from shmbroker.errors import ConfigFault
from shmbroker.records.batch_layout import HEADER_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.producer.encoding import Rows


class Filling:
    """Fills the open batches of a backlog."""

    def __init__(self, backlog: Backlog, settings: ProducerSettings) -> None:
        self._backlog = backlog
        self._open = backlog.open
        self._buffers = backlog.buffers
        self._batch_size = settings.batch_size
        self._memory_max = settings.memory_max
        self._linger_s = settings.linger_s
        self._block_s = settings.block_s

    def scatter(
        self,
        topic: str,
        partitions: int,
        placed: Rows,
        columns: Columns,
        now_ms: int,
        row_bytes: int,
    ) -> None:
        """Put rows, in their order, each into the open batch of its partition."""
        queues = [self._backlog.queue(topic, partition) for partition in range(partitions)]
        states = np.empty((partitions, len(CLOSED)), np.int64)
        share = HEADER_SIZE + (columns.rows // partitions + 1) * row_bytes
        times = columns.timestamps
        first = 0
        while True:
            opened = [self._open.get(queue) for queue in queues]
            outs = [None if one is None else one.buffer for one in opened]
            states[:] = [CLOSED if one is None else one.state() for one in opened]
            try:
                while True:
                    first = scatter(outs, states, placed, first, columns, now_ms)
                    if first == columns.rows:
                        return
                    partition = int(placed[first])
                    queue, one = queues[partition], opened[partition]
                    time = now_ms if times is None else int(times[first])
                    want = max(share, queue.filled_bytes)
                    if one is not None:
                        queue.accepted_records += one.take(states[partition].tolist())
                        self._make_room(queue, one)
                        one = opened[partition] = self._open.get(queue)
                    if one is None:
                        if self._buffers.must_wait(self._buffers.size_for(want)):
                            break
                        one = opened[partition] = self._begin(queue, want, time)
                    outs[partition], states[partition] = one.buffer, one.state()
            finally:
                for queue, one, state in zip(queues, opened, states.tolist(), strict=True):
                    if one is not None:
                        queue.accepted_records += one.take(state)
            # While it waits others close what is open, so that had to be up to date.
            self._begin(queues[partition], want, time)

    def append(
        self,
        queue: PartitionQueue,
        columns: Columns,
        rows: Rows | None,
        first: int,
        last: int,
        now_ms: int,
        row_bytes: int,
    ) -> None:
        """Put rows into the queue's open batch, and into new ones as it fills."""
        queue.accepted_records += last - first
        while first < last:
            opened = self._open.get(queue)
            times = columns.timestamps
            if opened is None:
                row = first if rows is None else int(rows[first])
                time = now_ms if times is None else int(times[row])
                want = HEADER_SIZE + (last - first) * row_bytes
                # As large as the one before has become: to grow is to copy.
                opened = self._begin(queue, max(want, queue.filled_bytes), time)
            elif times is None and opened.base_timestamp != now_ms:
                columns = columns._replace(timestamps=np.full(columns.rows, now_ms))
            count = opened.put(columns, rows, first, last)
            first += count
            if not count:
                self._make_room(queue, opened)

    def _make_room(self, queue: PartitionQueue, opened: OpenBatch) -> None:
        """Get a larger buffer for the queue's open batch, which is full, or none."""
        if len(opened.buffer) < self._batch_size or not opened.count:
            self._buffers.grow(opened)
        else:
            self._backlog.close_open(queue)
            self._backlog.bell.ring()

    def _begin(self, queue: PartitionQueue, want: int, time: int) -> OpenBatch:
        """An open batch for the queue, when there is memory for it."""
        backlog = self._backlog
        bell = backlog.bell
        size = self._buffers.size_for(want)
        deadline = clock.monotonic() + self._block_s
        while self._buffers.must_wait(size):
            backlog.closes_all += 1
            try:
                bell.ring()
                left = deadline - clock.monotonic()
                if left <= 0:
                    raise ConfigFault(
                        f"no memory for another batch in {self._block_s:.0f} s: the brokers do not"
                        f" take what buffer_memory={self._memory_max} holds; raise it, or"
                        " max_block_ms"
                    )
                backlog.lock.wait(left)
            finally:
                backlog.closes_all -= 1
            backlog.check()
        backlog.check()
        buffer = self._buffers.take(size)
        now_s = clock.monotonic()
        opened = self._open[queue] = OpenBatch(buffer, time, now_s)
        if not bell.is_asleep or bell.wakes_s > now_s + self._linger_s:
            bell.ring()  # it does not know yet that this batch lingers
        return opened


def row_bytes_of(columns: Columns) -> int:
    """About what a record takes, rounded up."""
    content = 0
    for column in (columns.key, columns.value):
        if column is not None:
            at = np.frombuffer(column.native[1], np.int32)[column.native[3] :]
            content += int(at[columns.rows]) - int(at[0])
    return 16 + content // columns.rows
