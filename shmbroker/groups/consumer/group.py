"""One group of the new consumer protocol (KIP-848): members, epochs, and what each of them reads.

    group epoch          +1 when members, subscriptions or their topics change
    assignment epoch     the group epoch that the target assignment was made for
    member epoch         the assignment epoch that the member has come to

    heartbeat ──► member kept or made ──► group epoch ──► target assignment ──► member reconciled
                  MEMBER, REGEX           EPOCH           TARGET, TARGET_EPOCH   CURRENT
    heartbeats    admission               targets         targets                targets, member

    Empty ──► Assigning (group epoch is ahead) ──► Reconciling (members are behind) ──► Stable

This file is what a group is; what happens to it is in the files named above, and in `regexes`,
`departures` and `classic_members`. Members of the classic protocol take part: their generation is
their member epoch, and their assignment comes from here instead of from a leader.

Rules of this file:
* Pure: time and topics come in as arguments. A request changes nothing; it returns its answer and
  a `Change`, which the owner stores and then hands to `apply`. Records are replayed there, as after
  a restart: what is in memory is what is in the log.
* Besides, there are deadlines and what the owner notes: they are lost with the coordinator.
* A partition has one owner: who has it assigned, or has still to give it up.
* `epoch >= assignment_epoch >=` every member's epoch.

Source: KIP-848; Kafka's ConsumerGroup.
"""

from __future__ import annotations

from shmbroker.groups.classic.embedded_protocol import CONSUMER
from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.member import LEFT_EPOCH, UNREVOKED, ClassicPart, ConsumerMember
from shmbroker.groups.consumer.regexes import Regexes
from shmbroker.groups.group_memory import GROUP_BYTES
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from shmbroker.groups.classic.effects import Effect
    from shmbroker.groups.consumer.assignors import Assignment
    from shmbroker.groups.consumer.change import Change, ConsumerSettings
    from shmbroker.groups.group_table import GroupShard

# States of the group, as clients read them.
EMPTY = "Empty"
ASSIGNING = "Assigning"
RECONCILING = "Reconciling"
STABLE_GROUP = "Stable"

TYPE_CONSUMER = "consumer"

MEMBER_EPOCH_FROM = 9
"""Version of OffsetCommit that knows member epochs."""
_UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID


