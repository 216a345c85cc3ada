"""What a broker is given: its disk, its tables in shared memory, and whom it has rings with."""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from shmbroker.broker.disk_reserve import Space
    from shmbroker.broker.flusher import Flushing
    from shmbroker.ipc.passed_files import FileTable
    from shmbroker.ipc.peer import Peer
    from shmbroker.log.log_directory import LogDirectory
    from shmbroker.shm.latencies import Latencies
    from shmbroker.shm.positions import PositionTable, SiblingPositions
    from shmbroker.shm.standing import StandingAnswers


class Disk(NamedTuple):
    """What a broker writes to."""

    log_directory: LogDirectory
    flusher: Flushing
    space: Callable[[], Space]
    """Room on the disk of the log directory now; OSError where it can't be looked at."""
    tier_cache: str
    """Directory for pieces of remote segments."""


class Tables(NamedTuple):
    """What a broker keeps in shared memory."""

    positions: PositionTable
    standing: StandingAnswers
    sibling_positions: Mapping[int, SiblingPositions]
    """The positions of the siblings, by broker id."""
    latencies: Latencies


class Peers(NamedTuple):
    """Whom a broker has rings with, controllers apart: those are the link's."""

    gateways: Sequence[Peer]
    siblings: Mapping[int, Peer]
    """The other brokers, by id."""
    cleaner: Peer | None
    tier: Peer | None
    files: Mapping[int, FileTable]
    """Descriptors that siblings have passed, by broker id."""
    passing: Mapping[int, socket.socket]
    """Where descriptors go to gateways and siblings, by slot."""
    wake_cleaner: Callable[[], None]
    """Have the supervisor look whether a cleaner is wanted."""
