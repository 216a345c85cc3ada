"""Delegation tokens on a real broker: made, shown, renewed, used, taken away, kept over a start.

The story is told to Apache Kafka 4.2.1 as well, where TOKEN_ORACLE=host:port names one that has the
users of PASSWORDS for PLAIN, a key for tokens, and an authorizer with the super user admin.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shmbroker import clock
from shmbroker.cli.commands import main
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import (
    DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN_EXPIRED,
    DELEGATION_TOKEN_NOT_FOUND,
    DELEGATION_TOKEN_OWNER_MISMATCH,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    INVALID_PRINCIPAL_TYPE,
    NONE,
    SASL_AUTHENTICATION_FAILED,
)
from tests.support.raw_client import RawClient
from tests.support.scram_client import DIGESTS, SaslRefused, ScramClient
from tests.support.waiting import wait_until

USERS = ("admin", "alice", "bob", "carol", "dave")
PASSWORDS = " ".join(f'user_{user}="{user}-secret"' for user in USERS)
DAY_MS = 86_400_000
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:{port1},SASL://127.0.0.1:{port2}",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl.plain.sasl.jaas.config": (
        f"org.apache.kafka.common.security.plain.PlainLoginModule required {PASSWORDS};"
    ),
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
    "connection.failed.authentication.delay.ms": "10",
}
KEY = {"delegation.token.secret.key": "${env:TOKEN_KEY}"}


def flags(settings: dict[str, str]) -> list[str]:
    return [word for pair in settings.items() for word in ("--set", "=".join(pair))]


def entrance(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port_of_listener(1)}"


def user(address: str, name: str) -> ScramClient:
    return ScramClient(address).plain(name, f"{name}-secret")


def principal(name: str, type_: str = "User") -> dict[str, str]:
    return {"principal_type": type_, "principal_name": name}


def create(client: RawClient, owner: str | None = None, **more: Any) -> dict[str, Any]:
    body = {"renewers": [], "max_lifetime_ms": -1} | more
    if owner is not None:
        body |= {"owner_principal_type": "User", "owner_principal_name": owner}
    return client.ask("CreateDelegationToken", 3, body)


def renew(client: RawClient, token: dict[str, Any], period_ms: int = -1) -> dict[str, Any]:
    body = {"hmac": token["hmac"], "renew_period_ms": period_ms}
    return client.ask("RenewDelegationToken", 2, body)


def expire(client: RawClient, token: dict[str, Any], period_ms: int = -1) -> dict[str, Any]:
    body = {"hmac": token["hmac"], "expiry_time_period_ms": period_ms}
    return client.ask("ExpireDelegationToken", 2, body)


def seen(client: RawClient, *tokens: dict[str, Any], owners: list[str] | None = None) -> str:
    """Which of these tokens a client is told of, by their places."""
    rows = None if owners is None else [principal(owner) for owner in owners]
    answer = client.ask("DescribeDelegationToken", 3, {"owners": rows})
    assert answer["error_code"] == NONE
    ids = {row["token_id"] for row in answer["tokens"]}
    return " ".join(str(at) for at, token in enumerate(tokens) if token["token_id"] in ids)


def entered(address: str, token: dict[str, Any], mechanism: str = "SCRAM-SHA-256") -> ScramClient:
    return ScramClient(address).token(token["token_id"], token["hmac"], mechanism)


def is_refused(address: str, token: dict[str, Any]) -> bool:
    with pytest.raises(SaslRefused) as refused:
        entered(address, token)
    return bool(refused.value.args[0] == SASL_AUTHENTICATION_FAILED)


def story(address: str) -> None:
    """What is true of both brokers; Kafka hears of its own decisions a moment later."""
    alice, bob, carol, dave, admin = (
        user(address, name) for name in ("alice", "bob", "carol", "dave", "admin")
    )

    # who gets one
    before_ms = clock.now_ms()
    own = create(alice, renewers=[principal("bob")])
    assert own["error_code"] == NONE
    assert before_ms - 1000 <= own["issue_timestamp_ms"] <= clock.now_ms() + 1000
    assert own["expiry_timestamp_ms"] - own["issue_timestamp_ms"] == DAY_MS
    assert own["max_timestamp_ms"] - own["issue_timestamp_ms"] == 7 * DAY_MS
    group = principal("g", "Group")
    assert create(alice, renewers=[group])["error_code"] == INVALID_PRINCIPAL_TYPE
    refused = create(alice, "carol", renewers=[group])
    assert refused["error_code"] == DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused["principal_name"], refused["hmac"]) == ("carol", b"")
    allow(admin, dave="CREATE_TOKENS", bob="DESCRIBE_TOKENS")
    others = wait_until(
        lambda: found if (found := create(dave, "carol"))["error_code"] == NONE else None,
        "the right of dave",
    )
    assert (others["principal_name"], others["token_requester_principal_name"]) == (
        "carol", "dave")  # fmt: skip

    # who sees it
    wait_until(lambda: seen(admin, own, others) == "0 1", "both tokens")
    assert seen(alice, own, others) == "0"
    assert seen(bob, own, others) == "0 1"  # as a renewer, and by his right
    assert seen(carol, own, others) == "1"
    assert seen(dave, own, others) == "1"
    assert seen(bob, own, others, owners=["carol"]) == "1"
    assert seen(bob, own, others, owners=[]) == ""

    # who renews it, and for how long
    for client, error in (
        (carol, DELEGATION_TOKEN_OWNER_MISMATCH),
        (admin, DELEGATION_TOKEN_OWNER_MISMATCH),
        (bob, NONE),
        (alice, NONE),
    ):
        assert renew(client, own)["error_code"] == error
    assert renew(dave, others)["error_code"] == DELEGATION_TOKEN_OWNER_MISMATCH
    assert renew(alice, {"hmac": b"none"})["error_code"] == DELEGATION_TOKEN_NOT_FOUND
    assert renew(alice, own, 30 * DAY_MS)["expiry_timestamp_ms"] <= clock.now_ms() + DAY_MS + 1000
    assert expire(alice, own, 30 * DAY_MS)["expiry_timestamp_ms"] == own["max_timestamp_ms"]

    # what it opens: all that its owner may, but for tokens
    for mechanism in DIGESTS:
        with entered(address, others, mechanism) as client:
            assert 0 < client.session_lifetime_ms <= DAY_MS
            assert client.ask("DescribeGroups", 5, {"groups": ["x"]})["groups"][0]["error_code"]
            for answer in (create(client), renew(client, others), expire(client, others)):
                assert answer["error_code"] == DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    forged = own | {"hmac": b"x" * 64}
    assert is_refused(address, forged)
    with pytest.raises(SaslRefused):  # it is no user
        ScramClient(address).scram(own["token_id"], "x")

    # its end
    short = create(alice, max_lifetime_ms=1)
    assert short["expiry_timestamp_ms"] - short["issue_timestamp_ms"] == 1
    wait_until(
        lambda: renew(alice, short)["error_code"] == DELEGATION_TOKEN_EXPIRED, "it has expired"
    )
    assert expire(alice, short, 5)["error_code"] == DELEGATION_TOKEN_EXPIRED
    assert expire(carol, own)["error_code"] == DELEGATION_TOKEN_OWNER_MISMATCH
    for token in (own, short):
        assert expire(alice, token)["error_code"] == NONE
    wait_until(lambda: seen(admin, own, short) == "", "both are gone")
    assert is_refused(address, own)
    assert renew(alice, own)["error_code"] == DELEGATION_TOKEN_NOT_FOUND
    assert expire(carol, others)["error_code"] == NONE


def allow(admin: RawClient, **rights: str) -> None:
    """CREATE_TOKENS and the like on User:carol."""
    codes = {"CREATE_TOKENS": 13, "DESCRIBE_TOKENS": 14}
    creations = [
        {
            "resource_type": 7,
            "resource_name": "User:carol",
            "resource_pattern_type": 3,
            "principal": f"User:{name}",
            "host": "*",
            "operation": codes[right],
            "permission_type": 3,
        }
        for name, right in rights.items()
    ]
    answer = admin.ask("CreateAcls", 3, {"creations": creations})
    assert [row["error_code"] for row in answer["results"]] == [NONE] * len(creations)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_KEY", "a key of tests")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(*flags(SETTINGS | KEY)) as broker:
        yield broker


def test_the_life_of_tokens(broker: Broker) -> None:
    story(entrance(broker))
    with RawClient(broker.address) as stranger:
        assert create(stranger)["error_code"] == DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.mark.oracle
@pytest.mark.skipif("TOKEN_ORACLE" not in os.environ, reason="no Apache Kafka to ask")
def test_kafka_tells_the_same_story() -> None:
    story(os.environ["TOKEN_ORACLE"])


def test_tokens_hold_over_a_start_as_long_as_the_key_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with Broker(*flags(SETTINGS | KEY), data=data) as broker:
        token = create(user(entrance(broker), "alice"))
        assert broker.stop() == 0
    with Broker(*flags(SETTINGS | KEY), data=data) as broker:
        with entered(entrance(broker), token) as client:
            assert create(client)["principal_name"] == "alice"
        assert "a key of tests" not in broker.log
        assert broker.stop() == 0
    monkeypatch.setenv("TOKEN_KEY", "another key")
    with Broker(*flags(SETTINGS | KEY), data=data) as broker:
        assert is_refused(entrance(broker), token)
        assert broker.stop() == 0
    with Broker(*flags(SETTINGS), data=data) as broker:
        assert is_refused(entrance(broker), token)
        answer = create(user(entrance(broker), "alice"))
        assert answer["error_code"] == DELEGATION_TOKEN_AUTH_DISABLED


def test_a_connection_ends_with_its_token_and_expired_tokens_are_swept_away() -> None:
    often = {"delegation.token.expiry.check.interval.ms": "100"}
    with Broker(*flags(SETTINGS | KEY | often)) as broker:
        address = entrance(broker)
        alice = user(address, "alice")
        token = create(alice, max_lifetime_ms=1500)
        with entered(address, token) as client:
            assert client.session_lifetime_ms <= 1500
            asked = {"topics": []}
            wait_until(lambda: is_closed(client, asked), "the end of its session")
        # A session may end some milliseconds before its token does: by the time of a turn.
        ends_ms = token["expiry_timestamp_ms"]
        wait_until(lambda: clock.now_ms() > ends_ms, "the end of the token")
        assert is_refused(address, token)
        wait_until(lambda: seen(alice, token) == "", "the sweep")


def is_closed(client: RawClient, body: dict[str, Any]) -> bool:
    try:
        client.ask("Metadata", 12, body)
    except OSError:
        return True
    return False


def profiles(address: str, secret: Path, token_id: str = "none") -> str:
    people = [
        f"""
