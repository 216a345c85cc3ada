"""`scripts/_environment`: which virtual environments are used as they are, and which made anew."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/../asked"
"""
"""A Python that has all, and keeps what it was asked."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One with an environment in which somebody keeps a file."""
    for name in ("pyproject.toml", "setup.py", "shmbroker/kernels/a.c", "shmbroker/kernels/a.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "_environment", tmp_path / "scripts")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "mine").write_text("")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def run(checkout: Path, path: str = "") -> None:
    """Have the script's function run; path: where programs are looked for first."""
    command = f". {checkout}/scripts/_environment; environment extra 1"
    known = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    known["PATH"] = f"{path}:{known['PATH']}".lstrip(":")
    subprocess.run(["bash", "-c", command], check=True, capture_output=True, env=known)


def enter(checkout: Path) -> list[str]:
    """What pip is asked to install."""
    run(checkout)
    asked = (checkout / ".venv" / "asked").read_text()
    return [line for line in asked.splitlines() if "pip install" in line]


def test_an_environment_made_by_hand_is_kept_and_gets_what_it_lacks(checkout: Path) -> None:
    (install,) = enter(checkout)
    assert install.endswith(f"-e {checkout}[extra]")
    assert (checkout / ".venv" / "mine").exists()
    assert len(enter(checkout)) == 1  # nothing is lacking any more


def test_one_that_the_scripts_made_elsewhere_is_made_anew(checkout: Path) -> None:
    (checkout / ".venv" / "root").write_text("/where/it/was")
    made = ["python3", "-m", "venv", "--clear", str(checkout / ".venv")]
    fake = checkout / "bin"
    fake.mkdir()
    (fake / "python3").write_text(f'#!/bin/sh\necho "python3 $@" >> {checkout}/made\n')
    (fake / "python3").chmod(0o755)
    run(checkout, str(fake))
    assert " ".join(made) in (checkout / "made").read_text()
