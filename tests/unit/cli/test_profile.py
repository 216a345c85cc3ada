"""Profiles on the command line: what names the cluster, what wins, what librdkafka is told."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shmbroker.cli.client import cluster_of, for_librdkafka
from shmbroker.cli.commands import main
from shmbroker.cli.outcome import CommandFault
from shmbroker.client.secrets import Secret
from shmbroker.client.security import OPEN, Security

FILE = """
[work]
bootstrap.servers = "w:1"
security.protocol = "SASL_SSL"
ssl.ca.location = "/ca"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "anna"
sasl.password = "hush"
socket.keepalive.enable = true

[plain]
client.id = "me"
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profiles.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    monkeypatch.setenv("SHMBROKER_PROFILES", str(path))
    for name in ("SHMBROKER_BOOTSTRAP_SERVER", "SHMBROKER_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.mark.parametrize(
    ("servers", "profile", "variable", "expected"),
    [
        (None, None, None, "127.0.0.1:9092"),
        (None, None, "v:1", "v:1"),
        (None, "work", "v:1", "w:1"),
        (None, "plain", "v:1", "v:1"),
        ("b:1", "work", "v:1", "b:1"),
    ],
)
def test_what_names_the_cluster(
    servers: str | None,
    profile: str | None,
    variable: str | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable:
        monkeypatch.setenv("SHMBROKER_BOOTSTRAP_SERVER", variable)
    assert cluster_of(servers, profile).servers == expected


def test_x_is_above_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "mine")
    given = ["sasl.username=otto", "sasl.password=${env:MINE}", "ssl.cipher.suites=x"]
    addresses = cluster_of(None, "work", given).addresses()
    assert list(addresses) == [("w", 1)]
    assert addresses.security == Security(
        "SASL_SSL",
        "/ca",
        mechanism="SCRAM-SHA-512",
        username="otto",
        password=Secret("mine"),
    )


def test_secret_on_a_command_line_is_refused() -> None:
    with pytest.raises(click.UsageError, match="whoever lists processes would see it") as refusal:
        cluster_of(None, None, ["sasl.password=hush"])
    assert "hush" not in refusal.value.message


def test_librdkafka_is_told_the_same() -> None:
    assert for_librdkafka(OPEN) == {}
    assert for_librdkafka(cluster_of(None, "work").entering()) == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca",
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "anna",
        "sasl.password": "hush",
    }
    own = for_librdkafka(Security("SSL", certificate="/me", checks_name=False))
    assert own["ssl.key.location"] == own["ssl.certificate.location"] == "/me"
    assert own["ssl.endpoint.identification.algorithm"] == "none"
    with pytest.raises(CommandFault, match="knows no delegation tokens"):
        for_librdkafka(Security("SASL_SSL", mechanism="SCRAM-SHA-256", is_by_token=True))


def test_librdkafka_gets_a_token_from_its_file(tmp_path: Path) -> None:

    path = tmp_path / "token"
    path.write_text("head.eyJleHAiOiAxOTk5fQ.tail\n")
    security = Security("SASL_SSL", mechanism="OAUTHBEARER", token_url=f"file://{path}")
    assert for_librdkafka(security)["oauth_cb"]("") == ("head.eyJleHAiOiAxOTk5fQ.tail", 1999.0)


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["list"], 0, "work     w:1                SASL_SSL           anna"),
        (["show", "work"], 0, "sasl.password=(hidden)"),
        (["check", "work", "--offline"], 1, "ssl.ca.location: /ca can't be read"),
        (["check", "plain", "--offline"], 0, "plain: PLAINTEXT; nobody was asked."),
        (["check", "plain"], 1, "profile plain has no bootstrap.servers"),
        (["check", "wrok"], 1, "did you mean work?"),
    ],
)
def test_commands_of_profiles(words: list[str], status: int, told: str) -> None:
    ended = CliRunner().invoke(main, ["profile", *words])
    assert ended.exit_code == status
    assert told in ended.output
    assert "hush" not in ended.output


def test_no_profile_is_told_beside_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "none.toml"
    path.write_text("")
    path.chmod(0o600)
    monkeypatch.setenv("SHMBROKER_PROFILES", str(path))
    ended = CliRunner().invoke(main, ["profile", "list"])
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert ended.stderr == f"shmbroker: no profile in {path}\n"
