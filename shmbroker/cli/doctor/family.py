"""Checks of the processes on this host. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shmbroker.cli.doctor.facts import Facts, ProcessFacts
from shmbroker.cli.doctor.host import MEMORY_LEAST
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
from shmbroker.ipc.slots import SUPERVISOR

YOUNG_S = 60.0
"""A child that much younger than its supervisor has followed another."""
LATE_ROLES = ("cleaner", "tier")
"""Roles that are forked when they are needed."""
RESIDENT_MOST = 2 << 30
SHARE_MOST = 0.8


def _processes(facts: Facts) -> Sequence[ProcessFacts]:
    return facts.family.processes


def _told(processes: Sequence[ProcessFacts]) -> str:
    return named(f"{each.role} ({each.pid})" for each in processes)


def running(facts: Facts) -> Result:
    supervisors = [each for each in _processes(facts) if each.role == SUPERVISOR]
    if not supervisors:
        return note("no broker runs on this host", "shmbroker serve")
    return ok(f"{len(supervisors)} families, {len(_processes(facts))} processes")


def orphans(facts: Facts) -> Result:
    supervisors = {each.pid for each in _processes(facts) if each.role == SUPERVISOR}
    found = [
        each
        for each in _processes(facts)
        if each.role != SUPERVISOR and each.parent not in supervisors
    ]
    if found:
        return fault(
            f"processes without their supervisor: {_told(found)}",
            f"kill {' '.join(str(each.pid) for each in found)}",
        )
    return ok("each has its supervisor")


def stopped(facts: Facts) -> Result:
    found = [each for each in _processes(facts) if each.state in "Tt"]
    if found:
        return fault(
            f"stopped by a signal or a debugger: {_told(found)}",
            f"kill -CONT {' '.join(str(each.pid) for each in found)}",
        )
    return ok("none is stopped")


def blocked(facts: Facts) -> Result:
    found = [each for each in _processes(facts) if each.state == "D"]
    if found:
        return warning(
            f"waits for a disk: {_told(found)}", f"cat /proc/{found[0].pid}/stack; iostat -x 1"
        )
    return ok("none waits for a disk")


def replaced(facts: Facts) -> Result:
    started = {each.pid: each.started_s for each in _processes(facts) if each.role == SUPERVISOR}
    found = [
        each
        for each in _processes(facts)
        if each.parent in started
        and not each.role.startswith(LATE_ROLES)
        and each.started_s > started[each.parent] + YOUNG_S
    ]
    if found:
        return note(
            f"has followed one that died: {_told(found)}",
            "look for `ended with` in the broker's log (`journalctl -u shmbroker`)",
        )
    return ok("all are as old as their supervisor")


def maps(facts: Facts) -> Result:
    most = facts.host.map_count_max
    counts = [(each.maps, each) for each in _processes(facts) if each.maps is not None]
    if not counts or most is None:
        return unknown("no process whose maps may be read")
    count, process = max(counts, key=lambda pair: pair[0])
    saw = f"{process.role} has {count} maps of {most}"
    if count > SHARE_MOST * most:
        return fault(saw, f"sysctl -w vm.max_map_count={4 * most}")
    return ok(saw)


def descriptors(facts: Facts) -> Result:
    shares = [
        (each.open_files / each.open_files_max, each)
        for each in _processes(facts)
        if each.open_files is not None and each.open_files_max
    ]
    if not shares:
        return unknown("no process whose descriptors may be counted")
    share, process = max(shares, key=lambda pair: pair[0])
    saw = f"{process.role} has {process.open_files} of {process.open_files_max} descriptors"
    if share > SHARE_MOST:
        return warning(saw, "LimitNOFILE=1048576 in the unit, or fewer connections")
    return ok(saw)


def resident(facts: Facts) -> Result:
    if not _processes(facts):
        return unknown("no process runs")
    largest = max(_processes(facts), key=lambda each: each.resident_bytes)
    saw = f"{largest.role} is the largest, with {mib(largest.resident_bytes)}"
    if largest.resident_bytes > RESIDENT_MOST:
        return warning(
            saw, f"py-spy dump --pid {largest.pid}, and a report: shmbroker doctor bundle"
        )
    return ok(saw)


def upgraded(facts: Facts) -> Result:
    found = [each for each in _processes(facts) if each.is_replaced]
    if found:
        return note(
            f"runs code that was replaced on the disk: {_told(found)}",
            "systemctl restart shmbroker, or stop and start it",
        )
    return ok("all run what is installed")


def users(facts: Facts) -> Result:
    found = {each.user for each in _processes(facts)}
    if found and facts.directory.user not in found:
        return note(
            f"the broker runs as user {named(sorted(found))}, you are {facts.directory.user}: "
            "Spark can't read its files",
            f"sudo -u '#{min(found)}' …, or let Spark fetch from the broker",
        )
    if 0 in found:
        return note(
            "the broker runs as root",
            "`shmbroker systemd install` makes a service with a user of its own",
        )
    return ok("the same user" if found else "no process runs")


def oom_order(facts: Facts) -> Result:
    values = {each.role: each.oom_adjustment for each in _processes(facts)}
    supervisor = values.pop(SUPERVISOR, None)
    if supervisor is None or not values:
        return unknown("no family runs")
    if supervisor > min(values.values()):
        return warning(
            "the supervisor would be killed before its children for want of memory",
            "start it without choom, and without OOMScoreAdjust= in the unit",
        )
    return ok("a child goes before the supervisor")


def memory_limit(facts: Facts) -> Result:
    found = facts.family
    limit = found.memory_limit_bytes
    if limit is None:
        return ok("no limit of a control group")
    saw = f"its control group allows {mib(limit)}"
    raise_it = "raise MemoryMax= (`systemctl edit shmbroker`), or the container's limit"
    if found.oom_kills:
        return warning(
            f"{saw}, for want of which the kernel has ended {found.oom_kills} processes", raise_it
        )
    return warning(saw, raise_it) if limit < MEMORY_LEAST else ok(saw)


CHECKS = [
    Check("family", name, about, look)
    for name, about, look in (
        ("running", "Whether a broker runs on this host", running),
        ("orphans", "Processes whose supervisor is gone", orphans),
        ("stopped", "Processes that a signal or debugger has stopped", stopped),
        ("blocked", "Processes that wait for a disk", blocked),
        ("replaced", "Processes that followed one that died", replaced),
        ("maps", "Maps of the largest process", maps),
        ("descriptors", "Descriptors of the process that has most", descriptors),
        ("resident", "Memory of the largest process", resident),
        ("upgraded", "Processes that run code that is no longer on the disk", upgraded),
        ("users", "The user that the broker runs as", users),
        ("oom-order", "Who goes first where memory runs out", oom_order),
        ("memory-limit", "The limit of the unit or container that it runs in", memory_limit),
    )
]
