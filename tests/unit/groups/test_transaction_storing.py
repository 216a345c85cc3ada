"""What a transaction coordinator stores, and what its successor does with it."""

from typing import Any

import pytest

from shmbroker.errors import StorageFault
from shmbroker.groups import group_log
from shmbroker.groups.group_partition import group_partition
from shmbroker.groups.transactions.transaction import PREPARE_COMMIT
from shmbroker.groups.transactions.transaction_table import RETRY_MS
from shmbroker.wire.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    INVALID_PRODUCER_ID_MAPPING,
    NOT_COORDINATOR,
    TRANSACTIONAL_ID_NOT_FOUND,
)
from tests.unit.groups.transactions_at_work import (
    DAY_MS,
    Broker,
    Make,
    broker,
    make,
    open_one,
    state_of,
)

__all__ = ["broker", "make"]


# ── restarts ────────────────────────────────────────────────────────────────────────────────────


def test_a_successor_completes_what_was_prepared(broker: Broker) -> None:
    names = {"commit": True, "abort": False, "open": None, "empty": None}
    known = {}
    for name, is_commit in names.items():
        known[name] = broker.init(name).known
        if name != "empty":
            known[name] = broker.add(known[name], ("t", 1), name=name).known
        if is_commit is not None:
            broker.end(known[name], is_commit, name=name)
    broker.partitions[0].leader_epoch = 2
    broker.restart()
    assert {markers.entry.transactional_id: markers.is_commit for markers in broker.sent} == {
        "commit": True,
        "abort": False,
    }
    assert {markers.coordinator_epoch for markers in broker.sent} == {2}
    assert [state_of(broker, name) for name in names] == [
        "PrepareCommit",
        "PrepareAbort",
        "Ongoing",
        "Empty",
    ]
    broker.mark()
    assert state_of(broker, "commit") == "CompleteCommit"
    # The producer's retry comes to the successor.
    assert broker.end(known["commit"], name="commit").error == 0
    assert broker.end(known["open"], name="open").known.state == PREPARE_COMMIT
    broker.mark()
    broker.restart()
    assert not broker.sent
    assert state_of(broker, "open") == "CompleteCommit"


def test_a_successor_goes_on_with_the_time_of_an_open_transaction(broker: Broker) -> None:
    broker.add(broker.init(timeout_ms=1_000).known)
    broker.wait(700)
    broker.restart()
    broker.wait(299)
    assert state_of(broker) == "Ongoing"
    broker.wait(1)
    assert state_of(broker) == "PrepareAbort"


def test_a_successor_gives_the_new_producer_id_that_was_promised(broker: Broker) -> None:
    known = open_one(broker)
    entry = broker.transactions.shards[0].entries["x"]
    entry.known = known._replace(producer_epoch=32766)
    ended = broker.end(known, epoch=32766).known
    assert (ended.producer_id, ended.next_producer_id) == (100, 101)
    broker.restart()
    broker.mark()
    again = broker.end(known, epoch=32766).known
    assert (again.producer_id, again.producer_epoch) == (101, 0)


def test_while_it_loads_clients_wait(broker: Broker) -> None:
    open_one(broker)
    broker.restart(is_patient=False)
    assert broker.init().error == COORDINATOR_LOAD_IN_PROGRESS
    assert broker.state() == COORDINATOR_LOAD_IN_PROGRESS
    assert broker.transactions.all_known() == (COORDINATOR_LOAD_IN_PROGRESS, [])
    assert broker.transactions.wake_ms == 0
    broker.wait(1)
    assert state_of(broker) == "Ongoing"


def test_who_comes_while_partitions_are_opened_waits(broker: Broker) -> None:
    broker.transactions.on_partition_gone(0)
    assert broker.init().error == NOT_COORDINATOR
    broker.transactions.is_opening = True
    assert broker.init().error == COORDINATOR_LOAD_IN_PROGRESS
    assert broker.transactions.all_known() == (COORDINATOR_LOAD_IN_PROGRESS, [])


def test_who_is_asked_about_an_id_that_it_does_not_have_says_so(broker: Broker) -> None:
    verify = broker.transactions.requests.verify
    assert verify("x", 100, 0, [("t", 0)]) == {("t", 0): INVALID_PRODUCER_ID_MAPPING}
    broker.transactions.on_partition_gone(0)
    assert verify("x", 100, 0, [("t", 0)]) == {("t", 0): NOT_COORDINATOR}


