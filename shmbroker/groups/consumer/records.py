"""The records of a consumer group of the new protocol, one for each thing that is stored.

    key                                    value
    ConsumerGroupMetadata      group       group epoch, and a hash of the topics it was made for
    …PartitionMetadata         group       (written by older brokers; here only its tombstone)
    …MemberMetadata            member      what a member says of itself
    …TargetAssignmentMetadata  group       epoch of the target assignment
    …TargetAssignmentMember    member      what the member shall have
    …CurrentMemberAssignment   member      what it has, and its epoch
    …RegularExpression         expression  the topics that match it

Here a record is (record type, key, value), both as messages; no value is a tombstone: what the key
names is gone. Members' tombstones go in the order current, target, metadata; Kafka insists on it.

Source: KIP-848, 1101; Kafka's GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

from shmbroker.wire import coordinator_records
from shmbroker.wire.coordinator_records import GROUP, GROUP_METADATA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.consumer.assignors import Assignment
    from shmbroker.groups.consumer.member import ConsumerMember

    Record = tuple[int, dict[str, Any], dict[str, Any] | None]

EPOCH = 3
PARTITION_METADATA = 4
MEMBER = 5
TARGET_EPOCH = 6
TARGET = 7
CURRENT = 8
REGEX = 16

TYPES = frozenset((EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX))

VERSION = 0
GROUP_METADATA_VERSION = 3


def encoded(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value as they go into the log."""
    record_type, key, value = record
    version = GROUP_METADATA_VERSION if record_type == GROUP_METADATA else VERSION
    return coordinator_records.encode_key(GROUP, record_type, key), (
        None
        if value is None
        else coordinator_records.encode_value(GROUP, record_type, version, value)
    )


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    return EPOCH, {"group_id": group_id}, {"epoch": epoch, "metadata_hash": metadata_hash}


def member_record(group_id: str, member: ConsumerMember) -> Record:
    classic = None
    if member.classic is not None:
        session_timeout_ms, protocols = member.classic
        classic = {
            "session_timeout_ms": session_timeout_ms,
            "supported_protocols": [
                {"name": name, "metadata": metadata} for name, metadata in protocols
            ],
        }
    return (
        MEMBER,
        {"group_id": group_id, "member_id": member.member_id},
        {
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": sorted(member.subscribed_topics),
            "subscribed_topic_regex": member.subscribed_regex,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "server_assignor": member.assignor,
            "classic_member_metadata": classic,
        },
    )


def target_epoch_record(group_id: str, epoch: int) -> Record:
    return TARGET_EPOCH, {"group_id": group_id}, {"assignment_epoch": epoch}


def target_record(group_id: str, member_id: str, target: Assignment) -> Record:
    return (
        TARGET,
        {"group_id": group_id, "member_id": member_id},
        {"topic_partitions": rows_of(target)},
    )


def current_record(group_id: str, member: ConsumerMember) -> Record:
    return (
        CURRENT,
        {"group_id": group_id, "member_id": member.member_id},
        {
            "member_epoch": member.epoch,
            "previous_member_epoch": member.previous_epoch,
            "state": member.state,
            "assigned_partitions": rows_of(member.assigned),
            "partitions_pending_revocation": rows_of(member.revoking),
        },
    )


def regex_record(
    group_id: str, regex: str, topics: frozenset[str], version: int, now_ms: int
) -> Record:
    return (
        REGEX,
        {"group_id": group_id, "regular_expression": regex},
        {"topics": sorted(topics), "version": version, "timestamp": now_ms},
    )


def stamped(record: Record, wall_ahead_ms: int) -> Record:
    """The record as it goes into the log: its time is the wall clock's there, the steady one's in a
    group."""
    record_type, key, value = record
    if record_type != REGEX or value is None:
        return record
    return record_type, key, moved(value, wall_ahead_ms)


def moved(value: dict[str, Any], by_ms: int) -> dict[str, Any]:
    """A value of a REGEX record with its time on another clock."""
    return value | {"timestamp": value["timestamp"] + by_ms}


def regex_tombstone(group_id: str, regex: str) -> Record:
    return REGEX, {"group_id": group_id, "regular_expression": regex}, None


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    key = {"group_id": group_id, "member_id": member_id}
    return [(record_type, key, None) for record_type in (CURRENT, TARGET, MEMBER)]


def group_tombstones(group_id: str, member_ids: list[str], regexes: list[str]) -> list[Record]:
    """All that there is of a group."""
    key = {"group_id": group_id}
    records: list[Record] = [
        (record_type, key | {"member_id": member_id}, None)
        for record_type in (CURRENT, TARGET)
        for member_id in member_ids
    ]
    records.append((TARGET_EPOCH, key, None))
    records += [(MEMBER, key | {"member_id": member_id}, None) for member_id in member_ids]
    records += [regex_tombstone(group_id, regex) for regex in regexes]
    records.append((PARTITION_METADATA, key, None))
    records.append((EPOCH, key, None))
    return records


def rows_of(assignment: Assignment) -> list[dict[str, Any]]:
    """Topic id and partitions, as messages have them."""
    return [
        {"topic_id": topic_id, "partitions": sorted(partitions)}
        for topic_id, partitions in assignment.items()
    ]


def assignment_of(rows: list[dict[str, Any]]) -> Assignment:
    """The other way round."""
    return {row["topic_id"]: frozenset(row["partitions"]) for row in rows}
