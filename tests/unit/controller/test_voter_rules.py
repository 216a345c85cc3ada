"""What a voter promises, by itself: votes and epochs, the high watermark, where logs part.

The simulation has voters among each other. Source: KIP-595, KIP-630.
"""

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from shmbroker.controller.raft.election import Election
from shmbroker.controller.raft.quorum import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    PROSPECTIVE,
    RESIGNED,
    UNATTACHED,
    Quorum,
)
from shmbroker.controller.raft.quorum_messages import (
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchSnapshot,
    QuorumFetchAnswer,
    SnapshotAnswer,
    SnapshotId,
    Vote,
    VoteAnswer,
)
from shmbroker.controller.raft.quorum_needs import FETCH_WAIT_MS, Timeouts
from shmbroker.controller.raft.waits import RETRY_MS, STAGGER_MS
from shmbroker.log.faults import DiskFullFault
from shmbroker.wire.error_codes import (
    FENCED_LEADER_EPOCH,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    POSITION_OUT_OF_RANGE,
    SNAPSHOT_NOT_FOUND,
    UNKNOWN_LEADER_EPOCH,
)
from tests.simulation.quorum_simulation import SNAPSHOT_PIECE, SimulatedLog
from tests.unit.controller.test_lost_voter import Store

EPOCH = 5
ROWS = [(1, "a"), (1, "b"), (3, "c"), (3, "d")]
"""What is in the log of a voter: (epoch, value)."""
OLD = 4
"""Where they end."""
TIMEOUTS = Timeouts()
START = 100_000
"""The time at which it starts."""


def voter(
    stored: tuple[int, int, int] = (EPOCH, -1, -1),
    rows: Iterable[tuple[int, Any]] = ROWS,
    voters: Iterable[int] = (1, 2, 3),
    log: SimulatedLog | None = None,
) -> Quorum:
    """Voter 2, started."""
    log = log or SimulatedLog()
    for epoch, value in rows:
        log.append(epoch, value)
    log.flush()
    store = Store()
    store.row = stored
    quorum = Quorum(2, voters, log, store, Random(1))
    quorum.start(START)
    return quorum


def sent(quorum: Quorum, kind: type) -> list[tuple[int, Any, Any]]:
    """What it has sent of this kind since the last look; the rest is forgotten."""
    outbox, quorum.outbox = quorum.outbox, []
    return [row for row in outbox if isinstance(row[2], kind)]


def asked(quorum: Quorum, sender: int, message: Any, now: int = START) -> Any:
    """What it answers at once, or None."""
    quorum.outbox = []
    quorum.on_request(now, sender, "asked", message)
    found = [message for to, number, message in quorum.outbox if (to, number) == (sender, "asked")]
    return found[0] if found else None


def answered(quorum: Quorum, answer: Any, now: int, voters: Iterable[int] = ()) -> None:
    """Each of those that were asked (among `voters`) says that."""
    for to, number, _ in sent(quorum, object):
        if isinstance(number, int) and (not voters or to in voters):
            quorum.on_answer(now, to, number, answer)


def candidate(quorum: Quorum | None = None, **made: Any) -> Quorum:
    """It has a majority of the pre-votes, and has asked for the votes."""
    quorum = quorum or voter(**made)
    quorum.tick(quorum.next_deadline())
    answered(quorum, VoteAnswer(NONE, quorum.epoch, -1, True), START)
    assert quorum.state == CANDIDATE
    return quorum


def leader(**made: Any) -> Quorum:
    """It leads epoch 6, and has flushed the first record of that."""
    quorum = candidate(**made)
    answered(quorum, VoteAnswer(NONE, quorum.epoch, -1, True), START)
    assert quorum.state == LEADER
    return quorum


def follower(rows: Iterable[tuple[int, Any]] = ROWS, **made: Any) -> Quorum:
    """It follows 1 in epoch 5, and has asked it for records."""
    quorum = voter(rows=rows, **made)
    quorum.on_request(START, 1, "asked", BeginEpoch(EPOCH, 1))
    assert quorum.state == FOLLOWER
    return quorum


def fetch(offset: int, last_epoch: int, **changed: Any) -> Fetch:
    return Fetch(EPOCH + 1, offset, last_epoch, 0, FETCH_WAIT_MS)._replace(**changed)


def fetched(**fields: Any) -> QuorumFetchAnswer:
    return QuorumFetchAnswer(NONE, EPOCH, 1, 0)._replace(**fields)


