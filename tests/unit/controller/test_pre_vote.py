"""For whom a voter would vote (KIP-996): for nobody while it hears the leader."""

from collections.abc import Callable
from random import Random

import pytest

from shmbroker.controller.raft.quorum import FOLLOWER, LEADER, UNATTACHED, Quorum
from shmbroker.controller.raft.quorum_messages import (
    BeginEpoch,
    Fetch,
    QuorumFetchAnswer,
    Vote,
    VoteAnswer,
)
from tests.simulation.quorum_simulation import SimulatedLog
from tests.unit.controller.test_lost_voter import Store

EPOCH, LAST_EPOCH, END = 5, 4, 2


def voter() -> Quorum:
    log = SimulatedLog()
    log.append_fetched((0, [(3, "a"), (LAST_EPOCH, "b")]))
    quorum = Quorum(2, (1, 2, 3), log, Store(), Random(1))
    quorum.start(0)
    return quorum


def answers_to(quorum: Quorum, kind: type, answer: object) -> None:
    """What the other voters say to all that was asked."""
    asked, quorum.outbox = quorum.outbox, []
    for to, request_id, message in asked:
        if isinstance(message, kind):
            quorum.on_answer(0, to, request_id, answer)


def unattached() -> Quorum:
    quorum = voter()
    assert quorum.state == UNATTACHED
    return quorum


def told_of_a_leader() -> Quorum:
    quorum = voter()
    quorum.on_request(0, 1, 7, BeginEpoch(EPOCH, 1))
    assert quorum.state == FOLLOWER
    return quorum


def following() -> Quorum:
    quorum = told_of_a_leader()
    answers_to(quorum, Fetch, QuorumFetchAnswer(0, EPOCH, 1, 0, None, None, b""))
    assert quorum.state == FOLLOWER
    return quorum


def leading() -> Quorum:
    quorum = voter()
    quorum.tick(quorum.next_deadline())
    for _ in ("pre-vote", "vote"):
        answers_to(quorum, Vote, VoteAnswer(0, quorum.epoch, -1, True))
    assert quorum.state == LEADER
    return quorum


@pytest.mark.parametrize(
    ("situation", "is_granted"),
    [(unattached, True), (told_of_a_leader, True), (following, False), (leading, False)],
)
def test_who_hears_the_leader_would_vote_for_nobody(
    situation: Callable[[], Quorum], is_granted: bool
) -> None:
    quorum = situation()
    assert granted(quorum, quorum.log.last_epoch, quorum.log.log_end_offset) == is_granted


@pytest.mark.parametrize(
    ("last_epoch", "end_offset", "is_granted"),
    [
        (LAST_EPOCH, END, True),
        (LAST_EPOCH, END - 1, False),
        (LAST_EPOCH - 1, END + 9, False),
        (LAST_EPOCH + 1, END - 1, True),
    ],
)
def test_nobody_would_vote_for_a_log_that_ends_before_its_own(
    last_epoch: int, end_offset: int, is_granted: bool
) -> None:
    assert granted(unattached(), last_epoch, end_offset) == is_granted


def granted(quorum: Quorum, last_epoch: int, end_offset: int) -> bool:
    quorum.outbox.clear()
    before = quorum.epoch, quorum.store.read()
    quorum.on_request(0, 3, 7, Vote(quorum.epoch, 3, last_epoch, end_offset, True))
    assert (quorum.epoch, quorum.store.read()) == before, "a pre-vote promises nothing"
    (answer,) = [message for _, _, message in quorum.outbox if isinstance(message, VoteAnswer)]
    return answer.is_granted
