"""What the kernel says of each process of the family: CPU, memory, descriptors, disks."""

from __future__ import annotations

import os
from collections.abc import Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.metrics.samples import Samples

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MEMORY = {"RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shared"}
_SWITCHES = {
    "voluntary_ctxt_switches": "voluntary",
    "nonvoluntary_ctxt_switches": "involuntary",
}

# Fields of /proc/PID/stat behind the name of the program, which ends with ")".
_MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS, _THREADS = 9, 11, 12, 17


def gather(samples: Samples, pids: Iterable[tuple[str, int]]) -> None:
    """Of (title, pid); one that has just ended is left out."""
    for title, pid in pids:
        try:
            _one(samples, title, f"/proc/{pid}")
        except (OSError, IndexError, ValueError):
            continue


def _one(samples: Samples, title: str, root: str) -> None:
    with open(f"{root}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    seconds = "shmbroker_process_cpu_seconds_total"
    samples.put(seconds, int(fields[_USER_TICKS]) / TICKS_PER_S, title, "user")
    samples.put(seconds, int(fields[_SYSTEM_TICKS]) / TICKS_PER_S, title, "system")
    samples.put("shmbroker_process_page_faults_total", int(fields[_MAJOR_FAULTS]), title)
    samples.put("shmbroker_process_threads", int(fields[_THREADS]), title)
    with open(f"{root}/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in _MEMORY:
                kib = int(value.split()[0])
                samples.put("shmbroker_process_memory_bytes", kib << 10, title, _MEMORY[name])
            elif name in _SWITCHES:
                switches = "shmbroker_process_context_switches_total"
                samples.put(switches, int(value), title, _SWITCHES[name])
    samples.put("shmbroker_process_open_fds", len(os.listdir(f"{root}/fd")), title)
    with open(f"{root}/limits") as file:
        for line in file:
            if line.startswith("Max open files"):
                samples.put("shmbroker_process_max_fds", int(line.split()[3]), title)
    try:
        with open(f"{root}/io") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in ("read_bytes", "write_bytes"):
                    direction = name.removesuffix("_bytes")
                    series = "shmbroker_process_disk_bytes_total"
                    samples.put(series, int(value), title, direction)
    except OSError:
        pass  # a kernel that does not account for it
