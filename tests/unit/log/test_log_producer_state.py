"""Idempotent producers: the rules of a Produce, and the snapshot file."""

import pytest

from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log import producer_state
from shmbroker.log.producer_state import ProducerState, read_snapshot
from shmbroker.records.end_marker import EndMarker
from shmbroker.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
)

ACCEPTED = (NONE, -1, -1)
GAP = (OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1)
OLD = (INVALID_PRODUCER_EPOCH, -1, -1)


@pytest.fixture
def state():
    """Producer 5, epoch 2: seven batches of ten records, sequences 0-69, offsets 1000-1069."""
    state = ProducerState()
    for number in range(7):
        state.update(5, 2, 10 * number, 9, 1000 + 10 * number, 70 + number)
    return state


@pytest.mark.parametrize(
    ("producer_id", "epoch", "sequence", "delta", "answer"),
    [
        (5, 2, 70, 0, ACCEPTED),
        (5, 2, 60, 9, (NONE, 1060, 76)),
        (5, 2, 20, 9, (NONE, 1020, 72)),
        (5, 2, 10, 9, GAP),  # a duplicate, but too old to be known
        (5, 2, 60, 8, GAP),
        (5, 2, 61, 8, GAP),
        (5, 2, 71, 0, GAP),
        (5, 2, 0, 0, GAP),
        (5, 1, 70, 0, OLD),
        (5, 1, 60, 9, OLD),
        (5, 3, 0, 4, ACCEPTED),
        (5, 3, 70, 0, GAP),
        (6, 0, 0, 0, ACCEPTED),
        (6, 9, 12345, 0, ACCEPTED),
    ],
)
def test_batch_is_judged(state, producer_id, epoch, sequence, delta, answer):
    assert state.check(producer_id, epoch, sequence, delta) == answer


def test_new_epoch_forgets_the_old_batches(state):
    state.update(5, 3, 0, 4, 1070, 80)
    assert state.check(5, 3, 5, 0) == ACCEPTED
    assert state.check(5, 3, 0, 4) == (NONE, 1070, 80)
    assert state.check(5, 3, 60, 9) == GAP
    assert state.check(5, 2, 60, 9) == OLD


FEW = (NOT_ENOUGH_REPLICAS, -1, -1)
ELSEWHERE = (NOT_LEADER_OR_FOLLOWER, -1, -1)


@pytest.mark.parametrize(
    ("refused", "batch", "answer"),
    [
        ([(5, 2, 70)], (5, 2, 71, 0), FEW),  # was on its way behind it
        ([(5, 2, 70)], (5, 2, 70, 0), ACCEPTED),
        ([(5, 2, 70)], (5, 2, 60, 9), (NONE, 1060, 76)),
        ([(5, 2, 70), (5, 2, 71)], (5, 2, 75, 0), FEW),  # the first one counts
        ([(5, 2, 71), (5, 2, 70)], (5, 2, 75, 0), FEW),
        ([(5, 2, 71)], (5, 2, 75, 0), GAP),  # 70 was not refused: it is missing
        ([(5, 2, 50)], (5, 2, 75, 0), GAP),  # refused once, stored since
        ([(5, 2, 50), (5, 2, 70)], (5, 2, 75, 0), FEW),
        ([(5, 2, 70)], (5, 2, 10, 9), GAP),  # an old duplicate
        ([(5, 1, 70)], (5, 2, 75, 0), GAP),
        ([(6, 0, 0)], (6, 0, 3, 0), FEW),  # not known yet: else any sequence is taken
        ([(6, 0, 0)], (6, 0, 0, 0), ACCEPTED),
        ([(6, 0, 0)], (6, 1, 0, 0), ACCEPTED),
        ([(5, 3, 0)], (5, 3, 2, 0), FEW),
        ([(5, 3, 0)], (5, 3, 0, 0), ACCEPTED),
        ([(8, 0, 2**31 - 2)], (8, 0, 3, 0), FEW),  # behind the wrap
    ],
)
def test_what_is_behind_a_refused_batch_is_refused_as_it_was(state, refused, batch, answer):
    for one in refused:
        state.note_refused(*one, NOT_ENOUGH_REPLICAS)
    assert state.check(*batch) == answer


def test_a_refused_batch_that_is_stored_is_forgotten(state):
    state.note_refused(5, 2, 70, NOT_LEADER_OR_FOLLOWER)
    assert state.check(5, 2, 71, 0) == ELSEWHERE
    state.update(5, 2, 70, 0, 1070, 80)
    assert state.check(5, 2, 71, 0) == ACCEPTED
    assert state.check(5, 2, 72, 0) == GAP


