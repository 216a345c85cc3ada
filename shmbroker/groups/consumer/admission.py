"""The member that speaks to a group: a known one, one to be, or one that takes another's place.

    member id known                 that member
    joins, without an instance id   a new member
    joins, with a new instance id   a new member, static from now on
    joins, with a known one         the static member's place: its record, target and assignment
                                    under the new id, so that nobody else has to move

Rules of this file:
* Nobody is refused for memory who brings no more than before (`group_memory`).
* An instance id belongs to one member id at a time: the one that came last.

Source: KIP-345, 848; Kafka's GroupMetadataManager.getOrMaybeSubscribe….
"""

from __future__ import annotations

from shmbroker.groups.consumer import records as stored
from shmbroker.groups.consumer.member import AWAY_EPOCH, ConsumerMember
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.consumer.change import Change
    from shmbroker.groups.consumer.group import ConsumerGroup


def has_room_for(
    group: ConsumerGroup, member_id: str, instance_id: str | None, brings: int
) -> bool:
    """Whether a member may be here, with so many bytes that it brings."""
    if member_id not in group.members and len(group.members) >= group.settings.size_max:
        return False
    more = brings - group.bytes_of(member_id, instance_id)
    return more <= 0 or group.held_bytes + more <= group.settings.bytes_max


def known(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember | None, int]:
    """(member, 0), or (None, error code)."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return None, error_codes.UNKNOWN_MEMBER_ID
        if current != member_id:
            return None, error_codes.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    return member, 0 if member is not None else error_codes.UNKNOWN_MEMBER_ID


def known_classic(group: ConsumerGroup, body: dict[str, Any]) -> tuple[ConsumerMember | None, int]:
    """The classic member that speaks, at its generation."""
    member, error = known(group, body["member_id"], body["group_instance_id"])
    if member is None:
        return None, error
    if member.classic is None:
        return None, error_codes.UNKNOWN_MEMBER_ID
    if member.epoch != body["generation_id"]:
        return None, error_codes.ILLEGAL_GENERATION
    return member, 0


def find(
    group: ConsumerGroup,
    change: Change,
    member_id: str,
    instance_id: str | None,
    is_joining: bool,
    is_classic: bool,
) -> tuple[ConsumerMember | None, int]:
    """The member as it was, one to be, or one that takes another's place; or an error code."""
    if not is_joining:
        return known(group, member_id, instance_id)
    static_id = group.static_members.get(instance_id) if instance_id is not None else None
    if static_id is None:
        member = group.members.get(member_id)
        return member or ConsumerMember(member_id or group.make_member_id()), 0
    existing = group.members[static_id]
    if not is_classic and existing.classic is None and existing.epoch != AWAY_EPOCH:
        return None, error_codes.UNRELEASED_INSTANCE_ID
    new = existing.copy(member_id or group.make_member_id())
    new.epoch = new.previous_epoch = 0
    group_id = group.group_id
    change.records += stored.member_tombstones(group_id, static_id)
    change.records += [
        stored.member_record(group_id, new),
        stored.target_record(group_id, new.member_id, group.targets.get(static_id, {})),
        stored.current_record(group_id, new),
    ]
    return new, 0
