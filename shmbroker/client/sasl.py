"""SASL over a connection: SaslHandshake, then SaslAuthenticate as often as the mechanism wants.

A broker that gives a session a lifetime (KIP-368) is told again who we are before it ends, over the
same connection; `authenticate` says when.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from shmbroker.client.faults import AuthenticationFault, refuse
from shmbroker.client.scram import ScramClient
from shmbroker.client.security import OAUTHBEARER, PLAIN, Security
from shmbroker.errors import ProtocolFault
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message

    Ask = Callable[[int, Message, int], Message]

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 2
"""Kafka's since 2.5."""

SESSION_SHARE = 0.85
"""A session is renewed after this share of its lifetime: as Kafka's own clients do at the
earliest."""

RENEWAL_S_MIN = 1.1
"""Brokers refuse a renewal within a second, and take one after the session's end."""


def authenticate(ask: Ask, security: Security, name: str) -> float:
    """Say who we are to the broker `name`; after how many seconds that must be said again, 0.0:
    never. AuthenticationFault if it isn't believed."""
    answer = ask(SASL_HANDSHAKE, {"mechanism": security.mechanism}, HANDSHAKE_VERSION)
    error = answer["error_code"]
    if error == error_codes.UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationFault(
            f"{name} takes {', '.join(answer['mechanisms']) or 'no mechanism'}, not"
            f" {security.mechanism}: set sasl.mechanism"
        )
    if error == error_codes.ILLEGAL_SASL_STATE:
        raise AuthenticationFault(f"{name} wants no SASL: set security.protocol without it")
    refuse(error, f"SaslHandshake with {name}")

    def send(message: bytes) -> Message:
        answer = ask(SASL_AUTHENTICATE, {"auth_bytes": message}, AUTHENTICATE_VERSION)
        if answer["error_code"]:
            who = security.username or security.client_id
            what = f"user {who}" if who else "this client"
            raise AuthenticationFault(
                f"{name} does not let {what} in:"
                f" {answer['error_message'] or error_codes.message_of(answer['error_code'])}"
            )
        return answer

    try:
        answer = _exchange(send, security)
    except ProtocolFault as fault:
        raise AuthenticationFault(f"{name}: {fault}") from None
    lifetime_ms: int = answer["session_lifetime_ms"]
    if lifetime_ms <= 0:
        return 0.0
    return max(lifetime_ms / 1000 * SESSION_SHARE, RENEWAL_S_MIN)


def _exchange(send: Callable[[bytes], Message], security: Security) -> Message:
    """The mechanism's messages; the last answer."""
    if security.mechanism == OAUTHBEARER:
        from shmbroker.client.oauth import token_of

        token = token_of(security).reveal()
        answer = send(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        if refusal := bytes(answer["auth_bytes"]):
            send(b"\x01")  # RFC 7628: it is answered by the refusal
            raise ProtocolFault(f"the token is refused: {refusal[:200].decode(errors='replace')}")
        return answer
    password = security.password
    assert password is not None
    if security.mechanism == PLAIN:
        return send(f"\0{security.username}\0{password.reveal()}".encode())
    client = ScramClient(
        security.mechanism,
        security.username,
        password,
        secrets.token_urlsafe(24),
        security.is_by_token,
    )
    first = send(client.first())
    last = send(client.final(bytes(first["auth_bytes"])))
    client.check(bytes(last["auth_bytes"]))
    return last
