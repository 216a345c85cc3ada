"""A voter at work: the state machine, its log on disk, and the links to the others.

    decision ─► append ─► hand it to the followers that wait ─► fdatasync ─► majority? ─► committed
                              └─► they append, fdatasync, fetch again: that acknowledges it

* `append` returns when a majority has it durably. It waits by serving the other voters and nobody
  else: decisions are taken one at a time, each from the image of all before. The only voter waits
  for nothing but its disk.
* NotControllerFault: this voter leads no more, or can't be sure that it does. What was appended may
  be committed by its successor all the same, as with Kafka; who asked has to look.
* `is_leading` only when the epoch's first record is committed: then so is everything before it.
"""

from __future__ import annotations

import logging
import os
from typing import Protocol

from shmbroker.controller.raft.metadata_log import MetadataLog
from shmbroker.controller.raft.quorum import LEADER, STATE_NAMES, Quorum
from shmbroker.controller.raft.quorum_messages import AnswerCame, NoAnswer, RequestCame
from shmbroker.controller.raft.quorum_needs import Timeouts
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.errors import Fault, StorageFault
from shmbroker.log.faults import DiskFullFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from shmbroker.clock import Clock
    from shmbroker.controller.raft.quorum_description import Replica
    from shmbroker.controller.raft.quorum_messages import Answer, News, Request
    from shmbroker.controller.raft.quorum_needs import Chance
    from shmbroker.log.config import LogConfig
    from shmbroker.metadata.record import MetadataRecord

logger = logging.getLogger(__name__)

WAIT_S = 0.1
"""Longest rest while a majority is waited for: signs of life go on meanwhile."""
DISK_RETRY_MS = 1000


class NotControllerFault(Fault):
    """Somebody else leads the metadata log, or nobody does."""


class Links(Protocol):
    """The way to the other voters: `voter_links`."""

    @property
    def has_news(self) -> bool:
        """Whether `take` has something to give though nobody wakes for it."""

    def send(self, voter: int, request_id: Any, message: Request | Answer, /) -> None:
        """A request to a voter; or an answer, to where the request with this id came from."""

    def take(self) -> list[News]:
        """What there is to tell the quorum."""

    def wait(self, timeout_s: float, /) -> None:
        """Wait until something is there to be taken, or the time is over. `Voter.append` waits so
        in the middle of a turn: others have turns meanwhile, and this voter has none."""

    def close(self) -> None: ...


class _Chance:
    """Chance for timeouts: numbers of the system's."""

    def randrange(self, end: int) -> int:
        return int.from_bytes(os.urandom(4), "little") % end


