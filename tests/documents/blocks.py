"""What a document shows as code: its blocks, and the commands in them.

A block is fenced, or indented by four spaces. What it is:

   console    has lines that begin with "$ ": commands, each followed by what it prints
   commands   begins with a word that a shell knows; each line is a command
   python     by its fence
   shown      anything else: a layout, output of a program

`<!-- not run: REASON -->` before a block says that a test can't run it. What it says is still held
against the options of the command.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

SHELL_WORDS = (
    "shmbroker", "pip", "./scripts/", "export", "python", "spark-submit", "kill", "seq", "docker",
)  # fmt: skip
_MARK = re.compile(r"^<!-- not run: (.+) -->$")
_SPAN = re.compile(r"`(shmbroker [^`]+)`")


class Step(NamedTuple):
    """A command, and the lines that the document shows behind it."""

    command: str
    shown: list[str]


class Block(NamedTuple):
    """A block of code: where it begins (1 is the first line), and why it isn't run, if so."""

    line: int
    language: str
    text: str
    not_run: str

    @property
    def kind(self) -> str:
        if self.language:
            return self.language
        if re.search(r"^\$ ", self.text, re.MULTILINE):
            return "console"
        return "commands" if self.text.startswith(SHELL_WORDS) else "shown"

    def steps(self) -> list[Step]:
        """The commands of a console or of a list of commands, in their order."""
        if self.kind == "console":
            steps: list[Step] = []
            for line in _joined(self.text):
                if line.startswith("$ "):
                    steps.append(Step(line[2:], []))
                elif line.strip():
                    assert steps, f"line {self.line}: output before the first command"
                    steps[-1].shown.append(line)
            return steps
        if self.kind == "commands":
            return [Step(line, []) for line in _closed(_joined(self.text)) if line.strip()]
        return []


def blocks_of(path: Path) -> list[Block]:
    """Every block of a document."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = []
    not_run = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        first = at
        if line.startswith("```"):
            at += 1
            while not lines[at].startswith("```"):
                at += 1
            text = "\n".join(lines[first + 1 : at])
            found.append(Block(first + 1, line[3:].strip(), text, not_run))
            not_run = ""
        elif line.startswith("    ") and (not lines[at - 1].strip() or _MARK.match(lines[at - 1])):
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            text = "\n".join(line[4:] for line in lines[first:at]).rstrip()
            found.append(Block(first + 1, "", text, not_run))
            not_run = ""
            at -= 1
        elif mark := _MARK.match(line):
            not_run = mark[1]
        elif line.strip():
            not_run = ""
        at += 1
    return found


def our_commands(path: Path) -> list[tuple[str, list[str]]]:
    """Each `shmbroker …` of a document, in blocks and in sentences: as it stands, and its words.

    One with an ellipsis, or with placeholders for words, is a sketch and left out.
    """
    found = [step.command for block in blocks_of(path) for step in block.steps()]
    found += _SPAN.findall(path.read_text(encoding="utf-8"))
    return [(text, words) for text in found for words in ours(text)]


def ours(text: str) -> list[list[str]]:
    """The words behind `shmbroker` of each part of a pipe that is ours."""
    if "…" in text:
        return []
    splitter = shlex.shlex(text, posix=True, punctuation_chars="|;&<>")
    splitter.whitespace_split = True
    splitter.commenters = "#"
    parts: list[list[str]] = [[]]
    for word in splitter:
        if set(word) <= set("|;&"):
            parts.append([])
        elif set(word) <= set("<>"):
            break
        else:
            parts[-1].append(word)
    return [part[1:] for part in parts if part[:1] == ["shmbroker"]]


def _joined(text: str) -> list[str]:
    """Lines, those that end with a backslash with what follows."""
    return re.sub(r"\\\n\s*", "", text).splitlines()


def _closed(lines: list[str]) -> list[str]:
    """Lines, those with an open quotation with what follows until it is closed."""
    found: list[str] = []
    is_open = False
    for line in lines:
        if is_open:
            found[-1] += "\n" + line
        else:
            found.append(line)
        is_open = _is_open(found[-1])
    return found


def _is_open(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False