class ConsumerGroup:
    """One group, as its log has it; the owner tells it what was stored, and asks."""

    __slots__ = (
        "_has_changed",
        "_member_bytes",
        "assignment_epoch",
        "counted_bytes",
        "epoch",
        "grants",
        "group_id",
        "has_partition_metadata",
        "heartbeat_interval_ms",
        "make_member_id",
        "members",
        "metadata_hash",
        "owner",
        "owners",
        "regexes",
        "scheduled_ms",
        "seen_offset",
        "session_timeout_ms",
        "settings",
        "static_members",
        "targets",
        "wake_ms",
    )

    group_type = TYPE_CONSUMER
    protocol_type = CONSUMER

    def __init__(
        self,
        group_id: str,
        settings: ConsumerSettings,
        make_member_id: Callable[[], str],
        owner: GroupShard,
    ) -> None:
        self.group_id = group_id
        self.owner = owner
        """The partition's groups that it belongs to; not looked at here."""
        self.settings = settings
        self.make_member_id = make_member_id
        """An id for a member that brings none."""
        self.session_timeout_ms = settings.session_timeout_ms
        self.heartbeat_interval_ms = settings.heartbeat_interval_ms
        self.epoch = 0
        self.assignment_epoch = 0
        self.metadata_hash = 0
        """The hash of the topics that the group epoch was made for."""
        self.seen_offset = -1
        """The `Topics.changed_offset` as of which that hash was last compared; -1: not yet."""
        self.has_partition_metadata = False
        """The group's log has a record that an older Kafka wrote."""
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.targets: dict[str, Assignment] = {}
        """What each member shall have."""
        self.owners: dict[bytes, dict[int, str]] = {}
        """Topic id, partition: member id."""
        self.regexes = Regexes(settings)
        self.grants: dict[str, int] = {}
        """The owner's: members with a standing answer to their heartbeats, and its word."""
        self.counted_bytes = 0
        """The owner's (`group_memory`)."""
        self._member_bytes = 0
        self._has_changed = False
        self.wake_ms = NEVER_MS
        """A time that is not after the first deadline of a member."""
        self.scheduled_ms = NEVER_MS
        """The owner's: for when its timer is set."""

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def due(self, now_ms: int) -> list[ConsumerMember]:
        """Members that have been silent, or held on to something, for too long; sets `wake_ms`."""
        if self.wake_ms > now_ms:
            return []
        due = []
        wake_ms = NEVER_MS
        for member in self.members.values():
            deadline_ms = member.next_deadline_ms()
            if deadline_ms <= now_ms:
                due.append(member)
            elif deadline_ms < wake_ms:
                wake_ms = deadline_ms
        self.wake_ms = wake_ms
        return due

    def begin_sessions(self, now_ms: int) -> None:
        """All records have been replayed, or it is made of a classic group: members have a full
        session from now on."""
        for member in self.members.values():
            classic = member.classic
            session_ms = self.session_timeout_ms if classic is None else classic.session_timeout_ms
            member.deadline_ms = now_ms + session_ms
            if member.state == UNREVOKED and member.classic is None:
                member.revoke_deadline_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            self.wake_by(member.next_deadline_ms())

    def wake_by(self, deadline_ms: int) -> None:
        """A member has this deadline now."""
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    # ── standing answers ────────────────────────────────────────────────────────────────────────

    def add_grant(self, member_id: str, word: int) -> None:
        """This member's quiet heartbeat is answered alike as long as `is_as_granted`."""
        if not self.grants:
            self._has_changed = False
        self.grants[member_id] = word

    def is_as_granted(self) -> bool:
        """Whether nothing was stored since; the owner sees to what is not in here."""
        return not self._has_changed

    def see(self, member_id: str, seen_ms: int) -> None:
        """A heartbeat at this time was answered without us."""
        member = self.members.get(member_id)
        if member is not None and seen_ms + self.session_timeout_ms > member.deadline_ms:
            member.deadline_ms = seen_ms + self.session_timeout_ms

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> str:
        """The name of the state, as clients read it."""
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        for member in self.members.values():
            if not member.is_reconciled_to(self.assignment_epoch):
                return RECONCILING
        return STABLE_GROUP

    @property
    def held_bytes(self) -> int:
        """What members and their expressions' topics take in memory."""
        return GROUP_BYTES + self._member_bytes + self.regexes.held_bytes if self.members else 0

    def owner_of(self, topic_id: bytes, partition: int) -> str | None:
        """The member that has a partition, or None."""
        owners = self.owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def bytes_of(self, member_id: str, instance_id: str | None) -> int:
        """What a member takes that is here, or whose place is taken; 0 if there is none."""
        if instance_id is not None:
            member_id = self.static_members.get(instance_id, member_id)
        member = self.members.get(member_id)
        return 0 if member is None else member.held_bytes

    def on_commit(self, member_id: str, epoch: int, version: int) -> int:
        """The error code for who wants to commit offsets."""
        if epoch < 0 and not self.members:
            return 0
        member = self.members.get(member_id)
        if member is None:
            return _UNKNOWN_MEMBER
        if member.classic is None and version < MEMBER_EPOCH_FROM:
            return error_codes.UNSUPPORTED_VERSION
        return _commit_error(member, epoch)

    def on_fetch(self, member_id: str | None, epoch: int) -> int:
        """The error code for who wants to know committed offsets."""
        if member_id is None and epoch < 0:
            return 0
        member = self.members.get(member_id or "")
        return _UNKNOWN_MEMBER if member is None else _commit_error(member, epoch)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member may be reading this topic."""
        return any(topic in member.subscribed_topics for member in self.members.values()) or any(
            topic in found.topics for found in self.regexes.resolved.values()
        )

    def is_idle(self) -> bool:
        """Whether nobody is in it."""
        return not self.members

    # ── beginning and end ───────────────────────────────────────────────────────────────────────

    def add(self, member: ConsumerMember, target: Assignment) -> None:
        """Add a member of the classic group that this one is made of, with what it has."""
        self.members[member.member_id] = member
        self._member_bytes += member.held_bytes
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.targets[member.member_id] = target
        self._own(member, True)

    def on_gone(self, error: int, now_ms: int) -> list[Effect]:
        """Deleted, or another broker's now; nobody waits here."""
        self.wake_ms = NEVER_MS
        self.members = {}  # an old timer may keep us for a while
        return []

    def tombstones(self) -> list[stored.Record]:
        """All that the log has of it, gone."""
        return stored.group_tombstones(
            self.group_id, list(self.members), list(self.regexes.resolved)
        )

    def creation(self) -> Iterator[stored.Record]:
        """All that there is of it."""
        group_id, members = self.group_id, self.members.values()
        yield from (stored.member_record(group_id, member) for member in members)
        yield stored.epoch_record(group_id, self.epoch, self.metadata_hash)
        yield from (stored.target_record(group_id, *row) for row in self.targets.items())
        yield stored.target_epoch_record(group_id, self.assignment_epoch)
        yield from (stored.current_record(group_id, member) for member in members)

    # ── what is stored ──────────────────────────────────────────────────────────────────────────

    def apply(self, change: Change) -> None:
        """The change's records are in the log."""
        self._has_changed = True
        for record in change.records:
            self.replay(*record)
        if change.seen_offset >= 0:
            self.seen_offset = change.seen_offset
        for member_id, deadlines in change.deadlines.items():
            member = self.members.get(member_id)
            if member is not None:
                member.expect(deadlines)
                self.wake_by(member.next_deadline_ms())

    def replay(self, record_type: int, key: dict[str, Any], value: dict[str, Any] | None) -> None:
        """Take in a record, of this group; others are passed over. The order doesn't matter."""
        if record_type == stored.CURRENT:
            self._replay_current(key["member_id"], value)
        elif record_type == stored.TARGET:
            if value is None:
                self.targets.pop(key["member_id"], None)
            else:
                self.targets[key["member_id"]] = stored.assignment_of(value["topic_partitions"])
        elif record_type == stored.MEMBER:
            self._replay_member(key["member_id"], value)
        elif record_type == stored.EPOCH and value is not None:
            self.epoch = value["epoch"]
            self.metadata_hash = value["metadata_hash"]
        elif record_type == stored.TARGET_EPOCH:
            self.assignment_epoch = 0 if value is None else value["assignment_epoch"]
        elif record_type == stored.REGEX:
            self.regexes.replay(key["regular_expression"], value)
        elif record_type == stored.PARTITION_METADATA:
            self.has_partition_metadata = value is not None

    def _replay_member(self, member_id: str, value: dict[str, Any] | None) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self.regexes.count(member.subscribed_regex, -1)
            self._member_bytes -= member.held_bytes
        if value is None:
            if member is not None:
                self._own(member, False)
                del self.members[member_id]
                self._release_instance(member)
            return
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id)
        self._release_instance(member)  # a member may join again with another
        member.instance_id = value["instance_id"]
        member.rack_id = value["rack_id"]
        member.client_id = value["client_id"]
        member.client_host = value["client_host"]
        member.subscribed_topics = frozenset(value["subscribed_topic_names"])
        member.subscribed_regex = value["subscribed_topic_regex"]
        member.rebalance_timeout_ms = value["rebalance_timeout_ms"]
        member.assignor = value["server_assignor"]
        classic = value["classic_member_metadata"]
        member.classic = None
        if classic is not None:
            member.classic = ClassicPart(
                classic["session_timeout_ms"],
                tuple((row["name"], row["metadata"]) for row in classic["supported_protocols"]),
            )
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member_id
        self.regexes.count(member.subscribed_regex, 1)
        self._member_bytes += member.held_bytes

    def _release_instance(self, member: ConsumerMember) -> None:
        """The member's instance id is nobody's, unless another has come with it."""
        instance_id = member.instance_id or ""
        if self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def _replay_current(self, member_id: str, value: dict[str, Any] | None) -> None:
        member = self.members.get(member_id)
        if member is None:
            if value is None:
                return
            member = self.members[member_id] = ConsumerMember(member_id)
            self._member_bytes += member.held_bytes
        self._own(member, False)
        if value is None:
            member.epoch = member.previous_epoch = LEFT_EPOCH
            member.assigned = {}
            member.revoking = {}
            return
        member.epoch = value["member_epoch"]
        member.previous_epoch = value["previous_member_epoch"]
        member.state = value["state"]
        member.assigned = stored.assignment_of(value["assigned_partitions"])
        member.revoking = stored.assignment_of(value["partitions_pending_revocation"])
        self._own(member, True)

    def _own(self, member: ConsumerMember, is_owner: bool) -> None:
        member_id = member.member_id
        for assignment in (member.assigned, member.revoking):
            for topic_id, partitions in assignment.items():
                owners = self.owners.setdefault(topic_id, {})
                for partition in partitions:
                    if is_owner:
                        owners[partition] = member_id
                    elif owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    del self.owners[topic_id]


def _commit_error(member: ConsumerMember, epoch: int) -> int:
    if epoch == member.epoch:
        return 0
    if member.classic is not None:
        return error_codes.ILLEGAL_GENERATION
    return error_codes.STALE_MEMBER_EPOCH
