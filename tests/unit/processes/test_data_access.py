"""Modes of what is there already: by the setting, and left alone without it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmbroker.processes import data_access

LOG = "t-0/00000000000000000000.log"
METADATA = "__cluster_metadata-0"


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory as another umask has left it."""
    node = tmp_path / "data" / "node-1"
    for directory in ("t-0", METADATA):
        (node / directory).mkdir(parents=True)
    (node / LOG).touch()
    (node / METADATA / "quorum-state").touch()
    (tmp_path / "elsewhere").touch(0o600)
    (node / "link").symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path / "data", node, node / "t-0", node / METADATA):
        place.chmod(0o700)
    (node / LOG).chmod(0o600)
    return tmp_path / "data"


def _modes(data: Path) -> list[int]:
    node = data / "node-1"
    places = (data, node, node / "t-0", node / LOG, node / METADATA)
    return [stat.S_IMODE(place.stat().st_mode) for place in places]


@pytest.mark.parametrize(
    ("access", "modes"),
    [
        ("umask", [0o700, 0o700, 0o700, 0o600, 0o700]),
        ("group", [0o750, 0o750, 0o750, 0o640, 0o700]),
        ("owner", [0o700, 0o700, 0o700, 0o600, 0o700]),
    ],
)
def test_what_is_there_gets_the_modes(data: Path, access: str, modes: list[int]) -> None:
    data_access.settle(access, str(data), [str(data / "node-1")])
    assert _modes(data) == modes
    assert stat.S_IMODE((data.parent / "elsewhere").stat().st_mode) == 0o600


def test_nobody_else_reads_what_an_earlier_version_left_open(data: Path) -> None:
    for place, mode in ((data, 0o755), (data / "node-1", 0o2755), (data / "node-1" / LOG, 0o644)):
        place.chmod(mode)
    data_access.settle("umask", str(data), [str(data / "node-1")])
    assert _modes(data) == [0o755, 0o2750, 0o700, 0o644, 0o700], "who can't enter can't read"


def test_owner_closes_what_the_group_could_enter(data: Path) -> None:
    for access in ("group", "owner"):
        data_access.settle(access, str(data), [str(data / "node-1")])
    assert _modes(data)[:2] == [0o700, 0o700]


@pytest.mark.parametrize(
    ("access", "file", "directory", "socket"),
    [
        ("umask", 0o640, 0o750, 0o600),
        ("group", 0o640, 0o750, 0o660),
        ("owner", 0o600, 0o700, 0o600),
    ],
)
def test_what_is_made_gets_the_modes(
    tmp_path: Path, access: str, file: int, directory: int, socket: int
) -> None:
    data_access.begin(access)
    (tmp_path / "f").touch()
    (tmp_path / "d").mkdir()
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == file
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == directory
    assert data_access.socket_mode(access) == socket


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: needs root")
def test_files_of_another_group_get_the_group(data: Path) -> None:
    os.chown(data / "node-1" / LOG, -1, 65534)
    data_access.settle("group", str(data), [str(data / "node-1")])
    assert (data / "node-1" / LOG).stat().st_gid == os.getegid()


def test_what_can_not_be_changed_is_counted(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str, _mode: int) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(data_access.os, "chmod", refuse)
    data_access.settle("group", str(data), [str(data / "node-1")])
    assert "4 files or directories belong to another user" in caplog.text
