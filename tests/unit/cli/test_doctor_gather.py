"""What the doctor reads out of /proc, of a directory, of a metadata log that Apache Kafka wrote."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from shmbroker.cli.doctor.facts import Node
from shmbroker.cli.doctor.gather import software
from shmbroker.cli.doctor.gather_directory import data_directory, read_metadata
from shmbroker.cli.doctor.gather_host import family, host, mount_of
from shmbroker.wire.metadata_records import encode_metadata_record
from tests.support.raw_client import batch_of

MOUNTS = """\
20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
21 20 0:5 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=64k
22 20 0:6 / /srv ro,relatime - nfs4 host:/srv rw
23 20 0:7 / /srv/a\\040b rw - xfs /dev/sdb rw,nobarrier
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "proc/sys/kernel/osrelease": "5.10.0-28-amd64\n",
        "proc/loadavg": "0.10 3.50 0.20 1/2 3\n",
        "proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 0 kB\n",
        "proc/vmstat": "nr_free_pages 1\noom_kill 4\n",
        "proc/sys/vm/swappiness": "60\n",
        "proc/sys/vm/max_map_count": "65530\n",
        "proc/sys/vm/dirty_expire_centisecs": "3000\n",
        "proc/sys/net/ipv4/ip_local_port_range": "1024\t60999\n",
        "proc/pressure/io": "some avg10=7.94 avg60=7.59 avg300=5.06 total=5\nfull avg10=0.00\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state0/latency": "2\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state0/disable": "0\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state1/latency": "900\n",
        "sys/devices/system/cpu/cpu0/cpuidle/state1/disable": "1\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "proc/self/mountinfo": MOUNTS,
        "dev/shm/shmbroker-7-rings": "",
        "dev/shm/other": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_host_is_read_as_the_kernel_writes_it(root: Path) -> None:
    found = host(root)
    assert found.kernel == (5, 10)
    assert found.load == 3.5
    assert (found.memory_bytes, found.available_bytes, found.swap_bytes) == (2 << 20, 1 << 20, 0)
    assert found.memory_limit_bytes is None
    assert (found.oom_kills, found.swappiness, found.map_count_max) == (4, 60, 65530)
    assert (found.dirty_expire_s, found.port_first, found.io_pressure) == (30.0, 1024, 7.59)
    assert (found.huge_pages, found.idle_exit_us) == ("madvise", 2)
    assert (found.shm_kind, found.shm_left) == ("tmpfs", ["shmbroker-7-rings"])


def test_what_is_hidden_is_not_known(tmp_path: Path) -> None:
    found = host(tmp_path)
    assert (found.kernel, found.load, found.memory_bytes, found.shm_bytes) == (None,) * 4
    assert family(tmp_path).processes == []


def test_nearest_mount_is_that_of_a_path(root: Path) -> None:
    assert mount_of("/srv/x", root) == ("nfs4", ["ro", "relatime", "rw"])
    assert mount_of("/srv/a b/c", root) == ("xfs", ["rw", "rw", "nobarrier"])
    assert mount_of("/srvx", root)[0] == "ext4"


def test_processes_are_known_by_their_title(root: Path) -> None:
    for pid, title in ((7, "shmbroker: io-worker-1"), (8, "bash"), (9, "shmbroker: supervisor")):
        path = root / "proc" / str(pid)
        (path / "fd").mkdir(parents=True)
        (path / "fd" / "0").touch()
        (path / "cmdline").write_bytes(title.encode() + b"\0x\0")
        fields = " ".join(["T", "9", *["0"] * 17, "500", "0", "3"])
        (path / "stat").write_text(f"{pid} (a) b) {fields}\n")
        (path / "maps").write_text("one\ntwo\n")
        (path / "limits").write_text("Max open files            1024      4096     files\n")
        (path / "exe").symlink_to("/usr/bin/python3 (deleted)")
    first, second = family(root).processes
    assert (first.pid, first.role, first.parent, first.state) == (7, "io-worker-1", 9, "T")
    assert (first.maps, first.open_files, first.open_files_max) == (2, 1, 1024)
    assert first.started_s == 500 / os.sysconf("SC_CLK_TCK")
    assert first.resident_bytes == 3 * os.sysconf("SC_PAGE_SIZE")
    assert first.is_replaced
    assert second.role == "supervisor"


