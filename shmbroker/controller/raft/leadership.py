"""A leader of the metadata log, for as long as its epoch: who has what, and what they are told.

* A fetch says how far the follower's log is durable: that is its acknowledgement. With its last
  epoch it shows where the logs part (KIP-595).
* high_watermark: one past the last record that a majority has made durable; only by a record of the
  leader's own epoch, as Raft wants it. It never falls.
* A fetch with nothing to be told waits here (`parked`) for records or for the high watermark.
* A leader that a majority has not fetched from for 1.5 fetch timeouts resigns (check-quorum): when
  that is, `resign_at` says.

Pure, as `quorum`: what is to be sent comes out as a list.
"""

from __future__ import annotations

from shmbroker.controller.raft.quorum_messages import QuorumFetchAnswer, SnapshotAnswer
from shmbroker.controller.raft.quorum_needs import FETCH_WAIT_MS
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire.error_codes import NONE, POSITION_OUT_OF_RANGE, SNAPSHOT_NOT_FOUND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.controller.raft.quorum_messages import Fetch, FetchSnapshot, SnapshotId
    from shmbroker.controller.raft.quorum_needs import QuorumLog
    from shmbroker.wire.primitives import Buffer

    Replies = list[tuple[int, Any, QuorumFetchAnswer]]
    """Answers that go out now: (voter, request id, answer)."""


class VoterProgress:
    """What the leader knows of a voter."""

    __slots__ = ("caught_up_at", "end_offset", "fetched_at", "is_told", "leader_end_offset")

    def __init__(self) -> None:
        self.end_offset = -1
        """The voter's log is durable up to here; -1 until it says so by a fetch in this epoch."""
        self.fetched_at = -1
        self.caught_up_at = -1
        """When it last had all there was."""
        self.leader_end_offset = -1
        """Where our log ended, when it fetched last."""
        self.is_told = False
        """The voter has fetched in this epoch, and lives since."""


