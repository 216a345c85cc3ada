"""What the store has of a partition: asked for, and the log brought together with it.

A list is asked for when a partition is placed, by a leader again after each failure, and by a
follower now and then. An empty one is not believed where only the store has the beginning of the
log: a directory that is not mounted looks like that. It counts as a store that fails, and nothing
of the log is given up. What was copied while a list was on its way is taken in as well: the list
may be from before, and the segment gone here. A log whose disk has lost offsets that the store has
goes on behind them if it is empty, and with what the store knows of them; else nothing of it is
copied any more. One that was made anew does not lead before that (`Partition.waits_for_store`):
what it would take until then would stand where the store has something else.
"""

from __future__ import annotations

import logging

from shmbroker import logs
from shmbroker.errors import StorageFault
from shmbroker.log.truncation import begin_at
from shmbroker.tier.remote_log import ABSENT, RemoteLog, RemoteSegment
from shmbroker.wire.api_keys import TIER_LOAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.broker.partition_store import PartitionStore
    from shmbroker.broker.tiering.remotes import Remote, RemoteTable
    from shmbroker.broker.tiering.states import States
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.truncation import StateAt
    from shmbroker.replica.partition import Partition

logger = logging.getLogger(__name__)

FOLLOWER_REFRESH_MS = 30_000


class Lists:
    """Asks for lists.

    on_loaded: told of each that has come. on_decided: of a partition that may lead now.
    """

    def __init__(
        self,
        table: RemoteTable,
        states: States,
        on_loaded: Callable[[Remote], None],
        on_decided: Callable[[Partition], None],
    ) -> None:
        self.table = table
        self.states = states
        self.on_loaded = on_loaded
        self.on_decided = on_decided

    def load(self, remote: Remote) -> None:
        """Ask for its list, unless it is known or on the way."""
        if remote.is_asked or remote.is_current:
            return

        def on_answer(body: dict[str, Any]) -> None:
            remote.is_asked = False
            if not self.table.has(remote):
                return
            if body["error_code"]:
                remote.failed(self.table.steady_ms())
            else:
                damaged = [
                    RemoteSegment(**found, size=0, max_timestamp=ABSENT)
                    for found in body["damaged"]
                ]
                segments = [RemoteSegment(**found) for found in body["segments"]]
                self._take(remote, RemoteLog(segments, damaged))
            self.table.wake(remote.partition.key)

        remote.copied.clear()
        remote.is_asked = self.table.ask(TIER_LOAD, "TierLoad", remote.name(), on_answer)

    def _take(self, remote: Remote, copies: RemoteLog) -> None:
        log = remote.partition.log
        if (
            not (copies.segments or copies.damaged)
            and remote.partition.is_leader
            and log.log_start_offset < log.segments[0].base_offset
        ):
            remote.failed(self.table.steady_ms())
            mounted = "is it mounted, and the right one? It is looked at again"
            logger.error(
                "%s-%d: the remote store has nothing of it, and should have offsets from %d to %d: "
                "%s",
                remote.partition.topic,
                remote.partition.partition,
                log.log_start_offset,
                log.segments[0].base_offset - 1,
                mounted,
                extra=logs.seldom(mounted),
            )
            return
        for copy in remote.copied:
            copies.add(copy)
        partition = remote.partition
        if (partition.is_leader or partition.is_held_back) and _goes_on_behind(log, copies):
            self._begin_behind(remote, copies)
        else:
            self._on_taken(remote, copies)

    def _begin_behind(self, remote: Remote, copies: RemoteLog) -> None:
        """The log is empty, and the store has what it held: let it go on there, once it knows what
        the store does of that."""
        partition = remote.partition
        log, epoch, end = partition.log, partition.leader_epoch, copies.end_offset

        def on_state(state: StateAt | None) -> None:
            remote.is_asked = False
            is_led = partition.is_leader or partition.is_held_back
            if not self.table.has(remote):
                return
            if not (state and is_led and state.offset == end and partition.leader_epoch == epoch):
                remote.failed(self.table.steady_ms())
            elif _goes_on_behind(log, copies):
                logger.warning(
                    "%s-%d: the log is empty, the store has it up to %d: it goes on there%s",
                    partition.topic,
                    partition.partition,
                    end,
                    "" if state.snapshot else ", and does not know which producers wrote before",
                )
                try:
                    begin_at(log, state, max(log.log_start_offset, copies.start_offset))
                except StorageFault as fault:
                    logger.error("%s", fault)
                    remote.failed(self.table.steady_ms())
                    return
                partition.on_begun_behind()
                self._on_taken(remote, copies)
            else:
                self._on_taken(remote, copies)
            self.table.wake(partition.key)

        remote.is_asked = True  # no other list is asked for meanwhile
        self.states.find(remote, end - 1, on_state)

    def _on_taken(self, remote: Remote, copies: RemoteLog) -> None:
        partition = remote.partition
        remote.succeeded()
        remote.log = copies
        remote.is_loaded = remote.is_current = True
        remote.refresh_ms = self.table.steady_ms() + FOLLOWER_REFRESH_MS
        if partition.is_leader:
            reconcile(remote, self.table.store)
            _name_gaps(remote)
        if partition.waits_for_store and (partition.is_held_back or not copies.segments):
            if partition.is_held_back:
                remote.is_current = False  # It is asked for again by the leader.
            self._let_lead(partition)
        self.on_loaded(remote)

    def on_untiered(self, partition: Partition) -> None:
        """Note a partition that has nothing in the store, or not any more."""
        if partition.waits_for_store:
            self._let_lead(partition)

    def _let_lead(self, partition: Partition) -> None:
        partition.waits_for_store = False
        if partition.is_held_back:
            self.on_decided(partition)


def _goes_on_behind(log: PartitionLog, copies: RemoteLog) -> bool:
    """Whether the log is empty, and the store has all that came before."""
    end = copies.end_offset
    return (
        end > log.log_end_offset
        and not any(segment.size for segment in log.segments)
        and copies.covered_end(max(log.log_start_offset, copies.start_offset)) == end
    )


def reconcile(remote: Remote, store: PartitionStore) -> None:
    """Bring the log together with what the remote store has of it."""
    partition, copies = remote.partition, remote.log
    log = partition.log
    if copies.end_offset > log.log_end_offset:
        # Only what is on the disk is copied: the disk has lost it.
        remote.give_up(
            f"the store has offsets up to {copies.end_offset}, "
            f"the log only up to {log.log_end_offset}"
        )
        return
    first = copies.begins_at(log.log_start_offset)
    local = log.segments[0].base_offset
    start = local if first == ABSENT else min(first, local)
    if start > log.log_start_offset:
        store.raise_log_start(partition, start)
    store.is_log_start_moved |= log.is_start_raised  # Also where it was begun anew: `begin_at`.


def _name_gaps(remote: Remote) -> None:
    """Say which records are neither here nor in the store as a whole."""
    log = remote.partition.log
    for start, end in remote.log.gaps(log.log_start_offset, log.segments[0].base_offset):
        if remote.is_lost(end):
            gap = "reads of them get KAFKA_STORAGE_ERROR, and DeleteRecords up to there ends that"
            logger.error(
                "%s-%d: neither here nor whole in the remote store are offsets %d to %d: %s",
                remote.partition.topic,
                remote.partition.partition,
                start,
                end - 1,
                gap,
                extra=logs.seldom(gap),
            )
