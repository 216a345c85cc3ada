"""Rights on delegation tokens (KIP-48, KIP-373)."""

from __future__ import annotations

from shmbroker.security.access.asker import Asker, Message, Outcome, Refused
from shmbroker.security.acls import (
    CREATE_TOKENS,
    DELEGATION_TOKEN,
    DESCRIBE,
    DESCRIBE_TOKENS,
    USER,
)
from shmbroker.security.tokens import Principal, concerns
from shmbroker.wire.error_codes import DELEGATION_TOKEN_AUTHORIZATION_FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metadata.security_image import Token


def create_delegation_token(asker: Asker, version: int, body: Message) -> Outcome:
    """CREATE_TOKENS of the owner, who is another user. Whether it is a connection on which tokens
    may be had comes first, and is the controller's to say."""
    if not asker.may_have_tokens:
        return None
    if not body["owner_principal_name"] or body["owner_principal_type"] is None:
        return None
    requester = Principal.parse(asker.principal)
    owner = Principal(body["owner_principal_type"], body["owner_principal_name"])
    if owner == requester or asker.may(CREATE_TOKENS, USER, str(owner)):
        return None
    return Refused(
        {
            "error_code": DELEGATION_TOKEN_AUTHORIZATION_FAILED,
            "principal_type": owner.type,
            "principal_name": owner.name,
            "token_requester_principal_type": requester.type,
            "token_requester_principal_name": requester.name,
            "issue_timestamp_ms": -1,
            "expiry_timestamp_ms": -1,
            "max_timestamp_ms": -1,
        }
    )


def may_see(asker: Asker, token: Token) -> bool:
    """Whether it is one's own, by DESCRIBE_TOKENS of its owner, or by DESCRIBE of the token: the
    last where anybody has such a right, as it is asked of thousands."""
    return (
        concerns(token, asker.principal)
        or asker.may(DESCRIBE_TOKENS, USER, token.owner)
        or (
            asker.authorizer.is_about_any(DELEGATION_TOKEN)
            and asker.may(DESCRIBE, DELEGATION_TOKEN, token.token_id)
        )
    )
