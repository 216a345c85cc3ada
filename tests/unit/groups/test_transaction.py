"""One transactional id: each state met by each request, as Apache Kafka 4.2.1 answers it.

A producer of epoch 5 in each state. After a version 2 end it has epoch 6 (5 is what its retry still
names), so the tables are of producers that name the epoch that is current, or the one before.
"""

import itertools

import pytest

from shmbroker.groups.transactions.transaction import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_LAST,
    NO_EPOCH,
    NO_ID,
    NO_TIME,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    STATE_NAMES,
    Transaction,
    add_partitions,
    after_end,
    completed,
    end,
    error_in_version,
    fence,
    init_producer_id,
    verify,
)
from shmbroker.wire import error_codes
from shmbroker.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)

NOW_MS = 2_000
ID, EPOCH, NEW_ID = 7, 5, 99
A, B = ("a", 0), ("b", 1)
STATES = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)


def in_state(state: int, epoch: int = EPOCH, **more: int) -> Transaction:
    has_partitions = state in (ONGOING, *PREPARED)
    return Transaction(
        ID,
        epoch,
        NO_ID,
        NO_ID,
        NO_EPOCH,
        60_000,
        state,
        frozenset([A] if has_partitions else ()),
        NO_TIME if state == EMPTY else 1_000,
        1_000,
        2,
    )._replace(**more)


def new_id() -> int:
    return NEW_ID


def no_id() -> None:
    return None


def begin(known: Transaction | None, producer_id: int = -1, epoch: int = -1) -> Transaction | int:
    return init_producer_id(known, producer_id, epoch, 30_000, new_id, NOW_MS, 2)


# ── InitProducerId ──────────────────────────────────────────────────────────────────────────────


def test_an_unknown_id_begins_with_a_new_producer_id_and_epoch_0() -> None:
    for named in ((-1, -1), (123, 4)):
        made = begin(None, *named)
        assert made == Transaction(
            NEW_ID, 0, NO_ID, NO_ID, NO_EPOCH, 30_000, EMPTY, frozenset(), NO_TIME, NOW_MS, 0
        )
    assert init_producer_id(None, -1, -1, 1, no_id, NOW_MS, 2) == COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("state", AT_REST)
def test_init_gives_the_next_epoch_and_fences_the_one_before(state: int) -> None:
    after = begin(in_state(state))
    assert isinstance(after, Transaction)
    assert (after.state, after.producer_id, after.producer_epoch) == (EMPTY, ID, EPOCH + 1)
    assert (after.timeout_ms, after.start_ms, after.update_ms) == (30_000, NO_TIME, NOW_MS)
    assert after.last_epoch == NO_EPOCH
    # Whoever had epoch 5 can't begin again with it.
    assert begin(after, ID, EPOCH) == PRODUCER_FENCED


@pytest.mark.parametrize("state", AT_REST)
def test_init_with_an_epoch_is_a_retry_once(state: int) -> None:
    after = begin(in_state(state), ID, EPOCH)
    assert isinstance(after, Transaction)
    assert (after.producer_epoch, after.last_epoch) == (EPOCH + 1, EPOCH)
    assert begin(after, ID, EPOCH) == after._replace(update_ms=NOW_MS)
    assert begin(after, ID, EPOCH - 1) == PRODUCER_FENCED
    assert begin(after, ID, EPOCH + 2) == PRODUCER_FENCED
    assert begin(after, ID + 1, EPOCH) == PRODUCER_FENCED


@pytest.mark.parametrize("state", PREPARED)
def test_init_waits_for_what_is_ending(state: int) -> None:
    assert begin(in_state(state)) == CONCURRENT_TRANSACTIONS
    assert begin(in_state(state), ID, EPOCH) == CONCURRENT_TRANSACTIONS
    assert begin(in_state(state), ID + 1, EPOCH) == PRODUCER_FENCED


