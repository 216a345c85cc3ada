"""Commands that documents and helps show have words that the command takes. Nothing is run here.

Python in documents is compiled; the names that it imports of ours, and the options that it gives to
Spark, exist. `test_commands` runs what can be run.
"""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from shmbroker.cli.commands import main
from shmbroker.spark import options, producer_options
from tests.documents.blocks import blocks_of, our_commands, ours
from tests.tidy.sources import ROOT, modules, name_of

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("[CS]*.md")])
DOCUMENTS = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]
COMMENTED = sorted([*(ROOT / "examples").glob("flights.*"), *(ROOT / "systemd").glob("*.service")])
MODULES = [path for path in modules("shmbroker") if "pip install" in path.read_text("utf-8")]
"""Modules whose messages say what to install."""
IN_COMMENT = re.compile(r"^(?:(?:--|#)\s{2,}|ExecStart=/\S+/)?(shmbroker .+)$", re.MULTILINE)
OF_SPARK = {"checkpointLocation", "path", "header", "mergeSchema"}
"""Options that are Spark's own."""


def refusal_of(words: list[str]) -> str:
    """What the command says against these words; "" if it takes them. Nothing is run."""
    command: click.Command = main
    context: click.Context | None = None
    try:
        while isinstance(command, click.Group):
            context = command.make_context("shmbroker", list(words), parent=context)
            words = [*context._protected_args, *context.args]
            _, found, words = command.resolve_command(context, words)
            assert found is not None
            command = found
        command.make_context(command.name, list(words), parent=context)
    except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
        return ""  # --help, --version; a group alone, as in "`shmbroker topic`"
    except click.MissingParameter:
        return "MISSING"
    except click.ClickException as refusal:
        is_for_a_file = re.search("does not exist|No such file", refusal.message)
        return "" if is_for_a_file else refusal.message
    return ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_commands_of_a_document_are_taken(path: Path) -> None:
    in_blocks = {step.command for block in blocks_of(path) for step in block.steps()}
    wrong = []
    for text, words in our_commands(path):
        told = refusal_of(words)
        if told == "MISSING" and text not in in_blocks:
            continue  # a sentence may name a command without its arguments
        if told:
            wrong.append((text, told))
    assert not wrong


@pytest.mark.parametrize("path", COMMENTED, ids=name_of)
def test_commands_in_comments_are_taken(path: Path) -> None:
    for text in IN_COMMENT.findall(path.read_text(encoding="utf-8")):
        if "$ARGS" in text:
            continue  # of the reader's
        for words in ours(text.replace(" $SHMBROKER_FLAGS", "")):
            assert not refusal_of(words), text


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Each command's name and help, from the root down."""
    yield name, command.help or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from helps(found, f"{name} {word}")


