"""A follower of the metadata log, for as long as it follows one leader: it pulls records, or a
snapshot where the leader has no such records any more, and cuts what the leader does not have.

Pure, as `quorum`: the log is written through.
"""

from __future__ import annotations

from shmbroker.controller.raft.quorum_messages import Fetch, FetchSnapshot
from shmbroker.controller.raft.quorum_needs import FETCH_WAIT_MS
from shmbroker.wire.error_codes import NONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.controller.raft.quorum_messages import (
        QuorumFetchAnswer,
        SnapshotAnswer,
        SnapshotId,
    )
    from shmbroker.controller.raft.quorum_needs import QuorumLog


class Following:
    """What is fetched, and how far."""

    __slots__ = ("_log", "_snapshot", "has_fetched")

    def __init__(self, log: QuorumLog) -> None:
        self._log = log
        self._snapshot: tuple[SnapshotId, int] | None = None
        """What is fetched instead of records, and how much of it is here."""
        self.has_fetched = False
        """Has fetched from the leader; before that this voter would vote for another."""

    def question(self, epoch: int, high_watermark: int) -> Fetch | FetchSnapshot:
        """What to ask the leader next."""
        if self._snapshot is not None:
            return FetchSnapshot(epoch, *self._snapshot)
        log = self._log
        return Fetch(epoch, log.log_end_offset, log.last_epoch, high_watermark, FETCH_WAIT_MS)

    def on_fetch_answer(self, answer: QuorumFetchAnswer, high_watermark: int) -> int:
        """Take what the leader says; the new high watermark."""
        self.has_fetched = True
        log = self._log
        if answer.snapshot is not None:
            self._snapshot = answer.snapshot, 0
            return high_watermark
        if answer.diverging is not None:
            self._truncate(*answer.diverging, high_watermark)
            return high_watermark
        if answer.records:
            try:
                log.append_fetched(answer.records)
            finally:
                log.flush()  # The next fetch acknowledges what a disk took before it was full, too.
        return max(high_watermark, min(answer.high_watermark, log.log_end_offset))

    def _truncate(self, epoch: int, end_offset: int, high_watermark: int) -> None:
        """Cut what the leader does not have; it is in no majority."""
        log = self._log
        own_epoch, own_end = log.end_offset_for_epoch(epoch)
        if own_epoch == epoch:
            own_end = min(own_end, end_offset)
        assert own_end >= high_watermark, "a committed record would be cut"
        log.truncate_to(own_end)

    def is_piece(self, answer: SnapshotAnswer) -> bool:
        """Whether that is the next piece of the snapshot; else Fetch tells which one there is by
        now."""
        if answer.error == NONE and (answer.snapshot, answer.position) == self._snapshot:
            return True
        self._snapshot = None
        return False

    def on_piece(self, answer: SnapshotAnswer, high_watermark: int) -> int:
        """Take the next piece of the snapshot, and go on where it ends if that was the last; the
        new high watermark."""
        assert self._snapshot is not None, "only asked for while there is one"
        snapshot, position = self._snapshot
        self._log.write_snapshot(snapshot, position, answer.data)
        position += len(answer.data)
        self._snapshot = snapshot, position
        if position >= answer.size:
            self._snapshot = None
            self._log.install_snapshot(snapshot)
            return max(high_watermark, snapshot.end_offset)
        if not answer.data:
            self._snapshot = None
        return high_watermark
