"""FindCoordinator (key 10): the broker that coordinates a group or a transactional id.

Versions: 0-6.
Where: the network worker; the controller creates `__consumer_offsets` and `__transaction_state`
when they are first needed.
Version notes: 1 key type, error message; 3 flexible; 4 several keys (KIP-699); 6 share groups.
"""

from __future__ import annotations

from typing import Any

from shmbroker.groups.group_partition import group_partition
from shmbroker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, PlainRequest
    from shmbroker.metadata.image import TopicImage

API_KEY = 10
NAME = "FindCoordinator"
VERSION_MIN = 0
VERSION_MAX = 6
VERSION_MIN_ADVERTISED = 0

GROUP = 0
TRANSACTION = 1
SHARE = 2

TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTION_TOPIC}
"""The topics whose leaders coordinate."""


def answer(
    gateway: GatewayContext, request: PlainRequest, body: dict[str, Any]
) -> dict[str, Any] | None:
    """One answer for each key; below version 4 for the only one."""
    kind = body["key_type"]
    keys = body["coordinator_keys"] if request.api_version >= 4 else [body["key"]]
    name = TOPICS.get(kind)
    topic = gateway.image.topics_by_name.get(name) if name is not None else None
    if name is not None and topic is None and keys and not request.has_asked_for_topics:
        request.has_asked_for_topics = True
        gateway.create_topics(request, [name])
        return None
    brokers = {row["node_id"]: row for row in gateway.broker_rows(request.connection)}
    version = request.api_version
    found_by_key: dict[str, dict[str, Any]] = {}
    for key in keys:
        if key not in found_by_key:
            found_by_key[key] = {"key": key} | _find(version, kind, key, topic, brokers)
    coordinators = [found_by_key[key] for key in keys]
    if request.api_version >= 4:
        return {"coordinators": coordinators}
    found = coordinators[0]
    return {name: value for name, value in found.items() if name != "key"}


def _find(
    version: int, kind: int, key: str, topic: TopicImage | None, brokers: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    nobody = {"node_id": -1, "host": "", "port": -1}
    if kind not in (GROUP, TRANSACTION, SHARE) or (kind == SHARE and version < 6):
        code = error_codes.INVALID_REQUEST
        return nobody | {"error_code": code, "error_message": error_codes.message_of(code)}
    if topic is not None:
        partition = topic.partitions[group_partition(key, len(topic.partitions))]
        row = brokers.get(partition.leader_id)
        if row is not None:
            return {
                "error_code": 0,
                "error_message": "NONE" if version < 4 else "",
                "node_id": row["node_id"],
                "host": row["host"],
                "port": row["port"],
            }
    code = error_codes.COORDINATOR_NOT_AVAILABLE
    return nobody | {"error_code": code, "error_message": error_codes.message_of(code)}
