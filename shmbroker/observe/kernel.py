"""What the kernel says of a process of the family: CPU, memory, descriptors, disks."""

from __future__ import annotations

import os

from shmbroker.observe.snapshot import Usage

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# Fields of /proc/PID/stat behind the name of the program, which ends with ")".
_MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS, _THREADS = 9, 11, 12, 17


def usage(pid: int) -> Usage | None:
    """None if it has ended, or we may not look at it."""
    try:
        return _usage(f"/proc/{pid}")
    except (OSError, IndexError, ValueError, KeyError):
        return None


def _usage(root: str) -> Usage:
    with open(f"{root}/stat") as file:
        stat = file.read().rpartition(")")[2].split()
    status = _table(f"{root}/status")
    with open(f"{root}/limits") as file:
        limits = file.read()
    try:
        disk = _table(f"{root}/io")
    except OSError:  # a kernel that does not account for it
        disk = {}
    return Usage(
        int(stat[_USER_TICKS]) / TICKS_PER_S,
        int(stat[_SYSTEM_TICKS]) / TICKS_PER_S,
        _kib(status, "RssAnon"),
        _kib(status, "RssFile"),
        _kib(status, "RssShmem"),
        int(stat[_THREADS]),
        len(os.listdir(f"{root}/fd")),
        int(limits.partition("Max open files")[2].split()[0]),
        int(status["voluntary_ctxt_switches"]),
        int(status["nonvoluntary_ctxt_switches"]),
        int(stat[_MAJOR_FAULTS]),
        int(disk["read_bytes"]) if "read_bytes" in disk else None,
        int(disk["write_bytes"]) if "write_bytes" in disk else None,
    )


def _table(path: str) -> dict[str, str]:
    with open(path) as file:
        lines = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in lines}


def _kib(status: dict[str, str], name: str) -> int:
    """Bytes; a zombie has none."""
    return int(status[name].split()[0]) << 10 if name in status else 0
