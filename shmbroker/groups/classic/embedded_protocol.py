"""What consumers of the classic protocol say to each other through the group's leader.

    0  2  version      then a ConsumerProtocolSubscription or a ConsumerProtocolAssignment

The broker reads it only where members of both protocols are in one group (KIP-848).

Source: Kafka's ConsumerProtocol.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from shmbroker.errors import ProtocolFault
from shmbroker.wire import codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.consumer.assignors import Assignment

CONSUMER = "consumer"
"""The protocol type of groups that speak it."""

VERSION_MAX = 3
"""Higher ones begin like it."""

_VERSION = Struct(">h")


class Embedded(NamedTuple):
    """A message of this protocol, as it was encoded in `version`."""

    version: int
    message: dict[str, Any]


class EmbeddedAssignment(NamedTuple):
    """What a ConsumerProtocolAssignment says."""

    partitions: Assignment
    has_user_data: bool


def subscription_of(metadata: bytes) -> Embedded | None:
    """A ConsumerProtocolSubscription; None if it isn't one."""
    return _decode("ConsumerProtocolSubscription", metadata)


def version_of(metadata: bytes) -> int:
    """The version of a subscription; 0 where there is none."""
    return max(_VERSION.unpack_from(metadata)[0], 0) if len(metadata) >= _VERSION.size else 0


def assignment_of(data: bytes, topics_by_name: dict[str, Any]) -> EmbeddedAssignment | None:
    """A ConsumerProtocolAssignment; None if it isn't one.

    Nothing at all is an assignment of nothing.
    """
    if not data:
        return EmbeddedAssignment({}, False)
    found = _decode("ConsumerProtocolAssignment", data)
    if found is None:
        return None
    message = found.message
    return EmbeddedAssignment(
        by_topic_id(message["assigned_partitions"], topics_by_name), bool(message["user_data"])
    )


def by_topic_id(rows: list[dict[str, Any]], topics_by_name: dict[str, Any]) -> Assignment:
    """Rows of a topic's name and partitions; topics that don't exist are left out."""
    found: Assignment = {}
    for row in rows:
        topic = topics_by_name.get(row["topic"])
        if topic is not None and row["partitions"]:
            found[topic.topic_id] = frozenset(row["partitions"])
    return found


def encode_assignment(
    version: int, assignment: Assignment, topics_by_id: dict[bytes, Any]
) -> bytes:
    """A ConsumerProtocolAssignment; topics that don't exist any more are left out."""
    version = min(version, VERSION_MAX)
    rows = [
        {"topic": topics_by_id[topic_id].name, "partitions": sorted(partitions)}
        for topic_id, partitions in assignment.items()
        if topic_id in topics_by_id
    ]
    message = {"assigned_partitions": rows}
    return _VERSION.pack(version) + codec.encode("ConsumerProtocolAssignment", version, message)


def _decode(name: str, data: bytes) -> Embedded | None:
    if len(data) < 2:
        return None
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        return None
    try:
        decode = codec.decoder(name, min(version, VERSION_MAX))
        message, _ = decode(data, 2, codec.REQUEST_ELEMENTS_MAX)
    except ProtocolFault:
        return None
    return Embedded(version, message)
