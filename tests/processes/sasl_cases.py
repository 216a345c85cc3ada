"""What clients say that want to authenticate, rightly and wrongly: conversations, each on a
connection of its own, and what Apache Kafka 4.2.1 answers, in sasl_expectations.txt:

   [PLAIN: wrong password]
   > SaslHandshake 1 mechanism=PLAIN
   < {"mechanisms": "all"}
   …
   here < …                        what we answer instead; the reason is in `DIFFERENT`

The Kafka that is asked has a listener with `SETTINGS`, and one without SASL, by which users of
SCRAM are made. Record anew:
   KAFKA_ORACLE=HOST:PORT KAFKA_ORACLE_SASL=HOST:PORT python -m tests.processes.sasl_cases
"""

import hashlib
import hmac
import json
import os
import re
import struct
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

FILE = Path(__file__).with_name("sasl_expectations.txt")

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "plain.sasl.jaas.config": f'{PLAIN_MODULE} user_alice="alice-secret" user_bob="bob-secret";',
    "connections.max.reauth.ms": "60000",
    "plain.connections.max.reauth.ms": "60000",
    "scram-sha-256.connections.max.reauth.ms": "60000",
    "scram-sha-512.connections.max.reauth.ms": "60000",
}
"""Of the listener; with `listener.name.<its name>.` before each."""
FLAGS = (
    "--set", "listeners=PLAINTEXT://127.0.0.1:{port1},SASL://127.0.0.1:{port2}",
    "--set", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "--set", "connection.failed.authentication.delay.ms=1",
    *(word for name, value in SETTINGS.items()
      for word in ("--set", f"listener.name.sasl.{name}={value}")),
)  # fmt: skip

DIFFERENT = {
    "another API after the handshake": "closed without an answer of that API, so that none is "
    "decoded before authentication",
    "SCRAM: unknown user": "fails where a wrong password does, so that nobody learns who is a user",
    "SCRAM: token of nobody": "likewise",
    "SCRAM: another authorization id of nobody": "is told it as a user is, likewise",
    "SCRAM: reserved extension": "refused, as RFC 5802 has it",
    "SCRAM: another channel binding": "refused, as RFC 5802 has it",
    "again with an unknown mechanism": "has its answer; Kafka closes by an internal error",
    "again, another API after the handshake": "as after the first handshake",
}

CLOSED = "closed"
ANSWER_S = 10.0

Row = tuple[str, Any]
"""What was said, and what came back."""


class Talk:
    """One connection, and what was said on it."""

    def __init__(self, address: str) -> None:
        self.client = RawClient(address, ANSWER_S)
        self.rows: list[Row] = []

    def ask(self, api: str, version: int, **body: Any) -> Any:
        """One request: the answer without defaults, or CLOSED."""
        shown = " ".join(f"{key}={_shown(value)}" for key, value in body.items())
        try:
            answer: Any = self.client.ask(api, version, body)
        except ConnectionError:
            answer = CLOSED
        self.rows.append((f"{api} {version} {shown}".strip(), _comparable(api, answer)))
        return answer

    def handshake(self, mechanism: str, version: int = 1) -> None:
        self.ask("SaslHandshake", version, mechanism=mechanism)

    def say(self, message: bytes, version: int = 2) -> bytes:
        """A message of the mechanism; what it is answered with."""
        answer = self.ask("SaslAuthenticate", version, auth_bytes=message)
        return b"" if answer == CLOSED else bytes(answer["auth_bytes"])

    def send(self, frame: bytes) -> None:
        """Bytes as they are."""
        self.client.socket.sendall(frame)
        self._received(f"bytes {frame.hex()}")

    def token(self, message: bytes) -> None:
        """A message without a request around it."""
        self.client.socket.sendall(struct.pack(">i", len(message)) + message)
        self._received(f"bare {_shown(message)}")

    def end(self) -> None:
        """Whether the connection is over; if not, whether it may ask."""
        self.ask("ListTransactions", 0, state_filters=[], producer_id_filters=[])
        self.client.close()

    def _received(self, said: str) -> None:
        try:
            answer = f"{len(self.client.receive_frame())} bytes"
        except ConnectionError:
            answer = CLOSED
        self.rows.append((said, answer))

    def scram(
        self, user: str, password: str, digest: str = "sha256", head: str = "n,,", more: str = "",
        binding: str = "", nonce: str = "",
    ) -> None:  # fmt: skip
        """Both messages of SCRAM, as a client makes them."""
        bare = f"n={user},r=abcdef{more}"
        said = self.say(f"{head}{bare}".encode()).decode()
        if not said:
            return
        parts = dict(part.split("=", 1) for part in said.split(","))
        salted = hashlib.pbkdf2_hmac(
            digest, password.encode(), b64decode(parts["s"]), int(parts["i"])
        )
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        encoded = b64encode((binding or head).encode()).decode()
        start = f"c={encoded},r={nonce or parts['r']}"
        signature = hmac.digest(stored_key, f"{bare},{said},{start}".encode(), digest)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self.say(f"{start},p={b64encode(proof).decode()}".encode())


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        text = value.decode("latin-1")
        text = re.sub(r"(c=[^,]*),r=.*", r"\1,r=…,p=…", text)
        return json.dumps(text, ensure_ascii=False)
    return str(value)


