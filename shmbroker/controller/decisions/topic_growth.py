"""CreatePartitions: a pure function of a request and an image, as `topic_creation`."""

from __future__ import annotations

from collections import Counter

from shmbroker.controller.decisions.placement import (
    PARTITIONS_MAX,
    TOO_MANY,
    partition_records,
    place_more,
)
from shmbroker.metadata.messages import fitting
from shmbroker.wire.error_codes import (
    INVALID_REQUEST,
    POLICY_VIOLATION,
    THROTTLING_QUOTA_EXCEEDED,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState, Complaint, Decision
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord


def create_partitions(request: dict[str, Any], cluster: ClusterState) -> Decision:
    """CreatePartitions v0–3: the count asked for is the new total."""
    topics = request["topics"]
    counts = Counter(topic["name"] for topic in topics)
    added = added_partitions(topics, cluster.image)
    records: list[MetadataRecord] = []
    results = {}
    for topic in topics:
        name = topic["name"]
        if name in results:
            continue
        known = cluster.image.topics_by_name.get(name)
        new: list[tuple[int, ...]] = []
        if counts[name] > 1:
            complaint: Complaint = (INVALID_REQUEST, "Duplicate topic name.")
        elif known is None:
            complaint = UNKNOWN_TOPIC_OR_PARTITION, None
        elif added > PARTITIONS_MAX:
            complaint = POLICY_VIOLATION, TOO_MANY
        else:
            new, complaint = place_more(topic, known.partitions, cluster)
            if new and not cluster.mutations.allows(len(new)):
                new, complaint = [], (THROTTLING_QUOTA_EXCEEDED, None)
            if not request["validate_only"]:
                first = len(known.partitions)
                records += partition_records(known.topic_id, first, new, cluster.image.brokers)
        results[name] = {
            "name": name,
            "error_code": complaint[0],
            "error_message": fitting(complaint[1]),
        }
    return records, {"throttle_time_ms": 0, "results": list(results.values())}


def added_partitions(topics: list[dict[str, Any]], image: MetadataImage) -> int:
    """Partitions that the topics of a CreatePartitions are to get together."""
    return sum(
        topic["count"] - len(known.partitions)
        for topic in topics
        if (known := image.topics_by_name.get(topic["name"]))
        and topic["count"] > len(known.partitions)
    )
