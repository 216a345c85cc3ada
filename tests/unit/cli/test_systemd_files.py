"""What `shmbroker systemd install` would write, and from where it refuses to: by table."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shmbroker.cli import systemd
from shmbroker.cli.systemd import COMMAND, MARK, Installation, complaint, files_of

SOURCE = Path(__file__).parents[3] / systemd.SOURCE
TEXTS = {path.name: path.read_text() for path in SOURCE.iterdir()}
ELSEWHERE = "/srv/python/bin/shmbroker"


def test_each_file_has_its_place() -> None:
    files = files_of(TEXTS, ELSEWHERE)
    assert len(files) == len(TEXTS)
    for file in files:
        assert file.is_setting or file.path.endswith(".example") or file.text.startswith(MARK)
        assert COMMAND not in file.text
    assert sum(ELSEWHERE in file.text for file in files) == 3


def test_for_a_user_nothing_is_left_that_takes_a_machine() -> None:
    files = {Path(file.path).name: file for file in files_of(TEXTS, ELSEWHERE, "/home/me")}
    assert set(files) == {"shmbroker.service", "shmbroker.socket", "shmbroker.toml", "environment"}
    assert all(file.path.startswith("/home/me/.config/") for file in files.values())
    unit = files["shmbroker.service"].text
    for word in ("User=", "/etc/", "%S", "ProtectSystem=", "multi-user", "network-online"):
        assert word not in unit
    for word in ("Type=notify", "WatchdogSec=", "NoNewPrivileges=yes", "Sockets=shmbroker.socket"):
        assert word in unit
    assert "data.access" not in files["shmbroker.toml"].text


@pytest.mark.parametrize("home", ["", "/home/me"])
def test_units_have_no_word_that_systemd_does_not_know(tmp_path: Path, home: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    paths = []
    for file in files_of(TEXTS, sys.executable, home):
        if file.path.endswith((".service", ".socket")):
            paths.append(tmp_path / Path(file.path).name)
            paths[-1].write_text(file.text)
    plain = [str(path) for path in paths if "@" not in path.name]
    done = subprocess.run([analyze, "verify", "--man=no", *plain], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("paths", "closed", "said"),
    [
        (("/opt/shmbroker/bin/python3", "/usr/bin/python3.11"), (), ""),
        (("/home/me/venv/bin/python3",), (), "below /home"),
        (("/opt/shmbroker/bin/python3", "/root/.pyenv/bin/python3"), (), "below /root"),
        (("/homes/shmbroker/bin/python3",), (), ""),
        (("/srv/shmbroker/bin/python3",), ("/srv",), "may not enter /srv"),
    ],
)
def test_what_a_service_can_not_run_is_refused(
    paths: tuple[str, ...], closed: tuple[str, ...], said: str
) -> None:
    entered = [(str(parent), str(parent) not in closed) for parent in Path(paths[0]).parents]
    why = complaint(Installation(paths[0], paths), entered)
    assert said in why if said else not why


@pytest.mark.parametrize(
    ("has_systemd", "user", "words", "said"),
    [
        (False, 0, ["install"], "systemd does not run this machine"),
        (False, 0, ["uninstall"], "systemd does not run this machine"),
        (True, 1000, ["install"], "takes root"),
        (True, 1000, ["uninstall"], "takes root"),
    ],
)
def test_without_systemd_or_root_it_says_so(
    monkeypatch: pytest.MonkeyPatch, has_systemd: bool, user: int, words: list[str], said: str
) -> None:
    monkeypatch.setattr(systemd.os.path, "isdir", lambda _path: has_systemd)
    monkeypatch.setattr(systemd.shutil, "which", lambda _name: "/bin/systemctl")
    monkeypatch.setattr(systemd.os, "geteuid", lambda: user)
    ran = CliRunner().invoke(systemd.command, words)
    assert said in str(ran.exception)


def test_dry_run_shows_all_of_it_and_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd.subprocess, "run", None)
    ran = CliRunner().invoke(systemd.command, ["install", "--dry-run", "--now"])
    assert ran.exit_code == 0, ran.output
    assert "      WatchdogSec=30" in ran.output
    assert "run   systemctl enable --now shmbroker.socket shmbroker.service" in ran.output
    assert CliRunner().invoke(systemd.command, ["uninstall", "--dry-run"]).exit_code == 0
