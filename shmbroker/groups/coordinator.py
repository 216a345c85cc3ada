"""The groups that one broker coordinates: found by id, timed, stored, loaded, expired.

A group belongs to the partition of `__consumer_offsets` that its id hashes to; who leads that
partition coordinates it. Each partition led here has a `GroupShard`: its groups and their offsets.

    GroupCoordinator    loads shards, looks at what is due, tells which groups there are
    ├─ .classics        JoinGroup, SyncGroup, Heartbeat, LeaveGroup    classic/coordinator.py
    ├─ .consumers       groups of the new protocol                     consumer/coordinator.py
    ├─ .offsets         commits, fetches and deletes offsets           offset_coordinator.py
    ├─ .removal         deletes groups, expires offsets                removal.py
    └─ .table           the groups that all of them work on            group_table.py

Rules of these files:
* What is answered is in the log: effects run in order, and a store writes before the next reply.
  Where the log has several replicas, answers are held until the in-sync ones have all that was
  there when they were given (`held_answers`).
* Nothing ever walks all groups but ListGroups, new metadata, a deleted topic, and the expiry of
  offsets, one shard at a time.
* A shard loads a chunk for each turn of its owner; meanwhile its groups get
  COORDINATOR_LOAD_IN_PROGRESS. The same while the owner opens partitions: NOT_COORDINATOR from a
  broker that it was just sent to makes librdkafka give up the committed offsets it asks for.

Source: Kafka's GroupCoordinatorService, GroupCoordinatorShard, CoordinatorRuntime.
"""

from __future__ import annotations

import logging

from shmbroker.groups import group_log
from shmbroker.groups.classic.coordinator import ClassicCoordinator
from shmbroker.groups.classic.execution import Execution
from shmbroker.groups.classic.group import ClassicGroup
from shmbroker.groups.consumer import records as consumer_records
from shmbroker.groups.consumer.coordinator import ConsumerCoordinator
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.groups.grants import Grants
from shmbroker.groups.group_table import GroupShard, GroupTable
from shmbroker.groups.offset_coordinator import OffsetCoordinator
from shmbroker.groups.offset_store import committed_of
from shmbroker.groups.removal import Removal
from shmbroker.groups.shards import Sharded
from shmbroker.groups.timers import Timers
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes
from shmbroker.wire.coordinator_records import GROUP_METADATA, OFFSET_COMMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

    from shmbroker.groups.group_table import AnyGroup
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.shm.standing import StandingAnswers

logger = logging.getLogger(__name__)

REPLAYS_PER_STEP = 100
"""Records or groups between two turns of the worker."""


