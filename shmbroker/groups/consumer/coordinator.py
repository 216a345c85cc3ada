"""Groups of the new consumer protocol in a `GroupCoordinator`: asked, stored, timed and migrated.

Rules of this file:
* An answer goes out when its records are in the log, and only if they are.
* Where nothing is new the network worker may give the answer again (`shm.standing`): until the
  group stores something, or anything at all changes in the metadata.
* A group changes its protocol in one append: the tombstones of what it was, and what it is now.

Source: Kafka's GroupMetadataManager.
"""

from __future__ import annotations

import logging

from shmbroker.groups.classic.answers import join_refusal
from shmbroker.groups.classic.group import ClassicGroup
from shmbroker.groups.classic.group_value import value_of
from shmbroker.groups.classic.states import EMPTY
from shmbroker.groups.consumer.answers import fault_in_heartbeat, refusal
from shmbroker.groups.consumer.assignors import UNIFORM
from shmbroker.groups.consumer.change import Change, ConsumerSettings, Topics
from shmbroker.groups.consumer.classic_members import (
    on_classic_heartbeat,
    on_classic_join,
    on_classic_sync,
)
from shmbroker.groups.consumer.departures import fence, on_classic_leave, on_leave
from shmbroker.groups.consumer.description import described
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.groups.consumer.heartbeats import is_quiet, on_heartbeat
from shmbroker.groups.consumer.records import encoded, stamped
from shmbroker.groups.consumer.regexes import resolve_regexes
from shmbroker.groups.group_memory import MEMBER_BYTES, names_bytes, protocols_bytes
from shmbroker.groups.migration import (
    STEP_BYTES,
    converting,
    mark_of,
    on_adopted,
    send_away,
    to_classic,
    to_consumer,
)
from shmbroker.ids import random_uuid, uuid_text
from shmbroker.metadata.changes import ConfigChanged, PartitionChanged, TopicCreated, TopicDeleted
from shmbroker.metadata.group_configs import group_config
from shmbroker.metadata.image import GROUP_RESOURCE, MetadataImage
from shmbroker.security.identity import OF_FAMILY
from shmbroker.security.rights import Rights, sees_all
from shmbroker.wire import error_codes
from shmbroker.wire.coordinator_records import GROUP_METADATA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Any

    from shmbroker.groups.classic.execution import Execution
    from shmbroker.groups.consumer.answers import Answer
    from shmbroker.groups.group_log import Record as StoredRecord
    from shmbroker.groups.group_table import GroupShard, GroupTable
    from shmbroker.metadata.changes import MetadataChange
    from shmbroker.security.identity import Identity
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)