def _comparable(api: str, answer: Any) -> Any:
    """Without defaults, and without what differs from time to time."""
    if answer == CLOSED:
        return answer
    if api == "ListTransactions":
        return "answered"
    found = {key: value for key, value in answer.items() if value and key != "api_keys"}
    found = {key: value for key, value in found.items() if not key.endswith("features_epoch")}
    for key in ("supported_features", "finalized_features", "throttle_time_ms"):
        found.pop(key, None)
    if "mechanisms" in found:
        found["mechanisms"] = sorted(found["mechanisms"])
    if "session_lifetime_ms" in found:
        found["session_lifetime_ms"] = "some"
    if "auth_bytes" in found:
        text = bytes(found["auth_bytes"]).decode()
        text = re.sub(r"^r=abcdef[^,]+,s=[^,]+", "r=abcdef…,s=…", text)
        found["auth_bytes"] = re.sub(r"^v=.*", "v=…", text)
    return found


# ── the conversations ───────────────────────────────────────────────────────────────────────────

Case = Callable[[Talk], None]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def add(of: Case) -> Case:
        CASES[name] = of
        return of

    return add


def plain(name: str, password: str, authorization_id: str = "") -> bytes:
    return f"{authorization_id}\0{name}\0{password}".encode()


ALICE = plain("alice", "alice-secret")
METADATA = {"topics": [], "allow_auto_topic_creation": False}