[{name}]
bootstrap.servers = "{address}"
security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "PLAIN"
sasl.username = "{name}"
sasl.password = "{name}-secret"
"""
        for name in ("admin", "alice", "bob", "carol")
    ]
    job = f"""
[job]
bootstrap.servers = "{address}"
security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "{token_id}"
sasl.password = {{ file = "{secret}" }}
sasl.tokenauth = true
"""
    return "".join([*people, job])


def test_the_command_makes_a_token_by_which_others_commands_enter(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, secret = tmp_path / "profiles.toml", tmp_path / "job.secret"
    monkeypatch.setenv("SHMBROKER_PROFILES", str(file))

    def tell(token_id: str = "none") -> None:
        file.write_text(profiles(entrance(broker), secret, token_id))
        file.chmod(0o600)

    def run(profile: str, *words: str, status: int = 0, of: str = "token") -> str:
        done = CliRunner().invoke(main, [of, *words, "--profile", profile])
        assert done.exit_code == status, done.output
        return done.output

    tell()
    assert "no token" in run("carol", "list")
    made = ("create", "--renewer", "User:bob", "--lifetime", "2d", "--secret-to", str(secret))
    [row] = json.loads(run("alice", *made, "--json"))
    assert (row["owner"], row["renewers"], "secret" in row) == ("User:alice", ["User:bob"], False)
    assert secret.stat().st_mode & 0o777 == 0o600
    [shown] = json.loads(run("bob", "list", "--secrets", "--json"))
    assert shown.pop("secret") == secret.read_text().strip()
    assert shown == row
    assert row["id"] in run("alice", "list", "--owner", "User:bob")
    tell(row["id"])
    assert "can't be requested on this connection" in run("job", "list", status=1)
    assert "there is no token" in run("carol", "renew", row["id"], status=1)
    assert "holds until 2" in run("bob", "renew", row["id"], "--for", "12h")
    assert "holds until 2" in run("bob", "expire", row["id"], "--in", "1h")
    assert f"token {row['id']} is removed" in run("alice", "expire", row["id"])
    assert "no token" in run("alice", "list")
    for_bob = ("create", "--owner", "User:bob", "--json")
    assert "not authorized" in run("carol", *for_bob, status=1)
    right = ("--allow", "User:carol", "--operation", "create-tokens", "--user", "User:bob")
    assert "1 ACL added" in run("admin", "add", *right, of="acl")
    [row] = json.loads(run("carol", *for_bob))
    assert (row["owner"], row["requester"]) == ("User:bob", "User:carol")
    acls = json.loads(run("admin", "list", "--user", "User:bob", "--json", of="acl"))
    assert [(acl["type"], acl["operation"]) for acl in acls] == [("user", "create-tokens")]
    token = ("--delegation-token", row["id"], "--allow", "User:alice", "--operation", "describe")
    assert "1 ACL added" in run("admin", "add", *token, of="acl")
    assert row["id"] in run("alice", "list")
    assert "2 ACLs removed" in run("admin", "remove", "--all", of="acl")
    assert "no token" in run("alice", "list")
