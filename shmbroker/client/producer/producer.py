"""Arrow batches in, record batches to the leaders: accumulate, send, try again.

    the caller's thread    columns ─► partition of each row ─► records into the open batch of each
                           partition; full ones are closed and wait
    the sending thread     closed batches ─► compressed, sealed ─► requests to the leaders; answers,
                           retries, leaders that move, batches that lingered

Rules

* One lock for queues, open batches and memory. It is not held while a batch is compressed, and not
  while anybody waits for a broker.
* A batch is closed when the next record does not fit, when it is `linger_ms` old, at a flush, or
  when memory is needed. Only the sending thread touches connections.
* Memory for batches is at most `buffer_memory`, from the first record until the answer; who needs
  more waits. A batch that is larger by itself is alone.
* The first batch that can't be delivered ends the producer, or with transactions the one that is
  under way (an abort begins again, in another epoch): nothing behind it is sent, every call
  raises the DeliveryFault. What a caller is told to be delivered is in the log of all in-sync
  replicas (`acks="all"`).
* A partition is in the transaction, by the coordinator's word, before a record goes into its batch.
* Whatever the end, answers to what was sent are waited for a moment: a request that is read after
  its connection has ended is appended all the same.

Order, retries and what an answer means: `delivery`.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, overload

import numpy as np

from shmbroker import clock
from shmbroker.client.addresses import parse_addresses
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import (
    AuthenticationFault,
    ClusterFault,
    DeliveryFault,
    FencedFault,
)
from shmbroker.client.producer import delivery
from shmbroker.client.producer.columns import (
    ColumnChunk,
    Partitioner,
    Plain,
    choose,
    chunks,
    one_row,
)
from shmbroker.client.producer.connection import LeaderConnection, Sent
from shmbroker.client.producer.delivery import NO_IDENTITY, Batch, Identity, PartitionQueue
from shmbroker.client.producer.encoding import (
    CLOSED,
    COUNT,
    NEWEST,
    POSITION,
    Columns,
    can_scatter,
    encode,
    scatter,
)
from shmbroker.client.producer.placement import Sticky, by_partition, columns_of, place, runs
from shmbroker.client.producer.questions import find_topic, new_producer_id
from shmbroker.client.producer.transactions import (
    FENCED,
    NEW,
    UNDECIDED,
    GroupMetadata,
    Transactions,
    fenced,
)
from shmbroker.client.profiles import entered_by
from shmbroker.client.security import Security
from shmbroker.errors import ConfigFault, Fault, ProtocolFault
from shmbroker.records import codecs
from shmbroker.records.batch_layout import HEADER_SIZE
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime

    from shmbroker.client.producer.encoding import Rows
    from shmbroker.wire.codec import Message

CLIENT_ID = "shmbroker-arrow"
BATCH_BYTES_MIN = 128
REQUEST_BYTES = 4 << 20
"""A request is closed when its batches are this large together."""

RECORD_BYTES_MAX = 64 << 20
"""Brokers close the connection at a request of 100 MiB, so no answer would ever come."""

RETRY_S = 0.05
RECONNECT_S = (0.05, 1.0)
"""The first and the longest rest between two attempts to connect to one broker."""

ANSWER_S = 10.0
"""How long metadata are waited for before another broker is asked."""

SETTLE_S = 1.0
"""At its end a producer waits this long for answers to what it has sent."""

METADATA_AGE_S = 300.0
"""Kafka's metadata.max.age.ms: new partitions are noticed in this time."""

_SLOT_BYTES_MIN = 1024
_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}

TopicPartition = tuple[str, int]


class PartitionWritten(NamedTuple):
    """What a partition took: records, and the first and last offset of them (-1: with acks 0).

    Other producers' records may lie in between.
    """

    records: int
    first_offset: int
    last_offset: int


class Written(NamedTuple):
    """What was delivered so far."""

    records: int
    partitions: dict[TopicPartition, PartitionWritten]


class _Open:
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
        """As `scatter` takes it."""
        end = len(self.buffer)
        return self.position, end, self.count, self.base_timestamp, self.max_timestamp

    def take(self, state: list[int]) -> int:
        """What `scatter` has made of it; how many records came."""
        more = state[COUNT] - self.count
        self.position, self.count, self.max_timestamp = state[POSITION], state[COUNT], state[NEWEST]
        return more