def test_ids_belong_to_the_partition_that_they_hash_to(make: Make) -> None:
    broker = make(partitions=3)
    for name in ("a", "b", "c", "d"):
        broker.init(name)
        assert name in broker.transactions.shards[group_partition(name, 3)].entries
    assert {name for name, _ in broker.transactions.all_known()[1]} == set("abcd")
    broker.transactions.on_partition_gone(group_partition("a", 3))
    assert broker.init("a").error == NOT_COORDINATOR


# ── the disk ────────────────────────────────────────────────────────────────────────────────────


def test_what_can_not_be_stored_has_not_happened(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = open_one(broker)
    ended = broker.end(known)
    assert ended.error == 0
    is_full = True
    append = group_log.append

    def refuse(*row: Any) -> int:
        return NOT_COORDINATOR if is_full else append(*row)

    monkeypatch.setattr(group_log, "append", refuse)
    broker.mark()
    assert state_of(broker) == "PrepareCommit"
    assert broker.init("y").error == NOT_COORDINATOR
    assert broker.state("y") == TRANSACTIONAL_ID_NOT_FOUND
    broker.wait(RETRY_MS * 3)
    assert state_of(broker) == "PrepareCommit"
    is_full = False
    broker.wait(RETRY_MS)
    assert state_of(broker) == "CompleteCommit"


def test_a_time_out_that_can_not_be_stored_is_tried_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.add(broker.init(timeout_ms=50).known)
    append = group_log.append
    monkeypatch.setattr(group_log, "append", lambda *_: NOT_COORDINATOR)
    broker.wait(500)
    assert state_of(broker) == "Ongoing"
    monkeypatch.setattr(group_log, "append", append)
    broker.wait(RETRY_MS)
    assert state_of(broker) == "PrepareAbort"


def test_an_id_whose_end_can_not_be_stored_is_kept(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make(**{"transactional.id.expiration.ms": "1000", "shmbroker.transactional.ids": "1"})
    broker.init("old")
    append = group_log.append
    monkeypatch.setattr(group_log, "append", lambda *_: NOT_COORDINATOR)
    assert broker.init("new").error == NOT_COORDINATOR
    broker.wait(1_000)
    assert state_of(broker, "old") == "Empty"
    monkeypatch.setattr(group_log, "append", append)
    broker.wait(RETRY_MS)
    assert broker.state("old") == TRANSACTIONAL_ID_NOT_FOUND


def test_a_log_that_can_not_be_read_is_not_coordinated(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_one(broker)

    def refuse(*_: Any) -> None:
        raise StorageFault("no disk")

    step = group_log.Loader.step
    monkeypatch.setattr(group_log.Loader, "step", refuse)
    broker.restart()
    transactions, told = broker.transactions, list[str]()
    transactions.on_unread = lambda partition, fault: told.append(f"{partition.partition} {fault}")
    assert broker.init().error == NOT_COORDINATOR
    transactions.load_again()
    assert broker.init().error == COORDINATOR_LOAD_IN_PROGRESS
    broker.wait(1)
    assert broker.init().error == NOT_COORDINATOR
    assert told == ["0 no disk"]
    # It is told once, and served as soon as it can be read.
    line = "transactions of __transaction_state-0 can't be loaded: no disk"
    assert caplog.text.count(line) == 1
    monkeypatch.setattr(group_log.Loader, "step", step)
    transactions.load_again()
    broker.wait(1)
    assert state_of(broker) == "Ongoing"
    transactions.load_again()
    assert state_of(broker) == "Ongoing"


def test_a_log_that_can_not_be_read_is_forgotten_with_its_partition(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_one(broker)
    monkeypatch.setattr(
        group_log.Loader, "step", lambda _: (_ for _ in ()).throw(StorageFault("gone"))
    )
    broker.restart()
    broker.transactions.on_partition_gone(0)
    broker.transactions.load_again()
    assert broker.init().error == NOT_COORDINATOR
    assert not broker.transactions.loading


@pytest.mark.parametrize(("jump_ms", "left_ms"), ((-DAY_MS, 60_000), (10_000, 20_000), (DAY_MS, 0)))
def test_a_successor_trusts_the_wall_clock_once(broker: Broker, jump_ms: int, left_ms: int) -> None:
    """The record of an open transaction says no more; but it never lasts longer than it may."""
    open_one(broker)
    broker.wait(30_000)
    broker.wall_ahead_ms += jump_ms
    broker.restart()
    broker.wall_ahead_ms -= jump_ms
    if left_ms:
        broker.wait(left_ms - 1)
        assert state_of(broker) == "Ongoing"
    broker.wait(1)
    assert state_of(broker) == "PrepareAbort"
