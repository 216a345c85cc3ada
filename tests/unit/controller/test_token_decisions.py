"""Delegation tokens as Kafka 4.2.1 decides on them: each row is what it was asked, and answered."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from shmbroker.controller.decisions.tokens import (
    TokenRules,
    create_token,
    expire_token,
    expired_tokens,
    renew_token,
)
from shmbroker.errors import ConfigFault
from shmbroker.metadata.security_image import Token
from shmbroker.security.identity import Identity
from shmbroker.security.tokens import TokenKey
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire import codec
from shmbroker.wire.error_codes import (
    DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_EXPIRED,
    DELEGATION_TOKEN_NOT_FOUND,
    DELEGATION_TOKEN_OWNER_MISMATCH,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    INVALID_PRINCIPAL_TYPE,
    NONE,
    UNKNOWN_SERVER_ERROR,
)

NOW = 1_700_000_000_000
DAY = 86_400_000
LONG_MAX = (1 << 63) - 1
KEY = TokenKey("conformance-secret")
RULES = TokenRules(KEY, 7 * DAY, DAY)
DISABLED = TokenRules(None, 7 * DAY, DAY)
ALICE, BOB, CAROL, REQUESTER = (
    Identity(f"User:{name}", "127.0.0.1", "SASL_PLAINTEXT")
    for name in ("alice", "bob", "carol", "requester")
)
ANYBODY = Identity("User:ANONYMOUS", "127.0.0.1", "PLAINTEXT")
BY_TOKEN = ALICE._replace(is_by_token=True)
ID = "FQc1VoYcSo20_ohSnZyXyQ"
TOKEN = Token(
    ID, "User:alice", "User:requester", ("User:bob",), NOW - DAY, NOW + DAY // 2, NOW + 6 * DAY
)


def asked(**changes: Any) -> dict[str, Any]:
    """A CreateDelegationToken."""
    return {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime_ms": -1,
    } | changes


def person(name: str, type_: str = "User") -> dict[str, str]:
    return {"principal_type": type_, "principal_name": name}


def owner(name: str | None, type_: str | None = "User") -> dict[str, str | None]:
    return {"owner_principal_type": type_, "owner_principal_name": name}


def test_the_hmac_is_the_one_that_kafka_made_of_the_same_id_and_key() -> None:
    assert KEY.password_of(ID) == (
        "68VtLj3Z0xeBke5Yr+JUWACn1WxCG2BljvS6kCWjEjH1q6xLBPrVegGCbCna3vcjj6SpbmdmYcETOW1FKe2i8w=="
    )
    assert KEY.password_of(ID) == base64.b64encode(KEY.hmac_of(ID)).decode()
    assert "conformance" not in repr(KEY) + repr(RULES)


@pytest.mark.parametrize(
    ("lifetime_ms", "expires_in", "max_in"),
    [
        (-1, DAY, 7 * DAY),
        (0, DAY, 7 * DAY),
        (5000, 5000, 5000),
        (2 * DAY, DAY, 2 * DAY),
        (1 << 60, DAY, 7 * DAY),
        (LONG_MAX, DAY, 7 * DAY),
    ],
)
def test_a_token_lives_as_long_as_is_asked_and_no_longer_than_is_set(
    lifetime_ms: int, expires_in: int, max_in: int
) -> None:
    request = asked(max_lifetime_ms=lifetime_ms, renewers=[person("bob"), person("bob")])
    [(name, _, record)], answer = create_token(request, 3, ALICE, RULES, NOW, lambda: ID)
    assert name == "DelegationTokenRecord"
    assert record == {
        "owner": "User:alice",
        "requester": "User:alice",
        "renewers": ["User:bob", "User:bob"],
        "issue_timestamp": NOW,
        "max_timestamp": NOW + max_in,
        "expiration_timestamp": NOW + expires_in,
        "token_id": ID,
    }
    assert answer["hmac"] == KEY.hmac_of(ID)
    assert (answer["error_code"], answer["token_id"]) == (NONE, ID)
    assert answer["expiry_timestamp_ms"] == NOW + expires_in
    assert answer["max_timestamp_ms"] == NOW + max_in


@pytest.mark.parametrize(
    ("who", "rules", "request_", "error", "owner_", "requester"),
    [
        (ALICE, RULES, asked(**owner("bob")), NONE, "User:bob", "User:alice"),
        (ALICE, RULES, asked(**owner("b:ob", "")), NONE, ":b:ob", "User:alice"),
        (ALICE, RULES, asked(**owner("")), NONE, "User:alice", "User:alice"),
        (ALICE, RULES, asked(renewers=[person("")]), NONE, "User:alice", "User:alice"),
        (ALICE, RULES, asked(renewers=[person("bob"), person("x", "Group")]),
         INVALID_PRINCIPAL_TYPE, "User:alice", "User:alice"),
        (ALICE, DISABLED, asked(renewers=[person("x", "")], **owner("bob")),
         INVALID_PRINCIPAL_TYPE, "User:bob", "User:alice"),
        (ALICE, DISABLED, asked(), DELEGATION_TOKEN_AUTH_DISABLED, "User:alice", "User:alice"),
        (BY_TOKEN, RULES, asked(renewers=[person("x", "Group")]),
         DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "User:alice", "User:alice"),
        (BY_TOKEN, DISABLED, asked(**owner("bob")),
         DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "User:bob", "User:alice"),
        (ANYBODY, RULES, asked(), DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
         "User:ANONYMOUS", "User:ANONYMOUS"),
        (ANYBODY, RULES, asked(**owner("bob", None)), UNKNOWN_SERVER_ERROR,
         "User:ANONYMOUS", "User:ANONYMOUS"),
        (ALICE, RULES, asked(**owner("bob", None)), UNKNOWN_SERVER_ERROR,
         "User:ANONYMOUS", "User:ANONYMOUS"),
    ],
)  # fmt: skip
def test_whose_a_token_is_and_who_may_not_have_one(
    who: Identity,
    rules: TokenRules,
    request_: dict[str, Any],
    error: int,
    owner_: str,
    requester: str,
) -> None:
    records, answer = create_token(request_, 3, who, rules, NOW, lambda: ID)
    assert answer["error_code"] == error
    assert f"{answer['principal_type']}:{answer['principal_name']}" == owner_
    asked_by = answer["token_requester_principal_type"], answer["token_requester_principal_name"]
    assert ":".join(asked_by) == requester
    if error:
        assert not records
        assert (answer["token_id"], answer["hmac"]) == ("", b"")
        assert answer["issue_timestamp_ms"] == answer["max_timestamp_ms"] == -1
    else:
        [(_, _, record)] = records
        assert (record["owner"], record["requester"]) == (owner_, requester)


@pytest.mark.parametrize("who", [ALICE, BY_TOKEN])
@pytest.mark.parametrize("version", [1, 2])
def test_an_answer_before_version_3_can_be_encoded(version: int, who: Identity) -> None:
    body = codec.encode("CreateDelegationTokenRequest", version, {"renewers": []})
    request = codec.decode_request("CreateDelegationToken", version, body, 0)
    _, answer = create_token(request, version, who, RULES, NOW, lambda: ID)
    codec.encode("CreateDelegationTokenResponse", version, answer)


GONE = TOKEN._replace(expires_ms=NOW - 1)
OVER = TOKEN._replace(max_ms=NOW - 1)
ENDING = TOKEN._replace(max_ms=NOW + DAY // 4)
JUST = TOKEN._replace(expires_ms=NOW)
RIGHT = KEY.hmac_of(ID)


@pytest.mark.parametrize(
    ("who", "rules", "token", "shown", "period_ms", "error", "until"),
    [
        (ALICE, RULES, TOKEN, RIGHT, -1, NONE, NOW + DAY),
        (ALICE, RULES, TOKEN, RIGHT, 0, NONE, NOW + DAY),
        (BOB, RULES, TOKEN, RIGHT, -LONG_MAX, NONE, NOW + DAY),
        (ALICE, RULES, TOKEN, RIGHT, 5000, NONE, NOW + 5000),
        (ALICE, RULES, TOKEN, RIGHT, 1, NONE, NOW + 1),
        (ALICE, RULES, TOKEN, RIGHT, 3 * DAY, NONE, NOW + DAY),
        (ALICE, RULES, TOKEN, RIGHT, LONG_MAX, NONE, NOW + DAY),
        (ALICE, RULES, ENDING, RIGHT, -1, NONE, NOW + DAY // 4),
        (ALICE, RULES, JUST, RIGHT, -1, NONE, NOW + DAY),
        (ALICE, RULES, GONE, RIGHT, -1, DELEGATION_TOKEN_EXPIRED, 0),
        (CAROL, RULES, GONE, RIGHT, -1, DELEGATION_TOKEN_EXPIRED, 0),
        (ALICE, RULES, OVER, RIGHT, -1, DELEGATION_TOKEN_EXPIRED, 0),
        (CAROL, RULES, TOKEN, RIGHT, -1, DELEGATION_TOKEN_OWNER_MISMATCH, 0),
        (REQUESTER, RULES, TOKEN, RIGHT, -1, DELEGATION_TOKEN_OWNER_MISMATCH, 0),
        (ALICE, RULES, TOKEN, b"", -1, DELEGATION_TOKEN_NOT_FOUND, 0),
        (ALICE, RULES, TOKEN, RIGHT[:-1], -1, DELEGATION_TOKEN_NOT_FOUND, 0),
        (ALICE, DISABLED, TOKEN, RIGHT, -1, DELEGATION_TOKEN_AUTH_DISABLED, 0),
        (BY_TOKEN, RULES, TOKEN, RIGHT, -1, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, -1),
        (ANYBODY, DISABLED, TOKEN, RIGHT, -1, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, -1),
    ],
)
def test_renewal(
    who: Identity,
    rules: TokenRules,
    token: Token,
    shown: bytes,
    period_ms: int,
    error: int,
    until: int,
) -> None:
    request = {"hmac": shown, "renew_period_ms": period_ms}
    records, answer = renew_token(request, who, {ID: token}, rules, NOW)
    assert answer == {"error_code": error, "expiry_timestamp_ms": until}
    check_ends(records, token, error, until)


def check_ends(records: list[Any], token: Token, error: int, until: int) -> None:
    """The token's record, as it was but for its end; or none."""
    if error:
        assert not records
        return
    [(name, version, record)] = records
    assert (name, version, record["expiration_timestamp"]) == ("DelegationTokenRecord", 0, until)
    assert record["owner"] == token.owner and record["renewers"] == list(token.renewers)
    assert (record["issue_timestamp"], record["max_timestamp"]) == (token.issued_ms, token.max_ms)