class Producer:
    """Sends Arrow data to topics; `with Producer(…) as producer: producer.send(batch)`.

    `topic`: where everything goes; without it each call names one, or the data has a column topic.
    The options are Kafka's of the same names: `compression` none, gzip, snappy, lz4 or zstd;
    `batch_size` bytes before compression; `linger_ms`; `acks` "all", 1 or 0; `idempotence` (off:
    one request per partition at a time, and what is sent again may be there twice);
    `buffer_memory` bytes; `delivery_timeout_ms` from the batch's first record to its answer;
    `request_timeout_ms` for one answer; `max_block_ms` for metadata and for memory.

    `partitioner(columns, partitions)`: given a RecordBatch of rows of one topic and its number of
    partitions, the partition of each row; null or -1 leaves a row to the default, as does a row's
    own column partition.

    `transactional_id`: everything is sent in transactions (`transaction`, or `begin_transaction`,
    `send_offsets`, `commit_transaction`, `abort_transaction`). The cluster aborts one that is open
    for longer than `transaction_timeout_ms`. FencedFault where another producer has the id since.

    `profile`: TLS, user and password, and bootstrap servers where none are given, by a name of
    `client.profiles`; `security`: Kafka's settings of both, above it.

    ConfigFault for options and data that can't be taken, ClusterFault where the cluster can't be
    asked, DeliveryFault when records could not be delivered. May be used by several threads; a
    send's rows keep their order within a partition.
    """

    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        profile: str | None = None,
        security: Security | Mapping[str, str] | None = None,
        topic: str | None = None,
        compression: str = "none",
        batch_size: int = 256 << 10,
        linger_ms: float = 5,
        acks: str | int = "all",
        idempotence: bool = True,
        buffer_memory: int = 64 << 20,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        max_block_ms: int = 60_000,
        partitioner: Partitioner | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        client_id: str = CLIENT_ID,
        identity: Identity | None = None,
        seed: int | None = None,
    ) -> None:
        """`identity`: a producer id of one's own choice (`written`); with a `transactional_id`,
        that of a transaction which somebody else began, and ends. `seed` is for the lots that
        decide where records without a key go."""
        self._codec = _codec(compression)
        self._acks = _acks(acks)
        if idempotence and self._acks != -1:
            raise ConfigFault(
                f"acks={acks} is not idempotent: give acks='all' or idempotence=False"
            )
        _require_at_least(
            ("batch_size", batch_size, BATCH_BYTES_MIN),
            ("linger_ms", linger_ms, 0),
            ("buffer_memory", buffer_memory, 1),
            ("delivery_timeout_ms", delivery_timeout_ms, 1),
            ("request_timeout_ms", request_timeout_ms, 1),
            ("max_block_ms", max_block_ms, 0),
            ("transaction_timeout_ms", transaction_timeout_ms, 1),
        )
        if transactional_id is not None and not idempotence:
            raise ConfigFault("transactional_id goes with idempotence")
        self._topic = topic
        self._partitioner = partitioner
        self._batch_size = batch_size
        self._linger_s = linger_ms / 1000
        self._memory_max = buffer_memory
        self._delivery_s = delivery_timeout_ms / 1000
        self._request_s = request_timeout_ms / 1000
        self._block_s = max_block_ms / 1000
        self._client_id = client_id
        self._idempotence = idempotence
        self._identity = identity or NO_IDENTITY
        self._next_sequences: dict[TopicPartition, int] = {}
        servers, entering = entered_by(bootstrap_servers, profile, security)
        addresses = parse_addresses(servers, security=entering)
        self.cluster = Cluster(addresses, client_id, min(self._request_s, ANSWER_S))
        self._transactional_id = transactional_id
        self._transactions: Transactions | None = None
        if transactional_id is not None and identity is None:
            self._transactions = Transactions(
                self.cluster, transactional_id, transaction_timeout_ms, self._block_s
            )
        lots = np.random.default_rng(seed)
        self._lots = lambda count: int(lots.integers(count))
        self._stickies: dict[str, Sticky] = {}
        self._begin_filling()
        self._begin_sending()

    def _begin_filling(self) -> None:
        """What callers put records into, and share with the thread that sends."""
        self._lock = threading.Condition()
        self._placing = threading.Lock()  # one send at a time, so that its rows stay together
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._open: dict[PartitionQueue, _Open] = {}
        self._busy: dict[PartitionQueue, None] = {}  # those with closed batches
        self._memory = 0
        self._spare: list[bytearray] = []
        self._closes_all = 0  # who waits for all open batches to be closed
        self._fault: Fault | None = None
        self._is_ending = False
        self._is_closed = False

    def _begin_sending(self) -> None:
        """What the thread that sends goes by; it starts with the first record."""
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector | None = None
        self._bell = -1
        self._is_asleep = False
        self._wakes_s = 0.0  # when it wakes by itself
        self._has_news = False  # since the sending thread made its last plan
        self._connections: dict[int, LeaderConnection] = {}
        self._reconnect: dict[int, tuple[float, float]] = {}  # not before, next rest
        self._wants_metadata = False
        self._metadata_s = 0.0  # not before
        self._metadata_until_s = 0.0

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # --- the caller's thread ---------------------------------------------------------------------

    @overload
    def send(self, data: object, topic: str | None = None) -> int: ...

    @overload
    def send(
        self,
        *,
        key: Plain = None,
        value: Plain = None,
        topic: str | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Mapping[str, bytes | None] | None = None,
    ) -> int: ...

    def send(
        self,
        data: object = None,
        topic: str | None = None,
        *,
        key: Plain = None,
        value: Plain = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        headers: Mapping[str, bytes | None] | None = None,
    ) -> int:
        """Take all rows of `data`; how many they are. They are delivered when `flush` returns.

        Without `data` one record: `key` and `value` are bytes, text or None, `timestamp` a datetime
        or ms since 1970, by default now.

        Returns when the rows are in batches, and waits for memory. ConfigFault for data that can't
        be taken; rows before those that are at fault may have been taken.
        """
        if data is None:
            if key is None and value is None:
                raise ConfigFault("nothing to send: give rows, or one record by key and value")
            data = one_row(key, value, partition, timestamp, headers)
        elif any(one is not None for one in (key, value, partition, timestamp, headers)):
            raise ConfigFault("data has its own columns: give rows, or one record by key and value")
        count = 0
        now_ms = clock.now_ms()
        with self._placing:
            for name, chunk in chunks(data, topic or self._topic, now_ms):
                self._send_chunk(name, chunk, now_ms)
                count += chunk.rows
        return count

    def go_on(self, topic: str, sequences: Mapping[int, int]) -> None:
        """Number a topic's records from these sequences on, by partition; before its first send."""
        for partition, sequence in sequences.items():
            self._next_sequences[topic, partition] = sequence

    def post(self, topic: str, partition: int, sequence: int, batches: Iterable[Batch]) -> None:
        """Send batches that are encoded already, numbered from this sequence on, to a partition of
        which everything that was posted before has landed."""
        find_topic(self.cluster, topic, self._block_s)
        with self._lock:
            self._check()
            if self._thread is None:
                self._start()
            queue = self._queue(topic, partition)
            assert queue.is_idle()
            queue.next_sequence = sequence
            for batch in batches:
                queue.accepted_records += batch.count
                self._memory += batch.size
                queue.add(batch)
            self._busy[queue] = None
            self._ring()

    def wait_for_one(self, posted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of these partitions where all that was posted is delivered: one at least, which is
        waited for. DeliveryFault."""
        queues = [(one, self._queues[one]) for one in posted]
        with self._lock:
            while True:
                self._check()
                landed = [one for one, queue in queues if queue.is_idle()]
                if landed or not queues:
                    return landed
                self._lock.wait()

    def flush(self) -> None:
        """Wait until everything that was sent is delivered; DeliveryFault if it can't be."""
        with self._lock:
            self._closes_all += 1
            try:
                self._ring()
                while self._open or self._busy:
                    self._check()
                    self._lock.wait()
                self._check()
            finally:
                self._closes_all -= 1

    def close(self) -> None:
        """Flush, and end; a transaction that is not committed is aborted."""
        if not self._is_closed:
            try:
                if self._transactions is None:
                    self.flush()
            finally:
                self.abort()

    def abort(self) -> None:
        """End: what is not delivered may be lost, and an open transaction is aborted.

        Nothing more is sent, but for the answers to what was it waits up to SETTLE_S, so that who
        goes on with the same identity finds all that is going to be there.
        """
        if not self._is_closed:
            self._try_abort()
        with self._lock:
            self._is_closed = True
        self._stop()
        if self._transactions is not None:
            self._transactions.close()
        self.cluster.close()

    def _stop(self) -> None:
        """End the sending thread."""
        with self._lock:
            self._is_ending = True
            self._ring()
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # --- transactions, in the caller's thread ----------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """`with producer.transaction(): producer.send(…)` commits at its end, and aborts if it is
        left by an exception, or can't be committed."""
        self.begin_transaction()
        try:
            yield
            if self._transactional().is_begun:
                self.commit_transaction()
        except BaseException:
            self._try_abort()
            raise

    def init_transactions(self) -> None:
        """Take the transactional id: its earlier producers are fenced, and what they have left
        open is aborted. The first `begin_transaction` does it, if nobody has."""
        transactions = self._transactional()
        with self._placing:
            self._check()
            if transactions.is_begun:
                raise ConfigFault("a transaction is under way: commit or abort it first")
            self._new_epoch(transactions)

    def begin_transaction(self) -> None:
        """What is sent from now on is seen by read_committed readers together, or not at all."""
        transactions = self._transactional()
        with self._placing:
            self._check()
            if transactions.state in (NEW, UNDECIDED):
                self._new_epoch(transactions)
            transactions.begin()

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: str | bytes | GroupMetadata
    ) -> None:
        """Commit offsets of a group with the transaction: {(topic, partition): the next to read}.

        `group`: its id; or what its consumer says of its membership (`consumer_group_metadata()` of
        confluent-kafka, `group_metadata()` of kafka-python), so that one whose partitions others
        have taken over is refused (KIP-447). TransactionFault: abort.
        """
        with self._placing:
            self._check()
            with self._noting_fences():
                self._transactional().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Deliver everything and commit.

        DeliveryFault, TransactionFault: it can't be committed, abort it. ClusterFault without an
        answer: it may be committed; the next `begin_transaction` ends what is left.
        """
        transactions = self._transactional()
        with self._placing:
            try:
                self.flush()
            except DeliveryFault:
                transactions.fail()
                raise
            with self._noting_fences():
                transactions.end(is_commit=True)
            for queue in self._queues.values():
                queue.mark()

    def abort_transaction(self) -> None:
        """Drop what is not sent, and abort; nothing of it is seen by read_committed readers.

        `written` forgets it. A fault of this transaction's records is over.
        """
        transactions = self._transactional()
        with self._placing:
            if isinstance(self._fault, FencedFault):
                raise self._fault
            if self._is_closed:
                self._check()
            with self._noting_fences():
                self._drop()
                transactions.end(is_commit=False)
                self._new_epoch(transactions)

    def _transactional(self) -> Transactions:
        if self._transactions is None:
            raise ConfigFault("the producer has no transactional_id: give it one")
        return self._transactions

    def _try_abort(self) -> None:
        """Abort what is open, if that is possible: another fault is under way, or it is the end."""
        if self._transactions is not None and self._transactions.is_begun:
            with suppress(ClusterFault, OSError, ProtocolFault):
                self.abort_transaction()

    def _new_epoch(self, transactions: Transactions) -> None:
        with self._noting_fences():
            self._drop()
            self._identity = transactions.init()

    def _drop(self) -> None:
        """Forget all records that are not delivered, and numbers and faults with them."""
        self._stop()
        with self._lock:
            for queue in self._queues.values():
                queue.restart()
            self._open.clear()
            self._busy.clear()
            self._spare.clear()
            self._memory = 0
            self._connections.clear()
            self._reconnect.clear()
            self._fault = None
            self._is_ending = False
            self._lock.notify_all()

    @contextmanager
    def _noting_fences(self) -> Iterator[None]:
        """Who is fenced can do nothing more."""
        try:
            yield
        except FencedFault as fault:
            with self._lock:
                self._fault = fault
            raise

    def written(self) -> Written:
        """What was delivered so far."""
        with self._lock:
            partitions = {
                key: PartitionWritten(
                    queue.delivered_records, queue.first_offset, queue.last_offset
                )
                for key, queue in sorted(self._queues.items())
                if queue.delivered_records
            }
        return Written(sum(p.records for p in partitions.values()), partitions)

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._is_closed:
            raise ConfigFault("the producer is closed: make another one")

    def _send_chunk(self, topic: str, chunk: ColumnChunk, now_ms: int) -> None:
        self._check()
        if self._transactions is not None:
            self._transactions.check_open()
        if self._thread is None:
            self._start()
        leaders = find_topic(self.cluster, topic, self._block_s).leaders
        sticky = self._stickies.get(topic)
        if sticky is None:
            sticky = self._stickies[topic] = Sticky(self._batch_size, self._lots)

        def weights() -> list[int]:
            return self._weights(topic, leaders)

        if self._partitioner is not None:
            choose(self._partitioner, chunk, len(leaders))
        placed = place(chunk, len(leaders), topic, sticky, weights)
        if self._transactions is not None:
            with self._noting_fences():
                self._transactions.add(topic, np.flatnonzero(np.bincount(placed)).tolist())
        columns = columns_of(chunk)
        row_bytes = _row_bytes(columns)
        parts = runs(placed)
        if not parts and can_scatter(len(leaders)):
            with self._lock:
                self._scatter(topic, len(leaders), placed, columns, now_ms, row_bytes)
            return
        for partition, rows, first, last in parts or by_partition(placed):
            with self._lock:
                queue = self._queue(topic, partition)
                self._append(queue, columns, rows, first, last, now_ms, row_bytes)

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        key = (topic, partition)
        queue = self._queues.get(key)
        if queue is None:
            start = self._next_sequences.get(key, 0)
            queue = self._queues[key] = PartitionQueue(topic, partition, self._idempotence, start)
        return queue

    def _weights(self, topic: str, leaders: list[int]) -> list[int]:
        """What KIP-794 has: as many lots as a queue is shorter than the longest, and one."""
        depths = []
        for partition in range(len(leaders)):
            queue = self._queues.get((topic, partition))
            depths.append(0 if queue is None else queue.depth())
        most = max(depths)
        return [
            most + 1 - depth if leader >= 0 else 0
            for depth, leader in zip(depths, leaders, strict=True)
        ]

    def _scatter(
        self,
        topic: str,
        partitions: int,
        placed: Rows,
        columns: Columns,
        now_ms: int,
        row_bytes: int,
    ) -> None:
        """Rows in their order, each into the open batch of its partition. Needs the lock."""
        queues = [self._queue(topic, partition) for partition in range(partitions)]
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
                        if self._must_wait(self._size_for(want)):
                            break
                        one = opened[partition] = self._begin(queue, want, time)
                    outs[partition], states[partition] = one.buffer, one.state()
            finally:
                for queue, one, state in zip(queues, opened, states.tolist(), strict=True):
                    if one is not None:
                        queue.accepted_records += one.take(state)
            # While it waits others close what is open, so that had to be up to date.
            self._begin(queues[partition], want, time)

    def _append(
        self,
        queue: PartitionQueue,
        columns: Columns,
        rows: Rows | None,
        first: int,
        last: int,
        now_ms: int,
        row_bytes: int,
    ) -> None:
        """Rows into the queue's open batch, and into new ones as it fills."""
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
            count, opened.position, newest = encode(
                opened.buffer,
                opened.position,
                len(opened.buffer),
                opened.count,
                rows,
                first,
                last,
                opened.base_timestamp,
                columns,
            )
            opened.count += count
            opened.max_timestamp = max(opened.max_timestamp, newest)
            first += count
            if not count:
                self._make_room(queue, opened)

    def _make_room(self, queue: PartitionQueue, opened: _Open) -> None:
        """The queue's open batch is full: a larger buffer for it, or none."""
        if len(opened.buffer) < self._batch_size or not opened.count:
            self._grow(opened)
        else:
            self._close_open(queue)
            self._ring()

    def _begin(self, queue: PartitionQueue, want: int, time: int) -> _Open:
        """An open batch for the queue, when there is memory for it."""
        size = self._size_for(want)
        deadline = clock.monotonic() + self._block_s
        while self._must_wait(size):
            self._closes_all += 1
            try:
                self._ring()
                left = deadline - clock.monotonic()
                if left <= 0:
                    raise ConfigFault(
                        f"no memory for another batch in {self._block_s:.0f} s: the brokers do not"
                        f" take what buffer_memory={self._memory_max} holds; raise it, or"
                        " max_block_ms"
                    )
                self._lock.wait(left)
            finally:
                self._closes_all -= 1
            self._check()
        self._check()
        self._memory += size
        buffer = self._spare.pop() if size == self._batch_size and self._spare else bytearray(size)
        now_s = clock.monotonic()
        opened = self._open[queue] = _Open(buffer, time, now_s)
        if not self._is_asleep or self._wakes_s > now_s + self._linger_s:
            self._ring()  # it does not know yet that this batch lingers
        return opened

    def _size_for(self, want: int) -> int:
        """The size of a buffer for so many bytes: a batch's, halved as often as they fit."""
        size = self._batch_size
        while size > _SLOT_BYTES_MIN and size // 2 >= want:
            size //= 2
        return size

    def _must_wait(self, size: int) -> bool:
        """Whether there is no memory for a buffer of this size now."""
        return bool(self._memory) and self._memory + size > self._memory_max

    def _grow(self, opened: _Open) -> None:
        """Twice the room: for more records, or for one that is larger than a batch."""
        size = len(opened.buffer)
        more = size if size >= self._batch_size else min(size, self._batch_size - size)
        if size + more > 2 * RECORD_BYTES_MAX:
            raise ConfigFault(f"a record is larger than {RECORD_BYTES_MAX} bytes")
        opened.buffer = opened.buffer + bytes(more)  # not in place: it may be looked at still
        self._memory += more

    def _close_open(self, queue: PartitionQueue) -> None:
        opened = self._open.pop(queue)
        if not opened.count:
            self._memory -= len(opened.buffer)
            return
        queue.filled_bytes = opened.position
        queue.add(
            Batch(
                opened.buffer,
                opened.position,
                opened.count,
                opened.base_timestamp,
                opened.max_timestamp,
                opened.created_s,
            )
        )
        self._busy[queue] = None

    def _start(self) -> None:
        """The producer id and the sending thread, at the first send."""
        if self._idempotence and self._identity == NO_IDENTITY:
            self._identity = Identity(*new_producer_id(self.cluster, self._block_s))
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._metadata_until_s = clock.monotonic() + METADATA_AGE_S
        self._thread = threading.Thread(target=self._run, name="shmbroker-producer", daemon=True)
        self._thread.start()

    def _ring(self) -> None:
        """Wake the sending thread if it sleeps. Needs the lock."""
        self._has_news = True
        if self._is_asleep:
            self._is_asleep = False
            os.eventfd_write(self._bell, 1)

    # --- the sending thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._settle()
        except Exception as error:
            with self._lock:
                if isinstance(error, AuthenticationFault):
                    self._fault = error
                elif self._fault is None:
                    self._fault = Fault(f"the producer's sending thread ended: {error!r}")
                    self._fault.__cause__ = error
                self._lock.notify_all()
        finally:
            for connection in self._connections.values():
                connection.close()
            assert self._selector is not None
            self._selector.close()
            with self._lock:
                self._is_asleep = False
                os.close(self._bell)

    def _settle(self) -> None:
        """Wait for the answers to what was sent, but not for long."""
        until_s = clock.monotonic() + SETTLE_S
        while any(each.requests for each in self._connections.values()):
            left_s = until_s - clock.monotonic()
            if left_s <= 0:
                break
            self._wait(left_s)

    def _turn(self) -> bool:
        """Close, plan, send, wait, take answers; False: it is over."""
        now_s = clock.monotonic()
        for broker_id, connection in list(self._connections.items()):
            requests = connection.requests
            if requests and now_s - requests[0].sent_s > self._request_s:
                self._lose(broker_id, f"no answer in {self._request_s:.0f} s")
        with self._lock:
            if self._is_ending or self._fault is not None:
                return False
            self._has_news = self._is_asleep = False
            wait_s = self._close_lingering(now_s)
            if self._expire(now_s):
                return False
            plans, retry_s = self._plan(now_s)
            wait_s = min(wait_s, retry_s)
        for broker_id, batches in plans.items():
            self._send(broker_id, batches)
        if self._wants_metadata or now_s > self._metadata_until_s:
            if now_s >= self._metadata_s:
                self._refresh()
                wait_s = 0.0
            else:
                wait_s = min(wait_s, self._metadata_s - now_s)
        with self._lock:
            # After a request there may be room for another.
            self._is_asleep = not plans and not self._has_news
            if not self._is_asleep:
                wait_s = 0.0
            self._wakes_s = clock.monotonic() + wait_s
        self._wait(wait_s)
        return True

    def _close_lingering(self, now_s: float) -> float:
        """Close batches that are old enough; seconds until the next one is."""
        wait_s = 1.0
        for queue, opened in list(self._open.items()):
            left = opened.created_s + self._linger_s - now_s
            if left <= 0 or self._closes_all:
                self._close_open(queue)
            else:
                wait_s = min(wait_s, left)
        return wait_s

    def _expire(self, now_s: float) -> bool:
        """Whether something took too long: it has failed."""
        for queue in self._busy:
            oldest = queue.oldest()
            if oldest is not None and now_s - oldest.created_s > self._delivery_s:
                code = oldest.error
                text = f"not delivered in {self._delivery_s:.0f} s"
                if code:
                    text += f", at last {error_codes.name_of(code)}"
                self._fail(queue, error_codes.REQUEST_TIMED_OUT, text)
                return True
        return False

    def _plan(self, now_s: float) -> tuple[dict[int, Sent], float]:
        """What to send to whom; seconds until a queue may be tried again."""
        plans: dict[int, Sent] = {}
        sizes: dict[int, int] = {}
        wait_s = 1.0
        for queue in list(self._busy):
            if not queue.waiting:
                continue
            leaders = self.cluster.topics[queue.topic].leaders
            leader = leaders[queue.partition] if queue.partition < len(leaders) else -1
            if leader < 0 or leader not in self.cluster.brokers:
                self._wants_metadata = True
                continue
            connection = self._connections.get(leader)
            if connection is not None and (connection.is_writing or not connection.can_send()):
                continue
            not_before = max(queue.retry_s, self._reconnect.get(leader, (0.0, 0.0))[0])
            if not_before > now_s:
                wait_s = min(wait_s, not_before - now_s)
                continue
            if sizes.get(leader, 0) >= REQUEST_BYTES or not queue.is_sendable(leader, now_s):
                continue
            batch = queue.send(leader)
            plans.setdefault(leader, []).append((queue, batch))
            sizes[leader] = sizes.get(leader, 0) + batch.size
            del self._busy[queue]  # to the end: everybody has his turn
            self._busy[queue] = None
        return plans, wait_s

    def _send(self, broker_id: int, batches: Sent) -> None:
        before = after = 0
        for _, batch in batches:
            if batch.frame is None:
                buffer, held = batch.buffer, batch.size
                batch.seal(self._identity, self._codec)
                if batch.buffer is not buffer:
                    # Compressed: the plain records are not needed any more.
                    before += held
                    after += len(batch.buffer)
                    self._keep(buffer)
        if before:
            with self._lock:
                self._memory += after - before
                self._lock.notify_all()
        connection = self._connections.get(broker_id)
        try:
            if connection is None:
                connection = self._connect(broker_id)
            timeout_ms = int(self._request_s * 1000)
            connection.send(batches, self._acks, timeout_ms, clock.monotonic())
        except OSError as error:
            if connection is None:
                self._return(batches)
                self._rest(broker_id)
            else:
                if not connection.requests or connection.requests[-1].batches is not batches:
                    self._return(batches)
                self._lose(broker_id, str(error))
            return
        self._watch(connection)

    def _connect(self, broker_id: int) -> LeaderConnection:
        address = self.cluster.brokers[broker_id]
        name = self._transactional_id
        connection = LeaderConnection(
            broker_id, address, self._client_id, name, self.cluster.security
        )
        self._connections[broker_id] = connection
        assert self._selector is not None
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        return connection

    def _watch(self, connection: LeaderConnection) -> None:
        """Look for what the connection waits for; without acks, what is sent is delivered."""
        assert self._selector is not None
        events = selectors.EVENT_READ
        if connection.is_writing:
            events |= selectors.EVENT_WRITE
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)
        if self._acks == 0 and not connection.is_writing:
            while connection.requests:
                request = connection.requests.popleft()
                with self._lock:
                    for queue, batch in request.batches:
                        self._on_answer(queue, batch, error_codes.NONE, -1)
                    self._lock.notify_all()

    def _wait(self, wait_s: float) -> None:
        assert self._selector is not None
        for key, events in self._selector.select(max(wait_s, 0.0)):
            connection = key.data
            if connection is None:
                os.eventfd_read(self._bell)
                continue
            try:
                if events & selectors.EVENT_WRITE:
                    connection.on_writable()
                if events & selectors.EVENT_READ:
                    for request, answer in connection.on_readable():
                        self._take(request.batches, answer)
            except (OSError, ProtocolFault) as error:
                self._lose(connection.broker_id, str(error))
                continue
            self._watch(connection)
        with self._lock:
            self._is_asleep = False

    def _take(self, batches: Sent, answer: Message) -> None:
        found = {
            (topic["name"], p["index"]): (p["error_code"], p["base_offset"], p["error_message"])
            for topic in answer["responses"]
            for p in topic["partition_responses"]
        }
        with self._lock:
            for queue, batch in batches:
                error, base_offset, text = found.get(
                    (queue.topic, queue.partition), (error_codes.UNKNOWN_SERVER_ERROR, -1, None)
                )
                self._on_answer(queue, batch, error, base_offset, text)
            self._lock.notify_all()

    def _on_answer(
        self,
        queue: PartitionQueue,
        batch: Batch,
        error: int,
        base_offset: int,
        text: str | None = None,
    ) -> None:
        """Needs the lock."""
        if self._fault is not None:
            return
        outcome = queue.on_answer(batch, error, base_offset, clock.monotonic() + RETRY_S)
        if outcome == delivery.DELIVERED:
            self._release(batch)
            if queue.is_idle():
                self._busy.pop(queue, None)
            self._reconnect.pop(queue.broker_id, None)
        elif outcome == delivery.RETURNED:
            if error != error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._wants_metadata = True
        elif outcome == delivery.SPLIT:
            first, second = batch.halves(self._identity, self._codec)
            self._memory += first.size + second.size
            queue.on_split(batch, first, second)
            self._release(batch)
        else:
            self._fail(queue, error, text or error_codes.message_of(error))

    def _lose(self, broker_id: int, reason: str) -> None:
        """A connection ended: what was in flight on it is sent again."""
        connection = self._connections.pop(broker_id)
        assert self._selector is not None
        self._selector.unregister(connection.socket)
        connection.close()
        for request in connection.requests:
            self._return(request.batches)
        self._rest(broker_id)

    def _return(self, batches: Sent) -> None:
        with self._lock:
            for queue, batch in batches:
                if batch.error == error_codes.NONE:
                    batch.error = error_codes.NETWORK_EXCEPTION
                queue.on_returned(batch, 0.0)
        self._wants_metadata = True

    def _rest(self, broker_id: int) -> None:
        first, longest = RECONNECT_S
        rest_s = self._reconnect.get(broker_id, (0.0, first))[1]
        self._reconnect[broker_id] = clock.monotonic() + rest_s, min(2 * rest_s, longest)

    def _refresh(self) -> None:
        """Look up the leaders; not again within RETRY_S."""
        names = {topic for topic, _ in self._queues}
        try:
            self.cluster.refresh(names)
        except (OSError, ProtocolFault):
            pass  # asked again
        else:
            self._wants_metadata = False
            self._metadata_until_s = clock.monotonic() + METADATA_AGE_S
        self._metadata_s = clock.monotonic() + RETRY_S

    def _release(self, batch: Batch) -> None:
        self._memory -= batch.size
        self._keep(batch.buffer)

    def _keep(self, buffer: bytearray) -> None:
        """A buffer of the usual size for the next batch."""
        room = self._memory_max - self._memory
        if len(buffer) == self._batch_size and len(self._spare) < room // self._batch_size:
            self._spare.append(buffer)

    def _fail(self, queue: PartitionQueue, error: int, text: str) -> None:
        """The end: a batch of this queue can't be delivered. Needs the lock."""
        counts = {
            key: (q.delivered_records, q.accepted_records - q.delivered_records)
            for key, q in self._queues.items()
            if q.accepted_records
        }
        unknown = sum(q.undecided() for q in self._queues.values())
        advice = "" if self._transactions is None else "; abort the transaction"
        if self._transactional_id is not None and error in FENCED:
            self._fault = fenced(self._transactional_id)
        else:
            name = error_codes.name_of(error)
            self._fault = DeliveryFault(
                text, queue.topic, queue.partition, name, counts, unknown, advice
            )
        for each in self._queues.values():
            each.clear()
        self._open.clear()
        self._busy.clear()
        self._spare.clear()
        self._memory = 0
        self._lock.notify_all()


