"""OAUTHBEARER, and which signed tokens hold."""

import hmac
import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey

from shmbroker.security.sasl.bearer import Bearer, Invalid, Valid
from shmbroker.security.sasl.jwt import Expected, JwtValidator, keys_of
from shmbroker.security.sasl.outcome import Challenge, NotBelieved, Shown

NOW_S = 1_800_000_000
CLAIMS = {"sub": "alice", "iat": NOW_S - 10, "exp": NOW_S + 100, "iss": "us", "aud": "kafka"}
RSA = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
OTHER = RSAKey.generate_key(2048, {"kid": "rsa"})
JWKS = json.dumps({"keys": [key.as_dict(private=False) for key in (RSA, EC, ED)]}).encode()
EXPECTED = Expected(("kafka", "other"), "us")


def token(
    key: Any = RSA, algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any
) -> str:
    named = {"alg": algorithm, "kid": key.kid} if header is None else header
    payload = {name: value for name, value in (CLAIMS | claims).items() if value is not ...}
    return jws.serialize_compact(named, json.dumps(payload).encode(), key, algorithms=[algorithm])


def validator(expected: Expected = EXPECTED, wanted: list[int] | None = None) -> JwtValidator:
    keys = keys_of(JWKS)
    calls = [] if wanted is None else wanted
    return JwtValidator(expected, lambda: keys, lambda: NOW_S * 1000, lambda: calls.append(1))


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "Ed25519")]
)
def test_a_signed_token_holds_until_it_expires(key: Any, algorithm: str) -> None:
    assert validator().validate(token(key, algorithm)) == Valid("alice", (NOW_S + 100) * 1000)


@pytest.mark.parametrize(
    "claims",
    [
        {"iat": NOW_S - 60, "exp": NOW_S - 29},
        {"iat": NOW_S + 50},
        {"scope": 7},
        {"scope": []},
        {"nbf": NOW_S + 30},
        {"aud": ["x", "other"]},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
        {"exp": NOW_S + 0.5},
    ],
)
def test_it_holds_within_the_skew_and_for_one_of_the_audiences(claims: dict[str, Any]) -> None:
    assert isinstance(validator().validate(token(**claims)), Valid)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iat": NOW_S - 60, "exp": NOW_S - 30}, "expired"),
        ({"exp": NOW_S - 11}, "expired"),
        ({"nbf": NOW_S + 31}, "not hold yet"),
        ({"exp": ...}, "when it was issued"),
        ({"iat": ...}, "when it was issued"),
        ({"exp": True}, "when it was issued"),
        ({"exp": "soon"}, "when it was issued"),
        ({"exp": 1e300}, "when it was issued"),
        ({"iss": "them"}, "another issuer"),
        ({"iss": ...}, "another issuer"),
        ({"aud": "them"}, "another audience"),
        ({"aud": ...}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": {"kafka": 1}}, "another audience"),
        ({"sub": ...}, "names nobody"),
        ({"sub": " "}, "names nobody"),
        ({"sub": 7}, "names nobody"),
        ({"scope": ""}, "no scope"),
        ({"scope": ["read", "read "]}, "no scope"),
        ({"scope": ["read", " "]}, "no scope"),
        ({"scope": ["read", 7]}, "no scope"),
    ],
)
def test_one_that_does_not_hold_is_refused(claims: dict[str, Any], reason: str) -> None:
    found = validator().validate(token(**claims))
    assert isinstance(found, Invalid) and reason in found.reason


def part(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_no_signature_is_none() -> None:
    for algorithm in ("none", "None", "NONE", None, 7):
        unsigned = f"{part({'alg': algorithm})}.{part(CLAIMS)}."
        assert isinstance(validator().validate(unsigned), Invalid)


def test_claims_that_are_nested_too_deeply_are_refused() -> None:
    signed = jws.serialize_compact(
        {"alg": "RS256", "kid": "rsa"}, b"[" * 50_000, RSA, algorithms=["RS256"]
    )
    assert isinstance(validator().validate(signed), Invalid)


def test_a_public_key_is_no_secret() -> None:
    """What is signed with the public key as if that were a secret is refused (CVE-2015-9235)."""
    start = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(CLAIMS)}"
    signature = hmac.digest(RSA.as_pem(private=False), start.encode(), "sha256")
    encoded = urlsafe_b64encode(signature).rstrip(b"=").decode()
    found = validator().validate(f"{start}.{encoded}")
    assert isinstance(found, Invalid) and "algorithm" in found.reason


