"""The mechanisms of SASL, by the examples of their RFCs, by what Apache Kafka refuses, and by what
somebody might try."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.metadata.security_image import ScramCredential
from shmbroker.security.sasl import scram
from shmbroker.security.sasl.outcome import Challenge, NotBelieved, Shown
from shmbroker.security.sasl.plain import Plain, PlainUsers
from shmbroker.security.sasl.scram import (
    SHA_256,
    SHA_512,
    Scram,
    ScramMechanism,
    TokenCredential,
)

# ── PLAIN ───────────────────────────────────────────────────────────────────────────────────────

USERS = PlainUsers({"alice": "alice-secret", "Ünal": "pass wörd"})


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (b"\0alice\0alice-secret", "alice"),
        (b"alice\0alice\0alice-secret", "alice"),
        ("\0Ünal\0pass wörd".encode(), "Ünal"),
    ],
)
def test_who_knows_the_password_is_the_user(message: bytes, name: str) -> None:
    assert Plain(USERS).on_message(message) == Shown(b"", name)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"a\0b", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"a\0b\0c\0d", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"a\0b\0c\0d\0e", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0x\0", "Authentication failed: password not specified"),
        (b"\0alice\0alice-secreT", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0alice-secret", "Authentication failed: Invalid username or password"),
        (b"\0\xff\xfe\0x", "Authentication failed: Invalid username or password"),
        (
            b"bob\0alice\0alice-secret",
            "Authentication failed: Client requested an authorization id that is different from "
            "username",
        ),
    ],
)
def test_others_are_refused_in_kafkas_words(message: bytes, text: str) -> None:
    outcome = Plain(USERS).on_message(message)
    assert isinstance(outcome, NotBelieved) and outcome.text == text


def test_passwords_are_not_printed() -> None:
    assert "secret" not in repr(USERS)
    credential = ScramCredential(b"salty", b"stored-secret", b"server-secret", 4096)
    assert "secret" not in f"{credential!r} {credential} {[credential]}"


@given(st.binary(max_size=200))
def test_any_message_of_plain_is_answered(message: bytes) -> None:
    assert isinstance(Plain(USERS).on_message(message), NotBelieved)


# ── SCRAM ───────────────────────────────────────────────────────────────────────────────────────


def credential(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = 4096):
    salted = scram.salted(mechanism, password, salt, iterations)
    return scram.credential_of(mechanism, salted, salt, iterations)


class Users:
    """Users of one mechanism, and one delegation token."""

    def __init__(self, users: dict[str, ScramCredential]) -> None:
        self.users = users

    def lookup(self, mechanism: str, user: str) -> ScramCredential | None:
        return self.users.get(user)

    def stand_in(self, mechanism: str, user: str) -> ScramCredential:
        return ScramCredential(b"stands in", b"\0" * 32, b"\1" * 32, 4096)

    def token(self, mechanism: str, token_id: str) -> TokenCredential | None:
        if token_id != "token-1":
            return None
        return TokenCredential(credential(SHA_256, "its hmac", b"salt"), "alice", 1234)


USER = Users({"user": credential(SHA_256, "pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))})
ODD = Users({"a=b,c": credential(SHA_512, "x", b"salt")})


class Client:
    """A client of SCRAM, which can be told to do it wrong."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str) -> None:
        self.digest = mechanism.digest
        self.password = password
        self.head, self.bare = "n,,", f"n={user},r=abcdef"
        self.binding = ""
        self.nonce = ""

    def first(self) -> bytes:
        return f"{self.head}{self.bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        said = server_first.decode()
        parts = dict(part.split("=", 1) for part in said.split(","))
        salted = hashlib.pbkdf2_hmac(
            self.digest, self.password.encode(), b64decode(parts["s"]), int(parts["i"])
        )
        client_key = hmac.digest(salted, b"Client Key", self.digest)
        stored_key = hashlib.new(self.digest, client_key).digest()
        binding = b64encode((self.binding or self.head).encode()).decode()
        without_proof = f"c={binding},r={self.nonce or parts['r']}"
        message = f"{self.bare},{said},{without_proof}".encode()
        signature = hmac.digest(stored_key, message, self.digest)
        proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))
        return f"{without_proof},p={proof.decode()}".encode()


def exchanged(server: Scram, client: Client):
    outcome = server.on_message(client.first())
    if not isinstance(outcome, Challenge):
        return outcome
    return server.on_message(client.final(outcome.data))


def server(users: Users = USER, mechanism: ScramMechanism = SHA_256, nonce: str = "xyz") -> Scram:
    return Scram(mechanism, users, lambda: nonce)


