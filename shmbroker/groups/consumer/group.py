"""One group of the new consumer protocol (KIP-848): members, epochs, and what each of them reads.

    group epoch          +1 when members, subscriptions or their topics change
    assignment epoch     the group epoch that the target assignment was made for
    member epoch         the assignment epoch that the member has come to

    heartbeat ──► member kept or made ──► group epoch ──► target assignment ──► member reconciled
                  MEMBER, REGEX           EPOCH           TARGET, TARGET_EPOCH   CURRENT

    Empty ──► Assigning (group epoch is ahead) ──► Reconciling (members are behind) ──► Stable

Members of the classic protocol take part in it by JoinGroup, SyncGroup and Heartbeat: their
generation is their member epoch, and their assignment comes from here instead of from a leader.

Rules of this file:
* Pure: time and topics come in as arguments. A request changes nothing; it returns its answer and
  a `Change`, which the owner stores and then hands to `apply`. Records are replayed there, as after
  a restart: what is in memory is what is in the log.
* Without anything new a heartbeat stores one number and has no `Change`.
* A partition has one owner: who has it assigned, or has still to give it up.
* `epoch >= assignment_epoch >=` every member's epoch.

Source: KIP-848; Kafka's ConsumerGroup, GroupMetadataManager, TargetAssignmentBuilder.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.groups.classic.embedded_protocol import (
    by_topic_id,
    encode_assignment,
    subscription_of,
)
from shmbroker.groups.classic.group import CONSUMER
from shmbroker.groups.classic.member import NEVER
from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.answers import join_refusal, refusal
from shmbroker.groups.consumer.assignors import ASSIGNORS
from shmbroker.groups.consumer.change import Change, Downgrade
from shmbroker.groups.consumer.member import (
    AWAY_EPOCH,
    LEFT_EPOCH,
    NO_TIMEOUT,
    STABLE,
    UNRELEASED,
    UNREVOKED,
    ClassicPart,
    ConsumerMember,
    reconcile,
)
from shmbroker.groups.consumer.topic_regex import fault_of, matching
from shmbroker.groups.group_memory import (
    GROUP_BYTES,
    MEMBER_BYTES,
    PROTOCOLS_MAX,
    REGEXES_MAX,
    names_bytes,
    protocols_bytes,
)
from shmbroker.security.rights import sees_all
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from shmbroker.groups.classic.effects import Effect
    from shmbroker.groups.consumer.answers import Answer
    from shmbroker.groups.consumer.assignors import Assignment
    from shmbroker.groups.consumer.change import ConsumerSettings, Topics
    from shmbroker.groups.consumer.member import Owned

# States of the group, as clients read them.
EMPTY = "Empty"
ASSIGNING = "Assigning"
RECONCILING = "Reconciling"
STABLE_GROUP = "Stable"

TYPE_CONSUMER = "consumer"

REGEX_INTERVAL_MS = 10_000
"""Least time between two looks through all topics for a group's expressions."""

MEMBER_ID_REQUIRED_FROM = 4
"""Version of JoinGroup from which a member asks for its id first (KIP-394)."""
MEMBER_EPOCH_FROM = 9
"""Version of OffsetCommit that knows member epochs."""
_UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID


class ResolvedRegex(NamedTuple):
    """The topics that match an expression of members."""

    topics: frozenset[str]
    offset: int
    """The metadata log's offset as of which they were looked for."""
    looked_ms: int


