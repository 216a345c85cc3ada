"""The rules by which signed tokens (RFC 7519) hold: signature, time, issuer, audience, subject.

Rules of this file:
* A signature is checked with a public key, by one of ALGORITHMS: none is no algorithm, and neither
  is one whose secret would lie with brokers.
* The key is that which the token names, or the only one there is if it names none; a key that is
  for another algorithm, or for encryption, fits no token.
* A token says until when it holds (exp) and when it was issued (iat), as Kafka wants it; both, and
  from when on it holds (nbf), by the wall clock, give or take the skew.
* joserfc does the cryptography; it is imported when there is a key.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from shmbroker.security.sasl.bearer import Invalid, Valid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from joserfc.jwk import ECKey, OKPKey, RSAKey

    PublicKey = RSAKey | ECKey | OKPKey
    Json = Mapping[str, object]

ALGORITHMS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
    "Ed25519": "OKP",
}
"""Algorithms with the type of their keys."""
KEYS_MAX = 100


class Expected(NamedTuple):
    """What the settings ask of a token (sasl.oauthbearer.…)."""

    audience: Collection[str] = ()
    """Audiences of which the token must name one; empty: it may name any, or none."""
    issuer: str | None = None
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    skew_s: int = 30


class SigningKey(NamedTuple):
    """One of a key set."""

    key_id: str | None
    algorithm: str | None
    """The only one it is for, if it says so."""
    key: PublicKey


def keys_of(text: bytes) -> list[SigningKey]:
    """The keys of a key set (RFC 7517) that may check signatures; ValueError if it is none."""
    from joserfc.errors import JoseError
    from joserfc.jwk import import_key

    try:
        rows = json.loads(text)
    except RecursionError as fault:
        raise ValueError("it is nested too deeply") from fault
    rows = rows.get("keys") if isinstance(rows, dict) else None
    if not isinstance(rows, list) or len(rows) > KEYS_MAX:
        raise ValueError("it is no set of keys")
    found = []
    for row in rows:
        if not isinstance(row, dict) or row.get("kty") not in ALGORITHMS.values():
            continue
        if row.get("use", "sig") != "sig":
            continue
        public = {name: value for name, value in row.items() if name not in _PRIVATE}
        try:
            key: PublicKey = import_key(public)  # type: ignore[assignment]
        except (JoseError, ValueError, TypeError, KeyError):
            continue  # of a kind that is newer than the library: others may fit
        found.append(SigningKey(_text(row.get("kid")), _text(row.get("alg")), key))
    return found


_PRIVATE = ("d", "p", "q", "dp", "dq", "qi", "oth", "key_ops")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


class JwtValidator:
    """A `TokenValidator` by keys that may change."""

    def __init__(
        self,
        expected: Expected,
        keys: Callable[[], Sequence[SigningKey]],
        now_ms: Callable[[], int],
        on_unknown_key: Callable[[], None] = lambda: None,
    ) -> None:
        """now_ms: the time by the wall clock. on_unknown_key: a token names a key that isn't
        there; there may be newer ones."""
        self._expected = expected
        self._keys = keys
        self._now_ms = now_ms
        self._on_unknown_key = on_unknown_key

    def validate(self, token: str) -> Valid | Invalid:
        """Whether this one holds now."""
        from joserfc import jws
        from joserfc.errors import JoseError

        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError, TypeError, AttributeError):
            return Invalid("it is no signed token")
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            return Invalid("it is not signed, or by an algorithm that is not served")
        key = self._key_of(header.get("kid"), algorithm)
        if key is None:
            self._on_unknown_key()
            return Invalid("its key is unknown")
        try:
            signed = jws.deserialize_compact(token.encode(), key, algorithms=[algorithm])
            claims = json.loads(signed.payload)
        except (JoseError, ValueError, TypeError, RecursionError):
            return Invalid("its signature is wrong")
        if not isinstance(claims, dict):
            return Invalid("it has no claims")
        return self._judged(claims)

    def _key_of(self, key_id: object, algorithm: str) -> PublicKey | None:
        fitting = [
            each
            for each in self._keys()
            if each.key.key_type == ALGORITHMS[algorithm]
            and each.algorithm in (None, algorithm)
            and key_id in (None, each.key_id)
        ]
        if len(fitting) == 1 or (fitting and key_id is not None):
            return fitting[0].key
        return None

    def _judged(self, claims: Json) -> Valid | Invalid:
        expected = self._expected
        now_s, skew_s = self._now_ms() / 1000, expected.skew_s
        expires, issued, begins = claims.get("exp"), claims.get("iat"), claims.get("nbf", 0)
        if not _is_time(expires) or not _is_time(issued) or not _is_time(begins):
            return Invalid("it does not say when it was issued and when it expires")
        assert isinstance(expires, int | float) and isinstance(begins, int | float)
        assert isinstance(issued, int | float)
        if now_s - skew_s >= expires or expires < issued:
            return Invalid("it has expired")
        if now_s + skew_s < begins:
            return Invalid("it does not hold yet")
        if expected.issuer is not None and claims.get("iss") != expected.issuer:
            return Invalid("it is of another issuer")
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        if expected.audience and not any(each in expected.audience for each in named):
            return Invalid("it is for another audience")
        if not _are_scopes(claims.get(expected.scope_claim)):
            return Invalid(f"its {expected.scope_claim} is no scope")
        name = claims.get(expected.sub_claim)
        if not isinstance(name, str) or not name.strip():
            return Invalid(f"its {expected.sub_claim} names nobody")
        return Valid(name.strip(), int(expires * 1000))


def _is_time(value: object) -> bool:
    """Whether this is a number of seconds since 1970; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LATEST_S


def _are_scopes(value: object) -> bool:
    """Whether these are scopes in Kafka's eyes: a word or several, each once; what is neither is
    none, and fine."""
    if not isinstance(value, str | list):
        return True
    words = [value] if isinstance(value, str) else value
    names = [each.strip() for each in words if isinstance(each, str)]
    return len(names) == len(words) == len(set(names)) and "" not in names


_LATEST_S = 1 << 40
