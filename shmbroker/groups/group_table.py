"""The groups that one broker coordinates: found by id, stored, timed, added and removed.

    GroupShard   the groups of one partition of `__consumer_offsets` led here, and their offsets
    GroupTable   the groups of all active shards; what the parts of the coordinator work on

Rules of this file:
* Whatever has changed a group calls `settle`: heartbeats are answered elsewhere no longer than they
  may be, the group's timer is set, and its bytes are counted.
* Nothing here walks all groups. What nobody needs is remembered when it is settled, and goes before
  its time where there is too much of it: ids that nobody has come back with (`make_room`), groups
  with neither members nor offsets (`add`).

Source: Kafka's GroupMetadataManager, CoordinatorRuntime.
"""

from __future__ import annotations

from shmbroker.groups import group_log
from shmbroker.groups.classic.group import ClassicGroup, ClassicSettings
from shmbroker.groups.consumer import records as consumer_records
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.groups.group_memory import GROUP_BYTES_MAX, IDLE_GROUPS_MAX, GroupMemory
from shmbroker.groups.offset_store import OffsetStore
from shmbroker.groups.shards import BaseShard
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.groups.grants import Grants
    from shmbroker.groups.timers import Timers
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig

    AnyGroup = ClassicGroup | ConsumerGroup


class GroupShard(BaseShard):
    """The groups of one partition, and their offsets."""

    __slots__ = ("groups", "store")

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition)
        self.groups: dict[str, AnyGroup] = {}
        self.store = OffsetStore()


