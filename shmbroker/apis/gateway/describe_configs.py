"""DescribeConfigs (key 32): the settings of topics and brokers, with where each comes from.

Versions: 1-4.
Where: the network gateway, from the metadata image and the broker's configuration.
Version notes: 3 types and documentation; 4 flexible.
"""

from __future__ import annotations

from typing import Any

from shmbroker.metadata.describe_configs import describe_configs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 32
NAME = "DescribeConfigs"
VERSION_MIN = 1
VERSION_MAX = 4
VERSION_MIN_ADVERTISED = 1


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """See `metadata.describe_configs`."""
    broker_id = request.connection.listener.broker_id
    if broker_id < 0:
        broker_id = min(gateway.ports)
    identity = gateway.identity_of(broker_id)
    asked = body, gateway.image, gateway.config, broker_id, identity
    return describe_configs(*asked, gateway.log_levels)
