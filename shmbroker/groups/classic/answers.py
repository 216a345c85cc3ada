"""The bodies of answers to JoinGroup and SyncGroup, and the rows of DescribeGroups.

The same for every version: what a version doesn't have is left out when they are encoded.

Source: Kafka's ClassicGroup, GroupMetadataManager.
"""

from __future__ import annotations

from shmbroker.groups.classic.states import STABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.classic.group import ClassicGroup
    from shmbroker.groups.classic.member import ClassicMember

NO_GENERATION = -1


def generation_for(group: ClassicGroup, member: ClassicMember) -> dict[str, Any]:
    """The answer to a JoinGroup; only the leader sees who the others are."""
    members = []
    if member.member_id == group.leader_id:
        members = [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "metadata": each.metadata(group.protocol_name),
            }
            for each in group.members.values()
        ]
    return {
        "error_code": 0,
        "generation_id": group.generation_id,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "leader": group.leader_id,
        "skip_assignment": False,
        "member_id": member.member_id,
        "members": members,
    }


def assignment_of(group: ClassicGroup, member: ClassicMember) -> dict[str, Any]:
    """The answer to a SyncGroup."""
    return {
        "error_code": 0,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol_name,
        "assignment": member.assignment,
    }


def join_refusal(error: int, member_id: str = "") -> dict[str, Any]:
    """A JoinGroup's answer with an error."""
    return {
        "error_code": error,
        "generation_id": NO_GENERATION,
        "protocol_type": None,
        "protocol_name": None,
        "leader": "",
        "member_id": member_id,
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
