"""`shmbroker embedded` lives as long as whoever started it."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.raw_client import RawClient

WORDS = [sys.executable, "-m", "shmbroker", "embedded", "--print-address"]
WAIT_S = 30


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where its directory lies."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def embedded(home: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(WORDS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin and process.stdout
        process.stdin.close()
        process.stdout.close()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def supervisor_of(process: subprocess.Popen[str]) -> int:
    """A pidfd of the broker."""
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return os.pidfd_open(int(tasks[0]))


def ended(pidfd: int) -> bool:
    with os.fdopen(pidfd):
        return bool(select.select([pidfd], [], [], WAIT_S)[0])


def test_it_serves_until_stdin_is_closed_and_leaves_nothing(
    embedded: subprocess.Popen[str], home: Path
) -> None:
    with RawClient(address_of(embedded)) as client:
        client.create_topic("t")
    assert os.listdir(home)
    supervisor = supervisor_of(embedded)
    assert embedded.stdin
    embedded.stdin.close()
    assert embedded.wait(WAIT_S) == 0
    assert ended(supervisor)
    assert os.listdir(home) == []


def test_signal_ends_it_in_order(embedded: subprocess.Popen[str], home: Path) -> None:
    address_of(embedded)
    embedded.send_signal(signal.SIGTERM)
    assert embedded.wait(WAIT_S) == 143
    assert os.listdir(home) == []


def test_broker_ends_with_it_when_it_is_killed(embedded: subprocess.Popen[str]) -> None:
    address_of(embedded)
    supervisor = supervisor_of(embedded)
    embedded.kill()
    assert ended(supervisor)


def test_it_ends_with_a_parent_whose_pipe_another_process_holds(home: Path) -> None:
    program = (
        "import os, subprocess, sys; read, write = os.pipe(); os.set_inheritable(write, True)\n"
        f"broker = subprocess.Popen({WORDS!r}, stdin=read, stdout=subprocess.PIPE, text=True,"
        " pass_fds=[write])\n"
        "broker.stdout.readline(); print(broker.pid, flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        pidfd = os.pidfd_open(int(address_of(parent)))
        parent.kill()
    assert ended(pidfd)
    assert os.listdir(home) == []


def test_flags_are_those_of_serve_and_a_wrong_one_is_told(home: Path) -> None:
    done = subprocess.run(
        [*WORDS, "--", "--set", "no.such=1"], input="", capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no.such" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