@pytest.mark.parametrize(
    ("who", "rules", "token", "shown", "period_ms", "error", "until"),
    [
        (ALICE, RULES, TOKEN, RIGHT, 5000, NONE, NOW + 5000),
        (BOB, RULES, TOKEN, RIGHT, 0, NONE, NOW),
        (ALICE, RULES, TOKEN, RIGHT, 1 << 40, NONE, NOW + 6 * DAY),
        (ALICE, RULES, TOKEN, RIGHT, LONG_MAX, NONE, NOW + 6 * DAY),
        (ALICE, RULES, GONE, RIGHT, 5000, DELEGATION_TOKEN_EXPIRED, 0),
        (CAROL, RULES, GONE, RIGHT, 5000, DELEGATION_TOKEN_OWNER_MISMATCH, 0),
        (CAROL, RULES, TOKEN, RIGHT, -1, DELEGATION_TOKEN_OWNER_MISMATCH, 0),
        (REQUESTER, RULES, TOKEN, RIGHT, -1, DELEGATION_TOKEN_OWNER_MISMATCH, 0),
        (ALICE, RULES, TOKEN, b"x", -1, DELEGATION_TOKEN_NOT_FOUND, 0),
        (ALICE, DISABLED, TOKEN, RIGHT, -1, DELEGATION_TOKEN_AUTH_DISABLED, 0),
        (BY_TOKEN, RULES, TOKEN, RIGHT, -1, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, -1),
    ],
)
def test_expiry(
    who: Identity,
    rules: TokenRules,
    token: Token,
    shown: bytes,
    period_ms: int,
    error: int,
    until: int,
) -> None:
    request = {"hmac": shown, "expiry_time_period_ms": period_ms}
    records, answer = expire_token(request, who, {ID: token}, rules, NOW)
    assert answer == {"error_code": error, "expiry_timestamp_ms": until}
    check_ends(records, token, error, until)


