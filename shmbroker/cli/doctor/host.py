"""Checks of the machine, its kernel and the limits of this user. Pure."""

from __future__ import annotations

from shmbroker.cli.doctor.facts import Facts
from shmbroker.cli.doctor.table import (
    Check,
    Result,
    fault,
    mib,
    named,
    note,
    ok,
    unknown,
    warning,
)

KERNEL_LEAST = (5, 14)
"""MADV_POPULATE_WRITE: pages ahead of the appends without a fault."""
OPEN_FILES_LEAST = 1040
OPEN_FILES_GOOD = 16_384
SHM_LEAST = 32 << 20
MAPS_LEAST = 65_530
"""The kernel's own default."""
MEMORY_LEAST = 512 << 20
AVAILABLE_SHARE = 0.1
DIRTY_BYTES_MOST = 8 << 30
PRESSURE_MOST = 20.0
IDLE_EXIT_US_MOST = 200
PROCESSES_LEAST = 256


def kernel(facts: Facts) -> Result:
    found = facts.host.kernel
    if found is None:
        return unknown("the kernel tells no version")
    saw = f"Linux {found[0]}.{found[1]}"
    if found < KERNEL_LEAST:
        return note(saw, "a kernel of at least 5.14 keeps appends fast")
    return ok(saw)


def machine(facts: Facts) -> Result:
    found = facts.host.machine
    if found not in ("x86_64", "AMD64"):
        return fault(found or "no name", "run it on x86-64: shared memory relies on its order")
    return ok(found)


def load(facts: Facts) -> Result:
    found, cpus = facts.host.load, facts.host.cpus
    if found is None:
        return unknown("no load average")
    saw = f"load {found:.1f} on {cpus} cores"
    if found > 2 * cpus:
        return warning(saw, "`top` shows what else runs here")
    return ok(saw)


def memory(facts: Facts) -> Result:
    total, available = facts.host.memory_bytes, facts.host.available_bytes
    if total is None or available is None:
        return unknown("no /proc/meminfo")
    saw = f"{mib(available)} of {mib(total)} available"
    if available < MEMORY_LEAST and available < AVAILABLE_SHARE * total:
        return warning(saw, "`ps aux --sort -rss | head` shows who has the memory")
    return ok(saw)


def memory_limit(facts: Facts) -> Result:
    found = facts.host.memory_limit_bytes
    if found is None:
        return ok("no limit of a control group")
    saw = f"a control group allows {mib(found)}"
    if found < MEMORY_LEAST:
        return warning(saw, "raise it: `docker update --memory 1g`, or MemoryMax= in a unit")
    return ok(saw)


def out_of_memory(facts: Facts) -> Result:
    found = facts.host.oom_kills
    if found is None:
        return unknown("the kernel does not count them")
    if found:
        return note(
            f"the kernel has killed {found} processes for want of memory since the machine started",
            "`journalctl -k | grep -i oom` says which",
        )
    return ok("no process was killed for want of memory")


def memory_pressure(facts: Facts) -> Result:
    found = facts.host.memory_pressure
    if found is None:
        return unknown("no /proc/pressure/memory")
    saw = f"{found:.0f} % of the last minute somebody waited for memory"
    return warning(saw, "give it more memory, or run less") if found > PRESSURE_MOST else ok(saw)


def io_pressure(facts: Facts) -> Result:
    found = facts.host.io_pressure
    if found is None:
        return unknown("no /proc/pressure/io")
    saw = f"{found:.0f} % of the last minute somebody waited for a disk"
    return warning(saw, "`iostat -x 1` shows which disk") if found > PRESSURE_MOST else ok(saw)


def swap(facts: Facts) -> Result:
    size, swappiness = facts.host.swap_bytes, facts.host.swappiness
    if size is None or swappiness is None:
        return unknown("no /proc/meminfo")
    if size and swappiness > 30:
        return note(f"swap, and vm.swappiness={swappiness}", "sysctl -w vm.swappiness=1")
    return ok(f"{mib(size)} of swap, vm.swappiness={swappiness}")


def overcommit(facts: Facts) -> Result:
    found = facts.host.overcommit
    if found is None:
        return unknown("no vm.overcommit_memory")
    if found == 2:
        return warning(
            "vm.overcommit_memory=2: a fork may be refused", "sysctl -w vm.overcommit_memory=0"
        )
    return ok(f"vm.overcommit_memory={found}")


