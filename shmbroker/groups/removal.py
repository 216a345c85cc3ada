"""What goes from a coordinator: groups and offsets that were deleted, or that nobody has used.

Rules of this file:
* What is gone from the log is gone from memory; where it can't be written, nothing has changed.
  Offsets of deleted topics alone go from memory first (`OffsetStore`), and their tombstones follow
  in steps.
* Expiry looks through one shard at a time, when its timer says so.

Source: Kafka's GroupCoordinatorShard, OffsetMetadataManager.
"""

from __future__ import annotations

from collections import deque

from shmbroker.groups import group_log
from shmbroker.groups.classic.states import EMPTY
from shmbroker.groups.group_table import is_unused
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set

    from shmbroker.groups.group_table import GroupShard, GroupTable
    from shmbroker.settings.broker_config import BrokerConfig

REMOVALS_PER_STEP = 2000
"""Offsets of deleted topics: a tombstone takes 4 us."""


class Removal:
    """Removes groups and offsets of one coordinator."""

    def __init__(self, table: GroupTable, config: BrokerConfig) -> None:
        self._table = table
        self._retention_ms = config["offsets.retention.minutes"] * 60_000
        self._retention_check_ms = config["offsets.retention.check.interval.ms"]
        self._going: deque[tuple[GroupShard, list[tuple[str, str, int]]]] = deque()
        """Offsets of deleted topics whose tombstones are still to be written."""

    def delete(self, group_id: str) -> int:
        """DeleteGroups of one: the error code."""
        group, error = self._table.find(group_id, may_be_nameless=True)
        if error or group is None:
            return error or error_codes.GROUP_ID_NOT_FOUND
        if group.state != EMPTY:
            return error_codes.NON_EMPTY_GROUP
        return self._table.erase(group)

    def remove_offsets(self, shard: GroupShard, gone: list[tuple[str, str, int]]) -> int:
        """Remove committed offsets, each given as (group, topic, partition); the error code."""
        records = [group_log.offset_tombstone(*each) for each in gone]
        error = self._table.append(shard, records, is_divisible=True)
        if not error:
            for each in gone:
                shard.store.remove(*each)
        return error

    # ── expiry ──────────────────────────────────────────────────────────────────────────────────

    def watch(self, shard: GroupShard, now_ms: int) -> None:
        """Have a shard's timer set for `expire`."""
        self._table.timers.push(now_ms + self._retention_check_ms, shard)

    def expire(self, shard: GroupShard, now_ms: int) -> None:
        """Drop what nobody has used for too long, and groups of whom nothing is left."""
        table = self._table
        for group in list(shard.groups.values()):
            gone = shard.store.expired(
                group, table.now_ms(), self._retention_ms, table.wall_ahead_ms()
            )
            if gone:
                self.remove_offsets(shard, [(group.group_id, *each) for each in gone])
            if is_unused(group):
                table.erase(group)
        self.watch(shard, now_ms)

    # ── deleted topics ──────────────────────────────────────────────────────────────────────────

    @property
    def has_more(self) -> bool:
        """Whether `remove_some` has something to do."""
        return bool(self._going)

    def take_topics(self, topics: Set[str]) -> None:
        """Take the offsets in deleted topics from memory; one look at all of them finds them."""
        for shard in self._table.shards.values():
            if shard.is_active and (gone := shard.store.take_topics(topics)):
                self._going.append((shard, gone))

    def remove_some(self) -> None:
        """Write some tombstones of deleted topics' offsets, but for what was committed since."""
        if not self._going:
            return
        shard, gone = self._going[0]
        some = gone[-REMOVALS_PER_STEP:]
        del gone[-REMOVALS_PER_STEP:]
        if not gone:
            self._going.popleft()
        if self._table.shards.get(shard.partition.partition) is shard:
            records = [
                group_log.offset_tombstone(*each) for each in some if not shard.store.has(*each)
            ]
            if records:
                self._table.append(shard, records, is_divisible=True)