class GroupTable:
    """The groups, and what is needed to have and to store one."""

    def __init__(
        self,
        config: BrokerConfig,
        shards: dict[int, GroupShard],
        shard_of: Callable[[str], tuple[GroupShard | None, int]],
        grants: Grants,
        timers: Timers[AnyGroup | GroupShard],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        make_member_id: Callable[[str], str],
        on_appended: Callable[[Partition], None],
    ) -> None:
        """shards, shard_of: those of the coordinator; the rest as it says."""
        self.shards = shards
        self.shard_of = shard_of
        self.grants = grants
        self.timers = timers
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.make_member_id = make_member_id
        self.on_appended = on_appended
        self.memory = GroupMemory(config["shmbroker.groups.bytes"])
        self.settings = ClassicSettings(
            config["group.initial.rebalance.delay.ms"],
            config["group.max.size"],
            min(GROUP_BYTES_MAX, config["shmbroker.groups.bytes"] // 4),
        )
        self.groups: dict[str, AnyGroup] = {}
        self._idle: dict[str, AnyGroup] = {}
        """Groups that had neither members nor offsets when they were last looked at, in order."""
        self._unborn: dict[str, ClassicGroup] = {}
        """Groups of which there were but ids that were given out, the oldest first."""

    # ── finding and making ──────────────────────────────────────────────────────────────────────

    def find(self, group_id: str, may_be_nameless: bool = False) -> tuple[AnyGroup | None, int]:
        """(group, 0), (None, 0) for one that there isn't, or (None, error code)."""
        if not group_id and not may_be_nameless:
            return None, error_codes.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if group is not None and group.owner.partition.is_leader:
            return group, 0
        return None, self.shard_of(group_id)[1]

    def shard_here(self, group_id: str) -> GroupShard:
        """The shard of a group that `find` has looked for without an error."""
        shard, _ = self.shard_of(group_id)
        assert shard is not None, "a request for a group that is not here is refused before"
        return shard

    def new_classic(self, shard: GroupShard, group_id: str) -> ClassicGroup:
        """An empty one; `add` puts it into the table."""
        return ClassicGroup(group_id, self.settings, self.make_member_id, self.steady_ms(), shard)

    # ── storing ─────────────────────────────────────────────────────────────────────────────────

    def append(
        self,
        shard: GroupShard,
        records: list[group_log.Record],
        producer: tuple[int, int] | None = None,
        *,
        is_divisible: bool = False,
    ) -> int:
        """Write records as `group_log.append` does; the error code."""
        error = group_log.append(
            shard.partition, records, self.now_ms(), producer, is_divisible=is_divisible
        )
        self.on_appended(shard.partition)  # an error too may come after some batches
        return error

    def wall_ahead_ms(self) -> int:
        """What the wall clock shows more than the steady one: stamps in records go by it."""
        return self.now_ms() - self.steady_ms()

    def settle(self, group: AnyGroup) -> None:
        """A group may have changed; what it says is stored."""
        if group.grants:
            self.grants.review(group)
        if group.wake_ms < group.scheduled_ms:
            group.scheduled_ms = group.wake_ms
            self.timers.push(group.wake_ms, group)
        if group.held_bytes != group.counted_bytes:
            self.memory.count(group)
        if not group.members and is_unused(group):
            self._idle[group.group_id] = group

    # ── coming and going ────────────────────────────────────────────────────────────────────────

    def add(self, group: AnyGroup) -> None:
        """Add a group that is new, or takes the place of another. The oldest of too many idle
        groups go."""
        replaced = self.groups.get(group.group_id)
        if replaced is not None:
            self.memory.forget(replaced)
        group.owner.groups[group.group_id] = self.groups[group.group_id] = group
        for _ in range(2 if len(self._idle) > IDLE_GROUPS_MAX else 0):
            idle = self._idle.pop(next(iter(self._idle)))
            if self.groups.get(idle.group_id) is idle and is_unused(idle):
                self.erase(idle)

    def add_unborn(self, group: ClassicGroup) -> None:
        """Add a group that is new, and of which there is nothing but an id that was given out."""
        self.add(group)
        self._unborn[group.group_id] = group

    def make_room(self, more: int) -> bool:
        """Whether groups may hold so many bytes more, after those were forgotten, if need be, of
        which there is nothing but ids that nobody has come back with."""
        unborn = self._unborn
        while unborn and (not self.memory.has_room(more) or len(unborn) > IDLE_GROUPS_MAX):
            group_id = next(iter(unborn))
            group = unborn.pop(group_id)
            if self.groups.get(group_id) is group and not group.members and not group.generation_id:
                self._remove(group)
        return self.memory.has_room(more)

    def erase(self, group: AnyGroup) -> int:
        """Delete a group and all that it has committed or is about to; the error code."""
        store: OffsetStore = group.owner.store
        places = {**store.of_group(group.group_id), **store.pending.get(group.group_id, {})}
        gone = [(group.group_id, *each) for each in places]
        records = [group_log.offset_tombstone(*each) for each in gone]
        error = self.append(group.owner, records + _tombstones(group))
        if not error:
            for each in gone:
                store.remove(*each)
            self._remove(group)
        return error

    def forget(self, group: AnyGroup) -> int:
        """Delete a group, not its offsets; the error code."""
        error = self.append(group.owner, _tombstones(group))
        if not error:
            self._remove(group)
        return error

    def _remove(self, group: AnyGroup) -> None:
        """Remove a group; its offsets are not removed here."""
        del group.owner.groups[group.group_id]
        self.drop(group)
        group.on_gone(error_codes.UNKNOWN_MEMBER_ID, self.steady_ms())

    def drop(self, group: AnyGroup) -> None:
        """Let a group be found no more, and its bytes not be counted."""
        self.groups.pop(group.group_id, None)
        self._idle.pop(group.group_id, None)
        self._unborn.pop(group.group_id, None)
        self.memory.forget(group)


def is_unused(group: AnyGroup) -> bool:
    """Whether there is nobody in a group, and nothing left that it would be kept for."""
    return group.is_idle() and group.owner.store.is_empty_of(group.group_id)


def _tombstones(group: AnyGroup) -> list[group_log.Record]:
    if isinstance(group, ConsumerGroup):
        return [consumer_records.encoded(record) for record in group.tombstones()]
    return [group_log.group_record(group.group_id, None)]
