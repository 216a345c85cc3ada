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
* Followers pull (`following`); by what they fetch the leader moves the high watermark, and knows
  whether it still has a majority (`leadership`). Each is there for one state (`election`, too): all
  that it knows ends with that.
* A voter that has lost its directory while others run (`must_catch_up`) votes for nobody, and does
  not stand, until it has all that a leader has committed: it would make a majority with who lacks
  what it has lost. It begins in the highest epoch that the others have stored: it can have voted in
  none above, as who asks for a vote has stored the epoch; and it follows no leader of one below.
  Until it has caught up nothing of it is stored, so it is known after another end, too.
* `on_voter_lost`: a process that is known to be dead needs no timeout. The others then stand one
  after the other, not at once.

Source: Kafka's `KafkaRaftClient`, `QuorumState`, `LeaderState`; KIP-595, KIP-630, KIP-996.
"""

from __future__ import annotations

from shmbroker.controller.raft.asking import VoterRequests
from shmbroker.controller.raft.election import Election
from shmbroker.controller.raft.following import Following
from shmbroker.controller.raft.leadership import Leadership
from shmbroker.controller.raft.quorum_messages import (
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    QuorumFetchAnswer,
    SnapshotAnswer,
    Vote,
    VoteAnswer,
)
from shmbroker.controller.raft.quorum_needs import Timeouts
from shmbroker.controller.raft.waits import RETRY_MS, Waits, stagger
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire.error_codes import (
    FENCED_LEADER_EPOCH,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_LEADER_EPOCH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from shmbroker.controller.raft.quorum_messages import Answer, Request
    from shmbroker.controller.raft.quorum_needs import Chance, QuorumLog, QuorumStore

UNATTACHED, PROSPECTIVE, CANDIDATE, FOLLOWER, LEADER, RESIGNED = range(6)
STATE_NAMES = ("unattached", "prospective", "candidate", "follower", "leader", "resigned")
_NOT_WAITED_FOR = "whatever ends a state has nobody waited for any more"


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
        lost_epoch: int = -1,
    ) -> None:
        """`lost_epoch`: of a voter that has lost its directory, the highest that the others have
        stored."""
        self.must_catch_up = lost_epoch >= 0
        self._lost_epoch = lost_epoch
        self.node_id = node_id
        self.voters = tuple(sorted(voters))
        self.others = tuple(voter for voter in self.voters if voter != node_id)
        self.log = log
        self.store = store
        self.timeouts = timeouts
        self.waits = Waits(random, timeouts, self.voters.index(node_id))
        self.state = UNATTACHED
        self.epoch = 0
        self.leader_id = -1
        """The leader of `epoch`, -1 as long as that is not known."""
        self.voted_id = -1
        """The voter that got this one's vote in `epoch`, durably, or -1."""
        self.election: Election | None = None
        """The election in the states PROSPECTIVE and CANDIDATE, else None."""
        self.following: Following | None = None
        """What a follower knows in the state FOLLOWER, else None."""
        self.leading: Leadership | None = None
        """What a leader knows in the state LEADER, else None."""
        self._high_watermark = 0
        """The high watermark that a leader has told, or that was known before this voter led."""
        self.deadline = NEVER_MS
        """When the state of now ends by itself."""
        self.outbox: list[tuple[int, Any, Request | Answer]] = []
        self.asking = VoterRequests()

    @property
    def high_watermark(self) -> int:
        """One past the last record that is committed, as far as is known here."""
        return self._high_watermark if self.leading is None else self.leading.high_watermark

    # ── what it is told ─────────────────────────────────────────────────────────────────────────

    def start(self, now: int) -> None:
        """Take up the stored state; the only voter leads at once."""
        self.epoch, self.leader_id, self.voted_id = self.store.read()
        known_epoch = max(self.log.last_epoch, self._lost_epoch)
        if known_epoch > self.epoch:
            self.epoch, self.leader_id, self.voted_id = known_epoch, -1, -1
        if self.voters == (self.node_id,):
            self.epoch, self.voted_id = self.epoch + 1, -1
            self._lead(now)
            return
        # A pre-vote harms nobody: who starts asks soon, and learns who leads if somebody does.
        self.deadline = now + self.waits.start()

    def on_request(self, now: int, voter: int, request_id: Any, message: Request) -> None:
        """A request of another voter; the answer goes out now, or later (Fetch), with the id."""
        answer: Answer
        if isinstance(message, Vote):
            answer = self._on_vote(now, message)
        elif isinstance(message, BeginEpoch):
            answer = self._on_begin_epoch(now, message)
        elif isinstance(message, EndEpoch):
            answer = self._on_end_epoch(now, message)
        elif error := self._leader_error(message.epoch):
            kind = QuorumFetchAnswer if isinstance(message, Fetch) else SnapshotAnswer
            answer = kind(error, self.epoch, self.leader_id)
        else:
            assert self.leading is not None, "checked above"
            if isinstance(message, Fetch):
                self.outbox += self.leading.on_fetch(now, voter, request_id, message)
                return
            answer = self.leading.on_fetch_snapshot(now, voter, message)
        self.outbox.append((voter, request_id, answer))

    def on_answer(self, now: int, voter: int, request_id: int, answer: Answer) -> None:
        """The answer to one of our requests; late ones are dropped."""
        asked = self.asking.take(voter, request_id)
        if asked is None:
            return
        if answer.epoch > self.epoch:
            self._see_epoch(now, answer.epoch, answer.leader_id)
        elif answer.epoch == self.epoch:
            if self.leader_id < 0 and answer.leader_id in self.others:
                self._follow(now, answer.leader_id)
            elif isinstance(answer, VoteAnswer) and isinstance(asked, Vote):
                self._on_vote_answer(now, voter, asked, answer)
            elif isinstance(answer, QuorumFetchAnswer):
                self._on_fetch_answer(now, answer)
            elif isinstance(answer, SnapshotAnswer):
                self._on_snapshot_answer(now, answer)
        if answer.error != NONE:
            self.asking.retry_at[voter] = now + RETRY_MS
        self._ask(now)

    def on_failed(self, now: int, voter: int, request_id: int) -> None:
        """A request could not be sent, or its answer will not come."""
        if self.asking.take(voter, request_id) is None:
            return
        # A leader has time: who is gone asks it when it is back.
        self.asking.retry_at[voter] = now + (10 * RETRY_MS if self.state == LEADER else RETRY_MS)
        following = self.following
        if self.election is not None:
            self.election.unreachable.add(voter)
            self._look_whether_lost(now, self.election)
        elif following is not None and voter == self.leader_id and not following.has_fetched:
            self._leave_dead_leader(now)  # its word was heard after it had died

    def on_voter_lost(self, now: int, voter: int) -> None:
        """The process of another voter is dead, for sure."""
        if self.leading is not None:
            self.leading.on_voter_lost(voter)
        if self.asking.give_up(voter):
            self.asking.retry_at[voter] = now + RETRY_MS
        if voter == self.leader_id and self.state == FOLLOWER:
            self._leave_dead_leader(now)

    def on_appended(self, _now: int) -> None:
        """The leader has appended: hand the records to who waits for them.

        Before they are durable here: so the disks of all work at the same time.
        """
        if self.leading is not None:
            self.outbox += self.leading.on_appended()

    def on_flushed(self, _now: int) -> None:
        """All that the leader has appended is durable here."""
        if self.leading is not None:
            self.outbox += self.leading.on_flushed()

    def tick(self, now: int) -> None:
        """Do what is due by its time; `next_deadline` says when that is."""
        self.asking.drop_late(now)
        if self.leading is not None:
            self.outbox += self.leading.on_time(now)
            if now >= self.leading.resign_at:
                self.resign(now)
        elif now >= self.deadline:
            self._on_deadline(now)
        self._ask(now)
        self.asking.drop_rested(now)

    def next_deadline(self) -> int:
        """When `tick` has something to do; early is harmless."""
        own = [self.deadline] if self.leading is None else self.leading.deadlines()
        return min(own + self.asking.deadlines())

    def resign(self, now: int) -> None:
        """Lead no more, and say so: somebody else may stand at once."""
        if self.leading is None:
            return
        by_end = self.leading.by_end()
        self._enter(RESIGNED, now + self.waits.election())
        for voter in self.others:
            self._send(now, voter, EndEpoch(self.epoch, self.node_id, by_end))

    # ── elections ───────────────────────────────────────────────────────────────────────────────

    def _on_deadline(self, now: int) -> None:
        """No leader was heard of in time, or an election came to nothing."""
        if self.election is not None:
            self.waits.elections_lost += 1
        self._enter(PROSPECTIVE, now + self.waits.election())
        self.election = Election(self.node_id, self.voters)

    def _stand(self, now: int) -> None:
        """A majority would vote for us: begin an epoch and ask for the votes."""
        self.epoch += 1
        self.leader_id, self.voted_id = -1, self.node_id
        self._store(self.epoch, -1, self.node_id)
        self._enter(CANDIDATE, now + self.waits.election())
        self.election = Election(self.node_id, self.voters)

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
            following = self.following
            is_led = self.state == LEADER or (following is not None and following.has_fetched)
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
                self._enter(UNATTACHED, now + self.waits.election())
        return VoteAnswer(NONE, self.epoch, self.leader_id, is_granted)

    def _on_vote_answer(self, now: int, voter: int, vote: Vote, answer: VoteAnswer) -> None:
        election = self.election
        assert election is not None, _NOT_WAITED_FOR
        election.count(voter, answer.is_granted)
        if election.is_won:
            if vote.is_pre_vote:
                if not self.must_catch_up:
                    self._stand(now)
            else:
                self._lead(now)
        elif vote.is_pre_vote and answer.leader_id == voter:
            self._follow(now, voter)  # It lives, and leads.
        else:
            self._look_whether_lost(now, election)

    def _look_whether_lost(self, now: int, election: Election) -> None:
        """If it is lost others shall have their turn, or the same again, soon: who has refused may
        not have known yet that the leader is dead."""
        if not election.is_lost:
            return
        if self.state == CANDIDATE:
            self.deadline = min(self.deadline, now + self.waits.backoff())
        elif self.leader_id in self.others and self.leader_id not in election.unreachable:
            self._follow(now, self.leader_id)
        else:
            self._enter(UNATTACHED, now + self.waits.backoff())
            self.waits.elections_lost += 1

    def _lead(self, now: int) -> None:
        """Begin the epoch with a LeaderChange; a disk too full for that leaves it to another."""
        granting = {self.node_id} if self.election is None else self.election.granted
        log = self.log
        leading = Leadership(
            now,
            self.node_id,
            self.voters,
            self.epoch,
            log,
            self._high_watermark,
            self.timeouts.fetch,
        )
        log.append_leader_change(self.epoch, self.node_id, self.voters, sorted(granting))
        log.flush()
        self.leader_id = self.node_id
        self._store(self.epoch, self.node_id, self.voted_id)
        self._enter(LEADER, NEVER_MS)
        self.waits.elections_lost = 0
        self.leading = leading
        self.on_flushed(now)

    def _see_epoch(self, now: int, epoch: int, leader_id: int) -> None:
        """There is a higher epoch: what was in ours is over."""
        assert epoch > self.epoch
        self.epoch = epoch
        self.leader_id = self.voted_id = -1
        if leader_id in self.others:
            self._follow(now, leader_id)
            return
        self._store(epoch, -1, -1)
        self._enter(UNATTACHED, now + self.waits.election())

    def _follow(self, now: int, leader_id: int) -> None:
        assert leader_id != self.node_id
        if self.leader_id != leader_id:
            self.leader_id = leader_id
            self._store(self.epoch, leader_id, self.voted_id)
        self.waits.elections_lost = 0
        self._enter(FOLLOWER, now + self.waits.fetch())
        self.following = Following(self.log)
        self._ask(now)

    def _leave_leader(self, deadline: int) -> None:
        """The leader is gone; in this epoch nobody else may have this vote."""
        self._enter(UNATTACHED, deadline)

    def _leave_dead_leader(self, now: int) -> None:
        rank = [each for each in self.voters if each != self.leader_id].index(self.node_id)
        self._leave_leader(now + stagger(rank))

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
            self._leave_leader(now + stagger(rank))
        return EpochAnswer(NONE, self.epoch, self.leader_id)

    def _enter(self, state: int, deadline: int) -> None:
        self.state = state
        self.deadline = deadline
        self.asking.clear()
        self.election = None
        self.following = None
        if self.leading is not None:
            self._high_watermark = self.leading.high_watermark
            for voter, (request_id, _, _) in self.leading.parked.items():
                answer = QuorumFetchAnswer(NOT_LEADER_OR_FOLLOWER, self.epoch, self.leader_id)
                self.outbox.append((voter, request_id, answer))
            self.leading = None

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    def _ask(self, now: int) -> None:
        """Send what this state wants to know, one request to each voter at a time."""
        if self.state == FOLLOWER:
            self._ask_voter(now, self.leader_id)
        elif self.state in (PROSPECTIVE, CANDIDATE, LEADER):
            for voter in self.others:
                self._ask_voter(now, voter)

    def _ask_voter(self, now: int, voter: int) -> None:
        if not self.asking.may_ask(now, voter):
            return
        message = self._question(now, voter)
        if message is not None:
            self._send(now, voter, message)

    def _question(self, now: int, voter: int) -> Request | None:
        if self.following is not None:
            return self.following.question(self.epoch, self._high_watermark)
        if self.leading is not None:
            if not self.leading.is_to_be_told(now, voter):
                return None
            self.asking.retry_at[voter] = now + self.timeouts.fetch // 4
            return BeginEpoch(self.epoch, self.node_id)
        if self.election is None or not self.election.is_open(voter):
            return None
        is_pre_vote = self.state == PROSPECTIVE
        log = self.log
        return Vote(self.epoch, self.node_id, log.last_epoch, log.log_end_offset, is_pre_vote)

    def _send(self, now: int, voter: int, message: Request) -> None:
        request_id = self.asking.note(voter, message, now + self.timeouts.request)
        self.outbox.append((voter, request_id, message))

    # ── leading and following ───────────────────────────────────────────────────────────────────

    def _leader_error(self, epoch: int) -> int:
        if epoch < self.epoch:
            return FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return UNKNOWN_LEADER_EPOCH
        return NONE if self.state == LEADER else NOT_LEADER_OR_FOLLOWER

    def _on_fetch_answer(self, now: int, answer: QuorumFetchAnswer) -> None:
        following = self.following
        assert following is not None, _NOT_WAITED_FOR
        if answer.error != NONE:
            if answer.error == NOT_LEADER_OR_FOLLOWER:
                # It leads this epoch no more, and nobody else can.
                self._leave_leader(now + self.waits.backoff())
            return
        self.deadline = now + self.waits.fetch()
        self._high_watermark = following.on_fetch_answer(answer, self._high_watermark)
        is_news = answer.snapshot is None and answer.diverging is None
        if is_news and self.must_catch_up and self.log.last_epoch == self.epoch:
            # What is committed in this epoch is committed with all before it.
            _, epoch_start = self.log.end_offset_for_epoch(self.epoch - 1)
            if epoch_start < self._high_watermark == answer.high_watermark:
                self.must_catch_up = False
                self._store(self.epoch, self.leader_id, self.voted_id)

    def _on_snapshot_answer(self, now: int, answer: SnapshotAnswer) -> None:
        following = self.following
        assert following is not None, _NOT_WAITED_FOR
        if not following.is_piece(answer):
            return
        self.deadline = now + self.waits.fetch()
        self._high_watermark = following.on_piece(answer, self._high_watermark)

    def _store(self, epoch: int, leader_id: int, voted_id: int) -> None:
        if not self.must_catch_up:
            self.store.write(epoch, leader_id, voted_id)