def test_init_aborts_what_is_open_and_its_producer_is_fenced() -> None:
    known = in_state(ONGOING)
    fenced = begin(known)
    assert fenced == fence(known, NOW_MS, 2)
    assert isinstance(fenced, Transaction)
    assert (fenced.state, fenced.producer_epoch) == (PREPARE_ABORT, EPOCH + 1)
    assert (fenced.partitions, fenced.start_ms) == (known.partitions, known.start_ms)
    for is_commit, version in itertools.product((True, False), (0, 2)):
        late = end(completed(fenced, NOW_MS), ID, EPOCH, is_commit, new_id, NOW_MS, version)
        # A producer of version 2 that aborts is told that this is done, and its next epoch.
        is_told = version == 2 and not is_commit
        wrong = INVALID_TXN_STATE if version == 2 else PRODUCER_FENCED
        assert late == (completed(fenced, NOW_MS) if is_told else wrong)


def test_an_exhausted_epoch_gives_a_new_producer_id() -> None:
    known = in_state(EMPTY, EPOCH_LAST)
    after = begin(known)
    assert isinstance(after, Transaction)
    assert (after.producer_id, after.producer_epoch) == (NEW_ID, 0)
    assert after.previous_producer_id == ID
    # It is a new producer, so the one before has not asked for this id.
    assert begin(after, ID, EPOCH_LAST) == PRODUCER_FENCED
    told = begin(known, ID, EPOCH_LAST)
    assert isinstance(told, Transaction)
    assert begin(told, ID, EPOCH_LAST) == told
    assert begin(known, ID, EPOCH) == PRODUCER_FENCED
    assert init_producer_id(known, -1, -1, 1, no_id, 0, 2) == COORDINATOR_LOAD_IN_PROGRESS
    # A new producer has come meanwhile: the retry is too late.
    after = begin(told)
    assert isinstance(after, Transaction) and after.producer_epoch == 1
    assert begin(after, ID, EPOCH_LAST) == PRODUCER_FENCED


@pytest.mark.parametrize("state", (EMPTY, ONGOING, COMPLETE_COMMIT))
@pytest.mark.parametrize(
    ("producer_id", "epoch"), [(ID, EPOCH), (ID, EPOCH_LAST - 1), (ID + 1, EPOCH_LAST)]
)
def test_only_the_last_epoch_of_the_id_before_goes_on_with_a_new_one(
    state: int, producer_id: int, epoch: int
) -> None:
    """Whoever else names an id that is not the current one aborts nothing."""
    known = in_state(state, 0, producer_id=NEW_ID, previous_producer_id=ID)
    assert begin(known, producer_id, epoch) == PRODUCER_FENCED


@pytest.mark.parametrize(
    ("producer_id", "epoch", "current"),
    [(ID, EPOCH_LAST - 1, 0), (ID + 1, EPOCH_LAST, 0), (ID, EPOCH_LAST, 1)],
)
def test_only_the_last_epoch_of_the_id_before_is_a_retry_of_its_end(
    producer_id: int, epoch: int, current: int
) -> None:
    ended = in_state(COMPLETE_COMMIT, current, producer_id=NEW_ID, previous_producer_id=ID)
    told = end(ended, producer_id, epoch, True, new_id, NOW_MS, 2)
    assert told == INVALID_PRODUCER_ID_MAPPING


def test_the_last_epoch_of_all_is_for_an_abort() -> None:
    fenced = begin(in_state(ONGOING, EPOCH_LAST))
    assert isinstance(fenced, Transaction) and fenced.producer_epoch == EPOCH_LAST + 1
    after = begin(completed(fenced, NOW_MS))
    assert isinstance(after, Transaction)
    assert (after.producer_id, after.producer_epoch) == (NEW_ID, 0)


# ── AddPartitionsToTxn ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", STATES)
def test_adding_begins_a_transaction_or_enlarges_it(state: int) -> None:
    known = in_state(state)
    after = add_partitions(known, ID, EPOCH, [B], NOW_MS, 2)
    if state in PREPARED:
        assert after == CONCURRENT_TRANSACTIONS
        return
    assert isinstance(after, Transaction)
    assert after.state == ONGOING
    assert after.partitions == known.partitions | {B}
    assert after.start_ms == (known.start_ms if state == ONGOING else NOW_MS)
    assert add_partitions(after, ID, EPOCH, [B], NOW_MS + 1, 2) is after


