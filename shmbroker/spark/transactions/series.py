"""A series of writes, and its runs, one after the other, each in a transaction of its own.

A *series* is what follows each other under one transactional id: the micro-batches of a query, the
writes of a txnAppId. A *run* is one attempt at one of them: it has a transaction of its own, whose
epoch fences what is left of the runs before. Its version (the batch id) is committed with it, as an
offset of a group of the series' name: so a run of what is committed already is recognised.

Threads share a Transaction. `enter`, `commit`, `abort` and `end` take its lock; who calls `terms`,
`identity` or `add` has it by `of`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from shmbroker import clock
from shmbroker.client.addresses import parse_addresses
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import ClusterFault, RefusedFault
from shmbroker.client.producer.settings import ANSWER_S
from shmbroker.client.producer.transactions import UNDECIDED, ProducerTransactions
from shmbroker.client.security import Security
from shmbroker.errors import Fault
from shmbroker.spark.transactions.leases import Leases, LostFault
from shmbroker.spark.transactions.messages import Fields
from shmbroker.wire import error_codes

DOUBT_S = 120.0
"""A task that ended in the midst of a window is begun again by Spark at once, where there is room;
an executor that was lost is noticed, and replaced, in this time."""
ABORT_S = 5.0
"""At the end of the JVM each open transaction is tried to be aborted for so long."""

VERSION_PARTITION = 0
"""Where a topic has the version: each topic has this partition."""


class TransactionSeries(NamedTuple):
    """What a writer says of its series; the same in all of its tasks."""

    name: str
    servers: str
    client_id: str
    timeout_ms: int
    wait_ms: int
    is_remembered: bool
    """Whether its versions are committed, so that a repeated one is recognised."""

    def transactional_id(self) -> str:
        """The transactional id of the series; its group has the same name."""
        return f"spark-shmbroker-sink-{self.name}"


class SeriesState:
    """The series' runs, one after the other."""

    def __init__(self, series: TransactionSeries) -> None:
        self.series = series
        self.changed = threading.Condition()
        self.run = 0
        self.query_run = ""
        self.version = -1
        self.label = ""
        self.is_committed = False
        self.leases = Leases(DOUBT_S)
        self._cluster: Cluster | None = None
        self._client: ProducerTransactions | None = None
        self._now_ms = 0

    @contextmanager
    def of(self, run: int) -> Iterator[Leases]:
        """The run's leases, locked; LostFault if another run has begun."""
        with self.changed:
            if run != self.run:
                raise LostFault("another run of this write has begun")
            try:
                yield self.leases
            finally:
                self.changed.notify_all()

    def enter(
        self,
        run: int,
        query_run: str,
        version: int,
        label: str,
        is_ended: Callable[[], bool],
        security: Security,
    ) -> None:
        """Begin the run, if no task has. Tasks of earlier runs are refused, and of one that is
        aborted: nobody would end what they begin."""
        with self.changed:
            if is_ended():
                raise LostFault("the write was aborted")
            if run < self.run:
                raise LostFault("another run of this write has begun")
            if run == self.run:
                return
            self.leases.fail("another run of this write has begun")
            client = self._fresh(query_run, security)
            try:
                client.init()
            except RefusedFault as fault:
                if error_codes.name_of(error_codes.INVALID_TRANSACTION_TIMEOUT) in fault.text:
                    raise LostFault(
                        f"kafka.transaction.timeout.ms of {self.series.timeout_ms} is more than"
                        " transaction.max.timeout.ms of the brokers: give a smaller one"
                    ) from None
                raise
            self.is_committed = self._was_committed(client, version)
            if not self.is_committed:
                client.begin()
            self.leases = Leases(DOUBT_S)
            self._now_ms = clock.now_ms()
            self.run, self.version, self.label = run, version, label
            self.query_run = query_run
            self.changed.notify_all()

    def terms(self) -> Fields:
        """What a task has to know before it encodes rows."""
        return {"now_ms": self._now_ms, "is_committed": self.is_committed}

    def identity(self) -> Fields:
        """What a task has to know to send."""
        assert self._client is not None
        return {
            "transactional_id": self._client.name,
            "producer_id": self._client.identity.producer_id,
            "epoch": self._client.identity.epoch,
        }

    def add(self, partitions: list[tuple[str, int]]) -> None:
        """Have these partitions in the transaction. Needs the lock."""
        assert self._client is not None
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        for topic, indexes in by_topic.items():
            self._client.add(topic, indexes)

    def commit(self, run: int, tasks: list[int]) -> None:
        """All of these tasks' records, and the version, are there for readers together."""
        with self.of(run) as leases:
            if self.is_committed:
                return
            leases.check_all_done(tasks)
            client = self._client
            assert client is not None
            topics = sorted({topic for topic, _ in leases.partitions})
            if topics and self.series.is_remembered:
                version = {(topic, VERSION_PARTITION): self.version + 1 for topic in topics}
                client.send_offsets(version, client.name)
            client.end(is_commit=True)
            self.is_committed = True
            if topics:
                # It is committed, whatever is answered.
                with contextlib.suppress(ClusterFault, OSError):
                    client.wait_for_markers(self.series.wait_ms / 1000)

    def abort(self, run: int, reason: str) -> None:
        """Abort the run: nothing of it is seen, unless it is committed."""
        with self.of(run) as leases:
            if self.is_committed:
                return
            leases.fail(reason)
            client = self._client
            assert client is not None
            if client.state == UNDECIDED:
                client.init()
            elif client.is_begun:
                client.end(is_commit=False)

    def end(self) -> None:
        """The JVM is gone: abort what is open, in a moment or not at all."""
        if not self.changed.acquire(timeout=ABORT_S):
            return
        try:
            if self._client is not None and self._client.is_begun:
                self._client.wait_at_most(ABORT_S)
                with contextlib.suppress(Fault, OSError):
                    self._client.end(is_commit=False)
        finally:
            self.changed.release()

    def close(self) -> None:
        """End the connections."""
        if self._client is not None:
            self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def _fresh(self, query_run: str, security: Security) -> ProducerTransactions:
        """The client that goes on with its producer id while it is the same run of a query, so
        that it notices when another driver has taken over; else a new one, which takes over."""
        if self._client is not None and query_run and query_run == self.query_run:
            return self._client
        series = self.series
        if self._client is not None:
            self._client.close()
        if self._cluster is not None and self._cluster.security != security:
            self._cluster.close()
            self._cluster = None
        if self._cluster is None:
            addresses = parse_addresses(series.servers, security=security)
            self._cluster = Cluster(addresses, series.client_id, ANSWER_S)
        wait_s = series.wait_ms / 1000
        self._client = ProducerTransactions(
            self._cluster, series.transactional_id(), series.timeout_ms, wait_s
        )
        return self._client

    def _was_committed(self, client: ProducerTransactions, version: int) -> bool:
        if not self.series.is_remembered:
            return False
        last = max(client.committed(client.name).values(), default=0) - 1
        if version < last:
            raise LostFault(
                f"version {version} of {self.series.name} is to be written, but {last} is"
                " committed already: put the checkpoint back as it was, or write to another topic"
                " with a new one"
            )
        return version == last
