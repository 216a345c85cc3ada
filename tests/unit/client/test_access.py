"""Why a broker's file can't be opened, and what would let this user: by modes and groups."""

import grp
import os
import stat
from pathlib import Path

import pytest

from shmbroker.client.reader import access


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a socket, to be looked at as a user who is neither owner nor root."""
    bits = {os.R_OK: 4, os.W_OK: 2, os.X_OK: 1}
    groups: set[int] = set()

    def may(path: str, wanted: int, **_: object) -> bool:
        if not Path(path).is_relative_to(tmp_path):
            return True
        found = os.stat(path)
        mode = stat.S_IMODE(found.st_mode) >> (3 if found.st_gid in groups else 0)
        return bool(mode & bits[wanted])

    monkeypatch.setattr(access.os, "access", may)
    monkeypatch.setattr(access.os, "geteuid", lambda: 65534)
    monkeypatch.setattr(access, "_groups", lambda: groups)
    monkeypatch.setattr(access, "user_name", {65534: "spark"}.get)
    data = tmp_path / "data"
    data.mkdir(0o750)
    (data / "control.sock").touch(0o660)
    (data / "control.sock").chmod(0o660)
    tmp_path.chmod(0o755)
    data.chmod(0o750)
    return data


def _said(path: Path, needed: int = os.W_OK) -> str:
    return str(access.forbidden(str(path), "open", needed))


def test_who_is_not_in_the_group_is_told_to_join_it(data: Path) -> None:
    group = access.group_name(data.stat().st_gid)
    assert f"not in the group {group}; usermod -aG {group} spark" in _said(data / "control.sock")


def test_who_has_joined_since_is_told_to_log_in_anew(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = grp.getgrgid(data.stat().st_gid)
    joined = grp.struct_group((real.gr_name, "x", real.gr_gid, ["spark"]))
    monkeypatch.setattr(access.grp, "getgrgid", lambda _number: joined)
    assert "but this process began before; log in anew" in _said(data / "control.sock")


def test_what_no_group_may_enter_is_named_with_its_mode(data: Path) -> None:
    data.chmod(0o700)
    said = _said(data / "control.sock")
    assert f"{data} has the mode 0700" in said
    assert "shmbroker.data.access=group" in said


def test_a_file_is_named_where_its_directory_is_open(data: Path) -> None:
    data.chmod(0o755)
    log = data / "0.log"
    log.touch()
    log.chmod(0o600)
    assert f"{log} has the mode 0600" in _said(log, os.R_OK)


def test_what_is_open_after_all_is_told_plainly(data: Path) -> None:
    """As where a sandbox forbids it, and no mode."""
    data.chmod(0o755)
    (data / "control.sock").chmod(0o666)
    assert "user spark may not open" in _said(data / "control.sock")
