"""SaslAuthenticate (key 36): a message of a SASL mechanism (KIP-152).

Versions: 0-2.
Where: the network gateway: `gateway.sasl_door` while a client authenticates, this module otherwise.
Version notes: 1 session lifetime (KIP-368); 2 flexible.
"""

from __future__ import annotations

from typing import Any

from shmbroker.wire.error_codes import ILLEGAL_SASL_STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 36
NAME = "SaslAuthenticate"
VERSION_MIN = 0
VERSION_MAX = 2
VERSION_MIN_ADVERTISED = 0


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Refuse it: it comes too late, or on a listener that authenticates nobody. Kafka says the
    same to both."""
    return {
        "error_code": ILLEGAL_SASL_STATE,
        "error_message": "SaslAuthenticate request received after successful authentication",
        "auth_bytes": b"",
    }
