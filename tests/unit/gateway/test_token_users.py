"""Delegation tokens at the door: salted when they are first used, aside from the turns."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmbroker.gateway import token_users
from shmbroker.gateway.sasl_door import NOT_YET_S
from shmbroker.gateway.token_users import TokenUsers
from shmbroker.metadata.security_image import SecurityImage, Token, token_record
from shmbroker.security.sasl.outcome import NOT_YET
from shmbroker.security.sasl.scram import TokenCredential
from shmbroker.security.tokens import TokenKey
from shmbroker.settings.listeners import SASL_PLAINTEXT, ListenerConfig
from shmbroker.wire.error_codes import (
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    NONE,
    SASL_AUTHENTICATION_FAILED,
)
from tests.support.gateway_family import GatewayFamily, gateway_family

KEY = TokenKey("key")
NOW_MS = 1_700_000_000_000
ONE = Token("one", "User:al:ice", "User:bob", (), NOW_MS, NOW_MS + 1000, NOW_MS + 5000)
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


class Work(list[Callable[[], None]]):
    """What was put aside, until `run`."""

    __call__ = list.append

    def run(self) -> None:
        while self:
            self.pop(0)()


class Office:
    """Token users whose clock and work the test has."""

    def __init__(self, *tokens: Token, key: TokenKey | None = KEY) -> None:
        self.image = SecurityImage()
        self.image.tokens = {token.token_id: token for token in tokens}
        self.now_ms = NOW_MS
        self.work = Work()
        self.salts = 0
        self.users = TokenUsers(
            lambda: self.image, key, lambda: self.now_ms, self.new_salt, self.work
        )

    def new_salt(self, size: int) -> bytes:
        self.salts += 1
        return self.salts.to_bytes(size, "big")

    def credential(self, mechanism: str = SHA_256) -> TokenCredential:
        found = self.users.token(mechanism, "one")
        assert isinstance(found, TokenCredential), found
        return found


def test_a_token_is_salted_once_for_each_mechanism_and_aside() -> None:
    office = Office(ONE)
    assert office.users.token(SHA_256, "one") is office.users.token(SHA_256, "one") is NOT_YET
    assert office.users.token(SHA_512, "one") is NOT_YET
    assert len(office.work) == 2
    office.work.run()
    assert office.credential(SHA_256) == office.credential(SHA_256)
    assert office.credential(SHA_256) != office.credential(SHA_512)
    assert not office.work


def test_a_salting_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office(ONE)
    with monkeypatch.context() as patch:
        patch.setattr(token_users, "salted", lambda *_: 1 // 0)
        assert office.users.token(SHA_256, "one") is NOT_YET
        with pytest.raises(ZeroDivisionError):
            office.work.run()
    assert office.users.token(SHA_256, "one") is NOT_YET
    office.work.run()
    assert office.credential(SHA_256)


@pytest.mark.parametrize(("mechanism", "digest"), [(SHA_256, "sha256"), (SHA_512, "sha512")])
def test_what_is_kept_is_of_the_hmac_as_base64(mechanism: str, digest: str) -> None:
    office = Office(ONE)
    office.users.token(mechanism, "one")
    office.work.run()
    credential, owner, expires_ms = office.credential(mechanism)
    assert (owner, expires_ms, credential.iterations) == ("al:ice", NOW_MS + 1000, 4096)
    password = base64.b64encode(hmac.digest(b"key", b"one", "sha512"))
    salted = hashlib.pbkdf2_hmac(digest, password, credential.salt, 4096)
    assert credential.server_key == hmac.digest(salted, b"Server Key", digest)
    client_key = hmac.digest(salted, b"Client Key", digest)
    assert credential.stored_key == hashlib.new(digest, client_key).digest()


@pytest.mark.parametrize(
    "office",
    [
        Office(),
        Office(ONE, key=None),
        Office(ONE._replace(owner="Group:alice")),
        Office(ONE._replace(expires_ms=NOW_MS - 1)),
        Office(ONE._replace(max_ms=NOW_MS - 1)),
    ],
    ids=["unknown", "no key", "no user", "expired", "over"],
)
def test_what_lets_nobody_in_is_not_even_salted(office: Office) -> None:
    assert office.users.token(SHA_256, "one") is None
    assert not office.work


def test_a_token_that_was_used_lets_nobody_in_when_it_has_expired_or_is_removed() -> None:
    office = Office(ONE)
    office.users.token(SHA_256, "one")
    office.work.run()
    office.now_ms = NOW_MS + 1000
    office.credential()
    office.now_ms += 1
    assert office.users.token(SHA_256, "one") is None
    office.image.tokens["one"] = ONE._replace(expires_ms=NOW_MS + 2000)
    assert office.credential().expires_ms == NOW_MS + 2000
    office.image.tokens = {}
    assert office.users.token(SHA_256, "one") is None


# ── at the door ─────────────────────────────────────────────────────────────────────────────────

HANDSHAKE, AUTHENTICATE, DESCRIBE = (17, 1, "SaslHandshake"), (36, 2, "SaslAuthenticate"), (
    41, 3, "DescribeDelegationToken")  # fmt: skip
LISTENER = ListenerConfig("SASL", SASL_PLAINTEXT, "", 0)
SETTINGS = (
    "delegation.token.secret.key=key",
    "listeners=SASL://127.0.0.1:9092",
    "listener.security.protocol.map=SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms=SCRAM-SHA-256",
    "connection.failed.authentication.delay.ms=0",
)


class Entering:
    """A client with a token before a gateway."""

    def __init__(self, family: GatewayFamily, work: Work) -> None:
        self.family = family
        self.work = work
        now_ms = family.clock.now_ms()
        self.token = ONE._replace(issued_ms=now_ms, expires_ms=now_ms + 1000, max_ms=now_ms + 5000)
        self.tell(("DelegationTokenRecord", 0, token_record(self.token)))
        self.first = "n=one,r=nonce,tokenauth=true"
        self.challenge = ""

    def tell(self, *records: tuple[str, int, dict[str, Any]]) -> None:
        self.family.link.commit(*records)
        self.family.quiet_turn()

    def begin(self) -> None:
        """Up to the first message, which is not answered yet."""
        self.family.ask(*HANDSHAKE, {"mechanism": SHA_256})
        assert self.family.answer(*HANDSHAKE)["error_code"] == NONE
        self.family.ask(*AUTHENTICATE, {"auth_bytes": b"n,," + self.first.encode()})

    def salt(self) -> None:
        """The thread is done; the gateway sees it."""
        self.work.run()
        self.family.clock.now += NOT_YET_S
        self.family.quiet_turn()
        self.challenge = self.family.answer(*AUTHENTICATE)["auth_bytes"].decode()

    def show(self, password: str = KEY.password_of("one")) -> dict[str, Any]:
        """The final message, and its answer."""
        said = dict(part.split("=", 1) for part in self.challenge.split(","))
        salt = base64.b64decode(said["s"])
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, int(said["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={said['r']}"
        message = f"{self.first},{self.challenge},{final}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        shown = f"{final},p={base64.b64encode(proof).decode()}"
        self.family.ask(*AUTHENTICATE, {"auth_bytes": shown.encode()})
        self.family.quiet_turn()
        return self.family.answer(*AUTHENTICATE)

    def is_closed(self) -> bool:
        return not self.family.gateway.loop.connections


@pytest.fixture
def entering() -> Iterator[Entering]:
    work = Work()
    with gateway_family(*SETTINGS, listener=LISTENER, do_aside=work) as family:
        yield Entering(family, work)


def test_a_client_waits_while_its_token_is_salted_and_nobody_else_does(
    entering: Entering,
) -> None:
    entering.begin()
    family = entering.family
    for _ in range(3):
        family.clock.now += NOT_YET_S
        assert family.quiet_turn() == pytest.approx(NOT_YET_S)
    family.client.setblocking(False)
    with pytest.raises(BlockingIOError):
        family.client.recv(1)
    family.client.settimeout(10)
    assert len(entering.work) == 1
    entering.salt()
    shown = entering.show()
    assert (shown["error_code"], shown["session_lifetime_ms"]) == (NONE, 988)
    [connection] = family.gateway.loop.connections.values()
    assert (connection.principal, connection.is_by_token) == ("User:al:ice", True)
    family.ask(*DESCRIBE, {"owners": None})
    assert family.answer(*DESCRIBE)["error_code"] == DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_another_secret_does_not_open(entering: Entering) -> None:
    entering.begin()
    entering.salt()
    assert entering.show(TokenKey("other").password_of("one"))["error_code"] == (
        SASL_AUTHENTICATION_FAILED
    )
    assert entering.is_closed()


def test_a_client_that_leaves_meanwhile_is_forgotten(entering: Entering) -> None:
    entering.begin()
    entering.family.client.close()
    entering.family.turn()
    entering.work.run()
    entering.family.clock.now += NOT_YET_S
    entering.family.quiet_turn()
    assert entering.is_closed()


def test_a_token_that_is_removed_while_it_is_salted_opens_no_more(entering: Entering) -> None:
    entering.begin()
    entering.tell(("RemoveDelegationTokenRecord", 0, {"token_id": "one"}))
    entering.salt()
    assert entering.show()["error_code"] == SASL_AUTHENTICATION_FAILED


def test_a_session_by_a_token_ends_with_it(entering: Entering) -> None:
    entering.begin()
    entering.salt()
    assert entering.show()["error_code"] == NONE
    entering.family.clock.now += 1
    entering.family.ask(*DESCRIBE, {"owners": None})
    assert entering.is_closed()
