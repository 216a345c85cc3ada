"""Transactional batches at the leader: which are appended, which wait for their coordinator, and
what a marker ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmbroker.broker import unverified
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import (
    APPEND_CONSTANT,
    APPEND_FLAG_ADDS,
    APPEND_FLAG_NO_ABORTABLE,
    APPEND_FLAG_PARTS,
    APPEND_FLAG_TRANSACTIONAL,
    NAME_LENGTH,
    TOKEN,
)
from shmbroker.records.batch import control_batch, encode_batch
from shmbroker.records.batch_layout import CONTROL_COMMIT
from shmbroker.records.end_marker import EndMarker
from shmbroker.wire import error_codes as e
from tests.unit.broker.test_group_commit import NOW_MS, Worker

PRODUCER = 7
TRANSACTIONAL_ID = "pay"
ADDS = APPEND_FLAG_TRANSACTIONAL | APPEND_FLAG_ADDS
MARKER = control_batch(CONTROL_COMMIT, bytes(6), timestamp=1, producer_id=PRODUCER)


class Leader(Worker):
    """`questions` to the coordinator: [id, producer, epoch, may_add, on_answer]."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.partition = self.open("t")
        self.questions: list[tuple[str, int, int, bool, Callable[[int], None]]] = []
        self.appender.unverified.ask = lambda partition, *more: self.questions.append(more)

    def produce(
        self,
        sequence: int = 0,
        *,
        epoch: int = 0,
        producer_id: int = PRODUCER,
        flags: int = APPEND_FLAG_TRANSACTIONAL,
        is_transactional: bool = True,
        batch: bytes | None = None,
        parts: int = 1,
    ) -> int:
        """The token of an APPEND; its answer comes into `peer.answers`."""
        token = next(self.tokens)
        if batch is None:
            batch = encode_batch(
                [(NOW_MS, None, b"v%d" % sequence, ())],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=is_transactional,
            )
        if parts > 1:
            flags |= APPEND_FLAG_PARTS
            piece = TOKEN.pack(token) + batch[:40]
            self.appender.parts.on_part(self.peer, memoryview(piece), 0, len(piece))
            batch = batch[40:]
        key = partition_key(self.partition.topic_id, 0)
        name = b""
        if flags & APPEND_FLAG_TRANSACTIONAL:
            name = NAME_LENGTH.pack(len(TRANSACTIONAL_ID)) + TRANSACTIONAL_ID.encode()
        entry = TOKEN.pack(token) + APPEND_CONSTANT.pack(1, flags, 1000, key, 0) + name + batch
        data = memoryview(bytearray(b"\xee" * 3 + entry))
        self.appender.on_append(self.peer, data, 3, len(entry))
        data[:] = bytes(len(data))  # the ring's room is used for something else
        return token

    def mark(
        self, *, is_commit: bool = True, epoch: int = 0, coordinator: int = 0, version: int = 1
    ):
        marker = EndMarker(PRODUCER, epoch, coordinator, is_commit)
        return self.append_marker(self.partition, marker, version)

    def errors(self) -> list[tuple[int, int]]:
        return [(token, error) for token, error, _ in self.peer.answers]

    def answer(self, error: int = e.NONE) -> None:
        self.questions.pop(0)[-1](error)


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


def test_first_batch_waits_for_the_coordinator_and_those_behind_it_keep_their_order(leader):
    tokens = [leader.produce(sequence) for sequence in range(3)]
    assert leader.peer.answers == [] and leader.partition.log.log_end_offset == 0
    assert [question[:4] for question in leader.questions] == [("pay", PRODUCER, 0, False)]
    others = leader.produce(is_transactional=False, producer_id=8, flags=0)
    leader.answer()
    assert leader.peer.answers == [
        (others, 0, 0),
        *[(token, 0, number + 1) for number, token in enumerate(tokens)],
    ]
    assert leader.partition.last_stable_offset == 1
    leader.produce(3)
    assert not leader.questions  # it is open now
    assert leader.mark() == (e.NONE, 6)
    assert leader.partition.last_stable_offset == 6


def test_batch_in_parts_waits_as_a_whole(leader):
    token = leader.produce(parts=2)
    leader.answer()
    assert leader.peer.answers == [(token, 0, 0)]
    assert leader.partition.last_stable_offset == 0