def huge_pages(facts: Facts) -> Result:
    found = facts.host.huge_pages
    if found is None:
        return unknown("no transparent huge pages")
    if found == "always":
        return note(
            "transparent huge pages: always, which makes small processes larger",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return ok(f"transparent huge pages: {found}")


def map_count(facts: Facts) -> Result:
    found = facts.host.map_count_max
    if found is None:
        return unknown("no vm.max_map_count")
    saw = f"vm.max_map_count={found}"
    return warning(saw, "sysctl -w vm.max_map_count=262144") if found < MAPS_LEAST else ok(saw)


def open_files(facts: Facts) -> Result:
    found = facts.host.open_files_max
    if found is None:
        return unknown("no limit is told")
    saw = f"{found} open files for a process"
    fix = "ulimit -Hn 1048576, LimitNOFILE= in a unit, or --ulimit nofile=1048576 for a container"
    if found < OPEN_FILES_LEAST:
        return fault(f"{saw}; a start needs some {OPEN_FILES_LEAST}", fix)
    return note(f"{saw}: as many connections at most", fix) if found < OPEN_FILES_GOOD else ok(saw)


def all_files(facts: Facts) -> Result:
    found = facts.host.files_max
    if found is None:
        return unknown("no fs.file-max")
    saw = f"fs.file-max={found}"
    return warning(saw, "sysctl -w fs.file-max=1048576") if found < 65_536 else ok(saw)


def file_size(facts: Facts) -> Result:
    found = facts.host.file_size_max
    if found is None:
        return ok("no limit")
    saw = f"files of {mib(found)} at most"
    if found < 1 << 30:
        return fault(saw, "ulimit -Hf unlimited, or LimitFSIZE=infinity in a unit")
    return ok(saw)


def processes(facts: Facts) -> Result:
    found = facts.host.processes_max
    if found is None:
        return ok("no limit")
    saw = f"{found} processes and threads for this user"
    fix = "ulimit -Hu 4096, TasksMax= in a unit, or --pids-limit for a container"
    return warning(saw, fix) if found < PROCESSES_LEAST else ok(saw)


def backlog(facts: Facts) -> Result:
    found = facts.host.backlog_max
    if found is None:
        return unknown("no net.core.somaxconn")
    saw = f"net.core.somaxconn={found}"
    return note(saw, "sysctl -w net.core.somaxconn=4096") if found < 512 else ok(saw)


def ports(facts: Facts) -> Result:
    found = facts.host.port_first
    if found is None:
        return unknown("no net.ipv4.ip_local_port_range")
    saw = f"outgoing connections take ports from {found} on"
    if found <= 9092:
        return warning(
            f"{saw}: one may have a broker's",
            'sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
        )
    return ok(saw)


def shm_size(facts: Facts) -> Result:
    free = facts.host.shm_free_bytes
    if free is None:
        return fault("there is no /dev/shm", "mount -t tmpfs tmpfs /dev/shm")
    saw = f"{mib(free)} of {mib(facts.host.shm_bytes or 0)} free"
    if free < SHM_LEAST and not facts.family.processes:
        return fault(saw, "mount -o remount,size=256m /dev/shm, or --shm-size 256m for a container")
    return ok(saw)


def shm_mode(facts: Facts) -> Result:
    found = facts.host.shm_is_writable
    if found is None:
        return unknown("there is no /dev/shm")
    return ok("writable") if found else fault("not writable", "chmod 1777 /dev/shm")


def shm_kind(facts: Facts) -> Result:
    found = facts.host.shm_kind
    if found is None:
        return unknown("no mount is told")
    if found not in ("tmpfs", "ramfs"):
        return fault(f"{found}: it would be written to a disk", "mount -t tmpfs tmpfs /dev/shm")
    return ok(found)


def shm_left(facts: Facts) -> Result:
    found = facts.host.shm_left
    if found:
        return note(
            f"left by a start that was killed: {named(found)}",
            f"rm {' '.join(f'/dev/shm/{name}' for name in found[:5])}, or the next start does it",
        )
    return ok("no name of ours is left")


def dirty_pages(facts: Facts) -> Result:
    ratio, size, memory = (
        facts.host.dirty_ratio,
        facts.host.dirty_bytes,
        facts.host.memory_bytes,
    )
    if ratio is None or memory is None:
        return unknown("no vm.dirty_ratio")
    most = size or ratio * memory // 100
    saw = f"up to {mib(most)} may wait to be written"
    if most > DIRTY_BYTES_MOST:
        return note(
            f"{saw}: a disk may need minutes for it",
            "sysctl -w vm.dirty_bytes=1073741824 vm.dirty_background_bytes=268435456",
        )
    return ok(saw)


def dirty_age(facts: Facts) -> Result:
    found = facts.host.dirty_expire_s
    if found is None:
        return unknown("no vm.dirty_expire_centisecs")
    saw = f"what was appended waits {found:.0f} s at most before it is written"
    if found > 60:
        return note(
            f"{saw}, and is lost with the power", "sysctl -w vm.dirty_expire_centisecs=3000"
        )
    return ok(saw)


def governor(facts: Facts) -> Result:
    found = facts.host.governor
    if found is None:
        return ok("no frequency governor here")
    if found == "powersave":
        return note(
            "powersave: short requests wait for the clock to rise",
            "cpupower frequency-set -g performance",
        )
    return ok(found)


def idle_states(facts: Facts) -> Result:
    found = facts.host.idle_exit_us
    if found is None:
        return ok("no C-states here")
    saw = f"the deepest C-state takes {found} us to leave"
    if found > IDLE_EXIT_US_MOST:
        return note(saw, f"cpupower idle-set -D {IDLE_EXIT_US_MOST}")
    return ok(saw)


def clock_source(facts: Facts) -> Result:
    found = facts.host.clock_source
    if found is None:
        return unknown("no clock source is told")
    if found in ("hpet", "acpi_pm", "refined-jiffies", "jiffies"):
        return warning(
            f"{found}: each look at the clock is a system call",
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        )
    return ok(found)


def clock_sync(facts: Facts) -> Result:
    found = facts.host.is_clock_synced
    if found is None:
        return unknown("the kernel does not tell")
    if not found:
        return note(
            "nobody sets the clock: timestamps and retention go by it", "timedatectl set-ntp true"
        )
    return ok("it is kept in time")


CHECKS = [
    Check("host", name, about, look)
    for name, about, look in (
        ("kernel", "The kernel's version", kernel),
        ("machine", "x86-64: nothing else has the order of stores that is needed", machine),
        ("load", "The load of the last five minutes, for the number of cores", load),
        ("memory", "Available memory", memory),
        ("memory-limit", "The limit of the container or unit", memory_limit),
        ("out-of-memory", "Whether the kernel had to kill somebody", out_of_memory),
        ("memory-pressure", "Whether processes wait for memory", memory_pressure),
        ("io-pressure", "Whether processes wait for disks", io_pressure),
        ("swap", "Swap, and how eager the kernel is to use it", swap),
        ("overcommit", "Whether a fork may be refused", overcommit),
        ("huge-pages", "Transparent huge pages", huge_pages),
        ("map-count", "Maps that a process may have: each open segment is one", map_count),
        ("open-files", "Descriptors that a process may have", open_files),
        ("all-files", "Descriptors that all processes may have together", all_files),
        ("file-size", "The limit of file sizes", file_size),
        ("processes", "The limit of processes of this user", processes),
        ("backlog", "Connections that may wait to be accepted", backlog),
        ("ports", "Whether outgoing connections may take a broker's port", ports),
        ("shm-size", "Room in `/dev/shm`", shm_size),
        ("shm-mode", "The rights of `/dev/shm`", shm_mode),
        ("shm-kind", "Whether `/dev/shm` is memory", shm_kind),
        ("shm-left", "Shared memory that a killed start left behind", shm_left),
        ("dirty-pages", "How much may wait in the page cache to be written", dirty_pages),
        ("dirty-age", "How long it may wait there", dirty_age),
        ("governor", "The frequency governor", governor),
        ("idle-states", "How long a core needs to wake", idle_states),
        ("clock-source", "What the kernel reads the time from", clock_source),
        ("clock-sync", "Whether somebody keeps the clock in time", clock_sync),
    )
]
