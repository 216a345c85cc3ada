"""The users of SCRAM, as the metadata log knows them."""

from __future__ import annotations

from hmac import digest as hmac_digest

from shmbroker.metadata.security_image import ScramCredential
from shmbroker.security.sasl.scram import ITERATIONS_MIN, MECHANISMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.metadata.security_image import SecurityImage
    from shmbroker.security.sasl.outcome import NotYet
    from shmbroker.security.sasl.scram import TokenCredential

SALT_BYTES = 16


class ScramUsers:
    """Users with a password; and tokens, where there are any (KIP-48)."""

    def __init__(
        self,
        image: Callable[[], SecurityImage],
        secret: bytes,
        token_of: Callable[
            [str, str], TokenCredential | NotYet | None
        ] = lambda mechanism, token_id: None,
    ) -> None:
        """secret: what salts of those who are no users are made of, the same in all gateways.
        token_of: what is kept of a delegation token, by mechanism and token id."""
        self._image = image
        self._secret = secret
        self.token = token_of

    def lookup(self, mechanism: str, user: str) -> ScramCredential | None:
        """See `scram.ScramCredentials`."""
        return self._image().scram.get((user, MECHANISMS[mechanism].code))

    def stand_in(self, mechanism: str, user: str) -> ScramCredential:
        """Looks like one of a user: with as many iterations and as long a salt as some user has."""
        _, code, digest = MECHANISMS[mechanism]
        like = [
            credential for (_, other), credential in self._image().scram.items() if other == code
        ]
        salt = hmac_digest(self._secret, f"{mechanism} {user}".encode(), "sha512")
        iterations, salt_bytes = ITERATIONS_MIN, SALT_BYTES
        if like:
            chosen = like[int.from_bytes(salt[-8:], "big") % len(like)]
            iterations, salt_bytes = chosen.iterations, len(chosen.salt)
        key = hmac_digest(self._secret, salt, digest)
        return ScramCredential(_of_length(salt, salt_bytes), key, key, iterations)


def _of_length(salt: bytes, size: int) -> bytes:
    return (salt * (size // len(salt) + 1))[:size]
