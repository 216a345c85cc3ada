"""`shmbroker systemd install` and `uninstall`: the broker as a service of a machine or of a user.

    files_of     where each file goes, with which text: pure
    complaint    why it can't be installed from here: pure, of what was looked at
    install      writes them, makes user and group, has systemd read them
    uninstall    takes away what install wrote, and nothing else: data and settings stay

The files are those of `systemd/` in a checkout, and of `share/shmbroker/systemd` of the environment
that the package is installed into. What is changed in them: the path of the command, and for a user
what only a machine's service has. Settings in /etc/shmbroker are written once and never again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import click

import shmbroker
from shmbroker.cli.hints import HintingGroup
from shmbroker.cli.outcome import CommandFault

COMMAND = "/opt/shmbroker/bin/shmbroker"
"""The command's path, as the files in `systemd/` say it."""
MARK = "# Installed by `shmbroker systemd install`"
"""How a file begins that may be replaced, and taken away."""
SOURCE = "systemd"

_ETC = "/etc/shmbroker"
_SYSTEM_UNITS = "/etc/systemd/system"
_JOBS = ("shmbroker-ingest@.service", "shmbroker-pipeline@.service")
_SYSTEM_FILES = {
    "shmbroker.service": f"{_SYSTEM_UNITS}/shmbroker.service",
    "shmbroker.socket": f"{_SYSTEM_UNITS}/shmbroker.socket",
    **{name: f"{_SYSTEM_UNITS}/{name}" for name in _JOBS},
    "log-dirs.conf.example": f"{_SYSTEM_UNITS}/shmbroker.service.d/log-dirs.conf.example",
    "archive.conf.example": f"{_SYSTEM_UNITS}/shmbroker.service.d/archive.conf.example",
    "replicas.conf.example": f"{_SYSTEM_UNITS}/shmbroker.socket.d/replicas.conf.example",
    "shmbroker.sysusers": "/etc/sysusers.d/shmbroker.conf",
    "shmbroker.tmpfiles": "/etc/tmpfiles.d/shmbroker.conf",
    "shmbroker.toml": f"{_ETC}/shmbroker.toml",
    "environment": f"{_ETC}/environment",
}
_USER_FILES = ("shmbroker.service", "shmbroker.socket", "shmbroker.toml", "environment")
_SETTINGS = ("shmbroker.toml", "environment")
_SETTINGS_MODE = 0o640
_HIDDEN = ("/root", "/home", "/run/user", "/tmp", "/var/tmp")
"""What a service doesn't see (ProtectHome, PrivateTmp)."""
_FOR_MACHINES = re.compile(
    r"^(User|Group|StateDirectory|StateDirectoryMode|CapabilityBoundingSet|AmbientCapabilities"
    r"|Protect\w+|Private\w+|RemoveIPC|MemoryMax|MemoryLow|TasksMax|OOMPolicy)=.*\n",
    re.MULTILINE,
)
"""Lines of shmbroker.service that a user's manager can't do, or that are about another user."""
_NETWORK = re.compile(r"^(After|Wants)=network-online\.target.*\n", re.MULTILINE)
"""A user's manager knows no such target."""


class File(NamedTuple):
    """A file to be installed."""

    path: str
    text: str
    is_setting: bool
    """Written only where there is none: it is the reader's to change."""


class Installation(NamedTuple):
    """Where this program runs from."""

    command: str
    """How a unit starts it."""
    paths: tuple[str, ...]
    """What the command needs: itself, its interpreter, its packages; without links."""


def files_of(texts: dict[str, str], command: str, home: str = "") -> list[File]:
    """What is to be installed; with `home`, for the user whose it is."""
    if not home:
        return [
            File(path, _with_command(texts[name], command), name in _SETTINGS)
            for name, path in _SYSTEM_FILES.items()
        ]
    files = []
    for name in _USER_FILES:
        text = _with_command(texts[name], command).replace(_ETC, "%E/shmbroker")
        if name == "shmbroker.service":
            text = _NETWORK.sub("", _FOR_MACHINES.sub("", text))
            # Its data is where `serve` by hand has it.
            text = text.replace(" --data %S/shmbroker", "")
            text = text.replace("WantedBy=multi-user.target", "WantedBy=default.target")
        if name == "shmbroker.toml":
            text = text.replace("'shmbroker.data.access' = 'group'", "# …")
            text = text.replace("systemctl reload", "systemctl --user reload")
        folder = "shmbroker" if name in _SETTINGS else "systemd/user"
        files.append(File(f"{home}/.config/{folder}/{name}", text, name in _SETTINGS))
    return files


