"""One group of the classic protocol: a state machine of members, generations and rebalances.

    EMPTY ──join──► PREPARING ──all joined, or time is up──► COMPLETING ──stored──► STABLE
      ▲               │ ▲  ▲                                     │                     │
      └──nobody left──┘ │  └──────── a member joins or goes ─────┘                     │
                        └───────────── a member joins, goes, or brings something new ──┘
    any ──deleted or unloaded──► DEAD

Rules of this file:
* Pure: the time comes in as an argument, member ids come from a function that the owner passes,
  and what is to happen is returned as a list of `effects`, to be executed in their order.
* A parked call is answered exactly once; a second call of the same member sends the first away.
* `generation_id` never falls. At COMPLETING and STABLE there are members, and one of them leads.
* Deadlines are only ever looked at by `on_time`; `wake_ms` is never later than the first of them,
  so that the owner keeps one timer for a group, and a heartbeat stores one number.

Kafka keeps silent where a second JoinGroup or SyncGroup overtakes the first, or where a member
that waits for its assignment goes: here the first is told REBALANCE_IN_PROGRESS, the latter
UNKNOWN_MEMBER_ID.

Source: KIP-62, 134 (initial delay), 345 (static members), 389 (size), 394 (member ids), 559, 800,
814; Kafka's ClassicGroup and GroupMetadataManager.
"""

from __future__ import annotations

from shmbroker.groups.classic.effects import Reply, StoreAssigned, StoreEmptied, StoreReplaced
from shmbroker.groups.classic.member import NEVER, ClassicMember, subscribed_topics
from shmbroker.groups.group_memory import (
    GROUP_BYTES,
    GROUP_BYTES_MAX,
    ID_BYTES,
    PROTOCOLS_MAX,
    SUBSCRIBED_NAMES_MAX,
)
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.groups.caller import Caller
    from shmbroker.groups.classic.effects import Effect, Store
    from shmbroker.groups.classic.member import Protocols

