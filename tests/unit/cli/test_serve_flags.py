"""`serve` reads plain flags as click does, and leaves everything else to click."""

import re
from typing import Any

import pytest
from click.testing import CliRunner

from shmbroker.cli import serve
from shmbroker.cli.serve_flags import FLAGS, parse_plain
from shmbroker.processes import supervisor
from tests.tidy.sources import ROOT

PLAIN = [
    [],
    ["--data", "/srv/x", "--port", "0"],
    ["--node-id", "0", "--replicas=3"],
    ["--port=1", "--port", "2"],
    ["--set", "a=b", "--set=c=d=e", "--set", "f="],
    ["--config", "f", "--host", "::1", "--io-workers", "3", "--network-workers=2"],
    ["--data="],
    ["--log-level", "DEBUG", "--log-format=json"],
    ["--console", "127.0.0.1:1", "--console-writes", "--port", "2"],
]
FOR_CLICK = [
    ["--help"],
    ["-h"],
    ["--data"],
    ["--prot", "1"],
    ["--port", "--data"],
    ["--port", "-1"],
    ["extra"],
    ["--", "extra"],
    ["--console-writes=true"],
]


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_plain_flags_are_read_as_click_reads_them(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(serve, "run", lambda parameters: seen.append(dict(parameters)))
    assert CliRunner().invoke(serve.command, words).exit_code == 0
    assert [parse_plain(words)] == seen


@pytest.mark.parametrize("words", FOR_CLICK, ids=" ".join)
def test_other_words_are_left_to_click(words: list[str]) -> None:
    assert parse_plain(words) is None


def test_every_flag_is_explained() -> None:
    shown = CliRunner().invoke(serve.command, ["--help"]).output
    for flag, _, metavar, _, text in FLAGS:
        assert f"{flag} {metavar}" in shown
        assert text.split(".")[0] in " ".join(shown.split())


def test_help_and_document_name_each_exit_status() -> None:
    statuses = {0} | {
        number for name, number in vars(supervisor).items() if re.match("EXIT_(?!TRY)", name)
    }
    told = CliRunner().invoke(serve.command, ["--help"]).output.partition("Exit status: ")[2]
    assert {int(number) for number in re.findall(r"(?:^|; )(\d+) ", " ".join(told.split()))} == (
        statuses
    )
    table = (ROOT / "docs" / "operations.md").read_text().partition("| exit status of `serve`")[2]
    rows = re.findall(r"^\| (\d+) \|", table.partition("\n\n")[0], re.MULTILINE)
    assert set(map(int, rows)) == statuses
