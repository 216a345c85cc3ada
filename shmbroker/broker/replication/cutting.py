"""Makes a follower's log fit its leader's: where it is cut, and where it begins again.

    the leader's history parts from this one   (`cut`)            cut there
    it ends before, or begins behind           (`fit`)            cut there, or begun again
    it has that in the remote store alone      (`begin_behind`)   begun where the copies of it end

Rules of this file:
* In a new leader epoch the log is compared first: READ names the epoch of its last batch, and where
  the leader's history parts from it, it is cut (KIP-101, KIP-279, KIP-595).
* A log that begins behind copies knows of what they hold what its leader does, or it begins not
  yet: its leader epochs, and the producers with their sequences and transactions. The store has
  that beside the copies. A replica without it would lead, and show readers what was aborted.
* Never below the high watermark: a leader that lacks what was committed is not followed. It is
  said, the controller is told, and the row waits for another epoch, or for the leader to have it.
  Only where an operator has allowed such leaders is it cut, after what goes was put aside.

Source: Kafka's AbstractFetcherThread, ReplicaFetcherThread, ReplicaFetcherTierStateMachine.
"""

from __future__ import annotations

import logging

from shmbroker import logs
from shmbroker.broker.replication.followed import RETRY_MS, STORAGE_RETRY_MS
from shmbroker.errors import StorageFault
from shmbroker.log.quarantine import put_end_aside
from shmbroker.log.truncation import begin_at, truncate_fully, truncate_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.broker.replication.followed import CopiedRow, Retries
    from shmbroker.log.truncation import StateAt
    from shmbroker.replica.partition import Partition

    FindState = Callable[[Partition, int, Callable[[StateAt | None], None]], None]

logger = logging.getLogger(__name__)

ASIDE_BYTES_MAX = 64 << 20
"""What is copied before a cut below the high watermark, at most: others wait meanwhile."""
AHEAD_RETRY_MS = 1000
"""The time before a leader that lacks what is here is asked again."""


class Cutting:
    """The part of a fetcher that changes what is there already.

    on_storage_fault, on_ahead, find_state: as `ReplicaFetcher` says.
    """

    __slots__ = ("_broker_id", "_find_state", "_on_ahead", "_on_storage_fault", "_retries")

    def __init__(
        self,
        broker_id: int,
        retries: Retries,
        on_storage_fault: Callable[[Partition, StorageFault], None],
        on_ahead: Callable[[Partition], None],
        find_state: FindState,
    ) -> None:
        self._broker_id = broker_id
        self._retries = retries
        self._on_storage_fault = on_storage_fault
        self._on_ahead = on_ahead
        self._find_state = find_state

    def cut(self, row: CopiedRow, end_epoch: int, end_offset: int) -> None:
        """The leader's history parts from this one at the end of that epoch."""
        log = row.partition.log
        own_epoch, own_end = log.leader_epochs.end_offset_for(end_epoch, log.log_end_offset)
        offset = min(end_offset, log.log_end_offset)
        if own_epoch >= 0:
            offset = min(offset, own_end)
        self._truncate(row, max(offset, log.log_start_offset))

    def fit(self, row: CopiedRow, log_start: int, end_offset: int) -> None:
        """The leader doesn't have the offset that this log goes on at."""
        partition = row.partition
        log = partition.log
        if log.log_end_offset < log_start:
            if self._broker_id in partition.in_sync_replicas and partition.high_watermark:
                # Nothing is retained beyond what all in-sync replicas have.
                self._stop(row, log_start)
                return
            logger.warning(
                "%s-%d begins anew at offset %d: its leader has nothing before",
                partition.topic, partition.partition, log_start,
                extra=logs.seldom("a follower begins anew"),
            )  # fmt: skip
            self._change(row, lambda: truncate_fully(log, log_start))
        elif log.log_end_offset > end_offset >= 0:
            self._truncate(row, end_offset)
        else:
            self._retries.again(row, RETRY_MS)

    def begin_behind(self, row: CopiedRow, log_start: int, local_start: int) -> None:
        """The leader has that offset in the remote store alone: go on behind what it has not here.

        The log start offset stays the leader's: who leads serves the rest from the store.
        """
        partition = row.partition
        log = partition.log
        if not partition.log.config.is_tiered or local_start <= log.log_end_offset:
            self._retries.again(row, RETRY_MS)
            return
        epoch = partition.leader_epoch

        def on_state(state: StateAt | None) -> None:
            if row.link.rows.get(row.which) is not row or partition.leader_epoch != epoch:
                return  # it is led here by now, or read again
            if state is None or partition.is_offline:
                self._retries.again(row, STORAGE_RETRY_MS)
            elif state.offset > partition.log.log_end_offset:
                self._begin_at(row, state, log_start)

        self._find_state(partition, local_start - 1, on_state)

    def _begin_at(self, row: CopiedRow, state: StateAt, log_start: int) -> None:
        partition = row.partition
        place = partition.topic, partition.partition, state.offset
        if state.snapshot is None:
            unknown = "the remote store does not say which producers wrote before"
            logger.warning("%s-%d goes on at offset %d: %s", *place, unknown,
                           extra=logs.seldom(unknown))  # fmt: skip
        else:
            logger.info("%s-%d goes on at offset %d: the remote store has what is before", *place)
        self._change(row, lambda: begin_at(partition.log, state, log_start))

    def _truncate(self, row: CopiedRow, offset: int) -> None:
        partition = row.partition
        if offset < partition.high_watermark:
            if not (partition.may_be_cut or partition.log.config.is_unclean_allowed):
                self._stop(row, offset)
                return
            if not self._put_aside(row, offset):
                return
        self._change(row, lambda: truncate_to(partition.log, offset))

    def _stop(self, row: CopiedRow, offset: int) -> None:
        """The leader lacks what was committed: follow it no further, and keep what is here."""
        partition = row.partition
        if row.refused_epoch != partition.leader_epoch:
            row.refused_epoch = partition.leader_epoch
            logger.error(
                "%s-%d: broker %d leads it and lacks what was committed: here it ends at offset "
                "%d, with a high watermark of %d, and would have to be cut to %d. Nothing is cut; "
                "this replica does not follow that leader",
                partition.topic, partition.partition, partition.leader_id,
                partition.log.log_end_offset, partition.high_watermark, offset,
            )  # fmt: skip
            self._on_ahead(partition)
        self._retries.again(row, AHEAD_RETRY_MS)

    def _put_aside(self, row: CopiedRow, offset: int) -> bool:
        """Keep a copy of what is cut below the high watermark; False if there is no room for it."""
        partition = row.partition
        log = partition.log
        try:
            kept = put_end_aside(log, offset, ASIDE_BYTES_MAX)
        except StorageFault as fault:
            self._on_storage_fault(partition, fault)
            self._retries.again(row, STORAGE_RETRY_MS)
            return False
        logger.warning(
            "%s-%d is cut from offset %d to %d, below its high watermark %d: its leader was "
            "elected uncleanly. What goes is %s",
            partition.topic, partition.partition, log.log_end_offset, offset,
            partition.high_watermark, "in quarantine/" if kept else "lost, too much to copy",
        )  # fmt: skip
        return True

    def _change(self, row: CopiedRow, work: Callable[[], Any]) -> None:
        partition = row.partition
        try:
            work()
        except StorageFault as fault:
            self._on_storage_fault(partition, fault)
            self._retries.again(row, STORAGE_RETRY_MS)
            return
        partition.on_truncated()
        row.link.changed[row] = None