def test_the_example_of_rfc_7677() -> None:
    one = server(nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert one.on_message(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert one.on_message(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == Shown(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")


def test_the_example_of_rfc_5802() -> None:
    """Its mechanism, SCRAM-SHA-1, is not offered, but goes by the same rules."""
    sha_1 = ScramMechanism("SCRAM-SHA-1", 0, "sha1")
    users = Users({"user": credential(sha_1, "pencil", b64decode("QSXCR+Q6sek8bf92"))})
    one = server(users, sha_1, "3rfcNHYJY1ZVvWVs7j")
    assert one.on_message(b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL") == Challenge(
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
    )
    assert one.on_message(
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    ) == Shown(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=", "user")


def test_a_name_with_comma_and_equals_sign() -> None:
    outcome = exchanged(server(ODD, SHA_512), Client(SHA_512, "a=3Db=2Cc", "x"))
    assert isinstance(outcome, Shown) and outcome.name == "a=b,c"


def test_a_wrong_password_and_no_user_can_not_be_told_apart() -> None:
    wrong, nobody = server(), server()
    assert isinstance(wrong.on_message(Client(SHA_256, "user", "pen").first()), Challenge)
    assert isinstance(nobody.on_message(Client(SHA_256, "resu", "pen").first()), Challenge)
    assert exchanged(server(), Client(SHA_256, "user", "pen")) == exchanged(
        server(), Client(SHA_256, "resu", "pen")
    )


def test_no_proof_fits_who_stands_in() -> None:
    """Not even one by the very key that stands in: somebody may have guessed it."""

    class Guessed(Users):
        def stand_in(self, mechanism: str, user: str) -> ScramCredential:
            return credential(SHA_256, "guessed", b"salt")

    outcome = exchanged(server(Guessed({})), Client(SHA_256, "user", "guessed"))
    assert outcome == NotBelieved("an unknown user, or a wrong password")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"x",
        b"\xff\xfe",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=us,er,r=abc",
        b"n,,r=abc,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=abc,=x",
        b"n=user,r=abc",
    ],
)
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    assert server().on_message(message) == NotBelieved("a malformed first message") or (
        message == b"\xff\xfe"
    )
    outcome = server().on_message(message)
    assert isinstance(outcome, NotBelieved) and outcome.text is None


def test_extensions_are_passed_over() -> None:
    client = Client(SHA_256, "user", "pencil")
    client.bare = "n=user,r=abc,foo=bar,tokenauth=false"
    assert isinstance(exchanged(server(), client), Shown)


def test_the_authorization_id_is_the_name_or_nothing() -> None:
    client = Client(SHA_256, "user", "pencil")
    client.head = "n,a=user,"
    assert isinstance(exchanged(server(), client), Shown)
    for name in ("user", "nobody"):
        outcome = server().on_message(f"n,a=other,n={name},r=abc".encode())
        assert isinstance(outcome, NotBelieved)
        assert "authorization id that is different from username" in (outcome.text or "")


def test_the_channel_binding_is_that_of_the_first_message() -> None:
    client = Client(SHA_256, "user", "pencil")
    client.binding = "y,,"
    assert exchanged(server(), client) == NotBelieved("another channel binding than at first")


def test_messages_of_another_exchange_are_of_no_use() -> None:
    client = Client(SHA_256, "user", "pencil")
    recorded = server(nonce="one")
    challenge = recorded.on_message(client.first())
    assert isinstance(challenge, Challenge)
    final = client.final(challenge.data)
    assert isinstance(recorded.on_message(final), Shown)
    replayed = server(nonce="two")
    replayed.on_message(client.first())
    assert replayed.on_message(final) == NotBelieved("another nonce than at first")


def test_a_nonce_that_ends_like_ours_is_not_ours() -> None:
    client = Client(SHA_256, "user", "pencil")
    client.nonce = "zabcdefxyz"
    assert exchanged(server(), client) == NotBelieved("another nonce than at first")


@pytest.mark.parametrize("proof", ["", "AAAA", "A" * 88])
def test_a_proof_of_another_length_is_refused(proof: str) -> None:
    one = server()
    one.on_message(b"n,,n=user,r=abc")
    assert isinstance(one.on_message(f"c=biws,r=abcxyz,p={proof}".encode()), NotBelieved)


def test_few_iterations_are_refused() -> None:
    users = Users({"user": credential(SHA_256, "pencil", b"salt", 4095)})
    outcome = exchanged(server(users), Client(SHA_256, "user", "pencil"))
    assert outcome == NotBelieved("a password of 4095 iterations, too few")


def test_a_token_stands_for_its_owner_until_it_expires() -> None:
    client = Client(SHA_256, "token-1", "its hmac")
    client.bare = "n=token-1,r=abc,tokenauth=true"
    outcome = exchanged(server(), client)
    assert isinstance(outcome, Shown)
    assert outcome[1:] == ("alice", 1234, True)
    client.bare = "n=token-2,r=abc,tokenauth=true"
    assert exchanged(server(), client) == NotBelieved("an unknown user, or a wrong password")
    plain = Client(SHA_256, "token-1", "its hmac")
    assert isinstance(exchanged(server(), plain), NotBelieved), "a token's id is no user's name"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_messages_of_scram_are_answered(first: bytes, second: bytes) -> None:
    one = server()
    if isinstance(one.on_message(first), Challenge):
        assert isinstance(one.on_message(second), NotBelieved)


@given(st.text("nar=,cp+/AZ09 3D2C", max_size=40), st.text("cr=,biws+/abxyzp", max_size=60))
def test_messages_that_look_like_scram_are_answered(first: str, second: str) -> None:
    one = server()
    if isinstance(one.on_message(f"n,,n=user,r={first}".encode()), Challenge):
        assert isinstance(one.on_message(f"c=biws,r={second}".encode()), NotBelieved)
