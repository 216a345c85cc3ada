"""What a quorum needs of its surroundings: chance, a log, a stored state, timeouts."""

from __future__ import annotations

from typing import NamedTuple, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from shmbroker.controller.raft.quorum_messages import SnapshotId
    from shmbroker.wire.primitives import Buffer

FETCH_WAIT_MS = 500
"""How long a leader holds a fetch that has nothing to be told (Kafka: MAX_FETCH_WAIT_MS)."""


class Timeouts(NamedTuple):
    """Time-outs in milliseconds; defaults as Kafka's settings controller.quorum.*."""

    election: int = 1000
    fetch: int = 2000
    request: int = 2000
    backoff_max: int = 1000


class Chance(Protocol):
    """A seeded `random.Random`."""

    def randrange(self, end: int) -> int: ...


class QuorumLog(Protocol):
    """What this needs of the log. Nothing here is durable before `flush`."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_start_epoch(self) -> int:
        """The epoch of the record before the log start: the last in the snapshot there."""

    @property
    def log_end_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot that the log begins with; 0 if
        none."""

    def append_leader_change(
        self, epoch: int, leader_id: int, voters: Iterable[int], granting: Iterable[int]
    ) -> None: ...
    def append_fetched(self, records: Buffer) -> None:
        """Records from a leader, at the log's end, with the epochs they have."""

    def flush(self) -> None: ...
    def read(self, offset: int) -> bytes:
        """Records from `offset` on, a bounded lot; something empty at the end."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch there is that is not above `epoch`, and where it ends; (-1, -1)
        if `epoch` is above all."""

    def truncate_to(self, offset: int) -> None:
        """Cut, durably."""

    def latest_snapshot(self) -> SnapshotId | None: ...
    def read_snapshot(self, snapshot: SnapshotId, position: int) -> tuple[int, bytes] | None:
        """(size of all, a piece from `position` on); None if there is no such snapshot."""

    def write_snapshot(self, snapshot: SnapshotId, position: int, data: bytes) -> None: ...
    def install_snapshot(self, snapshot: SnapshotId) -> None:
        """Take a snapshot that is written whole: the log goes on, empty, where it ends."""


class QuorumStore(Protocol):
    """The stored state: epoch, leader or -1, who was voted for or -1."""

    def read(self) -> tuple[int, int, int]: ...
    def write(self, epoch: int, leader_id: int, voted_id: int) -> None:
        """Durably."""