class Voter:
    """Make one with `open`, `start` it, then call `turn` often."""

    def __init__(self, log: MetadataLog, quorum: Quorum, links: Links | None, clock: Clock) -> None:
        self.clock = clock
        self.log = log
        self.quorum = quorum
        self.links = links
        self.node_id = quorum.node_id
        self.directory = log.directory
        self.on_wait: Callable[[], None] = _nothing
        """Called while `append` waits for the others."""
        self._fault: StorageFault | None = None
        """A fault of the disk: nothing is appended any more."""

    @classmethod
    def open(
        cls,
        node_directory: str,
        node_id: int,
        voters: Iterable[int] = (),
        links: Links | None = None,
        *,
        clock: Clock,
        chance: Chance | None = None,
        log_config: LogConfig | None = None,
        timeouts: Timeouts | None = None,
        others_epoch: int = -1,
    ) -> Voter:
        """Recover or create the log of a node; `voters` are all of them, else this one alone.

        others_epoch: the highest that other voters have stored while this one was a voter, too: if
        it has stored nothing, it has lost it.
        CorruptFault, StorageFault: as `MetadataLog.open`.
        """
        log = MetadataLog.open(node_directory, clock.now_ms, log_config)
        state = QuorumState(log.directory)
        all_voters = sorted(voters) or [node_id]
        if state.data_version == 0:
            state.voters = all_voters
        lost_epoch = -1 if state.is_found else others_epoch
        if lost_epoch >= 0:
            logger.warning(
                "the metadata log of this controller is gone: it has no vote until it has caught up"
            )
        quorum = Quorum(
            node_id,
            all_voters,
            log,
            state,
            chance or _Chance(),
            timeouts or Timeouts(),
            lost_epoch=lost_epoch,
        )
        return cls(log, quorum, links, clock)

    def start(self) -> None:
        """Begin: the only voter leads from here on. StorageFault."""
        self.quorum.start(self._now())
        self._send()

    # ── what it is ──────────────────────────────────────────────────────────────────────────────

    @property
    def is_leading(self) -> bool:
        """Whether all that is committed is known here and decisions can be taken."""
        leading = self.quorum.leading
        return leading is not None and leading.is_established

    @property
    def epoch(self) -> int:
        """The epoch of now: while it leads, the leader epoch of what is appended."""
        return self.quorum.epoch

    @property
    def leader_id(self) -> int:
        """The leader, as far as this voter knows; -1 if it does not."""
        return self.quorum.leader_id

    @property
    def committed_offset(self) -> int:
        """One past the last record that is committed: what may be read."""
        return self.quorum.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.log_end_offset

    # ── what it does ────────────────────────────────────────────────────────────────────────────

    def turn(self) -> bool:
        """Serve the other voters and the timers; True if there was anything to do. StorageFault."""
        had_work = False
        if self.links is not None:
            quorum, was = self.quorum, self._standing()
            for news in self.links.take():
                had_work = True
                try:
                    self._tell(news)
                except DiskFullFault as fault:
                    logger.error("%s; the metadata log can't follow", fault)
                    for voter in quorum.others:
                        quorum.asking.retry_at[voter] = self._now() + DISK_RETRY_MS
            now = self._now()
            if now >= quorum.next_deadline():
                quorum.tick(now)
            self._send()
            if self._standing() != was:
                self._log_standing()
        return had_work

    def _tell(self, news: News) -> None:
        match news:
            case RequestCame(voter, request_id, request):
                self.quorum.on_request(self._now(), voter, request_id, request)
            case AnswerCame(voter, request_id, answer):
                self.quorum.on_answer(self._now(), voter, request_id, answer)
            case NoAnswer(voter, request_id):
                self.quorum.on_failed(self._now(), voter, request_id)

    def rest_s(self) -> float:
        """How long nothing will be due, in seconds."""
        return max(0.0, (self.quorum.next_deadline() - self._now()) / 1000)

    def append(
        self, records: list[MetadataRecord], now_ms: int, encoded: list[bytes] | None = None
    ) -> int:
        """Commit one decision as one batch; the new committed offset. `encoded`: as of
        `MetadataLog.append`.

        DecisionTooLargeFault, DiskFullFault: nothing was written. Any other StorageFault is final:
        who asks again gets the same one.
        NotControllerFault: it may be committed, or not.
        """
        quorum = self.quorum
        if self._fault is not None:
            raise self._fault
        if not self.is_leading:
            raise NotControllerFault("This is not the active controller.")
        epoch = quorum.epoch
        try:
            end_offset = self.log.append(epoch, records, now_ms, encoded)
            quorum.on_appended(self._now())
            self._send()
            self.log.flush()
            quorum.on_flushed(self._now())
            self._send()
            while quorum.high_watermark < end_offset:
                assert self.links is not None, "the only voter is a majority"
                self.links.wait(min(self.rest_s(), WAIT_S))
                self.on_wait()
                self.turn()
                if quorum.epoch != epoch or quorum.state != LEADER:
                    raise NotControllerFault("This controller is not the active one any more.")
        except DiskFullFault:
            raise
        except StorageFault as fault:
            # Whoever asks before this process ends must not have it flushed again as if it were,
            # nor decide by an image that lacks what is in the log.
            self._fault = fault
            raise
        return quorum.high_watermark

    def replicas(self, now_ms: int) -> list[Replica]:
        """The voters as the leader knows them."""
        leading, offset_ms = self.quorum.leading, now_ms - self._now()
        rows: list[Replica] = []
        if leading is None:
            return rows
        for voter, progress in leading.progress.items():
            if voter == self.node_id:
                rows.append((voter, progress.end_offset, now_ms, now_ms))
                continue
            fetched, caught_up = (
                at + offset_ms if at >= 0 else -1
                for at in (progress.fetched_at, progress.caught_up_at)
            )
            rows.append((voter, progress.end_offset, fetched, caught_up))
        return rows

    def on_voter_lost(self, voter: int) -> None:
        """The process of another voter has died."""
        self.quorum.on_voter_lost(self._now(), voter)
        self._send()

    def resign(self) -> None:
        """Let somebody else lead: for a clean end."""
        self.quorum.resign(self._now())
        self._send()

    def close(self) -> None:
        """End cleanly."""
        if self.links is not None:
            self.links.close()
        self.log.close()

    def _now(self) -> int:
        """Milliseconds, as the quorum counts them."""
        return int(self.clock.monotonic() * 1000)

    def _send(self) -> None:
        outbox = self.quorum.outbox
        if outbox and self.links is not None:
            self.quorum.outbox = []
            for voter, request_id, message in outbox:
                self.links.send(voter, request_id, message)

    def _standing(self) -> tuple[int, int, int]:
        return self.quorum.state, self.quorum.epoch, self.quorum.leader_id

    def _log_standing(self) -> None:
        quorum = self.quorum
        leader = f", led by {quorum.leader_id}" if quorum.leader_id >= 0 else ""
        logger.debug("%s in epoch %d%s", STATE_NAMES[quorum.state], quorum.epoch, leader)


def _nothing() -> None:
    pass