def test_next_transaction_is_asked_about_again(leader):
    leader.produce(0)
    leader.answer()
    leader.mark()
    leader.produce(1)
    assert len(leader.questions) == 1


def test_new_epoch_is_asked_about_though_the_old_one_is_open(leader):
    leader.produce(0)
    leader.answer()
    leader.produce(0, epoch=1)
    assert [question[2] for question in leader.questions] == [1]


def test_epoch_that_came_behind_a_question_gets_its_own(leader):
    first, second = leader.produce(0), leader.produce(0, epoch=1)
    leader.answer()
    assert leader.errors() == [(first, e.NONE)]
    assert [question[2] for question in leader.questions] == [1]
    leader.answer(e.INVALID_TXN_STATE)
    assert leader.errors()[1:] == [(second, e.INVALID_TXN_STATE)]


@pytest.mark.parametrize("is_marked", [False, True])
def test_what_is_said_of_an_epoch_is_not_told_to_batches_of_the_next(leader, is_marked):
    """As of a producer whose predecessor was fenced while its coordinator was slow to answer."""
    old = leader.produce(epoch=0, flags=ADDS)
    new = [leader.produce(sequence, epoch=1, flags=ADDS) for sequence in range(2)]
    if is_marked:  # the abort of the predecessor's transaction, by another coordinator
        leader.mark(is_commit=False, epoch=1, version=2)
        leader.answer()
        told = e.INVALID_TXN_STATE
    else:
        leader.answer(e.INVALID_PRODUCER_EPOCH)
        told = e.INVALID_PRODUCER_EPOCH
    assert leader.errors() == [(old, told)]
    assert [question[2] for question in leader.questions] == [1]
    leader.answer()
    assert leader.errors()[1:] == [(token, e.NONE) for token in new]
    assert leader.partition.producers.is_open(PRODUCER, 1)


@pytest.mark.parametrize(
    "error", [e.INVALID_TXN_STATE, e.NOT_ENOUGH_REPLICAS, e.TRANSACTION_ABORTABLE]
)
def test_refused_by_the_coordinator_nothing_is_appended(leader, error):
    tokens = [leader.produce(sequence) for sequence in range(2)]
    leader.answer(error)
    assert leader.errors() == [(token, error) for token in tokens]
    assert leader.partition.log.log_end_offset == 0


def test_without_a_coordinator_it_is_no_transaction(leader):
    leader.appender.unverified.ask = unverified.refuse_all
    token = leader.produce()
    assert leader.errors() == [(token, e.INVALID_TXN_STATE)]


def test_marker_that_overtakes_the_answer_voids_it(leader):
    token = leader.produce()
    assert leader.mark(is_commit=False)[0] == e.NONE
    leader.answer()
    assert leader.errors() == [(token, e.INVALID_TXN_STATE)]
    assert not leader.partition.producers.open


def test_marker_of_the_transaction_before_leaves_the_next_one_alone(leader):
    flags = APPEND_FLAG_TRANSACTIONAL | APPEND_FLAG_ADDS
    before = leader.produce(0, flags=flags)
    leader.answer()
    token = leader.produce(0, epoch=1, flags=flags)
    assert leader.mark(epoch=1)[0] == e.NONE
    leader.answer()
    assert leader.errors() == [(before, e.NONE), (token, e.NONE)]
    token = leader.produce(0, epoch=2, flags=flags)
    assert leader.mark(is_commit=False, epoch=3)[0] == e.NONE  # it was fenced meanwhile
    leader.answer()
    assert leader.errors()[2:] == [(token, e.INVALID_TXN_STATE)]


def test_old_requests_do_not_know_that_a_transaction_can_only_be_aborted(leader):
    flags = APPEND_FLAG_TRANSACTIONAL | APPEND_FLAG_NO_ABORTABLE
    for given, error in ((flags, e.INVALID_TXN_STATE), (flags ^ 32, e.TRANSACTION_ABORTABLE)):
        token = leader.produce(flags=given)
        leader.answer(e.TRANSACTION_ABORTABLE)
        assert leader.errors()[-1] == (token, error)