def test_refused_batches_are_remembered_within_bounds(state, monkeypatch):
    monkeypatch.setattr(producer_state, "REFUSED_MAX", 3)
    for producer_id in range(10, 15):
        state.note_refused(producer_id, 0, 0, NOT_ENOUGH_REPLICAS)
    assert [state.check(one, 0, 1, 0) == FEW for one in range(10, 15)] == [False] * 2 + [True] * 3


@pytest.mark.parametrize(("first", "delta", "following"), [(2**31 - 5, 4, 0), (2**31 - 3, 9, 7)])
def test_sequence_wraps_to_zero(first, delta, following):
    state = ProducerState()
    state.update(1, 0, first, delta, 0, 0)
    assert state.check(1, 0, following, 0) == ACCEPTED
    assert state.check(1, 0, first, delta) == (NONE, 0, 0)
    state.update(1, 0, following, 0, delta + 1, 1)
    assert state.check(1, 0, following + 1, 0) == ACCEPTED


def test_snapshot_keeps_the_last_batch(state, tmp_path):
    state.update(9, 0, 2**31 - 3, 9, 1070, 90)  # wraps inside
    path = str(tmp_path / "00000000000000001080.snapshot")
    state.write_snapshot(path)
    again = read_snapshot(path)
    assert again.check(5, 2, 70, 0) == ACCEPTED
    assert again.check(5, 2, 60, 9) == (NONE, 1060, 76)
    assert again.check(5, 2, 50, 9) == GAP
    assert again.check(9, 0, 2**31 - 3, 9) == (NONE, 1070, 90)
    assert again.check(9, 0, 7, 0) == ACCEPTED
    assert again.encode_snapshot() == state.encode_snapshot()


def test_snapshot_bytes_are_kafkas():
    """As Apache Kafka 4.2.1 wrote it after one batch of 2,000 records."""
    state = ProducerState()
    state.update(0, 0, 0, 1999, 0, 0x1A1FFAB93E7)
    assert state.encode_snapshot().hex() == (
        "000182e8bc6300000001000000000000000000000000"
        "07cf00000000000007cf000007cf000001a1ffab93e7ffffffffffffffffffffffff"
    )


def test_producer_without_data_batches_survives_a_snapshot(tmp_path):
    state = ProducerState()
    state.update(3, 1, 0, 0, 0, 5)
    state.producers[3].batches.clear()
    state.producers[3].next_sequence = 0
    path = str(tmp_path / "0.snapshot")
    state.write_snapshot(path)
    entry = read_snapshot(path).producers[3]
    assert (entry.epoch, entry.batches, entry.next_sequence) == (1, [], 0)


def test_damaged_snapshot_is_a_fault(state, tmp_path):
    path = tmp_path / "1.snapshot"
    state.write_snapshot(str(path))
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CorruptFault):
            read_snapshot(str(path))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptFault):
            read_snapshot(str(path))
    with pytest.raises(StorageFault):
        read_snapshot(str(tmp_path / "none"))


def test_silent_producers_expire(state):
    state.update(6, 0, 0, 0, 0, 500)
    assert state.expire(576, 500) == 1
    assert list(state.producers) == [6]
    state.update(7, 0, 0, 0, 0, 1)
    state.producers[7].current_txn_first_offset = 0
    assert state.expire(10_000, 500) == 1
    assert list(state.producers) == [7]


def test_number_of_producers_is_bounded(monkeypatch):
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 100)
    state = ProducerState()
    for producer_id in range(1000):
        state.update(producer_id, 0, 0, 0, 0, producer_id)
        assert len(state) <= 100
    assert state.check(999, 0, 1, 0) == ACCEPTED
    assert 998 in state.producers
    assert 0 not in state.producers