# ── votes and epochs ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("stored", "vote", "answer", "stored_then"),
    [
        ((5, -1, -1), (5, 3, 3, 4), (NONE, 5, True), (5, -1, 3)),
        ((5, -1, -1), (5, 3, 3, 3), (NONE, 5, False), (5, -1, -1)),
        ((5, -1, -1), (5, 3, 2, 9), (NONE, 5, False), (5, -1, -1)),
        ((5, -1, -1), (5, 3, 4, 1), (NONE, 5, True), (5, -1, 3)),
        # One vote in an epoch, also of who was started anew; the same one may ask again.
        ((5, -1, 1), (5, 3, 4, 9), (NONE, 5, False), (5, -1, 1)),
        ((5, -1, 3), (5, 3, 4, 9), (NONE, 5, True), (5, -1, 3)),
        ((5, -1, 2), (5, 3, 4, 9), (NONE, 5, False), (5, -1, 2)),
        ((5, 1, -1), (5, 3, 4, 9), (NONE, 5, False), (5, 1, -1)),
        ((5, 1, 1), (6, 3, 4, 9), (NONE, 6, True), (6, -1, 3)),
        ((5, 1, 1), (6, 3, 3, 3), (NONE, 6, False), (6, -1, -1)),
        ((5, -1, -1), (4, 3, 4, 9), (FENCED_LEADER_EPOCH, 5, False), (5, -1, -1)),
        # Its log has a later epoch than what it has stored.
        ((2, -1, 3), (2, 3, 4, 9), (FENCED_LEADER_EPOCH, 3, False), (2, -1, 3)),
    ],
)
def test_a_vote_is_given_once_in_an_epoch_and_stored(
    stored: tuple[int, int, int],
    vote: tuple[int, int, int, int],
    answer: tuple[int, int, bool],
    stored_then: tuple[int, int, int],
) -> None:
    """Vote: epoch, candidate, last epoch and end of its log. Its own log ends in epoch 3 at 4."""
    quorum = voter(stored)
    said = asked(quorum, 3, Vote(*vote, is_pre_vote=False))
    assert (said.error, said.epoch, said.is_granted) == answer
    assert quorum.store.read() == stored_then


def test_who_stands_has_its_own_vote_stored_before_it_asks() -> None:
    quorum = candidate()
    assert quorum.store.read() == (EPOCH + 1, -1, 2)
    assert [to for to, _, _ in sent(quorum, Vote)] == [1, 3]
    assert not asked(quorum, 3, Vote(EPOCH + 1, 3, 9, 9, is_pre_vote=False)).is_granted


def test_who_leads_has_stored_it_and_told_the_others() -> None:
    quorum = leader()
    assert (quorum.store.read(), quorum.leader_id) == ((EPOCH + 1, 2, 2), 2)
    assert sent(quorum, BeginEpoch)[0][2] == BeginEpoch(EPOCH + 1, 2)
    assert quorum.log.records[OLD:] == [(EPOCH + 1, "leader 2")]


def test_the_only_voter_leads_without_a_vote() -> None:
    quorum = voter(stored=(EPOCH, -1, 3), voters=[2])
    assert quorum.state == LEADER
    assert quorum.store.read() == (EPOCH + 1, 2, -1)


def test_only_answers_to_this_vote_count() -> None:
    quorum = voter()
    quorum.tick(quorum.next_deadline())
    pre_votes = sent(quorum, Vote)
    quorum.on_answer(START, 1, pre_votes[0][1], VoteAnswer(NONE, EPOCH, -1, True))
    assert quorum.state == CANDIDATE
    quorum.on_answer(START, 3, pre_votes[1][1], VoteAnswer(NONE, EPOCH + 1, -1, True))
    assert quorum.state == CANDIDATE, "that was about the pre-vote"


def test_who_was_refused_by_most_asks_again_soon_and_in_the_end_by_pre_vote() -> None:
    quorum = candidate()
    late = quorum.deadline
    answered(quorum, VoteAnswer(NONE, EPOCH + 1, -1, False), START)
    assert quorum.state == CANDIDATE and quorum.deadline < late
    quorum.tick(quorum.deadline)
    assert (quorum.state, quorum.epoch) == (PROSPECTIVE, EPOCH + 1)


def test_a_pre_vote_is_lost_when_one_refuses_and_the_other_is_not_there() -> None:
    quorum = voter()
    quorum.tick(quorum.next_deadline())
    (first, number, _), (_, other, _) = sent(quorum, Vote)
    quorum.on_answer(START, first, number, VoteAnswer(NONE, EPOCH, -1, False))
    quorum.tick(START + RETRY_MS)
    assert quorum.state == PROSPECTIVE and not sent(quorum, Vote), "it has had its answer"
    quorum.on_failed(START, 3, other)
    assert quorum.state == UNATTACHED


