"""Arrow batches in, record batches to the leaders: the calls that people make.

    the caller's thread    `Producer.send`: columns ─► `placement`: partition of each row
                           ─► `filling`: rows into the open batch of each partition
    both                   `backlog`: open batches, those that wait; `buffers`: their memory
    the sending thread     `sending`: closed batches ─► compressed, sealed ─► requests to the
                           `leaders`; answers, retries, batches that lingered

Rules

* What a caller is told to be delivered is in the log of all in-sync replicas (`acks="all"`).
* The first batch that can't be delivered ends the producer, or with transactions the one that is
  under way (an abort begins again, in another epoch: `epochs`).
* A partition is in the transaction, by the coordinator's word, before a record goes into its batch.
* One send places rows at a time, so that its rows stay together.

Order, retries and what an answer means: `delivery`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, overload

import numpy as np

from shmbroker import clock
from shmbroker.client.addresses import parse_addresses
from shmbroker.client.cluster import Cluster
from shmbroker.client.producer.backlog import Backlog, Written
from shmbroker.client.producer.columns import (
    ColumnChunk,
    Partitioner,
    Plain,
    choose,
    chunks,
    one_row,
)
from shmbroker.client.producer.delivery import NO_IDENTITY, Batch, ProducerIdentity
from shmbroker.client.producer.encoding import can_scatter
from shmbroker.client.producer.epochs import Epochs
from shmbroker.client.producer.filling import Filling, row_bytes_of
from shmbroker.client.producer.placement import Sticky, by_partition, columns_of, place, runs
from shmbroker.client.producer.questions import find_topic
from shmbroker.client.producer.sending import Sending
from shmbroker.client.producer.settings import ANSWER_S, CLIENT_ID, checked
from shmbroker.client.producer.transactions import GroupMetadata, ProducerTransactions
from shmbroker.client.profiles import entered_by
from shmbroker.client.security import Security
from shmbroker.errors import ConfigFault
from shmbroker.ids import TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime


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
        identity: ProducerIdentity | None = None,
        seed: int | None = None,
    ) -> None:
        """`identity`: a producer id of one's own choice (`written`); with a `transactional_id`,
        that of a transaction which somebody else began, and ends. `seed` is for the lots that
        decide where records without a key go."""
        settings = checked(
            compression=compression,
            batch_size=batch_size,
            linger_ms=linger_ms,
            acks=acks,
            idempotence=idempotence,
            buffer_memory=buffer_memory,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            max_block_ms=max_block_ms,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            client_id=client_id,
        )
        self._topic = topic
        self._partitioner = partitioner
        self._batch_size = batch_size
        self._block_s = settings.block_s
        servers, entering = entered_by(bootstrap_servers, profile, security)
        addresses = parse_addresses(servers, security=entering)
        self.cluster = Cluster(addresses, client_id, min(settings.request_s, ANSWER_S))
        transactions: ProducerTransactions | None = None
        if transactional_id is not None and identity is None:
            transactions = ProducerTransactions(
                self.cluster, transactional_id, transaction_timeout_ms, settings.block_s
            )
        lots = np.random.default_rng(seed)
        self._lots = lambda count: int(lots.integers(count))
        self._stickies: dict[str, Sticky] = {}
        self._placing = threading.Lock()  # one send at a time, so that its rows stay together
        self._backlog = Backlog(settings, transactions is not None)
        self._filling = Filling(self._backlog, settings)
        self._sending = Sending(self._backlog, self.cluster, settings, identity or NO_IDENTITY)
        self._epochs: Epochs | None = None
        if transactions is not None:
            self._epochs = Epochs(transactions, self._backlog, self._sending, self._placing)

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
            self._backlog.next_sequences[topic, partition] = sequence

    def post(self, topic: str, partition: int, sequence: int, batches: Iterable[Batch]) -> None:
        """Send batches that are encoded already, numbered from this sequence on, to a partition of
        which everything that was posted before has landed."""
        find_topic(self.cluster, topic, self._block_s)
        with self._backlog.lock:
            self._backlog.check()
            if self._sending.thread is None:
                self._sending.start()
            self._backlog.post(topic, partition, sequence, batches)

    def wait_for_one(self, posted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Wait until all that was posted to one of these partitions is delivered; give all
        partitions where it is. DeliveryFault."""
        return self._backlog.wait_for_one(posted)

    def flush(self) -> None:
        """Wait until everything that was sent is delivered; DeliveryFault if it can't be."""
        self._backlog.flush()

    def close(self) -> None:
        """Flush, and end; a transaction that is not committed is aborted."""
        if not self._backlog.is_closed:
            try:
                if self._epochs is None:
                    self._backlog.flush()
            finally:
                self.abort()

    def abort(self) -> None:
        """End: what is not delivered may be lost, and an open transaction is aborted.

        Nothing more is sent, but for the answers to what was it waits up to SETTLE_S, so that who
        goes on with the same identity finds all that is going to be there.
        """
        if self._epochs is not None and not self._backlog.is_closed:
            self._epochs.try_abort()
        with self._backlog.lock:
            self._backlog.is_closed = True
        self._sending.stop()
        if self._epochs is not None:
            self._epochs.transactions.close()
        self.cluster.close()

    def written(self) -> Written:
        """What was delivered so far."""
        return self._backlog.written()

    # --- transactions, in the caller's thread ----------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """`with producer.transaction(): producer.send(…)` commits at its end, and aborts if it is
        left by an exception, or can't be committed."""
        self.begin_transaction()
        epochs = self._transactional()
        try:
            yield
            if epochs.transactions.is_begun:
                self.commit_transaction()
        except BaseException:
            epochs.try_abort()
            raise

    def init_transactions(self) -> None:
        """Take the transactional id: its earlier producers are fenced, and what they have left
        open is aborted. The first `begin_transaction` does it, if nobody has."""
        self._transactional().init()

    def begin_transaction(self) -> None:
        """What is sent from now on is seen by read_committed readers together, or not at all."""
        self._transactional().begin()

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: str | bytes | GroupMetadata
    ) -> None:
        """Commit offsets of a group with the transaction: {(topic, partition): the next to read}.

        `group`: its id; or what its consumer says of its membership (`consumer_group_metadata()` of
        confluent-kafka, `group_metadata()` of kafka-python), so that one whose partitions others
        have taken over is refused (KIP-447). TransactionFault: abort.
        """
        self._backlog.check()
        self._transactional().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Deliver everything and commit.

        DeliveryFault, TransactionFault: it can't be committed, abort it. ClusterFault without an
        answer: it may be committed; the next `begin_transaction` ends what is left.
        """
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Drop what is not sent, and abort; nothing of it is seen by read_committed readers.

        `written` forgets it. A fault of this transaction's records is over.
        """
        self._transactional().abort()

    def _transactional(self) -> Epochs:
        if self._epochs is None:
            raise ConfigFault("the producer has no transactional_id: give it one")
        return self._epochs

    # --- rows ------------------------------------------------------------------------------------

    def _send_chunk(self, topic: str, chunk: ColumnChunk, now_ms: int) -> None:
        backlog = self._backlog
        epochs = self._epochs
        backlog.check()
        if epochs is not None:
            epochs.transactions.check_open()
        if self._sending.thread is None:
            self._sending.start()
        leaders = find_topic(self.cluster, topic, self._block_s).leaders
        sticky = self._stickies.get(topic)
        if sticky is None:
            sticky = self._stickies[topic] = Sticky(self._batch_size, self._lots)

        def weights() -> list[int]:
            return backlog.weights(topic, leaders)

        if self._partitioner is not None:
            choose(self._partitioner, chunk, len(leaders))
        placed = place(chunk, len(leaders), topic, sticky, weights)
        if epochs is not None:
            with epochs.noting_fences():
                epochs.transactions.add(topic, np.flatnonzero(np.bincount(placed)).tolist())
        columns = columns_of(chunk)
        row_bytes = row_bytes_of(columns)
        parts = runs(placed)
        if not parts and can_scatter(len(leaders)):
            with backlog.lock:
                self._filling.scatter(topic, len(leaders), placed, columns, now_ms, row_bytes)
            return
        for partition, rows, first, last in parts or by_partition(placed):
            with backlog.lock:
                queue = backlog.queue(topic, partition)
                self._filling.append(queue, columns, rows, first, last, now_ms, row_bytes)


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