@pytest.mark.parametrize(
    "holder, seen",
    [
        (None, [10, 11, 20, 21, 31]),
        (10, [10, 11, 31]),
        (21, [20, 21, 31]),
        (99, [10, 11, 20, 21, 31]),
    ],
)
def test_family_of_a_directory_is_that_of_its_lock_with_those_that_have_none(
    root: Path, holder: int | None, seen: list[int]
) -> None:
    """Two supervisors, each with a worker, and a worker whose supervisor is gone."""
    for pid, role, parent in (
        (10, "supervisor", 1),
        (11, "io-worker-1", 10),
        (20, "supervisor", 1),
        (21, "io-worker-1", 20),
        (31, "io-worker-1", 1),
    ):
        path = root / "proc" / str(pid)
        path.mkdir()
        (path / "cmdline").write_bytes(f"shmbroker: {role}\0".encode())
        fields = " ".join(["S", str(parent), *["0"] * 20])
        (path / "stat").write_text(f"{pid} (python) {fields}\n")
    assert [each.pid for each in family(root, holder).processes] == seen


@pytest.mark.parametrize(
    ("own", "above", "limit"),
    [("max", "max", None), ("2048", "max", 2048), ("max", "4096", 4096), ("2048", "1024", 1024)],
)
def test_limit_of_a_family_is_the_least_of_its_units(
    root: Path, own: str, above: str, limit: int | None
) -> None:
    path = root / "proc" / "10"
    path.mkdir()
    (path / "cmdline").write_bytes(b"shmbroker: supervisor\0")
    (path / "stat").write_text(f"10 (python) {' '.join(['S', '1', *['0'] * 20])}\n")
    (path / "cgroup").write_text("1:name=systemd:/other\n0::/system.slice/shmbroker.service\n")
    unit = root / "sys/fs/cgroup/system.slice/shmbroker.service"
    unit.mkdir(parents=True)
    (unit / "memory.max").write_text(f"{own}\n")
    (unit.parent / "memory.max").write_text(f"{above}\n")
    (unit / "memory.events").write_text("low 0\noom 9\noom_kill 2\noom_group_kill 0\n")
    found = family(root)
    assert (found.memory_limit_bytes, found.oom_kills) == (limit, 2)


def test_this_python_is_known() -> None:
    found = software()
    assert found.python >= (3, 11)
    assert {"click", "numpy"} <= set(found.versions)
    assert 0 in found.serves


# --- directories ---------------------------------------------------------------------------------


def make_node(path: Path, node_id: int, *partitions: str) -> None:
    path.mkdir(parents=True)
    (path / "meta.properties").write_text(
        f"version=1\nnode.id={node_id}\ncluster.id=c\ndirectory.id=ryUiUl060_517e4KOko6-w\n"
    )
    for name in partitions:
        (path / name).mkdir()