class ConsumerCoordinator:
    """The part of a coordinator that knows of `ConsumerGroup`.

    execution: has the effects of classic groups that become groups of this kind, and the reverse.
    """

    def __init__(self, table: GroupTable, execution: Execution, config: BrokerConfig) -> None:
        self._table = table
        self._execution = execution
        self._config = config
        self.settings = ConsumerSettings(
            config["group.consumer.session.timeout.ms"],
            config["group.consumer.heartbeat.interval.ms"],
            config["group.consumer.max.size"],
            tuple(config["group.consumer.assignors"]) or (UNIFORM,),
            config["group.consumer.migration.policy"].lower(),
            config["group.consumer.regex.refresh.interval.ms"],
            config["group.max.size"],
            table.settings.bytes_max,
        )
        self.topics = Topics(MetadataImage(""))
        self.rights = Rights(config, self.topics.image) if config.has_authorizer else None

    def on_image(self, image: MetadataImage, changes: Collection[MetadataChange]) -> None:
        """The metadata image of now, and what is different in it."""
        topics = self.topics
        topics.image = image
        if self.rights is not None:
            self.rights.on_image(image)
        if changes:
            for each in self._table.groups.values():
                if isinstance(each, ConsumerGroup) and each.grants:
                    self._table.grants.withdraw(each)
        for change in changes:
            if isinstance(change, TopicCreated):
                topics.created_offset = topics.changed_offset = image.offset
            elif isinstance(change, TopicDeleted) or (
                isinstance(change, PartitionChanged) and change.before is None
            ):
                topics.changed_offset = image.offset
            elif isinstance(change, ConfigChanged) and change.resource_type == GROUP_RESOURCE:
                for shard in self._table.shards.values():  # some are loaded still
                    group = shard.groups.get(change.name)
                    if isinstance(group, ConsumerGroup):
                        self._configure(group)

    def new_group(self, shard: GroupShard, group_id: str) -> ConsumerGroup:
        """An empty one; it exists once its records do."""
        group = ConsumerGroup(group_id, self.settings, make_member_id, shard)
        self._configure(group)
        return group

    def _configure(self, group: ConsumerGroup) -> None:
        """Settings of its own stand before the broker's."""
        overrides = self.topics.image.config(GROUP_RESOURCE, group.group_id)
        if overrides:
            session = group_config("consumer.session.timeout.ms", overrides, self._config)
            interval = group_config("consumer.heartbeat.interval.ms", overrides, self._config)
        else:
            session = self.settings.session_timeout_ms
            interval = self.settings.heartbeat_interval_ms
        group.session_timeout_ms = session
        group.heartbeat_interval_ms = interval

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def heartbeat(
        self,
        body: dict[str, Any],
        version: int,
        client_id: str,
        client_host: str,
        identity: Identity = OF_FAMILY,
    ) -> Answer:
        """ConsumerGroupHeartbeat: the whole answer. identity: whose topics a regular expression
        may find."""
        fault = fault_in_heartbeat(body, version, self.settings.assignors)
        if fault is not None:
            return refusal(*fault)
        table, group_id, epoch = self._table, body["group_id"], body["member_epoch"]
        group, error = table.find(group_id)
        if error:
            return refusal(error)
        before: list[StoredRecord] = []
        known = group
        if not isinstance(group, ConsumerGroup):
            if epoch != 0:
                return refusal(error_codes.GROUP_ID_NOT_FOUND)
            group, text = self._converted(group, group_id, before)
            if group is None:
                logger.info("group %s stays a classic one: %s", group_id, text)
                return refusal(error_codes.GROUP_ID_NOT_FOUND, text)
        now_ms = table.steady_ms()
        change: Change | None
        names, regex = body["subscribed_topic_names"], body["subscribed_topic_regex"]
        if names or regex:
            brings = MEMBER_BYTES + names_bytes(names or ()) + len(regex or "")
            more = brings - group.bytes_of(body["member_id"], body["instance_id"])
            if not table.make_room(more):
                return refusal(error_codes.COORDINATOR_NOT_AVAILABLE)
        if epoch < 0:
            answer, change = on_leave(
                group, body["member_id"], body["instance_id"], epoch, self.topics
            )
        else:
            answer, change = on_heartbeat(group, body, client_id, client_host, now_ms, self.topics)
        if change is None:
            return answer
        error = self.store(group, change, before, known)
        if error:
            return refusal(error)
        if change.wants_regexes:
            may_see = sees_all if self.rights is None else self.rights.may_see(identity)
            self.store(group, resolve_regexes(group, now_ms, self.topics, may_see))
        return answer

    def grant(
        self, body: dict[str, Any], client_id: str, client_host: str
    ) -> tuple[int, int] | None:
        """What allows to answer this heartbeat, which has just been answered, so again."""
        group = self._table.groups.get(body["group_id"])
        if not isinstance(group, ConsumerGroup) or group.regexes.counts:
            return None  # Expressions are looked at again by the clock.
        member = group.members.get(body["member_id"])
        if member is None or not is_quiet(
            group, member, body, client_id, client_host, self._table.steady_ms(), self.topics
        ):
            return None
        return self._table.grants.grant(group, member.member_id)

    def converts_in_steps(self, body: dict[str, Any], version: int) -> bool:
        """Whether a heartbeat would convert a classic group that is large: `convert` it first."""
        known = self._table.groups.get(body["group_id"])
        return (
            body["member_epoch"] == 0
            and isinstance(known, ClassicGroup)
            and known.state != EMPTY
            and known.held_bytes > AT_ONCE_BYTES
            and fault_in_heartbeat(body, version, self.settings.assignors) is None
        )

    def convert(self, group_id: str) -> Iterator[None]:
        """Make a consumer group of a classic one, in steps, with the members that it has. Where it
        can't be, or changes again and again meanwhile, it stays: the heartbeat finds out why."""
        groups = self._table.groups
        for _ in range(CONVERSIONS_MAX):
            known = groups.get(group_id)
            if not isinstance(known, ClassicGroup) or known.state == EMPTY:
                return
            mark = mark_of(known)
            group, _ = yield from converting(known, self.settings, make_member_id, self.topics)
            if group is None:
                return
            records = [encoded((GROUP_METADATA, {"group": group_id}, None))]
            size = 0
            yield
            for record in group.creation():
                if size > STEP_BYTES:
                    size = 0
                    yield
                records.append(encoded(record))
                size += len(records[-1][1] or b"")
            yield
            if groups.get(group_id) is known and mark_of(known) == mark:
                self._configure(group)
                self._execution.run(known, send_away(known, self._table.steady_ms()))
                self.store(group, Change(), records, known)
                return

    def _converted(
        self, known: ClassicGroup | None, group_id: str, before: list[StoredRecord]
    ) -> tuple[ConsumerGroup | None, str]:
        """A consumer group instead of a classic one or of none, and the records to write before."""
        if known is None or known.state == EMPTY:
            shard = self._table.shard_here(group_id)
            group: ConsumerGroup | None = self.new_group(shard, group_id)
            text = ""
        else:
            group, text = to_consumer(known, self.settings, make_member_id, self.topics)
            if group is not None:
                self._configure(group)
                self._execution.run(known, send_away(known, self._table.steady_ms()))
                before += [encoded(record) for record in group.creation()]
        if known is not None:
            before.insert(0, encoded((GROUP_METADATA, {"group": group_id}, None)))
        return group, text

    def join(
        self,
        group: ConsumerGroup,
        body: dict[str, Any],
        version: int,
        client_id: str,
        client_host: str,
    ) -> Answer:
        """JoinGroup in a group that has members of the new protocol, or had them."""
        protocols = tuple((row["name"], row["metadata"]) for row in body["protocols"])
        brings = MEMBER_BYTES + 2 * protocols_bytes(protocols)  # as they are, and what they mean
        known = group.bytes_of(body["member_id"], body["group_instance_id"])
        if not self._table.make_room(brings - known):
            return join_refusal(error_codes.COORDINATOR_NOT_AVAILABLE, body["member_id"])
        answer, change = on_classic_join(
            group, body, version, client_id, client_host, self._table.steady_ms(), self.topics
        )
        if change is not None and (error := self.store(group, change)):
            return join_refusal(error)
        return answer

    def sync(self, group: ConsumerGroup, body: dict[str, Any]) -> Answer:
        """SyncGroup of a classic member."""
        answer = on_classic_sync(group, body, self._table.steady_ms(), self.topics)
        self._table.settle(group)
        return answer

    def beat(self, group: ConsumerGroup, body: dict[str, Any]) -> int:
        """Heartbeat of a classic member: the error code."""
        error = on_classic_heartbeat(group, body, self._table.steady_ms())
        self._table.settle(group)
        return error

    def leave(self, group: ConsumerGroup, leaving: list[tuple[str, str | None]]) -> list[int]:
        """LeaveGroup of classic members: an error code for each."""
        errors, change = on_classic_leave(group, leaving, self.topics)
        if change is not None and (error := self.store(group, change)):
            return [each or error for each in errors]
        return errors

    def run_due(self, group: ConsumerGroup, now_ms: int) -> None:
        """Fence whom the group has waited for long enough."""
        self._table.grants.see_silent(group, now_ms)
        due = group.due(now_ms)
        if due:
            logger.info(
                "group %s: %s fenced, silent or late",
                group.group_id,
                ", ".join(member.member_id for member in due),
            )
            if self.store(group, fence(group, due, self.topics)):
                # Not written: another try when the others' sessions are over, or a second later.
                group.wake_ms = min(group.wake_ms, now_ms + RETRY_MS)
        self._table.settle(group)

    def describe(self, group_id: str) -> tuple[int, dict[str, Any] | None]:
        """ConsumerGroupDescribe of one: (error code, row)."""
        group, error = self._table.find(group_id)
        if error:
            return error, None
        if not isinstance(group, ConsumerGroup):
            return error_codes.GROUP_ID_NOT_FOUND, None
        return 0, described(group, self.topics.image.topics_by_id)

    # ── storing ─────────────────────────────────────────────────────────────────────────────────

    def store(
        self,
        group: ConsumerGroup,
        change: Change,
        before: Iterable[StoredRecord] = (),
        known: ClassicGroup | ConsumerGroup | None = None,
    ) -> int:
        """Write what a change says, then do it; the error code.

        before: what goes into the log with it, ahead of it.
        known: the group that this one takes the place of, or the group itself; None for a new one.
        """
        table, now_ms = self._table, self._table.steady_ms()
        ahead_ms = table.wall_ahead_ms()
        records = [*before, *(encoded(stamped(record, ahead_ms)) for record in change.records)]
        classic = None
        if change.downgrade is not None:
            classic = to_classic(
                group,
                change.downgrade,
                table.settings,
                table.make_member_id,
                now_ms,
                self.topics,
            )
            key = {"group": group.group_id}
            records.append(
                encoded((GROUP_METADATA, key, value_of(classic, wall_ahead_ms=ahead_ms)))
            )
        if records:
            error = table.append(group.owner, records)
            if error:
                return error
        if classic is not None:
            table.grants.withdraw(group)
            group.on_gone(error_codes.REBALANCE_IN_PROGRESS, now_ms)  # its timer is still there
            table.add(classic)
            assert change.downgrade is not None
            effects = on_adopted(classic, change.downgrade.is_rebalancing, now_ms)
            self._execution.run(classic, effects)
            return 0
        if table.groups.get(group.group_id) is not group:
            if isinstance(known, ClassicGroup):
                gone = known.on_gone(error_codes.REBALANCE_IN_PROGRESS, now_ms)
                self._execution.run(known, gone)
            group.begin_sessions(now_ms)
            table.add(group)
        group.apply(change)
        table.settle(group)
        return 0


RETRY_MS = 1000

AT_ONCE_BYTES = 32 << 10
"""A classic group that holds no more is converted in the heartbeat that asks for it."""

CONVERSIONS_MAX = 3
"""Tries in steps, before a group that changes all the time is converted in one."""


def make_member_id() -> str:
    """Make an id, a uuid, for a member that doesn't make its own."""
    return uuid_text(random_uuid())
