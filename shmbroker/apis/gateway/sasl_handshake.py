"""SaslHandshake (key 17): by which mechanism a client will authenticate.

Versions: 0-1.
Where: the network gateway: `gateway.sasl_door` while a client authenticates, this module otherwise.
Version notes: 1 the mechanism's messages come in SaslAuthenticate (KIP-152).
"""

from __future__ import annotations

from typing import Any

from shmbroker.wire.error_codes import ILLEGAL_SASL_STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request

API_KEY = 17
NAME = "SaslHandshake"
VERSION_MIN = 0
VERSION_MAX = 1
VERSION_MIN_ADVERTISED = 0


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Refuse it: the listener authenticates nobody, or the client has shown who it is, and may
    not again yet."""
    return {"error_code": ILLEGAL_SASL_STATE, "mechanisms": []}
