"""A voter whose directory was emptied while the others run."""

from pathlib import Path
from random import Random

import pytest

from shmbroker.controller.raft.quorum import FOLLOWER, PROSPECTIVE, UNATTACHED, Quorum
from shmbroker.controller.raft.quorum_messages import (
    BeginEpoch,
    EpochAnswer,
    Fetch,
    QuorumFetchAnswer,
    Vote,
    VoteAnswer,
)
from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.controller.raft.voter import Voter
from shmbroker.errors import CorruptFault
from shmbroker.wire.error_codes import FENCED_LEADER_EPOCH
from tests.simulation.quorum_simulation import SimulatedLog
from tests.support.controller_family import ControllerFamily
from tests.support.family_memory import VirtualClock

EPOCH = 5


class Store:
    """What was stored, last of all."""

    def __init__(self) -> None:
        self.row = (0, -1, -1)

    def read(self) -> tuple[int, int, int]:
        return self.row

    def write(self, epoch: int, leader_id: int, voted_id: int) -> None:
        self.row = (epoch, leader_id, voted_id)


def emptied() -> Quorum:
    quorum = Quorum(2, (1, 2, 3), SimulatedLog(), Store(), Random(1), lost_epoch=EPOCH - 1)
    quorum.start(0)
    return quorum


def gives_vote(quorum: Quorum, candidate: int, epoch: int, *, is_pre_vote: bool) -> bool:
    quorum.outbox.clear()
    quorum.on_request(0, candidate, 7, Vote(epoch, candidate, 99, 99, is_pre_vote))
    (answer,) = [message for _, _, message in quorum.outbox if isinstance(message, VoteAnswer)]
    return answer.is_granted


@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_it_has_no_vote(is_pre_vote: bool) -> None:
    quorum = emptied()
    assert not gives_vote(quorum, 3, EPOCH, is_pre_vote=is_pre_vote)
    assert quorum.store.read() == (0, -1, -1), "after another end it is known, too"


def test_it_follows_no_leader_of_an_epoch_before_one_that_it_may_have_voted_in() -> None:
    quorum = emptied()
    quorum.on_request(0, 1, 7, BeginEpoch(EPOCH - 2, 1))
    assert quorum.outbox == [(1, 7, EpochAnswer(FENCED_LEADER_EPOCH, EPOCH - 1, -1))]
    assert quorum.state == UNATTACHED


def test_it_does_not_stand() -> None:
    quorum = emptied()
    quorum.tick(10_000)
    assert quorum.state == PROSPECTIVE
    request_id = [asked for voter, asked, _ in quorum.outbox if voter == 3][-1]
    quorum.on_answer(10_001, 3, request_id, VoteAnswer(0, quorum.epoch, -1, True))
    assert quorum.state == PROSPECTIVE and quorum.epoch == EPOCH - 1


def test_it_votes_again_when_it_has_what_was_committed() -> None:
    quorum = emptied()
    quorum.on_request(0, 1, 7, BeginEpoch(EPOCH, 1))
    assert quorum.state == FOLLOWER

    def fetched(high_watermark: int, *records: tuple[int, str]) -> None:
        sent = [asked for _, asked, message in quorum.outbox if isinstance(message, Fetch)]
        lot = (quorum.log.log_end_offset, records) if records else b""
        answer = QuorumFetchAnswer(0, EPOCH, 1, high_watermark, None, None, lot)
        quorum.on_answer(0, 1, sent[-1], answer)

    fetched(0, (3, "a"), (4, "b"))
    assert quorum.must_catch_up
    fetched(2, (EPOCH, "leader 1"))
    assert quorum.must_catch_up, "the leader has not said yet what is committed"
    fetched(4, (EPOCH, "c"))
    assert not quorum.must_catch_up
    assert quorum.store.read() == (EPOCH, 1, -1)
    assert gives_vote(quorum, 3, EPOCH + 1, is_pre_vote=False)


@pytest.mark.parametrize(
    ("others_epoch", "has_state", "must_catch_up"),
    [(3, False, True), (0, False, True), (3, True, False), (-1, False, False)],
)
def test_who_has_lost_it(
    tmp_path: Path, others_epoch: int, has_state: bool, must_catch_up: bool
) -> None:
    voter = Voter.open(str(tmp_path), 2, (1, 2, 3), clock=VirtualClock())
    voter.close()
    if has_state:
        QuorumState(voter.directory).write(1, -1, -1)
    voter = Voter.open(str(tmp_path), 2, (1, 2, 3), clock=VirtualClock(), others_epoch=others_epoch)
    assert voter.quorum.must_catch_up == must_catch_up
    voter.close()


@pytest.mark.parametrize("controllers", [1, 3])
def test_damaged_one_is_told_to_copy_from_others_if_there_are_any(
    tmp_path: Path, controllers: int
) -> None:
    family = ControllerFamily(tmp_path, controllers, controllers)
    try:
        family.until(family.active)
        family.end(1)
        directory = tmp_path / "node-1" / "__cluster_metadata-0"
        (log,) = directory.glob("*.log")
        log.write_bytes(b"")
        with pytest.raises(CorruptFault, match="restore the file from a copy") as fault:
            family.start(1)
        is_told = f"remove {directory} and start" in str(fault.value)
        assert is_told == (controllers > 1)
    finally:
        family.close()
