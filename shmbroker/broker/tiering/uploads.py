"""Copying: closed segments to the store, in their order, and copies out of it that have ended.

Rules of this file:
* Only leaders call it, with a list that is current.
* A segment is copied when all of it is below the last stable offset, and on the disk: what a power
  cut takes from the log must not be in the store either.
* A copy is deleted when the log start above it is durable: a log start that went back after a crash
  would have a hole behind it.
* A segment waits while those before it have used up remote.log.manager.copy.max.bytes.per.second.
* After a failure the list is asked for again: nobody knows what the store has kept of the copy.
"""

from __future__ import annotations

import logging

from shmbroker import logs
from shmbroker.broker.tiering.retention import newest_ms
from shmbroker.errors import StorageFault
from shmbroker.replica.throttle import ReplicationThrottle
from shmbroker.tier.remote_log import RemoteSegment
from shmbroker.wire.api_keys import TIER_COPY, TIER_DELETE
from shmbroker.wire.error_codes import CORRUPT_MESSAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.broker.tiering.remotes import Remote, RemoteTable
    from shmbroker.log.partition_log import PartitionLog
    from shmbroker.log.segment import Segment

logger = logging.getLogger(__name__)

COPIES_MAX = 4
"""The most copies of this worker under way at once; one for a partition."""


class Uploads:
    """The copies that are made and deleted for one broker."""

    def __init__(self, table: RemoteTable) -> None:
        self.table = table
        self.under_way = 0
        self.throttle = ReplicationThrottle()

    def run(self, remote: Remote) -> None:
        """Ask for what is to be done for a partition."""
        self._delete_ended(remote)
        self._maybe_copy(remote)

    def on_tier_lost(self) -> None:
        self.under_way = 0

    def _maybe_copy(self, remote: Remote) -> None:
        """Ask for the next copy, if a segment is ready for it."""
        segment = self._next_segment(remote)
        if segment is None:
            return
        log = remote.partition.log
        try:
            copy = _describe(log, segment)
        except StorageFault:
            self._on_failed(remote)
            return
        body = remote.name() | copy._asdict()
        body["directory"] = log.directory
        body["epochs"] = [
            {"epoch": epoch, "start_offset": start} for epoch, start in log.leader_epochs.entries
        ]
        if self.table.ask(
            TIER_COPY,
            "TierCopy",
            body,
            lambda answer: self._on_copied(remote, segment, copy, answer),
        ):
            remote.copying = segment
            self.under_way += 1
            self.throttle.take(segment.size, self.table.steady_ms())

    def _next_segment(self, remote: Remote) -> Segment | None:
        """The first closed one that the store doesn't have, if it may be copied now."""
        log = remote.partition.log
        if (
            remote.copying is not None
            or remote.is_given_up
            or not log.config.is_copied
            or len(log.segments) < 2
            or self.under_way >= COPIES_MAX
            or not self.throttle.room(self.table.steady_ms())
        ):
            return None
        closed = log.segments[:-1]
        count = remote.log.count_covered(closed, log.local_start_offset)
        if count == len(closed):
            return None
        segment = closed[count]
        end = min(remote.partition.last_stable_offset, log.recovery_point)
        return segment if segment.size and segment.end_offset <= end else None

    def _on_copied(
        self, remote: Remote, segment: Segment, copy: RemoteSegment, body: dict[str, Any]
    ) -> None:
        if remote.copying is segment:
            remote.copying = None
            self.under_way -= 1
        if not self.table.has(remote):
            return
        error = body["error_code"]
        if error == CORRUPT_MESSAGE:
            remote.give_up(body.get("error_message") or "a segment is damaged")
        elif error:
            self._on_failed(remote)
        else:
            remote.succeeded()
            remote.log.add(copy)
            if remote.is_asked:
                remote.copied.append(copy)
            self._retain(remote)
            self._maybe_copy(remote)

    def _retain(self, remote: Remote) -> None:
        """Let go what is copied now. Where the disk refuses, the next look at retention does it."""
        try:
            self.table.store.retain(remote.partition, self.table.now_ms())
        except StorageFault as fault:
            again = "retention is tried again later"
            logger.error("%s; %s", fault, again, extra=logs.seldom(again))

    def _on_failed(self, remote: Remote) -> None:
        remote.failed(self.table.steady_ms())
        remote.is_current = False

    def _delete_ended(self, remote: Remote) -> None:
        """Have copies deleted of which nothing is readable any more."""
        if remote.deleting or remote.is_given_up or self.table.store.is_log_start_moved:
            return
        gone = remote.log.ended_by(remote.partition.log.log_start_offset)
        if not gone:
            return

        def on_answer(body: dict[str, Any]) -> None:
            remote.deleting = []
            if body["error_code"]:
                remote.failed(self.table.steady_ms())
            else:
                remote.succeeded()
                remote.log.remove(gone)

        body = remote.name()
        fields = ("base_offset", "end_offset", "leader_epoch")
        body["segments"] = [{name: getattr(one, name) for name in fields} for one in gone]
        if self.table.ask(TIER_DELETE, "TierDelete", body, on_answer):
            remote.deleting = gone


def _describe(log: PartitionLog, segment: Segment) -> RemoteSegment:
    """What the store's list will say of a segment."""
    max_timestamp = newest_ms(segment)
    log.aborted.check()
    return RemoteSegment(
        segment.base_offset,
        segment.end_offset,
        max(log.leader_epochs.epoch_at(segment.end_offset - 1), 0),
        segment.size,
        max_timestamp,
        log.aborted.has(segment.base_offset),
    )
