"""Elections without a death: those that somebody asks for (ElectLeaders), and those whose time has
come, for preferred leaders and for partitions without one.

Pure functions of a request and an image; codes and words are those of Kafka's
`ReplicationControlManager.electLeader`. Who can lead is decided in `partition_change`.
"""

from __future__ import annotations

from shmbroker.controller.decisions import partition_change
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
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState
    from shmbroker.metadata.image import PartitionImage, TopicImage
    from shmbroker.metadata.record import MetadataRecord

# `ElectionType`
PREFERRED = 0
UNCLEAN = 1

ELECTIONS_MAX = 1000
"""The elections of one decision that nobody asked for (Kafka: MAX_ELECTIONS_PER_IMBALANCE)."""


def elect_leaders(
    request: dict[str, Any], version: int, cluster: ClusterState
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """ElectLeaders v0–2: (records, response). Without topics it is about all partitions, and those
    that need no election aren't named."""
    image = cluster.image
    records: list[MetadataRecord] = []
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
    name: str, index: int, election_type: int, cluster: ClusterState
) -> tuple[int, str | None, dict[str, Any] | None]:
    """(error, message, the change to commit)."""
    topic = cluster.image.topics_by_name.get(name)
    if topic is None:
        return UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}", None
    if not 0 <= index < len(topic.partitions):
        return UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}", None
    partition = topic.partitions[index]
    is_led = cluster.is_active(partition.leader_id)
    if election_type == PREFERRED:
        is_led &= partition.leader_id == partition.replicas[0]
    if is_led:
        return ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.", None
    kind = partition_change.PREFERRED if election_type == PREFERRED else partition_change.UNCLEAN
    change = _elected(topic, partition, cluster, kind)
    if change is not None:
        return NONE, None, change
    if election_type == PREFERRED:
        return PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.", None
    says = "Eligible topic partition leaders are not available."
    return ELIGIBLE_LEADERS_NOT_AVAILABLE, says, None


def preferred_leaders(
    cluster: ClusterState, only: AbstractSet[int] | None = None
) -> list[MetadataRecord]:
    """PartitionChangeRecords that give the lead back to first replicas which are in sync
    (`maybeBalancePartitionLeaders`); at most ELECTIONS_MAX. `only`: to these brokers."""
    return _elections(
        cluster,
        partition_change.PREFERRED,
        lambda topic, partition: (
            partition.leader_id != partition.replicas[0]
            and partition.replicas[0] in partition.in_sync_replicas
            and cluster.is_active(partition.replicas[0])
            and partition.replicas[0] not in cluster.short
            and (only is None or partition.replicas[0] in only)
        ),
    )


def unclean_leaders(cluster: ClusterState) -> list[MetadataRecord]:
    """PartitionChangeRecords for what nobody at work leads, where its topic would rather lose
    records than wait (`maybeElectUncleanLeaders`); at most ELECTIONS_MAX."""
    return _elections(
        cluster,
        partition_change.UNCLEAN,
        lambda topic, partition: (
            not cluster.is_active(partition.leader_id) and cluster.is_unclean_allowed(topic.name)
        ),
    )


def _elections(
    cluster: ClusterState, kind: int, is_wanted: Callable[[TopicImage, PartitionImage], bool]
) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    for topic in cluster.image.topics_by_id.values():
        for partition in topic.partitions:
            if not is_wanted(topic, partition):
                continue
            change = _elected(topic, partition, cluster, kind)
            if change is not None:
                records.append(("PartitionChangeRecord", 2, change))
                if len(records) == ELECTIONS_MAX:
                    return records
    return records


def _elected(
    topic: TopicImage, partition: PartitionImage, cluster: ClusterState, kind: int
) -> dict[str, Any] | None:
    """The change that gives a partition another leader; None if there is none to be had."""
    rules = cluster.rules(topic, election=kind)
    change = partition_change.partition_change(topic.topic_id, partition, rules)
    has_leader = change is not None and change.get("leader", NO_LEADER) != NO_LEADER
    return change if has_leader else None
