"""OAUTHBEARER (RFC 7628): a token that somebody else has signed.

   message   n,[a=authorization id],^A auth=Bearer TOKEN ^A [name=value ^A]… ^A
   refusal   {"status":"invalid_token"}, to which the client says ^A; then it is told the error

* The extensions of a client are passed over, as Kafka's own handler does.
* Who was refused gets no second try: Kafka takes another token then. Who says anything but ^A is
  told the error of every mechanism, as by Kafka.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from shmbroker.security.sasl.outcome import Challenge, NotBelieved, Shown
from shmbroker.security.sasl.scram import SASL_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.security.sasl.outcome import Outcome

NAME = "OAUTHBEARER"

INVALID_TOKEN = '{"status":"invalid_token"}'

_MESSAGE = re.compile(rf"n,(?:a=({SASL_NAME}))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")
_AUTH = re.compile(r"([A-Za-z0-9_]+) +([-_~+/.A-Za-z0-9]+=*)")


class Valid(NamedTuple):
    """A token that holds."""

    name: str
    expires_ms: int


class Invalid(NamedTuple):
    """One that doesn't, and why, for the log."""

    reason: str


class TokenValidator(Protocol):
    """A judge of whether tokens hold."""

    def validate(self, token: str) -> Valid | Invalid:
        """Whether this one does now."""


class Bearer:
    """One exchange: a message, or two where the first was refused."""

    __slots__ = ("_refused", "_validator")

    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator
        self._refused: NotBelieved | None = None

    def on_message(self, message: bytes) -> Outcome:
        if self._refused is not None:
            return self._refused if message == b"\1" else NotBelieved(self._refused.reason)
        try:
            match = _MESSAGE.fullmatch(message.decode("ascii"))
        except UnicodeDecodeError:
            match = None
        if match is None:
            return NotBelieved("a malformed message")
        authorization_id, pairs = match.groups()
        given = dict(pair.split("=", 1) for pair in pairs.split("\1")[:-1])
        auth = _AUTH.fullmatch(given.get("auth", ""))
        if auth is None or auth[1].lower() != "bearer":
            return NotBelieved("a message without a bearer's token")
        found = self._validator.validate(auth[2])
        if isinstance(found, Invalid):
            self._refused = NotBelieved(f"a token is invalid: {found.reason}", INVALID_TOKEN)
            return Challenge(INVALID_TOKEN.encode())
        if authorization_id not in (None, found.name):
            text = (
                "Authentication failed: Client requested an authorization id "
                f"({authorization_id}) that is different from the token's principal name "
                f"({found.name})"
            )
            return NotBelieved("another authorization id", text)
        return Shown(b"", found.name, found.expires_ms)
