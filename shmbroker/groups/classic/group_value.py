"""The record of a classic group: one value for all of it (GroupMetadataValue).

    protocol_type, protocol, generation, leader, current_state_timestamp
    members     id, instance, client, timeouts, subscription, assignment

It is written when a generation has its assignment, when the last member has gone, when a static
member has come back under another id, and when a consumer group becomes a classic one. Rebalances
in between are lost with the coordinator; so are the protocols that were not chosen: a member that
was loaded knows one.

Source: Kafka's GroupCoordinatorRecordHelpers.newGroupMetadataRecord.
"""

from __future__ import annotations

from shmbroker.groups.classic.member import ClassicMember

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from shmbroker.groups.classic.group import ClassicGroup


def value_of(
    group: ClassicGroup, assignments: dict[str, bytes] | None = None, wall_ahead_ms: int = 0
) -> dict[str, Any]:
    """The GroupMetadataValue of now; with these assignments instead of the members' own.

    wall_ahead_ms: what the wall clock, by which records go, shows more than the group's.
    """
    return {
        "protocol_type": group.protocol_type or "",
        "generation": group.generation_id,
        "protocol": group.protocol_name,
        "leader": group.leader_id,
        "current_state_timestamp": group.state_since_ms + wall_ahead_ms,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "rebalance_timeout": member.rebalance_timeout_ms,
                "session_timeout": member.session_timeout_ms,
                "subscription": member.metadata(group.protocol_name),
                "assignment": (
                    member.assignment if assignments is None else assignments[member.member_id]
                ),
            }
            for member in group.members.values()
        ],
    }


def members_in(value: dict[str, Any]) -> Iterator[ClassicMember]:
    """The members that a GroupMetadataValue has; older ones say no rebalance timeout."""
    for row in value["members"]:
        timeout = row["rebalance_timeout"]
        yield ClassicMember(
            row["member_id"],
            row["group_instance_id"],
            row["client_id"],
            row["client_host"],
            timeout if timeout >= 0 else row["session_timeout"],
            row["session_timeout"],
            ((value["protocol"] or "", row["subscription"]),),
            row["assignment"],
        )
