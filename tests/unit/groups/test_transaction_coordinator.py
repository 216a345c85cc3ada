"""The transactional ids of one broker: waited for, timed, given up."""

import pytest

from shmbroker.groups.timers import TIDY_FROM
from shmbroker.groups.transactions.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    STATE_NAMES,
    Transaction,
)
from shmbroker.wire.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
    TRANSACTIONAL_ID_NOT_FOUND,
    UNSUPPORTED_VERSION,
)
from tests.unit.groups.transactions_at_work import (
    DAY_MS,
    Broker,
    Call,
    Make,
    assert_counts,
    broker,
    make,
    open_one,
    state_of,
)

__all__ = ["broker", "make"]


def test_a_transaction_from_begin_to_end(broker: Broker) -> None:
    begun = broker.init().known
    assert (begun.producer_id, begun.producer_epoch, begun.state) == (100, 0, EMPTY)
    broker.add(begun, ("t", 0), ("u", 3))
    known = broker.add(begun, ("t", 1)).known
    assert known.state == ONGOING
    ended = broker.end(known).known
    # The producer is answered before a marker is written.
    assert ended.state == PREPARE_COMMIT and state_of(broker) == "PrepareCommit"
    (markers,) = broker.sent
    assert (markers.producer_id, markers.producer_epoch, markers.is_commit) == (100, 1, True)
    assert (markers.coordinator_epoch, markers.version) == (1, 2)
    assert markers.partitions == {("t", 0), ("u", 3), ("t", 1)}
    broker.mark()
    assert state_of(broker) == "CompleteCommit"
    # The retry is answered again, and sends nothing.
    assert broker.end(known).known.producer_epoch == 1
    assert not broker.sent


def test_ids_are_counted_by_state(broker: Broker) -> None:
    def counts() -> dict[str, int]:
        assert_counts(broker)
        found = zip(STATE_NAMES.values(), broker.transactions.states(), strict=True)
        return {name: count for name, count in found if count}

    assert counts() == {}
    first, second = open_one(broker, "x", ("t", 0)), open_one(broker, "y", ("t", 0))
    broker.init(name="z")
    assert counts() == {"Empty": 1, "Ongoing": 2}
    broker.end(first, name="x")
    broker.end(second, name="y", is_commit=False)
    assert counts() == {"Empty": 1, "PrepareCommit": 1, "PrepareAbort": 1}
    broker.restart()
    assert counts() == {"Empty": 1, "PrepareCommit": 1, "PrepareAbort": 1}
    broker.mark()
    assert counts() == {"Empty": 1, "CompleteCommit": 1, "CompleteAbort": 1}


def test_a_transaction_without_partitions_is_complete_at_once(broker: Broker) -> None:
    begun = broker.init().known
    assert broker.end(begun, is_commit=False).error == 0
    assert not broker.sent
    assert state_of(broker) == "CompleteAbort"


def test_requests_without_sense(broker: Broker) -> None:
    known = open_one(broker)
    assert broker.init("").error == INVALID_REQUEST
    assert broker.add(known, name="").error == INVALID_REQUEST
    assert broker.end(known, name="").error == INVALID_REQUEST
    assert broker.transactions.requests.verify("", 1, 1, [("t", 0)]) == {("t", 0): INVALID_REQUEST}
    assert broker.state("") == INVALID_REQUEST
    for timeout_ms in (-1, 0, 900_001):
        assert broker.init("y", timeout_ms=timeout_ms).error == INVALID_TRANSACTION_TIMEOUT
    assert broker.init("y", timeout_ms=900_000).error == 0
    assert broker.add(known, name="z").error == INVALID_PRODUCER_ID_MAPPING
    assert broker.end(known, name="z").error == INVALID_PRODUCER_ID_MAPPING
    assert broker.state("z") == TRANSACTIONAL_ID_NOT_FOUND


# ── replicas ────────────────────────────────────────────────────────────────────────────────────