class ConsumerGroup:
    """One group. The `on_…` of members return (answer, change or None)."""

    __slots__ = (
        "_has_changed",
        "_make_member_id",
        "_member_bytes",
        "_regex_bytes",
        "_seen_offset",
        "_settings",
        "assignment_epoch",
        "counted_bytes",
        "epoch",
        "grants",
        "group_id",
        "has_partition_metadata",
        "heartbeat_interval_ms",
        "members",
        "metadata_hash",
        "owner",
        "owners",
        "regex_counts",
        "regexes",
        "scheduled_ms",
        "session_timeout_ms",
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
        owner: Any = None,
    ) -> None:
        self.group_id = group_id
        self.owner = owner
        """The partition's groups that it belongs to; not looked at here, so of any kind."""
        self._settings = settings
        self._make_member_id = make_member_id
        self.session_timeout_ms = settings.session_timeout_ms
        self.heartbeat_interval_ms = settings.heartbeat_interval_ms
        self.epoch = 0
        self.assignment_epoch = 0
        self.metadata_hash = 0
        """The hash of the topics that the group epoch was made for."""
        self.has_partition_metadata = False
        """Its log has a record that an older Kafka wrote."""
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.targets: dict[str, Assignment] = {}
        """What each member shall have."""
        self.owners: dict[bytes, dict[int, str]] = {}
        """Topic id, partition: member id."""
        self.regex_counts: dict[str, int] = {}
        """How many members are subscribed by an expression."""
        self.regexes: dict[str, ResolvedRegex] = {}
        """By expression."""
        self.grants: dict[str, int] = {}
        """The owner's: members with a standing answer to their heartbeats, and its word."""
        self.counted_bytes = 0
        """The owner's (`group_memory`)."""
        self._member_bytes = self._regex_bytes = 0
        self._has_changed = False
        self._seen_offset = -1
        self.wake_ms = NEVER
        self.scheduled_ms = NEVER
        """The owner's: for when its timer is set."""

    # ── members of the new protocol ─────────────────────────────────────────────────────────────

    def on_heartbeat(
        self, body: dict[str, Any], client_id: str, client_host: str, now_ms: int, topics: Topics
    ) -> tuple[Answer, Change | None]:
        """A ConsumerGroupHeartbeat of a member that stays or comes (epoch 0)."""
        member_id = body["member_id"]
        member = self.members.get(member_id)
        if member is not None and self.is_quiet(
            member, body, client_id, client_host, now_ms, topics
        ):
            member.deadline_ms = now_ms + self.session_timeout_ms
            return self._heartbeat_answer(member), None
        return self._on_news(body, client_id, client_host, now_ms, topics)

    def is_quiet(
        self,
        member: ConsumerMember,
        body: dict[str, Any],
        client_id: str,
        client_host: str,
        now_ms: int,
        topics: Topics,
    ) -> bool:
        """Neither this heartbeat of a member nor the cluster has anything new for the group."""
        return bool(
            body["member_epoch"] == member.epoch == self.assignment_epoch == self.epoch
            and member.state == STABLE
            and body["topic_partitions"] is None
            and body["subscribed_topic_names"] is None
            and body["instance_id"] == member.instance_id
            and body["subscribed_topic_regex"] is None
            and body["rebalance_timeout_ms"] == NO_TIMEOUT
            and body["server_assignor"] is None
            and body["rack_id"] is None
            and self._seen_offset == topics.changed_offset
            and client_id == member.client_id
            and client_host == member.client_host
            and member.classic is None
            and not (self.regex_counts and self._is_regex_due(now_ms, topics))
        )

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

    def _on_news(
        self, body: dict[str, Any], client_id: str, client_host: str, now_ms: int, topics: Topics
    ) -> tuple[Answer, Change | None]:
        member_id, epoch = body["member_id"], body["member_epoch"]
        names, regex = body["subscribed_topic_names"], body["subscribed_topic_regex"]
        brings = 0
        if names or regex:
            brings = MEMBER_BYTES + names_bytes(names or ()) + len(regex or "")
        if not self._has_room_for(member_id) or not self._has_bytes_for(
            member_id, body["instance_id"], brings
        ):
            return refusal(error_codes.GROUP_MAX_SIZE_REACHED), None
        change = Change()
        owned = body["topic_partitions"]
        old, error = self._find(
            change, member_id, body["instance_id"], epoch == 0, is_classic=False
        )
        if old is None:
            return refusal(error), None
        if epoch and not _is_epoch_right(old, epoch, owned):
            return refusal(error_codes.FENCED_MEMBER_EPOCH), None
        new = old.copy()
        if body["instance_id"] is not None:
            new.instance_id = body["instance_id"]
        if body["rack_id"] is not None:
            new.rack_id = body["rack_id"]
        if body["rebalance_timeout_ms"] != NO_TIMEOUT:
            new.rebalance_timeout_ms = body["rebalance_timeout_ms"]
        if body["server_assignor"] is not None:
            new.assignor = body["server_assignor"]
        if body["subscribed_topic_names"] is not None:
            new.subscribed_topics = frozenset(body["subscribed_topic_names"])
        if body["subscribed_topic_regex"] is not None:
            new.subscribed_regex = body["subscribed_topic_regex"]
        new.client_id = client_id
        new.client_host = client_host
        new.classic = None
        error, text, are_topics_new = self._update(change, old, new, now_ms, topics)
        if error:
            return refusal(error, text), None
        moved = self._reconcile(change, new, owned, are_topics_new, now_ms, topics)
        if moved is None:
            return refusal(error_codes.FENCED_MEMBER_EPOCH), None
        deadlines = change.deadlines_of(moved.member_id)
        deadlines.session_ms = now_ms + self.session_timeout_ms
        if old.classic is not None:
            deadlines.join_ms = deadlines.sync_ms = NEVER
        answer = self._heartbeat_answer(moved)
        is_full = (
            body["rebalance_timeout_ms"] != NO_TIMEOUT
            and (
                body["subscribed_topic_names"] is not None
                or body["subscribed_topic_regex"] is not None
            )
            and owned is not None
        )
        if epoch == 0 or is_full or moved.assigned != old.assigned:
            answer["assignment"] = {"topic_partitions": stored.rows_of(moved.assigned)}
        return answer, change

    def on_leave(
        self, member_id: str, instance_id: str | None, epoch: int, topics: Topics
    ) -> tuple[Answer, Change | None]:
        """A ConsumerGroupHeartbeat with LEFT_EPOCH, or AWAY_EPOCH of a static member."""
        member, error = self._known(member_id, instance_id)
        if member is None:
            return refusal(error), None
        answer = {"member_id": member_id, "member_epoch": epoch}
        if epoch != AWAY_EPOCH:
            return answer, self.fence([member], topics)
        away = member.copy()
        away.epoch = AWAY_EPOCH
        away.revoking = {}
        change = Change()
        change.records.append(stored.current_record(self.group_id, away))
        return answer, change

    def resolve_regexes(
        self, now_ms: int, topics: Topics, may_see: Callable[[str], bool] = sees_all
    ) -> Change:
        """Find the topics that match the members' expressions now. may_see: whether who has asked
        may know of a topic; the others are not read, whoever else is in the group (KIP-848)."""
        change = Change()
        image = topics.image
        found = matching(self.regex_counts, [*filter(may_see, image.topics_by_name)])
        resolved = {}
        is_new = False
        for regex, names in found.items():
            resolved[regex] = ResolvedRegex(names, image.offset, now_ms)
            known = self.regexes.get(regex)
            is_new = is_new or names != (known.topics if known is not None else frozenset())
            change.records.append(
                stored.regex_record(self.group_id, regex, names, image.offset, now_ms)
            )
        metadata_hash = self._hash(self.members.values(), resolved, topics)
        if is_new or metadata_hash != self.metadata_hash:
            change.records.append(stored.epoch_record(self.group_id, self.epoch + 1, metadata_hash))
        return change

    # ── members of the classic protocol ─────────────────────────────────────────────────────────

    def on_classic_join(
        self,
        body: dict[str, Any],
        version: int,
        client_id: str,
        client_host: str,
        now_ms: int,
        topics: Topics,
    ) -> tuple[Answer, Change | None]:
        """A JoinGroup: it is answered at once, without a leader."""
        member_id, instance_id = body["member_id"], body["group_instance_id"]
        is_new = not member_id
        if is_new:
            member_id = self._make_member_id()
        protocols = tuple((row["name"], row["metadata"]) for row in body["protocols"])
        if not self._has_room_for(member_id) or not self._has_bytes_for(
            member_id, instance_id, MEMBER_BYTES + 2 * protocols_bytes(protocols)
        ):
            return join_refusal(error_codes.GROUP_MAX_SIZE_REACHED), None
        if body["protocol_type"] != CONSUMER or not self._supports(protocols):
            return join_refusal(error_codes.INCONSISTENT_GROUP_PROTOCOL), None
        if is_new and instance_id is None and version >= MEMBER_ID_REQUIRED_FROM:
            return join_refusal(error_codes.MEMBER_ID_REQUIRED, member_id), None
        change = Change()
        is_joining = instance_id is None or is_new
        old, error = self._find(change, member_id, instance_id, is_joining, is_classic=True)
        if old is None:
            return join_refusal(error), None
        protocol_name, metadata = protocols[0]
        found = subscription_of(metadata)
        if found is None:
            return join_refusal(error_codes.UNKNOWN_SERVER_ERROR), None
        subscription = found.message
        rebalance_timeout_ms = (
            body["rebalance_timeout_ms"] if version else body["session_timeout_ms"]
        )
        new = _subscribed(old, instance_id, subscription, rebalance_timeout_ms)
        new.client_id = client_id
        new.client_host = client_host
        new.classic = ClassicPart(body["session_timeout_ms"], protocols)
        replaced = self.members.get(self.static_members.get(instance_id or "", ""))
        error, _, are_topics_new = self._update(change, old, new, now_ms, topics)
        if error:
            return join_refusal(error), None
        owned = stored.rows_of(
            by_topic_id(subscription["owned_partitions"], topics.image.topics_by_name)
        )
        moved = self._reconcile(change, new, owned, are_topics_new, now_ms, topics)
        if moved is None:
            return join_refusal(error_codes.UNKNOWN_MEMBER_ID), None
        generation_id = moved.epoch
        if replaced is not None and replaced is not old and self._can_become_classic([replaced], 1):
            is_bumped = any(kind == stored.EPOCH for kind, _, _ in change.records)
            self._downgrade(change, [replaced], moved, is_bumped)
            generation_id = self.epoch
        else:
            deadlines = change.deadlines_of(moved.member_id)
            deadlines.session_ms = now_ms + body["session_timeout_ms"]
            deadlines.join_ms = NEVER
            deadlines.sync_ms = now_ms + max(rebalance_timeout_ms, 0)
        return {
            "error_code": 0,
            "generation_id": generation_id,
            "protocol_type": CONSUMER,
            "protocol_name": protocol_name,
            "leader": "",
            "skip_assignment": False,
            "member_id": moved.member_id,
            "members": [],
        }, change

    def on_classic_sync(self, body: dict[str, Any], now_ms: int, topics: Topics) -> Answer:
        """A SyncGroup: the member's assignment, in the consumers' own format."""
        member, error = self._known_classic(body)
        if member is None or member.classic is None:
            return {"error_code": error}
        protocol_name, metadata = member.classic.protocols[0]
        if body["protocol_type"] not in (None, CONSUMER) or body["protocol_name"] not in (
            None,
            protocol_name,
        ):
            return {"error_code": error_codes.INCONSISTENT_GROUP_PROTOCOL}
        if self.epoch > member.epoch and member.state != UNREVOKED:
            self._expect_join(member, now_ms)
            return {"error_code": error_codes.REBALANCE_IN_PROGRESS}
        found = subscription_of(metadata)
        version = found.version if found is not None else 0
        member.sync_deadline_ms = NEVER
        self._see(member, now_ms + member.classic.session_timeout_ms)
        return {
            "error_code": 0,
            "protocol_type": body["protocol_type"],
            "protocol_name": body["protocol_name"],
            "assignment": encode_assignment(version, member.assigned, topics.image.topics_by_id),
        }

    def on_classic_heartbeat(self, body: dict[str, Any], now_ms: int) -> int:
        """A Heartbeat: the error code."""
        member, error = self._known_classic(body)
        if member is None or member.classic is None:
            return error
        self._see(member, now_ms + member.classic.session_timeout_ms)
        if (
            member.epoch < self.epoch
            or member.state == UNREVOKED
            or (member.state == UNRELEASED and not self._is_waiting_for_others(member))
        ):
            self._expect_join(member, now_ms)
            return error_codes.REBALANCE_IN_PROGRESS
        return 0

    def on_classic_leave(
        self, leaving: list[tuple[str, str | None]], topics: Topics
    ) -> tuple[list[int], Change | None]:
        """A LeaveGroup, of members of either protocol: an error code for each, and what follows."""
        errors = []
        gone: dict[str, ConsumerMember] = {}
        for member_id, instance_id in leaving:
            if instance_id is not None and not member_id:
                member_id = self.static_members.get(instance_id, "")
            member, error = self._known(member_id, instance_id)
            if member is not None:
                gone[member.member_id] = member
            errors.append(error)
        return errors, self.fence(list(gone.values()), topics) if gone else None

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def due(self, now_ms: int) -> list[ConsumerMember]:
        """Members that have been silent, or held on to something, for too long; sets `wake_ms`."""
        if self.wake_ms > now_ms:
            return []
        due = []
        wake_ms = NEVER
        for member in self.members.values():
            deadline_ms = member.next_deadline_ms()
            if deadline_ms <= now_ms:
                due.append(member)
            elif deadline_ms < wake_ms:
                wake_ms = deadline_ms
        self.wake_ms = wake_ms
        return due

    def fence(self, gone: list[ConsumerMember], topics: Topics) -> Change:
        """Take members out. A group of classic members alone becomes a classic group again."""
        change = Change()
        if self._can_become_classic(gone, 0):
            self._downgrade(change, gone, None, True)
            return change
        for member in gone:
            change.records += stored.member_tombstones(self.group_id, member.member_id)
        rest = self._members_without(gone)
        for regex in self.regexes.keys() - {member.subscribed_regex for member in rest}:
            change.records.append(stored.regex_tombstone(self.group_id, regex))
        metadata_hash = self._hash(rest, self.regexes, topics)
        change.records.append(stored.epoch_record(self.group_id, self.epoch + 1, metadata_hash))
        return change

    def on_loaded(self, now_ms: int) -> None:
        """All records have been replayed: members have a full session from now on."""
        for member in self.members.values():
            member.deadline_ms = now_ms + self.session_timeout_ms
            if member.state == UNREVOKED and member.classic is None:
                member.revoke_deadline_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            self._wake_by(member.next_deadline_ms())

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> str:
        """As clients read it."""
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
        return GROUP_BYTES + self._member_bytes + self._regex_bytes if self.members else 0

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
            topic in found.topics for found in self.regexes.values()
        )

    def is_simple(self) -> bool:
        """It has had members."""
        return False

    def is_idle(self) -> bool:
        """Whether nobody is in it."""
        return not self.members

    def assignor(self) -> str:
        """The one that most of those who ask for one ask for."""
        return self._assignor(self.members)

    def add(self, member: ConsumerMember, target: Assignment) -> None:
        """A member of the classic group that this one is made of, with what it has."""
        self.members[member.member_id] = member
        self._member_bytes += member.held_bytes
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.targets[member.member_id] = target
        self._own(member, True)

    def look_at(self, topics: Topics) -> None:
        """The group epoch is one for these topics."""
        self.metadata_hash = self._hash(self.members.values(), self.regexes, topics)

    def on_gone(self, error: int, now_ms: int) -> list[Effect]:
        """Deleted, or another broker's now; nobody waits here."""
        self.wake_ms = NEVER
        self.members = {}  # an old timer may keep us for a while
        return []

    def tombstones(self) -> list[stored.Record]:
        """All that the log has of it, gone."""
        return stored.group_tombstones(self.group_id, list(self.members), list(self.regexes))

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
            self._seen_offset = change.seen_offset
        for member_id, deadlines in change.deadlines.items():
            member = self.members.get(member_id)
            if member is not None:
                member.expect(deadlines)
                self._wake_by(member.next_deadline_ms())

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
            regex = key["regular_expression"]
            known = self.regexes.pop(regex, None)
            if known is not None:
                self._regex_bytes -= names_bytes(known.topics)
            if value is not None:
                names = frozenset(value["topics"])
                self.regexes[regex] = ResolvedRegex(names, value["version"], value["timestamp"])
                self._regex_bytes += names_bytes(names)
        elif record_type == stored.PARTITION_METADATA:
            self.has_partition_metadata = value is not None

    def _replay_member(self, member_id: str, value: dict[str, Any] | None) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._count_regex(member.subscribed_regex, -1)
            self._member_bytes -= member.held_bytes
        if value is None:
            if member is not None:
                self._own(member, False)
                del self.members[member_id]
                instance_id = member.instance_id or ""
                if self.static_members.get(instance_id) == member_id:
                    del self.static_members[instance_id]
            return
        if member is None:
            member = self.members[member_id] = ConsumerMember(member_id)
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
        self._count_regex(member.subscribed_regex, 1)
        self._member_bytes += member.held_bytes

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

    def _count_regex(self, regex: str | None, difference: int) -> None:
        if regex:
            count = self.regex_counts.get(regex, 0) + difference
            if count:
                self.regex_counts[regex] = count
            else:
                del self.regex_counts[regex]

    # ── finding members ─────────────────────────────────────────────────────────────────────────

    def _has_room_for(self, member_id: str) -> bool:
        return member_id in self.members or len(self.members) < self._settings.size_max

    def _has_bytes_for(self, member_id: str, instance_id: str | None, brings: int) -> bool:
        more = brings - self.bytes_of(member_id, instance_id)
        return more <= 0 or self.held_bytes + more <= self._settings.bytes_max

    def _known(self, member_id: str, instance_id: str | None) -> tuple[ConsumerMember | None, int]:
        """(member, 0), or (None, error code)."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                return None, _UNKNOWN_MEMBER
            if current != member_id:
                return None, error_codes.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        return member, 0 if member is not None else _UNKNOWN_MEMBER

    def _known_classic(self, body: dict[str, Any]) -> tuple[ConsumerMember | None, int]:
        """The classic member that speaks, at its generation."""
        member, error = self._known(body["member_id"], body["group_instance_id"])
        if member is None:
            return None, error
        if member.classic is None:
            return None, _UNKNOWN_MEMBER
        if member.epoch != body["generation_id"]:
            return None, error_codes.ILLEGAL_GENERATION
        return member, 0

    def _find(
        self,
        change: Change,
        member_id: str,
        instance_id: str | None,
        is_joining: bool,
        is_classic: bool,
    ) -> tuple[ConsumerMember | None, int]:
        """The member as it was, one to be, or one that takes another's place; or an error code."""
        if not is_joining:
            return self._known(member_id, instance_id)
        static_id = self.static_members.get(instance_id) if instance_id is not None else None
        if static_id is None:
            known = self.members.get(member_id)
            return known or ConsumerMember(member_id or self._make_member_id()), 0
        existing = self.members[static_id]
        if not is_classic and existing.classic is None and existing.epoch != AWAY_EPOCH:
            return None, error_codes.UNRELEASED_INSTANCE_ID
        new = existing.copy(member_id or self._make_member_id())
        new.epoch = new.previous_epoch = 0
        group_id = self.group_id
        change.records += stored.member_tombstones(group_id, static_id)
        change.records += [
            stored.member_record(group_id, new),
            stored.target_record(group_id, new.member_id, self.targets.get(static_id, {})),
            stored.current_record(group_id, new),
        ]
        return new, 0

    # ── epochs and targets ──────────────────────────────────────────────────────────────────────

    def _update(
        self,
        change: Change,
        old: ConsumerMember,
        new: ConsumerMember,
        now_ms: int,
        topics: Topics,
    ) -> tuple[int, str | None, bool]:
        """The member's record, the group's epoch, the targets.

        (error code, text, whether the member's topics are others now)
        """
        records = change.records
        if not new.is_like(old):
            records.append(stored.member_record(self.group_id, new))
        are_topics_new = new.subscribed_topics != old.subscribed_topics
        is_regex_new = is_resolved = False
        if new.subscribed_regex != old.subscribed_regex:
            is_regex_new = True
            if old.subscribed_regex and self.regex_counts.get(old.subscribed_regex) == 1:
                records.append(stored.regex_tombstone(self.group_id, old.subscribed_regex))
            regex = new.subscribed_regex
            if regex and regex not in self.regex_counts:
                fault = fault_of(regex)
                if len(self.regex_counts) >= REGEXES_MAX:
                    fault = f"the group has {REGEXES_MAX} expressions already"
                if fault is not None:
                    return error_codes.INVALID_REGULAR_EXPRESSION, fault, False
                change.wants_regexes = True
            else:
                is_resolved = not regex or regex in self.regexes
        if change.wants_regexes or self.regex_counts:
            change.wants_regexes = self._is_regex_due(
                now_ms, topics, change.wants_regexes, self._regexes_with(old, new)
            )
        members = self._members_with(new)
        epoch = self.epoch
        is_bumped = epoch == 0 or are_topics_new or is_resolved
        if is_bumped or self._seen_offset != topics.changed_offset:
            change.seen_offset = topics.changed_offset
            metadata_hash = self._hash(members.values(), self.regexes, topics)
            if is_bumped or metadata_hash != self.metadata_hash:
                epoch += 1
                records.append(stored.epoch_record(self.group_id, epoch, metadata_hash))
            if self.has_partition_metadata:
                key = {"group_id": self.group_id}
                records.append((stored.PARTITION_METADATA, key, None))
        if epoch > self.assignment_epoch:
            records += self._assign(members, epoch, topics)
        return 0, None, are_topics_new or is_regex_new

    def _members_with(self, new: ConsumerMember) -> dict[str, ConsumerMember]:
        """The members, the new one instead of the one whose place it takes."""
        members = dict(self.members)
        if new.instance_id is not None:
            replaced = self.static_members.get(new.instance_id, new.member_id)
            if replaced != new.member_id:
                del members[replaced]
        members[new.member_id] = new
        return members

    def _members_without(self, gone: list[ConsumerMember]) -> list[ConsumerMember]:
        ids = {member.member_id for member in gone}
        return [member for each, member in self.members.items() if each not in ids]

    def _assign(
        self, members: dict[str, ConsumerMember], epoch: int, topics: Topics
    ) -> list[stored.Record]:
        """The records of the targets that are others now, and of their epoch."""
        subscriptions: dict[str, frozenset[bytes]] = {}
        instance_ids = {}
        targets = self.targets
        known: dict[Any, frozenset[bytes]] = {}
        for member_id, member in members.items():
            said = member.subscribed_topics, member.subscribed_regex
            if said not in known:
                known[said] = self._subscribed(member, topics)
            subscriptions[member_id] = known[said]
            if member.instance_id is not None:
                instance_ids[member_id] = member.instance_id
                previous_id = self.static_members.get(member.instance_id, member_id)
                if previous_id != member_id:
                    targets = {**targets, member_id: targets.get(previous_id, {})}
        by_id = topics.image.topics_by_id
        counts = {
            topic_id: len(by_id[topic_id].partitions)
            for topic_id in sorted(frozenset().union(*known.values()))
        }
        assign = ASSIGNORS[self._assignor(members)]
        found = assign(subscriptions, counts, targets, instance_ids)
        records = [
            stored.target_record(self.group_id, member_id, target)
            for member_id, target in found.items()
            if self.targets.get(member_id) != target
        ]
        records.append(stored.target_epoch_record(self.group_id, epoch))
        return records

    def _assignor(self, members: dict[str, ConsumerMember]) -> str:
        votes: dict[str, int] = {}
        for member in members.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else self._settings.assignors[0]

    def _subscribed(self, member: ConsumerMember, topics: Topics) -> frozenset[bytes]:
        """The ids of the topics that a member is subscribed to, as far as they exist."""
        names = member.subscribed_topics
        if member.subscribed_regex in self.regexes:
            names |= self.regexes[member.subscribed_regex].topics
        by_name = topics.image.topics_by_name
        return frozenset(by_name[name].topic_id for name in names if name in by_name)

    def _hash(
        self,
        members: Iterable[ConsumerMember],
        regexes: dict[str, ResolvedRegex],
        topics: Topics,
    ) -> int:
        """The hash of the topics of all members: names, ids, numbers of partitions; 0 without
        any."""
        from hashlib import blake2b

        names: set[str] = set()
        for member in members:
            names |= member.subscribed_topics
            if member.subscribed_regex in regexes:
                names |= regexes[member.subscribed_regex].topics
        by_name = topics.image.topics_by_name
        found = [by_name[name] for name in sorted(names) if name in by_name]
        if not found:
            return 0
        rows = [f"{each.name}\0{len(each.partitions)}\0".encode() + each.topic_id for each in found]
        digest = blake2b(b"".join(rows), digest_size=8)
        return int.from_bytes(digest.digest(), "big", signed=True)

    # ── regular expressions ─────────────────────────────────────────────────────────────────────

    def _regexes_with(self, old: ConsumerMember, new: ConsumerMember) -> set[str]:
        """The expressions that members are subscribed by when this one has changed."""
        regexes = set(self.regex_counts)
        if old.subscribed_regex and self.regex_counts.get(old.subscribed_regex) == 1:
            regexes.discard(old.subscribed_regex)
        if new.subscribed_regex:
            regexes.add(new.subscribed_regex)
        return regexes

    def _is_regex_due(
        self,
        now_ms: int,
        topics: Topics,
        is_wanted: bool = False,
        regexes: Iterable[str] | None = None,
    ) -> bool:
        """Whether to look through all topics again."""
        wanted = self.regex_counts.keys() if regexes is None else set(regexes)
        if not wanted:
            return False
        looked_ms, offset = -NEVER, 0
        if self.regexes:
            looked_ms = max(found.looked_ms for found in self.regexes.values())
            offset = min(found.offset for found in self.regexes.values())
        if now_ms <= looked_ms + REGEX_INTERVAL_MS:
            return False
        return (
            is_wanted
            or len(wanted) != len(self.regexes)
            or offset < topics.created_offset
            or now_ms > looked_ms + self._settings.regex_refresh_ms
        )

    # ── reconciling ─────────────────────────────────────────────────────────────────────────────

    def _reconcile(
        self,
        change: Change,
        member: ConsumerMember,
        owned: Owned,
        are_topics_new: bool,
        now_ms: int,
        topics: Topics,
    ) -> ConsumerMember | None:
        """The member after this heartbeat; None if it has to join anew."""
        epoch, target = self._target(change, member)
        if not are_topics_new and member.is_reconciled_to(epoch):
            return member
        moved = reconcile(
            member,
            epoch,
            target,
            self._subscribed(member, topics),
            are_topics_new,
            self._owner_of,
            owned,
        )
        if moved is not None and not moved.is_like(member):
            change.records.append(stored.current_record(self.group_id, moved))
            if moved.classic is None:
                revoke_ms = NEVER
                if moved.state == UNREVOKED:
                    revoke_ms = now_ms + max(moved.rebalance_timeout_ms, 0)
                change.deadlines_of(moved.member_id).revoke_ms = revoke_ms
        return moved

    def _target(self, change: Change, member: ConsumerMember) -> tuple[int, Assignment]:
        """(epoch, what the member shall have), as they are after the change."""
        epoch = self.assignment_epoch
        target = self.targets.get(member.member_id, {})
        for record_type, key, value in change.records:
            if value is not None:
                if record_type == stored.TARGET_EPOCH:
                    epoch = value["assignment_epoch"]
                elif record_type == stored.TARGET and key["member_id"] == member.member_id:
                    target = stored.assignment_of(value["topic_partitions"])
        return epoch, target

    def _owner_of(self, topic_id: bytes, partition: int) -> str | None:
        owners = self.owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def _is_waiting_for_others(self, member: ConsumerMember) -> bool:
        """Whether others still have some of what it shall have."""
        return any(
            partition not in member.assigned.get(topic_id, ())
            and self._owner_of(topic_id, partition) is not None
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    # ── migration ───────────────────────────────────────────────────────────────────────────────

    def _supports(self, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether there is a protocol that this and every other classic member knows."""
        if len(protocols) > PROTOCOLS_MAX:
            return False
        names = {name for name, _ in protocols}
        for member in self.members.values():
            if member.classic is not None:
                names &= {name for name, _ in member.classic.protocols}
        return bool(names)

    def _can_become_classic(self, gone: list[ConsumerMember], coming: int) -> bool:
        """Whether without these there are only classic members, and they may go back.

        coming: how many classic members take the place of one who goes: 0, or 1 of a new one.
        """
        if coming and gone[0].classic is not None:
            return False
        rest = self._members_without(gone)
        return (
            0 < len(rest) + coming <= self._settings.classic_size_max
            and self._settings.can_downgrade
            and all(member.classic is not None for member in rest)
        )

    def _downgrade(
        self,
        change: Change,
        gone: list[ConsumerMember],
        joining: ConsumerMember | None,
        is_rebalancing: bool,
    ) -> None:
        members = [
            (member, self.targets.get(member.member_id, {}))
            for member in self._members_without(gone)
        ]
        member_ids = list(self.members)
        if joining is not None:
            members.append((joining, self.targets.get(gone[0].member_id, {})))
            member_ids[member_ids.index(gone[0].member_id)] = joining.member_id
        change.records += stored.group_tombstones(self.group_id, member_ids, list(self.regexes))
        change.downgrade = Downgrade(members, is_rebalancing)

    # ── small things ────────────────────────────────────────────────────────────────────────────

    def _see(self, member: ConsumerMember, deadline_ms: int) -> None:
        member.deadline_ms = deadline_ms
        self._wake_by(deadline_ms)

    def _expect_join(self, member: ConsumerMember, now_ms: int) -> None:
        if member.join_deadline_ms == NEVER:
            member.join_deadline_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            self._wake_by(member.join_deadline_ms)

    def _wake_by(self, deadline_ms: int) -> None:
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def _heartbeat_answer(self, member: ConsumerMember) -> Answer:
        return {
            "member_id": member.member_id,
            "member_epoch": member.epoch,
            "heartbeat_interval_ms": self.heartbeat_interval_ms,
        }


def _subscribed(
    old: ConsumerMember,
    instance_id: str | None,
    subscription: Mapping[str, Any],
    rebalance_timeout_ms: int,
) -> ConsumerMember:
    """A member as the subscription in its JoinGroup says."""
    new = old.copy()
    if instance_id is not None:
        new.instance_id = instance_id
    if subscription["rack_id"]:
        new.rack_id = subscription["rack_id"]
    if rebalance_timeout_ms != NO_TIMEOUT:
        new.rebalance_timeout_ms = rebalance_timeout_ms
    new.subscribed_topics = frozenset(subscription["topics"])
    new.subscribed_regex = ""
    return new


def _is_epoch_right(member: ConsumerMember, epoch: int, owned: Owned) -> bool:
    """Whether the member is where it says; one behind if our last answer may have been lost."""
    if epoch >= member.epoch:
        return epoch == member.epoch
    return epoch == member.previous_epoch and (
        owned is not None
        and all(
            member.assigned.get(row["topic_id"], frozenset()).issuperset(row["partitions"])
            and row["topic_id"] in member.assigned
            for row in owned
        )
    )


def _commit_error(member: ConsumerMember, epoch: int) -> int:
    if epoch == member.epoch:
        return 0
    if member.classic is not None:
        return error_codes.ILLEGAL_GENERATION
    return error_codes.STALE_MEMBER_EPOCH
