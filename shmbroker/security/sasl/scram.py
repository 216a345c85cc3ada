"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): a password that never travels.

   client first    n,[a=authorization id],n=name,r=client nonce[,extension=value]…
   server first    r=client nonce + server nonce,s=salt,i=iterations
   client final    c=channel binding,r=both nonces[,extension=value]…,p=proof
   server final    v=server signature

   salted password   PBKDF2(password, salt, iterations): done by clients, and by who sets a password
   client key        HMAC(salted password, "Client Key")
   stored key        H(client key)
   server key        HMAC(salted password, "Server Key")
   auth message      client first without its head, server first, client final without its proof
   proof             client key XOR HMAC(stored key, auth message)
   server signature  HMAC(server key, auth message)

Rules of this file:
* Names are taken as Kafka takes them: ASCII, "=2C" and "=3D" for comma and equals sign, and not
  changed by SASLprep.
* There is no channel binding; a client that thinks that the server has none ("y") is refused, as by
  Kafka. The binding in the final message must repeat the head of the first.
* An extension that the client holds for indispensable ("m") is refused, as the RFC has it.
* An unknown user gets a salt and iterations as if there were one, and fails at the end as a wrong
  password does, so that nobody finds out who is a user. Kafka fails at once.
* An extension tokenauth=true says that the name is a delegation token's id (KIP-48).
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import NamedTuple, Protocol

from shmbroker.metadata.security_image import ScramCredential
from shmbroker.security.sasl.outcome import NOT_YET, Challenge, NotBelieved, NotYet, Shown
from shmbroker.security.sasl.plain import OTHER_AUTHORIZATION_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.security.sasl.outcome import Outcome

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
"""Bounds of Kafka's for what AlterUserScramCredentials may set."""


class ScramMechanism(NamedTuple):
    """One of the two."""

    name: str
    code: int
    """The mechanism's number in records and requests (KIP-554)."""
    digest: str


SHA_256 = ScramMechanism("SCRAM-SHA-256", 1, "sha256")
SHA_512 = ScramMechanism("SCRAM-SHA-512", 2, "sha512")
MECHANISMS = {each.name: each for each in (SHA_256, SHA_512)}
BY_CODE = {each.code: each for each in (SHA_256, SHA_512)}


class TokenCredential(NamedTuple):
    """What is kept of a delegation token."""

    credential: ScramCredential
    owner: str
    """Name of the user that it stands for."""
    expires_ms: int


class ScramCredentials(Protocol):
    """The users that may authenticate by SCRAM."""

    def lookup(self, mechanism: str, user: str) -> ScramCredential | None:
        """What is kept of a user's password; None: it has none for this mechanism."""

    def stand_in(self, mechanism: str, user: str) -> ScramCredential:
        """A credential for somebody who is no user, always the same, that no password fits."""

    def token(self, mechanism: str, token_id: str) -> TokenCredential | NotYet | None:
        """What is kept of a delegation token that still holds; NOT_YET: it is being made."""


# ── keys ────────────────────────────────────────────────────────────────────────────────────────


def salted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password: takes milliseconds, on purpose."""
    return pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """What is kept of a salted password."""
    client_key = hmac_digest(salted_password, b"Client Key", mechanism.digest)
    return ScramCredential(
        salt,
        new_hash(mechanism.digest, client_key).digest(),
        hmac_digest(salted_password, b"Server Key", mechanism.digest),
        iterations,
    )


# ── one exchange ────────────────────────────────────────────────────────────────────────────────

SASL_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = rf"((?:,[A-Za-z]+={_VALUE})*)"
_BASE64 = r"(?:[A-Za-z0-9/+]{4})*(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_CLIENT_FIRST = re.compile(rf"(n,(?:a=({SASL_NAME}))?,)(n=({SASL_NAME}),r=({_NONCE}){_EXTENSIONS})")
_CLIENT_FINAL = re.compile(rf"(c=({_BASE64}),r=({_NONCE})(?:,[A-Za-z]+={_VALUE})*),p=({_BASE64})")


class Scram:
    """One exchange of two messages."""

    __slots__ = (
        "_bare",
        "_credential",
        "_expires_ms",
        "_head",
        "_is_by_token",
        "_is_known",
        "_mechanism",
        "_new_nonce",
        "_nonce",
        "_server_first",
        "_user",
        "_users",
    )

    def __init__(
        self, mechanism: ScramMechanism, users: ScramCredentials, new_nonce: Callable[[], str]
    ) -> None:
        """new_nonce: printable ASCII without a comma that nobody can guess."""
        self._mechanism = mechanism
        self._users = users
        self._new_nonce = new_nonce
        self._credential: ScramCredential | None = None
        self._is_known = self._is_by_token = False
        self._expires_ms: int | None = None

    def on_message(self, message: bytes) -> Outcome:
        try:
            text = message.decode("ascii")
        except UnicodeDecodeError:
            return NotBelieved("a malformed message")
        if self._credential is None:
            return self._on_first(text)
        return self._on_final(text, self._credential)

    def _on_first(self, text: str) -> Outcome:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            return NotBelieved("a malformed first message")
        self._head, authorization_id, self._bare, name, nonce, extensions = match.groups()
        user = name.replace("=2C", ",").replace("=3D", "=")
        if authorization_id not in (None, name):
            return NotBelieved("another authorization id", OTHER_AUTHORIZATION_ID)
        self._user = user
        if not self._look_up(user, _is_by_token(extensions)):
            return NOT_YET
        credential = self._credential
        assert credential is not None
        if credential.iterations < ITERATIONS_MIN:
            return NotBelieved(f"a password of {credential.iterations} iterations, too few")
        self._nonce = nonce + self._new_nonce()
        salt = b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return Challenge(self._server_first.encode())

    def _look_up(self, user: str, is_by_token: bool) -> bool:
        """False if what is kept of a token is still being made."""
        users, mechanism = self._users, self._mechanism.name
        self._is_by_token = is_by_token
        if is_by_token:
            token = users.token(mechanism, user)
            if isinstance(token, NotYet):
                return False
            found = None
            if token is not None:
                found, self._user, self._expires_ms = token
        else:
            found = users.lookup(mechanism, user)
        self._is_known = found is not None
        self._credential = users.stand_in(mechanism, user) if found is None else found
        return True

    def _on_final(self, text: str, credential: ScramCredential) -> Outcome:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            return NotBelieved("a malformed final message")
        without_proof, binding, nonce, encoded_proof = match.groups()
        if b64decode(binding) not in (self._head.encode(), b"n,,"):
            return NotBelieved("another channel binding than at first")
        if not compare_digest(nonce, self._nonce):
            return NotBelieved("another nonce than at first")
        digest = self._mechanism.digest
        said = f"{self._bare},{self._server_first},{without_proof}".encode()
        signature = hmac_digest(credential.stored_key, said, digest)
        proof = b64decode(encoded_proof)
        if len(proof) != len(signature):
            return NotBelieved("a malformed proof")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        stored_key = new_hash(digest, client_key).digest()
        if not compare_digest(stored_key, credential.stored_key) or not self._is_known:
            return NotBelieved("an unknown user, or a wrong password")
        server_signature = b64encode(hmac_digest(credential.server_key, said, digest))
        return Shown(b"v=" + server_signature, self._user, self._expires_ms, self._is_by_token)


def _is_by_token(extensions: str) -> bool:
    values = dict(each.split("=", 1) for each in extensions.split(",")[1:])
    return values.get("tokenauth", "").lower() == "true"