def test_a_leader_that_is_not_there_is_not_gone_back_to_when_a_pre_vote_is_lost() -> None:
    quorum = follower()
    quorum.tick(START + 10_000)
    assert (quorum.state, quorum.leader_id) == (PROSPECTIVE, 1)
    (_, leads, _), (_, other, _) = sent(quorum, Vote)
    quorum.on_failed(START, 1, leads)
    quorum.on_answer(START, 3, other, VoteAnswer(NONE, EPOCH, 1, False))
    assert quorum.state == UNATTACHED


def test_who_is_told_again_of_its_leader_goes_on_as_it_was() -> None:
    quorum = follower()
    following = quorum.following
    assert asked(quorum, 1, BeginEpoch(EPOCH, 1)) == EpochAnswer(NONE, EPOCH, 1)
    assert quorum.following is following


@pytest.mark.parametrize("ends_well", ["leads", "follows"])
def test_elections_that_were_lost_in_a_row_are_counted_until_somebody_leads(ends_well: str) -> None:
    quorum = candidate()
    quorum.tick(quorum.deadline)
    assert quorum.waits.elections_lost == 1
    answered(quorum, VoteAnswer(NONE, quorum.epoch, -1, False), quorum.deadline - 1)
    assert quorum.waits.elections_lost == 2
    if ends_well == "leads":
        candidate(quorum)
        answered(quorum, VoteAnswer(NONE, quorum.epoch, -1, True), START)
        assert quorum.state == LEADER
    else:
        quorum.on_request(START, 1, "x", BeginEpoch(quorum.epoch, 1))
    assert quorum.waits.elections_lost == 0


@pytest.mark.parametrize("names_leader", [True, False])
@pytest.mark.parametrize("kind", [VoteAnswer, EpochAnswer, QuorumFetchAnswer, SnapshotAnswer])
@pytest.mark.parametrize("situation", [candidate, leader, follower])
def test_an_answer_of_a_higher_epoch_ends_ones_own(
    situation: Any, kind: Any, names_leader: bool
) -> None:
    quorum = situation()
    later = quorum.epoch + 1
    to, number, _ = next(row for row in quorum.outbox if isinstance(row[1], int))
    leads = 3 if names_leader else -1
    fields = [FENCED_LEADER_EPOCH, later, leads] + [False] * (kind is VoteAnswer)
    quorum.on_answer(START, to, number, kind(*fields))
    assert quorum.state == (FOLLOWER if names_leader else UNATTACHED)
    assert (quorum.epoch, quorum.store.read()) == (later, (later, leads, -1))


@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_who_asks_for_votes_follows_the_leader_that_another_names(is_pre_vote: bool) -> None:
    quorum = voter() if is_pre_vote else candidate()
    if is_pre_vote:
        quorum.tick(quorum.next_deadline())
    answered(quorum, VoteAnswer(NONE, quorum.epoch, 1, False), START, [3])
    assert (quorum.state, quorum.leader_id) == (FOLLOWER, 1)


@pytest.mark.parametrize("situation", [candidate, leader, follower])
@pytest.mark.parametrize(
    ("kind", "state"), [(BeginEpoch, FOLLOWER), (EndEpoch, UNATTACHED), (Vote, UNATTACHED)]
)
def test_a_request_of_a_higher_epoch_ends_ones_own(situation: Any, kind: Any, state: int) -> None:
    quorum = situation()
    later = quorum.epoch + 1
    more: Any = {EndEpoch: ((3, 1),), Vote: (0, 0, False)}.get(kind, ())
    said = asked(quorum, 3, kind(later, 3, *more))
    assert (said.error, said.epoch, quorum.epoch, quorum.state) == (NONE, later, later, state)
    assert quorum.store.read() == (later, 3 if kind is BeginEpoch else -1, -1)


@pytest.mark.parametrize("message", [BeginEpoch(EPOCH - 1, 3), EndEpoch(EPOCH - 1, 1, (2,))])
def test_a_request_of_a_lower_epoch_is_fenced(message: Any) -> None:
    quorum = follower()
    assert asked(quorum, 3, message) == EpochAnswer(FENCED_LEADER_EPOCH, EPOCH, 1)
    assert (quorum.state, quorum.leader_id) == (FOLLOWER, 1)


@pytest.mark.parametrize(("candidates", "rank"), [((2, 3), 0), ((3, 2), 1), ((9, 2), 0), ((3,), 1)])
def test_who_hears_that_the_leader_resigns_stands_in_the_order_it_gives(
    candidates: tuple[int, ...], rank: int
) -> None:
    quorum = follower()
    assert asked(quorum, 1, EndEpoch(EPOCH, 1, candidates)) == EpochAnswer(NONE, EPOCH, 1)
    quorum.tick(START + rank * STAGGER_MS - 1)
    assert quorum.state == UNATTACHED
    quorum.tick(START + rank * STAGGER_MS)
    assert quorum.state == PROSPECTIVE
    assert not asked(quorum, 3, Vote(EPOCH, 3, 9, 9, is_pre_vote=False)).is_granted


