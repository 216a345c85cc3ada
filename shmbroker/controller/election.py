"""Elections that somebody asks for: ElectLeaders.

Pure functions of a request and an image; codes and words are those of Kafka's
`ReplicationControlManager.electLeader`. Who can lead is decided in `partition_change`.
"""

from __future__ import annotations

from shmbroker.controller import partition_change
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
    from shmbroker.controller.topics import Cluster

# `ElectionType`
PREFERRED = 0
UNCLEAN = 1


def elect_leaders(
    request: dict[str, Any], version: int, cluster: Cluster
) -> tuple[list[Record], dict[str, Any]]:
    """ElectLeaders v0–2: (records, response). Without topics it is about all partitions, and those
    that need no election aren't named."""
    image = cluster.image
    records: list[Record] = []
    elected: set[tuple[str, int]] = set()
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
            error: int = INVALID_REQUEST
            message: str | None = f"Unknown election type {election_type}"
            if is_known_type:
                error, message, change = _election(name, index, election_type, cluster)
                if change is not None and (name, index) not in elected:
                    elected.add((name, index))
                    records.append(("PartitionChangeRecord", 2, change))
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
    return records, response


def _election(
    name: str, index: int, election_type: int, cluster: Cluster
) -> tuple[int, str | None, dict[str, Any] | None]:
    """(error, message, the change to commit)."""
    topic = cluster.image.topics_by_name.get(name)
    if topic is None:
        return UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}", None
    if not 0 <= index < len(topic.partitions):
        return UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}", None
    partition = topic.partitions[index]
    is_led = partition.leader_id != NO_LEADER
    if election_type == PREFERRED:
        is_led = partition.leader_id == partition.replicas[0]
    if is_led:
        return ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.", None
    kind = partition_change.PREFERRED if election_type == PREFERRED else partition_change.UNCLEAN
    rules = cluster.rules(topic, election=kind)
    change = partition_change.partition_change(topic.topic_id, partition, rules)
    if change is not None:
        return NONE, None, change
    if election_type == PREFERRED:
        return PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.", None
    return (
        ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "Eligible topic partition leaders are not available.",
        None,
    )