def _with_command(text: str, command: str) -> str:
    return text.replace(COMMAND, command)


def complaint(place: Installation, is_open: Sequence[tuple[str, bool]]) -> str:
    """Why a machine's service can't run from there; "" if it can. `is_open`: each directory on the
    way, and whether everybody may enter it."""
    advice = (
        "install it where a service can: python3 -m venv /opt/shmbroker, "
        f"/opt/shmbroker/bin/pip install it, then {COMMAND} systemd install"
    )
    for path in place.paths:
        for hidden in _HIDDEN:
            if Path(path).is_relative_to(hidden):
                return f"{path} is below {hidden}, which a service does not see: {advice}."
    for directory, may in is_open:
        if not may:
            return f"Other users may not enter {directory}, on the way to the command: {advice}."
    return ""


@click.group("systemd", cls=HintingGroup)
def command() -> None:
    """Run the broker as a service of systemd.

    \b
    shmbroker systemd install --dry-run      # what would be written and run
    sudo /opt/shmbroker/bin/shmbroker systemd install --now
    shmbroker systemd install --user --now   # without root, for yourself
    """


_user = click.option("--user", "is_user", is_flag=True, help="For yourself, without root.")
_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")


@command.command()
@_user
@_dry_run
@click.option("--now", "starts", is_flag=True, help="Enable it and start it as well.")
def install(is_user: bool, dry_run: bool, starts: bool) -> None:
    """Install units, a user and a group, and settings; again after an upgrade.

    Settings that are there stay as they are. So do drop-ins (systemctl edit shmbroker).

    \b
    shmbroker systemd install --dry-run
    shmbroker systemd install --now
    """
    place = _place()
    texts = {path.name: path.read_text() for path in _source().iterdir() if path.is_file()}
    files = files_of(texts, place.command, str(Path.home()) if is_user else "")
    if not dry_run:
        _refuse(is_user)
        if not is_user and (why := complaint(place, _entered(place.paths))):
            raise CommandFault(why)
        _refuse_strangers(files)
    for file in files:
        _write(file, dry_run)
    if not is_user:
        _run(["systemd-sysusers", _SYSTEM_FILES["shmbroker.sysusers"]], dry_run)
        _run(["systemd-tmpfiles", "--create", _SYSTEM_FILES["shmbroker.tmpfiles"]], dry_run)
        for name in _SETTINGS:
            _run(["chgrp", "shmbroker", _SYSTEM_FILES[name]], dry_run)
    systemctl = ["systemctl", *(["--user"] if is_user else [])]
    _run([*systemctl, "daemon-reload"], dry_run)
    enable = [*systemctl, "enable", "--now", "shmbroker.socket", "shmbroker.service"]
    if starts:
        _run(enable, dry_run)
    elif not dry_run:
        click.echo(f"Start it: {' '.join(enable)}")
        click.echo(f"After an upgrade: {' '.join(systemctl)} restart shmbroker")


@command.command()
@_user
@_dry_run
def uninstall(is_user: bool, dry_run: bool) -> None:
    """Stop the service and take away its units; data and settings stay.

    \b
    shmbroker systemd uninstall --dry-run
    """
    texts = {path.name: path.read_text() for path in _source().iterdir() if path.is_file()}
    files = files_of(texts, COMMAND, str(Path.home()) if is_user else "")
    if not dry_run:
        _refuse(is_user)
    systemctl = ["systemctl", *(["--user"] if is_user else [])]
    if not is_user:
        jobs = [name.replace("@", "@*") for name in _JOBS]
        _run([*systemctl, "stop", *jobs], dry_run)
    installed = [file for file in files if not file.is_setting and _is_ours(file.path)]
    names = [Path(file.path).name for file in installed]
    units = [name for name in names if name in ("shmbroker.service", "shmbroker.socket")]
    if units:
        _run([*systemctl, "disable", "--now", *units], dry_run)
    for file in installed:
        _remove(file.path, dry_run)
    _run([*systemctl, "daemon-reload"], dry_run)
    kept = [file.path for file in files if file.is_setting and os.path.exists(file.path)]
    if not is_user:
        kept += [path for path in ("/var/lib/shmbroker", "/var/lib/shmbroker-jobs") if _is(path)]
    if kept:
        click.echo(f"Kept: {', '.join(kept)}")
    if not is_user:
        click.echo("Kept: the users shmbroker and shmbroker-jobs, and their groups (userdel)")


