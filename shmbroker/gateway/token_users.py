"""Delegation tokens as users of SCRAM (KIP-48): the id is the name, the HMAC the password.

   a client names a token ──► there, and holds? ──no──► None: as an unknown user
                                   │ yes
                              salted before? ──no──► NOT_YET; a thread does it, in milliseconds
                                   │ yes
                              what is kept of it

* Apache Kafka salts each token for each mechanism as soon as it hears of it. Here that is done when
  a token is first used: most are never used in most processes, and a start with thousands of them
  would take a minute.
* Each gateway has salts of its own: an exchange belongs to one connection.
* A token that has expired lets nobody in, though it may not be swept away yet.
"""

from __future__ import annotations

from shmbroker.metadata.security_image import ScramCredential
from shmbroker.security.sasl.outcome import NOT_YET
from shmbroker.security.sasl.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    TokenCredential,
    credential_of,
    salted,
)
from shmbroker.security.tokens import USER, Principal, is_expired

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.metadata.security_image import SecurityImage
    from shmbroker.security.sasl.outcome import NotYet
    from shmbroker.security.tokens import TokenKey

    Work = Callable[[], None]

SALT_BYTES = 16
KEPT_MAX = 16384
"""Salted tokens; after so many all are salted again."""


class TokenUsers:
    """`token` is what `ScramUsers` asks."""

    def __init__(
        self,
        image: Callable[[], SecurityImage],
        key: TokenKey | None,
        now_ms: Callable[[], int],
        new_salt: Callable[[int], bytes],
        do_aside: Callable[[Work], None],
    ) -> None:
        """now_ms: wall-clock time. new_salt: so many random bytes. do_aside: have something done
        that takes milliseconds, in another thread."""
        self._image = image
        self._key = key
        self._now_ms = now_ms
        self._new_salt = new_salt
        self._do_aside = do_aside
        self._kept: dict[tuple[str, str], ScramCredential | None] = {}
        """The credentials, by mechanism and token id; None while one is salted."""

    def token(self, mechanism: str, token_id: str) -> TokenCredential | NotYet | None:
        """What is kept of a token that holds; NOT_YET: ask again soon."""
        token = self._image().tokens.get(token_id)
        if self._key is None or token is None or is_expired(token, self._now_ms()):
            return None
        owner = Principal.parse(token.owner)
        if owner.type != USER:  # SCRAM knows users alone: this would let another one in
            return None
        place = mechanism, token_id
        if place not in self._kept:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[place] = None
            password = self._key.password_of(token_id)
            salt = self._new_salt(SALT_BYTES)
            self._do_aside(lambda: self._salt(place, password, salt))
        credential = self._kept.get(place)
        if credential is None:
            return NOT_YET
        return TokenCredential(credential, owner.name, min(token.expires_ms, token.max_ms))

    def _salt(self, place: tuple[str, str], password: str, salt: bytes) -> None:
        """Salt a token's password, in another thread: it stores one value under one key, no more;
        where it fails, it removes the key, and the next that asks has it tried again."""
        mechanism = MECHANISMS[place[0]]
        try:
            salted_password = salted(mechanism, password, salt, ITERATIONS_MIN)
            self._kept[place] = credential_of(mechanism, salted_password, salt, ITERATIONS_MIN)
        except Exception:
            self._kept.pop(place, None)
            raise
