"""Each message that docs/troubleshooting.md and docs/operations.md quote is in the sources."""

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, modules, name_of, nodes_of

ANYTHING = "\0"
"""Stands in a source's text for a value that is put in."""

DOCUMENTS = [ROOT / "docs" / name for name in ("troubleshooting.md", "operations.md")]
HEAD = re.compile(r"^\| (?:message|a line with …) \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.MULTILINE)
FORMAT = re.compile(r"%[-+.\d]*[sdfgr]")


@functools.cache
def texts() -> list[str]:
    """Every text in the product's code, with `ANYTHING` for what is put in; no docstrings."""
    found: list[str] = []
    for path in modules("shmbroker"):
        alone = set()
        for node in nodes_of(path):  # parents come first
            if isinstance(node, ast.Expr):
                alone.add(id(node.value))
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(map(_part, node.values)))
            elif isinstance(node, ast.Constant) and id(node) not in alone:
                found.append(FORMAT.sub(ANYTHING, str(node.value)))
    return found


def _part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ANYTHING


def is_said(message: str) -> bool:
    """Whether a text of the sources says this; "…" stands for anything that is put in."""
    parts = message.split("…")
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    # A look for its longest part leaves few texts for the slow expression.
    longest = max(parts, key=len)
    return any(longest in text and pattern.search(text) for text in texts())


def quoted(path: Path) -> list[str]:
    """The messages in the first column of the tables of messages."""
    rows = "".join(HEAD.findall(path.read_text(encoding="utf-8"))).splitlines()
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_each_message_is_in_the_sources(path: Path) -> None:
    messages = quoted(path)
    assert len(messages) > 12
    assert all(max(map(len, message.split("…"))) > 9 for message in messages)
    assert [message for message in messages if not is_said(message)] == []


def test_a_message_that_nobody_says_is_seen() -> None:
    assert is_said("is a regular expression, … , honestly") is False
    assert is_said("there is no topic …")