@pytest.mark.parametrize(
    ("count", "granted", "refused", "unreachable", "is_won", "is_lost"),
    [
        (3, [], [], [], False, False),
        (3, [1], [], [], True, False),
        (3, [], [1], [], False, False),
        (3, [], [1, 3], [], False, True),
        (3, [], [1], [3], False, True),
        (3, [], [], [1, 3], False, False),  # nobody has refused: they may come
        (5, [1], [3, 4], [], False, False),
        (5, [1], [3, 4, 5], [], False, True),
        (5, [1, 3], [4, 5], [], True, False),
        (5, [1], [3], [1, 4], False, False),  # 1 could not be asked at first
    ],
)
def test_an_election_is_won_by_a_majority_and_lost_when_none_is_left(
    count: int,
    granted: list[int],
    refused: list[int],
    unreachable: list[int],
    is_won: bool,
    is_lost: bool,
) -> None:
    election = Election(2, tuple(range(1, count + 1)))
    election.unreachable.update(unreachable)
    for each in granted:
        election.count(each, True)
    for each in refused:
        election.count(each, False)
    assert (election.is_won, election.is_lost) == (is_won, is_lost)
    is_open = [each for each in range(1, count + 1) if election.is_open(each)]
    assert is_open == [each for each in range(1, count + 1) if each not in {2, *granted, *refused}]


class FullLog(SimulatedLog):
    """Of a disk that has room for so many records."""

    room = 0

    def append(self, epoch: int, value: Any) -> None:
        if not self.room:
            raise DiskFullFault("full")
        self.room -= 1
        super().append(epoch, value)

    def append_fetched(self, records: Any) -> None:
        for epoch, value in records[1]:
            self.append(epoch, value)


def test_who_has_no_room_for_its_epochs_first_record_does_not_lead() -> None:
    log = FullLog()
    quorum = candidate(rows=(), log=log)
    (to, number, _), *_ = sent(quorum, Vote)
    with pytest.raises(DiskFullFault):
        quorum.on_answer(START, to, number, VoteAnswer(NONE, EPOCH + 1, -1, True))
    assert quorum.state != LEADER
    assert asked(quorum, 3, fetch(0, 0)).error == NOT_LEADER_OR_FOLLOWER
    log.room = 1
    candidate(quorum)
    answered(quorum, VoteAnswer(NONE, EPOCH + 2, -1, True), START)
    assert quorum.state == LEADER and log.records == [(EPOCH + 2, "leader 2")]


# ── a leader ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("count", "ends", "high_watermark"),
    [
        (3, {}, 0),
        (3, {1: OLD}, 0),  # what an earlier epoch has left counts with a record of this one
        (3, {1: OLD + 1}, OLD + 1),
        (3, {1: OLD + 1, 3: OLD + 3}, OLD + 1),
        (5, {1: OLD + 2}, 0),
        (5, {1: OLD + 2, 3: OLD + 1}, OLD + 1),
        (5, {1: OLD + 2, 3: OLD + 2, 4: OLD + 3}, OLD + 2),
        # Without the leader's own: it has not flushed what is behind.
        (3, {1: OLD + 3, 3: OLD + 2}, OLD + 2),
        (3, {1: OLD + 3}, OLD + 1),
    ],
)
def test_the_high_watermark_is_what_a_majority_has_from_this_epoch_on(
    count: int, ends: dict[int, int], high_watermark: int
) -> None:
    quorum = leader(voters=range(1, count + 1))
    for _ in range(2):
        quorum.log.append(EPOCH + 1, "x")
        quorum.on_appended(START)
    for number, end in ends.items():
        quorum.on_request(START, number, "x", fetch(end, EPOCH + 1 if end > OLD else 3))
    assert quorum.high_watermark == high_watermark
    assert quorum.leading.is_established == (high_watermark > OLD)
    quorum.log.flush()
    quorum.on_flushed(START)
    assert quorum.high_watermark >= high_watermark
    high_watermark = quorum.high_watermark
    for end, epoch in ((OLD + 1, EPOCH + 1), (0, 0)):
        for number in ends if high_watermark else ():
            quorum.on_request(START, number, "x", fetch(end, epoch))
        assert quorum.high_watermark == high_watermark, "it never falls"