def test_file_in_the_place_of_a_directory_is_told_apart(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = data_directory(str(tmp_path / "file"), root)
    assert (found.is_file, found.exists, found.is_writable) == (True, False, False)


def test_directory_of_a_family_is_read_node_by_node(root: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data / "node-1", 1, "t-0", "t-1", "__consumer_offsets-3", f"u-0.{'a' * 32}-stray")
    make_node(data / "node-2", 5)
    (data / "node-1" / "t-0" / "00000000000000000000.log.swap").touch()
    (data / "node-1" / "__consumer_offsets-3" / "00000000000000000000.log").write_bytes(b"x" * 8192)
    (data / "quarantine" / "node-1").mkdir(parents=True)
    (data / "quarantine" / "node-1" / "a").touch()
    (data / ".supervisor.lock").touch()
    found = data_directory(str(data), root)
    assert (found.exists, found.is_locked, found.has_socket, found.quarantined) == (
        True,
        False,
        False,
        1,
    )
    first, second = found.nodes
    assert (first.node_id, first.partitions, first.is_clean) == (1, 3, False)
    assert first.topics == ["__consumer_offsets", "t"]
    assert first.unfinished == ["t-0/00000000000000000000.log.swap"]
    assert [name[-6:] for name in first.marked] == ["-stray"]
    assert first.offsets_bytes >= 8192
    assert (second.node_id, second.is_clean, second.is_ours) == (5, None, True)


def test_directory_of_apache_kafka_is_its_own_node(root: Path, tmp_path: Path) -> None:
    make_node(tmp_path / "logs", 7, "t-0", "__cluster_metadata-0")
    (node,) = data_directory(str(tmp_path / "logs"), root).nodes
    assert (node.node_id, node.partitions, node.has_metadata, node.is_ours) == (7, 1, True, False)


def test_disk_that_refuses_a_flush_is_told(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node(tmp_path / "logs", 7)
    assert data_directory(str(tmp_path / "logs"), root).nodes[0].refusal == ""

    def refuse(_fd: int) -> None:
        raise OSError(errno.EROFS, "words of the C library")

    monkeypatch.setattr(os, "fdatasync", refuse)
    (node,) = data_directory(str(tmp_path / "logs"), root).nodes
    assert node.refusal == "Read-only file system"


def test_lock_on_a_disk_that_takes_no_writes_is_seen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the broker that holds it would be taken for one that serves a copy."""
    lock = tmp_path / ".supervisor.lock"
    lock.write_text("7\n")
    real_open = os.open

    def read_only(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, "Read-only file system", path)
        return real_open(path, flags, *more)

    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(os, "open", read_only)
        found = data_directory(str(tmp_path), root)
    assert (found.is_locked, found.holder) == (True, 7)


def test_old_meta_properties_are_told(root: Path, tmp_path: Path) -> None:
    make_node(tmp_path / "logs", 7)
    (tmp_path / "logs" / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=c\n")
    (node,) = data_directory(str(tmp_path / "logs"), root).nodes
    assert "version 0 is not 1" in node.fault


def test_directory_that_is_not_there_has_the_disk_of_what_is_above(
    root: Path, tmp_path: Path
) -> None:
    found = data_directory(str(tmp_path / "a" / "b"), root)
    assert not found.exists
    assert found.nodes[0].disk_bytes


def acl(number: int) -> bytes:
    return encode_metadata_record(
        "AccessControlEntryRecord", 0, {"id": bytes([number] * 16), "resource_type": 2}
    )


def test_metadata_is_read_from_the_snapshot_on_and_removals_are_taken_off(tmp_path: Path) -> None:
    removal = encode_metadata_record("RemoveAccessControlEntryRecord", 0, {"id": bytes(16)})
    scram = encode_metadata_record("UserScramCredentialRecord", 0, {"name": "alice"})
    no_op = encode_metadata_record("NoOpRecord", 0, {})
    snapshot = tmp_path / "00000000000000000002-0000000001.checkpoint"
    snapshot.write_bytes(batch_of(acl(1), acl(2), acl(3)))
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(batch_of(acl(1), acl(2), removal, scram, no_op))
    node = Node()
    read_metadata(node, str(tmp_path))
    assert node.records == {"AccessControlEntryRecord": 2, "UserScramCredentialRecord": 1}
    snapshot.unlink()
    read_metadata(node, str(tmp_path))
    assert node.records == {"AccessControlEntryRecord": 1, "UserScramCredentialRecord": 1}


def test_features_and_log_directories_are_those_of_the_last_record(tmp_path: Path) -> None:
    def registered(node_id: int, directories: int) -> bytes:
        message = {
            "broker_id": node_id,
            "incarnation_id": bytes(16),
            "log_dirs": [bytes([number] * 16) for number in range(1, directories + 1)],
        }
        return encode_metadata_record("RegisterBrokerRecord", 3, message)

    def level(number: int) -> bytes:
        message = {"name": "metadata.version", "feature_level": number}
        return encode_metadata_record("FeatureLevelRecord", 0, message)

    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(batch_of(level(7), registered(1, 3), registered(2, 1), level(29)))
    nodes = Node(node_id=1), Node(node_id=2)
    for node in nodes:
        read_metadata(node, str(tmp_path))
    assert [node.log_directories for node in nodes] == [3, 1]
    assert nodes[0].features == {"metadata.version": 29}


def test_metadata_that_is_torn_is_a_fault_of_the_node(root: Path, tmp_path: Path) -> None:
    make_node(tmp_path / "logs", 7, "__cluster_metadata-0")
    log = tmp_path / "logs" / "__cluster_metadata-0" / "00000000000000000000.log"
    log.write_bytes(batch_of(b"nothing of metadata"))
    (node,) = data_directory(str(tmp_path / "logs"), root).nodes
    assert "metadata record" in node.metadata_fault
