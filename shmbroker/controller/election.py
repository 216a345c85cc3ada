"""Who leads a partition that has no leader, and ElectLeaders.

shmbroker leaves partitions their leader (see `active_controller`), but Apache Kafka, when it stops,
leaves a directory in which nobody leads anything: leader -1, and with eligible leader replicas on
even the in-sync replicas empty. A broker that comes back leads again

A. what it is in sync with;
B. what has no in-sync replica, if it is the only replica there is: no record is anywhere else.

So a client's ElectLeaders never finds anything to do: the only replica leads, or isn't there.
Codes and words are those of Kafka's `ReplicationControlManager.electLeader`.
"""

from __future__ import annotations

from shmbroker.metadata.image import NO_LEADER
from shmbroker.metadata.messages import fitting
from shmbroker.wire.error_codes import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    INVALID_REQUEST,
    NONE,
    PREFERRED_LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.controller.metadata_log import Record
    from shmbroker.metadata.image import MetadataImage

# `ElectionType`
PREFERRED = 0
UNCLEAN = 1


def elect_leaders(image: MetadataImage, broker_id: int) -> list[Record]:
    """PartitionChangeRecords that make a returning broker leader of what has none."""
    records: list[Record] = []
    for topic in image.topics_by_id.values():
        for partition in topic.partitions:
            if partition.leader_id != NO_LEADER:
                continue
            in_sync = partition.in_sync_replicas
            if not in_sync and partition.replicas == (broker_id,):  # B
                in_sync = partition.replicas
            if broker_id not in in_sync:  # A
                continue
            message = {
                "partition_id": partition.partition,
                "topic_id": topic.topic_id,
                "isr": list(in_sync),
                "leader": broker_id,
                "eligible_leader_replicas": [],
                "last_known_elr": [],
            }
            records.append(("PartitionChangeRecord", 2, message))
    return records


def elect_leaders_asked(
    request: dict[str, Any], version: int, image: MetadataImage
) -> dict[str, Any]:
    """The response to ElectLeaders v0–2. Without topics it is about all partitions, and those that
    need no election aren't named."""
    election_type = request["election_type"] if version >= 1 else PREFERRED
    is_known_type = election_type in (PREFERRED, UNCLEAN)
    asked = request["topic_partitions"]
    results = []
    if asked is None:
        names = image.topics_by_name if is_known_type else ()
        topics = [(name, range(len(image.topics_by_name[name].partitions))) for name in names]
    else:
        topics = [(topic["topic"], topic["partitions"]) for topic in asked]
    for name, indexes in topics:
        partitions = []
        for index in indexes:
            error, message = INVALID_REQUEST, f"Unknown election type {election_type}"
            if is_known_type:
                error, message = _election(name, index, election_type, image)
            if asked is None and error == ELECTION_NOT_NEEDED:
                continue
            partitions.append(
                {"partition_id": index, "error_code": error, "error_message": fitting(message)}
            )
        results.append({"topic": name, "partition_result": partitions})
    response: dict[str, Any] = {"throttle_time_ms": 0, "replica_election_results": results}
    if version >= 1:
        is_fault = not is_known_type and asked != []
        response["error_code"] = INVALID_REQUEST if is_fault else NONE
    return response


def _election(name: str, index: int, election_type: int, image: MetadataImage) -> tuple[int, str]:
    topic = image.topics_by_name.get(name)
    if topic is None:
        return UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    if not 0 <= index < len(topic.partitions):
        return UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    partition = topic.partitions[index]
    is_led = partition.leader_id != NO_LEADER
    if election_type == PREFERRED:
        is_led = partition.leader_id == partition.replicas[0]
    if is_led:
        return ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if election_type == PREFERRED:
        return PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    return ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
