"""The commands that documents show are run, in their order, and print what is shown.

Each document gets a directory and an empty HOME of its own. A broker is started by the `serve` that
stands in it, at a free port, or before its first command if there is none. Absolute paths such as
/srv lie in that directory. Times, sizes, ids, pids, ports and paths of what is printed may differ;
other numbers may not, but for those that tell of an election. A block that can't be run here says
so: `<!-- not run: REASON -->` (see `blocks`).

`kill -9 PID` ends the process that the document shows under that pid; what is shown behind it are
lines of the broker's log. Python is run for docs/arrow.md, and for README's tour by
`test_tour_in_spark`; elsewhere `test_document_words` compiles it and looks at its options.
"""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.testing.broker import Broker
from tests.documents.blocks import Block, Step, blocks_of
from tests.tidy.sources import ROOT, name_of

WAIT_S = 30
QUICK = ("--set", "group.initial.rebalance.delay.ms=0")
"""Nobody waits for a second member of a group."""
# Of what a document names outside of its directory, this is made inside.
OUTSIDE = re.compile(r"(?<![\w.$])/(?=(?:srv|data|etc|mnt|disk\d)/)")
_TABLE = """
import os, sys, pyarrow as pa, pyarrow.parquet as pq
os.makedirs(sys.argv[1])
for number in range(12):
    pq.write_table(pa.table({"n": [number]}), f"{sys.argv[1]}/flights-{number}.parquet")
"""
"""Twelve small files of a table."""

BEFORE: dict[str, list[str]] = {
    "docs/arrow.md": [
        "seq 9 | shmbroker produce tour",
        """echo '{"carrier": "UA", "dep_delay": 2.5}' | shmbroker produce flights""",
        "shmbroker topic create topic",
    ],
    "docs/operations.md": [
        "echo 'log.segment.bytes = 1073741824' | install -D /dev/stdin /etc/shmbroker.toml",
    ],
    "docs/pipeline.md": [f"python -c '{_TABLE}' /data/flights"],
}
"""What has to be there that a document takes for granted."""

PYTHON_BEFORE = """
import pyarrow
batches = [pyarrow.record_batch({"value": ["a", "b"]})]
"""

_MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[,.\d]*(?:[+-]\d\d:\d\d|Z)?"), "TIME"),
    (re.compile(r"\b1\d{12}\b"), "TIME"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:us|ms|s)\b"), "LONG"),
    (re.compile(r"(?<![\w/-])[\w-]{22}(?![\w/-])"), "ID"),
    (re.compile(r"/\S*?(?=/[a-z]+-data)"), "PATH"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "PORT"),
    (re.compile(r"(?<=\bpid )\d+|^ *\d+(?= shmbroker: )"), "PID"),
    (re.compile(r"(?<=-\d) +\d+(?= +running)"), " PID"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:B|KiB|MiB|GiB|TiB|bytes|batches)(?!\w)"), "SIZE"),
    (re.compile(r"\s+"), " "),
)


_NUMBER = re.compile(r"\b\d+\b")


def masked(line: str, is_elected: bool = False) -> str:
    """A line without what differs from run to run. is_elected: it tells who was, and in which
    epoch: anybody may be."""
    for pattern, word in _MASKS:
        line = pattern.sub(word, line)
    return _NUMBER.sub("N", line.strip()) if is_elected else line.strip()


