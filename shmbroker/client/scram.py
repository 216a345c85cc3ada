"""The client's side of SCRAM (RFC 5802, RFC 7677): it proves that it knows the password, and has
the broker prove that it does. Pure: nonces come in as arguments.

Names and passwords are taken as Kafka takes them: in UTF-8, not changed by SASLprep; "," and "="
of a name are "=2C" and "=3D". There is no channel binding. tokenauth=true says that the name is a
delegation token's id, and the password its HMAC (KIP-48).
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from hmac import compare_digest
from hmac import digest as hmac_digest

from shmbroker.client.secrets import Secret
from shmbroker.errors import ProtocolFault
from shmbroker.security.sasl.scram import ITERATIONS_MIN, MECHANISMS, credential_of, salted

ITERATIONS_MAX = 1 << 20
"""A broker that asks for more would hold its clients up for seconds."""

_HEAD = b"n,,"
_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9/+=]+),i=([1-9][0-9]{0,9})(?:,.*)?")


class ScramClient:
    """One exchange: `first`, then `final` with the broker's answer, then `check` with its last."""

    def __init__(
        self, mechanism: str, user: str, password: Secret, nonce: str, is_by_token: bool = False
    ) -> None:
        """`nonce`: printable ASCII without a comma that nobody can guess."""
        self._mechanism = MECHANISMS[mechanism]
        self._password = password
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        extension = ",tokenauth=true" if is_by_token else ""
        self._bare = f"n={name},r={nonce}{extension}".encode()
        self._signature = b""

    def first(self) -> bytes:
        """The first message."""
        return _HEAD + self._bare

    def final(self, answer: bytes) -> bytes:
        """The second one; ProtocolFault for an answer that may not be."""
        match = _FIRST.fullmatch(answer.decode("utf-8", "replace"))
        if match is None:
            raise ProtocolFault(f"the first answer of SCRAM can't be read{_error(answer)}")
        nonce, iterations = match[1], int(match[3])
        try:
            salt = b64decode(match[2])
        except ValueError:
            raise ProtocolFault("the salt in the first answer of SCRAM is no base64") from None
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ProtocolFault("the answer of SCRAM has another nonce than was sent")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ProtocolFault(
                f"SCRAM wants {iterations} iterations, not {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        key = salted(self._mechanism, self._password.reveal(), salt, iterations)
        kept = credential_of(self._mechanism, key, salt, iterations)
        without_proof = b"c=" + b64encode(_HEAD) + b",r=" + nonce.encode()
        said = b",".join((self._bare, answer, without_proof))
        client_key = self._hmac(key, b"Client Key")
        mask = self._hmac(kept.stored_key, said)
        proof = bytes(one ^ other for one, other in zip(client_key, mask, strict=True))
        self._signature = self._hmac(kept.server_key, said)
        return without_proof + b",p=" + b64encode(proof)

    def check(self, answer: bytes) -> None:
        """ProtocolFault unless the broker knows what is kept of the password, too."""
        expected = b"v=" + b64encode(self._signature)
        if not self._signature or not compare_digest(answer.split(b",")[0], expected):
            raise ProtocolFault(
                f"the broker does not prove that it knows the user's password{_error(answer)}"
            )

    def _hmac(self, key: bytes, content: bytes) -> bytes:
        return hmac_digest(key, content, self._mechanism.digest)


def _error(answer: bytes) -> str:
    """What the broker says is wrong, if it does (`e=…`)."""
    found = re.match(rb"e=([\x20-\x2b\x2d-\x7e]{1,100})", answer)
    return f": {found[1].decode()}" if found else ""
