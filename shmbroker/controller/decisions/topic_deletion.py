"""DeleteTopics: a pure function of a request and an image, as `topic_creation`."""

from __future__ import annotations

from collections import Counter

from shmbroker.ids import ZERO_UUID
from shmbroker.wire.error_codes import (
    INVALID_REQUEST,
    NONE,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_DELETION_DISABLED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.controller.decisions.cluster_state import ClusterState, Complaint, Decision
    from shmbroker.metadata.image import TopicImage
    from shmbroker.metadata.record import MetadataRecord

    Wanted = tuple[str | None, bytes]
    """Name and id; one of them, as a rule."""

_NO_TOPIC = "This server does not host this topic-partition."
_NO_TOPIC_ID = "This server does not host this topic ID."


def delete_topics(request: dict[str, Any], version: int, cluster: ClusterState) -> Decision:
    """DeleteTopics v1–6; by name, from v6 on also by id."""
    wanted: list[Wanted]
    if version >= 6:
        wanted = [(topic["name"], topic["topic_id"]) for topic in request["topics"]]
    else:
        wanted = [(name, ZERO_UUID) for name in request["topic_names"]]
    counts = Counter(wanted)
    image = cluster.image
    records: list[MetadataRecord] = []
    results = {}
    for key in wanted:
        if key in results:
            continue
        name, topic_id = key
        topic = image.topics_by_id.get(topic_id) if name is None else image.topics_by_name.get(name)
        error, message = _complaint(key, topic, counts, cluster)
        if error == TOPIC_DELETION_DISABLED and version < 3:
            error = INVALID_REQUEST
        if topic is not None and not error:
            if name is None and (topic.name, ZERO_UUID) in counts:
                continue  # answered under its name
            if name is not None and (None, topic.topic_id) in counts:
                error = INVALID_REQUEST
                message = "The provided topic name maps to an ID that was already supplied."
            elif not cluster.mutations.allows(len(topic.partitions)):
                error = THROTTLING_QUOTA_EXCEEDED
            else:
                records.append(("RemoveTopicRecord", 0, {"topic_id": topic.topic_id}))
            name, topic_id = topic.name, topic.topic_id
        results[key] = {
            "name": name,
            "topic_id": topic_id,
            "error_code": error,
            "error_message": message,
        }
    return records, {"throttle_time_ms": 0, "responses": list(results.values())}


def _complaint(
    wanted: Wanted, topic: TopicImage | None, counts: Counter[Wanted], cluster: ClusterState
) -> Complaint:
    """Why a topic, or what was taken for one, can't be deleted by this name or id."""
    name, topic_id = wanted
    if not cluster.config["delete.topic.enable"]:
        return TOPIC_DELETION_DISABLED, "Topic deletion is disabled."
    if name is None and topic_id == ZERO_UUID:
        return INVALID_REQUEST, "Neither topic name nor id were specified."
    if name is not None and topic_id != ZERO_UUID:
        return INVALID_REQUEST, "You may not specify both topic name and topic id."
    if counts[wanted] > 1:
        return INVALID_REQUEST, f"Duplicate topic {'id' if name is None else 'name'}."
    if topic is not None:
        return NONE, None
    if name is None:
        return UNKNOWN_TOPIC_ID, _NO_TOPIC_ID
    return UNKNOWN_TOPIC_OR_PARTITION, _NO_TOPIC