@pytest.mark.parametrize("state", STATES)
def test_strangers_add_nothing(state: int) -> None:
    known = in_state(state)
    for epoch in (EPOCH - 1, EPOCH + 1, -1):
        assert add_partitions(known, ID, epoch, [A], NOW_MS, 2) == PRODUCER_FENCED
        assert verify(known, ID, epoch, [A]) == {A: PRODUCER_FENCED}
    assert add_partitions(known, ID + 1, EPOCH, [A], NOW_MS, 2) == INVALID_PRODUCER_ID_MAPPING
    assert verify(known, ID + 1, EPOCH, [A]) == {A: INVALID_PRODUCER_ID_MAPPING}
    assert add_partitions(None, ID, EPOCH, [A], NOW_MS, 2) == INVALID_PRODUCER_ID_MAPPING
    assert verify(None, ID, EPOCH, [A, B]) == dict.fromkeys([A, B], INVALID_PRODUCER_ID_MAPPING)


def test_verification_knows_what_was_added() -> None:
    assert verify(in_state(ONGOING), ID, EPOCH, [A, B]) == {A: 0, B: TRANSACTION_ABORTABLE}
    assert verify(in_state(EMPTY), ID, EPOCH, [A]) == {A: TRANSACTION_ABORTABLE}
    assert verify(in_state(PREPARE_ABORT), ID, EPOCH, [A]) == {A: CONCURRENT_TRANSACTIONS}


# ── EndTxn ──────────────────────────────────────────────────────────────────────────────────────

PREPARES, DONE, WAIT = "prepares", "done", CONCURRENT_TRANSACTIONS
WRONG, FENCED = INVALID_TXN_STATE, PRODUCER_FENCED
ENDS = {
    #                  version 1 and less  version 2: current epoch   version 2: the one before
    #                  commit    abort     commit      abort          commit  abort
    EMPTY:            (WRONG,    WRONG,    WRONG,      PREPARES,      FENCED, FENCED),
    ONGOING:          (PREPARES, PREPARES, PREPARES,   PREPARES,      FENCED, FENCED),
    PREPARE_COMMIT:   (WAIT,     WAIT,     WAIT,       WAIT,          WAIT,   WAIT),
    PREPARE_ABORT:    (WAIT,     WAIT,     WAIT,       WAIT,          WAIT,   WAIT),
    COMPLETE_COMMIT:  (DONE,     WRONG,    WRONG,      PREPARES,      DONE,   WRONG),
    COMPLETE_ABORT:   (WRONG,    DONE,     WRONG,      PREPARES,      WRONG,  DONE),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=STATE_NAMES.get)
@pytest.mark.parametrize("column", range(6))
def test_each_state_meets_each_end(state: int, column: int) -> None:
    known = in_state(state)
    is_commit = column % 2 == 0
    version = 0 if column < 2 else 2
    epoch = EPOCH - 1 if column >= 4 else EPOCH
    after = end(known, ID, epoch, is_commit, new_id, NOW_MS, version)
    expected = ENDS[state][column]
    if expected == DONE:
        assert after is known
    elif expected != PREPARES:
        assert after == expected
    else:
        assert isinstance(after, Transaction)
        assert after.state == (PREPARE_COMMIT if is_commit else PREPARE_ABORT)
        assert after.producer_epoch == EPOCH + (version == 2)
        assert after.client_version == version
        assert after.start_ms == (known.start_ms if state == ONGOING else NOW_MS)
        assert after_end(after) == (ID, EPOCH + (version == 2))
        ended = completed(after, NOW_MS + 1)
        assert ended.state == (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT)
        assert (ended.partitions, ended.update_ms) == (frozenset(), NOW_MS + 1)
        # Its retry is answered again, and is no further end.
        assert end(ended, ID, EPOCH, is_commit, new_id, NOW_MS, version) is ended
        assert end(ended, ID, EPOCH, not is_commit, new_id, NOW_MS, version) == WRONG