@pytest.mark.parametrize(("name", "text"), list(helps(main, "shmbroker")))
def test_examples_of_a_help_are_taken(name: str, text: str) -> None:
    text = re.sub(r"\\\n\s*", "", text)
    for example in re.findall(r"^.*\bshmbroker .+$", text, re.MULTILINE):
        command = re.split(r"\s{3,}", example.strip())[0]
        if not command.startswith(("shmbroker ", "seq ", "echo ", "cat ")):
            continue  # a sentence
        for words in ours(command):
            assert not refusal_of(words), example


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_no_command_of_a_document_is_overlooked(path: Path) -> None:
    """Each indented command stands in a block that is run, or says why it is not."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    pattern = r"\bshmbroker (?:serve|topic|consume|produce|ingest)"
    shown = len(re.findall(rf"^ {{4}}\S.*{pattern}|^ {{4}}{pattern}", text, re.MULTILINE))
    steps = [step for block in blocks_of(path) for step in block.steps()]
    assert shown == sum(bool(re.search(pattern, step.command)) for step in steps)


def test_a_reason_goes_with_the_next_block_only(tmp_path: Path) -> None:
    path = tmp_path / "document.md"
    marked = "<!-- not run: why -->\n    shmbroker serve"
    path.write_text(f"Text\n\n{marked}\n\nText\n\n    $ pwd\n    /\n")
    first, second = blocks_of(path)
    assert (first.not_run, first.kind, second.not_run) == ("why", "commands", "")
    assert second.steps() == [("pwd", ["/"])]


def test_a_wrong_word_is_seen() -> None:
    assert "No such option" in refusal_of(["topic", "create", "t", "-c", "retention.ms=1"])
    assert "unexpected extra" in refusal_of(["group", "delete-offsets", "readers", "flights"])
    assert "No such command" in refusal_of(["tpoic"])
    assert refusal_of(["topic", "create", "t", "-p", "2"]) == ""


@pytest.mark.parametrize("path", [*DOCUMENTS, *COMMENTED, *MODULES], ids=name_of)
def test_what_pip_installs_is_there(path: Path) -> None:
    """Nothing is published under our name, so a document names a checkout; its extras exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in re.findall(r"\bpip install ([^`\n]+)", path.read_text(encoding="utf-8")):
        what = line.partition("  #")[0]
        assert not re.search(r"(?<![/\w])shmbroker\b", what), line
        for named in re.findall(r"\[([\w,]+)\]", what):
            assert set(named.split(",")) <= set(extras["optional-dependencies"]), line


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_scripts_that_are_shown_can_be_run(path: Path) -> None:
    for script in re.findall(r"^ {4}\./(scripts/\w+)", path.read_text(encoding="utf-8"), re.M):
        assert (ROOT / script).stat().st_mode & 0o100, script


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_python_of_a_document_compiles_and_names_what_exists(path: Path) -> None:
    taken = {*options.NAMES, *map(str.lower, producer_options.NAMES + tuple(OF_SPARK))}
    taken |= options.SETTINGS | producer_options.SETTINGS
    for block in blocks_of(path):
        if block.kind != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("shmbroker."):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), (block.line, alias.name)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "option"
                and isinstance(node.args[0], ast.Constant)
            ):
                assert str(node.args[0].value).lower() in taken, (block.line, node.args[0].value)


def test_readme_names_each_command_and_links_each_document() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`shmbroker ([a-z]+)`", "".join(re.findall(r"^\| `.*", text, re.M))))
    assert named == set(main.list_commands(click.Context(main)))
    documents = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert documents == set(re.findall(r"^\| \[docs/([\w-]+\.md)\]", text, re.M))


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that has none below it, by its words."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        found = command.get_command(context, word)
        assert found is not None
        yield from leaves(found, f"{name} {word}".strip())


WITHOUT_A_WORD = {"backup take", "doctor check", "ingest topic"}
"""What a group does where no command of it is named."""
NO_COMMANDS = {"serve"}
"""What the table names beside them."""


def test_readme_names_what_each_group_of_commands_has() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    told: dict[str, set[str]] = {}
    for name, others, rest in re.findall(
        r"^\| `shmbroker ([a-z]+)`((?:, `shmbroker [a-z]+`)*) \| (.*)", text, re.M
    ):
        told |= {other: set() for other in re.findall(r"`shmbroker ([a-z]+)`", others)}
        words = re.findall(r"`([a-z -]+)`", rest)
        told[name] = {word.removeprefix(f"{name} ") for word in words} - NO_COMMANDS
    there: dict[str, set[str]] = {name: set() for name in told}
    for words, _ in leaves(main, ""):
        name, _, word = words.partition(" ")
        if word and words not in WITHOUT_A_WORD:
            there[name].add(word)
    assert told == there


def test_readme_names_the_commands_that_ask_no_cluster_by_its_address() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    sentence = re.search(r"^All talk to any Kafka cluster \(.*?\) but (.*?)\.", text, re.M)
    assert sentence is not None
    named = re.findall(r"`([a-z ]+)`", sentence[1])
    for words, command in leaves(main, ""):
        without = any(f"{words} ".startswith(f"{name} ") for name in named)
        taken = {option for parameter in command.params for option in parameter.opts}
        looks_here = words.startswith(("doctor ", "backup "))  # at this host first
        assert without or "--bootstrap-server" in taken, words
        assert not without or looks_here or "--bootstrap-server" not in taken, words


def test_the_page_of_the_command_leads_to_what_each_command_does() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w-]+\.md)", text))
    pages = {"console", "controllers", "doctor", "metrics", "operations", "pipeline", "security"}
    assert {f"{page}.md" for page in pages | {"replication", "systemd"}} <= linked
