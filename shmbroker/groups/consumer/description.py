"""ConsumerGroupDescribe of a group of the new protocol: a row of the answer."""

from __future__ import annotations

from shmbroker.groups.consumer.records import rows_of
from shmbroker.groups.consumer.targets import assignor_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.groups.consumer.assignors import Assignment
    from shmbroker.groups.consumer.group import ConsumerGroup
    from shmbroker.metadata.image import TopicImage

    ById = Mapping[bytes, TopicImage]


def described(group: ConsumerGroup, by_id: ById) -> dict[str, Any]:
    """What a group is, with the names of the topics that there are."""
    return {
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": assignor_of(group),
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "rack_id": member.rack_id,
                "member_epoch": member.epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": sorted(member.subscribed_topics),
                "subscribed_topic_regex": member.subscribed_regex,
                "assignment": _named(member.assigned, by_id),
                "target_assignment": _named(group.targets.get(member.member_id, {}), by_id),
                "member_type": 1 if member.classic is None else 0,
            }
            for member in group.members.values()
        ],
    }


def _named(assignment: Assignment, by_id: ById) -> dict[str, Any]:
    """The assignment with names of topics; topics that don't exist any more are left out."""
    return {
        "topic_partitions": [
            row | {"topic_name": by_id[row["topic_id"]].name}
            for row in rows_of(assignment)
            if row["topic_id"] in by_id
        ]
    }
