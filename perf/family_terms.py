"""What a model of the family is asked for, and what it answers: costs, host, load, outcome.

Time is in µs, of a core where it is a cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LARGE_FRAME_BYTES = 128 * 1024
"""From here on a network worker reads a frame into the connection's buffer at once."""
WRITTEN_BYTES = 32 * 1024
"""From here on a batch is written with `pwrite`."""
LARGE = 900 * 1024
"""A batch of about 1 MB, the largest that a client sends unless it is told otherwise."""


@dataclass(frozen=True)
class Costs:
    """What is done, in µs of a core; bytes in µs per KiB. wake: until a core that rests runs."""

    client_turn: float = 3.0
    client_request: float = 2.0
    """Between an answer and the next request, outside of both times."""
    client_send: float = 5.0
    """The call that sends it, within its time."""
    client_kib: float = 0.1
    network_turn: float = 5.0
    network_request: float = 9.0
    network_kib: float = 0.2
    network_large_kib: float = 0.13
    """Of frames that are read straight into a buffer of their own."""
    io_turn: float = 4.0
    io_request: float = 4.0
    io_kib: float = 0.5
    io_written_kib: float = 0.45
    """Of batches that are written, not stored into the mapped segment."""
    ring: float = 3.0
    switch: float = 1.0
    """Where a core takes another process than it had: what was in its caches."""
    sleep: float = 4.0
    wake: float = 15.0


def network_kib(costs: Costs, size: int) -> float:
    return costs.network_large_kib if size >= LARGE_FRAME_BYTES else costs.network_kib


def io_kib(costs: Costs, size: int) -> float:
    return costs.io_written_kib if size >= WRITTEN_BYTES else costs.io_kib


class Places(NamedTuple):
    """On which core each of three processes is, by number."""

    client: int
    network: int
    io: int

    @property
    def cores(self) -> int:
        return len(set(self))


class Host(NamedTuple):
    """Where a family runs. has_remote_clients: their CPU is another machine's.

    memory_gb_s, network_gbit_s: 0 is no limit.
    """

    cores: int
    network_workers: int = 1
    io_workers: int = 1
    has_remote_clients: bool = False
    network_gbit_s: float = 0.0
    memory_gb_s: float = 0.0
    places: Places | None = None
    """Of one client, network worker and I/O worker; None: each is wherever a core is free."""


class Load(NamedTuple):
    """Closed loops: connections that each keep `depth` batches of `bytes` in flight. A connection
    is one network worker's and, by its port, one I/O worker's, in turn."""

    bytes: int
    depth: int
    connections: int = 1
    think_us: float = 0.0
    """From an answer until the next request is at the host: a remote client, and the way."""


class Outcome(NamedTuple):
    """Of the requests after the first fifth. CPU in µs a request; use: share of what there is."""

    rate: float
    p50_us: float
    mean_us: float
    client_us: float
    network_us: float
    io_us: float
    use: dict[str, float]

    @property
    def full(self) -> str:
        """What is nearest to its limit. Who waits for memory is busy, too: so those go before."""
        for what in ("network", "memory"):
            if self.use[what] > 0.95:
                return what
        return max(self.use, key=lambda what: self.use[what])