def test_producer_that_adds_its_partitions_begins_with_sequence_0(leader):
    token = leader.produce(5, flags=ADDS)
    assert leader.questions[0][3] is True
    leader.answer()
    assert leader.errors() == [(token, e.OUT_OF_ORDER_SEQUENCE_NUMBER)]
    token = leader.produce(5)
    leader.answer()
    assert leader.errors()[1:] == [(token, e.NONE)]


@pytest.mark.parametrize("flags", [APPEND_FLAG_TRANSACTIONAL, ADDS])
def test_coordinator_is_not_asked_about_a_producer_that_was_fenced_here(leader, flags):
    leader.produce(0, epoch=1)
    leader.answer()
    token = leader.produce(0, epoch=0, flags=flags)
    assert leader.errors()[1:] == [(token, e.INVALID_PRODUCER_EPOCH)]
    assert not leader.questions


def test_what_waits_behind_the_first_batch_is_not_the_first_if_that_is_refused(leader):
    first, second = leader.produce(0, flags=ADDS, batch=_damaged()), leader.produce(1, flags=ADDS)
    assert leader.questions[0][3] is True
    leader.answer()
    told = [(first, e.CORRUPT_MESSAGE), (second, e.OUT_OF_ORDER_SEQUENCE_NUMBER)]
    assert leader.errors() == told


def test_plain_batch_of_a_producer_within_its_transaction_is_refused(leader):
    leader.produce(0)
    leader.answer()
    token = leader.produce(1, is_transactional=False, flags=0)
    assert leader.errors()[1:] == [(token, e.INVALID_TXN_STATE)]
    duplicate = leader.produce(0, is_transactional=False, flags=0)
    assert leader.peer.answers[2:] == [(duplicate, e.NONE, 0)]
    leader.mark()
    token = leader.produce(1, is_transactional=False, flags=0)
    assert leader.peer.answers[3:] == [(token, e.NONE, 2)]


@pytest.mark.parametrize(
    ("batch", "flags", "error"),
    [
        (
            encode_batch([(1, None, b"v", ())], is_transactional=True),
            APPEND_FLAG_TRANSACTIONAL,
            e.INVALID_RECORD,
        ),
        (
            encode_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0,
                         is_transactional=True),
            0,
            e.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (MARKER, 0, e.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
    ids=["no producer", "no id", "marker, no id"],
)  # fmt: skip
def test_what_no_client_may_append(leader, batch, flags, error):
    token = leader.produce(batch=batch, flags=flags)
    assert leader.errors() == [(token, error)]
    assert not leader.questions


def _damaged() -> bytes:
    batch = bytearray(
        encode_batch(
            [(NOW_MS, None, b"v", ())], producer_id=PRODUCER, producer_epoch=0, base_sequence=0,
            is_transactional=True,
        )
    )  # fmt: skip
    batch[-1] ^= 1
    return bytes(batch)


def _from_the_future() -> bytes:
    return encode_batch(
        [(NOW_MS + 7_200_000, None, b"v", ())], producer_id=PRODUCER, producer_epoch=0,
        base_sequence=0, is_transactional=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (MARKER, e.INVALID_RECORD),
        (_damaged(), e.CORRUPT_MESSAGE),
        (_from_the_future(), e.INVALID_TIMESTAMP),
    ],
    ids=["marker", "damaged", "from the future"],
)
def test_coordinator_is_asked_before_a_batch_is_refused_for_what_is_in_it(leader, batch, error):
    told = [leader.produce(batch=batch), leader.produce(batch=batch)]
    assert leader.errors() == [] and len(leader.questions) == 1
    leader.answer(e.INVALID_TXN_STATE)
    assert leader.errors() == [(token, e.INVALID_TXN_STATE) for token in told]
    token = leader.produce(batch=batch)
    leader.answer()
    assert leader.errors()[2:] == [(token, error)]
    assert not leader.questions and leader.partition.log.log_end_offset == 0


def test_too_much_that_waits_is_refused(leader, monkeypatch):
    monkeypatch.setattr(unverified, "BYTES_MAX", 300)
    tokens = [leader.produce(sequence) for sequence in range(5)]
    assert {error for _, error in leader.errors()} == {e.NOT_ENOUGH_REPLICAS}
    refused = {token for token, _ in leader.errors()}
    leader.answer()
    assert {token for token, error in leader.errors() if not error} == set(tokens) - refused
    leader.mark()
    leader.produce(len(tokens) - len(refused))
    assert len(leader.questions) == 1  # there is room again


def test_batches_of_a_dead_network_worker_are_dropped(leader):
    leader.produce()
    leader.appender.unverified.drop_peer(leader.peer.slot)
    leader.answer()
    assert leader.peer.answers == [] and leader.partition.log.log_end_offset == 0


def test_leader_that_lost_its_partition_meanwhile_says_so(leader):
    token = leader.produce()
    leader.partition.is_leader = False
    leader.answer()
    assert leader.errors() == [(token, e.NOT_LEADER_OR_FOLLOWER)]


# ── markers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "epoch", "coordinator", "error"),
    [
        (1, 3, 5, e.NONE),
        (1, 4, 5, e.NONE),
        (1, 2, 5, e.INVALID_PRODUCER_EPOCH),
        (2, 3, 5, e.INVALID_PRODUCER_EPOCH),
        (2, 4, 5, e.NONE),
        (1, 3, 4, e.TRANSACTION_COORDINATOR_FENCED),
        (1, 3, 6, e.NONE),
        (2, 2, 4, e.INVALID_PRODUCER_EPOCH),
    ],
)
def test_marker_is_judged_by_both_epochs(leader, version, epoch, coordinator, error):
    leader.mark(epoch=3, coordinator=5)
    leader.produce(0, epoch=3)
    leader.answer()
    found, end_offset = leader.mark(epoch=epoch, coordinator=coordinator, version=version)
    assert (found, end_offset) == (error, -1 if error else 3)
    assert bool(leader.partition.producers.open) == bool(error)