def test_what_a_voter_has_lost_since_it_acknowledged_it_is_not_counted() -> None:
    quorum = leader(voters=range(1, 6))
    quorum.log.take_snapshot(2)
    for number, offset, last_epoch in ((1, OLD + 1, EPOCH + 1), (1, 0, 0), (3, OLD + 1, EPOCH + 1)):
        quorum.on_request(START, number, "x", fetch(offset, last_epoch))
    assert quorum.high_watermark == 0, "it is on two of five"
    quorum.on_request(START, 4, "x", fetch(OLD + 1, EPOCH + 1))
    assert quorum.high_watermark == OLD + 1


def test_a_leader_is_established_by_its_own_record_though_all_before_was_committed() -> None:
    quorum = follower()
    answered(quorum, fetched(high_watermark=OLD), START)
    assert quorum.high_watermark == OLD
    quorum.tick(quorum.next_deadline() + 60_000)
    candidate(quorum)
    answered(quorum, VoteAnswer(NONE, quorum.epoch, -1, True), START)
    assert (quorum.state, quorum.high_watermark) == (LEADER, OLD)
    assert not quorum.leading.is_established
    quorum.on_request(START, 1, "x", fetch(OLD + 1, EPOCH + 1))
    assert quorum.leading.is_established


@pytest.mark.parametrize(
    ("log_start", "offset", "last_epoch", "found"),
    [
        (0, 0, 0, "records"),
        (0, 2, 1, "records"),
        (0, 1, 1, "records"),
        (0, 4, 3, "records"),
        (0, 3, 1, (1, 2)),
        (0, 9, 3, (3, 4)),
        (0, 3, 2, (1, 2)),
        (0, 4, 5, (3, 4)),
        (2, 0, 0, "snapshot"),
        (2, 1, 1, "snapshot"),
        (2, 2, 1, "records"),
        (2, 2, 3, "snapshot"),
        (2, 3, 3, "records"),
        (3, 4, 1, "snapshot"),
        (3, 3, 3, "records"),
        (3, 9, 3, (3, 4)),
    ],
)
def test_a_follower_gets_what_follows_its_log_or_hears_where_it_parts(
    log_start: int, offset: int, last_epoch: int, found: Any
) -> None:
    quorum = leader()
    quorum.log.take_snapshot(log_start)
    answer = asked(quorum, 3, fetch(offset, last_epoch))
    assert answer.error == NONE and (answer.epoch, answer.leader_id) == (EPOCH + 1, 2)
    assert answer.records == (quorum.log.read(offset) if found == "records" else b"")
    assert answer.diverging == (found if isinstance(found, tuple) else None)
    assert answer.snapshot == (quorum.log.snapshot if found == "snapshot" else None)
    end = quorum.leading.progress[3].end_offset
    assert end == (offset if found == "records" else -1), "only what leads to ours is acknowledged"


@pytest.mark.parametrize(
    ("epoch", "error"), [(EPOCH, FENCED_LEADER_EPOCH), (EPOCH + 2, UNKNOWN_LEADER_EPOCH)]
)
def test_who_fetches_in_another_epoch_hears_of_this_one(epoch: int, error: int) -> None:
    quorum = leader()
    assert asked(quorum, 3, fetch(4, 3, epoch=epoch)) == QuorumFetchAnswer(error, EPOCH + 1, 2)
    message = FetchSnapshot(epoch, SnapshotId(1, 1), 0)
    assert asked(quorum, 3, message) == SnapshotAnswer(error, EPOCH + 1, 2)
    assert quorum.leading.progress[3].fetched_at < 0


@pytest.mark.parametrize(
    ("snapshot", "position", "error"),
    [
        ((4, 3), 0, NONE),
        ((4, 3), 3, NONE),
        ((4, 3), 4, POSITION_OUT_OF_RANGE),
        ((4, 3), -1, POSITION_OUT_OF_RANGE),
        ((3, 3), 0, SNAPSHOT_NOT_FOUND),
    ],
)
def test_a_snapshot_is_given_in_pieces(
    snapshot: tuple[int, int], position: int, error: int
) -> None:
    quorum = leader()
    quorum.log.take_snapshot(4)
    answer = asked(quorum, 3, FetchSnapshot(EPOCH + 1, SnapshotId(*snapshot), position))
    assert (answer.error, answer.epoch, answer.leader_id) == (error, EPOCH + 1, 2)
    if not error:
        assert (answer.snapshot, answer.position, answer.size) == (snapshot, position, 4)
        assert list(answer.data) == ROWS[position : position + SNAPSHOT_PIECE]


