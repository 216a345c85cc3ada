"""The groups that one broker coordinates: found by id, timed, stored, loaded, expired.

A group belongs to the partition of `__consumer_offsets` that its id hashes to; who leads that
partition coordinates it. Each partition led here has a `Shard`: its groups and their offsets.

Rules of this file:
* What is answered is in the log: effects run in order, and a store writes before the next reply.
  Where the log has several replicas, answers are held until the in-sync ones have all that was
  there when they were given (`held_answers`).
* One timer for a group, on a heap; a timer that comes too early is set again. Nothing here ever
  walks all groups but ListGroups, a deleted topic, and the expiry of offsets, one shard at a time.
* A shard loads a chunk for each turn of its owner; meanwhile its groups get
  COORDINATOR_LOAD_IN_PROGRESS, and heartbeats 0, so that nobody rejoins for it. The same while the
  owner opens partitions: NOT_COORDINATOR from a broker that it was just sent to makes librdkafka
  give up the committed offsets it asks for.
* A heartbeat in a stable group gets a standing answer (`shm.standing`); whatever changes a group
  goes through `_run`, which withdraws what does not hold any more before it answers anybody.
* Calls are answered through `call.reply(body)` by `join` and `sync`; all else returns its answer.

Source: Kafka's GroupCoordinatorService, GroupCoordinatorShard, CoordinatorRuntime.
"""

from __future__ import annotations

import logging
from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from shmbroker import logs
from shmbroker.errors import Fault
from shmbroker.groups import group_log
from shmbroker.groups.classic.effects import Reply, StoreAssigned, StoreEmptied
from shmbroker.groups.classic.embedded_protocol import CONSUMER
from shmbroker.groups.classic.group import ClassicGroup, ClassicSettings
from shmbroker.groups.classic.group_value import value_of
from shmbroker.groups.classic.joining import on_join
from shmbroker.groups.classic.member import NEVER
from shmbroker.groups.classic.states import EMPTY, STABLE
from shmbroker.groups.classic.syncing import on_sync
from shmbroker.groups.consumer import records as consumer_records
from shmbroker.groups.consumer.coordinator import ConsumerCoordinator
from shmbroker.groups.consumer.group import MEMBER_EPOCH_FROM, ConsumerGroup
from shmbroker.groups.group_memory import (
    GROUP_BYTES_MAX,
    IDLE_GROUPS_MAX,
    GroupMemory,
)
from shmbroker.groups.offset_store import NO_EXPIRY, OffsetStore, committed_of
from shmbroker.groups.shards import BaseShard, Sharded
from shmbroker.wire import error_codes
from shmbroker.wire.coordinator_records import GROUP_METADATA, OFFSET_COMMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

    AnyGroup = ClassicGroup | ConsumerGroup
    from typing import Any

    from shmbroker.groups.caller import Caller
    from shmbroker.groups.classic.effects import Effect, Store
    from shmbroker.groups.offset_store import Committed
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.shm.standing import StandingAnswers

logger = logging.getLogger(__name__)

REPLAYS_PER_STEP = 100
"""Records or groups between two turns of the worker."""
REMOVALS_PER_STEP = 2000
"""Offsets of deleted topics: a tombstone takes 4 us."""
NO_RETENTION = -1
TIME_MAX = 2**63 - 1


class _Timer(NamedTuple):
    """The first in a heap of them is due first."""

    due_ms: int
    sequence: int
    """What is due at the same time goes in the order in which it was set."""
    what: AnyGroup | Shard


class Shard(BaseShard):
    """The groups of one partition, and their offsets."""

    __slots__ = ("groups", "leader_epoch", "next_expiry_ms", "store")

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition)
        self.leader_epoch = partition.leader_epoch
        self.groups: dict[str, AnyGroup] = {}
        self.store = OffsetStore()
        self.next_expiry_ms = 0


