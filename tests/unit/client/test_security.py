"""What clients say to enter a cluster: settings, secrets, profiles, SCRAM, sessions."""

import logging
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker import clock
from shmbroker.client import profiles
from shmbroker.client.addresses import Addresses, entered, is_unix, parse_addresses
from shmbroker.client.connection import Connection, connect
from shmbroker.client.faults import AuthenticationFault
from shmbroker.client.scram import ScramClient
from shmbroker.client.secrets import Reference, Secret, reference_of, resolved
from shmbroker.client.security import OPEN, Security, security_of
from shmbroker.client.versions import PLAIN
from shmbroker.errors import ConfigFault, ProtocolFault
from shmbroker.wire import codec, error_codes, frame
from shmbroker.wire.api_keys import METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, name_of

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "anna",
    "sasl.password": "hush",
}
TOKEN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
URL = "sasl.oauthbearer.token.endpoint.url"
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def without(settings: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key != name}


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, OPEN),
        ({"client.id": "me", "acks": "all"}, OPEN),
        ({"security.protocol": "plaintext"}, OPEN),
        (
            {"security.protocol": "ssl", "ssl.ca.location": "/ca", "ssl.key.password": "hush"},
            Security("SSL", "/ca", key_password=Secret("hush")),
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.endpoint.identification.algorithm": "",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/ca",
                "ssl.keystore.type": "pem",
                "ssl.keystore.location": "/me",
            },
            Security("SSL", "/ca", "/me", "/me", checks_name=False),
        ),
        (
            SASL,
            Security("SASL_PLAINTEXT", mechanism="PLAIN", username="anna", password=Secret("hush")),
        ),
        (
            without(SASL, "sasl.mechanism") | {"sasl.mechanisms": "scram-sha-512"},
            Security(
                "SASL_PLAINTEXT",
                mechanism="SCRAM-SHA-512",
                username="anna",
                password=Secret("hush"),
            ),
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": f"{LOGIN}\n username=\"a=b\" password='h\\'s' tokenauth=true;",
            },
            Security(
                "SASL_PLAINTEXT",
                mechanism="SCRAM-SHA-256",
                username="a=b",
                password=Secret("h's"),
                is_by_token=True,
            ),
        ),
        (
            TOKEN | {URL: "file:///run/token"},
            Security("SASL_SSL", mechanism="OAUTHBEARER", token_url="file:///run/token"),
        ),
    ],
)
def test_settings_are_read(settings: dict[str, str], expected: Security) -> None:
    assert security_of(settings) == expected


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is one of"),
        (
            {"sasl.username": "anna"},
            "sasl.username has no effect, as security.protocol is PLAINTEXT where it is not set: "
            "set it to SASL_SSL (or SASL_PLAINTEXT",
        ),
        (
            {"ssl.ca.location": "/ca", "security.protocol": "plaintext"},
            "ssl.ca.location has no effect, as security.protocol is PLAINTEXT: set it to SSL",
        ),
        ({"ssl.ca.locaton": "/ca"}, "did you mean ssl.ca.location?"),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism: one of PLAIN"),
        (SASL | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism is one of"),
        (without(SASL, "sasl.username"), "PLAIN needs sasl.username"),
        (without(SASL, "sasl.password"), "PLAIN needs sasl.password"),
        (SASL | {"sasl.tokenauth": "true"}, "sasl.tokenauth goes with SCRAM-SHA-256 or"),
        (SASL | {"sasl.jaas.config": "hush"}, "sasl.jaas.config is not …LoginModule"),
        (SASL | {"sasl.jaas.config": f"{LOGIN} hush;"}, "sasl.jaas.config can't be read"),
        (TOKEN, f"OAUTHBEARER needs {URL}"),
        (TOKEN | {URL: "ftp://hush"}, f"{URL} is file:///PATH or https"),
        (TOKEN | {URL: "https://a"}, f"{URL} needs sasl.oauthbearer.client.id"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/a.jks"},
            "Java's key stores are not read here",
        ),
    ],
)
def test_what_can_not_be_meant_is_told_without_secrets(
    settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigFault) as fault:
        security_of(settings)
    assert complaint in str(fault.value)
    assert "hush" not in str(fault.value)


