"""The hardened set-up of docs/security.md does what it says, line by line as it can be typed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shmbroker.testing.broker import free_ports
from tests.support.raw_client import RawClient
from tests.tidy.sources import ROOT

BLOCK = re.compile(r"## A hardened set-up\n.*?```sh\n(.*?)```", re.DOTALL)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_it_can_be_typed(tmp_path: Path) -> None:
    found = BLOCK.search((ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
    assert found is not None
    port = free_ports(1)
    lines = found[1].replace("9093", str(port))
    assert len(lines.splitlines()) == 10
    command = tmp_path / "bin" / "shmbroker"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m shmbroker "$@"\n')
    command.chmod(0o755)
    (tmp_path / "work").mkdir()
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    path = f"{command.parent}:{os.environ['PATH']}"
    script = f"( set -e\n{lines}\nls -l data/control.sock\n)\necho ended with $?\n"
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path / "work",
        env=os.environ | home | {"PATH": path, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out = ""
        assert shell.stdout is not None
        for line in shell.stdout:  # of the broker as well, which is still there
            out += line
            if line.startswith("ended with"):
                break
        assert "ended with 0" in out.splitlines(), out
        assert "hello" in out.splitlines(), out
        assert re.search(r"^srw------- .*control\.sock", out, re.MULTILINE), out
        with RawClient(f"127.0.0.1:{port}") as client, pytest.raises((ConnectionError, OSError)):
            client.ask("Metadata", 12, {"topics": None})
        refused = subprocess.run(
            [str(command), "topic", "create", "mine", "--profile", "alice"],
            cwd=tmp_path / "work",
            env=os.environ
            | home
            | {"PYTHONPATH": str(ROOT), "SHMBROKER_PROFILES": str(tmp_path / "work/profiles.toml")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert refused.returncode == 1
        assert "uthoriz" in refused.stderr, refused.stderr
        for secret in (tmp_path / "work").glob("*.password"):
            assert secret.read_text().strip() not in out
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.communicate(timeout=30)
