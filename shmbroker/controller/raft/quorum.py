"""One voter of the metadata log: KRaft's Raft, as a pure state machine.

    UNATTACHED ──timeout──► PROSPECTIVE ──majority of pre-votes──► CANDIDATE ──majority──► LEADER
        ▲  ▲                   │   ▲                                  │                      │
        │  └──majority says no─┘   └───────────majority says no───────┘         hears no majority
        │                                                                                    ▼
    FOLLOWER ◄── BeginQuorumEpoch, or any answer that names the leader                   RESIGNED

* Time comes in (`now`, monotonic ms); messages go out (`outbox`), and so do answers. The log and
  the stored state are written through, as no answer may leave before what it promises is durable.
* Whoever sees a higher epoch takes it over and has no leader in it until it hears of one.
* A vote is given once in an epoch, and never for a log that ends before one's own.
* Pre-vote (KIP-996): nobody's epoch rises until a majority would vote for it; who hears the leader
  would not. So a voter that comes back from a rest disturbs nobody.
* Followers pull. A fetch says how far the follower's log is durable: that is its acknowledgement,
  and with its last epoch it shows the leader where their logs part (KIP-595).
* high_watermark: one past the last record that a majority has made durable; only by a record of the
  leader's own epoch, as Raft wants it. It never falls.
* A leader that a majority has not fetched from for 1.5 fetch timeouts resigns (check-quorum).
* A voter that has lost its directory while others run (`must_catch_up`) votes for nobody, and does
  not stand, until it has all that a leader has committed: it would make a majority with who lacks
  what it has lost. Until then nothing of it is stored, so it is known after another end, too.
* `on_voter_lost`: a process that is known to be dead needs no timeout. The others then stand one
  after the other, not at once.

Source: Kafka's `KafkaRaftClient`, `QuorumState`, `LeaderState`; KIP-595, KIP-630, KIP-996.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.controller.raft.quorum_messages import (
    Answer,
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    Request,
    SnapshotAnswer,
    SnapshotId,
    Vote,
    VoteAnswer,
)
from shmbroker.wire.error_codes import (
    FENCED_LEADER_EPOCH,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    POSITION_OUT_OF_RANGE,
    SNAPSHOT_NOT_FOUND,
    UNKNOWN_LEADER_EPOCH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

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
        def append_fetched(self, records: Any) -> None:
            """Records from a leader, at the log's end, with the epochs they have."""

        def flush(self) -> None: ...
        def read(self, offset: int) -> Any:
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
            """The one that was written is whole: the log goes on, empty, where it ends."""

    class QuorumStore(Protocol):
        """The stored state: epoch, leader or -1, who was voted for or -1."""

        def read(self) -> tuple[int, int, int]: ...
        def write(self, epoch: int, leader_id: int, voted_id: int) -> None:
            """Durably."""


UNATTACHED, PROSPECTIVE, CANDIDATE, FOLLOWER, LEADER, RESIGNED = range(6)
STATE_NAMES = ("unattached", "prospective", "candidate", "follower", "leader", "resigned")

NEVER = 1 << 62
FETCH_WAIT_MS = 500
"""How long a leader holds a fetch that has nothing to be told (Kafka: MAX_FETCH_WAIT_MS)."""
RETRY_MS = 20
"""Before a request to a voter that refused or lost the last one is tried again; it costs little."""
STAGGER_MS = 60
"""Between voters that stand for election for the same reason: two syncs of state and a round of
messages, with room for a busy machine."""
BACKOFF_BASE_MS = 50
"""After a lost election, doubled with each further one in a row."""


class Timeouts(NamedTuple):
    """In milliseconds; defaults as Kafka's settings controller.quorum.*."""

    election: int = 1000
    fetch: int = 2000
    request: int = 2000
    backoff_max: int = 1000


class Progress:
    """What the leader knows of a voter."""

    __slots__ = ("caught_up_at", "end_offset", "fetched_at", "is_told", "leader_end_offset")

    def __init__(self) -> None:
        self.end_offset = -1
        """Its log is durable up to here; -1 before its first fetch in this epoch."""
        self.fetched_at = -1
        self.caught_up_at = -1
        """When it last had all there was."""
        self.leader_end_offset = -1
        """Where our log ended, when it fetched last."""
        self.is_told = False
        """It has fetched in this epoch, or answered BeginQuorumEpoch."""


