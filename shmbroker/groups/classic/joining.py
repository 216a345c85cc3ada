"""JoinGroup in a classic group: who comes, who comes again, and who takes another's place.

    no id                      a new member: it gets an id, and asks again with it (version 4 on)
    an id that was given out   a new member, which the group waits for
    a known id                 it joins the rebalance, brings something new, or missed our answer
    a known instance id        a static member has come back: the old id is fenced (KIP-345), and
      without a member id      in a stable group nobody else need notice

Rules of this file:
* Memory is asked for before anything is changed: finding some may end this very group.
* A parked call is answered exactly once; a second call of the same member sends the first away.
* A static member that has come back is in its place at once, but told so when that is stored:
  `finish_replacement` undoes it where it can't be.

Source: KIP-345 (static members), 389 (size), 394 (member ids), 814; Kafka's GroupMetadataManager
(classicGroupJoinToClassicGroup and what it calls).
"""

from __future__ import annotations

from shmbroker.groups.classic.answers import generation_for, join_refusal
from shmbroker.groups.classic.effects import Reply, StoreReplaced
from shmbroker.groups.classic.member import ClassicMember
from shmbroker.groups.classic.rebalance import (
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete,
)
from shmbroker.groups.classic.states import COMPLETING, DEAD, EMPTY, PREPARING, STABLE
from shmbroker.groups.group_memory import GROUP_BYTES, ID_BYTES, PROTOCOLS_MAX
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.groups.caller import Caller
    from shmbroker.groups.classic.effects import Effect
    from shmbroker.groups.classic.group import ClassicGroup
    from shmbroker.groups.classic.member import Protocols

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long a new member may wait for its first rebalance: its client may be gone for good."""

MEMBER_ID_REQUIRED_FROM = 4
"""Version of JoinGroup from which a member asks for its id first (KIP-394)."""
SKIP_ASSIGNMENT_FROM = 9
"""Version of JoinGroup that can tell a leader to assign nothing (KIP-814)."""

_UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
_REBALANCE = error_codes.REBALANCE_IN_PROGRESS


def on_join(
    group: ClassicGroup,
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
    if not _has_room_for(group, member_id):
        group.forget(member_id)
        _refuse_join(group, call, "", error_codes.GROUP_MAX_SIZE_REACHED)
        maybe_complete_join(group, now_ms)  # it may have been the last that was waited for
    elif group.state == DEAD:
        _refuse_join(group, call, member_id, error_codes.COORDINATOR_NOT_AVAILABLE)
    elif not _supports(group, body["protocol_type"], protocols):
        _refuse_join(group, call, member_id, error_codes.INCONSISTENT_GROUP_PROTOCOL)
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
        if error := _has_no_memory_for(group, joining, make_room):
            _refuse_join(group, call, member_id, error)
        elif member_id == "":
            _join_new(group, call, joining, body["protocol_type"], version, now_ms)
        elif member_id in group.pending_joins:
            if joining.instance_id is not None:
                _refuse_join(group, call, "", error_codes.UNKNOWN_SERVER_ERROR)
            else:
                _add(group, call, joining, body["protocol_type"], now_ms)
        else:
            _join_again(group, call, joining, now_ms)
    return group.take_effects()


def _has_room_for(group: ClassicGroup, member_id: str) -> bool:
    size_max = group.settings.size_max
    if group.state == PREPARING:
        # Whoever has joined keeps its place. Those who have not may be gone, so they hold none.
        member = group.members.get(member_id)
        return (
            member is not None and member.join_call is not None
        ) or group.awaiting_join < size_max
    if group.state in (COMPLETING, STABLE):
        return member_id in group.members or len(group.members) < size_max
    return True


def _has_no_memory_for(
    group: ClassicGroup, joining: ClassicMember, make_room: Callable[[int], bool]
) -> int:
    """The error code where what a member brings may not be held; 0 where it may."""
    before = group.member_before(joining.member_id, joining.instance_id)
    if before is not None and before.protocols == joining.protocols:
        return 0
    more = joining.held_bytes - (0 if before is None else before.held_bytes)
    held_bytes = group.held_bytes or GROUP_BYTES
    if more > 0 and held_bytes + more > group.settings.bytes_max:
        return error_codes.GROUP_MAX_SIZE_REACHED
    if not make_room(held_bytes + more - group.counted_bytes) or group.state == DEAD:
        return error_codes.COORDINATOR_NOT_AVAILABLE
    return 0


def _supports(group: ClassicGroup, protocol_type: str, protocols: Protocols) -> bool:
    """Whether there would still be a protocol that everybody knows."""
    if len(protocols) > PROTOCOLS_MAX:
        return False
    if group.state == EMPTY:
        return bool(protocol_type and protocols)
    if protocol_type != group.protocol_type:
        return False
    return group.support.has_common(protocols, len(group.members))


def _join_new(
    group: ClassicGroup,
    call: Caller,
    joining: ClassicMember,
    protocol_type: str,
    version: int,
    now_ms: int,
) -> None:
    instance_id = joining.instance_id
    named = joining.client_id if instance_id is None else instance_id
    joining.member_id = group.make_member_id(named)
    if instance_id is not None:
        if instance_id in group.static_members:
            _replace_static(group, call, joining, version, now_ms)
        else:
            _add(group, call, joining, protocol_type, now_ms)
    elif version >= MEMBER_ID_REQUIRED_FROM:
        deadline = now_ms + joining.session_timeout_ms
        group.pending_bytes += len(joining.member_id) + ID_BYTES
        group.pending_joins[joining.member_id] = deadline
        while group.pending_bytes > group.settings.bytes_max // 4:
            group.unpend(next(iter(group.pending_joins)))
        group.wake_by(deadline)
        _refuse_join(group, call, joining.member_id, error_codes.MEMBER_ID_REQUIRED)
    else:
        _add(group, call, joining, protocol_type, now_ms)


def _add(
    group: ClassicGroup, call: Caller, member: ClassicMember, protocol_type: str, now_ms: int
) -> None:
    member.is_new = True
    # The group's first rebalance waits again for each that comes: all of a fleet start together.
    if group.state == PREPARING and group.previous_state == EMPTY:
        group.is_member_added = True
    if not group.members:
        group.protocol_type = protocol_type
    if group.leader_id is None:
        group.leader_id = member.member_id
    group.members[member.member_id] = member
    if member.instance_id is not None:
        group.static_members[member.instance_id] = member.member_id
    group.count(member, 1)
    group.unpend(member.member_id)
    member.join_call = call
    group.awaiting_join += 1
    member.deadline_ms = now_ms + NEW_MEMBER_TIMEOUT_MS
    group.wake_by(member.deadline_ms)
    rebalance_or_complete(group, now_ms)


def _join_again(group: ClassicGroup, call: Caller, joining: ClassicMember, now_ms: int) -> None:
    """A member that is known here: it may merely have missed its answer."""
    error = group.check_member(joining.member_id, joining.instance_id)
    if error or group.state == EMPTY:
        _refuse_join(group, call, joining.member_id, error or _UNKNOWN_MEMBER)
        return
    member = group.members[joining.member_id]
    has_news = joining.protocols != member.protocols
    # A leader that joins a stable group asks for a rebalance: it has seen the topics change.
    is_leader = member.member_id == group.leader_id
    if group.state == PREPARING or has_news or (group.state == STABLE and is_leader):
        _update(group, call, member, joining)
        rebalance_or_complete(group, now_ms)
    else:
        # It joined this generation already, and asks as if it had not heard: tell it once more.
        group.effects.append(Reply(call, generation_for(group, member)))


def _update(
    group: ClassicGroup, call: Caller, member: ClassicMember, joining: ClassicMember
) -> None:
    if joining.protocols != member.protocols:
        group.count(member, -1)
        member.protocols = joining.protocols
        group.count(member, 1)
    member.rebalance_timeout_ms = joining.rebalance_timeout_ms
    member.session_timeout_ms = joining.session_timeout_ms
    if member.join_call is not None:
        group.answer_join(member, join_refusal(_REBALANCE, member.member_id))
    member.join_call = call
    group.awaiting_join += 1
    if not member.is_new:
        member.deadline_ms = NEVER_MS  # it waits for us now


def _replace_static(
    group: ClassicGroup, call: Caller, joining: ClassicMember, version: int, now_ms: int
) -> None:
    """A static member comes back under a new id: the old one is fenced (KIP-345).

    In a stable group nobody else need notice, unless another protocol would be chosen.
    """
    instance_id = joining.instance_id
    assert instance_id is not None
    old = group.members[group.static_members[instance_id]]
    was_leader = old.member_id == group.leader_id
    _fence(group, old)
    new = old.copy(joining.member_id)
    _swap(group, old, new)
    _update(group, call, new, joining)
    if group.state == STABLE:
        # With the same protocol it goes on with the assignment of the old id, once the log has it.
        if group.support.elected(group.members) == group.protocol_name:
            group.effects.append(StoreReplaced(old, new, was_leader, version))
        else:
            prepare_rebalance(group, now_ms)
    elif group.state == COMPLETING:
        # The leader may have been told the old id, and assigns to that.
        prepare_rebalance(group, now_ms)
    else:
        # A rebalance waits for members, and this one has joined now.
        maybe_complete_join(group, now_ms)


def _fence(group: ClassicGroup, member: ClassicMember) -> None:
    fenced = error_codes.FENCED_INSTANCE_ID
    if member.join_call is not None:
        group.answer_join(member, join_refusal(fenced, member.member_id))
    group.answer_sync(member, {"error_code": fenced})


def finish_replacement(
    group: ClassicGroup, replaced: StoreReplaced, error: int, now_ms: int
) -> None:
    """Answer the join of a static member's successor, now that its new id is stored; error: of the
    log, 0 if it is stored. Else the old id comes back."""
    old, new, was_leader, version = replaced
    if group.members.get(new.member_id) is not new:
        return  # it has been replaced again, or has left, while this was stored
    if error:
        # The log knows the old id: so does a coordinator that takes over, and so must we.
        if new.join_call is not None:
            group.answer_join(new, join_refusal(error))
        _swap(group, new, old)
        group.extend_session(old, now_ms)
        return
    if new.join_call is None:
        return  # a rebalance that began meanwhile has answered it
    if version >= SKIP_ASSIGNMENT_FROM:
        answer = generation_for(group, new)
        answer["skip_assignment"] = was_leader
    else:
        # Under its old id the client does not take itself for the leader, and assigns nothing.
        answer = generation_for(group, new) | {"members": []}
        if was_leader:
            answer["leader"] = old.member_id
    group.answer_join(new, answer)
    group.extend_session(new, now_ms)


def _swap(group: ClassicGroup, old: ClassicMember, new: ClassicMember) -> None:
    """Put a member in the place of another, which nobody needs any more."""
    group.count(old, -1)
    group.members = {
        member.member_id: member
        for member in (new if each is old else each for each in group.members.values())
    }
    group.count(new, 1)
    if new.instance_id is not None:
        group.static_members[new.instance_id] = new.member_id
    if group.leader_id == old.member_id:
        group.leader_id = new.member_id
    if old.member_id in group.pending_syncs:
        group.pending_syncs.discard(old.member_id)
        group.pending_syncs.add(new.member_id)


def _refuse_join(group: ClassicGroup, call: Caller, member_id: str, error: int) -> None:
    group.effects.append(Reply(call, join_refusal(error, member_id)))