def test_markers_leave_when_the_decision_is_on_the_replicas(broker: Broker) -> None:
    known = open_one(broker)
    broker.replicate_slowly()
    call = Call()
    body = {"error_code": 0}
    broker.end(known)
    assert broker.transactions.hold(["x"], call, body, None)
    assert not broker.sent and not call.bodies
    broker.catch_up()
    assert len(broker.sent) == 1
    assert call.bodies == [{"error_code": 0}]
    broker.mark()
    assert not broker.transactions.held.hold([], call, body, None)


def test_who_has_no_partition_yet_holds_nothing(broker: Broker) -> None:
    coordinator = broker.transactions
    coordinator.shards.clear()
    coordinator.partition_count = 0  # as long as nobody has asked for the topic
    assert not coordinator.hold(["x"], Call(), {}, None)
    assert not coordinator.hold(None, Call(), {}, None)


def test_another_leader_makes_held_answers_void(broker: Broker) -> None:
    known = open_one(broker)
    broker.replicate_slowly()
    call = Call()
    broker.end(known)
    body = {"results": [{"partition_error_code": 0}], "error_code": 0}
    assert broker.transactions.hold(["x"], call, body, None)
    broker.transactions.on_partition_gone(0)
    expected = {
        "results": [{"partition_error_code": NOT_COORDINATOR}],
        "error_code": NOT_COORDINATOR,
    }
    assert call.bodies == [expected]
    assert not broker.sent


def test_a_good_answer_without_an_error_is_void_too(broker: Broker) -> None:
    """As that to InitProducerId: the successor does not know the epoch."""
    broker.replicate_slowly()
    broker.init()
    call = Call()
    assert broker.transactions.hold(["x"], call, {"producer_id": 7, "producer_epoch": 0}, None)
    broker.transactions.on_partition_gone(0)
    assert [body["error_code"] for body in call.bodies] == [NOT_COORDINATOR]


# ── time ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_transaction_that_takes_too_long_is_aborted(make: Make, version: int) -> None:
    broker = make(version=version)
    known = broker.add(broker.init(timeout_ms=1_000).known, version=version & 2).known
    broker.wait(600)
    broker.add(
        known, ("t", 9), version=version & 2
    )  # time goes from the begin, not from the last partition
    broker.wait(399)
    assert state_of(broker) == "Ongoing"
    broker.wait(1)
    assert state_of(broker) == "PrepareAbort"
    (markers,) = broker.mark()
    assert not markers.is_commit and markers.producer_epoch == 1
    assert markers.version == (2 if version == 2 else 0)
    assert markers.partitions == {("t", 0), ("t", 9)}
    assert broker.add(known, version=0).error == PRODUCER_FENCED
    assert broker.end(known, version=0).error == PRODUCER_FENCED
    assert broker.init("x", known.producer_id, 0).error == (PRODUCER_FENCED if version < 2 else 0)


def test_each_transaction_has_its_own_time(broker: Broker) -> None:
    """The timers of those before it, on the same id, are over."""
    known = broker.init(timeout_ms=1_000).known
    for _ in range(5):
        known = broker.add(known).known
        broker.wait(900)
        known = broker.end(known).known
        broker.mark()
    assert state_of(broker) == "CompleteCommit"
    broker.wait(DAY_MS)
    assert state_of(broker) == "CompleteCommit"


def test_timers_of_what_is_over_do_not_pile_up(broker: Broker) -> None:
    """One is set for when the id expires, each time that no transaction is open at the last one."""
    timers = broker.transactions.table.timers
    known = broker.init(timeout_ms=10).known
    for _ in range(TIDY_FROM):
        known = broker.end(broker.add(known).known).known
        broker.mark()
        broker.wait(10)
    assert len(timers) <= TIDY_FROM
    for number in range(50):
        broker.init(f"y{number}")
    for _ in range(20):
        broker.transactions.on_partition_gone(0)
        broker.transactions.on_partition(broker.partitions[0], 1)
        broker.wait(1)
    assert len(timers) <= TIDY_FROM
    broker.wait(7 * DAY_MS)
    assert broker.transactions.all_known() == (0, [])