class _Asked:
    """A request to a voter that has no answer yet."""

    __slots__ = ("deadline", "message", "request_id")

    def __init__(self, request_id: int, message: Request, deadline: int) -> None:
        self.request_id = request_id
        self.message = message
        self.deadline = deadline


class Quorum:
    """A voter. Told by `start`, `on_*` and `tick`; after each of them `outbox` is to be sent.

    outbox: (voter, request id, message); a message that is an Answer goes to who sent the request
    with that id, a Request is answered to `on_answer` or `on_failed`.
    """

    def __init__(
        self,
        node_id: int,
        voters: Iterable[int],
        log: QuorumLog,
        store: QuorumStore,
        random: Chance,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (a tuple)
        *,
        must_catch_up: bool = False,
    ) -> None:
        self.must_catch_up = must_catch_up
        self.node_id = node_id
        self.voters = tuple(sorted(voters))
        self.others = tuple(voter for voter in self.voters if voter != node_id)
        self.majority = len(self.voters) // 2 + 1
        self.log = log
        self.store = store
        self.random = random
        self.timeouts = timeouts
        self.state = UNATTACHED
        self.epoch = 0
        self.leader_id = -1
        """The leader of `epoch`, -1 as long as that is not known."""
        self.voted_id = -1
        """Who was voted for in `epoch`, durably, or -1."""
        self.high_watermark = 0
        self.deadline = NEVER
        """When the state of now ends by itself."""
        self.outbox: list[tuple[int, Any, Request | Answer]] = []
        self.asked: dict[int, _Asked] = {}
        self.retry_at: dict[int, int] = {}
        self._next_request_id = 1
        # Prospective and candidate
        self.granted: set[int] = set()
        self.refused: set[int] = set()
        self.unreachable: set[int] = set()
        """Who could not be asked in this election."""
        self._elections_lost = 0
        # Follower
        self.has_fetched = False
        """From the leader it follows; before that it would vote for another."""
        self._snapshot: tuple[SnapshotId, int] | None = None
        """What it fetches instead of records, and how much of it is here."""
        # Leader
        self.epoch_start_offset = NEVER
        self.progress: dict[int, Progress] = {}
        self.parked: dict[int, tuple[Any, Fetch, int]] = {}
        """Fetches that wait for news: request id, fetch, deadline."""
        self._resign_at = NEVER

    # ── what it is told ─────────────────────────────────────────────────────────────────────────

    def start(self, now: int) -> None:
        """Take up the stored state; the only voter leads at once."""
        self.epoch, self.leader_id, self.voted_id = self.store.read()
        if self.log.last_epoch > self.epoch:
            self.epoch, self.leader_id, self.voted_id = self.log.last_epoch, -1, -1
        if self.voters == (self.node_id,):
            self.epoch += 1
            self._lead(now)
            return
        self.state = RESIGNED if self.leader_id == self.node_id else UNATTACHED
        # A pre-vote harms nobody: who starts asks soon, and learns who leads if somebody does.
        self.deadline = now + self._stagger(self.voters.index(self.node_id))

    def on_request(self, now: int, voter: int, request_id: Any, message: Request) -> None:
        """A request of another voter; the answer goes out now, or later (Fetch), with the id."""
        answer: Answer | None
        if isinstance(message, Vote):
            answer = self._on_vote(now, message)
        elif isinstance(message, BeginEpoch):
            answer = self._on_begin_epoch(now, message)
        elif isinstance(message, EndEpoch):
            answer = self._on_end_epoch(now, message)
        elif isinstance(message, Fetch):
            answer = self._on_fetch(now, voter, request_id, message)
        else:
            answer = self._on_fetch_snapshot(now, voter, message)
        if answer is not None:
            self.outbox.append((voter, request_id, answer))

    def on_answer(self, now: int, voter: int, request_id: int, answer: Answer) -> None:
        """The answer to one of our requests; late ones are dropped."""
        asked = self.asked.get(voter)
        if asked is None or asked.request_id != request_id:
            return
        del self.asked[voter]
        if answer.epoch > self.epoch:
            self._see_epoch(now, answer.epoch, answer.leader_id)
        elif answer.epoch == self.epoch:
            if self.leader_id < 0 and answer.leader_id in self.others:
                self._follow(now, answer.leader_id)
            elif isinstance(answer, VoteAnswer) and isinstance(asked.message, Vote):
                self._on_vote_answer(now, voter, asked.message, answer)
            elif isinstance(answer, FetchAnswer):
                self._on_fetch_answer(now, voter, answer)
            elif isinstance(answer, SnapshotAnswer):
                self._on_snapshot_answer(now, voter, answer)
            elif self.state == LEADER and isinstance(asked.message, BeginEpoch):
                self.progress[voter].is_told = True
        if answer.error != NONE:
            self.retry_at[voter] = now + RETRY_MS
        self._ask(now)

    def on_failed(self, now: int, voter: int, request_id: int) -> None:
        """A request could not be sent, or its answer will not come."""
        asked = self.asked.get(voter)
        if asked is not None and asked.request_id == request_id:
            del self.asked[voter]
            # A leader has time: who is gone asks it when it is back.
            self.retry_at[voter] = now + (10 * RETRY_MS if self.state == LEADER else RETRY_MS)
            if self.state == PROSPECTIVE or self.state == CANDIDATE:
                self.unreachable.add(voter)
                self._look_whether_lost(now)
            elif self.state == FOLLOWER and voter == self.leader_id and not self.has_fetched:
                self._leave_dead_leader(now)  # its word was heard after it had died

    def on_voter_lost(self, now: int, voter: int) -> None:
        """The process of another voter is dead, for sure."""
        self.parked.pop(voter, None)
        if voter in self.progress:
            self.progress[voter].is_told = False
        if self.asked.pop(voter, None) is not None:
            self.retry_at[voter] = now + RETRY_MS
        if voter == self.leader_id and self.state == FOLLOWER:
            self._leave_dead_leader(now)

    def on_appended(self, now: int) -> None:
        """The leader has appended: hand the records to who waits for them.

        Before they are durable here: so the disks of all work at the same time.
        """
        if self.state == LEADER:
            self._answer_parked(now)

    def on_flushed(self, now: int) -> None:
        """All that the leader has appended is durable here."""
        if self.state == LEADER:
            self.progress[self.node_id].end_offset = self.log.log_end_offset
            self._advance(now)

    def tick(self, now: int) -> None:
        """Do what is due by its time; `next_deadline` says when that is."""
        for voter, asked in list(self.asked.items()):
            if now >= asked.deadline:
                del self.asked[voter]
        if self.state == LEADER:
            for voter, (request_id, _, deadline) in list(self.parked.items()):
                if now >= deadline:
                    del self.parked[voter]
                    self.outbox.append((voter, request_id, self._fetched(b"")))
            if now >= self._resign_at:
                self.resign(now)
        elif now >= self.deadline:
            self._on_deadline(now)
        self._ask(now)
        self.retry_at = {voter: at for voter, at in self.retry_at.items() if at > now}

    def next_deadline(self) -> int:
        """When `tick` has something to do; early is harmless."""
        deadlines = [self._resign_at if self.state == LEADER else self.deadline]
        deadlines += [asked.deadline for asked in self.asked.values()]
        deadlines += [parked[2] for parked in self.parked.values()]
        deadlines += self.retry_at.values()
        return min(deadlines)

    def resign(self, now: int) -> None:
        """Lead no more, and say so: somebody else may stand at once."""
        if self.state != LEADER:
            return
        by_end = sorted(self.others, key=lambda voter: -self.progress[voter].end_offset)
        self._enter(RESIGNED, now + self._election_timeout())
        for voter in self.others:
            self._send(now, voter, EndEpoch(self.epoch, self.node_id, tuple(by_end)))

    # ── elections ───────────────────────────────────────────────────────────────────────────────

    def _on_deadline(self, now: int) -> None:
        """No leader was heard of in time, or an election came to nothing."""
        if self.state == CANDIDATE or self.state == PROSPECTIVE:
            self._elections_lost += 1
        self.has_fetched = False
        self._enter(PROSPECTIVE, now + self._election_timeout())
        self._begin_count()

    def _begin_count(self) -> None:
        self.granted, self.refused, self.unreachable = {self.node_id}, set(), set()

    def _stand(self, now: int) -> None:
        """A majority would vote for us: begin an epoch and ask for the votes."""
        self.epoch += 1
        self.leader_id, self.voted_id = -1, self.node_id
        self._store(self.epoch, -1, self.node_id)
        self._enter(CANDIDATE, now + self._election_timeout())
        self._begin_count()

    def _on_vote(self, now: int, vote: Vote) -> VoteAnswer:
        if vote.epoch < self.epoch:
            return VoteAnswer(FENCED_LEADER_EPOCH, self.epoch, self.leader_id, False)
        if vote.epoch > self.epoch:
            self._see_epoch(now, vote.epoch, -1)
        is_up_to_date = (vote.last_epoch, vote.end_offset) >= (
            self.log.last_epoch,
            self.log.log_end_offset,
        )
        if vote.is_pre_vote:
            is_led = self.state == LEADER or (self.state == FOLLOWER and self.has_fetched)
            is_granted = is_up_to_date and not is_led and not self.must_catch_up
        elif self.must_catch_up:
            is_granted = False
        elif self.voted_id >= 0:
            is_granted = self.voted_id == vote.candidate_id
        elif self.leader_id >= 0:
            is_granted = False
        else:
            is_granted = is_up_to_date
            if is_granted:
                self.voted_id = vote.candidate_id
                self._store(self.epoch, -1, self.voted_id)
                self._enter(UNATTACHED, now + self._election_timeout())
        return VoteAnswer(NONE, self.epoch, self.leader_id, is_granted)

    def _on_vote_answer(self, now: int, voter: int, vote: Vote, answer: VoteAnswer) -> None:
        if self.state != (PROSPECTIVE if vote.is_pre_vote else CANDIDATE):
            return
        (self.granted if answer.is_granted else self.refused).add(voter)
        if len(self.granted) >= self.majority:
            if vote.is_pre_vote:
                if not self.must_catch_up:
                    self._stand(now)
            else:
                self._lead(now)
        elif vote.is_pre_vote and answer.leader_id == voter:
            self._follow(now, voter)  # It lives, and leads.
        else:
            self.unreachable.discard(voter)
            self._look_whether_lost(now)

    def _look_whether_lost(self, now: int) -> None:
        """Whether nobody is left who could make it a majority; then others shall have their turn,
        or the same again, soon: who has refused may not have known yet that the leader is dead."""
        left = len(self.voters) - len(self.refused | self.unreachable)
        if not self.refused or left >= self.majority:
            return
        if self.state == CANDIDATE:
            self.deadline = min(self.deadline, now + self._backoff())
        elif self.leader_id in self.others and self.leader_id not in self.unreachable:
            self._follow(now, self.leader_id)
        else:
            self._enter(UNATTACHED, now + self._backoff())
            self._elections_lost += 1

    def _lead(self, now: int) -> None:
        """Begin the epoch with a LeaderChange."""
        granting = self.granted or {self.node_id}
        self.leader_id = self.node_id
        if self.voters == (self.node_id,):
            self.voted_id = -1
        self._store(self.epoch, self.node_id, self.voted_id)
        self._enter(LEADER, NEVER)
        self._elections_lost = 0
        self.progress = {voter: Progress() for voter in self.voters}
        self._resign_at = self._check_quorum_at(now)
        log = self.log
        self.epoch_start_offset = log.log_end_offset
        log.append_leader_change(self.epoch, self.node_id, self.voters, sorted(granting))
        log.flush()
        self.on_flushed(now)
        self._ask(now)

    def _see_epoch(self, now: int, epoch: int, leader_id: int) -> None:
        """There is a higher epoch: what was in ours is over."""
        assert epoch > self.epoch
        self.epoch = epoch
        self.leader_id = self.voted_id = -1
        if leader_id in self.others:
            self._follow(now, leader_id)
            return
        self._store(epoch, -1, -1)
        self._enter(UNATTACHED, now + self._election_timeout())

    def _follow(self, now: int, leader_id: int) -> None:
        assert leader_id != self.node_id
        if self.leader_id != leader_id:
            self.leader_id = leader_id
            self._store(self.epoch, leader_id, self.voted_id)
        self.has_fetched = False
        self._snapshot = None
        self._elections_lost = 0
        self._enter(FOLLOWER, self._fetch_deadline(now))
        self._ask(now)

    def _leave_leader(self, deadline: int) -> None:
        """The leader is gone; in this epoch nobody else may have this vote."""
        self.has_fetched = False
        self._enter(UNATTACHED, deadline)

    def _leave_dead_leader(self, now: int) -> None:
        rank = [each for each in self.voters if each != self.leader_id].index(self.node_id)
        self._leave_leader(now + self._stagger(rank))

    def _on_begin_epoch(self, now: int, message: BeginEpoch) -> EpochAnswer:
        error = NONE
        if message.epoch < self.epoch:
            error = FENCED_LEADER_EPOCH
        elif message.epoch > self.epoch:
            self._see_epoch(now, message.epoch, message.leader_id)
        elif self.state != FOLLOWER and message.leader_id in self.others:
            self._follow(now, message.leader_id)
        return EpochAnswer(error, self.epoch, self.leader_id)

    def _on_end_epoch(self, now: int, message: EndEpoch) -> EpochAnswer:
        if message.epoch < self.epoch:
            return EpochAnswer(FENCED_LEADER_EPOCH, self.epoch, self.leader_id)
        if message.epoch > self.epoch:
            self._see_epoch(now, message.epoch, -1)
        if self.state == FOLLOWER or self.state == UNATTACHED:
            candidates = [each for each in message.candidates if each in self.voters]
            rank = candidates.index(self.node_id) if self.node_id in candidates else len(candidates)
            self._leave_leader(now + self._stagger(rank))
        return EpochAnswer(NONE, self.epoch, self.leader_id)

    def _enter(self, state: int, deadline: int) -> None:
        self.state = state
        self.deadline = deadline
        self.asked.clear()
        self.retry_at.clear()
        if state != LEADER:
            self.epoch_start_offset = NEVER
            self.progress = {}
            for voter, (request_id, _, _) in self.parked.items():
                answer = FetchAnswer(NOT_LEADER_OR_FOLLOWER, self.epoch, self.leader_id)
                self.outbox.append((voter, request_id, answer))
            self.parked = {}

    def _election_timeout(self) -> int:
        return self.timeouts.election + self.random.randrange(self.timeouts.election)

    def _backoff(self) -> int:
        largest = min(self.timeouts.backoff_max, BACKOFF_BASE_MS << min(self._elections_lost, 10))
        return RETRY_MS + self.random.randrange(largest)

    def _stagger(self, rank: int) -> int:
        return rank * STAGGER_MS

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    def _ask(self, now: int) -> None:
        """Send what this state wants to know, one request to each voter at a time."""
        if self.state == FOLLOWER:
            self._ask_voter(now, self.leader_id)
        elif self.state in (PROSPECTIVE, CANDIDATE, LEADER):
            for voter in self.others:
                self._ask_voter(now, voter)

    def _ask_voter(self, now: int, voter: int) -> None:
        if voter in self.asked or now < self.retry_at.get(voter, 0):
            return
        self.retry_at.pop(voter, None)
        message = self._question(now, voter)
        if message is not None:
            self._send(now, voter, message)

    def _question(self, now: int, voter: int) -> Request | None:
        log = self.log
        if self.state == FOLLOWER:
            if self._snapshot is not None:
                return FetchSnapshot(self.epoch, *self._snapshot)
            return Fetch(
                self.epoch,
                log.log_end_offset,
                log.last_epoch,
                self.high_watermark,
                FETCH_WAIT_MS,
            )
        if self.state == LEADER:
            # Again to who has not fetched for long: it may have missed it, or have begun anew.
            progress = self.progress[voter]
            if progress.is_told and now - progress.fetched_at < self.timeouts.fetch // 2:
                return None
            self.retry_at[voter] = now + self.timeouts.fetch // 4
            return BeginEpoch(self.epoch, self.node_id)
        if voter in self.granted or voter in self.refused:
            return None
        is_pre_vote = self.state == PROSPECTIVE
        return Vote(self.epoch, self.node_id, log.last_epoch, log.log_end_offset, is_pre_vote)

    def _send(self, now: int, voter: int, message: Request) -> None:
        request_id = self._next_request_id
        self._next_request_id += 1
        self.asked[voter] = _Asked(request_id, message, now + self.timeouts.request)
        self.outbox.append((voter, request_id, message))

    # ── leading ─────────────────────────────────────────────────────────────────────────────────

    def _on_fetch(self, now: int, voter: int, request_id: Any, fetch: Fetch) -> FetchAnswer | None:
        """Take a follower's acknowledgement, and give it what follows; None if it has to wait."""
        if error := self._leader_error(fetch.epoch):
            return FetchAnswer(error, self.epoch, self.leader_id)
        log = self.log
        progress = self.progress.get(voter)
        heard_at = progress.fetched_at if progress is not None else -1
        self._hear(now, voter)
        if refusal := self._divergence(fetch):
            return refusal
        if progress is not None:
            if fetch.fetch_offset >= log.log_end_offset:
                progress.caught_up_at = now
            elif fetch.fetch_offset >= progress.leader_end_offset >= 0:
                progress.caught_up_at = max(progress.caught_up_at, heard_at)
            progress.end_offset = fetch.fetch_offset
            progress.leader_end_offset = log.log_end_offset
            self._advance(now)
        has_news = fetch.fetch_offset < log.log_end_offset
        if has_news or fetch.high_watermark < self.high_watermark or fetch.wait_ms <= 0:
            return self._fetched(log.read(fetch.fetch_offset) if has_news else b"")
        if voter in self.parked:
            self.outbox.append((voter, self.parked[voter][0], self._fetched(b"")))
        self.parked[voter] = request_id, fetch, now + min(fetch.wait_ms, FETCH_WAIT_MS)
        return None

    def _divergence(self, fetch: Fetch) -> FetchAnswer | None:
        """What to tell a follower whose log doesn't lead to ours, or that we can't begin for."""
        log = self.log
        offset, start = fetch.fetch_offset, log.log_start_offset
        last_epoch = fetch.last_fetched_epoch
        if start and (
            offset < start
            or last_epoch < log.log_start_epoch
            or (offset == start and last_epoch != log.log_start_epoch)
        ):
            # Where such a log parts from ours is not to be seen any more.
            return self._fetched(b"", snapshot=log.latest_snapshot())
        if offset == 0:
            return None
        epoch, end_offset = log.end_offset_for_epoch(last_epoch)
        if epoch == last_epoch and offset <= end_offset:
            return None
        if epoch < 0:
            epoch, end_offset = log.last_epoch, log.log_end_offset
        return self._fetched(b"", diverging=(epoch, end_offset))

    def _on_fetch_snapshot(self, now: int, voter: int, message: FetchSnapshot) -> SnapshotAnswer:
        if error := self._leader_error(message.epoch):
            return SnapshotAnswer(error, self.epoch, self.leader_id)
        self._hear(now, voter)
        found = self.log.read_snapshot(message.snapshot, message.position)
        if found is None:
            return SnapshotAnswer(SNAPSHOT_NOT_FOUND, self.epoch, self.leader_id)
        size, data = found
        if not 0 <= message.position < size:
            return SnapshotAnswer(POSITION_OUT_OF_RANGE, self.epoch, self.leader_id)
        return SnapshotAnswer(
            NONE, self.epoch, self.leader_id, message.snapshot, size, message.position, data
        )

    def _leader_error(self, epoch: int) -> int:
        if epoch < self.epoch:
            return FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return UNKNOWN_LEADER_EPOCH
        return NONE if self.state == LEADER else NOT_LEADER_OR_FOLLOWER

    def _fetched(
        self,
        records: Any,
        diverging: tuple[int, int] | None = None,
        snapshot: SnapshotId | None = None,
    ) -> FetchAnswer:
        return FetchAnswer(
            NONE, self.epoch, self.node_id, self.high_watermark, diverging, snapshot, records
        )

    def _hear(self, now: int, voter: int) -> None:
        """A voter is there; when a majority was heard since, the leader goes on."""
        progress = self.progress.get(voter)
        if progress is None:
            return
        progress.is_told = True
        progress.fetched_at = now
        heard = sorted((each.fetched_at for each in self._followers()), reverse=True)
        since = heard[self.majority - 2]
        if since >= 0:
            self._resign_at = max(self._resign_at, self._check_quorum_at(since))

    def _followers(self) -> list[Progress]:
        return [self.progress[voter] for voter in self.others]

    def _check_quorum_at(self, now: int) -> int:
        return NEVER if not self.others else now + self.timeouts.fetch * 3 // 2

    def _advance(self, now: int) -> None:
        """Move the high watermark to what a majority has, if that is of this epoch."""
        ends = sorted((each.end_offset for each in self.progress.values()), reverse=True)
        majority_end = ends[self.majority - 1]
        if majority_end > self.high_watermark and majority_end > self.epoch_start_offset:
            self.high_watermark = majority_end
            self._answer_parked(now)

    def _answer_parked(self, now: int) -> None:
        """Fetches that waited for records, or for the high watermark."""
        log = self.log
        for voter, (request_id, fetch, _) in list(self.parked.items()):
            has_news = fetch.fetch_offset < log.log_end_offset
            if has_news or fetch.high_watermark < self.high_watermark:
                del self.parked[voter]
                records = log.read(fetch.fetch_offset) if has_news else b""
                self.outbox.append((voter, request_id, self._fetched(records)))

    # ── following ───────────────────────────────────────────────────────────────────────────────

    def _on_fetch_answer(self, now: int, voter: int, answer: FetchAnswer) -> None:
        if self.state != FOLLOWER or voter != self.leader_id:
            return
        if answer.error != NONE:
            if answer.error == NOT_LEADER_OR_FOLLOWER:
                # It leads this epoch no more, and nobody else can.
                self._leave_leader(now + self._backoff())
            return
        self._heard_from_leader(now)
        log = self.log
        if answer.snapshot is not None:
            self._snapshot = answer.snapshot, 0
            return
        if answer.diverging is not None:
            self._truncate(*answer.diverging)
            return
        if answer.records:
            log.append_fetched(answer.records)
            log.flush()
        self.high_watermark = max(
            self.high_watermark, min(answer.high_watermark, log.log_end_offset)
        )
        if self.must_catch_up and log.last_epoch == self.epoch:
            # What is committed in this epoch is committed with all before it.
            _, epoch_start = log.end_offset_for_epoch(self.epoch - 1)
            if epoch_start < self.high_watermark == answer.high_watermark:
                self.must_catch_up = False
                self._store(self.epoch, self.leader_id, self.voted_id)

    def _store(self, epoch: int, leader_id: int, voted_id: int) -> None:
        if not self.must_catch_up:
            self.store.write(epoch, leader_id, voted_id)

    def _truncate(self, epoch: int, end_offset: int) -> None:
        """Cut what the leader does not have; it is in no majority."""
        log = self.log
        own_epoch, own_end = log.end_offset_for_epoch(epoch)
        if own_epoch < 0:
            own_end = log.log_end_offset
        elif own_epoch == epoch:
            own_end = min(own_end, end_offset)
        assert own_end >= self.high_watermark, "a committed record would be cut"
        log.truncate_to(own_end)

    def _on_snapshot_answer(self, now: int, voter: int, answer: SnapshotAnswer) -> None:
        if self.state != FOLLOWER or voter != self.leader_id or self._snapshot is None:
            return
        snapshot, position = self._snapshot
        if answer.error != NONE or answer.snapshot != snapshot or answer.position != position:
            self._snapshot = None  # Fetch tells which one there is by now.
            return
        self._heard_from_leader(now)
        self.log.write_snapshot(snapshot, position, answer.data)
        position += len(answer.data)
        self._snapshot = snapshot, position
        if position >= answer.size:
            self._snapshot = None
            self.log.install_snapshot(snapshot)
            self.high_watermark = max(self.high_watermark, snapshot.end_offset)
        elif not answer.data:
            self._snapshot = None

    def _heard_from_leader(self, now: int) -> None:
        self.has_fetched = True
        self.deadline = self._fetch_deadline(now)

    def _fetch_deadline(self, now: int) -> int:
        """When the leader has been silent for too long; not at the same time for all."""
        return now + self.timeouts.fetch + self._stagger(self.voters.index(self.node_id))
