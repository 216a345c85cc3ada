"""The look from outside, which finds the families of this host and maps the memory of one, to read.

Rules of this file:
* Regions have no name (`shm.region`); their descriptors are open in the supervisor, and
  /proc/PID/fd leads to them for its user and for root. Nothing is asked of the family.
* Everything is mapped to be read only.
* A family may end, and another one begin in its directory: `Attached.has_ended` says so, and the
  memory of the old one stays readable meanwhile.
"""

from __future__ import annotations

import mmap
import os
import re
import select
from pathlib import Path
from typing import NamedTuple

from shmbroker.errors import ConfigFault, Fault
from shmbroker.ipc.slots import IO_WORKER, NETWORK_WORKER, Slot
from shmbroker.log.file_names import SUPERVISOR_LOCK
from shmbroker.observe.about import REGION, About
from shmbroker.observe.observer import Observer
from shmbroker.observe.shared_memory import Family
from shmbroker.shm.counters import Counters
from shmbroker.shm.latencies import table_bytes
from shmbroker.shm.positions import SiblingPositions
from shmbroker.shm.ring_layout import ring_bytes

TITLE = b"shmbroker: supervisor"
_LINK = re.compile(r"/dev/shm/shmbroker-[0-9a-f]+-[0-9a-f]+-(\w+) \(deleted\)")
_NEEDED = {REGION, "counters", "rings", "positions", "latencies"}


class NotRunning(Fault):
    """There is no family, or none any more."""


class NotAllowed(Fault):
    """The family belongs to another user."""


class RunningFamily(NamedTuple):
    """A family that runs."""

    pid: int
    """The process id of its supervisor."""
    user: int
    data_directory: str | None
    """None if we may not look into it."""
    cluster_id: str | None = None


class Attached:
    """A family that is looked at from outside; `close` after the last look."""

    def __init__(self, pid: int, about: About, observer: Observer, pidfd: int) -> None:
        self.pid = pid
        self.about = about
        self.observer = observer
        self._pidfd = pidfd

    def has_ended(self, wait_s: float = 0.0) -> bool:
        """Whether the supervisor is gone, after waiting for that for so long."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(wait_s * 1000))

    def close(self) -> None:
        """Look no more. What is mapped goes with the last that refers to it."""
        os.close(self._pidfd)


def running() -> list[RunningFamily]:
    """The families of this host, by their supervisors' pids."""
    found = []
    for name in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):
        pid = int(name)
        if not _is_supervisor(pid):
            continue
        try:
            user = os.stat(f"/proc/{pid}").st_uid
            about = _about(pid)
            found.append(RunningFamily(pid, user, about.data_directory, about.cluster_id))
        except NotAllowed:
            found.append(RunningFamily(pid, user, None))
        except (OSError, Fault):
            continue  # it ends, or another version runs it
    return found


def find(data_directory: str | None) -> int:
    """The pid of the supervisor that works on a directory; of the only one that runs, without.
    Faults: NotRunning; NotAllowed; ConfigFault if several run."""
    if data_directory is not None:
        try:
            pid = int((Path(data_directory) / SUPERVISOR_LOCK).read_text())
        except PermissionError as fault:
            raise NotAllowed(
                f"{fault.filename} can't be read: look at it as the broker's user, or as root"
            ) from fault
        except (OSError, ValueError):
            pid = 0
        if not pid or not _is_supervisor(pid):
            raise NotRunning(f"no broker runs on {data_directory}")
        return pid
    there = running()
    mine = [each for each in there if each.data_directory is not None] or there
    if not mine:
        raise NotRunning("no broker runs on this host")
    if len(mine) > 1:
        named = ", ".join(each.data_directory or f"that of pid {each.pid}" for each in mine)
        raise ConfigFault(f"several brokers run here: choose one with --data ({named}).")
    return mine[0].pid


def attach(pid: int) -> Attached:
    """Map the family of a supervisor. Faults: NotRunning, NotAllowed, ConfigFault for another
    version's."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as fault:
        raise NotRunning(f"the broker with pid {pid} has ended") from fault
    try:
        regions = _regions(pid, _NEEDED)
        about = About.from_bytes(regions[REGION])
        return Attached(pid, about, _observer(pid, about, regions), pidfd)
    except BaseException:
        os.close(pidfd)
        raise


def _observer(pid: int, about: About, regions: dict[str, memoryview]) -> Observer:
    slots = [Slot(index, role, number) for index, (role, number) in enumerate(about.slots)]
    counters = Counters.attach(regions["counters"])
    rings = {}
    at = 0
    for writer, reader, capacity in about.rings:
        rings[writer, reader] = regions["rings"][at : at + ring_bytes(capacity)]
        at += ring_bytes(capacity)
    workers = [slot for slot in slots if slot.role == NETWORK_WORKER]
    io_workers = [slot for slot in slots if slot.role == IO_WORKER]
    took = table_bytes()
    latencies = {
        slot.index: regions["latencies"][took * which : took * (which + 1)]
        for which, slot in enumerate(workers + io_workers)
    }
    size = len(regions["positions"]) // len(io_workers)
    positions = {
        slot.number: SiblingPositions(regions["positions"][size * which : size * (which + 1)])
        for which, slot in enumerate(io_workers)
    }
    begun = about.supervisor_pid, about.started_ms, about.supervisor_pid == pid
    family = Family(counters, slots, rings, latencies, *begun)
    return Observer(about, family, positions)


def _about(pid: int) -> About:
    return About.from_bytes(_regions(pid, {REGION})[REGION])


def _regions(pid: int, names: set[str]) -> dict[str, memoryview]:
    """What a supervisor has mapped, to be read, by the names of regions."""
    directory = f"/proc/{pid}/fd"
    found = {}
    try:
        for number in os.listdir(directory):
            try:
                match = _LINK.fullmatch(os.readlink(f"{directory}/{number}"))
            except FileNotFoundError:
                continue  # closed meanwhile
            if match is not None and match[1] in names:
                fd = os.open(f"{directory}/{number}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    mapped = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
                finally:
                    os.close(fd)
                found[match[1]] = memoryview(mapped)
    except PermissionError as fault:
        raise NotAllowed(
            f"the broker with pid {pid} belongs to {_user_of(pid)}: look at it as that user, "
            "or as root"
        ) from fault
    except OSError as fault:
        raise NotRunning(f"the broker with pid {pid} has ended") from fault
    if names - set(found):
        raise NotRunning(f"the broker with pid {pid} is only starting, or of another version")
    return found


def _user_of(pid: int) -> str:
    import pwd

    try:
        number = os.stat(f"/proc/{pid}").st_uid
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
    except OSError:
        return "another user"


def _is_supervisor(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0") == TITLE
    except OSError:
        return False
