"""DescribeCluster (key 60): brokers and the controller.

Versions: 0-2.
Where: the network gateway.
Version notes: 1 endpoint type (brokers or controllers); 2 fenced brokers.
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.gateway.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 60
NAME = "DescribeCluster"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0

BROKERS = 1
CONTROLLERS = 2


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Controllers have no listener for clients here, so only brokers can be asked for."""
    kind = body["endpoint_type"]
    if kind != BROKERS:
        code = (
            error_codes.MISMATCHED_ENDPOINT_TYPE
            if kind == CONTROLLERS
            else error_codes.UNSUPPORTED_ENDPOINT_TYPE
        )
        text = (
            "Controllers have no endpoint here that clients could ask."
            if kind == CONTROLLERS
            else f"Unsupported endpoint type {kind}"
        )
        return {"error_code": code, "error_message": text, "brokers": [], "cluster_id": ""}
    rows = [
        {
            "broker_id": row["node_id"],
            "host": row["host"],
            "port": row["port"],
            "rack": row["rack"],
            "is_fenced": False,
        }
        for row in gateway.broker_rows(request.connection)
    ]
    if request.api_version >= 2 and body["include_fenced_brokers"]:
        rows += [
            {
                "broker_id": broker_id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "is_fenced": True,
            }
            for broker_id, broker in sorted(gateway.image.brokers.items())
            if broker.is_fenced
        ]
    return {
        "endpoint_type": BROKERS,
        "cluster_id": gateway.image.cluster_id,
        "controller_id": gateway.controller_broker_id(),
        "brokers": rows,
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if body["include_cluster_authorized_operations"]
        else NOT_ASKED,
    }
