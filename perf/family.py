"""CPU and memory of a broker: of one process and all that descend from it."""

import os
from collections.abc import Iterator

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def members(pid: int) -> Iterator[int]:
    """The process and its living descendants."""
    yield pid
    for task in _list(f"/proc/{pid}/task"):
        for child in _read(f"/proc/{pid}/task/{task}/children").split():
            yield from members(int(child))


def cpu_s(pid: int) -> float:
    """User and system time so far, that of children that ended included."""
    ticks = 0
    for member in list(members(pid)):
        stat = _read(f"/proc/{member}/stat")
        if stat:
            ticks += sum(map(int, stat.rsplit(")", 1)[1].split()[11:15]))
    return ticks / _TICKS_PER_S


def own_cpu_s(pid: int) -> dict[tuple[int, int], float]:
    """(pid, when it started) → user and system time of that process alone, of each that lives."""
    found = {}
    for member in list(members(pid)):
        stat = _read(f"/proc/{member}/stat")
        if stat:
            fields = stat.rsplit(")", 1)[1].split()
            found[member, int(fields[19])] = sum(map(int, fields[11:13])) / _TICKS_PER_S
    return found


def cpu_by_role(pid: int) -> dict[str, float]:
    """Seconds that the living threads of each role ran, by the scheduler's own count (ns, where
    `stat` counts in ticks); a role is what `ps` shows without its number, else the name."""
    found: dict[str, float] = {}
    for member in list(members(pid)):
        role = role_of(member)
        for task in _list(f"/proc/{member}/task"):
            ran = _read(f"/proc/{member}/task/{task}/schedstat").split()
            if ran:
                found[role] = found.get(role, 0.0) + int(ran[0]) / 1e9
    return found


def role_of(pid: int) -> str:
    """ "io-worker" of "shmbroker: io-worker-1"; the name of any other program."""
    title = _read(f"/proc/{pid}/cmdline").split("\0")[0]
    if not title.startswith("shmbroker: "):
        return _read(f"/proc/{pid}/comm").strip()
    return title.removeprefix("shmbroker: ").rstrip("0123456789").rstrip("-")


def pss_without_files_mib(pid: int) -> float:
    """Proportional set size without file pages: anonymous memory and shared memory, each page of
    which counts once for the family. The page cache, which the kernel takes back, is left out."""
    return _rolled_up_mib(pid, {"Pss": 1, "Pss_File": -1})


def heap_mib(pid: int) -> float:
    """Anonymous memory alone: what each process has for itself."""
    return _rolled_up_mib(pid, {"Pss_Anon": 1})


def pss_mib(pid: int) -> float:
    """Proportional set size with all of its pages: those of files, too."""
    return _rolled_up_mib(pid, {"Pss": 1})


def _rolled_up_mib(pid: int, signs: dict[str, int]) -> float:
    """The sum of these lines of all members' smaps_rollup."""
    kib = 0
    for member in list(members(pid)):
        for line in _read(f"/proc/{member}/smaps_rollup").splitlines():
            name, _, rest = line.partition(":")
            if name in signs:
                kib += signs[name] * int(rest.split()[0])
    return round(kib / 1024, 1)


def scheduled_s(pid: int) -> tuple[float, float]:
    """Seconds that a process ran, and that it could have but waited for a core."""
    run, waited = (_read(f"/proc/{pid}/schedstat").split() or ["0", "0"])[:2]
    return int(run) / 1e9, int(waited) / 1e9


def descriptors(pid: int) -> int:
    """Open descriptors of them all."""
    return sum(len(_list(f"/proc/{member}/fd")) for member in list(members(pid)))


def maps(pid: int, containing: str = "") -> int:
    """Memory maps of them all, or those of files with this in their path."""
    return sum(
        containing in line
        for member in list(members(pid))
        for line in _read(f"/proc/{member}/maps").splitlines()
    )


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""
