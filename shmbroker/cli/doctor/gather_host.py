"""Reads the machine and our processes out of /proc and /sys, below `root`. Changes nothing.

What can't be read is left as not known. A process is ours by its title.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
from functools import partial
from pathlib import Path

from shmbroker.cli.doctor.facts import FamilyFacts, HostFacts, ProcessFacts, or_none
from shmbroker.ipc.slots import SUPERVISOR

TITLE = "shmbroker: "
_TIME_ERROR = 5
"""What adjtimex answers of a clock that nobody keeps in time."""
_TIMEX_BYTES = 512


class _Kernel:
    """What the kernel tells in files below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def text(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8").strip()

    def number(self, path: str) -> int | None:
        return or_none(lambda: int(self.text(path)))

    def version(self) -> tuple[int, int]:
        major, minor = re.findall(r"\d+", self.text("proc/sys/kernel/osrelease"))[:2]
        return int(major), int(minor)

    def memory(self) -> dict[str, int]:
        """The rows of meminfo, in bytes; none where it can't be read."""
        rows = or_none(lambda: re.findall(r"^(\w+):\s+(\d+)", self.text("proc/meminfo"), re.M))
        return {name: int(kib) << 10 for name, kib in rows or ()}

    def huge_pages(self) -> str:
        """The choice in brackets."""
        choices = self.text("sys/kernel/mm/transparent_hugepage/enabled")
        return choices.split("[")[1].split("]")[0]

    def pressure(self, what: str) -> float | None:
        """Share of the last minute in which somebody waited for it, in percent."""
        return or_none(
            lambda: float(self.text(f"proc/pressure/{what}").split("avg60=")[1].split()[0])
        )

    def idle_exit_us(self) -> int:
        """How long it takes to leave the deepest C-state that is allowed."""
        return max(
            int((state / "latency").read_text())
            for state in (self._root / "sys/devices/system/cpu/cpu0/cpuidle").iterdir()
            if (state / "disable").read_text().strip() == "0"
        )


def _limit(what: int) -> int | None:
    """The hard limit of this user; None for no limit."""
    hard = resource.getrlimit(what)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _shm_left(root: Path) -> list[str]:
    """Names of ours in /dev/shm."""
    return sorted(name for name in os.listdir(root / "dev/shm") if name.startswith("shmbroker-"))


def host(root: Path) -> HostFacts:
    """The machine, its kernel and the limits of this user."""
    kernel = _Kernel(root)
    text, number = kernel.text, kernel.number
    memory = kernel.memory()
    shm = or_none(lambda: os.statvfs(root / "dev/shm"))
    expire = number("proc/sys/vm/dirty_expire_centisecs")
    open_files = _limit(resource.RLIMIT_NOFILE)
    return HostFacts(
        kernel=or_none(kernel.version),
        machine=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        load=or_none(lambda: float(text("proc/loadavg").split()[1])),
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=number("sys/fs/cgroup/memory.max"),
        oom_kills=or_none(lambda: int(text("proc/vmstat").split("oom_kill ")[1].split()[0])),
        swap_bytes=memory.get("SwapTotal"),
        swappiness=number("proc/sys/vm/swappiness"),
        overcommit=number("proc/sys/vm/overcommit_memory"),
        huge_pages=or_none(kernel.huge_pages),
        map_count_max=number("proc/sys/vm/max_map_count"),
        open_files_max=1 << 30 if open_files is None else open_files,
        files_max=number("proc/sys/fs/file-max"),
        file_size_max=_limit(resource.RLIMIT_FSIZE),
        processes_max=None if os.geteuid() == 0 else _limit(resource.RLIMIT_NPROC),
        backlog_max=number("proc/sys/net/core/somaxconn"),
        port_first=or_none(lambda: int(text("proc/sys/net/ipv4/ip_local_port_range").split()[0])),
        shm_bytes=shm and shm.f_blocks * shm.f_frsize,
        shm_free_bytes=shm and shm.f_bavail * shm.f_frsize,
        shm_kind=or_none(lambda: mount_of("/dev/shm", root)[0]),
        shm_is_writable=shm and os.access(root / "dev/shm", os.W_OK | os.X_OK),
        shm_left=or_none(lambda: _shm_left(root)) or [],
        dirty_ratio=number("proc/sys/vm/dirty_ratio"),
        dirty_bytes=number("proc/sys/vm/dirty_bytes"),
        dirty_expire_s=None if expire is None else expire / 100,
        io_pressure=kernel.pressure("io"),
        memory_pressure=kernel.pressure("memory"),
        governor=or_none(lambda: text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        idle_exit_us=or_none(kernel.idle_exit_us),
        clock_source=or_none(
            lambda: text("sys/devices/system/clocksource/clocksource0/current_clocksource")
        ),
        is_clock_synced=or_none(_is_clock_synced),
    )


def _is_clock_synced() -> bool:
    answer = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if answer < 0:
        raise OSError("adjtimex is refused")
    return bool(answer != _TIME_ERROR)


def mount_of(path: str, root: Path = Path("/")) -> tuple[str, list[str]]:
    """The kind of file system that a path lies on, and its options; OSError if it isn't told."""
    best = ("", "", "")
    for line in (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        own, _, theirs = line.partition(" - ")
        point = own.split()[4].encode().decode("unicode_escape")
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best[0]):
            kind, _, super_options = theirs.split(" ", 2)
            best = point, kind, f"{own.split()[5]},{super_options}"
    if not best[0]:
        raise OSError(f"no mount of {path}")
    return best[1], best[2].split(",")


# --- processes -----------------------------------------------------------------------------------


def family(root: Path, holder: int | None = None) -> FamilyFacts:
    """The processes that have a title of ours: with the `holder` of a directory's lock, those of
    its family, and those without a supervisor."""
    pids = [name for name in or_none(lambda: os.listdir(root / "proc")) or () if name.isdecimal()]
    read = (or_none(partial(_process, root / "proc" / pid)) for pid in sorted(pids, key=int))
    found = [process for process in read if process is not None]
    supervisors = {each.pid for each in found if each.role == SUPERVISOR}
    ours = {
        each.pid if each.pid in supervisors else each.parent for each in found if each.pid == holder
    }
    if ours & supervisors:
        others = supervisors - ours
        found = [each for each in found if not others & {each.pid, each.parent}]
    told = FamilyFacts(found)
    for each in found:
        if each.role == SUPERVISOR:
            _look_at_limits(told, root, each.pid)
    return told


def _look_at_limits(family: FamilyFacts, root: Path, pid: int) -> None:
    """What the control groups (version 2) of a supervisor allow, from its own to the root's."""
    groups = or_none(lambda: (root / f"proc/{pid}/cgroup").read_text(encoding="utf-8")) or ""
    own = re.search(r"^0::(/.*)$", groups, re.M)
    if own is None:
        return
    mount = root / "sys/fs/cgroup"
    place = mount / own[1].lstrip("/")
    events = or_none(lambda: (place / "memory.events").read_text(encoding="utf-8")) or ""
    killed = re.search(r"^oom_kill (\d+)$", events, re.M)
    family.oom_kills += int(killed[1]) if killed else 0
    for group in (place, *place.parents):
        if mount not in (group, *group.parents):
            break
        limit = or_none(partial(_number_of, group / "memory.max"))
        if limit is not None:
            family.memory_limit_bytes = min(limit, family.memory_limit_bytes or limit)


def _number_of(path: Path) -> int:
    return int(path.read_text(encoding="utf-8"))


def _process(path: Path) -> ProcessFacts | None:
    title = (path / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    if not title.startswith(TITLE):
        return None
    fields = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    limits = or_none(lambda: (path / "limits").read_text(encoding="utf-8")) or ""
    open_files = re.search(r"^Max open files\s+(\d+)", limits, re.M)
    program = or_none(lambda: os.readlink(path / "exe")) or ""
    return ProcessFacts(
        pid=int(path.name),
        role=title.removeprefix(TITLE).split()[0],
        parent=int(fields[1]),
        state=fields[0],
        user=path.stat().st_uid,
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        maps=or_none(lambda: (path / "maps").read_bytes().count(b"\n")),
        open_files=or_none(lambda: len(os.listdir(path / "fd"))),
        open_files_max=int(open_files[1]) if open_files else None,
        started_s=int(fields[19]) / os.sysconf("SC_CLK_TCK"),
        is_replaced=program.endswith(" (deleted)"),
        oom_adjustment=or_none(lambda: int((path / "oom_score_adj").read_text())) or 0,
    )
