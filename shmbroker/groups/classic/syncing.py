"""SyncGroup in a classic group: the leader brings the assignment, everybody gets a part of it.

    COMPLETING   parked; the leader's brings what each member shall have, which is stored first
    STABLE       answered at once with what is stored
    PREPARING    REBALANCE_IN_PROGRESS: there is another generation to join

Rules of this file:
* Nobody is told an assignment that is not in the log. Where it can't be stored, everybody has to
  join again.
* A store that is done may be of a generation that is over: it changes nothing then.
* Who is not in the leader's list has nothing to read.

Source: Kafka's GroupMetadataManager.classicGroupSyncToClassicGroup.
"""

from __future__ import annotations

from shmbroker.groups.classic.answers import assignment_of
from shmbroker.groups.classic.effects import Reply, StoreAssigned
from shmbroker.groups.classic.rebalance import prepare_rebalance
from shmbroker.groups.classic.states import COMPLETING, EMPTY, PREPARING, STABLE
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.caller import Caller
    from shmbroker.groups.classic.effects import Effect
    from shmbroker.groups.classic.group import ClassicGroup

_UNKNOWN_MEMBER = error_codes.UNKNOWN_MEMBER_ID
_REBALANCE = error_codes.REBALANCE_IN_PROGRESS


def on_sync(
    group: ClassicGroup,
    call: Caller,
    member_id: str,
    instance_id: str | None,
    generation_id: int,
    protocol_type: str | None,
    protocol_name: str | None,
    assignments: list[dict[str, Any]],
) -> list[Effect]:
    """A SyncGroup, parked until the leader's has come and is stored, or answered at once."""
    if group.state == EMPTY:
        error = _UNKNOWN_MEMBER
    else:
        error = group.check(member_id, instance_id, generation_id)
    if not error:
        if protocol_type not in (None, group.protocol_type) or (
            group.protocol_name is not None and protocol_name not in (None, group.protocol_name)
        ):
            error = error_codes.INCONSISTENT_GROUP_PROTOCOL
        elif group.state == PREPARING:
            error = _REBALANCE
    if error:
        group.effects.append(Reply(call, {"error_code": error}))
        return group.take_effects()
    member = group.members[member_id]
    group.pending_syncs.discard(member_id)
    if not group.pending_syncs:
        group.sync_deadline_ms = NEVER_MS
    if group.state == STABLE:
        # The leader was faster, or the answer got lost: what is stored is what it shall have.
        group.effects.append(Reply(call, assignment_of(group, member)))
        return group.take_effects()
    group.answer_sync(member, {"error_code": _REBALANCE})  # an earlier call of the same member
    member.sync_call = call
    if member_id == group.leader_id:
        given = {row["member_id"]: row["assignment"] for row in assignments}
        stored = {each: given.get(each, b"") for each in group.members}
        group.effects.append(StoreAssigned(group.generation_id, stored))
    return group.take_effects()


def finish_assignment(group: ClassicGroup, store: StoreAssigned, error: int, now_ms: int) -> None:
    """The assignment is stored (error 0) or can't be."""
    if group.state != COMPLETING or store.generation_id != group.generation_id:
        return  # a rebalance came meanwhile, and has answered those who waited
    if error:
        # Nobody was told it, and nobody has it any more: all join, and a leader assigns anew.
        prepare_rebalance(group, now_ms, error)
    else:
        group.set_state(STABLE, now_ms)
        assignments = store.assignments
        group.assignment_bytes = sum(map(len, assignments.values()))
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_call is not None:
                group.answer_sync(member, assignment_of(group, member))
                group.extend_session(member, now_ms)
