"""ListConfigResources (key 74): the names of what has settings.

Versions: 0-1.
Where: the network gateway, from the metadata image.
Version notes: KIP-714; 0 client metrics subscriptions only; 1 every kind of resource (KIP-1142).
"""

from __future__ import annotations

from typing import Any

from shmbroker.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 74
NAME = "ListConfigResources"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0

KINDS = (
    GROUP_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
)
"""The kinds of resources, in the order of Kafka's answers."""


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Groups and subscriptions are named if something is set for them, topics and brokers always;
    one unknown kind spoils the request."""
    if request.api_version == 0:
        wanted = {CLIENT_METRICS_RESOURCE}
    else:
        wanted = set(body["resource_types"]) or set(KINDS)
    if not wanted <= set(KINDS):
        return {"error_code": error_codes.UNSUPPORTED_VERSION, "config_resources": []}
    rows = [
        {"resource_name": name, "resource_type": kind}
        for kind in KINDS
        if kind in wanted
        for name in names_of(kind, gateway.image)
    ]
    if request.api_version == 0:
        rows = [{"resource_name": row["resource_name"]} for row in rows]
    return {"config_resources": rows}


def names_of(kind: int, image: MetadataImage) -> list[str]:
    """The resources of one kind."""
    if kind == TOPIC_RESOURCE:
        return list(image.topics_by_name)
    if kind in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return [str(broker_id) for broker_id in sorted(image.brokers)]
    return [name for type_, name in image.configs if type_ == kind]
