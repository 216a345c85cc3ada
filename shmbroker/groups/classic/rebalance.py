"""A rebalance of a classic group: wait until everybody has joined, then the next generation.

    `prepare_rebalance`      everybody has to join; who waits for an assignment is sent back
      a group's first        waits for more members, a while after each, up to the rebalance timeout
      any other              waits for all members, up to the longest rebalance timeout
    `_complete_join`         the members who have joined are the generation, and are told so
    `on_sync_time_over`      who has not asked for its assignment by then goes: once more

Rules of this file:
* Who has not joined in time is taken out; a static member stays, as it may be restarting.
* A generation has a leader who has joined. Where nobody has, static members are waited for again.
* `awaiting_join` is how many members have a parked JoinGroup.

Source: KIP-62, 134 (initial delay), 345 (static members); Kafka's GroupMetadataManager
(prepareRebalance, completeClassicGroupJoin, tryCompleteInitialRebalanceElseSchedule).
"""

from __future__ import annotations

from shmbroker.groups.classic.agreement import topics_of
from shmbroker.groups.classic.answers import generation_for
from shmbroker.groups.classic.effects import StoreEmptied
from shmbroker.groups.classic.states import COMPLETING, EMPTY, PREPARING, STABLE
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.groups.classic.group import ClassicGroup

JOIN_RETRY_MS = 1000
"""Least time to wait again for static members of whom none has joined: their own may be 0."""

_REBALANCE = error_codes.REBALANCE_IN_PROGRESS


def rebalance_or_complete(group: ClassicGroup, now_ms: int) -> None:
    """A member has come, or has something new: a rebalance, or one less to wait for in it."""
    if group.state == PREPARING:
        maybe_complete_join(group, now_ms)
    else:
        prepare_rebalance(group, now_ms)


def prepare_rebalance(group: ClassicGroup, now_ms: int, error: int = _REBALANCE) -> None:
    """Wait for everybody to join; those who wait for an assignment get `error`."""
    if group.state == COMPLETING:
        # The assignment that they wait for is of a generation that will not be.
        for member in group.members.values():
            member.assignment = b""
            if member.sync_call is not None:
                group.answer_sync(member, {"error_code": error})
                group.extend_session(member, now_ms)
    group.pending_syncs.clear()
    group.sync_deadline_ms = NEVER_MS
    is_first = group.state == EMPTY
    group.set_state(PREPARING, now_ms)
    if is_first:
        # A fleet that starts comes one by one: a generation for each would stop all each time.
        group.is_member_added = False
        group.delay_ms = group.settings.initial_delay_ms
        group.remaining_delay_ms = max(group.rebalance_timeout_ms() - group.delay_ms, 0)
        _set_join_deadline(group, now_ms + group.delay_ms)
    elif _has_everybody_joined(group):
        # The only member has joined, or the last one has left: nobody is waited for.
        _complete_join(group, now_ms)
    else:
        _set_join_deadline(group, now_ms + group.rebalance_timeout_ms())


def maybe_complete_join(group: ClassicGroup, now_ms: int, is_first_too: bool = False) -> None:
    """Complete the join phase if no member is missing. A group's first rebalance waits for its time
    all the same, unless `is_first_too`: a member that was waited for is gone."""
    if (
        group.state == PREPARING
        and (group.previous_state != EMPTY or is_first_too)
        and _has_everybody_joined(group)
    ):
        _complete_join(group, now_ms)


def _complete_join(group: ClassicGroup, now_ms: int) -> None:
    """Begin the next generation, of those who have joined; static members may be late."""
    group.join_deadline_ms = NEVER_MS
    for member in [
        member
        for member in group.members.values()
        if member.join_call is None and member.instance_id is None
    ]:
        group.forget(member.member_id)
    if group.members and not _elect_joined_leader(group):
        # Only static members are left, and none is there to assign: wait once more, as they may
        # be restarting. Their sessions end them if they are not.
        patience = max(group.rebalance_timeout_ms(), JOIN_RETRY_MS)
        _set_join_deadline(group, now_ms + patience)
        return
    group.generation_id += 1
    group.pending_syncs.clear()
    if not group.members:
        # Stored, so that a coordinator that takes over does not bring back who is gone.
        group.protocol_name = None
        group.subscribed_topics = topics_of(group)
        group.set_state(EMPTY, now_ms)
        group.effects.append(StoreEmptied())
        return
    group.protocol_name = group.support.elected(group.members)
    group.subscribed_topics = topics_of(group)
    group.set_state(COMPLETING, now_ms)
    # Sessions count again from here on: they did not while members waited for us.
    for member in group.members.values():
        if member.join_call is not None:
            group.answer_join(member, generation_for(group, member))
        member.is_new = False
        group.extend_session(member, now_ms)
    group.pending_syncs.update(group.members)
    group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms()
    group.wake_by(group.sync_deadline_ms)


def _has_everybody_joined(group: ClassicGroup) -> bool:
    return group.awaiting_join == len(group.members) and not group.pending_joins


def _elect_joined_leader(group: ClassicGroup) -> bool:
    """Whether there is a leader who has joined, after another was chosen if need be."""
    leader = group.members.get(group.leader_id or "")
    if leader is None or leader.join_call is None:
        for member in group.members.values():
            if member.join_call is not None:
                group.leader_id = member.member_id
                return True
        return False
    return True


def on_join_time_over(group: ClassicGroup, now_ms: int) -> None:
    """Members had their time to join."""
    group.join_deadline_ms = NEVER_MS
    if group.state != PREPARING:
        return
    if group.previous_state == EMPTY and group.is_member_added and group.remaining_delay_ms > 0:
        # Somebody came while we waited for more: wait again, up to the rebalance timeout.
        group.is_member_added = False
        delay = min(group.settings.initial_delay_ms, group.remaining_delay_ms)
        group.remaining_delay_ms = max(group.remaining_delay_ms - group.delay_ms, 0)
        group.delay_ms = delay
        _set_join_deadline(group, now_ms + delay)
    else:
        _complete_join(group, now_ms)


def on_sync_time_over(group: ClassicGroup, now_ms: int) -> None:
    """Members had their time to ask for their assignment."""
    group.sync_deadline_ms = NEVER_MS
    if group.state in (COMPLETING, STABLE) and group.pending_syncs:
        # They heartbeat, but have asked for nothing: their partitions would be read by nobody.
        for member_id in sorted(group.pending_syncs):
            group.forget(member_id)
        prepare_rebalance(group, now_ms)


def _set_join_deadline(group: ClassicGroup, deadline_ms: int) -> None:
    group.join_deadline_ms = deadline_ms
    group.wake_by(deadline_ms)