@pytest.mark.parametrize("state", STATES, ids=STATE_NAMES.get)
@pytest.mark.parametrize("is_commit", [True, False])
def test_who_was_replaced_by_a_producer_of_version_1_is_told_of_no_end(
    state: int, is_commit: bool
) -> None:
    """That keeps its epoch when it commits, so the epoch before is not one whose end was done."""
    known = in_state(state, client_version=0)
    waits = state in PREPARED
    after = end(known, ID, EPOCH - 1, is_commit, new_id, NOW_MS, 2)
    assert after == (WAIT if waits else FENCED)
    new = in_state(state, 0, producer_id=NEW_ID, previous_producer_id=ID, client_version=0)
    after = end(new, ID, EPOCH_LAST, is_commit, new_id, NOW_MS, 2)
    assert after == (WAIT if waits else INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("state", STATES, ids=STATE_NAMES.get)
@pytest.mark.parametrize("version", [0, 2])
def test_strangers_end_nothing(state: int, version: int) -> None:
    """While markers are written, version 2 does not say who is one: the next id and epoch were
    told already."""
    known = in_state(state)
    waits = version == 2 and state in PREPARED
    for is_commit in (True, False):
        after = end(known, ID + 1, EPOCH, is_commit, new_id, NOW_MS, version)
        assert after == (WAIT if waits else INVALID_PRODUCER_ID_MAPPING)
        for epoch in (EPOCH - 2, EPOCH + 1, -1):
            after = end(known, ID, epoch, is_commit, new_id, NOW_MS, version)
            assert after == (WAIT if waits else FENCED)
    assert end(None, ID, 0, True, new_id, NOW_MS, version) == INVALID_PRODUCER_ID_MAPPING


def test_an_exhausted_epoch_ends_with_a_new_producer_id() -> None:
    known = in_state(ONGOING, EPOCH_LAST)
    prepared = end(known, ID, EPOCH_LAST, True, new_id, NOW_MS, 2)
    assert isinstance(prepared, Transaction)
    # Markers still bear the old id, in an epoch that no producer had.
    assert (prepared.producer_id, prepared.producer_epoch) == (ID, EPOCH_LAST + 1)
    assert after_end(prepared) == (NEW_ID, 0)
    # The producer has been told of the new one, and may come before the markers are written.
    assert add_partitions(prepared, NEW_ID, 0, [B], NOW_MS, 2) == CONCURRENT_TRANSACTIONS
    assert verify(prepared, NEW_ID, 0, [B]) == {B: CONCURRENT_TRANSACTIONS}
    assert begin(prepared, NEW_ID, 0) == CONCURRENT_TRANSACTIONS
    assert end(prepared, NEW_ID, 0, False, new_id, NOW_MS, 2) == CONCURRENT_TRANSACTIONS
    assert add_partitions(prepared, NEW_ID + 1, 0, [B], NOW_MS, 2) == INVALID_PRODUCER_ID_MAPPING
    ended = completed(prepared, NOW_MS)
    assert (ended.producer_id, ended.producer_epoch) == (NEW_ID, 0)
    assert (ended.previous_producer_id, ended.next_producer_id) == (ID, NO_ID)
    assert after_end(ended) == (NEW_ID, 0)
    assert end(ended, ID, EPOCH_LAST, True, new_id, NOW_MS, 2) is ended
    assert end(ended, ID, EPOCH_LAST, False, new_id, NOW_MS, 2) == WRONG
    assert end(known, ID, EPOCH_LAST, True, no_id, NOW_MS, 2) == COORDINATOR_LOAD_IN_PROGRESS
    # In the versions before, the id stays until the next InitProducerId.
    old = end(known, ID, EPOCH_LAST, True, no_id, NOW_MS, 0)
    assert isinstance(old, Transaction) and after_end(old) == (ID, EPOCH_LAST)


def test_old_versions_of_requests_do_not_know_that_a_producer_is_fenced() -> None:
    assert error_in_version(PRODUCER_FENCED, 1, 2) == INVALID_PRODUCER_EPOCH
    assert error_in_version(PRODUCER_FENCED, 2, 2) == PRODUCER_FENCED
    assert error_in_version(error_codes.INVALID_TXN_STATE, 0, 2) == INVALID_TXN_STATE