# --- secrets -------------------------------------------------------------------------------------


def test_secrets_are_printed_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    security = security_of(SASL | {"sasl.jaas.config": f'{LOGIN} password="hush";'})
    addresses = parse_addresses("h:1", security=security)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("test").info("%s %r %s", security, [security.password], addresses)
    assert "hush" not in caplog.text
    assert "Secret(…)" in caplog.text
    again = pickle.loads(pickle.dumps(security))
    assert again == security
    assert hash(again) == hash(security)
    assert again.password.reveal() == "hush"


def test_secrets_are_where_references_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kafka").write_text("of a file\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("KAFKA_PASSWORD", "of the environment")
    for written, secret in (
        ({"file": str(tmp_path / "kafka")}, "of a file"),
        ({"env": "KAFKA_PASSWORD"}, "of the environment"),
        ({"credential": "kafka"}, "of a file"),
        ("${env:KAFKA_PASSWORD}", "of the environment"),
        (f"${{file:{tmp_path}/kafka}}", "of a file"),
    ):
        reference = reference_of(written)
        assert reference is not None
        assert reference.read("sasl.password").reveal() == secret
        assert secret not in f"{reference} {reference!r}"
    assert resolved("${env:KAFKA_PASSWORD}", "sasl.password") == Secret("of the environment")
    assert resolved("${env:KAFKA_PASSWORD}", "sasl.username") == "of the environment"
    assert resolved("$env", "sasl.password") == Secret("$env")