@pytest.mark.parametrize("token", [TOKEN, GONE])
@pytest.mark.parametrize("period_ms", [-1, -LONG_MAX])
def test_a_negative_time_removes_a_token_though_it_has_expired(
    token: Token, period_ms: int
) -> None:
    request = {"hmac": RIGHT, "expiry_time_period_ms": period_ms}
    records, answer = expire_token(request, BOB, {ID: token}, RULES, NOW)
    assert records == [("RemoveDelegationTokenRecord", 0, {"token_id": ID})]
    assert answer == {"error_code": NONE, "expiry_timestamp_ms": NOW}


def test_a_sweep_takes_what_has_expired() -> None:
    tokens = {"kept": TOKEN, "just": JUST, "gone": GONE, "over": OVER._replace(token_id="over")}
    assert expired_tokens(tokens, NOW) == [
        ("RemoveDelegationTokenRecord", 0, {"token_id": ID}),
        ("RemoveDelegationTokenRecord", 0, {"token_id": "over"}),
    ]


def test_the_rules_are_those_of_the_settings() -> None:
    config = BrokerConfig.load(
        assignments=("delegation.token.secret.key=k", "delegation.token.expiry.time.ms=5")
    )
    rules = TokenRules.of(config, {})
    assert rules.key is not None and rules.key.hmac_of(ID) == TokenKey("k").hmac_of(ID)
    assert (rules.lifetime_ms, rules.renewal_ms) == (7 * DAY, 5)
    assert TokenRules.of(BrokerConfig.load(), {}).key is None


def test_the_key_may_lie_elsewhere() -> None:
    config = BrokerConfig.load(assignments=("delegation.token.secret.key=${env:TOKEN_KEY}",))
    rules = TokenRules.of(config, {"TOKEN_KEY": "k"})
    assert rules.key is not None and rules.key.hmac_of(ID) == TokenKey("k").hmac_of(ID)
    with pytest.raises(ConfigFault, match=r"delegation\.token\.secret\.key"):
        TokenRules.of(config, {})