def write(
    data: object,
    topic: str | None = None,
    *,
    bootstrap_servers: str | None = None,
    **options: Any,
) -> Written:
    """Write all rows of `data` and wait until they are delivered; what each partition took.

    `data`: pyarrow Table, RecordBatch, RecordBatchReader, or what exports an Arrow stream (polars,
    DuckDB, pandas), with columns key, value, headers, partition, timestamp, topic, of which all
    may be missing. `topic` wins over the column. Options and faults: `Producer`.
    """
    with Producer(bootstrap_servers, topic=topic, **options) as producer:
        producer.send(data)
        producer.flush()
        return producer.written()


def _row_bytes(columns: Columns) -> int:
    """About what a record takes, rounded up."""
    content = 0
    for column in (columns.key, columns.value):
        if column is not None:
            at = np.frombuffer(column.native[1], np.int32)[column.native[3] :]
            content += int(at[columns.rows]) - int(at[0])
    return 16 + content // columns.rows


def _require_at_least(*settings: tuple[str, float, int]) -> None:
    """ConfigFault unless each value, behind its name, is at least the number behind it."""
    for name, value, least in settings:
        if value < least:
            raise ConfigFault(f"{name} is at least {least}, not {value}")


def _codec(compression: str) -> int:
    if compression not in codecs.NAMES:
        raise ConfigFault(f"compression is one of {', '.join(codecs.NAMES)}, not {compression!r}")
    return codecs.NAMES.index(compression)


def _acks(acks: str | int) -> int:
    if str(acks) not in _ACKS:
        raise ConfigFault(f"acks is 'all', 1 or 0, not {acks!r}")
    return _ACKS[str(acks)]