class GroupCoordinator(Sharded[GroupShard]):
    """Everything about groups that one broker does."""

    WHAT = "groups"

    def __init__(
        self,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        make_member_id: Callable[[str], str],
        on_appended: Callable[[Partition], None],
        standing: StandingAnswers | None = None,
    ) -> None:
        """`on_appended` is told of each partition that got records, to wake who reads it.

        now_ms: what the wall clock shows, which may jump; steady_ms: what members are timed by.
        standing: the table of `shm.standing`, or None for a coordinator that is always asked.
        """
        super().__init__()
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.table = GroupTable(
            config,
            self.shards,
            self.shard_of,
            Grants(standing, steady_ms),
            Timers(self._wake_by, self._is_wanted),
            now_ms,
            steady_ms,
            make_member_id,
            on_appended,
        )
        self.groups = self.table.groups
        self.memory = self.table.memory
        self._execution = Execution(self.table)
        self.removal = Removal(self.table, config)
        self.offsets = OffsetCoordinator(self.table, self.removal, config)
        self.consumers = ConsumerCoordinator(self.table, self._execution, config)
        self.classics = ClassicCoordinator(self.table, self._execution, self.consumers, config)

    # ── partitions ──────────────────────────────────────────────────────────────────────────────

    def _new_shard(self, partition: Partition) -> GroupShard:
        return GroupShard(partition)

    def _on_shard_gone(self, shard: GroupShard) -> None:
        for group in shard.groups.values():
            self.table.drop(group)
            self.table.grants.withdraw(group)
            self._execution.reply(group.on_gone(error_codes.NOT_COORDINATOR, self.steady_ms()))

    def partition_of(self, group_id: str) -> tuple[Partition | None, int]:
        """(the partition that keeps a group here, 0), or (None, error code)."""
        if not group_id:
            return None, error_codes.INVALID_GROUP_ID
        shard, error = self.shard_of(group_id)
        return (None, error) if shard is None else (shard.partition, 0)

    def may_end_transactions(self, partition: Partition) -> int:
        """The error code for who would append a marker to a partition: not while it is loaded."""
        shard = self.shards.get(partition.partition)
        if shard is None or shard.partition is not partition:
            return error_codes.NOT_COORDINATOR
        return 0 if shard.is_active else error_codes.COORDINATOR_LOAD_IN_PROGRESS

    def on_topics_deleted(self, topics: Set[str]) -> None:
        """Begin to remove the offsets of deleted topics: no member will come back for them."""
        self.removal.take_topics(topics)
        self.removal.remove_some()
        self._set_wake()

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def run_due(self) -> None:
        """Load some more, and end what has waited long enough."""
        now_ms = self.steady_ms()
        if self.loading:
            self._load_some(self.loading[0])
        self.removal.remove_some()
        for due_ms, _, what in self.table.timers.take_due(now_ms):
            if not self._is_wanted(due_ms, what):
                continue
            if isinstance(what, GroupShard):
                self.removal.expire(what, now_ms)
            else:
                what.scheduled_ms = NEVER_MS
                if isinstance(what, ConsumerGroup):
                    self.consumers.run_due(what, now_ms)
                else:
                    self.classics.run_due(what, now_ms)
        self._set_wake()

    def _is_wanted(self, due_ms: int, what: AnyGroup | GroupShard) -> bool:
        """Whether this timer is the one that counts, of what is coordinated here."""
        shard = what if isinstance(what, GroupShard) else what.owner
        if self.shards.get(shard.partition.partition) is not shard:
            return False
        if isinstance(what, GroupShard):
            return True
        return due_ms == what.scheduled_ms and shard.groups.get(what.group_id) is what

    def _set_wake(self) -> None:
        is_busy = self.loading or self.removal.has_more
        self.wake_ms = 0 if is_busy else self.table.timers.first_ms

    def _wake_by(self, due_ms: int) -> None:
        if due_ms < self.wake_ms:
            self.wake_ms = due_ms

    # ── loading ─────────────────────────────────────────────────────────────────────────────────

    def _load(self, shard: GroupShard) -> Iterator[None]:
        loader = group_log.Loader(shard.partition)
        while not loader.step():
            yield
        for count, (key, value) in enumerate(loader.latest, 1):
            self._replay(shard, key, value)
            if count % REPLAYS_PER_STEP == 0:
                yield
        for producer_id, offset, key, last_value in loader.pending:
            found = group_log.decode(key, last_value)
            if found is not None and found[0] == OFFSET_COMMIT:
                name, content = found[1:]
                shard.store.put_pending(
                    producer_id,
                    offset,
                    name["group"],
                    name["topic"],
                    name["partition"],
                    committed_of(content) if content else None,
                )
        for group_id in list(shard.store.offsets) + list(shard.store.pending):
            if group_id not in shard.groups:
                shard.groups[group_id] = self.table.new_classic(shard, group_id)
        for count, group in enumerate(shard.groups.values(), 1):
            self._on_loaded(group)
            if count % REPLAYS_PER_STEP == 0:
                yield
        self.groups.update(shard.groups)
        shard.is_active = True
        if shard.groups:
            logger.info(
                "%d groups of %s-%d loaded",
                len(shard.groups),
                shard.partition.topic,
                shard.partition.partition,
            )
        self.removal.watch(shard, self.steady_ms())

    def _replay(self, shard: GroupShard, key: bytes, value: bytes) -> None:
        found = group_log.decode(key, value)
        if found is None:
            return
        record_type, name, content = found
        if record_type in consumer_records.TYPES:
            group_id = name["group_id"]
            group = shard.groups.get(group_id)
            if not isinstance(group, ConsumerGroup):
                group = shard.groups[group_id] = self.consumers.new_group(shard, group_id)
            if record_type == consumer_records.REGEX and content is not None:
                content = consumer_records.moved(content, -self.table.wall_ahead_ms())
            group.replay(record_type, name, content)
            return
        group_id = name["group"]
        if record_type == GROUP_METADATA:
            group = shard.groups[group_id] = self.table.new_classic(shard, group_id)
            group.replay(content, self.table.wall_ahead_ms())
        else:
            shard.store.put(group_id, name["topic"], name["partition"], committed_of(content))

    def _on_loaded(self, group: AnyGroup) -> None:
        if isinstance(group, ConsumerGroup):
            group.begin_sessions(self.steady_ms())
            self.table.settle(group)
        else:
            self._execution.run(group, group.on_loaded(self.steady_ms()))

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    def describe(self, group_id: str) -> tuple[int, ClassicGroup | None]:
        """DescribeGroups: (error code, group); (0, None) if there is no classic one."""
        group, error = self.table.find(group_id, may_be_nameless=True)
        return error, group if isinstance(group, ClassicGroup) else None

    def list_groups(self, states: set[str], types: set[str]) -> tuple[int, list[AnyGroup]]:
        """ListGroups of these states and types, in lower case; all if there are none."""
        if self.loading or self.is_opening:
            return error_codes.COORDINATOR_LOAD_IN_PROGRESS, []
        return 0, [
            group
            for group in self.groups.values()
            if (not types or group.group_type in types)
            and (not states or group.state.lower() in states)
            and group.owner.partition.is_leader
        ]