@pytest.mark.parametrize("by_snapshot", [False, True])
@pytest.mark.parametrize(("count", "heard", "stays"), [(3, 0, 0), (3, 1, 1), (5, 1, 0), (5, 2, 1)])
def test_a_leader_that_a_majority_has_not_asked_for_long_resigns(
    count: int, heard: int, stays: bool, by_snapshot: bool
) -> None:
    quorum = leader(voters=range(1, count + 1))
    quorum.log.take_snapshot(1)
    alone_ms = TIMEOUTS.fetch * 3 // 2
    later = START + alone_ms - 1
    for number in [1, 3, 4, 5][:heard]:
        ask: Any = fetch(OLD + 1, EPOCH + 1)
        if by_snapshot:
            ask = FetchSnapshot(EPOCH + 1, quorum.log.snapshot, 0)
        quorum.on_request(later, number, "x", ask)
    quorum.tick(later)
    assert quorum.state == LEADER
    quorum.outbox = []
    quorum.tick(START + alone_ms)
    assert quorum.state == (LEADER if stays else RESIGNED)
    assert bool(sent(quorum, EndEpoch)) != stays
    quorum.tick(later + alone_ms - 1)
    assert (quorum.state == LEADER) == stays
    quorum.tick(later + alone_ms)
    assert quorum.state != LEADER
    assert quorum.leader_id == 2, "in this epoch nobody else leads"


def test_who_resigns_names_those_with_the_longest_log_first_and_lets_nobody_wait() -> None:
    quorum = leader(voters=range(1, 6))
    for number, end in ((1, 2), (3, OLD + 1), (4, 4)):
        quorum.on_request(START, number, number, fetch(end, {2: 1, 4: 3}.get(end, EPOCH + 1)))
    quorum.outbox = []
    quorum.resign(START)
    outbox = quorum.outbox
    told = {to: message for to, _, message in outbox if isinstance(message, EndEpoch)}
    assert told == dict.fromkeys((1, 3, 4, 5), EndEpoch(EPOCH + 1, 2, (3, 4, 1, 5)))
    waiting = [(to, message.error) for to, _, message in outbox if type(message) is not EndEpoch]
    assert waiting == [(3, NOT_LEADER_OR_FOLLOWER)]


def test_who_has_all_waits_for_news() -> None:
    quorum = leader()
    at_end = fetch(OLD + 1, EPOCH + 1, high_watermark=OLD + 1)
    assert asked(quorum, 1, at_end._replace(high_watermark=OLD)) is not None, "that is news"
    assert asked(quorum, 1, at_end._replace(wait_ms=0)) is not None
    assert asked(quorum, 1, at_end) is None
    quorum.log.append(EPOCH + 1, "x")
    quorum.on_appended(START)
    ((_, _, answer),) = sent(quorum, QuorumFetchAnswer)
    assert (answer.records, answer.high_watermark) == (quorum.log.read(OLD + 1), OLD + 1)
    further = fetch(OLD + 2, EPOCH + 1, high_watermark=OLD + 1)
    assert asked(quorum, 1, further) is None
    quorum.log.flush()
    quorum.on_flushed(START)
    ((_, _, answer),) = sent(quorum, QuorumFetchAnswer)
    assert (answer.records, answer.high_watermark) == (b"", OLD + 2)


def test_who_waits_for_news_waits_as_long_as_it_says_and_once() -> None:
    quorum = leader()
    at_end = fetch(OLD + 1, EPOCH + 1, high_watermark=OLD + 1)
    quorum.on_request(START, 1, "first", at_end)
    quorum.outbox = []
    quorum.on_request(START + 1, 1, "second", at_end._replace(wait_ms=10))
    assert [row[:2] for row in sent(quorum, QuorumFetchAnswer)] == [(1, "first")]
    assert quorum.next_deadline() <= START + 11
    quorum.tick(START + 10)
    assert not sent(quorum, QuorumFetchAnswer)
    quorum.tick(START + 11)
    ((to, number, answer),) = sent(quorum, QuorumFetchAnswer)
    assert (to, number, answer.error, answer.records) == (1, "second", NONE, b"")
    quorum.tick(START + 12)
    assert not sent(quorum, QuorumFetchAnswer)


def test_since_when_a_follower_has_had_everything() -> None:
    quorum = leader()
    progress = quorum.leading.progress[1]

    def asks(at: int, end: int) -> int:
        quorum.on_request(START + at, 1, "x", fetch(end, EPOCH + 1 if end > OLD else 3))
        return progress.caught_up_at - START if progress.caught_up_at >= 0 else -1

    assert asks(1, OLD) == -1
    assert asks(2, OLD + 1) == 2
    quorum.log.append(EPOCH + 1, "x")
    assert asks(3, OLD + 1) == 2, "there was no more when it asked last"
    quorum.log.append(EPOCH + 1, "y")
    assert asks(4, OLD + 2) == 3
    assert asks(5, OLD + 2) == 3
    assert asks(6, OLD + 3) == 6


