"""Offsets that are committed in a transaction: hidden until its marker, then as in the log."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shmbroker.groups import removal
from shmbroker.groups.coordinator import GroupCoordinator
from shmbroker.log.markers import append_marker
from shmbroker.records.end_marker import EndMarker
from shmbroker.wire.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    INVALID_PRODUCER_EPOCH,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    UNSTABLE_OFFSET_COMMIT,
)
from tests.support.examples import examples
from tests.unit.groups.coordinator_at_work import MINUTE_MS, RETENTION_MS, Broker, broker

__all__ = ["broker"]

PRODUCER, OTHER = 7, 8
T0 = ("t", 0)


def commit(
    broker: Broker,
    offset: int,
    *,
    producer_id: int = PRODUCER,
    epoch: int = 1,
    group: str = "g",
    partition: int = 0,
    member: str = "",
    generation: int = -1,
) -> int:
    body = {
        "group_id": group,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
    }
    row = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    (error,) = broker.groups.offsets.commit_in_transaction(body, [("t", bytes(16), row)])
    return error


def end(broker: Broker, is_commit: bool, producer_id: int = PRODUCER, epoch: int = 1) -> None:
    """What WriteTxnMarkers does."""
    (partition,) = broker.partitions
    assert broker.groups.may_end_transactions(partition) == 0
    now_ms = broker.now_ms
    marker = EndMarker(producer_id, epoch, 0, is_commit)
    append_marker(partition.log, marker, now_ms, partition.leader_epoch, now_ms)
    partition.advance_high_watermark()
    broker.groups.offsets.on_marker(partition, producer_id, is_commit)


def test_they_count_with_the_marker_of_a_commit(broker: Broker) -> None:
    broker.commit(3)
    assert commit(broker, 9) == 0
    assert broker.committed() == {T0: 3}
    assert broker.committed(require_stable=True) == {T0: UNSTABLE_OFFSET_COMMIT}
    broker.restart()
    assert broker.committed() == {T0: 3}
    assert broker.committed(require_stable=True) == {T0: UNSTABLE_OFFSET_COMMIT}
    end(broker, is_commit=True)
    assert broker.committed(require_stable=True) == {T0: 9}
    broker.restart()
    assert broker.committed(require_stable=True) == {T0: 9}


def test_those_of_an_aborted_one_never_count(broker: Broker) -> None:
    broker.commit(3)
    assert commit(broker, 9) == 0
    end(broker, is_commit=False)
    assert broker.committed(require_stable=True) == {T0: 3}
    broker.restart()
    assert broker.committed(require_stable=True) == {T0: 3}


def test_a_group_may_begin_with_them(broker: Broker) -> None:
    assert commit(broker, 9) == 0
    assert broker.names() == {"g"} and broker.committed() == {}
    (partition,) = broker.partitions
    assert partition.producers.is_open(PRODUCER, 1)
    assert partition.last_stable_offset == 0
    end(broker, is_commit=True)
    assert not partition.producers.is_open(PRODUCER, 1)
    assert broker.committed() == {T0: 9}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_later_commit_is_not_undone_by_the_marker(broker: Broker, is_restarted: bool) -> None:
    assert commit(broker, 5) == 0
    broker.commit(7)
    if is_restarted:
        broker.restart()
    assert broker.committed(require_stable=True) == {T0: UNSTABLE_OFFSET_COMMIT}
    end(broker, is_commit=True)
    assert broker.committed(require_stable=True) == {T0: 7}


@pytest.mark.parametrize("order", [(PRODUCER, OTHER), (OTHER, PRODUCER)])
def test_of_two_transactions_the_one_counts_that_has_committed_later_in_the_log(
    broker: Broker, order: tuple[int, int]
) -> None:
    """Whichever marker comes first: a coordinator that reads the log finds the same."""
    assert commit(broker, 5, producer_id=PRODUCER) == 0
    assert commit(broker, 6, producer_id=OTHER) == 0
    for producer_id in order:
        end(broker, is_commit=True, producer_id=producer_id)
    assert broker.committed(require_stable=True) == {T0: 6}
    broker.restart()
    assert broker.committed(require_stable=True) == {T0: 6}


def test_those_in_a_deleted_topic_never_count(broker: Broker) -> None:
    assert commit(broker, 5) == 0
    broker.groups.on_topics_deleted({"t"})
    assert broker.committed(require_stable=True) == {}
    end(broker, is_commit=True)
    assert broker.committed() == {}
    broker.wait(20 * MINUTE_MS)
    assert broker.names() == set(), "nothing is left that it would be kept for"


def test_those_in_a_topic_that_is_made_again_outlive_the_end_of_the_first(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "REMOVALS_PER_STEP", 1)
    for partition in range(2):
        broker.commit(1, partition=partition)
    broker.groups.on_topics_deleted({"t"})
    for partition in range(2):
        assert commit(broker, 7, partition=partition) == 0
    broker.wait(0)
    broker.restart()
    end(broker, is_commit=True)
    assert broker.committed() == {T0: 7, ("t", 1): 7}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_group_that_has_nothing_else_is_kept_for_them(broker: Broker, is_restarted: bool) -> None:
    assert commit(broker, 9) == 0
    if is_restarted:
        broker.restart()
    broker.wait(25 * MINUTE_MS)
    assert broker.names() == {"g"}
    end(broker, is_commit=True)
    assert broker.committed() == {T0: 9}


def test_what_an_open_transaction_may_change_does_not_expire(broker: Broker) -> None:
    broker.commit(3)
    assert commit(broker, 9) == 0
    broker.wait(RETENTION_MS + 20 * MINUTE_MS)
    assert broker.committed() == {T0: 3}
    end(broker, is_commit=True)
    assert broker.committed(require_stable=True) == {T0: 9}


def test_a_deleted_group_does_not_come_back(broker: Broker) -> None:
    broker.commit(1)
    assert commit(broker, 5) == 0
    assert commit(broker, 6, partition=1) == 0
    assert broker.groups.removal.delete("g") == 0
    end(broker, is_commit=True)
    for is_restarted in (False, True):
        if is_restarted:
            broker.restart()
        assert broker.committed() == {} and broker.names() == set()
        assert broker.groups.shards[0].store.is_empty_of("g")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_deleted_offset_does_not_come_back(broker: Broker, is_restarted: bool) -> None:
    broker.commit(1, partition=1)
    for partition in range(2):
        assert commit(broker, 5, partition=partition) == 0
    assert broker.groups.offsets.delete_offsets("g", [T0, ("t", 1)]) == (0, [0, 0])
    if is_restarted:
        broker.restart()
    assert broker.groups.shards[0].store.is_empty_of("g")
    end(broker, is_commit=True)
    assert broker.committed() == {}
    broker.restart()
    assert broker.committed() == {}


def test_an_old_epoch_is_refused(broker: Broker) -> None:
    assert commit(broker, 5, epoch=4) == 0
    end(broker, is_commit=True, epoch=5)
    assert commit(broker, 6, epoch=4) == INVALID_PRODUCER_EPOCH
    assert broker.committed(require_stable=True) == {T0: 5}


def test_members_are_judged_where_they_are_named(broker: Broker) -> None:
    assert commit(broker, 5, generation=3) == ILLEGAL_GENERATION  # there is no such group
    member = broker.stable()
    assert commit(broker, 5) == 0  # a producer older than KIP-447
    assert commit(broker, 5, member=member, generation=1) == 0
    assert commit(broker, 5, member=member, generation=2) == ILLEGAL_GENERATION
    assert commit(broker, 5, member="stranger", generation=1) == UNKNOWN_MEMBER_ID
    assert commit(broker, 5, generation=1) == UNKNOWN_MEMBER_ID


def test_a_rebalance_refuses_none_from_its_own_generation(broker: Broker) -> None:
    """Java's producer takes REBALANCE_IN_PROGRESS for the end of itself."""
    call = broker.join()
    broker.wait(0)
    member = call.answer["member_id"]
    assert broker.commit(5, member=member, generation=1) == REBALANCE_IN_PROGRESS
    assert commit(broker, 5, member=member, generation=1) == 0
    assert commit(broker, 6) == 0
    assert commit(broker, 5, member=member, generation=2) == ILLEGAL_GENERATION