def known(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.say(ALICE)


for _version in (0, 1):

    @case(f"unknown mechanism, version {_version}")
    def _unknown(talk: Talk, version: int = _version) -> None:
        talk.handshake("NONE", version)


for _version in (0, 1, 2):

    @case(f"PLAIN, version {_version}")
    def _plain(talk: Talk, version: int = _version) -> None:
        talk.ask("ApiVersions", 0)
        talk.handshake("PLAIN")
        talk.say(ALICE, version)


for _word, _message in {
    "wrong password": plain("alice", "wrong"),
    "unknown user": plain("nobody", "alice-secret"),
    "no user": plain("", "x"),
    "no password": plain("alice", ""),
    "another authorization id": plain("alice", "alice-secret", "bob"),
    "its own authorization id": plain("alice", "alice-secret", "alice"),
    "nothing": b"",
    "one token": b"alice",
    "two tokens": b"alice\0alice-secret",
    "four tokens": b"\0alice\0alice-secret\0",
    "five tokens": b"a\0b\0c\0d\0e",
    "no text": b"\0\xff\xfe\0x",
}.items():

    @case(f"PLAIN: {_word}")
    def _bad_plain(talk: Talk, message: bytes = _message) -> None:
        talk.handshake("PLAIN")
        talk.say(message)


@case("bare messages")
def _bare(talk: Talk) -> None:
    talk.handshake("PLAIN", 0)
    talk.token(ALICE)


@case("bare messages: wrong password")
def _bare_wrong(talk: Talk) -> None:
    talk.handshake("PLAIN", 0)
    talk.token(plain("alice", "x"))


@case("bare messages: a request")
def _bare_request(talk: Talk) -> None:
    talk.handshake("PLAIN", 0)
    talk.say(ALICE, 0)


@case("bare messages: short")
def _bare_short(talk: Talk) -> None:
    talk.handshake("PLAIN", 0)
    talk.token(b"\0a\0")


@case("message first")
def _message_first(talk: Talk) -> None:
    talk.say(ALICE)


@case("another API first")
def _other_first(talk: Talk) -> None:
    talk.ask("Metadata", 4, **METADATA)


@case("another API after the handshake")
def _other_second(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.ask("Metadata", 4, **METADATA)


@case("handshake twice")
def _twice(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.handshake("SCRAM-SHA-256")


@case("versions twice")
def _versions_twice(talk: Talk) -> None:
    talk.ask("ApiVersions", 0)
    talk.ask("ApiVersions", 0)


@case("versions after the handshake")
def _versions_after(talk: Talk) -> None:
    talk.handshake("PLAIN")
    talk.ask("ApiVersions", 0)


@case("versions of a client without a name")
def _versions_bad(talk: Talk) -> None:
    talk.ask("ApiVersions", 3, client_software_name="-", client_software_version="1")
    talk.ask("ApiVersions", 0)
    talk.handshake("PLAIN")
    talk.say(ALICE)


@case("versions that are too new")
def _versions_new(talk: Talk) -> None:
    talk.send(struct.pack(">ihhihb", 11, 18, 99, 7, -1, 0))
    talk.ask("ApiVersions", 0)


for _word, _frame in {
    "no request": b"\0\0\0\x19hello world, what is this",
    "unknown API": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "handshake of version 9": struct.pack(">ihhih", 10, 17, 9, 1, -1),
    "message of version 9": struct.pack(">ihhihb", 11, 36, 9, 1, -1, 0),
    "frame of 524289 bytes": struct.pack(">i", 524289),
    "frame of -5 bytes": struct.pack(">i", -5),
    "frame of 0 bytes": struct.pack(">i", 0),
    "frame of 3 bytes": b"\0\0\0\3abc",
}.items():

    @case(_word)
    def _odd(talk: Talk, frame: bytes = _frame) -> None:
        talk.send(frame)


@case("all in one")
def _pipelined(talk: Talk) -> None:
    client = talk.client
    client.send("SaslHandshake", 1, {"mechanism": "PLAIN"})
    client.send("SaslAuthenticate", 2, {"auth_bytes": ALICE})
    client.send("ListTransactions", 0, {"state_filters": [], "producer_id_filters": []})
    for api, version in (("SaslHandshake", 1), ("SaslAuthenticate", 2), ("ListTransactions", 0)):
        talk.rows.append((api, _comparable(api, client.receive(api, version))))


# ── SCRAM ───────────────────────────────────────────────────────────────────────────────────────


for _word, _arguments in {
    "right password": ("carol", "carol-secret"),
    "wrong password": ("carol", "wrong"),
    "unknown user": ("nobody", "wrong"),
    "name with signs": ("a=3Db=2Cc", "odd-secret"),
    "name with signs as they are": ("a=b", "x"),
    "its own authorization id": ("carol", "carol-secret", "sha256", "n,a=carol,"),
    "another authorization id": ("carol", "carol-secret", "sha256", "n,a=bob,"),
    "another authorization id of nobody": ("nobody", "x", "sha256", "n,a=bob,"),
    "a client that could bind": ("carol", "carol-secret", "sha256", "y,,"),
    "a client that binds": ("carol", "carol-secret", "sha256", "p=tls-unique,,"),
    "reserved extension": ("carol", "carol-secret", "sha256", "n,,m=x,"),
    "extension": ("carol", "carol-secret", "sha256", "n,,", ",foo=bar"),
    "token of nobody": ("carol", "carol-secret", "sha256", "n,,", ",tokenauth=true"),
    "another channel binding": ("carol", "carol-secret", "sha256", "n,,", "", "y,,"),
    "another nonce": ("carol", "carol-secret", "sha256", "n,,", "", "", "zzz"),
}.items():

    @case(f"SCRAM: {_word}")
    def _scram(talk: Talk, arguments: tuple[str, ...] = _arguments) -> None:
        talk.handshake("SCRAM-SHA-256")
        talk.scram(*arguments)


@case("SCRAM-SHA-512")
def _scram_512(talk: Talk) -> None:
    talk.handshake("SCRAM-SHA-512")
    talk.scram("carol", "carol-secret", "sha512")


@case("SCRAM-SHA-512 without a password for it")
def _scram_512_none(talk: Talk) -> None:
    talk.handshake("SCRAM-SHA-512")
    talk.say(b"x")


for _word, _message in {"nothing": b"", "no text": b"\xff\xfe", "no name": b"n,,n=,r=a"}.items():

    @case(f"SCRAM: {_word}")
    def _bad_scram(talk: Talk, message: bytes = _message) -> None:
        talk.handshake("SCRAM-SHA-256")
        talk.say(message)


# ── who comes again ─────────────────────────────────────────────────────────────────────────────


@case("again")
def _again(talk: Talk) -> None:
    known(talk)
    known(talk)


@case("again too soon")
def _too_soon(talk: Talk) -> None:
    known(talk)
    known(talk)
    known(talk)


@case("again as another")
def _another(talk: Talk) -> None:
    known(talk)
    talk.handshake("PLAIN")
    talk.say(plain("bob", "bob-secret"))


@case("again with a wrong password")
def _again_wrong(talk: Talk) -> None:
    known(talk)
    talk.handshake("PLAIN")
    talk.say(plain("alice", "x"))


@case("again with another mechanism")
def _again_mechanism(talk: Talk) -> None:
    known(talk)
    talk.handshake("SCRAM-SHA-256")
    talk.say(b"n,,n=alice,r=abc")


@case("again with an unknown mechanism")
def _again_unknown(talk: Talk) -> None:
    known(talk)
    talk.handshake("NONE")


@case("again, another API after the handshake")
def _again_api(talk: Talk) -> None:
    known(talk)
    talk.handshake("PLAIN")
    talk.ask("Metadata", 4, **METADATA)


@case("again, by bare messages")
def _again_bare(talk: Talk) -> None:
    known(talk)
    talk.handshake("PLAIN", 0)
    talk.token(ALICE)


@case("again, a message without a handshake")
def _again_message(talk: Talk) -> None:
    known(talk)
    talk.say(ALICE)


# ── recorded, and run ───────────────────────────────────────────────────────────────────────────


def make_users(address: str) -> None:
    """Those of SCRAM."""
    with RawClient(address) as client:
        for name, code, digest, password in (
            ("carol", 1, "sha256", "carol-secret"),
            ("carol", 2, "sha512", "carol-secret"),
            ("a=b,c", 1, "sha256", "odd-secret"),
        ):
            salted = hashlib.pbkdf2_hmac(digest, password.encode(), b"salt", 4096)
            row = {"name": name, "mechanism": code, "iterations": 4096, "salt": b"salt"}
            body = {"deletions": [], "upsertions": [row | {"salted_password": salted}]}
            answer = client.ask("AlterUserScramCredentials", 0, body)
            assert not answer["results"][0]["error_code"], answer


def wait_for_users(address: str) -> None:
    """Until they are known to who answers there."""

    def last_rows() -> list[Row]:
        talk = Talk(address)
        talk.handshake("SCRAM-SHA-256")
        talk.scram("a=3Db=2Cc", "odd-secret")
        return talk.rows

    wait_until(lambda: "error_code" not in last_rows()[-1][1], "the users", ANSWER_S)


def run(address: str, name: str) -> list[Row]:
    """One conversation."""
    talk = Talk(address)
    CASES[name](talk)
    talk.end()
    return talk.rows


def load() -> dict[str, tuple[list[Row], list[Row] | None]]:
    """Kafka's rows, and ours where they differ, by case."""
    found: dict[str, tuple[list[Row], list[Row] | None]] = {}
    for block in FILE.read_text(encoding="utf-8").strip().split("\n\n"):
        head, *lines = block.split("\n")
        theirs: list[Row] = []
        ours: list[Row] = []
        for line in lines:
            rows = ours if line.startswith("here ") else theirs
            line = line.removeprefix("here ")
            if line.startswith("> "):
                rows.append((line[2:], None))
            else:
                rows[-1] = (rows[-1][0], json.loads(line[2:]))
        found[head[1:-1]] = theirs, ours or None
    return found


def _lines(rows: list[Row], prefix: str) -> Iterator[str]:
    for said, answer in rows:
        yield f"{prefix}> {said}"
        yield f"{prefix}< {json.dumps(answer, ensure_ascii=False, sort_keys=True)}"


def record(kafka: str, kafka_sasl: str) -> int:
    """Write the file; the number of differences without a reason."""
    make_users(kafka)
    wait_for_users(kafka_sasl)
    unexplained = 0
    blocks = []
    with Broker(*FLAGS) as broker:
        ours_sasl = f"127.0.0.1:{broker.port_of_listener(1)}"
        make_users(broker.address)
        wait_for_users(ours_sasl)
        for name in CASES:
            theirs, ours = run(kafka_sasl, name), run(ours_sasl, name)
            lines = [f"[{name}]", *_lines(theirs, "")]
            if theirs != ours:
                lines += _lines(ours, "here ")
                if name not in DIFFERENT:
                    unexplained += 1
                    print(*lines, sep="\n")
            blocks.append("\n".join(lines))
    FILE.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return unexplained


if __name__ == "__main__":
    sys.exit(record(os.environ["KAFKA_ORACLE"], os.environ["KAFKA_ORACLE_SASL"]) > 0)
