"""Reads a data directory: its disk, its locks, its partitions, its metadata log. Changes nothing.

A lock that nobody holds is taken for a moment, to know that. A directory of Apache Kafka's is read
as ours is.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shmbroker import unix
from shmbroker.cli.doctor.facts import DirectoryFacts, Node, or_none
from shmbroker.cli.doctor.gather_host import mount_of
from shmbroker.errors import ConfigFault, Fault
from shmbroker.log.directory_lock import LOCK, lock_holder
from shmbroker.log.file_names import parse_partition_directory
from shmbroker.metadata.topic_names import METADATA_DIRECTORY, OFFSETS_TOPIC

TEMPORARY = ("/tmp", "/var/tmp", "/run", "/dev/shm")
RESERVE_SHARE = 100
RESERVE_MOST = 256 << 20
_REMOVED = {
    "RemoveAccessControlEntryRecord": "AccessControlEntryRecord",
    "RemoveUserScramCredentialRecord": "UserScramCredentialRecord",
    "RemoveDelegationTokenRecord": "DelegationTokenRecord",
}
SECURITY = tuple(_REMOVED.values())


def data_directory(path: str, root: Path = Path("/")) -> DirectoryFacts:
    """A data directory of ours, or a log directory of Apache Kafka's."""
    path = os.path.abspath(path)
    found = DirectoryFacts(path=path, user=os.geteuid())
    state = or_none(lambda: os.stat(path))
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    found.is_temporary = any(path == each or path.startswith(f"{each}/") for each in TEMPORARY)
    found.is_file = state is not None and not stat.S_ISDIR(state.st_mode)
    if state is None or found.is_file:
        found.nodes = [_on_disk(Node(path=path), there, root)]
        return found
    found.exists = True
    found.is_writable = os.access(path, os.W_OK | os.X_OK)
    found.mode, found.owner = state.st_mode & 0o7777, state.st_uid
    found.is_locked = or_none(lambda: _is_locked(f"{path}/.supervisor.lock"))
    found.has_socket = os.path.lexists(f"{path}/{unix.CONTROL_SOCKET}")
    found.quarantined = sum(len(names) for _, _, names in os.walk(f"{path}/quarantine"))
    is_node = os.path.lexists(f"{path}/meta.properties")
    below = sorted(str(each) for each in Path(path).glob("node-*") if each.is_dir())
    places = [path] if is_node or not below else below
    found.holder = or_none(lambda: int(Path(f"{path}/.supervisor.lock").read_text("utf-8")))
    if is_node and found.is_locked is None:
        found.holder = or_none(lambda: lock_holder(f"{path}/{LOCK}"))
        found.is_locked = None if found.holder is None else found.holder != 0
    found.nodes = [_node(place, root, is_ours=place != path) for place in places]
    least = min((node.disk_bytes or 0 for node in found.nodes), default=0)
    found.reserve_bytes = min(least // RESERVE_SHARE, RESERVE_MOST)
    return found


def _on_disk(node: Node, path: str, root: Path) -> Node:
    room = or_none(lambda: os.statvfs(path))
    if room is not None:
        node.free_bytes = room.f_bavail * room.f_frsize
        node.disk_bytes = room.f_blocks * room.f_frsize
        node.inodes_free_share = room.f_favail / room.f_files if room.f_files else None
    mount = or_none(lambda: mount_of(os.path.realpath(path), root))
    if mount is not None:
        node.kind, node.options = mount
    node.device = or_none(lambda: os.stat(path).st_dev)
    return node


def _node(path: str, root: Path, is_ours: bool) -> Node:
    from shmbroker.log.meta_properties import read_meta_properties

    node = _on_disk(Node(path=path, is_ours=is_ours), path, root)
    try:
        identity = read_meta_properties(f"{path}/meta.properties")
    except (ConfigFault, OSError) as fault:
        node.fault = str(fault)
        identity = None
    node.refusal = _refusal(f"{path}/meta.properties")
    if identity is not None:
        node.node_id, node.cluster_id = identity.node_id, identity.cluster_id
    names = or_none(lambda: os.listdir(path)) or []
    parsed = {name: parse_partition_directory(name) for name in names}
    held = {name: found for name, found in parsed.items() if found and name != METADATA_DIRECTORY}
    node.partitions = len(held)
    node.topics = sorted({topic for topic, _ in held.values()})
    node.marked = sorted(name for name in names if name.endswith(("-stray", "-future")))
    node.has_metadata = METADATA_DIRECTORY in names
    if held:
        node.is_clean = ".kafka_cleanshutdown" in names
    for name in held:
        for file in or_none(partial(_scanned, f"{path}/{name}")) or ():
            if file.name.endswith((".cleaned", ".swap")):
                node.unfinished.append(f"{name}/{file.name}")
            elif held[name][0] == OFFSETS_TOPIC and file.name.endswith(".log"):
                state = or_none(file.stat)
                node.offsets_bytes += state.st_blocks * 512 if state else 0
    if node.has_metadata:
        try:
            read_metadata(node, f"{path}/{METADATA_DIRECTORY}")
        except (Fault, OSError) as fault:
            node.metadata_fault = str(fault)
    return node


def _refusal(path: str) -> str:
    """Why the disk refuses to flush a file, of which nothing is to be written: only a file system
    that has given up does. "" if it does not, or the file can't be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        os.fdatasync(fd)
    except OSError as fault:
        return os.strerror(fault.errno or 0)
    finally:
        os.close(fd)
    return ""


def _scanned(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return list(entries)


def _is_locked(path: str) -> bool:
    """Whether somebody holds the lock; taken for a moment if nobody does."""
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def read_metadata(node: Node, directory: str) -> None:
    """What the checks want of a metadata log: its latest snapshot and what follows. StorageFault or
    ProtocolFault where it can't be read."""
    counts: Counter[str] = Counter()
    for name, message in _metadata_records(directory):
        taken = _REMOVED.get(name, name)
        if taken in SECURITY:
            counts[taken] += -1 if name != taken or message.get("remove") else 1
        elif name == "FeatureLevelRecord":
            node.features[message["name"]] = message["feature_level"]
        elif name == "RegisterBrokerRecord" and message["broker_id"] == node.node_id:
            node.log_directories = len(message["log_dirs"])
    node.records = {name: count for name, count in counts.items() if count > 0}


def _metadata_records(directory: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from shmbroker.records.batch import iterate_records
    from shmbroker.records.batch_layout import CONTROL_BIT, H_ATTRIBUTES
    from shmbroker.tools.log_files import read_batches
    from shmbroker.wire.metadata_records import decode_metadata_record

    names = sorted(os.listdir(directory))
    snapshots = [name for name in names if re.fullmatch(r"\d{20}-\d{10}\.checkpoint", name)]
    covered = int(snapshots[-1][:20]) if snapshots else 0
    logs = [name for name in names if re.fullmatch(r"\d{20}\.log", name)]
    for name in (*snapshots[-1:], *logs):
        for _, header, batch in read_batches(f"{directory}/{name}"):
            if header[H_ATTRIBUTES] & CONTROL_BIT:
                continue
            for offset, _, _, value, _ in iterate_records(batch):
                if value is not None and (name.endswith(".checkpoint") or offset >= covered):
                    kind, _, message = decode_metadata_record(value)
                    yield kind, message