class GroupCoordinator(Sharded[Shard]):
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
        self.make_member_id = make_member_id
        self.on_appended = on_appended
        self.standing = standing
        self.memory = GroupMemory(config["shmbroker.groups.bytes"])
        self.settings = ClassicSettings(
            config["group.initial.rebalance.delay.ms"],
            config["group.max.size"],
            min(GROUP_BYTES_MAX, config["shmbroker.groups.bytes"] // 4),
        )
        self.session_timeout_ms_min = config["group.min.session.timeout.ms"]
        self.session_timeout_ms_max = config["group.max.session.timeout.ms"]
        self.metadata_bytes_max = config["offset.metadata.max.bytes"]
        self.retention_ms = config["offsets.retention.minutes"] * 60_000
        self.retention_check_ms = config["offsets.retention.check.interval.ms"]
        self.consumers = ConsumerCoordinator(self, config)
        self.groups: dict[str, AnyGroup] = {}
        """Those of all active shards: `ClassicGroup` or `ConsumerGroup`."""
        self._idle: dict[str, AnyGroup] = {}
        """Groups that had neither members nor offsets when they were last looked at, in order."""
        self._unborn: dict[str, ClassicGroup] = {}
        """Groups of which there were but ids that were given out, the oldest first."""
        self._timers: list[_Timer] = []
        self._going: deque[tuple[Shard, list[tuple[str, str, int]]]] = deque()
        """Offsets of deleted topics whose tombstones are still to be written."""
        self._sequence = 0

    # ── partitions ──────────────────────────────────────────────────────────────────────────────

    def _new_shard(self, partition: Partition) -> Shard:
        return Shard(partition)

    def _on_shard_gone(self, shard: Shard) -> None:
        for group in shard.groups.values():
            self.groups.pop(group.group_id, None)
            self._idle.pop(group.group_id, None)
            self._unborn.pop(group.group_id, None)
            self.withdraw(group)
            for effect in group.on_gone(error_codes.NOT_COORDINATOR, self.steady_ms()):
                if isinstance(effect, Reply):  # nothing is stored of a group that is gone
                    self._reply(effect)
            self.memory.forget(group)

    def on_topics_deleted(self, topics: Set[str]) -> None:
        """Nobody will come back for their offsets; one look at all offsets finds them. Their
        tombstones are written in steps."""
        for shard in self.shards.values():
            if shard.is_active and (gone := shard.store.take_topics(topics)):
                self._going.append((shard, gone))
        self._remove_some()
        self._set_wake()

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def run_due(self) -> None:
        """Load some more, and end what has waited long enough."""
        now_ms = self.steady_ms()
        if self.loading:
            self._load_some(self.loading[0])
        self._remove_some()
        timers = self._timers
        due = []
        while timers and timers[0].due_ms <= now_ms:
            due.append(heappop(timers))
        # Each once: whatever is due again at once has to wait for the next turn.
        for due_ms, _, what in due:
            if isinstance(what, Shard):
                if self.shards.get(what.partition.partition) is what:
                    self._expire_offsets(what, now_ms)
            elif due_ms == what.scheduled_ms:
                what.scheduled_ms = NEVER
                if isinstance(what, ConsumerGroup):
                    self.consumers.run_due(what, now_ms)
                    continue
                if what.grants:
                    self.see_silent(what, now_ms)
                self._run(what, what.on_time(now_ms))
        self._set_wake()

    def _set_wake(self) -> None:
        if self.loading or self._going:
            self.wake_ms = 0
        else:
            self.wake_ms = self._timers[0].due_ms if self._timers else NEVER

    def _push(self, due_ms: int, what: AnyGroup | Shard) -> None:
        self._sequence += 1
        heappush(self._timers, _Timer(due_ms, self._sequence, what))
        if due_ms < self.wake_ms:
            self.wake_ms = due_ms

    def _run(self, group: AnyGroup, effects: list[Effect]) -> None:
        """Have the effects, and those that storing has; then set the group's timer."""
        if group.grants and not group.is_as_granted():
            self.withdraw(group)
        for effect in effects:
            if isinstance(effect, Reply):
                self._reply(effect)
            elif isinstance(group, ClassicGroup):
                error = self._store(group, effect)
                self._run(group, group.on_stored(effect, error, self.steady_ms()))
        if group.wake_ms < group.scheduled_ms:
            group.scheduled_ms = group.wake_ms
            self._push(group.wake_ms, group)
        self.memory.count(group)
        if group.is_idle() and group.owner.store.is_empty_of(group.group_id):
            self._idle[group.group_id] = group

    def _reply(self, effect: Reply) -> None:
        try:
            effect.call.reply(effect.body)
        except Fault:
            # Of one member; the others' answers must go out all the same.
            what = "an answer can't be sent"
            logger.exception("%s", what, extra=logs.seldom(what))

    def _store(self, group: ClassicGroup, store: Store) -> int:
        assignments = store.assignments if isinstance(store, StoreAssigned) else None
        value = value_of(group, assignments, self.wall_ahead_ms())
        shard: Shard = group.owner
        error = self._append(shard, [group_log.group_record(group.group_id, value)])
        if error and isinstance(store, StoreEmptied):
            logger.warning(
                "group %s is empty, which could not be stored: %s",
                group.group_id,
                error_codes.name_of(error),
                extra=logs.seldom("a group's end could not be stored"),
            )
        return error

    def _append(
        self,
        shard: Shard,
        records: list[group_log.Record],
        producer: tuple[int, int] | None = None,
    ) -> int:
        error = group_log.append(shard.partition, records, self.now_ms(), producer)
        self.on_appended(shard.partition)  # an error too may come after some batches
        return error

    def wall_ahead_ms(self) -> int:
        """What the wall clock shows more than the steady one: stamps in records go by it."""
        return self.now_ms() - self.steady_ms()

    # ── loading ─────────────────────────────────────────────────────────────────────────────────

    def _load(self, shard: Shard) -> Iterator[None]:
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
                shard.groups[group_id] = self._new_group(shard, group_id)
        for count, group in enumerate(shard.groups.values(), 1):
            self._run(group, group.on_loaded(self.steady_ms()) or [])
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
        self._push(self.steady_ms() + self.retention_check_ms, shard)

    def _replay(self, shard: Shard, key: bytes, value: bytes) -> None:
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
                content = consumer_records.moved(content, -self.wall_ahead_ms())
            group.replay(record_type, name, content)
            return
        group_id = name["group"]
        if record_type == GROUP_METADATA:
            group = shard.groups[group_id] = self._new_group(shard, group_id)
            group.replay(content, self.wall_ahead_ms())
        else:
            shard.store.put(group_id, name["topic"], name["partition"], committed_of(content))

    def _new_group(self, shard: Shard, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.settings, self.make_member_id, self.steady_ms(), shard)

    # ── finding ─────────────────────────────────────────────────────────────────────────────────

    def _find(self, group_id: str, may_be_nameless: bool = False) -> tuple[AnyGroup | None, int]:
        """(group, 0), (None, 0) for one that there isn't, or (None, error code)."""
        group = self.groups.get(group_id)
        if group is not None and group.owner.partition.is_leader:
            return group, 0
        if not group_id and not may_be_nameless:
            return None, error_codes.INVALID_GROUP_ID
        return None, self.shard_of(group_id)[1]

    # ── members ─────────────────────────────────────────────────────────────────────────────────

    def join(self, call: Caller, body: dict[str, Any], client_id: str, client_host: str) -> None:
        """JoinGroup; the call is answered when the rebalance is over."""
        group_id, member_id = body["group_id"], body["member_id"]
        group, error = self._find(group_id)
        timeout = body["session_timeout_ms"]
        if not group_id:
            error = error_codes.INVALID_GROUP_ID
        elif not self.session_timeout_ms_min <= timeout <= self.session_timeout_ms_max:
            error = error_codes.INVALID_SESSION_TIMEOUT
        elif not error and group is None and member_id:
            error = error_codes.UNKNOWN_MEMBER_ID
        if isinstance(group, ConsumerGroup):
            if not error and group.members:
                version = call.api_version
                call.reply(self.consumers.join(group, body, version, client_id, client_host))
                return
            if not error:  # Nobody is in it: it may become a classic one.
                error = error_codes.UNKNOWN_MEMBER_ID if member_id else self._forget(group)
            group = None
        if error:
            call.reply({"error_code": error, "member_id": member_id} | _NO_GENERATION)
            return
        is_new = group is None
        if group is None:
            shard, _ = self.shard_of(group_id)
            assert shard is not None
            group = self._new_group(shard, group_id)
        effects = on_join(
            group,
            call,
            body,
            call.api_version,
            client_id,
            client_host,
            self.steady_ms(),
            self.make_room,
        )
        if is_new and (group.members or group.pending_joins):
            self._add(group)
            if not group.members:
                self._unborn[group_id] = group
        self._run(group, effects)

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

    def _forget(self, group: ConsumerGroup) -> int:
        """Its records, not its offsets; the error code."""
        records = [consumer_records.encoded(record) for record in group.tombstones()]
        error = self._append(group.owner, records)
        if not error:
            self._remove(group)
        return error

    def _add(self, group: AnyGroup) -> None:
        replaced = self.groups.get(group.group_id)
        if replaced is not None:
            self.memory.forget(replaced)
        group.owner.groups[group.group_id] = self.groups[group.group_id] = group
        for _ in range(2 if len(self._idle) > IDLE_GROUPS_MAX else 0):
            idle: AnyGroup = self._idle.pop(next(iter(self._idle)))
            shard: Shard = idle.owner
            if (
                self.groups.get(idle.group_id) is idle
                and idle.is_idle()
                and shard.store.is_empty_of(idle.group_id)
            ):
                self._delete(idle, self.steady_ms())

    def _remove(self, group: AnyGroup) -> None:
        """It is not a group any more; its offsets are none of this."""
        del group.owner.groups[group.group_id], self.groups[group.group_id]
        self._idle.pop(group.group_id, None)
        self._unborn.pop(group.group_id, None)
        group.on_gone(error_codes.UNKNOWN_MEMBER_ID, self.steady_ms())
        self.memory.forget(group)

    def sync(self, call: Caller, body: dict[str, Any]) -> None:
        """SyncGroup; the call is answered when the leader's assignment is stored."""
        group, error = self._find(body["group_id"])
        if group is None:
            call.reply({"error_code": error or error_codes.UNKNOWN_MEMBER_ID})
            return
        if isinstance(group, ConsumerGroup):
            call.reply(self.consumers.sync(group, body))
            return
        assignments = body["assignments"]
        if assignments and not self.make_room(sum(len(row["assignment"]) for row in assignments)):
            call.reply({"error_code": error_codes.COORDINATOR_NOT_AVAILABLE})
            return
        effects = on_sync(
            group,
            call,
            body["member_id"],
            body["group_instance_id"],
            body["generation_id"],
            body["protocol_type"],
            body["protocol_name"],
            assignments,
            self.steady_ms(),
        )
        self._run(group, effects)

    def heartbeat(self, body: dict[str, Any]) -> tuple[int, tuple[int, int] | None]:
        """Heartbeat: (error code, the grant to answer so again)."""
        group, error = self._find(body["group_id"])
        if group is None:
            if error == error_codes.COORDINATOR_LOAD_IN_PROGRESS:
                return 0, None
            return error or error_codes.UNKNOWN_MEMBER_ID, None
        if isinstance(group, ConsumerGroup):
            return self.consumers.beat(group, body), None
        member_id = body["member_id"]
        error = group.on_heartbeat(
            member_id, body["group_instance_id"], body["generation_id"], self.steady_ms()
        )
        if error or group.state != STABLE:
            return error, None
        return 0, self.grant(group, member_id)

    def grant(self, group: AnyGroup, member_id: str) -> tuple[int, int] | None:
        """(word, value) by which this member's heartbeat may be answered elsewhere, if it may."""
        if self.standing is None:
            return None
        word = group.grants.get(member_id)
        if word is not None:
            return word, self.standing.value(word)
        grant: tuple[int, int] | None = self.standing.grant()
        if grant is not None:
            word, _ = grant
            group.add_grant(member_id, word)
        return grant

    def withdraw(self, group: AnyGroup) -> None:
        """Its members have to ask again."""
        self.see_silent(group, self.steady_ms())
        if self.standing is not None:
            for word in group.grants.values():
                self.standing.withdraw(word)
        group.grants.clear()

    def see_silent(self, group: AnyGroup, now_ms: int) -> None:
        """Take notice of the heartbeats that were answered elsewhere."""
        if self.standing is None:
            return
        for member_id, word in group.grants.items():
            group.see(member_id, now_ms - self.standing.idle_ms(word))

    def leave(self, group_id: str, leaving: list[tuple[str, str | None]]) -> tuple[int, list[int]]:
        """LeaveGroup: (error code of all, error code of each)."""
        group, error = self._find(group_id)
        if error:
            return error, []
        if group is None:
            return 0, [error_codes.UNKNOWN_MEMBER_ID] * len(leaving)
        if isinstance(group, ConsumerGroup):
            return 0, self.consumers.leave(group, leaving)
        errors, effects = group.on_leave(leaving, self.steady_ms())
        self._run(group, effects)
        return 0, errors

    # ── offsets ─────────────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        body: dict[str, Any],
        version: int,
        offsets: list[tuple[str, bytes, dict[str, Any]]],
    ) -> list[int]:
        """OffsetCommit of (topic, topic id, the request's row): an error code for each of them."""
        group_id = body["group_id"]
        generation_id = body["generation_id_or_member_epoch"]
        now_ms = self.steady_ms()
        group, error = self._find(group_id, may_be_nameless=True)
        is_new = group is None
        if not error and group is None:
            if generation_id < 0:
                shard, _ = self.shard_of(group_id)
                assert shard is not None
                group = self._new_group(shard, group_id)
            elif version >= 9:
                error = error_codes.GROUP_ID_NOT_FOUND
            else:
                error = error_codes.ILLEGAL_GENERATION
        if isinstance(group, ConsumerGroup):
            error = group.on_commit(body["member_id"], generation_id, version)
        elif group is not None:
            error = group.on_commit(
                body["member_id"], body["group_instance_id"], generation_id, now_ms
            )
        if error or group is None:
            return [error] * len(offsets)
        retention_ms = body["retention_time_ms"]
        expiry_ms = NO_EXPIRY
        if retention_ms != NO_RETENTION:
            expiry_ms = min(max(self.now_ms() + retention_ms, 0), TIME_MAX)
        return self._commit(group, is_new, offsets, expiry_ms, None)

    def partition_of(self, group_id: str) -> tuple[Partition | None, int]:
        """(the partition that keeps a group here, 0), or (None, error code)."""
        if not group_id:
            return None, error_codes.INVALID_GROUP_ID
        shard, error = self.shard_of(group_id)
        return (None, error) if shard is None else (shard.partition, 0)

    def commit_in_transaction(
        self, body: dict[str, Any], offsets: list[tuple[str, bytes, dict[str, Any]]]
    ) -> list[int]:
        """TxnOffsetCommit of (topic, topic id, the request's row): an error code for each of them.

        They count when `on_marker` says that the transaction is committed.
        """
        group_id, member_id = body["group_id"], body["member_id"]
        generation_id = body["generation_id"]
        now_ms = self.steady_ms()
        group, error = self._find(group_id)
        is_new = group is None
        if not error and group is None:
            if generation_id < 0:
                shard, _ = self.shard_of(group_id)
                assert shard is not None
                group = self._new_group(shard, group_id)
            else:
                error = error_codes.ILLEGAL_GENERATION
        # Before KIP-447 producers name no member.
        is_nameless = generation_id < 0 and not member_id and body["group_instance_id"] is None
        if isinstance(group, ConsumerGroup):
            if not is_nameless:
                error = group.on_commit(member_id, generation_id, MEMBER_EPOCH_FROM)
            if error == error_codes.STALE_MEMBER_EPOCH:
                error = error_codes.ILLEGAL_GENERATION
        elif group is not None:
            error = group.on_commit(
                member_id,
                body["group_instance_id"],
                generation_id,
                now_ms,
                is_transactional=is_nameless,
            )
        if error or group is None:
            return [error] * len(offsets)
        producer = body["producer_id"], body["producer_epoch"]
        return self._commit(group, is_new, offsets, NO_EXPIRY, producer)

    def on_marker(self, partition: Partition, producer_id: int, is_commit: bool) -> None:
        """The marker of a transaction is in a partition's log: what it committed counts."""
        shard = self.shards[partition.partition]
        assert shard.partition is partition and shard.is_active
        for group_id in shard.store.end_pending(producer_id, is_commit):
            group = self.groups.get(group_id)
            if group is not None:
                self._run(group, [])  # nothing may be left of it

    def may_end_transactions(self, partition: Partition) -> int:
        """The error code for who would append a marker to a partition: not while it is loaded."""
        shard = self.shards.get(partition.partition)
        if shard is None or shard.partition is not partition:
            return error_codes.NOT_COORDINATOR
        return 0 if shard.is_active else error_codes.COORDINATOR_LOAD_IN_PROGRESS

    def _commit(
        self,
        group: AnyGroup,
        is_new: bool,
        offsets: list[tuple[str, bytes, dict[str, Any]]],
        expiry_ms: int,
        producer: tuple[int, int] | None,
    ) -> list[int]:
        """Store offsets, of a transaction if it has a producer (id, epoch)."""
        group_id = group.group_id
        now_ms = self.now_ms()
        errors, accepted = [], []
        records: list[group_log.Record] = []
        for topic, topic_id, row in offsets:
            metadata = row["committed_metadata"] or ""
            if len(metadata) > self.metadata_bytes_max:
                errors.append(error_codes.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(0)
            committed: Committed = (
                row["committed_offset"],
                row["committed_leader_epoch"],
                metadata,
                now_ms,
                expiry_ms,
                topic_id,
            )
            index = row["partition_index"]
            key = group_log.offset_key(group_id, topic, index)
            records.append((key, group_log.offset_value(committed)))
            accepted.append((topic, index, committed))
        if records:
            error = self._append(group.owner, records, producer)
            if error:
                return [each or error for each in errors]
            if is_new:
                self._add(group)
            store: OffsetStore = group.owner.store
            end_offset = group.owner.partition.log.log_end_offset
            for topic, index, committed in accepted:
                if producer is None:
                    store.put(group_id, topic, index, committed)
                else:
                    store.put_pending(
                        producer[0], end_offset - 1, group_id, topic, index, committed
                    )
        return errors

    def commit_one(
        self, group: AnyGroup, key: bytes, topic: str, partition: int, committed: Committed
    ) -> int:
        """A commit of one partition that was let in, with the key of its record: the error code."""
        shard: Shard = group.owner
        value = group_log.offset_value(committed)
        error = group_log.append_one(shard.partition, key, value, self.now_ms())
        self.on_appended(shard.partition)
        if not error:
            shard.store.put(group.group_id, topic, partition, committed)
        return error

    def fetch(
        self,
        group_id: str,
        wanted: list[tuple[str, list[int]]] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[int, list[tuple[str, list[tuple[int, int, Committed | None]]]]]:
        """OffsetFetch: (error code, [(topic, [(partition, error code, committed)])]); all if
        `wanted` is None."""
        group, error = self._find(group_id, may_be_nameless=True)
        if not error and isinstance(group, ConsumerGroup):
            error = group.on_fetch(member_id, member_epoch)
        if error:
            return error, []
        store = group.owner.store if group is not None else OffsetStore()
        known = store.of_group(group_id)
        if wanted is None:
            by_topic: dict[str, list[int]] = {}
            for topic, partition in known:
                by_topic.setdefault(topic, []).append(partition)
            wanted = list(by_topic.items())
        unstable = error_codes.UNSTABLE_OFFSET_COMMIT
        found = []
        for topic, partitions in wanted:
            rows: list[tuple[int, int, Committed | None]] = []
            for partition in partitions:
                if require_stable and store.is_unstable(group_id, topic, partition):
                    rows.append((partition, unstable, None))
                else:
                    rows.append((partition, 0, known.get((topic, partition))))
            found.append((topic, rows))
        return 0, found

    def delete_offsets(
        self, group_id: str, offsets: list[tuple[str, int]]
    ) -> tuple[int, list[int]]:
        """OffsetDelete: (error code of all, error code of each)."""
        group, error = self._find(group_id)
        if error or group is None:
            return error or error_codes.GROUP_ID_NOT_FOUND, []
        if group.state != EMPTY and group.protocol_type != CONSUMER:
            return error_codes.NON_EMPTY_GROUP, []
        errors = [
            error_codes.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic) else 0
            for topic, _ in offsets
        ]
        store = group.owner.store
        gone = [
            (group_id, topic, partition)
            for (topic, partition), refused in zip(offsets, errors, strict=True)
            if not refused and (topic, partition) in store.of_group(group_id)
        ]
        if gone:
            error = self._remove_offsets(group.owner, gone)
            if error:
                return error, []
        return 0, errors

    def _remove_offsets(self, shard: Shard, gone: list[tuple[str, str, int]]) -> int:
        error = self._append(shard, [group_log.offset_tombstone(*each) for each in gone])
        if not error:
            for each in gone:
                shard.store.remove(*each)
        return error

    def _remove_some(self) -> None:
        """Write some tombstones of deleted topics' offsets, but for what was committed anew."""
        if not self._going:
            return
        shard, gone = self._going[0]
        some = gone[-REMOVALS_PER_STEP:]
        del gone[-REMOVALS_PER_STEP:]
        if not gone:
            self._going.popleft()
        if self.shards.get(shard.partition.partition) is shard:
            records = [
                group_log.offset_tombstone(*each) for each in some if not shard.store.has(*each)
            ]
            if records:
                self._append(shard, records)

    def _expire_offsets(self, shard: Shard, now_ms: int) -> None:
        """Drop what nobody has used for too long, and groups of whom nothing is left."""
        for group in list(shard.groups.values()):
            gone = shard.store.expired(
                group, self.now_ms(), self.retention_ms, self.wall_ahead_ms()
            )
            if gone:
                self._remove_offsets(shard, [(group.group_id, *each) for each in gone])
            if group.is_idle() and shard.store.is_empty_of(group.group_id):
                self._delete(group, now_ms)
        self._push(now_ms + self.retention_check_ms, shard)

    # ── groups ──────────────────────────────────────────────────────────────────────────────────

    def describe(self, group_id: str) -> tuple[int, ClassicGroup | None]:
        """DescribeGroups: (error code, group); (0, None) if there is no classic one."""
        group, error = self._find(group_id, may_be_nameless=True)
        return error, group if isinstance(group, ClassicGroup) else None

    def list_groups(self, states: set[str], types: set[str]) -> tuple[int, list[Any]]:
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

    def delete(self, group_id: str) -> int:
        """DeleteGroups of one: the error code."""
        group, error = self._find(group_id, may_be_nameless=True)
        if error or group is None:
            return error or error_codes.GROUP_ID_NOT_FOUND
        if group.state != EMPTY:
            return error_codes.NON_EMPTY_GROUP
        return self._delete(group, self.steady_ms())

    def _delete(self, group: AnyGroup, now_ms: int) -> int:
        shard: Shard = group.owner
        store: OffsetStore = shard.store
        places = {**store.of_group(group.group_id), **store.pending.get(group.group_id, {})}
        gone = [(group.group_id, *each) for each in places]
        records = [group_log.offset_tombstone(*each) for each in gone]
        if isinstance(group, ConsumerGroup):
            records += [consumer_records.encoded(record) for record in group.tombstones()]
        else:
            records.append(group_log.group_record(group.group_id, None))
        error = self._append(shard, records)
        if not error:
            for each in gone:
                shard.store.remove(*each)
            self._remove(group)
        return error


_NO_GENERATION: dict[str, Any] = {
    "generation_id": -1,
    "protocol_type": None,
    "protocol_name": None,
    "leader": "",
    "members": [],
}


def described(group: ClassicGroup) -> dict[str, Any]:
    """A row of DescribeGroups; subscriptions are told of a stable group only."""
    is_stable = group.state == STABLE
    protocol = group.protocol_name if is_stable else None
    return {
        "error_code": 0,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol or "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(protocol) if is_stable else b"",
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }
