"""What the checks look at: plain values, read once by `gather`. None is "not known"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Value = TypeVar("Value")


def or_none(read: Callable[[], Value]) -> Value | None:
    """What `read` finds; None where that is not there, not allowed or not what it should be."""
    try:
        return read()
    except (OSError, ValueError, IndexError, KeyError, AttributeError):
        return None


@dataclass
class HostFacts:
    """The machine, its kernel and the limits of this user."""

    kernel: tuple[int, int] | None = None
    machine: str = ""
    cpus: int = 0
    load: float | None = None
    """The load of the last five minutes."""
    memory_bytes: int | None = None
    available_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """The limit of the control group, where there is one."""
    oom_kills: int | None = None
    swap_bytes: int | None = None
    swappiness: int | None = None
    overcommit: int | None = None
    huge_pages: str | None = None
    map_count_max: int | None = None
    open_files_max: int | None = None
    """The hard limit of one process."""
    files_max: int | None = None
    """The files that all processes together may open."""
    file_size_max: int | None = None
    """The hard limit of one file; None for no limit."""
    processes_max: int | None = None
    """None for no limit."""
    backlog_max: int | None = None
    port_first: int | None = None
    """The first of the ports that the kernel gives to outgoing connections."""
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    shm_kind: str | None = None
    shm_is_writable: bool | None = None
    shm_left: list[str] = field(default_factory=list)
    """Names of ours in /dev/shm."""
    dirty_ratio: int | None = None
    dirty_bytes: int | None = None
    dirty_expire_s: float | None = None
    io_pressure: float | None = None
    """Share of the last minute in which somebody waited for a disk, in percent."""
    memory_pressure: float | None = None
    governor: str | None = None
    idle_exit_us: int | None = None
    """The deepest C-state that is allowed."""
    clock_source: str | None = None
    is_clock_synced: bool | None = None


@dataclass
class SoftwareFacts:
    """This Python and what is installed beside us."""

    python: tuple[int, int] = (0, 0)
    is_optimised: bool = False
    kernels: str | None = None
    """The file of the compiled kernels."""
    versions: dict[str, str] = field(default_factory=dict)
    """{package: version} of what is installed."""
    serves: set[int] = field(default_factory=set)
    """Keys of the APIs that this version of shmbroker serves."""
    features: dict[str, tuple[int, int]] = field(default_factory=dict)
    """{feature: least and highest level} that it serves."""
    bootstrap: str | None = None
    """$SHMBROKER_BOOTSTRAP_SERVER."""


@dataclass
class Node:
    """One log directory."""

    path: str = ""
    node_id: int | None = None
    cluster_id: str | None = None
    fault: str = ""
    """Why its meta.properties can't be used."""
    refusal: str = ""
    """Why its disk refuses a flush."""
    partitions: int = 0
    marked: list[str] = field(default_factory=list)
    """Directories that end in -stray, -future."""
    unfinished: list[str] = field(default_factory=list)
    """Files .cleaned and .swap."""
    is_clean: bool | None = None
    """The broker was stopped in order."""
    has_metadata: bool = False
    device: int | None = None
    free_bytes: int | None = None
    disk_bytes: int | None = None
    inodes_free_share: float | None = None
    kind: str | None = None
    """The kind of the file system."""
    options: list[str] = field(default_factory=list)
    """Options that the file system is mounted with."""
    is_ours: bool = False
    """A directory of shmbroker's own: DATA/node-N."""
    records: dict[str, int] = field(default_factory=dict)
    """What its metadata log has: how many ACLs, passwords and tokens, by the record's name."""
    features: dict[str, int] = field(default_factory=dict)
    """Levels that its metadata log has."""
    log_directories: int = 0
    """The number of directories that the node registered with last, says its metadata log."""
    metadata_fault: str = ""
    """Why they can't be read."""
    topics: list[str] = field(default_factory=list)
    offsets_bytes: int = 0
    """The bytes of the logs of __consumer_offsets."""


@dataclass
class DirectoryFacts:
    """The data directory."""

    path: str = ""
    exists: bool = False
    is_file: bool = False
    """Something else than a directory has its name."""
    is_writable: bool = False
    mode: int | None = None
    owner: int | None = None
    user: int = 0
    is_temporary: bool = False
    """The directory lies where a restart of the machine clears up."""
    is_locked: bool | None = None
    holder: int | None = None
    """The process that has the lock, or had it last."""
    has_socket: bool = False
    quarantined: int = 0
    nodes: list[Node] = field(default_factory=list)
    """The nodes in it, or the directory itself where it is one."""
    reserve_bytes: int = 0


@dataclass
class ProcessFacts:
    """One process of a family."""

    pid: int
    role: str
    parent: int
    state: str = "S"
    user: int = 0
    resident_bytes: int = 0
    maps: int | None = None
    open_files: int | None = None
    open_files_max: int | None = None
    started_s: float = 0.0
    """Seconds from the machine's start to the process's."""
    is_replaced: bool = False
    """The interpreter that it runs was removed or replaced on the disk."""
    oom_adjustment: int = 0


@dataclass
class FamilyFacts:
    """Processes of shmbroker on this host: those of the family that runs on the directory, and
    those that have no supervisor; all where none runs there."""

    processes: list[ProcessFacts] = field(default_factory=list)
    twins: dict[int, str] = field(default_factory=dict)
    """Data directories of other families here that serve the same cluster, by their pids."""
    memory_limit_bytes: int | None = None
    """The least that the control groups of its supervisor allow."""
    oom_kills: int = 0
    """How many processes the kernel has ended because of that limit, says its control group."""


@dataclass
class ClusterFacts:
    """What answers at the address; `report` is what `shmbroker status` gathers."""

    address: str = ""
    refusal: str = ""
    """Why nothing is known of it."""
    is_local: bool = True
    is_denied: bool = False
    """It answers, and does not tell of itself to who asks."""
    report: dict[str, Any] = field(default_factory=dict)
    unreachable: list[str] = field(default_factory=list)
    """Addresses that it advertises and that do not answer from here."""
    settings: dict[str, str] = field(default_factory=dict)
    """The settings of its first broker, where it is one of ours."""
    certificates: dict[str, float | None] = field(default_factory=dict)
    """How many days that of each listener with TLS still holds; None: it shows none."""
    hanging: list[tuple[str, int, int]] | None = None
    """Transactions that nobody will end: (topic, partition, first offset)."""
    late_transactions: list[str] | None = None
    """Transactional ids that are under way for longer than their time-out."""
    store_path: str | None = None
    """The directory that tiered storage copies to, where it is on this host."""
    store_is_there: bool = False
    store_device: int | None = None


@dataclass
class SparkFacts:
    """PySpark and Java."""

    is_installed: bool = False
    is_found: bool = False
    """PySpark finds our data source by itself."""
    java: int | None = None
    java_home: str | None = None
    java_home_works: bool = True
    spark_home: str | None = None
    spark_home_version: str | None = None
    local_dir: str = ""
    local_free_bytes: int | None = None


@dataclass
class Facts:
    """All of it."""

    host: HostFacts = field(default_factory=HostFacts)
    software: SoftwareFacts = field(default_factory=SoftwareFacts)
    directory: DirectoryFacts = field(default_factory=DirectoryFacts)
    family: FamilyFacts = field(default_factory=FamilyFacts)
    cluster: ClusterFacts = field(default_factory=ClusterFacts)
    spark: SparkFacts = field(default_factory=SparkFacts)