def test_a_leader_is_made_known_until_it_is_asked() -> None:
    quorum = leader()
    assert [to for to, _, _ in sent(quorum, BeginEpoch)] == [1, 3]
    quorum.on_request(START, 1, "x", fetch(4, 3))
    now = START + TIMEOUTS.fetch // 4
    for each, number in ((1, 3), (3, 4)):
        quorum.on_answer(START, each, number, EpochAnswer(NONE, EPOCH + 1, 2))
    quorum.asking.clear()
    quorum.tick(now)
    assert [to for to, _, _ in sent(quorum, BeginEpoch)] == [3]
    quorum.on_voter_lost(now, 1)
    quorum.asking.clear()
    quorum.tick(now)
    assert [to for to, _, _ in sent(quorum, BeginEpoch)] == [1, 3], "its successor knows nothing"
    quorum.on_request(now, 1, "x", fetch(4, 3))
    quorum.asking.clear()
    quorum.tick(now + TIMEOUTS.fetch // 2)
    assert 1 in [to for to, _, _ in sent(quorum, BeginEpoch)], "it may have missed something"


# ── a follower ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("diverging", "end"),
    [
        ((3, 3), 3),  # of an epoch that both have, what both have
        ((3, 9), 4),
        ((1, 1), 1),
        ((1, 9), 2),
        ((2, 3), 2),  # of one that is not here, what is before it
    ],
)
def test_what_the_leader_does_not_have_is_cut(diverging: tuple[int, int], end: int) -> None:
    quorum = follower()
    answered(quorum, fetched(diverging=diverging, high_watermark=9), START)
    assert quorum.log.log_end_offset == end
    assert quorum.high_watermark == 0, "that it has what the leader has is not known yet"
    ((to, _, message),) = sent(quorum, Fetch)
    assert (to, message.fetch_offset, message.last_fetched_epoch) == (1, end, ROWS[end - 1][0])


def test_what_is_committed_is_never_cut() -> None:
    quorum = follower()
    answered(quorum, fetched(high_watermark=3), START)
    with pytest.raises(AssertionError, match="committed"):
        answered(quorum, fetched(diverging=(1, 2)), START)
    assert quorum.log.log_end_offset == OLD


@pytest.mark.parametrize(("told", "known"), [(2, 2), (4, 4), (9, 5)])
def test_a_follower_counts_as_committed_what_it_has(told: int, known: int) -> None:
    quorum = follower()
    more = OLD, [(EPOCH, "leader 1")]
    answered(quorum, fetched(high_watermark=told, records=more), START)
    assert quorum.high_watermark == known
    assert quorum.log.flushed == OLD + 1
    answered(quorum, fetched(high_watermark=0), START)
    assert quorum.high_watermark == known, "it never falls"


def test_what_a_full_disk_has_taken_is_durable_before_it_is_acknowledged() -> None:
    log = FullLog()
    quorum = follower(rows=(), log=log)
    log.room = 1
    with pytest.raises(DiskFullFault):
        answered(quorum, fetched(records=(0, [(EPOCH, "leader 1"), (EPOCH, "x")])), START)
    quorum.tick(START + RETRY_MS)
    ((_, _, message),) = sent(quorum, Fetch)
    assert message.fetch_offset == log.flushed == 1


SNAPSHOT = SnapshotId(4, 4)
CONTENT = [(4, "a"), (4, "b"), (4, "c"), (4, "d")]


def piece(position: int, data: list[Any], **changed: Any) -> SnapshotAnswer:
    return SnapshotAnswer(NONE, EPOCH, 1, SNAPSHOT, 4, position, data)._replace(**changed)  # type: ignore[arg-type]


def test_a_snapshot_is_fetched_piece_by_piece_and_takes_the_place_of_the_log() -> None:
    quorum = follower()
    answered(quorum, fetched(snapshot=SNAPSHOT, high_watermark=9), START)
    late = quorum.deadline
    for position in (0, 3):
        ((_, number, message),) = sent(quorum, FetchSnapshot)
        assert message == FetchSnapshot(EPOCH, SNAPSHOT, position)
        assert (quorum.high_watermark, quorum.log.records) == (0, ROWS)
        quorum.on_answer(START + 1, 1, number, piece(position, CONTENT[position : position + 3]))
        assert quorum.deadline == late + 1, "the leader lives"
    ((_, _, asked_then),) = sent(quorum, Fetch)
    assert (asked_then.fetch_offset, asked_then.last_fetched_epoch) == (4, 4)
    assert (quorum.high_watermark, quorum.log.records) == (4, CONTENT)