class Leadership:
    """What the leader of an epoch knows of the voters, and its answers to their fetches."""

    __slots__ = (
        "_epoch",
        "_fetch_timeout",
        "_log",
        "_node_id",
        "epoch_start_offset",
        "high_watermark",
        "parked",
        "progress",
        "resign_at",
    )

    def __init__(
        self,
        now: int,
        node_id: int,
        voters: tuple[int, ...],
        epoch: int,
        log: QuorumLog,
        high_watermark: int,
        fetch_timeout: int,
    ) -> None:
        """`log`: before the LeaderChange of the epoch is appended."""
        self._node_id = node_id
        self._epoch = epoch
        self._log = log
        self._fetch_timeout = fetch_timeout
        self.high_watermark = high_watermark
        self.epoch_start_offset = log.log_end_offset
        self.progress = {voter: VoterProgress() for voter in voters}
        self.parked: dict[int, tuple[Any, Fetch, int]] = {}
        """Fetches that wait for news: request id, fetch, deadline."""
        self.resign_at = self._check_quorum_at(now)

    @property
    def is_established(self) -> bool:
        """Whether the epoch's first record is committed: then so is everything before it."""
        return self.high_watermark > self.epoch_start_offset

    # ── what it is told ─────────────────────────────────────────────────────────────────────────

    def on_fetch(self, now: int, voter: int, request_id: Any, fetch: Fetch) -> Replies:
        """Take a follower's acknowledgement, and give it what follows, or have it wait."""
        log = self._log
        progress = self.progress[voter]
        heard_at = progress.fetched_at
        self._hear(now, voter)
        if refusal := self._divergence(fetch):
            progress.end_offset = -1  # If it has acknowledged anything, it has lost that since.
            return [(voter, request_id, refusal)]
        if fetch.fetch_offset >= log.log_end_offset:
            progress.caught_up_at = now
        elif fetch.fetch_offset >= progress.leader_end_offset >= 0:
            progress.caught_up_at = heard_at
        progress.end_offset = fetch.fetch_offset
        progress.leader_end_offset = log.log_end_offset
        replies = self._advance()
        if self._has_news(fetch) or fetch.wait_ms <= 0:
            return [*replies, (voter, request_id, self._next(fetch))]
        if voter in self.parked:
            replies.append((voter, self.parked[voter][0], self._fetched(b"")))
        self.parked[voter] = request_id, fetch, now + min(fetch.wait_ms, FETCH_WAIT_MS)
        return replies

    def on_fetch_snapshot(self, now: int, voter: int, message: FetchSnapshot) -> SnapshotAnswer:
        """A piece of a snapshot."""
        self._hear(now, voter)
        found = self._log.read_snapshot(message.snapshot, message.position)
        if found is None:
            return SnapshotAnswer(SNAPSHOT_NOT_FOUND, self._epoch, self._node_id)
        size, data = found
        if not 0 <= message.position < size:
            return SnapshotAnswer(POSITION_OUT_OF_RANGE, self._epoch, self._node_id)
        return SnapshotAnswer(
            NONE, self._epoch, self._node_id, message.snapshot, size, message.position, data
        )

    def on_voter_lost(self, voter: int) -> None:
        """A voter has died; its successor is to be told who leads."""
        self.progress[voter].is_told = False

    def on_appended(self) -> Replies:
        """There are records: hand them to who waits for them."""
        return self._answer_parked()

    def on_flushed(self) -> Replies:
        """All that was appended is durable here."""
        self.progress[self._node_id].end_offset = self._log.log_end_offset
        return self._advance()

    def on_time(self, now: int) -> Replies:
        """Fetches that have waited as long as they may."""
        replies: Replies = []
        for voter, (request_id, _, deadline) in list(self.parked.items()):
            if now >= deadline:
                del self.parked[voter]
                replies.append((voter, request_id, self._fetched(b"")))
        return replies

    # ── what it is asked ────────────────────────────────────────────────────────────────────────

    def is_to_be_told(self, now: int, voter: int) -> bool:
        """Whether a voter may not know who leads: again who has not fetched for long, as it may
        have missed it, or have begun anew."""
        progress = self.progress[voter]
        return not progress.is_told or now - progress.fetched_at >= self._fetch_timeout // 2

    def by_end(self) -> tuple[int, ...]:
        """The others, whose log reaches furthest first."""
        others = (voter for voter in self.progress if voter != self._node_id)
        return tuple(sorted(others, key=lambda voter: -self.progress[voter].end_offset))

    def deadlines(self) -> list[int]:
        """When there is something to do."""
        return [self.resign_at, *(parked[2] for parked in self.parked.values())]

    # ── fetches ─────────────────────────────────────────────────────────────────────────────────

    def _divergence(self, fetch: Fetch) -> QuorumFetchAnswer | None:
        """What to tell a follower whose log doesn't lead to ours, or that we can't begin for."""
        log = self._log
        offset, start = fetch.fetch_offset, log.log_start_offset
        last_epoch = fetch.last_fetched_epoch
        if start and (
            offset < start
            or last_epoch < log.log_start_epoch
            or (offset == start and last_epoch != log.log_start_epoch)
        ):
            # Where such a log parts from ours is not to be seen any more.
            return self._fetched(b"", snapshot=log.latest_snapshot())
        epoch, end_offset = log.end_offset_for_epoch(last_epoch)
        if epoch == last_epoch and offset <= end_offset:
            return None
        return self._fetched(b"", diverging=(epoch, end_offset))

    def _has_news(self, fetch: Fetch) -> bool:
        return (
            fetch.fetch_offset < self._log.log_end_offset
            or fetch.high_watermark < self.high_watermark
        )

    def _next(self, fetch: Fetch) -> QuorumFetchAnswer:
        """What follows on what a follower has."""
        has_more = fetch.fetch_offset < self._log.log_end_offset
        return self._fetched(self._log.read(fetch.fetch_offset) if has_more else b"")

    def _fetched(
        self,
        records: Buffer,
        diverging: tuple[int, int] | None = None,
        snapshot: SnapshotId | None = None,
    ) -> QuorumFetchAnswer:
        return QuorumFetchAnswer(
            NONE, self._epoch, self._node_id, self.high_watermark, diverging, snapshot, records
        )

    def _answer_parked(self) -> Replies:
        """Fetches that waited for records, or for the high watermark."""
        replies: Replies = []
        for voter, (request_id, fetch, _) in list(self.parked.items()):
            if self._has_news(fetch):
                del self.parked[voter]
                replies.append((voter, request_id, self._next(fetch)))
        return replies

    # ── the majority ────────────────────────────────────────────────────────────────────────────

    @property
    def _majority(self) -> int:
        return len(self.progress) // 2 + 1

    def _hear(self, now: int, voter: int) -> None:
        """A voter is there; when a majority was heard since, the leader goes on."""
        progress = self.progress[voter]
        progress.is_told = True
        progress.fetched_at = now
        heard = sorted(
            (each.fetched_at for other, each in self.progress.items() if other != self._node_id),
            reverse=True,
        )
        since = heard[self._majority - 2]
        if since >= 0:
            self.resign_at = self._check_quorum_at(since)

    def _check_quorum_at(self, now: int) -> int:
        return NEVER_MS if len(self.progress) == 1 else now + self._fetch_timeout * 3 // 2

    def _advance(self) -> Replies:
        """Move the high watermark to what a majority has, if that is of this epoch."""
        ends = sorted((each.end_offset for each in self.progress.values()), reverse=True)
        majority_end = ends[self._majority - 1]
        if majority_end > self.high_watermark and majority_end > self.epoch_start_offset:
            self.high_watermark = majority_end
            return self._answer_parked()
        return []