def test_the_signature_is_by_the_key_that_the_token_names() -> None:
    wanted: list[int] = []
    known = validator(wanted=wanted)
    assert known.validate(token(OTHER)) == Invalid("its signature is wrong")
    assert not wanted
    header = {"alg": "RS256", "kid": "newer"}
    assert known.validate(token(header=header)) == Invalid("its key is unknown")
    assert wanted, "newer keys are looked for"
    assert isinstance(known.validate(token(header={"alg": "RS256"})), Valid), "there is but one"
    head, body, _ = token().split(".")
    assert known.validate(f"{head}.{body}.AAAA") == Invalid("its signature is wrong")
    assert known.validate(f"{head}.{part(CLAIMS | {'sub': 'bob'})}.{token().split('.')[2]}") == (
        Invalid("its signature is wrong")
    )


def test_a_key_in_the_header_counts_for_nothing() -> None:
    header = {"alg": "RS256", "jwk": OTHER.as_dict(private=False)}
    found = validator().validate(token(OTHER, header=header))
    assert isinstance(found, Invalid)


def test_a_key_is_for_its_algorithm_and_for_signatures() -> None:
    row = RSA.as_dict(private=False)
    assert keys_of(json.dumps({"keys": [row | {"use": "enc"}]}).encode()) == []
    only = keys_of(json.dumps({"keys": [row | {"alg": "RS512"}]}).encode())
    narrow = JwtValidator(EXPECTED, lambda: only, lambda: NOW_S * 1000)
    assert narrow.validate(token()) == Invalid("its key is unknown")
    assert isinstance(narrow.validate(token(algorithm="RS512")), Valid)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"keys": 7}', b"\xff", b'{"keys": {}}'])
def test_what_is_no_set_of_keys_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        keys_of(text)


def test_keys_of_another_kind_are_passed_over() -> None:
    rows = [{"kty": "oct", "k": "AAAA"}, {"kty": "RSA", "n": 7}, 7, {"kty": "RSA"}]
    assert keys_of(json.dumps({"keys": [*rows, EC.as_dict(private=False)]}).encode())[0].key_id == (
        "ec"
    )


def test_claims_may_have_other_names() -> None:
    other = Expected(sub_claim="user", scope_claim="scp")
    found = validator(other).validate(token(user="bob", scp="x", aud=...))
    assert isinstance(found, Valid) and found.name == "bob"


@given(st.text("abcAB.-_={}", max_size=80))
def test_any_text_is_judged(text: str) -> None:
    assert isinstance(validator().validate(text), Invalid)


# ── the exchange ────────────────────────────────────────────────────────────────────────────────


def said(of: str, head: str = "n,,", more: str = "") -> bytes:
    return f"{head}\1auth=Bearer {of}\1{more}\1".encode()


def test_a_token_shows_who_it_is() -> None:
    shown = Shown(b"", "alice", (NOW_S + 100) * 1000)
    assert Bearer(validator()).on_message(said(token())) == shown
    assert Bearer(validator()).on_message(said(token(), "n,a=alice,")) == shown
    assert Bearer(validator()).on_message(said(token(), more="traceId=7\1")) == shown
    lower = said(token()).replace(b"Bearer", b"bearer")
    assert Bearer(validator()).on_message(lower) == shown


def test_an_invalid_token_is_said_to_be_and_gets_no_second_try() -> None:
    one = Bearer(validator())
    assert one.on_message(said(token(exp=1))) == Challenge(b'{"status":"invalid_token"}')
    refused = NotBelieved("a token is invalid: it has expired", '{"status":"invalid_token"}')
    assert one.on_message(said(token())) == NotBelieved(refused.reason)
    assert one.on_message(rb"\x01") == NotBelieved(refused.reason), "sarama's"
    assert one.on_message(b"\1") == refused


def test_another_authorization_id_is_refused() -> None:
    refused = Bearer(validator()).on_message(said(token(), "n,a=bob,"))
    assert isinstance(refused, NotBelieved) and "(bob)" in (refused.text or "")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\1",
        b"\xff",
        b"n,,\1\1",
        b"n,,\1auth=Basic abc\1\1",
        b"n,,\1auth=Bearer\1\1",
        b"n,,\1auth=Bearer a b\1\1",
        b"n,,\1auth=Bearer abc\1",
        b"y,,\1auth=Bearer abc\1\1",
        b"n,,\1host=x\1\1",
    ],
)
def test_a_malformed_message_is_refused(message: bytes) -> None:
    refused = Bearer(validator()).on_message(message)
    assert isinstance(refused, NotBelieved) and refused.text is None


@given(st.binary(max_size=200))
def test_any_message_is_answered(message: bytes) -> None:
    assert isinstance(Bearer(validator()).on_message(message), NotBelieved | Challenge)