@pytest.mark.parametrize(
    ("is_open", "version", "producer_id", "epoch", "coordinator_epoch", "error"),
    [
        (True, 1, 5, 1, 7, INVALID_PRODUCER_EPOCH),
        (True, 1, 5, 2, 7, NONE),
        (True, 1, 5, 3, 7, NONE),
        (True, 2, 5, 1, 7, INVALID_PRODUCER_EPOCH),
        (True, 2, 5, 2, 7, INVALID_PRODUCER_EPOCH),  # the end of an earlier one (KIP-890)
        (True, 2, 5, 3, 7, NONE),
        (True, 1, 5, 2, 6, TRANSACTION_COORDINATOR_FENCED),
        (True, 2, 5, 3, 6, TRANSACTION_COORDINATOR_FENCED),
        (True, 2, 5, 3, 8, NONE),
        (False, 1, 5, 2, 7, NONE),
        (False, 2, 5, 2, 7, NONE),  # once more: its answer was lost
        (False, 2, 5, 1, 7, INVALID_PRODUCER_EPOCH),
        (False, 2, 5, 2, 6, TRANSACTION_COORDINATOR_FENCED),
        (False, 2, 6, 0, 0, NONE),  # not known
    ],
)
def test_marker_is_judged(state, is_open, version, producer_id, epoch, coordinator_epoch, error):
    state.end(EndMarker(5, 2, 7, True), 1070, 80)
    if is_open:
        state.update(5, 2, 0, 0, 1071, 81)
        state.begin(5, 1071)
    marker = EndMarker(producer_id, epoch, coordinator_epoch, True)
    assert state.check_marker(marker, version) == error


def test_snapshot_is_believed_and_the_batches_before_it_are_added(state):
    known = ProducerState()
    known.update(5, 2, 60, 9, 1060, 76)
    known.update(8, 0, 0, 0, 1070, 90)
    known.update(9, 4, 0, 0, 1071, 91)
    recent = ProducerState()
    recent.take(known, state)
    state.update(9, 3, 0, 0, 990, 60)
    assert recent.check(5, 2, 50, 9) == (NONE, 1050, 75)
    assert recent.check(5, 2, 70, 0) == ACCEPTED
    assert recent.check(8, 0, 0, 0) == (NONE, 1070, 90)
    assert recent.check(9, 4, 1, 0) == ACCEPTED


@pytest.mark.parametrize(
    ("is_ended", "is_dense", "fits"),
    [
        # The snapshot knows of a second transaction, whose batch is not among those walked.
        (False, True, False),
        (False, False, True),  # compaction took it away: its keys have been written again since
        (True, True, False),
        (True, False, True),
    ],
)
def test_a_snapshot_fits_batches_of_which_compaction_took_the_newest(
    is_ended: bool, is_dense: bool, fits: bool
) -> None:
    known, recent = ProducerState(), ProducerState()
    for state in (known, recent):
        state.update(5, 0, 0, 0, 100, 70)
        state.begin(5, 100)
        state.end(EndMarker(5, 0, 3, True), 101, 71)
    known.update(5, 0, 1, 0, 102, 72)
    known.begin(5, 102)
    if is_ended:
        known.end(EndMarker(5, 0, 3, True), 103, 73)
    assert known.fits(recent, is_dense=is_dense) == fits


def test_a_snapshot_that_misses_an_open_transaction_does_not_fit_even_where_batches_may_lack() -> (
    None
):
    known, recent = ProducerState(), ProducerState()
    for state in (known, recent):
        state.update(5, 0, 0, 0, 100, 70)
    recent.begin(5, 100)
    assert not known.fits(recent, is_dense=False)


@pytest.mark.parametrize(
    ("high_watermark", "stable"),
    [
        (1070, 1070),  # nobody sees the transaction yet
        (1072, 1071),
        (1080, 1071),  # its marker may still be lost: it is the next one that replicas will have
        (1081, 1081),
    ],
)
def test_transaction_is_over_for_readers_when_replicas_have_its_marker(
    state: ProducerState, high_watermark: int, stable: int
) -> None:
    state.update(5, 2, 70, 0, 1071, 80)
    state.begin(5, 1071)
    assert state.stable_end(1080, 0) == 1071
    state.end(EndMarker(5, 2, 3, True), 1080, 81)
    assert state.stable_end(high_watermark, 0) == stable


def test_the_first_transaction_that_is_not_over_counts(state: ProducerState) -> None:
    state.update(6, 0, 0, 0, 1070, 80)
    state.begin(6, 1070)
    state.update(5, 2, 70, 0, 1071, 80)
    state.begin(5, 1071)
    state.end(EndMarker(5, 2, 3, True), 1072, 81)
    assert state.stable_end(1073, 0) == 1070
    state.end(EndMarker(6, 0, 3, True), 1073, 81)
    assert state.stable_end(1073, 0) == 1070, "the marker is not replicated"
    assert state.stable_end(1074, 0) == 1074


def test_nothing_before_the_start_of_the_log_is_stable_or_not(state: ProducerState) -> None:
    state.update(5, 2, 70, 0, 1071, 80)
    state.begin(5, 1071)
    assert state.stable_end(1100, 1090) == 1090
    assert state.stable_end(1100, 1200) == 1100
