"""One group of the classic protocol: its members and generation, and what ends when.

The states that it goes through are drawn in `states`. What makes it change is here, but for
members that join (`joining`), the rebalance that follows (`rebalance`), and the assignment that
ends it (`syncing`).

Rules of these files:
* Pure: the time comes in as an argument, member ids come from a function that the owner passes,
  and what is to happen is returned as a list of `effects`, to be executed in their order.
* A parked call is answered exactly once; a second call of the same member sends the first away.
* `generation_id` never falls. At COMPLETING and STABLE there are members, and one of them leads.
* Deadlines are only ever looked at by `on_time`; `wake_ms` is never later than the first of them,
  so that the owner keeps one timer for a group, and a heartbeat stores one number.

Kafka keeps silent where a second JoinGroup or SyncGroup overtakes the first, or where a member
that waits for its assignment goes: here the first is told REBALANCE_IN_PROGRESS, the latter
UNKNOWN_MEMBER_ID.

Source: KIP-62, 345 (static members), 559, 800; Kafka's ClassicGroup and GroupMetadataManager.
"""

from __future__ import annotations

from shmbroker.groups.classic.agreement import Support, topics_of
from shmbroker.groups.classic.answers import join_refusal
from shmbroker.groups.classic.effects import Reply, StoreAssigned, StoreReplaced
from shmbroker.groups.classic.embedded_protocol import CONSUMER
from shmbroker.groups.classic.group_value import members_in
from shmbroker.groups.classic.joining import finish_replacement
from shmbroker.groups.classic.rebalance import (
    maybe_complete_join,
    on_join_time_over,
    on_sync_time_over,
    prepare_rebalance,
)
from shmbroker.groups.classic.states import COMPLETING, DEAD, EMPTY, PREPARING, STABLE
from shmbroker.groups.classic.syncing import finish_assignment
from shmbroker.groups.group_memory import GROUP_BYTES, GROUP_BYTES_MAX, ID_BYTES
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.groups.classic.effects import Effect, Store
    from shmbroker.groups.classic.member import ClassicMember
    from shmbroker.groups.group_table import GroupShard

TYPE_CLASSIC = "classic"

_UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
_REBALANCE = error_codes.REBALANCE_IN_PROGRESS


class ClassicSettings:
    """What the broker's settings say about groups; sizes and times as Kafka names them."""

    __slots__ = ("bytes_max", "initial_delay_ms", "size_max")

    def __init__(
        self, initial_delay_ms: int, size_max: int, bytes_max: int = GROUP_BYTES_MAX
    ) -> None:
        self.initial_delay_ms = initial_delay_ms
        self.size_max = size_max
        self.bytes_max = bytes_max