@pytest.mark.parametrize(
    ("kind", "place", "complaint"),
    [
        ("env", "NO_SUCH_VARIABLE", "sasl.password: $NO_SUCH_VARIABLE is not set"),
        ("file", "/no/such", "/no/such can't be read: No such file"),
        ("credential", "../kafka", "'../kafka' is no credential's name"),
        ("credential", "kafka", "/no/credentials/kafka can't be read"),
    ],
)
def test_a_reference_that_leads_nowhere(
    kind: str, place: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/no/credentials")
    with pytest.raises(ConfigFault) as fault:
        Reference(kind, place).read("sasl.password")
    assert complaint in str(fault.value)


# --- profiles ------------------------------------------------------------------------------------

FILE = """
[work]
bootstrap.servers = "h:1"
security.protocol = "SASL_SSL"
ssl.ca.location = "/ca"
"sasl.mechanism" = "PLAIN"
sasl.username = "anna"
sasl.password = { env = "KAFKA_PASSWORD" }
socket.keepalive.enable = true
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SHMBROKER_PROFILES", raising=False)
    path = tmp_path / "shmbroker" / "profiles.toml"
    path.parent.mkdir()
    return path


def test_profile(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(FILE)
    found = profiles.load("work")
    assert (found.servers, found.path) == ("h:1", str(file))
    monkeypatch.setenv("KAFKA_PASSWORD", "hush")
    assert security_of(found.security) == Security(
        "SASL_SSL", "/ca", mechanism="PLAIN", username="anna", password=Secret("hush")
    )
    assert found.shown()["sasl.password"] == "(env KAFKA_PASSWORD)"
    assert found.shown()["socket.keepalive.enable"] == "true"
    monkeypatch.setenv("SHMBROKER_PROFILES", str(file.with_name("other.toml")))
    with pytest.raises(ConfigFault, match=r"there is no profile work: .*other.toml is not there"):
        profiles.load("work")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (FILE, "there is no profile wrk in .*: did you mean work"),
        ("[work]\nssl.ca.locaton = '/ca'", "ssl.ca.locaton is not known here: did you mean"),
        ("[work]\nsasl.password = {fil = '/a'}", "sasl.password is a text, or { file ="),
        ("[work]\nsasl.password = ['hush']", "sasl.password is text or a number"),
        ("work = 'hush'", "work stands outside of a profile"),
        ("[work]\nsasl.password = 'hush", "is no TOML"),
        ("[work]\nsasl.password = hush", "is no TOML"),
    ],
)
def test_file_that_can_not_be_used(file: Path, text: str, complaint: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigFault, match=complaint) as fault:
        profiles.load("wrk")
    assert "hush" not in str(fault.value)


def test_others_may_not_read_a_file_with_secrets(file: Path) -> None:
    file.write_text(FILE.replace('{ env = "KAFKA_PASSWORD" }', '"hush"'))
    for mode in (0o644, 0o640, 0o602):
        file.chmod(mode)
        with pytest.raises(ConfigFault, match=f"holds sasl.password.*{mode:04o}.*chmod 600"):
            profiles.load("work")
    file.chmod(0o600)
    found = profiles.load("work")
    assert found.shown()["sasl.password"] == "(hidden)"
    assert "hush" not in repr(found)
    file.write_text(FILE)
    file.chmod(0o644)
    assert profiles.load("work").servers == "h:1"


# --- addresses -----------------------------------------------------------------------------------


def test_addresses_know_how_they_are_entered() -> None:
    security = security_of(SASL)
    found = parse_addresses("unix:/run/k.sock, unix:///run//l.sock,h:1", "here", security)
    assert list(found) == [("/run/k.sock", 0), ("/run/l.sock", 0), ("h", 1)]
    assert list(map(is_unix, found)) == [True, True, False]
    assert found.others([("b", 2)]) == Addresses([("b", 2)], security)
    assert found.others([("b", 2)]).security is security
    assert entered(found) is found
    assert entered([("h", 1)]).security == OPEN
    with pytest.raises(ConfigFault, match="here: 'unix:run' is not unix:/PATH"):
        parse_addresses("unix:run", "here")


def test_unix_socket_is_connected_to_however_long_its_path(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{_opened(directory)}/k.sock")
        listening.listen()
        connected = connect((f"{directory}/k.sock", 9092), 5.0, "me", security=security_of(SASL))
        connected.close()
    with pytest.raises(FileNotFoundError):
        connect((f"{directory}/other.sock", 0), 5.0, "me")


def _opened(directory: Path) -> int:
    import os

    return os.open(directory, os.O_PATH)


# --- SCRAM ---------------------------------------------------------------------------------------

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram(**changes: object) -> ScramClient:
    given = {"mechanism": "SCRAM-SHA-256", "user": "user", "password": Secret("pencil")}
    return ScramClient(**given | {"nonce": NONCE} | changes)  # type: ignore[arg-type]


def test_scram_by_the_vector_of_rfc_7677() -> None:
    client = scram()
    assert client.first() == f"n,,n=user,r={NONCE}".encode()
    assert (
        client.final(FIRST)
        == (
            f"c=biws,r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        ).encode()
    )
    client.check(LAST)


def test_scram_names_and_tokens() -> None:
    client = scram(user="a=b,c", is_by_token=True)
    assert client.first() == f"n,,n=a=3Db=2Cc,r={NONCE},tokenauth=true".encode()


@pytest.mark.parametrize(
    ("first", "last", "complaint"),
    [
        (FIRST.replace(b"rOpr", b"rOpx"), LAST, "another nonce"),
        (f"r={NONCE},s=W22Z,i=4096".encode(), LAST, "another nonce"),
        (FIRST.replace(b"4096", b"4095"), LAST, "4095 iterations"),
        (FIRST.replace(b"4096", b"999999999"), LAST, "999999999 iterations"),
        (b"e=other-error", LAST, "can't be read: other-error"),
        (FIRST.replace(b"6gQ==", b"6g"), LAST, "salt .* is no base64"),
        (FIRST, LAST.replace(b"6rri", b"7rri"), "does not prove"),
        (FIRST, b"e=invalid-proof", "does not prove that it knows .*: invalid-proof"),
        (FIRST, b"", "does not prove"),
    ],
)
def test_scram_believes_no_broker_that_can_not_prove_itself(
    first: bytes, last: bytes, complaint: str
) -> None:
    client = scram()
    client.first()
    with pytest.raises(ProtocolFault, match=complaint):
        client.final(first)
        client.check(last)


# --- a connection --------------------------------------------------------------------------------


def answer_of(correlation_id: int, api_key: int, version: int, **body: object) -> bytes:
    encoded = codec.encode(f"{name_of(api_key)}Response", version, body)
    return frame.response_frame(api_key, version, correlation_id, encoded)


def handshake(number: int, error: int = 0) -> bytes:
    return answer_of(number, SASL_HANDSHAKE, 1, error_code=error, mechanisms=["SCRAM-SHA-256"])


def session(number: int, lifetime_ms: int = 0, error: int = 0, text: str | None = None) -> bytes:
    body = {"error_code": error, "error_message": text, "auth_bytes": b""}
    return answer_of(number, SASL_AUTHENTICATE, 2, session_lifetime_ms=lifetime_ms, **body)


def metadata(number: int) -> bytes:
    body = {"brokers": [], "topics": [], "cluster_id": "c", "controller_id": 1}
    return answer_of(number, METADATA, PLAIN[METADATA], **body)


BODY = {"topics": [], "allow_auto_topic_creation": False}


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for each in (ours, theirs):
            each.settimeout(10)
        yield Connection(ours, "h:1", "me", security=security_of(SASL)), theirs


def test_session_is_renewed_before_a_request_when_that_is_due(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, broker = pair
    broker.sendall(handshake(1) + session(2, 1000_000))
    before_s = clock.monotonic()
    connection.authenticate()
    assert connection.renew_s is not None
    assert connection.renew_s - before_s > 800
    broker.sendall(metadata(3) + handshake(4) + session(5, 0) + metadata(6) + metadata(7))
    connection.ask(METADATA, BODY)
    assert not connection.is_due()
    connection.renew_s = before_s
    assert connection.is_due()
    for _ in range(2):
        assert connection.ask(METADATA, BODY)["cluster_id"] == "c"
    assert connection.renew_s is None
    assert broker.recv(1 << 20).count(b"\0anna\0hush") == 2


def test_session_is_not_renewed_while_an_answer_is_to_come(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, broker = pair
    broker.sendall(handshake(1) + session(2, 1000) + metadata(3) + metadata(4))
    connection.authenticate()
    connection.send(METADATA, BODY)
    connection.renew_s = 0.0
    connection.send(METADATA, BODY)
    assert connection.receive() == connection.receive()


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        (
            handshake(1, error_codes.UNSUPPORTED_SASL_MECHANISM),
            "h:1 takes SCRAM-SHA-256, not PLAIN: set sasl.mechanism",
        ),
        (handshake(1, error_codes.ILLEGAL_SASL_STATE), "h:1 wants no SASL"),
        (
            handshake(1) + session(2, error=error_codes.SASL_AUTHENTICATION_FAILED, text="No."),
            "h:1 does not let user anna in: No.",
        ),
        (b"\x15\x03\x03\x00\x02\x02\x28", "h:1 speaks TLS: set security.protocol"),
    ],
)
def test_who_is_not_let_in_is_told_why(
    pair: tuple[Connection, socket.socket], answers: bytes, complaint: str
) -> None:
    connection, broker = pair
    broker.sendall(answers)
    with pytest.raises(AuthenticationFault) as fault:
        connection.authenticate()
    assert complaint in str(fault.value)
    assert "hush" not in str(fault.value)


def test_open_client_that_is_hung_up_on_learns_why_that_may_be() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(OSError, match=r"if it wants TLS or SASL|Broken pipe"):
            Connection(ours, "h:1", "me").receive()
