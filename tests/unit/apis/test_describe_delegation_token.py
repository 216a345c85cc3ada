"""DescribeDelegationToken, as a gateway answers it from its image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.gateway.connection import Connection
from shmbroker.metadata.security_image import Token, token_record
from shmbroker.security.tokens import TokenKey
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.wire.error_codes import (
    DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    NONE,
)
from tests.support.gateway_family import GatewayFamily, gateway_family

DESCRIBE = 41, 3, "DescribeDelegationToken"
SECRET = "delegation.token.secret.key=k"
TOKENS = (
    Token("one", "User:alice", "User:alice", ("User:bob", "User:b:ob"), 1, 2, 3),
    Token("two", "User:carol", "User:bob", (), 4, 5, 6),
    Token("three", "User:carol", "User:carol", (), 7, 8, 9),
)
ROW_OF_ONE = {
    "principal_type": "User",
    "principal_name": "alice",
    "token_requester_principal_type": "User",
    "token_requester_principal_name": "alice",
    "issue_timestamp": 1,
    "expiry_timestamp": 2,
    "max_timestamp": 3,
    "token_id": "one",
    "hmac": TokenKey("k").hmac_of("one"),
    "renewers": [
        {"principal_type": "User", "principal_name": "bob"},
        {"principal_type": "User", "principal_name": "b:ob"},
    ],
}


@pytest.fixture
def family() -> Iterator[GatewayFamily]:
    with gateway_family(SECRET) as made:
        tell_tokens(made)
        yield made


def tell_tokens(family: GatewayFamily) -> None:
    family.link.commit(*(("DelegationTokenRecord", 0, token_record(each)) for each in TOKENS))


def connection_of(family: GatewayFamily) -> Connection:
    [connection] = family.gateway.loop.connections.values()
    return connection


def described(family: GatewayFamily, owners: list[str] | None) -> dict[str, Any]:
    rows = None
    if owners is not None:
        rows = [{"principal_type": "User", "principal_name": name} for name in owners]
    family.ask(*DESCRIBE, {"owners": rows})
    return family.answer(*DESCRIBE)


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        (None, ["one", "two", "three"]),
        ([], []),
        (["alice"], ["one"]),
        (["bob"], ["one", "two"]),
        (["carol", "alice"], ["one", "two", "three"]),
        (["nobody"], []),
    ],
)
def test_owners_choose_the_tokens_that_concern_them(
    family: GatewayFamily, owners: list[str] | None, expected: list[str]
) -> None:
    family.gateway.clients.admit(connection_of(family), "User:alice")
    answer = described(family, owners)
    assert answer["error_code"] == NONE
    assert [token["token_id"] for token in answer["tokens"]] == expected


def test_a_token_is_described_whole(family: GatewayFamily) -> None:
    family.gateway.clients.admit(connection_of(family), "User:zoe")
    assert described(family, ["alice"])["tokens"] == [ROW_OF_ONE]


@pytest.mark.parametrize("version", [1, 2])
def test_before_version_3_nobody_is_told_who_asked_for_it(
    family: GatewayFamily, version: int
) -> None:
    family.gateway.clients.admit(connection_of(family), "User:zoe")
    family.ask(41, version, "DescribeDelegationToken", {"owners": None})
    answer = family.answer(41, version, "DescribeDelegationToken")
    assert [row["token_requester_principal_name"] for row in answer["tokens"]] == [""] * 3


def test_nobody_and_who_has_shown_a_token_is_told_nothing(family: GatewayFamily) -> None:
    for principal, is_by_token in (("User:ANONYMOUS", False), ("User:alice", True)):
        family.gateway.clients.admit(connection_of(family), principal, is_by_token)
        answer = described(family, None)
        assert answer["error_code"] == DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert not answer["tokens"]


def test_the_same_bytes_of_another_client_are_answered_anew(family: GatewayFamily) -> None:
    family.gateway.clients.admit(connection_of(family), "User:alice")
    assert described(family, None)["tokens"]
    family.gateway.clients.admit(connection_of(family), "User:ANONYMOUS")
    assert not described(family, None)["tokens"]


def test_without_a_key_there_are_none() -> None:
    with gateway_family() as family:
        tell_tokens(family)
        family.gateway.clients.admit(connection_of(family), "User:alice")
        assert described(family, None)["error_code"] == DELEGATION_TOKEN_AUTH_DISABLED


def test_with_an_authorizer_one_sees_ones_own() -> None:
    with gateway_family(SECRET, f"authorizer.class.name={STANDARD_AUTHORIZER}") as family:
        tell_tokens(family)
        for principal, seen in (("User:bob", ["one", "two"]), ("User:zoe", [])):
            family.gateway.clients.admit(connection_of(family), principal)
            answer = described(family, None)
            assert [token["token_id"] for token in answer["tokens"]] == seen
