"""A family at one moment, as frozen values: what metrics, `top`, `status` and a console show.

`Observer.look` makes it. Nothing in it is text for people, and nothing is a rate: for those, two
snapshots are compared (`rates`). `plain` turns it into what JSON has.

Units are in the names. A counter (`counted`, `Latency`, `written_bytes`, …) grows as long as the
family lives, whatever dies meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
"""What `json.dumps` takes."""

NONE, STARTING, RUNNING, STOPPING, UNABLE = "none", "starting", "running", "stopping", "unable"
"""States of a process: it does not run; it boots; it serves; it ends; it can't boot."""

HAS_ROOM, IS_FULL, HAS_FAILED = "room", "full", "failed"
"""What a broker's disk may be: FULL refuses producers, FAILED is offline."""

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Usage:
    """What the kernel says of a process."""

    cpu_user_s: float
    cpu_system_s: float
    anonymous_bytes: int
    """Memory of its own."""
    file_bytes: int
    """Resident pages of mapped files."""
    shared_bytes: int
    """Resident shared memory, which all processes of a family count."""
    threads: int
    open_files: int
    open_files_max: int
    switches_voluntary: int
    """Times that it slept."""
    switches_involuntary: int
    """Times that it was taken off its core."""
    major_faults: int
    """Page faults that waited for a disk."""
    disk_read_bytes: int | None
    """None where the kernel does not account for it."""
    disk_written_bytes: int | None

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU, ever."""
        return self.cpu_user_s + self.cpu_system_s

    @property
    def resident_bytes(self) -> int:
        """RSS."""
        return self.anonymous_bytes + self.file_bytes + self.shared_bytes


@dataclass(frozen=True, slots=True)
class Process:
    """A slot of the family, and the process in it; pid 0: there is none now."""

    slot: int
    role: str
    number: int
    """The broker's id of an I/O worker, the voter's of a controller."""
    title: str
    """The name that `ps` and the log show."""
    pid: int
    state: str
    """One of the states above; of the supervisor RUNNING."""
    restarts: int
    """Times that it has died and was replaced."""
    started_ms: int
    """When it was forked, in ms since 1970."""
    boot_s: float | None
    """Seconds from its fork until it served; None while it does not serve."""
    silence_s: float | None
    """Seconds since its last sign of life; idle processes sign once a second."""
    work: str
    """What it does that takes long, in words; "" for nothing."""
    connections: int
    """Open client connections, of a network worker."""
    metadata_lag: int | None
    """Committed metadata records that it has not applied, of the roles that say so."""
    disk: str
    """HAS_ROOM, IS_FULL or HAS_FAILED for an I/O worker."""
    counted: Mapping[str, int]
    """The process's counters and gauges (`shm.counters`) by name; {} for the supervisor."""
    usage: Usage | None
    """None if it has just ended, or belongs to somebody else."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring, by the titles of its ends."""

    writer: str
    reader: str
    used_bytes: int
    capacity_bytes: int
    written_bytes: int
    """Bytes written since both ends live."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took in one process: `counts[n]` took less than 2**n microseconds and not
    less than half of that, the last has the rest."""

    process: str
    name: str
    """An API, as Kafka spells it, or a stage of requests."""
    is_stage: bool
    sum_s: float
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Controllers:
    """The controllers, and the one that decides."""

    is_active: bool
    leader: int
    """The active controller, or who was that last; 0 before the first."""
    epoch: int
    committed: int
    """End of what is committed of the metadata log."""
    voters: int

    @property
    def active(self) -> int:
        """The active controller's id; -1 for none."""
        return self.leader if self.is_active else NO_LEADER


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of a partition."""

    broker: int
    end_offset: int | None
    """None where the broker has not said it (yet)."""
    lag: int | None
    """Records behind the leader; of the leader 0."""
    size_bytes: int | None
    """None where there are no files (yet)."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, as the metadata log and its replicas have it."""

    number: int
    replicas: Sequence[Replica]
    """The preferred leader first."""
    in_sync: Sequence[int]
    leader: int
    """NO_LEADER if it has none."""
    leader_epoch: int
    is_reassigning: bool
    start_offset: int | None
    """The leader's, as `end_offset`, `size_bytes` and `segments` are."""
    end_offset: int | None
    size_bytes: int | None
    segments: int | None
    read_bytes: int | None
    """Bytes of batches that clients were answered with, since the family began."""

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync; Kafka does not count those without a leader."""
        return self.leader != NO_LEADER and len(self.in_sync) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic."""

    name: str
    topic_id: str
    """The topic's id, as Kafka writes it."""
    is_internal: bool
    min_in_sync: int
    """min.insync.replicas"""
    partitions: Sequence[Partition]

    @property
    def size_bytes(self) -> int:
        """The bytes of all replicas."""
        return sum(
            replica.size_bytes or 0
            for partition in self.partitions
            for replica in partition.replicas
        )

    @property
    def records(self) -> int:
        """The sum of its log end offsets: what it has got, ever."""
        return sum(partition.end_offset or 0 for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class Broker:
    """An I/O worker as clients know it."""

    number: int
    host: str
    port: int
    log_directory: str
    is_registered: bool
    is_fenced: bool
    is_active: bool
    """Registered, not fenced, and not about to stop."""
    replicas: int
    leaders: int
    under_replicated: int
    """How many of the partitions that it leads, as for the next ones."""
    under_min_in_sync: int
    at_min_in_sync: int
    reassigning: int
    max_lag: int
    """Records behind the leader, of the replica where it is most."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is in one partition."""

    topic: str
    partition: int
    committed: int
    end_offset: int | None
    """None where it is not known, or the partition is gone."""

    @property
    def lag(self) -> int | None:
        """Records; None where the end is not known."""
        return None if self.end_offset is None else max(0, self.end_offset - self.committed)


@dataclass(frozen=True, slots=True)
class Group:
    """A group, as its coordinator describes it."""

    name: str
    kind: str
    """classic or consumer, in small letters."""
    state: str
    """The group's state, as Kafka names it, in small letters."""
    members: int
    coordinator: int
    lags: Sequence[Lag]

    @property
    def lag(self) -> int:
        """Records in all, of those that are known."""
        return sum(each.lag or 0 for each in self.lags)


@dataclass(frozen=True, slots=True)
class Groups:
    """What brokers said of groups when they were asked last."""

    age_s: float | None
    """Seconds since then; None: they were never asked."""
    failed: int
    """Questions that were not answered."""
    groups: Sequence[Group]


@dataclass(frozen=True, slots=True)
class Changes:
    """Times that something has happened to a partition, since the observer began."""

    shrinks: int
    """A replica left an ISR."""
    expands: int
    """A replica joined an ISR."""
    leaders: int
    """A partition got another leader, or none."""


@dataclass(frozen=True)
class Snapshot:
    """All of it."""

    version: str
    cluster_id: str
    data_directory: str
    at_ms: int
    """The time of the snapshot, in ms since 1970."""
    monotonic_s: float
    """The moment by a steady clock, for rates."""
    started_ms: int
    """When the family was started, as the wall clock had it then."""
    up_s: float
    """Seconds since then, by a steady clock."""
    processes: Sequence[Process]
    """Processes by slot; the supervisor is the first."""
    rings: Sequence[Ring]
    latencies: Sequence[Latency]
    controllers: Controllers
    brokers: Sequence[Broker]
    registered: Sequence[int]
    """Ids of the brokers that the metadata log has, those of former families too."""
    fenced: Sequence[int]
    """Brokers that are fenced: not at work."""
    topics: Sequence[Topic]
    """Topics by name."""
    groups: Groups
    changes: Changes
    reasons_not_ready: Sequence[str]
    """Sentences; empty: it is ready to serve."""
    took_s: float
    """Seconds that making this took."""

    @property
    def is_ready(self) -> bool:
        """Whether it serves, as /readyz has it."""
        return not self.reasons_not_ready

    def of_role(self, role: str) -> list[Process]:
        """The family's processes of one role."""
        return [process for process in self.processes if process.role == role]

    @cached_property
    def partition_count(self) -> int:
        """Partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics)


def plain(value: object) -> Plain:
    """A snapshot, or a part of one, for JSON: fields by their names, properties left out."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    assert isinstance(value, Sequence), f"{type(value).__name__} has no place in a snapshot"
    return [plain(each) for each in value]
