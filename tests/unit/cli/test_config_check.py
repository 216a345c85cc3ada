"""`shmbroker config check`: listeners, what clients are told, and what is doubtful."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shmbroker.cli.commands import main
from shmbroker.cli.run_broker import secrets_complaint
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.listener_doubts import doubts
from shmbroker.settings.table import STANDARD_AUTHORIZER
from tests.support.certificates import Authority


def check(*words: str, status: int = 0) -> str:
    ran = CliRunner().invoke(main, ["config", "check", *words], prog_name="shmbroker")
    assert ran.exit_code == status, ran.output
    return ran.output


def test_rows_say_what_each_client_is_told() -> None:
    listeners = "IN://:9092,OUT://0.0.0.0:19092,SOCK:///run/k.sock"
    words = (
        "--listeners", listeners, "--io-workers", "2",
        "--set", "advertised.listeners=OUT://127.0.0.1:29092",
        "--set", "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT,SOCK:UNIX",
    )  # fmt: skip
    told = json.loads(check(*words, "--json"))
    dialled = "the address that they dialled"
    assert [tuple(row.values()) for row in told["listeners"]] == [
        ("IN", "PLAINTEXT", 1, "*:9092", dialled),
        ("IN", "PLAINTEXT", 2, "*:9093", dialled),
        ("OUT", "PLAINTEXT", 1, "0.0.0.0:19092", "127.0.0.1:29092"),
        ("OUT", "PLAINTEXT", 2, "0.0.0.0:19093", "127.0.0.1:29093"),
        ("SOCK", "UNIX", 1, "/run/k.sock", "/run/k.sock"),
        ("SOCK", "UNIX", 2, "/run/k.sock-2", "/run/k.sock-2"),
    ]
    assert len(told["warnings"]) == 2
    lines = check(*words).splitlines()
    assert lines[0].split() == [
        "LISTENER", "PROTOCOL", "BROKER", "LISTENS", "ON", "CLIENTS", "ARE", "TOLD",
    ]  # fmt: skip
    assert [line.startswith("warning: listener ") for line in lines[-2:]] == [True, True]


def test_default_is_beyond_doubt() -> None:
    lines = check().splitlines()
    assert lines[1].split()[:4] == ["PLAINTEXT", "PLAINTEXT", "1", "127.0.0.1:9092"]
    assert len(lines) == 2
    assert "a free port" in check("--port", "0")


def test_authorizer_that_nobody_can_feed_is_doubtful() -> None:
    doubt = "super.users is empty: where no ACL allows anybody to alter the cluster yet"
    assert doubt in check("--set", AUTHORIZER)
    assert doubt not in check("--set", AUTHORIZER, "--set", "super.users=User:a")
    assert doubt not in check("--set", AUTHORIZER, "--set", "allow.everyone.if.no.acl.found=true")


def test_what_serve_refuses_is_refused() -> None:
    output = check("--set", "listeners=NO://127.0.0.1:1", status=1)
    assert "listener.security.protocol.map" in output
    sasl = ("--listeners", "SASL_PLAINTEXT://:9092", "--set", "sasl.enabled.mechanisms=PLAIN")
    assert "sasl.jaas.config" in check(*sasl, status=1)
    assert "no setting of a broker" in check("--set", "no.such=1", status=1)


def test_host_that_has_no_address_is_doubtful() -> None:
    words = ("--set", "advertised.listeners=PLAINTEXT://no-such-host.invalid:9092")
    assert "warning: listener PLAINTEXT tells its clients the host no-such-host.invalid" in check(
        *words
    )


def test_certificates_are_looked_at(tmp_path: Path) -> None:
    words = ["--listeners", "SSL://127.0.0.1:9093"]
    assert "listener SSL: TLS needs a key and its certificate" in check(*words, status=1)
    for days, warning in ((30, ""), (3, "warning: the certificate of listener SSL ends in 3 days")):
        keys = Authority().sign("CN=localhost", days).written(tmp_path / "server.pem")
        said = check(*words, "--set", f"ssl.keystore.location={keys}")
        assert [line[: len(warning)] for line in said.splitlines()[2:]] == [warning] * bool(warning)


WIDE, LOCAL = "X://0.0.0.0:9092", "X://127.0.0.1:9092"
AUTHORIZER = f"authorizer.class.name={STANDARD_AUTHORIZER}"


@pytest.mark.parametrize(
    ("listener", "protocol", "settings", "expected"),
    [
        (WIDE, "PLAINTEXT", (), ["may do everything"]),
        (WIDE, "PLAINTEXT", (AUTHORIZER,), ["is User:ANONYMOUS"]),
        (LOCAL, "PLAINTEXT", (), []),
        ("X://[::1]:9092", "PLAINTEXT", (), []),
        (WIDE, "SSL", (), ["may do everything"]),
        (WIDE, "SSL", ("listener.name.x.ssl.client.auth=required",), []),
        (WIDE, "SASL_PLAINTEXT", ("sasl.enabled.mechanisms=PLAIN",), ["PLAIN in clear"]),
        (WIDE, "SASL_PLAINTEXT", ("sasl.enabled.mechanisms=SCRAM-SHA-256",), []),
        (
            WIDE,
            "SASL_PLAINTEXT",
            ("listener.name.x.sasl.enabled.mechanisms=OAUTHBEARER,PLAIN",),
            ["PLAIN and OAUTHBEARER in clear"],
        ),
        (LOCAL, "SASL_PLAINTEXT", ("sasl.enabled.mechanisms=PLAIN",), []),
        (WIDE, "SASL_SSL", ("sasl.enabled.mechanisms=PLAIN",), []),
        ("X:///k.sock", "UNIX", (), []),
        ("X:///k.sock", "UNIX", ("shmbroker.unix.mode=0666",), ["every user of this host"]),
        ("X:///k.sock", "UNIX", ("shmbroker.unix.mode=0666", AUTHORIZER), []),
    ],
)
def test_what_is_doubtful_about_a_listener(
    listener: str, protocol: str, settings: tuple[str, ...], expected: list[str]
) -> None:
    config = BrokerConfig.load(
        assignments=(
            f"listeners={listener}",
            f"listener.security.protocol.map=X:{protocol}",
            *settings,
        )
    )
    [one] = config.listeners
    found = list(doubts(config, one))
    assert len(found) == len(expected)
    assert all(each in text for each, text in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("mode", "content", "is_told"),
    [
        (0o644, "ssl.key.password=x", True),
        (0o644, "listener.name.a.plain.sasl.jaas.config=x", True),
        (0o640, "ssl.key.password=x", False),
        (0o644, "ssl.key.password=${file:/etc/secrets:key}", False),
        (0o644, "log.retention.hours=1", False),
    ],
)
def test_secrets_that_others_may_read_are_told(
    tmp_path: Path, mode: int, content: str, is_told: bool
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(content)
    file.chmod(mode)
    told = secrets_complaint(str(file))
    assert bool(told) == is_told
    assert not told or (f"chmod o= {file}" in told and "=x" not in told)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention.m", "did you mean retention.ms or "),
        ("foo", "`shmbroker config explain` lists all"),
    ],
)
def test_setting_that_is_none_says_what_there_is(name: str, hint: str) -> None:
    ran = CliRunner().invoke(main, ["config", "explain", name], prog_name="shmbroker")
    assert ran.exit_code == 1
    assert f"there is no setting {name}; {hint}" in ran.output
