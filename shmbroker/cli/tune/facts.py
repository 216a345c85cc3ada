"""What is known of a host before advice is given: plain values. None is "not known"."""

from __future__ import annotations

from dataclasses import dataclass, field

SMALL, MANY, LARGE = "one at a time", "many", "large"
"""The loads of a trial: 100 B on one connection, each waiting for its answer; 100 B on four, 16 in
flight on each; 256 KiB on four, four in flight."""
LOADS = (SMALL, MANY, LARGE)


@dataclass(frozen=True)
class Candidate:
    """Settings that are tried beside those of now. pins: each worker is kept to one core, which no
    setting does."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    pins: bool = False


@dataclass
class Trial:
    """What came of one candidate, a figure for each round: requests a second by load."""

    candidate: Candidate
    rates: dict[str, list[float]] = field(default_factory=lambda: {load: [] for load in LOADS})


@dataclass
class Costs:
    """What parts cost, measured alone; rates in bytes a second."""

    wake_us: float | None = None
    """Microseconds from an eventfd written to the other process awake, median."""
    copy_rate: float | None = None
    crc_rate: float | None = None
    write_rate: float | None = None
    """The rate of writes to the data directory's disk, flush included."""
    flush_us: float | None = None
    """4 KiB appended and flushed, median."""
    cold_read_rate: float | None = None
    ahead_read_rate: float | None = None
    """The rate of cold reads with twice the read-ahead."""


@dataclass
class System:
    """What the kernel is told, of what matters here."""

    cores: int = 1
    memory_bytes: int | None = None
    dirty_ratio: int | None = None
    dirty_bytes: int | None = None
    huge_pages: str | None = None
    somaxconn: int | None = None
    open_files: int | None = None
    read_ahead_kb: int | None = None
    disk: str | None = None
    """The block device's name under /sys/block."""


@dataclass
class TuneFacts:
    """All of it. settings: what those that may be advised are now, as text."""

    system: System = field(default_factory=System)
    costs: Costs = field(default_factory=Costs)
    settings: dict[str, str] = field(default_factory=dict)
    baseline: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    cpu_us: dict[str, float] = field(default_factory=dict)
    """The CPU of a request under MANY, by role."""