# ── what is looked at ───────────────────────────────────────────────────────────────────────────


def _source() -> Path:
    """The directory of the files."""
    beside = Path(shmbroker.__file__).parents[1] / SOURCE
    for found in (beside, Path(sys.prefix) / "share" / "shmbroker" / SOURCE):
        if (found / "shmbroker.service").exists():
            return found
    raise CommandFault(
        "The unit files are not here: they come with the wheel, or lie in systemd/ of a checkout."
    )


def _place() -> Installation:
    command = Path(sys.prefix) / "bin" / "shmbroker"
    named = str(command) if command.exists() else f"{sys.executable} -m shmbroker"
    package = str(Path(shmbroker.__file__).resolve().parent)
    real = str(Path(sys.executable).resolve())
    return Installation(
        named, (str(Path(sys.executable).absolute()), real, sys.base_prefix, package)
    )


def _entered(paths: Iterable[str]) -> list[tuple[str, bool]]:
    parents = dict.fromkeys(parent for path in paths for parent in reversed(Path(path).parents))
    return [(str(parent), bool(parent.stat().st_mode & 0o001)) for parent in parents]


def _is(path: str) -> bool:
    return os.path.lexists(path)


def _is_ours(path: str) -> bool:
    """Whether `install` wrote it; an example is known by its name alone."""
    try:
        text = Path(path).read_text()
    except OSError:
        return False
    return text.startswith(MARK) or path.endswith(".example")


def _refuse(is_user: bool) -> None:
    if not os.path.isdir("/run/systemd/system") or shutil.which("systemctl") is None:
        raise CommandFault(
            "systemd does not run this machine (there is no /run/systemd/system): run `shmbroker "
            "serve` by what does; --dry-run shows the files."
        )
    if not is_user and os.geteuid() != 0:
        raise CommandFault(
            "A service of the machine takes root: run it with sudo, or --user for one of your own."
        )


def _refuse_strangers(files: Iterable[File]) -> None:
    """Refuse to replace files that this command did not write, before anything is written."""
    for file in files:
        if not file.is_setting and _is(file.path) and not _is_ours(file.path):
            raise CommandFault(
                f"{file.path} is there, and this command did not write it: move it away, and put "
                "what you changed into a drop-in (systemctl edit shmbroker)."
            )


# ── what is done ────────────────────────────────────────────────────────────────────────────────


def _write(file: File, dry_run: bool) -> None:
    if file.is_setting and _is(file.path):
        click.echo(f"keep  {file.path}")
        return
    click.echo(f"write {file.path}")
    if dry_run:
        click.echo("".join(f"      {line}".rstrip() + "\n" for line in file.text.splitlines()))
        return
    path = Path(file.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
        path.chmod(_SETTINGS_MODE if file.is_setting else 0o644)
    except OSError as fault:
        raise CommandFault(f"{path} can't be written: {fault.strerror}.") from fault


def _remove(path: str, dry_run: bool) -> None:
    click.echo(f"remove {path}")
    if dry_run:
        return
    Path(path).unlink(missing_ok=True)
    if path.endswith(".example"):
        try:
            Path(path).parent.rmdir()
        except OSError:
            pass  # drop-ins of the reader's own, or another example


def _run(words: list[str], dry_run: bool) -> None:
    click.echo(f"run   {' '.join(words)}")
    if dry_run:
        return
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as fault:
        raise CommandFault(f"{words[0]} can't be run: {fault.strerror}.") from fault
    if done.returncode:
        why = " ".join((done.stderr or done.stdout).split())
        raise CommandFault(f"`{' '.join(words)}` failed: {why}")
