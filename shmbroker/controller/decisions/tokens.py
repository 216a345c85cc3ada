"""Decisions about delegation tokens (KIP-48, KIP-373): made, renewed, expired, swept away. Pure.

Who asks is known by what the gateway has found (`security.identity`), never by the request. That
one may ask for a token of somebody else, the gateway has seen in the ACLs.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.metadata.security_image import Token, token_record
from shmbroker.security.acls import ANONYMOUS
from shmbroker.security.tokens import USER, Principal, TokenKey, is_expired, key_of, may_renew
from shmbroker.wire.error_codes import (
    DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_EXPIRED,
    DELEGATION_TOKEN_NOT_FOUND,
    DELEGATION_TOKEN_OWNER_MISMATCH,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    INVALID_PRINCIPAL_TYPE,
    NONE,
    UNKNOWN_SERVER_ERROR,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.security.identity import Identity
    from shmbroker.settings.broker_config import BrokerConfig

REQUESTER_FROM = 3
"""The version of CreateDelegationToken from which on its answer says who has asked."""
REMOVED_MAX = 10_000
"""The most tokens that one sweep removes: as many records as a batch may have."""


class TokenRules(NamedTuple):
    """The settings of tokens."""

    key: TokenKey | None
    """None: there are none."""
    lifetime_ms: int
    """The longest that a token may be renewed for."""
    renewal_ms: int
    """The longest that it holds without."""

    @classmethod
    def of(cls, config: BrokerConfig, env: Mapping[str, str]) -> TokenRules:
        """The rules of a broker. ConfigFault as of `key_of`."""
        return cls(
            key_of(config, env),
            config["delegation.token.max.lifetime.ms"],
            config["delegation.token.expiry.time.ms"],
        )


def create_token(
    request: dict[str, Any],
    version: int,
    identity: Identity,
    rules: TokenRules,
    now_ms: int,
    new_id: Callable[[], str],
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """A token of who asks, or of the owner that is named."""
    records, answer = _create(request, identity, rules, now_ms, new_id)
    if version < REQUESTER_FROM:
        del answer["token_requester_principal_type"], answer["token_requester_principal_name"]
    return records, answer


def _create(
    request: dict[str, Any],
    identity: Identity,
    rules: TokenRules,
    now_ms: int,
    new_id: Callable[[], str],
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    requester = Principal.parse(identity.principal)
    owner = requester
    if request["owner_principal_name"]:
        if request["owner_principal_type"] is None:
            nobody = Principal.parse(ANONYMOUS)
            return [], _created(UNKNOWN_SERVER_ERROR, nobody, nobody)
        owner = Principal(request["owner_principal_type"], request["owner_principal_name"])
    renewers = [Principal.of(row) for row in request["renewers"]]
    if not identity.may_have_tokens:
        return [], _created(DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, requester)
    if any(renewer.type != USER for renewer in renewers):
        return [], _created(INVALID_PRINCIPAL_TYPE, owner, requester)
    if rules.key is None:
        return [], _created(DELEGATION_TOKEN_AUTH_DISABLED, owner, requester)
    lifetime_ms = rules.lifetime_ms
    if request["max_lifetime_ms"] > 0:
        lifetime_ms = min(lifetime_ms, request["max_lifetime_ms"])
    max_ms = now_ms + lifetime_ms
    token = Token(
        new_id(),
        str(owner),
        str(requester),
        tuple(map(str, renewers)),
        now_ms,
        min(max_ms, now_ms + rules.renewal_ms),
        max_ms,
    )
    answer = _created(NONE, owner, requester) | {
        "issue_timestamp_ms": now_ms,
        "expiry_timestamp_ms": token.expires_ms,
        "max_timestamp_ms": max_ms,
        "token_id": token.token_id,
        "hmac": rules.key.hmac_of(token.token_id),
    }
    return [_record(token)], answer


def renew_token(
    request: dict[str, Any],
    identity: Identity,
    tokens: Mapping[str, Token],
    rules: TokenRules,
    now_ms: int,
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """Let a token hold from now for as long as is asked, or for as long as is set, where that is
    less or nothing is asked."""
    token = _shown(request, identity, tokens, rules)
    if isinstance(token, dict):
        return [], token
    if is_expired(token, now_ms):
        return [], _renewed(DELEGATION_TOKEN_EXPIRED)
    if not may_renew(token, identity.principal):
        return [], _renewed(DELEGATION_TOKEN_OWNER_MISMATCH)
    period_ms = rules.renewal_ms
    if request["renew_period_ms"] > 0:
        period_ms = min(period_ms, request["renew_period_ms"])
    return _until(token, min(token.max_ms, now_ms + period_ms))


def expire_token(
    request: dict[str, Any],
    identity: Identity,
    tokens: Mapping[str, Token],
    rules: TokenRules,
    now_ms: int,
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """Let a token end so long from now, or at once and for good where a negative time is asked."""
    token = _shown(request, identity, tokens, rules)
    if isinstance(token, dict):
        return [], token
    if not may_renew(token, identity.principal):
        return [], _renewed(DELEGATION_TOKEN_OWNER_MISMATCH)
    period_ms = request["expiry_time_period_ms"]
    if period_ms < 0:
        return [_removal(token)], _renewed(NONE, now_ms)
    if is_expired(token, now_ms):
        return [], _renewed(DELEGATION_TOKEN_EXPIRED)
    return _until(token, min(token.max_ms, now_ms + period_ms))


def expired_tokens(tokens: Mapping[str, Token], now_ms: int) -> list[MetadataRecord]:
    """The removal of those that have expired, as many as go into one batch."""
    gone = [_removal(token) for token in tokens.values() if is_expired(token, now_ms)]
    return gone[:REMOVED_MAX]


def _shown(
    request: dict[str, Any], identity: Identity, tokens: Mapping[str, Token], rules: TokenRules
) -> Token | dict[str, Any]:
    """The token whose HMAC a request has; or the answer, if it has none."""
    if not identity.may_have_tokens:
        return _renewed(DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, -1)
    if rules.key is None:
        return _renewed(DELEGATION_TOKEN_AUTH_DISABLED)
    found = rules.key.find(tokens, request["hmac"])
    return found if found is not None else _renewed(DELEGATION_TOKEN_NOT_FOUND)


def _until(token: Token, expires_ms: int) -> tuple[list[MetadataRecord], dict[str, Any]]:
    return [_record(token._replace(expires_ms=expires_ms))], _renewed(NONE, expires_ms)


def _record(token: Token) -> MetadataRecord:
    return "DelegationTokenRecord", 0, token_record(token)


def _removal(token: Token) -> MetadataRecord:
    return "RemoveDelegationTokenRecord", 0, {"token_id": token.token_id}


def _created(error: int, owner: Principal, requester: Principal) -> dict[str, Any]:
    return {
        "error_code": error,
        "principal_type": owner.type,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.type,
        "token_requester_principal_name": requester.name,
        "issue_timestamp_ms": -1,
        "expiry_timestamp_ms": -1,
        "max_timestamp_ms": -1,
        "token_id": "",
        "hmac": b"",
    }


def _renewed(error: int, expires_ms: int = 0) -> dict[str, Any]:
    return {"error_code": error, "expiry_timestamp_ms": expires_ms}