def test_marker_comes_twice_where_its_answer_was_lost(leader):
    leader.produce(0)
    leader.answer()
    assert leader.mark(epoch=1, version=2) == (e.NONE, 2)
    assert leader.mark(epoch=1, version=2) == (e.NONE, 3)
    assert leader.mark(epoch=0, version=2)[0] == e.INVALID_PRODUCER_EPOCH


def test_marker_needs_a_leader_with_enough_replicas(leader):
    leader.partition.is_under_min_in_sync = True
    assert leader.mark() == (e.NOT_ENOUGH_REPLICAS, -1)
    leader.partition.is_leader = False
    assert leader.mark() == (e.NOT_LEADER_OR_FOLLOWER, -1)


def test_marker_counts_when_the_disk_has_it_where_the_topic_asks_for_that(leader):
    leader.partition = leader.open("durable", shmbroker_ack_durability="fsync")
    leader.produce(0)
    leader.answer()
    leader.appender.acks.group_commit.start()
    leader.finish_job()
    assert leader.partition.last_stable_offset == 0
    _, end_offset = leader.mark()
    leader.appender.acks.group_commit.start()
    assert leader.partition.high_watermark == 1
    leader.finish_job()
    assert leader.partition.last_stable_offset == end_offset == 2
    assert leader.partition in leader.appender.acks.moved


def test_marker_bears_the_append_time_of_its_topic(leader):
    leader.partition = leader.open("stamped", message_timestamp_type="LogAppendTime")
    leader.produce(0)
    leader.answer()
    leader.mark()
    segment = leader.partition.log.active
    headers: list[Any] = [header for _, header in segment.headers(0, segment.size)]
    assert [header[5] & 8 for header in headers] == [8, 8]
    assert headers[1][8] == NOW_MS


def test_first_transaction_that_is_open_holds_the_last_stable_offset(leader):
    for producer_id in (1, 2):
        leader.produce(0, producer_id=producer_id)
        leader.answer()
    leader.produce(0, is_transactional=False, producer_id=9, flags=0)
    assert leader.partition.last_stable_offset == 0
    leader.append_marker(leader.partition, EndMarker(1, 0, 0, True), 1)
    assert leader.partition.last_stable_offset == 1
    leader.append_marker(leader.partition, EndMarker(2, 0, 0, False), 1)
    assert leader.partition.last_stable_offset == 5
    assert leader.partition.log.aborted.find(0, 5) == [(2, 1, 4, 5)]
