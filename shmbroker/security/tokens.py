"""Delegation tokens (KIP-48): what proves one, and whose it is. Pure.

A token is its id and an HMAC of it, by a key that all brokers have and that is never sent. Who
holds both authenticates by SCRAM with the id as his name and the HMAC, as base64, as his password.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.metadata.security_image import Token
from shmbroker.settings import secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.settings.broker_config import BrokerConfig

SETTING = "delegation.token.secret.key"
HMACS_KEPT_MAX = 65536
"""How many HMACs are kept; after so many all are computed again."""
USER = "User"
"""The only type of principal that may renew tokens."""


class Principal(NamedTuple):
    """The two parts of User:alice."""

    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parse a whole principal; the name may have colons."""
        type_, _, name = text.partition(":")
        return cls(type_, name)

    @classmethod
    def of(cls, row: dict[str, Any]) -> Principal:
        """Make one from a row of a request."""
        return cls(row["principal_type"], row["principal_name"])

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


class TokenKey:
    """The secret key (delegation.token.secret.key), and the HMACs of tokens by it."""

    __slots__ = ("_hmacs", "_secret")

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._hmacs: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return "TokenKey(hidden)"

    def hmac_of(self, token_id: str) -> bytes:
        """What proves a token."""
        known = self._hmacs.get(token_id)
        if known is None:
            if len(self._hmacs) >= HMACS_KEPT_MAX:
                self._hmacs.clear()
            import hmac  # OpenSSL is a few MiB: nothing for a start

            known = hmac.digest(self._secret, token_id.encode(), "sha512")
            self._hmacs[token_id] = known
        return known

    def password_of(self, token_id: str) -> str:
        """The HMAC as SCRAM has it for a password."""
        import base64

        return base64.b64encode(self.hmac_of(token_id)).decode()

    def find(self, tokens: Mapping[str, Token], shown: bytes) -> Token | None:
        """The token that an HMAC proves."""
        from hmac import compare_digest

        for token_id, token in tokens.items():
            if compare_digest(self.hmac_of(token_id), shown):
                return token
        return None


def key_of(config: BrokerConfig, env: Mapping[str, str]) -> TokenKey | None:
    """The key of a broker's settings, which may refer to where it lies; None: there is none.
    ConfigFault if that leads to nothing."""
    text = config[SETTING]
    return TokenKey(secrets.resolved(text, env, SETTING)) if text else None


def may_renew(token: Token, principal: str) -> bool:
    """Whether a principal may renew and expire it."""
    return principal == token.owner or principal in token.renewers


def concerns(token: Token, principal: str) -> bool:
    """Whether it is a principal's to see: the owner's, his who asked for it, and the renewers'."""
    return principal == token.requester or may_renew(token, principal)


def is_expired(token: Token, now_ms: int) -> bool:
    """Whether it has ceased to hold."""
    return now_ms > token.expires_ms or now_ms > token.max_ms