@pytest.mark.parametrize(
    "answer",
    [
        piece(0, [], error=SNAPSHOT_NOT_FOUND, snapshot=SnapshotId(-1, -1)),
        piece(3, CONTENT[3:]),
        piece(0, CONTENT[:3], snapshot=SnapshotId(4, 3)),
        piece(0, CONTENT[:3], error=POSITION_OUT_OF_RANGE),
        piece(0, []),
    ],
)
def test_what_is_not_the_next_piece_is_not_taken_and_the_leader_asked_anew(answer: Any) -> None:
    quorum = follower()
    answered(quorum, fetched(snapshot=SNAPSHOT), START)
    answered(quorum, answer, START)
    quorum.tick(START + RETRY_MS)
    assert [message.fetch_offset for _, _, message in sent(quorum, Fetch)] == [OLD]
    assert quorum.log.records == ROWS and not quorum.log.piece


def test_who_hears_nothing_of_its_leader_asks_for_pre_votes() -> None:
    quorum = follower()
    answered(quorum, fetched(), START + 1)
    silence = TIMEOUTS.fetch + STAGGER_MS  # it is the second voter
    quorum.tick(START + silence)
    assert quorum.state == FOLLOWER
    quorum.tick(START + 1 + silence)
    assert (quorum.state, quorum.epoch) == (PROSPECTIVE, EPOCH)
    assert quorum.store.read() == (EPOCH, 1, -1)


@pytest.mark.parametrize(("leads", "rank"), [(1, 0), (3, 1)])
@pytest.mark.parametrize("is_seen", [True, False])
def test_who_knows_its_leader_dead_stands_in_its_turn(leads: int, rank: int, is_seen: bool) -> None:
    """It is seen to be dead, or can't be reached when it was heard of just now."""
    quorum = candidate()
    quorum.on_request(START, leads, "x", BeginEpoch(EPOCH + 1, leads))
    ((to, number, _),) = sent(quorum, Fetch)
    if is_seen:
        quorum.on_voter_lost(START, leads)
    else:
        quorum.on_failed(START, to, number)
    assert quorum.state == UNATTACHED
    if rank:
        quorum.tick(START + rank * STAGGER_MS - 1)
        assert quorum.state == UNATTACHED
    quorum.tick(START + rank * STAGGER_MS)
    assert quorum.state == PROSPECTIVE
    quorum.on_voter_lost(START + rank * STAGGER_MS, leads)
    assert quorum.state == PROSPECTIVE, "that is no news"


def test_a_follower_outlives_the_death_of_another_and_a_fetch_that_fails() -> None:
    quorum = follower()
    answered(quorum, fetched(), START)
    quorum.on_voter_lost(START, 3)
    ((to, number, _),) = sent(quorum, Fetch)
    quorum.on_failed(START, to, number)
    assert (quorum.state, quorum.leader_id) == (FOLLOWER, 1)


def test_who_hears_that_its_leader_leads_no_more_stands_soon() -> None:
    quorum = follower()
    answered(quorum, fetched(error=NOT_LEADER_OR_FOLLOWER), START)
    assert quorum.state == UNATTACHED
    quorum.tick(START + 1000)
    assert quorum.state == PROSPECTIVE


# ── asking ──────────────────────────────────────────────────────────────────────────────────────


def test_one_request_at_a_time_and_a_rest_after_a_refusal() -> None:
    quorum = follower()
    ((to, number, _),) = sent(quorum, Fetch)
    quorum.tick(START + 1)
    assert not quorum.outbox
    quorum.on_answer(START + 1, to, number + 1, fetched(records=(OLD, [(EPOCH, "x")])))
    quorum.on_failed(START + 1, to, number + 1)
    assert quorum.log.records == ROWS and quorum.state == FOLLOWER, "nobody has asked that"
    quorum.on_answer(START + 1, to, number, fetched(error=UNKNOWN_LEADER_EPOCH))
    assert quorum.next_deadline() <= START + 1 + RETRY_MS
    quorum.tick(START + RETRY_MS)
    assert not quorum.outbox
    quorum.tick(START + 1 + RETRY_MS)
    assert len(sent(quorum, Fetch)) == 1
    quorum.tick(START + 1 + RETRY_MS + TIMEOUTS.request)
    assert quorum.state == FOLLOWER and len(sent(quorum, Fetch)) == 1, "that one was late"


def test_an_answer_that_never_comes_of_one_that_has_died_is_not_waited_for() -> None:
    quorum = voter()
    quorum.tick(quorum.next_deadline())
    first = {to: number for to, number, _ in sent(quorum, Vote)}
    quorum.on_voter_lost(START, 3)
    quorum.on_failed(START, 1, first[1])
    quorum.tick(START + RETRY_MS - 1)
    assert not quorum.outbox
    quorum.tick(START + RETRY_MS)
    again = {to: number for to, number, _ in sent(quorum, Vote)}
    assert again.keys() == first.keys() and not set(again.values()) & set(first.values())
