"""A transactional producer's calls: transactions, and the records that they decide about.

    begin     an epoch, if there is none; then the transaction
    commit    everything delivered ─► the coordinator commits ─► what was delivered stays
    abort     sending ends, records are dropped ─► the coordinator aborts ─► another epoch

What the coordinator is asked, and what may follow what: `transactions`.

Rules

* No send is under way while a transaction begins or ends: both take `placing`.
* Another epoch begins with sequence 0 and nothing on its way, so the sending thread ends first.
* Who is fenced can do nothing more: that fault stays, whichever question brought it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from shmbroker.client.faults import ClusterFault, DeliveryFault, FencedFault
from shmbroker.client.producer.backlog import Backlog
from shmbroker.client.producer.sending import Sending
from shmbroker.client.producer.transactions import (
    NEW,
    UNDECIDED,
    GroupMetadata,
    ProducerTransactions,
)
from shmbroker.errors import ConfigFault, ProtocolFault
from shmbroker.ids import TopicPartition


class Epochs:
    """One producer's transactions; `placing` is held while rows are placed."""

    def __init__(
        self,
        transactions: ProducerTransactions,
        backlog: Backlog,
        sending: Sending,
        placing: threading.Lock,
    ) -> None:
        self.transactions = transactions
        self._backlog = backlog
        self._sending = sending
        self._placing = placing

    def init(self) -> None:
        """Take the transactional id."""
        with self._placing:
            self._backlog.check()
            if self.transactions.is_begun:
                raise ConfigFault("a transaction is under way: commit or abort it first")
            self._new_epoch()

    def begin(self) -> None:
        """Begin a transaction."""
        with self._placing:
            self._backlog.check()
            if self.transactions.state in (NEW, UNDECIDED):
                self._new_epoch()
            self.transactions.begin()

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: str | bytes | GroupMetadata
    ) -> None:
        """Commit offsets of a group with the transaction."""
        with self._placing:
            self._backlog.check()
            with self.noting_fences():
                self.transactions.send_offsets(offsets, group)

    def commit(self) -> None:
        """Deliver everything and commit."""
        with self._placing:
            try:
                self._backlog.flush()
            except DeliveryFault:
                self.transactions.fail()
                raise
            with self.noting_fences():
                self.transactions.end(is_commit=True)
            for queue in self._backlog.queues.values():
                queue.mark()

    def abort(self) -> None:
        """Drop what is not sent, and abort."""
        with self._placing:
            if isinstance(self._backlog.fault, FencedFault):
                raise self._backlog.fault
            if self._backlog.is_closed:
                self._backlog.check()
            with self.noting_fences():
                self._sending.drop()
                self.transactions.end(is_commit=False)
                self._new_epoch()

    def try_abort(self) -> None:
        """Abort what is open, if that is possible: another fault is under way, or it is the end."""
        if self.transactions.is_begun:
            with suppress(ClusterFault, OSError, ProtocolFault):
                self.abort()

    @contextmanager
    def noting_fences(self) -> Iterator[None]:
        """Keep the fault of a fence: a producer that is fenced can do nothing more."""
        try:
            yield
        except FencedFault as fault:
            with self._backlog.lock:
                self._backlog.fault = fault
            raise

    def _new_epoch(self) -> None:
        with self.noting_fences():
            self._sending.drop()
            self._sending.identity = self.transactions.init()
