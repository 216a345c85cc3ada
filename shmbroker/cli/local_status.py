"""What `shmbroker status` sees of a broker on this host besides what the cluster answers: the
family's processes. Out of its shared memory, so also of one that answers nothing.

    find       the family that listens where the command was pointed at, or works on a directory
    described  its processes, as JSON has them
    problems   what is wrong with them; pure
    report     the whole report out of a snapshot, for a cluster that does not answer
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from shmbroker.errors import Fault
from shmbroker.ipc.slots import CONTROLLER
from shmbroker.observe import attach
from shmbroker.observe.health import SILENT_S
from shmbroker.observe.snapshot import (
    HAS_FAILED,
    IS_FULL,
    NO_LEADER,
    RUNNING,
    STARTING,
    STOPPING,
    UNABLE,
    Broker,
    Process,
    Snapshot,
)
from shmbroker.wire.error_codes import KAFKA_STORAGE_ERROR

_HERE = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")
_STATES = {
    STARTING: "is starting",
    STOPPING: "is stopping",
    UNABLE: "can't boot; the log says why",
}


def find(addresses: Iterable[tuple[str, int]], data: str | None) -> attach.Attached | None:
    """The family that works on `data`, with attach's faults; without that, the one that listens at
    an address of this host, or None if there is none that we may look at."""
    if data is not None:
        return attach.attach(attach.find(data))
    ports = {port for host, port in addresses if host in _HERE}
    for each in attach.running() if ports else ():
        if each.data_directory is None:
            continue
        try:
            seen = attach.attach(each.pid)
        except Fault:
            continue
        if ports & {port for _, port in seen.about.addresses.values()}:
            return seen
        seen.close()
    return None


def servers_of(data: str) -> str:
    """The addresses of the family that works on a directory; attach's faults."""
    seen = attach.attach(attach.find(data))
    try:
        return servers(seen)
    finally:
        seen.close()


def servers(seen: attach.Attached) -> str:
    """The addresses of a family's brokers, as --bootstrap-server takes them."""
    return ",".join(
        f"{f'[{host}]' if ':' in host else host}:{port}"
        for host, port in seen.observer.addresses.values()
    )


def described(snapshot: Snapshot, pid: int) -> dict[str, Any]:
    """The family, for JSON and for `problems`."""
    disks = {process.number: process.disk for process in snapshot.of_role("io-worker")}
    return {
        "pid": pid,
        "version": snapshot.version,
        "data_directory": snapshot.data_directory,
        "started_ms": snapshot.started_ms,
        "up_s": round(snapshot.up_s, 1),
        "is_ready": snapshot.is_ready,
        "reasons": list(snapshot.reasons_not_ready),
        "disks": disks,
        "processes": [_process(process) for process in snapshot.processes if process.started_ms],
    }


def _process(process: Process) -> dict[str, Any]:
    usage = process.usage
    return {
        "process": process.title,
        "role": process.role,
        "id": process.number,
        "pid": process.pid or None,
        "state": process.state,
        "work": process.work or None,
        "restarts": process.restarts,
        "silence_s": None if process.silence_s is None else round(process.silence_s, 1),
        "started_ms": process.started_ms,
        "memory_bytes": None if usage is None else usage.anonymous_bytes,
        "cpu_s": None if usage is None else usage.cpu_s,
    }


def problems(family: dict[str, Any]) -> list[str]:
    """What is wrong with its processes, in words."""
    found = []
    for process in family["processes"]:
        title, state, silence_s = process["process"], process["state"], process["silence_s"]
        work = f": {process['work']}" if process["work"] else ""
        if state != RUNNING:
            found.append(f"{title} {_STATES.get(state, 'has ended and is started again')}{work}")
        elif silence_s is not None and silence_s > SILENT_S:
            found.append(f"{title} gives no sign of life for {silence_s:.0f} s{work}")
    found += [
        f"broker {number} refuses producers: its disk is full"
        for number, disk in family["disks"].items()
        if disk == IS_FULL
    ]
    # What is missing says the report of the cluster, too; this is for what nothing else shows.
    if not found and not family["is_ready"]:
        found += family["reasons"]
    return found


def report(snapshot: Snapshot) -> dict[str, Any]:
    """The report of a cluster, as `status.gather` makes it of what a cluster answers."""
    rows = [
        (f"{topic.name}-{row.number}", row) for topic in snapshot.topics for row in topic.partitions
    ]
    internal = sum(topic.name.startswith("__") for topic in snapshot.topics)
    groups = snapshot.groups
    told = [
        {"group": group.name, "state": group.state, "lag": group.lag} for group in groups.groups
    ]
    return {
        "cluster_id": snapshot.cluster_id,
        "brokers": [_broker(broker, snapshot) for broker in snapshot.brokers],
        "fenced_brokers": list(snapshot.fenced),
        "quorum": _quorum(snapshot),
        "topics": len(snapshot.topics) - internal,
        "internal_topics": internal,
        "partitions": len(rows),
        "offline": [name for name, row in rows if row.leader == NO_LEADER],
        "unopened": [],  # Only the broker itself says.
        "under_replicated": [name for name, row in rows if row.is_under_replicated],
        "replica_holders": sorted({each.broker for _, row in rows for each in row.replicas}),
        "groups": sorted(told, key=lambda row: (-int(str(row["lag"])), str(row["group"]))),
    }


def _broker(broker: Broker, snapshot: Snapshot) -> dict[str, Any]:
    sizes = [
        replica.size_bytes or 0
        for topic in snapshot.topics
        for row in topic.partitions
        for replica in row.replicas
        if replica.broker == broker.number
    ]
    disk = next(each.disk for each in snapshot.of_role("io-worker") if each.number == broker.number)
    try:
        room = os.statvfs(broker.log_directory)
        free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    except OSError:
        free = size = -1
    directory = {
        "path": broker.log_directory,
        "error_code": KAFKA_STORAGE_ERROR if disk == HAS_FAILED else 0,
        "partitions": len(sizes),
        "bytes": sum(sizes),
        "free_bytes": free,
        "disk_bytes": size,
    }
    return {
        "id": broker.number,
        "host": broker.host,
        "port": broker.port,
        "log_dirs": [directory],
    }


def _quorum(snapshot: Snapshot) -> dict[str, Any]:
    controllers = snapshot.controllers
    voters: Sequence[Process] = snapshot.of_role(CONTROLLER)
    return {
        "leader": controllers.active if controllers.is_active else None,
        "epoch": controllers.epoch if controllers.is_active else None,
        "voters": [process.number for process in voters],
        "absent": [process.number for process in voters if process.state != RUNNING],
        "behind": None,
    }