def test_who_keeps_a_group(broker: Broker) -> None:
    (partition,) = broker.partitions
    assert broker.groups.partition_of("g") == (partition, 0)
    assert broker.groups.partition_of("") == (None, INVALID_GROUP_ID)
    broker.commit(1)
    broker.restart(is_patient=False)
    assert broker.groups.partition_of("g") == (None, COORDINATOR_LOAD_IN_PROGRESS)
    assert broker.groups.may_end_transactions(partition) == COORDINATOR_LOAD_IN_PROGRESS
    broker.groups.on_partition_gone(0)
    assert broker.groups.partition_of("g") == (None, NOT_COORDINATOR)
    assert broker.groups.may_end_transactions(partition) == NOT_COORDINATOR


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.sampled_from("gh"), st.integers(0, 1)),
        st.tuples(st.sampled_from([PRODUCER, OTHER]), st.sampled_from("gh"), st.integers(0, 1)),
        st.tuples(st.just("end"), st.sampled_from([PRODUCER, OTHER]), st.booleans()),
        st.just(("restart",)),
    ),
    max_size=30,
)


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS)
@example(steps=[(PRODUCER, "g", 0), ("plain", "g", 0), ("end", PRODUCER, True)])
def test_offsets_are_what_the_log_says(steps: list[tuple[Any, ...]]) -> None:
    """The model: a list of what was appended, and who has committed."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(Path(directory))
        written: list[tuple[int | None, str, int, int]] = []
        open_by: dict[int, list[int]] = {PRODUCER: [], OTHER: []}
        counted: dict[tuple[str, int], int] = {}
        for number, step in enumerate(steps):
            if step[0] == "restart":
                broker.restart()
            elif step[0] == "end":
                _, producer_id, is_commit = step
                end(broker, is_commit, producer_id)
                for at in open_by[producer_id]:
                    _, group, partition, _ = written[at]
                    if is_commit and counted.get((group, partition), -1) < at:
                        counted[group, partition] = at
                open_by[producer_id] = []
            else:
                who, group, partition = step
                at = len(written)
                written.append((None if who == "plain" else who, group, partition, number))
                if who == "plain":
                    assert broker.commit(number, group, partition=partition) == 0
                    counted[group, partition] = at
                else:
                    assert (
                        commit(broker, number, producer_id=who, group=group, partition=partition)
                        == 0
                    )
                    open_by[who].append(at)
            check(broker.groups, written, open_by, counted)
        broker.partitions[0].log.close(clean=False)


def check(
    groups: GroupCoordinator,
    written: list[tuple[int | None, str, int, int]],
    open_by: dict[int, list[int]],
    counted: dict[tuple[str, int], int],
) -> None:
    waiting = {written[at][1:3] for ats in open_by.values() for at in ats}
    for group in "gh":
        error, found = groups.offsets.fetch(group, [("t", [0, 1])], require_stable=False)
        _, stable = groups.offsets.fetch(group, [("t", [0, 1])], require_stable=True)
        assert error == 0
        for row, stable_row in zip(found[0][1], stable[0][1], strict=True):
            at = counted.get((group, row[0]))
            assert (row[2][0] if row[2] else None) == (written[at][3] if at is not None else None)
            is_waiting = (group, row[0]) in waiting
            assert stable_row[1] == (UNSTABLE_OFFSET_COMMIT if is_waiting else 0)


def test_nothing_is_left_of_a_group_that_only_an_aborted_transaction_had(broker: Broker) -> None:
    assert commit(broker, 9) == 0
    end(broker, is_commit=False)
    group = broker.groups.groups["g"]
    assert group.is_idle() and group.owner.store.is_empty_of("g")
    broker.wait(10_000_000)
    assert broker.names() == set()


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_of_a_stranger_changes_nothing(broker: Broker, is_commit: bool) -> None:
    broker.commit(3)
    end(broker, is_commit, producer_id=99)
    assert broker.committed(require_stable=True) == {T0: 3}
