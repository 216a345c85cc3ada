"""Tables, names by pattern, addresses, explained settings: what needs no cluster."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shmbroker.cli import commands, settings
from shmbroker.cli.client import TargetCluster, matching, pairs
from shmbroker.cli.outcome import CommandFault, say
from shmbroker.cli.output import print_table
from shmbroker.controller.decisions.broker_values import THREAD_POOLS
from shmbroker.log.config import LogConfig
from shmbroker.metadata.client_metrics import CLIENT_METRICS_SETTINGS
from shmbroker.settings.left_out import LEFT_OUT
from shmbroker.settings.security_table import SECURITY_SETTINGS
from shmbroker.settings.table import BROKER_SETTINGS, TOPIC_SETTINGS
from shmbroker.settings.without_effect import WITHOUT_EFFECT

README = Path(__file__).resolve().parents[3] / "README.md"


def run(*words: str, status: int = 0) -> str:
    """The output of a command, run in this process."""
    ran = CliRunner().invoke(commands.main, words, prog_name="shmbroker")
    assert ran.exit_code == status, ran.output
    return ran.output


def walk(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [words]
    context = click.Context(command)
    found = [words]
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if words == ("ingest",) and name == "topic":
            continue  # what `shmbroker ingest TOPIC` is inside
        assert child is not None
        found += walk(child, (*words, name))
    return found


@pytest.mark.parametrize("words", walk(commands.main), ids=" ".join)
def test_every_help_page_shows_an_example_of_its_command(words: tuple[str, ...]) -> None:
    page = run(*words, "--help")
    example = " ".join(("shmbroker", *words))
    assert page.count(example) >= 2, "one in the usage, one to copy"


MISTYPED = {
    "tpoic": "'tpoic'. Did you mean 'topic'?",
    "topic lst": "'lst'. Did you mean 'list'?",
    "group desribe g": "Did you mean 'describe'?",
    "config explian x": "Did you mean 'explain'?",
    "log verfy": "Did you mean 'verify'?",
    "quorum statsu": "Did you mean 'status'?",
    "bench prduce": "Did you mean 'produce'?",
    "zzz": "There are acl, backup, bench, completion,",
    "consume t --gruop g": "--group",
    "topic list --jsno": "--json",
}


@pytest.mark.parametrize(("words", "hint"), MISTYPED.items(), ids=list(MISTYPED))
def test_what_is_mistyped_is_wrong_usage_with_a_hint(words: str, hint: str) -> None:
    assert hint in run(*words.split(), status=2)


def test_columns_are_aligned_and_numbers_stand_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "N", "X"), [("a", 1, None), ("long-name", 22, "y")])
    assert capsys.readouterr().out == "NAME        N  X\na           1  -\nlong-name  22  y\n"


def test_one_long_cell_does_not_widen_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "N"), [("a", 1), ("x" * 30_000, 2)])
    assert capsys.readouterr().out == f"NAME  N\na     1\n{'x' * 30_000}  2\n"


NAMES = ["__internal", "a", "ab", "b.c"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), NAMES),
        (("a",), ["a"]),
        (("b.c", "a", "a"), ["a", "b.c"]),
        (("a*",), ["a", "ab"]),
        (("*",), ["a", "ab", "b.c"]),
        (("__*",), ["__internal"]),
        (("^a.?$",), ["a", "ab"]),
        (("[ab]?*",), ["ab", "b.c"]),
    ],
    ids=str,
)
def test_names_are_found(words: tuple[str, ...], found: list[str]) -> None:
    assert matching(words, reversed(NAMES), "topic") == found


def test_name_that_finds_nothing_is_a_fault() -> None:
    for word in ("x", "x*", "^x"):
        with pytest.raises(CommandFault, match=re.escape(f"there is no topic {word};")):
            matching([word], NAMES, "topic")
    with pytest.raises(click.UsageError, match="no regular expression"):
        matching(["^("], NAMES, "topic")


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h:1", [("h", 1)]),
        ("h", [("h", 9092)]),
        ("h:1, [::1]:2", [("h", 1), ("::1", 2)]),
        ("PLAINTEXT://h:1", [("h", 1)]),
        ("unix:/run/k.sock,h:1", [("/run/k.sock", 0), ("h", 1)]),
    ],
)
def test_servers_are_read(text: str, addresses: list[tuple[str, int]]) -> None:
    assert list(TargetCluster(text, {}).addresses()) == addresses


@pytest.mark.parametrize("text", ["", "h:", "h:x", "h:0", "h:65536", "a:1,,b:1", "h:1:2"])
def test_what_is_no_server_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.UsageError, match="takes HOST:PORT"):
        TargetCluster(text, {}).addresses()


def test_pairs() -> None:
    assert pairs(["a=1", "b=", "c=x=y"], "-X") == {"a": "1", "b": "", "c": "x=y"}
    with pytest.raises(click.UsageError, match="-X takes KEY=VALUE"):
        pairs(["a"], "-X")


def test_every_setting_is_explained() -> None:
    for name in settings.names():
        row = settings.explained(name)
        assert row["documentation"] in " ".join(settings.as_text(row).split("\n"))
        assert row["changed"]
    assert settings.names() >= WITHOUT_EFFECT.keys()


def test_what_is_left_out_is_explained() -> None:
    for name, why in LEFT_OUT.items():
        row = settings.explained(name)
        assert row.keys() == settings.explained("num.partitions").keys()
        assert why in " ".join(settings.as_text(row).split("\n"))


TABLES = (
    "settings/table.py",
    "settings/security_table.py",
    "settings/without_effect.py",
    "settings/left_out.py",
    "settings/checks.py",
    "cli/settings.py",
    "metadata/group_configs.py",
    "metadata/client_metrics.py",
)


def test_settings_without_effect_are_those_that_no_module_reads() -> None:
    package = README.parent / "shmbroker"
    tables = [package / name for name in TABLES]
    tables.append(package / "spark" / "producer_options.py")  # a client's, some of the same name
    sources = [path.read_text() for path in package.rglob("*.py") if path not in tables]
    read = {name for name in settings.names() if any(f'"{name}"' in text for text in sources)}
    read |= {attribute.replace("_", ".") for attribute in LogConfig.__annotations__}
    # What only a table itself goes by.
    read |= {"remote.log.storage.system.enable", "remote.log.delete.on.disable"}
    bounds = (package / "metadata" / "group_configs.py").read_text()
    read |= {name for name in BROKER_SETTINGS if f'"{name}"' in bounds}
    offered = (package / "security" / "sasl" / "offered.py").read_text()
    of_tokens = "sasl.oauthbearer."  # read by the rest of their names
    read |= {
        name
        for name in SECURITY_SETTINGS
        if name.startswith(of_tokens) and f'"{name.removeprefix(of_tokens)}"' in offered
    }
    # Named, but only to be stored and shown.
    read -= {"compression.type", "log.cleaner.threads", *THREAD_POOLS, *CLIENT_METRICS_SETTINGS}
    by_synonym = {
        synonym for name in read if name in TOPIC_SETTINGS
        for synonym, _ in TOPIC_SETTINGS[name].synonyms
    }  # fmt: skip
    given = {name for name, row in BROKER_SETTINGS.items() if row.is_given}
    idle = settings.names() - read - by_synonym - given
    assert idle == WITHOUT_EFFECT.keys(), "what is read now goes from settings/without_effect.py"


AUTH = "ssl.client.auth"
"""none is a value of it."""


def test_explain_says_what_has_no_effect() -> None:
    words = "It has no effect here: "
    assert words in " ".join(run("config", "explain", "queued.max.requests").split())
    assert words not in " ".join(run("config", "explain", "retention.ms").split())
    rows = [line.split() for line in run("config", "explain").splitlines()]
    assert {row[0] for row in rows if row[-1] == "none" and row[0] != AUTH} == WITHOUT_EFFECT.keys()


@pytest.mark.parametrize(
    ("name", "way"), [("log.dirs", "serve --log-dir, at start"), ("node.id", "serve --set or")]
)
def test_explain_says_how_a_broker_is_told_what_it_is(name: str, way: str) -> None:
    assert way in run("config", "explain", name)


@pytest.mark.parametrize("name", ["local.retention.ms", "retention.bytes", "log.retention.hours"])
def test_explain_says_what_else_it_takes_to_see_retention(name: str) -> None:
    assert "log.retention.check.interval.ms=1000" in " ".join(
        run("config", "explain", name).split()
    )


def test_notes_are_of_settings_that_exist() -> None:
    assert settings.NOTES.keys() <= settings.names()
    assert len(settings.NOTES) == 10


def test_explain_knows_what_was_meant() -> None:
    assert "did you mean retention.ms" in run("config", "explain", "retention.sm", status=1)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_our_variable(shell: str) -> None:
    assert "_SHMBROKER_COMPLETE" in run("completion", shell)


def test_names_that_clients_chose_lead_no_terminal_astray(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("GROUP", "STATE"), [("a\x1b[2Jb\nc\x9b", "empty")])
    say("there is no group a\x1b[2Jb")
    told = capsys.readouterr()
    assert told.out.splitlines() == ["GROUP             STATE", r"a\x1b[2Jb\nc\x9b  empty"]
    assert told.err == "shmbroker: there is no group a\\x1b[2Jb\n"