# States, as clients read them.
EMPTY = "Empty"
PREPARING = "PreparingRebalance"
COMPLETING = "CompletingRebalance"
STABLE = "Stable"
DEAD = "Dead"

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first rebalance: its client may be gone for good."""

JOIN_RETRY_MS = 1000
"""Least time to wait again for static members of whom none has joined: their own may be 0."""

KNOWN_SUBSCRIPTIONS_MAX = 8

NO_GENERATION = -1
CONSUMER = "consumer"
TYPE_CLASSIC = "classic"
MEMBER_ID_REQUIRED_FROM = 4
SKIP_ASSIGNMENT_FROM = 9

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
        "_assignment_bytes",
        "_awaiting_join",
        "_delay_ms",
        "_effects",
        "_granted_generation",
        "_granted_members",
        "_is_member_added",
        "_join_deadline_ms",
        "_make_member_id",
        "_member_bytes",
        "_pending_bytes",
        "_previous_state",
        "_remaining_delay_ms",
        "_settings",
        "_support",
        "_sync_deadline_ms",
        "counted_bytes",
        "generation_id",
        "grants",
        "group_id",
        "leader_id",
        "members",
        "owner",
        "pending_joins",
        "pending_syncs",
        "protocol_name",
        "protocol_type",
        "scheduled_ms",
        "state",
        "state_since_ms",
        "static_members",
        "subscribed_topics",
        "wake_ms",
    )

    def __init__(
        self,
        group_id: str,
        settings: ClassicSettings,
        make_member_id: Callable[[str], str],
        now_ms: int,
        owner: Any = None,
    ) -> None:
        self.group_id = group_id
        self.owner = owner
        """The partition's groups that it belongs to; not looked at here, so of any kind."""
        self._settings = settings
        self._make_member_id = make_member_id
        self.state = EMPTY
        self._previous_state = DEAD
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
        self._member_bytes = self._assignment_bytes = self._pending_bytes = 0
        self._support: dict[str, int] = {}
        self._awaiting_join = 0
        self._is_member_added = False
        self._join_deadline_ms = NEVER
        self._sync_deadline_ms = NEVER
        self._delay_ms = 0
        self._remaining_delay_ms = 0
        self._effects: list[Effect] = []
        self.wake_ms = NEVER
        self.scheduled_ms = NEVER
        """The owner's: for when its timer is set."""

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def on_join(
        self,
        call: Caller,
        body: dict[str, Any],
        version: int,
        client_id: str,
        client_host: str,
        now_ms: int,
        make_room: Callable[[int], bool],
    ) -> list[Effect]:
        """A JoinGroup, parked until the rebalance is over, or answered at once.

        make_room: whether the owner's groups may hold so many bytes more; asked before anything is
        changed, it may make this group one of those that are gone.
        """
        member_id = body["member_id"]
        protocols = tuple([(row["name"], row["metadata"]) for row in body["protocols"]])
        rebalance_timeout_ms = body["rebalance_timeout_ms"]
        if version == 0:
            rebalance_timeout_ms = body["session_timeout_ms"]
        if not self._has_room_for(member_id):
            self._forget(member_id)
            self._refuse_join(call, "", error_codes.GROUP_MAX_SIZE_REACHED)
        elif self.state == DEAD:
            self._refuse_join(call, member_id, error_codes.COORDINATOR_NOT_AVAILABLE)
        elif not self._supports(body["protocol_type"], protocols):
            self._refuse_join(call, member_id, error_codes.INCONSISTENT_GROUP_PROTOCOL)
        else:
            joining = ClassicMember(
                member_id,
                body["group_instance_id"],
                client_id,
                client_host,
                rebalance_timeout_ms,
                body["session_timeout_ms"],
                protocols,
            )
            more = joining.held_bytes - self.bytes_of(member_id, joining.instance_id)
            held_bytes = self.held_bytes or GROUP_BYTES
            if more > 0 and held_bytes + more > self._settings.bytes_max:
                self._refuse_join(call, member_id, error_codes.GROUP_MAX_SIZE_REACHED)
            elif not make_room(held_bytes + more - self.counted_bytes) or self.state == DEAD:
                self._refuse_join(call, member_id, error_codes.COORDINATOR_NOT_AVAILABLE)
            elif member_id == "":
                self._join_new(call, joining, body["protocol_type"], version, now_ms)
            elif member_id in self.pending_joins:
                if joining.instance_id is not None:
                    self._refuse_join(call, "", error_codes.UNKNOWN_SERVER_ERROR)
                else:
                    self._add(call, joining, body["protocol_type"], now_ms)
            else:
                self._join_again(call, joining, now_ms)
        return self._take_effects()

    def on_sync(
        self,
        call: Caller,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: list[dict[str, Any]],
        now_ms: int,
    ) -> list[Effect]:
        """A SyncGroup, parked until the leader's has come and is stored, or answered at once."""
        if self.state == EMPTY:
            error = _UNKNOWN_MEMBER
        else:
            error = self.check(member_id, instance_id, generation_id)
        if not error:
            if protocol_type not in (None, self.protocol_type) or (
                self.protocol_name is not None and protocol_name not in (None, self.protocol_name)
            ):
                error = error_codes.INCONSISTENT_GROUP_PROTOCOL
            elif self.state == PREPARING:
                error = _REBALANCE
        if error:
            self._effects.append(Reply(call, {"error_code": error}))
            return self._take_effects()
        member = self.members[member_id]
        self.pending_syncs.discard(member_id)
        if not self.pending_syncs:
            self._sync_deadline_ms = NEVER
        if self.state == STABLE:
            self._effects.append(Reply(call, self._assignment_of(member)))
            return self._take_effects()
        self._answer_sync(member, {"error_code": _REBALANCE})
        member.sync_call = call
        if member_id == self.leader_id:
            given = {row["member_id"]: row["assignment"] for row in assignments}
            stored = {each: given.get(each, b"") for each in self.members}
            self._effects.append(StoreAssigned(self.generation_id, stored))
        return self._take_effects()

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
            and self.members is self._granted_members  # `_swap` makes a new dict
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
                member_id = self.static_members.get(instance_id or "", "")
                error = 0 if member_id else _UNKNOWN_MEMBER
            elif member_id in self.pending_joins:
                error = 0
            else:
                error = self._check_member(member_id, instance_id)
            if not error:
                self._forget(member_id)
            errors.append(error)
        if 0 in errors:
            if self.state in (STABLE, COMPLETING):
                self._prepare_rebalance(now_ms)
            else:
                self._maybe_complete_join(now_ms)
        return errors, self._take_effects()

    def on_stored(self, store: Store, error: int, now_ms: int) -> list[Effect]:
        """A store is done (error 0) or has failed."""
        if isinstance(store, StoreReplaced):
            self._finish_replacement(store, error, now_ms)
        elif (
            isinstance(store, StoreAssigned)
            and self.state == COMPLETING
            and store.generation_id == self.generation_id
        ):
            if error:
                self._prepare_rebalance(now_ms, error)
            else:
                self._set_state(STABLE, now_ms)
                assignments = store.assignments
                self._assignment_bytes = sum(map(len, assignments.values()))
                for member in self.members.values():
                    member.assignment = assignments.get(member.member_id, b"")
                    if member.sync_call is not None:
                        self._answer_sync(member, self._assignment_of(member))
                        self._see(member, now_ms)
        return self._take_effects()

    def on_time(self, now_ms: int) -> list[Effect]:
        """Some deadline may have passed: end what is due and find the next `wake_ms`."""
        if self.wake_ms <= now_ms:
            for member_id in [
                each for each, deadline in self.pending_joins.items() if deadline <= now_ms
            ]:
                self._unpend(member_id)
                self._maybe_complete_join(now_ms, is_first_too=True)
            for member in [
                member for member in self.members.values() if member.deadline_ms <= now_ms
            ]:
                if self.members.get(member.member_id) is member and member.deadline_ms <= now_ms:
                    self._on_session_over(member, now_ms)
            if self._join_deadline_ms <= now_ms:
                self._on_join_time_over(now_ms)
            if self._sync_deadline_ms <= now_ms:
                self._on_sync_time_over(now_ms)
            self.wake_ms = min(
                self._join_deadline_ms,
                self._sync_deadline_ms,
                min(self.pending_joins.values(), default=NEVER),
                min((member.deadline_ms for member in self.members.values()), default=NEVER),
            )
        return self._take_effects()

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """All records have been replayed: members have a full session from now on."""
        for member in self.members.values():
            self._see(member, now_ms)
        if len(self.members) > self._settings.size_max:
            self._prepare_rebalance(now_ms)
        return self._take_effects()

    def adopt(self, members: list[ClassicMember], generation_id: int, now_ms: int) -> None:
        """Become a stable group of members that were in a group of the new protocol."""
        self.generation_id = generation_id
        self.protocol_type = CONSUMER
        for member in members:
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member.member_id
            self._count(member, 1)
        self.leader_id = members[0].member_id
        self.protocol_name = self._select_protocol()
        self.subscribed_topics = self._topics()
        self._set_state(STABLE, now_ms)

    def on_adopted(self, is_rebalancing: bool, now_ms: int) -> list[Effect]:
        """The adopted members' sessions begin; they have to join again if anything is different."""
        for member in self.members.values():
            self._see(member, now_ms)
        if is_rebalancing:
            self._prepare_rebalance(now_ms)
        return self._take_effects()

    def send_away(self, now_ms: int) -> list[Effect]:
        """Whoever waits has to begin again: the group changes its protocol."""
        for member in self.members.values():
            if member.join_call is not None:
                self._answer_join(member, _join_refusal(member.member_id, _REBALANCE))
                self._see(member, now_ms)
            if member.sync_call is not None:
                self._answer_sync(member, {"error_code": _REBALANCE})
                self._see(member, now_ms)
        return self._take_effects()

    def on_gone(self, error: int, now_ms: int) -> list[Effect]:
        """Deleted, or another broker's now: whoever waits is told so, and it is DEAD."""
        for member in self.members.values():
            if member.join_call is not None:
                self._answer_join(member, _join_refusal(member.member_id, error))
            self._answer_sync(member, {"error_code": error})
        self.members, self.pending_joins = {}, {}  # an old timer may keep us for a while
        self._pending_bytes = 0
        self._set_state(DEAD, now_ms)
        self._join_deadline_ms = self._sync_deadline_ms = self.wake_ms = NEVER
        return self._take_effects()

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    @property
    def held_bytes(self) -> int:
        """What members, and ids that were given out, take in memory."""
        if not self.members and not self.pending_joins:
            return 0
        return GROUP_BYTES + self._member_bytes + self._assignment_bytes + self._pending_bytes

    def bytes_of(self, member_id: str, instance_id: str | None) -> int:
        """What a member takes that comes again, or whose place is taken; 0 if there is none."""
        if not member_id and instance_id is not None:
            member_id = self.static_members.get(instance_id, "")
        member = self.members.get(member_id)
        return 0 if member is None else member.held_bytes

    def check(self, member_id: str, instance_id: str | None, generation_id: int) -> int:
        """The error code for a member that says it is of this generation; 0 if it is."""
        if self.state == DEAD:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        error = self._check_member(member_id, instance_id)
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

        is_transactional: it names no member, as it is older than KIP-447.
        """
        if self.state == DEAD:
            return error_codes.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state == EMPTY:
            return 0
        if is_transactional:
            return _REBALANCE if self.state == COMPLETING else 0
        if generation_id < 0 and not member_id and instance_id is None:
            return _UNKNOWN_MEMBER
        error = self.check(member_id, instance_id, generation_id)
        if not error and self.state == COMPLETING:
            error = _REBALANCE
        if not error:
            member = self.members[member_id]
            if member.join_call is None:
                self._see(member, now_ms)
        return error

    def is_subscribed(self, topic: str) -> bool:
        """Whether the members may be reading this topic; yes, where that isn't known."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed_topics

    def is_simple(self) -> bool:
        """Whether it only keeps offsets that somebody commits without being a member."""
        return self.protocol_type is None

    def is_idle(self) -> bool:
        """Whether nobody is in it or about to be."""
        return self.state == EMPTY and not self.pending_joins

    def record(
        self, assignments: dict[str, bytes] | None = None, wall_ahead_ms: int = 0
    ) -> dict[str, Any]:
        """The GroupMetadataValue of now; with these assignments instead of the members' own.

        wall_ahead_ms: what the wall clock, by which records go, shows more than the group's.
        """
        return {
            "protocol_type": self.protocol_type or "",
            "generation": self.generation_id,
            "protocol": self.protocol_name,
            "leader": self.leader_id,
            "current_state_timestamp": self.state_since_ms + wall_ahead_ms,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "rebalance_timeout": member.rebalance_timeout_ms,
                    "session_timeout": member.session_timeout_ms,
                    "subscription": member.metadata(self.protocol_name),
                    "assignment": (
                        member.assignment if assignments is None else assignments[member.member_id]
                    ),
                }
                for member in self.members.values()
            ],
        }

    def replay(self, value: dict[str, Any], wall_ahead_ms: int = 0) -> None:
        """Become what a GroupMetadataValue says; `on_loaded` follows when all are replayed."""
        self.protocol_type = value["protocol_type"] or None
        self.generation_id = value["generation"]
        self.protocol_name = value["protocol"]
        self.leader_id = value["leader"]
        self.state = STABLE if value["members"] else EMPTY
        if value["current_state_timestamp"] >= 0:
            self.state_since_ms = value["current_state_timestamp"] - wall_ahead_ms
        self.members = {}
        self.static_members = {}
        self._support = {}
        self._member_bytes = 0
        self._assignment_bytes = sum(len(row["assignment"]) for row in value["members"])
        for row in value["members"]:
            timeout = row["rebalance_timeout"]
            member = ClassicMember(
                row["member_id"],
                row["group_instance_id"],
                row["client_id"],
                row["client_host"],
                timeout if timeout >= 0 else row["session_timeout"],
                row["session_timeout"],
                ((self.protocol_name or "", row["subscription"]),),
                row["assignment"],
            )
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member.member_id
            self._count(member, 1)
        self.subscribed_topics = self._topics()

    # ── joining ─────────────────────────────────────────────────────────────────────────────────

    def _has_room_for(self, member_id: str) -> bool:
        size_max = self._settings.size_max
        if self.state == PREPARING:
            member = self.members.get(member_id)
            return (
                member is not None and member.join_call is not None
            ) or self._awaiting_join < size_max
        if self.state in (COMPLETING, STABLE):
            return member_id in self.members or len(self.members) < size_max
        return True

    def _supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether there would still be a protocol that everybody knows."""
        if len(protocols) > PROTOCOLS_MAX:
            return False
        if self.state == EMPTY:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        everybody = len(self.members)
        support = self._support
        for name, _ in protocols:  # noqa: SIM110 - each JoinGroup asks; a generator costs twice
            if support.get(name, 0) == everybody:
                return True
        return False

    def _join_new(
        self, call: Caller, joining: ClassicMember, protocol_type: str, version: int, now_ms: int
    ) -> None:
        instance_id = joining.instance_id
        joining.member_id = self._make_member_id(
            joining.client_id if instance_id is None else instance_id
        )
        if instance_id is not None:
            if instance_id in self.static_members:
                self._replace_static(call, joining, version, now_ms)
            else:
                self._add(call, joining, protocol_type, now_ms)
        elif version >= MEMBER_ID_REQUIRED_FROM:
            deadline = now_ms + joining.session_timeout_ms
            self._pending_bytes += len(joining.member_id) + ID_BYTES
            self.pending_joins[joining.member_id] = deadline
            while self._pending_bytes > self._settings.bytes_max // 4:
                self._unpend(next(iter(self.pending_joins)))
            self._wake_by(deadline)
            self._refuse_join(call, joining.member_id, error_codes.MEMBER_ID_REQUIRED)
        else:
            self._add(call, joining, protocol_type, now_ms)

    def _add(self, call: Caller, member: ClassicMember, protocol_type: str, now_ms: int) -> None:
        member.is_new = True
        if self.state == PREPARING and self._previous_state == EMPTY:
            self._is_member_added = True
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count(member, 1)
        self._unpend(member.member_id)
        member.join_call = call
        self._awaiting_join += 1
        member.deadline_ms = now_ms + NEW_MEMBER_TIMEOUT_MS
        self._wake_by(member.deadline_ms)
        self._rebalance_or_complete(now_ms)

    def _join_again(self, call: Caller, joining: ClassicMember, now_ms: int) -> None:
        """A member that is known here: it may merely have missed its answer."""
        error = self._check_member(joining.member_id, joining.instance_id)
        if error or self.state == EMPTY:
            self._refuse_join(call, joining.member_id, error or _UNKNOWN_MEMBER)
            return
        member = self.members[joining.member_id]
        has_news = joining.protocols != member.protocols
        is_leader = member.member_id == self.leader_id
        if self.state == PREPARING or has_news or (self.state == STABLE and is_leader):
            self._update(call, member, joining)
            self._rebalance_or_complete(now_ms)
        else:
            self._effects.append(Reply(call, self._generation_for(member)))

    def _update(self, call: Caller, member: ClassicMember, joining: ClassicMember) -> None:
        if joining.protocols != member.protocols:
            self._count(member, -1)
            member.bring(joining.protocols)
            self._count(member, 1)
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = joining.session_timeout_ms
        if member.join_call is not None:
            self._answer_join(member, _join_refusal(member.member_id, _REBALANCE))
        member.join_call = call
        self._awaiting_join += 1
        if not member.is_new:
            member.deadline_ms = NEVER  # it waits for us now

    def _replace_static(
        self, call: Caller, joining: ClassicMember, version: int, now_ms: int
    ) -> None:
        """A static member comes back under a new id: the old one is fenced (KIP-345).

        In a stable group nobody else need notice, unless another protocol would be chosen.
        """
        instance_id = joining.instance_id
        assert instance_id is not None
        old = self.members[self.static_members[instance_id]]
        was_leader = old.member_id == self.leader_id
        self._fence(old)
        new = old.copy(joining.member_id)
        self._swap(old, new)
        self._see(new, now_ms)
        self._update(call, new, joining)
        if self.state == STABLE:
            if self._select_protocol() == self.protocol_name:
                self._effects.append(StoreReplaced(old, new, was_leader, version))
            else:
                self._prepare_rebalance(now_ms)
        elif self.state == COMPLETING:
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _fence(self, member: ClassicMember) -> None:
        fenced = error_codes.FENCED_INSTANCE_ID
        if member.join_call is not None:
            self._answer_join(member, _join_refusal(member.member_id, fenced))
        self._answer_sync(member, {"error_code": fenced})

    def _swap(self, old: ClassicMember, new: ClassicMember) -> None:
        """Put a member in the place of another, which nobody needs any more."""
        self._count(old, -1)
        self.members = {
            member.member_id: member
            for member in (new if each is old else each for each in self.members.values())
        }
        self._count(new, 1)
        if new.instance_id is not None:
            self.static_members[new.instance_id] = new.member_id
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        if old.member_id in self.pending_syncs:
            self.pending_syncs.discard(old.member_id)
            self.pending_syncs.add(new.member_id)

    def _finish_replacement(self, replaced: StoreReplaced, error: int, now_ms: int) -> None:
        old, new, was_leader, version = replaced
        if self.members.get(new.member_id) is not new:
            return
        if error:
            if new.join_call is not None:
                self._answer_join(new, _join_refusal("", error))
            self._swap(new, old)
            self._see(old, now_ms)
            return
        if new.join_call is None:
            return
        if version >= SKIP_ASSIGNMENT_FROM:
            answer = self._generation_for(new)
            answer["skip_assignment"] = was_leader
        else:
            # Under its old id the client does not take itself for the leader, and assigns nothing.
            answer = self._generation_for(new) | {"members": []}
            if was_leader:
                answer["leader"] = old.member_id
        self._answer_join(new, answer)
        self._see(new, now_ms)

    # ── rebalancing ─────────────────────────────────────────────────────────────────────────────

    def _rebalance_or_complete(self, now_ms: int) -> None:
        if self.state == PREPARING:
            self._maybe_complete_join(now_ms)
        else:
            self._prepare_rebalance(now_ms)

    def _prepare_rebalance(self, now_ms: int, error: int = _REBALANCE) -> None:
        """Wait for everybody to join; those who wait for an assignment get `error`."""
        if self.state == COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                if member.sync_call is not None:
                    self._answer_sync(member, {"error_code": error})
                    self._see(member, now_ms)
        self.pending_syncs.clear()
        self._sync_deadline_ms = NEVER
        is_first = self.state == EMPTY
        self._set_state(PREPARING, now_ms)
        if is_first:
            self._delay_ms = self._settings.initial_delay_ms
            self._remaining_delay_ms = max(self._rebalance_timeout_ms() - self._delay_ms, 0)
            self._set_join_deadline(now_ms + self._delay_ms)
        elif self._has_everybody_joined():
            self._complete_join(now_ms)
        else:
            self._set_join_deadline(now_ms + self._rebalance_timeout_ms())

    def _maybe_complete_join(self, now_ms: int, is_first_too: bool = False) -> None:
        if (
            self.state == PREPARING
            and (self._previous_state != EMPTY or is_first_too)
            and self._has_everybody_joined()
        ):
            self._complete_join(now_ms)

    def _has_everybody_joined(self) -> bool:
        return self._awaiting_join == len(self.members) and not self.pending_joins

    def _complete_join(self, now_ms: int) -> None:
        """The next generation, of those who have joined; static members may be late."""
        self._join_deadline_ms = NEVER
        for member in [
            member
            for member in self.members.values()
            if member.join_call is None and member.instance_id is None
        ]:
            self._forget(member.member_id)
        if self.members and not self._elect_joined_leader():
            patience = max(self._rebalance_timeout_ms(), JOIN_RETRY_MS)
            self._set_join_deadline(now_ms + patience)
            return
        self.generation_id += 1
        self.pending_syncs.clear()
        if not self.members:
            self.protocol_name = None
            self.subscribed_topics = self._topics()
            self._set_state(EMPTY, now_ms)
            self._effects.append(StoreEmptied())
            return
        self.protocol_name = self._select_protocol()
        self.subscribed_topics = self._topics()
        self._set_state(COMPLETING, now_ms)
        for member in self.members.values():
            if member.join_call is not None:
                self._answer_join(member, self._generation_for(member))
            member.is_new = False
            self._see(member, now_ms)
        self.pending_syncs.update(self.members)
        self._sync_deadline_ms = now_ms + self._rebalance_timeout_ms()
        self._wake_by(self._sync_deadline_ms)

    def _elect_joined_leader(self) -> bool:
        """Whether there is a leader who has joined, after another was chosen if need be."""
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.join_call is None:
            for member in self.members.values():
                if member.join_call is not None:
                    self.leader_id = member.member_id
                    return True
            return False
        return True

    def _select_protocol(self) -> str:
        """The one with the most votes: each member votes for its first that everybody knows."""
        everybody = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                if self._support[name] == everybody:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=lambda name: votes[name])

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def _wake_by(self, deadline_ms: int) -> None:
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def _see(self, member: ClassicMember, now_ms: int) -> None:
        """A sign of life: its session begins anew."""
        member.deadline_ms = now_ms + member.session_timeout_ms
        self._wake_by(member.deadline_ms)

    def _set_join_deadline(self, deadline_ms: int) -> None:
        self._join_deadline_ms = deadline_ms
        self._wake_by(deadline_ms)

    def _on_session_over(self, member: ClassicMember, now_ms: int) -> None:
        if not member.is_new and (member.join_call is not None or member.sync_call is not None):
            member.deadline_ms = NEVER  # it is us it waits for
            return
        self._forget(member.member_id)
        if self.state in (STABLE, COMPLETING):
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms, is_first_too=True)

    def _on_join_time_over(self, now_ms: int) -> None:
        self._join_deadline_ms = NEVER
        if self.state != PREPARING:
            return
        if self._previous_state == EMPTY and self._is_member_added and self._remaining_delay_ms > 0:
            # Somebody came while we waited for more: wait again, up to the rebalance timeout.
            self._is_member_added = False
            delay = min(self._settings.initial_delay_ms, self._remaining_delay_ms)
            self._remaining_delay_ms = max(self._remaining_delay_ms - self._delay_ms, 0)
            self._delay_ms = delay
            self._set_join_deadline(now_ms + delay)
        else:
            self._complete_join(now_ms)

    def _on_sync_time_over(self, now_ms: int) -> None:
        self._sync_deadline_ms = NEVER
        if self.state in (COMPLETING, STABLE) and self.pending_syncs:
            for member_id in sorted(self.pending_syncs):
                self._forget(member_id)
            self._prepare_rebalance(now_ms)

    # ── small things ────────────────────────────────────────────────────────────────────────────

    def _set_state(self, state: str, now_ms: int) -> None:
        self._previous_state = self.state
        self.state = state
        self.state_since_ms = now_ms

    def _check_member(self, member_id: str, instance_id: str | None) -> int:
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                return _UNKNOWN_MEMBER
            if current != member_id:
                return error_codes.FENCED_INSTANCE_ID
        return 0 if member_id in self.members else _UNKNOWN_MEMBER

    def _forget(self, member_id: str) -> None:
        """Take a member out, or an id that was merely given out."""
        member = self.members.get(member_id)
        if member is not None:
            if member.join_call is not None:
                self._answer_join(member, _join_refusal("", _UNKNOWN_MEMBER))
            self._answer_sync(member, {"error_code": _UNKNOWN_MEMBER})
            del self.members[member_id]
            self._count(member, -1)
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        self._unpend(member_id)
        self.pending_syncs.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def _unpend(self, member_id: str) -> None:
        """An id that was given out is used now, or nobody's."""
        if self.pending_joins.pop(member_id, None) is not None:
            self._pending_bytes -= len(member_id) + ID_BYTES

    def _count(self, member: ClassicMember, difference: int) -> None:
        self._member_bytes += difference * member.held_bytes
        support = self._support
        for name in {name for name, _ in member.protocols}:
            support[name] = support.get(name, 0) + difference
            if not support[name]:
                del support[name]

    def _rebalance_timeout_ms(self) -> int:
        """The rebalance timeout of the most patient member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _topics(self) -> frozenset[str] | None:
        """What the members are subscribed to, if they say it in the consumers' own format."""
        if self.protocol_type != CONSUMER:
            return None
        topics: set[str] = set()
        if self.members and self.protocol_name is None:
            return None
        left = SUBSCRIBED_NAMES_MAX
        known: list[bytes] = []  # what subscriptions begin with: most are to the same topics
        for member in self.members.values():
            metadata = member.metadata(self.protocol_name)
            if any(metadata.startswith(same, 2) for same in known):
                continue
            found = subscribed_topics(metadata, left)
            if found is None:
                return None
            topics.update(found[0])
            left -= len(found[0])
            if len(known) < KNOWN_SUBSCRIPTIONS_MAX:
                known.append(metadata[2 : found[1]])
        return frozenset(topics)

    def _generation_for(self, member: ClassicMember) -> dict[str, Any]:
        """The answer to a JoinGroup; only the leader sees who the others are."""
        members = []
        if member.member_id == self.leader_id:
            members = [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.instance_id,
                    "metadata": each.metadata(self.protocol_name),
                }
                for each in self.members.values()
            ]
        return {
            "error_code": 0,
            "generation_id": self.generation_id,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol_name,
            "leader": self.leader_id,
            "skip_assignment": False,
            "member_id": member.member_id,
            "members": members,
        }

    def _assignment_of(self, member: ClassicMember) -> dict[str, Any]:
        return {
            "error_code": 0,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol_name,
            "assignment": member.assignment,
        }

    def _refuse_join(self, call: Caller, member_id: str, error: int) -> None:
        self._effects.append(Reply(call, _join_refusal(member_id, error)))

    def _answer_join(self, member: ClassicMember, body: dict[str, Any]) -> None:
        self._effects.append(Reply(member.join_call, body))
        member.join_call = None
        self._awaiting_join -= 1

    def _answer_sync(self, member: ClassicMember, body: dict[str, Any]) -> None:
        if member.sync_call is not None:
            self._effects.append(Reply(member.sync_call, body))
            member.sync_call = None

    def _take_effects(self) -> list[Effect]:
        effects = self._effects
        if effects:
            self._effects = []
        return effects


def _join_refusal(member_id: str, error: int) -> dict[str, Any]:
    return {
        "error_code": error,
        "generation_id": NO_GENERATION,
        "protocol_type": None,
        "protocol_name": None,
        "leader": "",
        "member_id": member_id,
        "members": [],
    }
