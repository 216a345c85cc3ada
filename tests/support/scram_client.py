"""A raw client that shows who it is: PLAIN, and SCRAM with a password or a delegation token."""

from __future__ import annotations

import base64
import hashlib
import hmac

from tests.support.raw_client import RawClient

ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED = 34, 58
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslRefused(Exception):
    """The server did not let it in: the error code, and what it says."""


class ScramClient(RawClient):
    """`plain` or `scram` comes before any request."""

    session_lifetime_ms = 0
    """What the last answer to SaslAuthenticate said."""

    def plain(self, user: str, password: str) -> ScramClient:
        """Authenticate by PLAIN; SaslRefused."""
        self._handshake("PLAIN")
        self._say(b"\0" + user.encode() + b"\0" + password.encode())
        return self

    def token(
        self, token_id: str, token_hmac: bytes, mechanism: str = "SCRAM-SHA-256"
    ) -> ScramClient:
        """Authenticate by a delegation token (KIP-48); SaslRefused."""
        password = base64.b64encode(token_hmac).decode()
        return self.scram(token_id, password, mechanism, ",tokenauth=true")

    def scram(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-256", extensions: str = ""
    ) -> ScramClient:
        """Authenticate by SCRAM (RFC 5802); extensions: such as ",tokenauth=true"; SaslRefused."""
        digest = DIGESTS[mechanism]
        self._handshake(mechanism)
        nonce = base64.b64encode(user.encode()).decode().rstrip("=") + "nonce"
        first = f"n={user},r={nonce}{extensions}"
        challenge = self._say(f"n,,{first}".encode()).decode()
        said = dict(part.split("=", 1) for part in challenge.split(","))
        assert said["r"].startswith(nonce)
        salt, iterations = base64.b64decode(said["s"]), int(said["i"])
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        final = f"c={base64.b64encode(b'n,,').decode()},r={said['r']}"
        message = f"{first},{challenge},{final}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), message, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        verdict = self._say(f"{final},p={base64.b64encode(proof).decode()}".encode())
        server_key = hmac.digest(salted, b"Server Key", digest)
        expected = base64.b64encode(hmac.digest(server_key, message, digest))
        assert verdict == b"v=" + expected, verdict
        return self

    def _handshake(self, mechanism: str) -> None:
        answer = self.ask("SaslHandshake", 1, {"mechanism": mechanism})
        if answer["error_code"]:
            raise SaslRefused(answer["error_code"], f"{mechanism}: {answer['mechanisms']}")

    def _say(self, message: bytes) -> bytes:
        answer = self.ask("SaslAuthenticate", 2, {"auth_bytes": message})
        if answer["error_code"]:
            raise SaslRefused(answer["error_code"], answer["error_message"])
        self.session_lifetime_ms = answer["session_lifetime_ms"]
        return bytes(answer["auth_bytes"])
