"""DescribeDelegationToken (key 41): the tokens that there are.

Versions: 1-3.
Where: the network worker, from the metadata image.
Version notes: 2 flexible; 3 who asked for them (KIP-373).
"""

from __future__ import annotations

from typing import Any

from shmbroker.security.access.tokens import may_see
from shmbroker.security.tokens import Principal, concerns
from shmbroker.wire.error_codes import (
    DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    NONE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import GatewayContext, Request
    from shmbroker.metadata.security_image import Token
    from shmbroker.security.tokens import TokenKey

API_KEY = 41
NAME = "DescribeDelegationToken"
VERSION_MIN = 1
VERSION_MAX = 3
VERSION_MIN_ADVERTISED = 1
REQUESTER_FROM = 3


def answer(gateway: GatewayContext, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """All, or those that concern one of the owners; where there is an authorizer, those of them
    that its client may see."""
    key = gateway.token_key
    if not request.connection.identity.may_have_tokens:
        return {"error_code": DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "tokens": []}
    if key is None:
        return {"error_code": DELEGATION_TOKEN_AUTH_DISABLED, "tokens": []}
    owners = body["owners"]
    wanted = None if owners is None else [str(Principal.of(row)) for row in owners]
    asker = None if gateway.guard is None else gateway.guard.asker(request.connection)
    return {
        "error_code": NONE,
        "tokens": [
            _row(token, key, request.api_version)
            for token in gateway.image.security.tokens.values()
            if (wanted is None or any(concerns(token, principal) for principal in wanted))
            and (asker is None or may_see(asker, token))
        ],
    }


def _row(token: Token, key: TokenKey, version: int) -> dict[str, Any]:
    owner, requester = Principal.parse(token.owner), Principal.parse(token.requester)
    renewers = map(Principal.parse, token.renewers)
    asked_by = {
        "token_requester_principal_type": requester.type,
        "token_requester_principal_name": requester.name,
    }
    return (asked_by if version >= REQUESTER_FROM else {}) | {
        "principal_type": owner.type,
        "principal_name": owner.name,
        "issue_timestamp": token.issued_ms,
        "expiry_timestamp": token.expires_ms,
        "max_timestamp": token.max_ms,
        "token_id": token.token_id,
        "hmac": key.hmac_of(token.token_id),
        "renewers": [
            {"principal_type": renewer.type, "principal_name": renewer.name} for renewer in renewers
        ],
    }