def test_an_id_without_use_expires(make: Make) -> None:
    broker = make(**{"transactional.id.expiration.ms": "1000"})
    broker.init("old")
    broker.wait(600)
    known = open_one(broker)
    broker.wait(400)
    assert broker.state("old") == TRANSACTIONAL_ID_NOT_FOUND
    broker.wait(10_000)
    assert state_of(broker) == "Ongoing"  # an open one has its own time
    broker.end(known)
    broker.mark()
    broker.wait(999)
    broker.init()
    broker.wait(999)
    assert state_of(broker) == "Empty"
    broker.wait(1)
    assert broker.state() == TRANSACTIONAL_ID_NOT_FOUND
    broker.restart()
    assert broker.transactions.all_known() == (0, [])


def test_an_id_whose_end_a_successor_completes_expires_too(make: Make) -> None:
    broker = make(**{"transactional.id.expiration.ms": "1000"})
    broker.end(open_one(broker))
    broker.restart()
    broker.mark()
    broker.wait(999)
    assert state_of(broker) == "CompleteCommit"
    broker.wait(1)
    assert broker.state() == TRANSACTIONAL_ID_NOT_FOUND


def test_for_a_new_id_the_one_unused_longest_expires(make: Make) -> None:
    broker = make(**{"shmbroker.transactional.ids": "3"})
    opened = open_one(broker, "open")
    for name in ("a", "b", "a", "c"):
        assert broker.init(name).error == 0
    names = {name for name, _ in broker.transactions.all_known()[1]}
    assert names == {"open", "a", "c"}
    broker.restart()
    broker.init("d")
    names = {name for name, _ in broker.transactions.all_known()[1]}
    assert names == {"open", "c", "d"}
    for name in ("c", "d"):
        open_one(broker, name)
    assert broker.init("e").error == COORDINATOR_NOT_AVAILABLE
    assert broker.state("e") == TRANSACTIONAL_ID_NOT_FOUND
    broker.end(opened, name="open")
    broker.mark()
    assert broker.init("e").error == 0
    assert broker.state("open") == TRANSACTIONAL_ID_NOT_FOUND
    broker.transactions.on_partition_gone(0)
    broker.transactions.on_partition(broker.partitions[0], 1)
    broker.wait(1)
    assert broker.init("f").error == 0  # `e` is unused, and was found again


def test_level_0_has_no_room_for_newer_clients(broker: Broker) -> None:
    known = open_one(broker)
    broker.version = 0
    begun = broker.init("y").known
    assert broker.add(begun, name="y").error == UNSUPPORTED_VERSION
    assert broker.add(begun, name="y", version=0).error == 0
    assert broker.end(begun, name="y").error == UNSUPPORTED_VERSION
    assert broker.end(begun, name="y", version=0).error == 0
    # What had begun before is ended all the same, and its producer fenced.
    broker.wait(60_000)
    broker.mark()
    broker.restart()
    assert state_of(broker) == "CompleteAbort"
    assert broker.add(known, version=0).error == PRODUCER_FENCED


@pytest.mark.parametrize("is_commit", [True, False])
def test_ends_of_old_versions_keep_the_epoch(broker: Broker, is_commit: bool) -> None:
    known = broker.add(broker.init().known, version=0).known
    ended = broker.end(known, is_commit, version=0).known
    assert ended.state == (PREPARE_COMMIT if is_commit else PREPARE_ABORT)
    (markers,) = broker.mark()
    assert (markers.producer_epoch, markers.version) == (0, 0)
    done = broker.state()
    assert isinstance(done, Transaction)
    assert done.state == (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT)
    assert broker.add(known, version=0).known.producer_epoch == 0


@pytest.mark.parametrize("jump_ms", (-DAY_MS, DAY_MS))
def test_a_jump_of_the_wall_clock_neither_ends_nor_prolongs_a_transaction(
    broker: Broker, jump_ms: int
) -> None:
    open_one(broker)
    broker.wait(30_000)
    broker.wall_ahead_ms += jump_ms
    broker.wait(29_999)
    assert state_of(broker) == "Ongoing"
    broker.wait(1)
    assert state_of(broker) == "PrepareAbort"