class ClassicGroup:
    """One group. Each `on_…` returns the effects, unless its docstring says more."""

    group_type = TYPE_CLASSIC

    __slots__ = (
        "_granted_generation",
        "_granted_members",
        "_member_bytes",
        "assignment_bytes",
        "awaiting_join",
        "counted_bytes",
        "delay_ms",
        "effects",
        "generation_id",
        "grants",
        "group_id",
        "is_member_added",
        "join_deadline_ms",
        "leader_id",
        "make_member_id",
        "members",
        "owner",
        "pending_bytes",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "remaining_delay_ms",
        "scheduled_ms",
        "settings",
        "state",
        "state_since_ms",
        "static_members",
        "subscribed_topics",
        "support",
        "sync_deadline_ms",
        "wake_ms",
    )

    def __init__(
        self,
        group_id: str,
        settings: ClassicSettings,
        make_member_id: Callable[[str], str],
        now_ms: int,
        owner: GroupShard,
    ) -> None:
        self.group_id = group_id
        self.owner = owner
        """The partition's groups that it belongs to; not looked at here."""
        self.settings = settings
        self.make_member_id = make_member_id
        self.state = EMPTY
        self.previous_state = DEAD
        self.state_since_ms = now_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.pending_joins: dict[str, int] = {}
        """Ids that were given out but have not joined yet, with their deadlines (KIP-394)."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not asked for their assignment."""
        self.subscribed_topics: frozenset[str] | None = None
        """The topics of a consumer group; None where they aren't known."""
        self.grants: dict[str, int] = {}
        """The owner's: members with a standing answer to their heartbeats, and its word."""
        self._granted_generation = -1
        self._granted_members: dict[str, ClassicMember] = {}
        self.counted_bytes = 0
        """The owner's (`group_memory`)."""
        self._member_bytes = self.assignment_bytes = self.pending_bytes = 0
        """What `held_bytes` adds up."""
        self.support = Support()
        self.awaiting_join = 0
        """How many members have a parked JoinGroup."""
        self.join_deadline_ms = NEVER_MS
        """The time until which members have to join."""
        self.sync_deadline_ms = NEVER_MS
        """The time until which members have to ask for their assignment."""
        self.is_member_added = False
        """A member came while a group's first rebalance waits for more."""
        self.delay_ms = 0
        self.remaining_delay_ms = 0
        """How long that wait is, and how much longer it may get."""
        self.effects: list[Effect] = []
        """What is to be returned to the owner."""
        self.wake_ms = NEVER_MS
        self.scheduled_ms = NEVER_MS
        """The owner's: for when its timer is set."""

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def on_heartbeat(
        self, member_id: str, instance_id: str | None, generation_id: int, now_ms: int
    ) -> int:
        """The error code to answer with; there are no effects."""
        member = self.members.get(member_id)
        if (
            member is None
            or instance_id is not None
            or generation_id != self.generation_id
            or self.state == DEAD
        ):
            error = self.check(member_id, instance_id, generation_id)
            if error:
                return error
        if member.join_call is None and member.sync_call is None:  # type: ignore[union-attr]
            member.deadline_ms = now_ms + member.session_timeout_ms  # type: ignore[union-attr]
        return _REBALANCE if self.state == PREPARING else 0

    def add_grant(self, member_id: str, word: int) -> None:
        """This member's heartbeat is answered with 0 as long as `is_as_granted`."""
        if not self.grants:
            self._granted_generation = self.generation_id
            self._granted_members = self.members
        self.grants[member_id] = word

    def is_as_granted(self) -> bool:
        """Whether a heartbeat of the members with a grant would still be answered with 0."""
        return (
            self.state == STABLE
            and self.generation_id == self._granted_generation
            and self.members
            is self._granted_members  # one in the place of another makes a new dict
        )

    def see(self, member_id: str, seen_ms: int) -> None:
        """A heartbeat at this time was answered without us."""
        member = self.members.get(member_id)
        if member is not None and seen_ms + member.session_timeout_ms > member.deadline_ms:
            member.deadline_ms = seen_ms + member.session_timeout_ms

    def on_leave(
        self, leaving: list[tuple[str, str | None]], now_ms: int
    ) -> tuple[list[int], list[Effect]]:
        """Members go, given as (member id or "", instance id): an error code for each, effects."""
        errors = []
        for member_id, instance_id in leaving:
            if member_id == "":
                if instance_id is not None:
                    member_id = self.static_members.get(instance_id, "")
                error = 0 if member_id else _UNKNOWN_MEMBER
            elif member_id in self.pending_joins:
                error = 0
            else:
                error = self.check_member(member_id, instance_id)
            if not error:
                self.forget(member_id)
            errors.append(error)
        if 0 in errors:
            if self.state in (STABLE, COMPLETING):
                prepare_rebalance(self, now_ms)
            else:
                maybe_complete_join(self, now_ms)
        return errors, self.take_effects()

    def on_stored(self, store: Store, error: int, now_ms: int) -> list[Effect]:
        """A store is done (error 0) or has failed."""
        if isinstance(store, StoreReplaced):
            finish_replacement(self, store, error, now_ms)
        elif isinstance(store, StoreAssigned):
            finish_assignment(self, store, error, now_ms)
        return self.take_effects()

    def on_time(self, now_ms: int) -> list[Effect]:
        """End what is due, as some deadline may have passed, and find the next `wake_ms`."""
        if self.wake_ms <= now_ms:
            for member_id in [
                each for each, deadline in self.pending_joins.items() if deadline <= now_ms
            ]:
                self.unpend(member_id)
                maybe_complete_join(self, now_ms, is_first_too=True)
            for member in [
                member for member in self.members.values() if member.deadline_ms <= now_ms
            ]:
                if self.members.get(member.member_id) is member and member.deadline_ms <= now_ms:
                    self._on_session_over(member, now_ms)
            if self.join_deadline_ms <= now_ms:
                on_join_time_over(self, now_ms)
            if self.sync_deadline_ms <= now_ms:
                on_sync_time_over(self, now_ms)
            self.wake_ms = min(
                self.join_deadline_ms,
                self.sync_deadline_ms,
                min(self.pending_joins.values(), default=NEVER_MS),
                min((member.deadline_ms for member in self.members.values()), default=NEVER_MS),
            )
        return self.take_effects()

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """All records have been replayed: members have a full session from now on."""
        for member in self.members.values():
            self.extend_session(member, now_ms)
        if len(self.members) > self.settings.size_max:
            prepare_rebalance(self, now_ms)
        return self.take_effects()

    def on_gone(self, error: int, now_ms: int) -> list[Effect]:
        """Become DEAD, as the group is deleted, or another broker's now: who waits is told so."""
        for member in self.members.values():
            if member.join_call is not None:
                self.answer_join(member, join_refusal(error, member.member_id))
            self.answer_sync(member, {"error_code": error})
        self.members, self.pending_joins = {}, {}  # an old timer may keep us for a while
        self.set_state(DEAD, now_ms)
        self.join_deadline_ms = self.sync_deadline_ms = self.wake_ms = NEVER_MS
        return self.take_effects()

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    @property
    def held_bytes(self) -> int:
        """What members, and ids that were given out, take in memory."""
        if not self.members and not self.pending_joins:
            return 0
        return GROUP_BYTES + self._member_bytes + self.assignment_bytes + self.pending_bytes

    def member_before(self, member_id: str, instance_id: str | None) -> ClassicMember | None:
        """The member that comes again under this id, or whose place is taken."""
        if not member_id and instance_id is not None:
            member_id = self.static_members.get(instance_id, "")
        return self.members.get(member_id)

    def check(self, member_id: str, instance_id: str | None, generation_id: int) -> int:
        """The error code for a member that says it is of this generation; 0 if it is."""
        if self.state == DEAD:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        error = self.check_member(member_id, instance_id)
        if not error and generation_id != self.generation_id:
            return error_codes.ILLEGAL_GENERATION
        return error

    def on_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        now_ms: int,
        *,
        is_transactional: bool = False,
    ) -> int:
        """The error code for who wants to commit offsets; a commit counts as a heartbeat.

        is_transactional: where a rebalance is under way, its producer would take a refusal for the
        end of itself; before KIP-447 it names no member.
        """
        if self.state == DEAD:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state == EMPTY:
            return 0
        if generation_id < 0 and not member_id and instance_id is None:
            return 0 if is_transactional else _UNKNOWN_MEMBER
        error = self.check(member_id, instance_id, generation_id)
        if not error and self.state == COMPLETING and not is_transactional:
            error = _REBALANCE
        if not error:
            member = self.members[member_id]
            if member.join_call is None:
                self.extend_session(member, now_ms)
        return error

    def is_subscribed(self, topic: str) -> bool:
        """Whether the members may be reading this topic; yes, where that isn't known."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed_topics

    def is_idle(self) -> bool:
        """Whether nobody is in it or about to be."""
        return self.state == EMPTY and not self.pending_joins

    # ── what is stored ──────────────────────────────────────────────────────────────────────────

    def replay(self, value: dict[str, Any], wall_ahead_ms: int = 0) -> None:
        """Become, as a new group, what a GroupMetadataValue says; `on_loaded` follows when all are
        replayed."""
        self.protocol_type = value["protocol_type"] or None
        self.generation_id = value["generation"]
        self.protocol_name = value["protocol"]
        self.leader_id = value["leader"]
        self.state = STABLE if value["members"] else EMPTY
        if value["current_state_timestamp"] >= 0:
            self.state_since_ms = value["current_state_timestamp"] - wall_ahead_ms
        self.assignment_bytes = sum(len(row["assignment"]) for row in value["members"])
        for member in members_in(value):
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member.member_id
            self.count(member, 1)
        self.subscribed_topics = topics_of(self)

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def wake_by(self, deadline_ms: int) -> None:
        """There is this deadline now."""
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def extend_session(self, member: ClassicMember, now_ms: int) -> None:
        """Note a sign of life: the member's session begins again."""
        member.deadline_ms = now_ms + member.session_timeout_ms
        self.wake_by(member.deadline_ms)

    def _on_session_over(self, member: ClassicMember, now_ms: int) -> None:
        if not member.is_new and (member.join_call is not None or member.sync_call is not None):
            member.deadline_ms = NEVER_MS  # it is us it waits for
            return
        self.forget(member.member_id)
        if self.state in (STABLE, COMPLETING):
            prepare_rebalance(self, now_ms)
        else:
            maybe_complete_join(self, now_ms, is_first_too=True)

    # ── members, and what they wait for ─────────────────────────────────────────────────────────

    def set_state(self, state: str, now_ms: int) -> None:
        """Set the state, from now on."""
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = now_ms

    def check_member(self, member_id: str, instance_id: str | None) -> int:
        """The error code for who says that it is this member; 0 if it is."""
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                return _UNKNOWN_MEMBER
            if current != member_id:
                return error_codes.FENCED_INSTANCE_ID
        return 0 if member_id in self.members else _UNKNOWN_MEMBER

    def forget(self, member_id: str) -> None:
        """Take a member out, or an id that was merely given out."""
        member = self.members.get(member_id)
        if member is not None:
            if member.join_call is not None:
                self.answer_join(member, join_refusal(_UNKNOWN_MEMBER))
            self.answer_sync(member, {"error_code": _UNKNOWN_MEMBER})
            del self.members[member_id]
            self.count(member, -1)
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        self.unpend(member_id)
        self.pending_syncs.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def unpend(self, member_id: str) -> None:
        """An id that was given out is used now, or nobody's."""
        if self.pending_joins.pop(member_id, None) is not None:
            self.pending_bytes -= len(member_id) + ID_BYTES

    def count(self, member: ClassicMember, difference: int) -> None:
        """Count a member more (1), or less (-1), with its protocols as they are now."""
        self._member_bytes += difference * member.held_bytes
        self.support.count(member.protocols, difference)

    def rebalance_timeout_ms(self) -> int:
        """The rebalance timeout of the most patient member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def answer_join(self, member: ClassicMember, body: dict[str, Any]) -> None:
        """Answer this member's JoinGroup, which is parked."""
        assert member.join_call is not None
        self.effects.append(Reply(member.join_call, body))
        member.join_call = None
        self.awaiting_join -= 1

    def answer_sync(self, member: ClassicMember, body: dict[str, Any]) -> None:
        """Answer this member's SyncGroup, if one is parked."""
        if member.sync_call is not None:
            self.effects.append(Reply(member.sync_call, body))
            member.sync_call = None

    def take_effects(self) -> list[Effect]:
        """What has come together, for the owner."""
        effects = self.effects
        if effects:
            self.effects = []
        return effects
