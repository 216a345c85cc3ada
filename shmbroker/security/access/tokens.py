"""Rights on delegation tokens (KIP-48, KIP-373)."""

from __future__ import annotations

from shmbroker.security.access.asker import Asker, Message, Outcome, Partly, Refused
from shmbroker.security.acls import (
    CREATE_TOKENS,
    DELEGATION_TOKEN,
    DESCRIBE,
    DESCRIBE_TOKENS,
    USER,
)
from shmbroker.security.tokens import Principal, concerns
from shmbroker.wire.error_codes import DELEGATION_TOKEN_AUTHORIZATION_FAILED


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


def describe_delegation_token(asker: Asker, version: int, body: Message) -> Outcome:
    """Those that are not one's own by DESCRIBE of the token, or DESCRIBE_TOKENS of its owner."""

    def is_seen(row: Message) -> bool:
        token = asker.image.security.tokens.get(row["token_id"])
        return (
            (token is not None and concerns(token, asker.principal))
            or asker.may(DESCRIBE, DELEGATION_TOKEN, row["token_id"])
            or asker.may(DESCRIBE_TOKENS, USER, f"{row['principal_type']}:{row['principal_name']}")
        )

    def after(answer: Message) -> Message:
        answer["tokens"] = [row for row in answer["tokens"] if is_seen(row)]
        return answer

    return Partly(None, after)
