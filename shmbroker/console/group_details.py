"""The members of a group, and what each has: DescribeGroups or ConsumerGroupDescribe, asked of its
coordinator when one group is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shmbroker.client.faults import refuse
from shmbroker.groups.classic.embedded_protocol import assignment_of
from shmbroker.metadata.image import MetadataImage
from shmbroker.observe.snapshot import Group
from shmbroker.wire.api_keys import CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message

MEMBERS_MAX = 500
PARTITIONS_MAX = 50
"""Named of one member; more are counted."""


def members(
    ask: Callable[[int, int, Message], Message], group: Group, image: MetadataImage
) -> list[dict[str, object]]:
    """The members of a group, MEMBERS_MAX at most. ask(broker, api key, request): its answer."""
    is_consumer = group.kind == "consumer"
    api_key = CONSUMER_GROUP_DESCRIBE if is_consumer else DESCRIBE_GROUPS
    body: Message = {
        "group_ids" if is_consumer else "groups": [group.name],
        "include_authorized_operations": False,
    }
    (found,) = ask(group.coordinator, api_key, body)["groups"]
    refuse(found["error_code"], f"group {group.name}")
    rows = []
    for member in found["members"][:MEMBERS_MAX]:
        if is_consumer:
            assigned = [
                (topic["topic_name"], number)
                for topic in member["assignment"]["topic_partitions"]
                for number in topic["partitions"]
            ]
        else:
            assigned = list(_assigned(member["member_assignment"], image))
        rows.append(
            {
                "member": member["member_id"],
                "client": member["client_id"],
                "host": member["client_host"],
                "assigned": [f"{topic}-{number}" for topic, number in assigned[:PARTITIONS_MAX]],
                "assigned_count": len(assigned),
            }
        )
    return rows


def _assigned(data: bytes, image: MetadataImage) -> Iterator[tuple[str, int]]:
    """The partitions of a classic member; none where the bytes are another protocol's."""
    found = assignment_of(data, image.topics_by_name)
    for topic_id, numbers in found.partitions.items() if found is not None else ():
        for number in sorted(numbers):
            yield image.topics_by_id[topic_id].name, number
