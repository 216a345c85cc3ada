"""PushTelemetry (key 72): metrics of a client.

Versions: 0.
Where: the network gateway, which drops them: see `get_telemetry_subscriptions`.
Version notes: KIP-714.
"""

from __future__ import annotations

from typing import Any

from shmbroker.apis.gateway.get_telemetry_subscriptions import (
    COMPRESSION_TYPES,
    TELEMETRY_BYTES_MAX,
    subscription_id_of,
)
from shmbroker.ids import ZERO_UUID
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 72
NAME = "PushTelemetry"
VERSION_MIN = 0
VERSION_MAX = 0
VERSION_MIN_ADVERTISED = 0


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Judged as in Kafka, which knows more of the client's past, and forgotten."""
    code = error_codes.NONE
    if body["client_instance_id"] == ZERO_UUID:
        code = error_codes.INVALID_REQUEST
    elif body["subscription_id"] != subscription_id_of(body["client_instance_id"]):
        code = error_codes.UNKNOWN_SUBSCRIPTION_ID
    elif body["compression_type"] not in (0, *COMPRESSION_TYPES):
        code = error_codes.UNSUPPORTED_COMPRESSION_TYPE
    elif len(body["metrics"]) > TELEMETRY_BYTES_MAX:
        code = error_codes.TELEMETRY_TOO_LARGE
    return {"error_code": code}