class Tour:
    """Runs the commands of one document in its directory."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.document = path.read_text(encoding="utf-8")
        self.directory = directory
        self.broker: Broker | None = None
        self.log_position = 0
        home = directory / "home"
        words = directory / "words"
        home.mkdir()
        words.mkdir()
        ours = words / "shmbroker"
        ours.write_text(f'#!/bin/sh\nexec {sys.executable} -m shmbroker "$@"\n')
        ours.chmod(0o755)
        self.environment = {
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "PATH": f"{words}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"],
        }

    def run(self, step: Step) -> None:
        """Run a command of the document, and compare."""
        command = OUTSIDE.sub(f"{self.directory}/", step.command)
        if command.startswith("shmbroker serve"):
            self.serve(shlex.split(command, comments=True)[2:])
            printed = [line for line in self.log_lines() if "ready on" in line]
            assert_shown(step, printed[: len(step.shown)] if step.shown else [])
        elif command.startswith("kill "):
            self.kill(step)
        else:
            self.ask(step, self.with_pids(command))

    def serve(self, words: list[str]) -> None:
        self.stop()
        data = self.directory / "home" / ".local" / "state" / "shmbroker"
        if "--data" in words:
            at = words.index("--data")
            data = self.directory / words[at + 1]
            del words[at : at + 2]
        data.mkdir(parents=True, exist_ok=True)
        self.broker = Broker(*words, *QUICK, data=data)
        self.log_position = 0
        self.environment["SHMBROKER_BOOTSTRAP_SERVER"] = self.broker.address

    def ask(self, step: Step, command: str) -> None:
        """Run it in a shell; its exit status is 0, and what it prints is what is shown."""
        ran = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            cwd=self.directory,
            env=self.environment,
            text=True,
            timeout=WAIT_S,
        )
        assert ran.returncode == 0, (step.command, ran.stdout, ran.stderr)
        if step.shown:
            assert_shown(step, ran.stdout.splitlines())

    def kill(self, step: Step) -> None:
        """End the process that the document shows under this pid, and wait for what is shown. Where
        the document ends the active controller, that is the one that was elected here."""
        pid = step.command.split()[-1]
        named = re.search(rf"\b{pid} shmbroker: ([\w-]+)|([\w-]+) \(pid {pid}\)", self.document)
        assert named, step.command
        assert self.broker
        self.log_lines()
        title = named[1] or named[2]
        if title.startswith("controller"):
            elected = re.findall(r"([\w-]+) the active controller", "".join(self.broker.lines))
            title = elected[-1]
        os.kill(self.broker.children()[title], 9)
        is_elected = title.startswith("controller")
        waiting = [masked(line, is_elected) for line in step.shown]
        tick = threading.Event()
        seen: list[str] = []
        for _ in range(WAIT_S * 20):
            for line in self.log_lines():
                seen.append(line)
                if waiting and masked(line, is_elected) == waiting[0]:
                    del waiting[0]
            if not waiting:
                return
            tick.wait(0.05)
        raise AssertionError((waiting, seen))

    def log_lines(self) -> list[str]:
        """What the broker has printed since the last look."""
        assert self.broker
        lines = list(self.broker.lines)
        new, self.log_position = lines[self.log_position :], len(lines)
        return new

    def with_pids(self, command: str) -> str:
        """`ps` of the broker's own pid, not of the document's."""
        pid = re.search(r"ready on .* pid (\d+)", self.document)
        if command.startswith("ps ") and pid and self.broker:
            return command.replace(pid[1], str(self.broker.pid))
        return command

    def python(self, blocks: list[Block]) -> None:
        """Run the document's Python as one program."""
        assert self.broker
        text = PYTHON_BEFORE + "\n".join(block.text for block in blocks)
        text = text.replace("127.0.0.1:9092", self.broker.address)
        program = self.directory / "shown.py"
        program.write_text(text)
        self.ask(Step("python", []), f"python {program}")

    def stop(self) -> None:
        if self.broker:
            assert self.broker.stop() == 0, self.broker.log


def assert_shown(step: Step, printed: list[str]) -> None:
    """But for empty lines."""
    is_elected = "quorum" in step.command
    found = [masked(line, is_elected) for line in printed if line.strip()]
    assert found == [masked(line, is_elected) for line in step.shown], step.command


def runnable(path: Path) -> list[Block]:
    """The blocks of a document with commands that can be run here."""
    kinds = ("console", "commands")
    return [block for block in blocks_of(path) if block.kind in kinds and not block.not_run]


DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
RUN = [path for path in DOCUMENTS if runnable(path) or name_of(path) == "docs/arrow.md"]


@pytest.fixture
def tour(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tour]:
    made = Tour(request.param, tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("path", "tour"),
    [(path, path) for path in RUN],
    ids=map(name_of, RUN),
    indirect=["tour"],
)
def test_commands_print_what_the_document_shows(path: Path, tour: Tour) -> None:
    blocks = runnable(path)
    steps = [step for block in blocks for step in block.steps()]
    is_python = name_of(path) == "docs/arrow.md"
    if not any(step.command.startswith("shmbroker serve") for step in steps):
        tour.serve([])
    for command in BEFORE.get(name_of(path), []):
        tour.run(Step(command, []))
    for step in steps:
        tour.run(step)
    if is_python:
        tour.python([block for block in blocks_of(path) if block.kind == "python"])


def test_masks_leave_words() -> None:
    assert masked("  7 lines, 3.2 MiB in /home/you/tour-data") == "7 lines, SIZE in PATH/tour-data"
    assert masked("2026-11-24 09:34:30,132 WARNING x") == "TIME WARNING x"
    assert masked("leader id  2", is_elected=True) == "leader id N"
    assert masked("io-worker-1  6266  running    1") == "io-worker-1 PID running 1"
    assert (
        masked("ready on 127.0.0.1:9092, pid 7, in 0.4 s")
        == "ready on 127.0.0.1:PORT, pid PID, in LONG"
    )
    assert masked("cluster  xMK_8jw0Tnyyx3zNbysKOA, ok") == "cluster ID, ok"
    assert masked("ok") != masked("bad")
