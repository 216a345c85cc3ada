"""Our own clients, let in by SASL, TLS, a delegation token and a Unix socket, by a broker of
processes with ACLs."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa

from shmbroker import clock
from shmbroker.arrow import ClusterFault, Producer, read, write
from shmbroker.client.faults import AuthenticationFault, DeniedFault
from shmbroker.testing.broker import Broker
from tests.support.certificates import Authority

AUTHORITY = Authority()
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SESSION_MS = 1000
TABLE = pa.table({"value": [b"one", b"two"]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def broker(place: Path) -> Iterator[Broker]:
    owner = os.popen("id -un").read().strip()
    settings = {
        "listeners": (
            "SASL://127.0.0.1:{port1},MUTUAL://127.0.0.1:{port2},SCRAM://127.0.0.1:{port3},"
            f"SOCK://{place}/k.sock"
        ),
        "listener.security.protocol.map": (
            "SASL:SASL_PLAINTEXT,MUTUAL:SSL,SCRAM:SASL_SSL,SOCK:UNIX"
        ),
        "ssl.keystore.location": str(AUTHORITY.sign("CN=localhost").written(place / "server.pem")),
        "ssl.truststore.location": str(place / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "delegation.token.secret.key": "master-secret",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f'{LOGIN} user_anna="anna-secret" user_otto="otto-secret";'
        ),
        "listener.name.sasl.plain.connections.max.reauth.ms": str(SESSION_MS),
        "connection.failed.authentication.delay.ms": "10",
        "authorizer.class.name": AUTHORIZER,
        "super.users": f"User:anna;User:{owner};User:CN=anna",
    }
    (place / "ca.pem").write_text(AUTHORITY.pem)
    anna = AUTHORITY.sign("CN=anna")
    (place / "anna.crt").write_text(anna.certificate_pem)
    (place / "anna.key").write_text(anna.key_pem("key-secret"))
    words = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
    with Broker("--io-workers", "2", *words) as broker:
        yield broker
        assert "-secret" not in broker.log


@pytest.fixture(scope="module", autouse=True)
def profiles(broker: Broker, place: Path) -> Iterator[Path]:
    path = place / "profiles.toml"
    port = broker.port_of_listener(0)
    text = f'[sock]\nbootstrap.servers = "unix:{place}/k.sock"\n'
    for user in ("anna", "otto"):
        (place / user).write_text(f"{user}-secret\n")
        text += (
            f'[{user}]\nbootstrap.servers = "127.0.0.1:{port}"\n'
            'security.protocol = "SASL_PLAINTEXT"\nsasl.mechanism = "PLAIN"\n'
            f'sasl.username = "{user}"\nsasl.password = {{ file = "{place}/{user}" }}\n'
        )
    tls = f'ssl.ca.location = "{place}/ca.pem"\nbootstrap.servers = "localhost:'
    text += (
        f'[mutual]\n{tls}{broker.port_of_listener(1)}"\nsecurity.protocol = "SSL"\n'
        f'ssl.certificate.location = "{place}/anna.crt"\nssl.key.location = "{place}/anna.key"\n'
        'ssl.key.password = "key-secret"\n'
    )
    for name, mechanism, user in (
        ("scram", "SCRAM-SHA-256", "anna"),
        ("token", "SCRAM-SHA-512", "TOKEN"),
    ):
        text += (
            f'[{name}]\n{tls}{broker.port_of_listener(2)}"\nsecurity.protocol = "SASL_SSL"\n'
            f'sasl.mechanism = "{mechanism}"\nsasl.username = "{user}"\n'
            f'sasl.password = {{ file = "{place}/{name}" }}\n'
        )
    text += "sasl.tokenauth = true\n"
    (place / "scram").write_text("anna-secret\n")
    path.write_text(text)
    path.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHMBROKER_PROFILES", str(path))
        file = ("--password-file", str(place / "scram"))
        added = run("user", "add", "anna", *file, "--data", str(broker.data))
        assert added.returncode == 0, added.stderr
        token = ("token", "create", "--profile", "scram", "--json")
        made = run(*token, "--secret-to", str(place / "token"))
        assert made.returncode == 0, made.stderr
        path.write_text(text.replace("TOKEN", json.loads(made.stdout)[0]["id"]))
        yield path


def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shmbroker", *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("profile", ["anna", "sock", "mutual", "scram", "token"])
def test_arrow_writes_and_reads_in_place_and_by_fetching(profile: str) -> None:
    topic = f"arrow-{profile}"
    assert write(TABLE, topic, profile=profile).records == 2
    for way in ("files", "fetch"):
        found = read(topic, profile=profile, way=way, columns=["value"])
        assert found.equals(TABLE)
    with Producer(profile=profile, transactional_id=topic) as producer, producer.transaction():
        producer.send(TABLE, topic)
    assert read(topic, profile=profile, isolation_level="read_committed").num_rows == 4


def test_producer_outlives_sessions() -> None:
    with Producer(profile="anna", topic="sessions") as producer:
        until_s = clock.monotonic() + 2.5 * SESSION_MS / 1000
        sent = 0
        while clock.monotonic() < until_s:
            sent += producer.send(TABLE)
            producer.flush()
        assert producer.written().records == sent
    assert read("sessions", profile="anna", way="fetch").num_rows == sent


def test_who_may_not_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    write(TABLE, "closed", profile="anna")
    with pytest.raises(DeniedFault, match=r"topic closed: .*not authorized for the topic"):
        read("closed", profile="otto")
    with pytest.raises(DeniedFault, match="not authorized"):
        write(TABLE, "closed", profile="otto", max_block_ms=1000)
    with pytest.raises(AuthenticationFault, match="does not let user anna in: ") as fault:
        read("closed", profile="anna", security={"sasl.password": "wrong-secret"})
    assert "-secret" not in f"{fault.value!r} {caplog.text}"
    with pytest.raises(ClusterFault, match=r"closed the connection .if it wants TLS or SASL"):
        read("closed", bootstrap_servers=_port(fault.value), timeout_s=1)


def _port(fault: AuthenticationFault) -> str:
    """The address that it names."""
    return str(fault).split()[0]


def test_who_does_not_trust_a_certificate_says_so(place: Path) -> None:
    with pytest.raises(AuthenticationFault, match=r"is not trusted: .*ssl\.ca\.location names"):
        read("t", profile="scram", security={"ssl.ca.location": ""})
    other = place / "other.pem"
    other.write_text(Authority().pem)
    with pytest.raises(
        AuthenticationFault, match=rf"is not trusted: .*ssl\.ca\.location is {other}"
    ):
        read("t", profile="scram", security={"ssl.ca.location": str(other)})
    with pytest.raises(AuthenticationFault, match="refuses this client's certificate"):
        read("t", profile="mutual", security={"ssl.certificate.location": ""})


def test_commands_take_profiles(place: Path) -> None:
    asked = run("profile", "check", "anna")
    assert asked.stdout.startswith("anna: SASL_PLAINTEXT by PLAIN as anna, let in by 127.0.0.1:")
    assert run("topic", "create", "told", "--profile", "anna").returncode == 0
    assert run("produce", "told", "--profile", "anna", given="a\nb\n").returncode == 0
    assert run("consume", "told", "-e", "--profile", "anna").stdout == "a\nb\n"
    for profile in ("mutual", "scram"):
        assert "told" in run("topic", "list", "--profile", profile).stdout
    refused = run("topic", "list", "--profile", "token")
    assert "knows no delegation tokens" in refused.stderr
    assert "leader id            1" in run("quorum", "status", "--profile", "sock").stdout
    refused = run("topic", "create", "other", "--profile", "otto")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "Authorization failed" in refused.stderr
    (place / "anna").write_text("wrong-secret\n")
    try:
        for words in (("topic", "list"), ("profile", "check", "anna"), ("transaction", "list")):
            more = () if words[0] == "profile" else ("--profile", "anna")
            refused = run(*words, *more)
            assert refused.returncode == 1
            assert "Authentication failed: Invalid username or password" in refused.stderr
            assert "-secret" not in refused.stderr
    finally:
        (place / "anna").write_text("anna-secret\n")
    refused = run("topic", "list", "--profile", "sock")
    assert "knows no Unix sockets: give HOST:PORT" in refused.stderr
    asked = run("profile", "check", "sock")
    assert asked.stdout.startswith(f"sock: PLAINTEXT, let in by unix:{place}/k.sock")


@pytest.mark.parametrize("profile", ["anna", "mutual", "scram"])
def test_what_our_own_client_asks_for_commands_is_let_in(profile: str) -> None:
    topic, group, mine = f"asked-{profile}", f"group-{profile}", ("--profile", profile)
    with Producer(profile="scram", transactional_id=topic) as producer, producer.transaction():
        producer.send(TABLE, topic)
    described = json.loads(run("topic", "describe", topic, *mine, "--json").stdout)
    assert all(row["bytes"] is not None for row in described[0]["partitions"])
    listed = run("transaction", "list", *mine, "--json")
    assert topic in listed.stdout, listed.stderr
    assert topic in run("transaction", "describe", topic, *mine).stdout
    hanging = run("transaction", "find-hanging", topic, *mine)
    assert hanging.returncode == 0, hanging.stderr
    for words in (
        ("config", "set", "broker", "default", "--set", "log.retention.ms=900000000"),
        ("config", "get", "broker", "default"),
        ("group", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute"),
        ("group", "delete-offsets", group, "--topic", topic),
    ):
        done = run(*words, *mine)
        assert done.returncode == 0, done.stderr
    status = json.loads(run("status", *mine, "--json").stdout)
    assert status["quorum"]["leader"] == 1
    assert all(broker["log_dirs"] for broker in status["brokers"])


def test_broker_for_tests_lets_its_users_in() -> None:
    with Broker(users={"anna": 'an "anna-secret"', "otto": "otto-secret"}, faults=True) as broker:
        broker.create_topic("t")
        for user in (None, "otto"):
            settings = broker.client_settings(user)
            servers = settings.pop("bootstrap.servers")
            assert servers == broker.address
            write(TABLE, "t", bootstrap_servers=servers, security=settings)
        settings["sasl.password"] = "anna-secret"
        with pytest.raises(AuthenticationFault, match="does not let user otto in"):
            read("t", bootstrap_servers=servers, security=settings)
        assert "user_anna=" in str(broker.flags)
        assert "-secret" not in f"{broker.flags} {broker.log}"


def test_backup_is_let_in(broker: Broker, tmp_path: Path) -> None:
    write(TABLE, "kept", profile="scram")
    for profile, status in (("scram", 0), ("otto", 1)):
        taken = run("backup", "take", str(tmp_path / profile), "--profile", profile)
        assert taken.returncode == status, taken.stderr
        assert "-secret" not in taken.stderr
