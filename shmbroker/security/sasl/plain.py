"""PLAIN (RFC 4616): a name and a password as they are, for connections that are encrypted.

   message   [authorization id] NUL name NUL password        in UTF-8

Rules of this file:
* A password is compared in a time that says nothing about it, or about whether its user exists.
* The refusals are Apache Kafka's; a wrong name and a wrong password have the same.
"""

from __future__ import annotations

from hmac import compare_digest

from shmbroker.security.sasl.outcome import NotBelieved, Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from shmbroker.security.sasl.outcome import Outcome

NAME = "PLAIN"

TOKENS_MAX = 4
"""No more are counted."""


class PlainUsers:
    """Names and passwords; what it is printed as has none of them."""

    __slots__ = ("_passwords",)

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = {name: password.encode() for name, password in passwords.items()}

    def __repr__(self) -> str:
        return f"PlainUsers({len(self._passwords)})"

    def __len__(self) -> int:
        return len(self._passwords)

    def are(self, name: str, password: str) -> bool:
        """Whether this is a user's password."""
        given = password.encode()
        known = self._passwords.get(name)
        is_equal = compare_digest(given, given if known is None else known)
        return is_equal and known is not None


class Plain:
    """One exchange: a single message."""

    __slots__ = ("_users",)

    def __init__(self, users: PlainUsers) -> None:
        self._users = users

    def on_message(self, message: bytes) -> Outcome:
        tokens = message.decode(errors="replace").split("\0", TOKENS_MAX - 1)
        if len(tokens) != 3:
            text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(tokens)}"
            return NotBelieved("a malformed message", text)
        authorization_id, name, password = tokens
        if not name:
            return NotBelieved("no user name", "Authentication failed: username not specified")
        if not password:
            return NotBelieved("no password", "Authentication failed: password not specified")
        if not self._users.are(name, password):
            text = "Authentication failed: Invalid username or password"
            return NotBelieved("an unknown user, or a wrong password", text)
        if authorization_id not in ("", name):
            return NotBelieved("another authorization id", OTHER_AUTHORIZATION_ID)
        return Shown(b"", name)


OTHER_AUTHORIZATION_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
