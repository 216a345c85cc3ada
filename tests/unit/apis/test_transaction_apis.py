"""The requests of transactions: when they are answered, and what they ask before."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.broker import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from shmbroker.groups.group_partition import group_partition
from shmbroker.groups.transactions.transaction import (
    NO_EPOCH,
    NO_ID,
    ONGOING,
    PREPARE_COMMIT,
    Transaction,
)
from shmbroker.ids import partition_key
from shmbroker.records.end_marker import EndMarker
from shmbroker.replica.partition import Partitions
from shmbroker.wire import error_codes as e
from tests.support.steps import finish_counted

TOPIC_ID, OFFSETS_ID = bytes(15) + b"\1", bytes(15) + b"\2"
OFFSETS = "__consumer_offsets"
KNOWN = Transaction(7, 5, NO_ID, NO_ID, NO_EPOCH, 9, ONGOING, frozenset(), 0, 0, 2)


class Call:
    def __init__(self, version: int) -> None:
        self.api_version = version
        self.bodies: list[dict[str, Any]] = []

    def reply(self, body: dict[str, Any]) -> None:
        self.bodies.append(body)

    @property
    def body(self) -> dict[str, Any]:
        (body,) = self.bodies
        return body


class Partition:
    def __init__(self) -> None:
        self.is_leader = True
        self.open: set[tuple[int, int]] = set()
        self.producers = SimpleNamespace(is_open=lambda *who: who in self.open)


class Broker:
    """What the modules ask, kept until the test answers it."""

    def __init__(self) -> None:
        topics = {"t": (TOPIC_ID, 3), OFFSETS: (OFFSETS_ID, 50)}
        self.image = SimpleNamespace(
            topics_by_name={
                name: SimpleNamespace(name=name, topic_id=topic_id, partitions=[None] * count)
                for name, (topic_id, count) in topics.items()
            }
        )
        self.config = {"offsets.topic.num.partitions": 10}
        held: Any = {
            partition_key(TOPIC_ID, 0): Partition(),
            partition_key(OFFSETS_ID, 0): Partition(),
        }
        self.partitions = Partitions(held)
        self.asked: list[tuple[Any, ...]] = []
        self.waiting: list[Callable[[int], None]] = []
        self.marked: list[tuple[Any, ...]] = []
        self.committed: list[tuple[Any, ...]] = []
        self.is_loading = 0
        self.append_error = 0
        self.transactions: Any = SimpleNamespace(
            requests=SimpleNamespace(
                add_partitions=lambda *row: self.asked.append(row),
                end=lambda *row: self.asked.append(row),
                init_producer_id=lambda *row: self.asked.append(row),
                verify=lambda name, *row: dict.fromkeys(row[2], e.TRANSACTION_ABORTABLE),
            ),
            all_known=lambda: (0, [(f"id-{n}", KNOWN) for n in range(1_200)]),
        )
        self.groups: Any = SimpleNamespace(
            may_end_transactions=lambda partition: self.is_loading,
            partition_of=lambda group: (
                (
                    self.partitions[partition_key(OFFSETS_ID, 0)],
                    0,
                )
                if group
                else (None, e.INVALID_GROUP_ID)
            ),
            offsets=SimpleNamespace(
                on_marker=lambda *row: self.marked.append(row),
                commit_in_transaction=self.commit,
            ),
        )

    def now_ms(self) -> int:
        return 1_000

    def commit(self, body: dict[str, Any], offsets: list[Any]) -> list[int]:
        self.committed.append((body["group_id"], [row["partition_index"] for *_, row in offsets]))
        return [0] * len(offsets)

    def append_marker(self, partition: Any, marker: EndMarker, version: int) -> tuple[int, int]:
        self.asked.append((partition, marker, version))
        return self.append_error, 10

    def when_replicated(self, partition: Any, end_offset: int, then: Any) -> None:
        self.waiting.append(then)

    def verify_transaction(self, *row: Any) -> None:
        self.asked.append(row)

    def wait_for_producer_ids(self, on_here: Callable[[], None], /) -> bool:
        return False

    def next_producer_id(self) -> int:
        return 1


@pytest.fixture
def broker() -> Any:
    return Broker()


def row_of(name: str, *topics: tuple[str, list[int]], verify_only: bool = False) -> dict[str, Any]:
    return {
        "transactional_id": name,
        "producer_id": 7,
        "producer_epoch": 5,
        "verify_only": verify_only,
        "topics": [{"name": topic, "partitions": indexes} for topic, indexes in topics],
    }


def codes(body: dict[str, Any]) -> dict[str, dict[tuple[str, int], int]]:
    return {
        row["transactional_id"]: {
            (topic["name"], each["partition_index"]): each["partition_error_code"]
            for topic in row["topic_results"]
            for each in topic["results_by_partition"]
        }
        for row in body["results_by_transaction"]
    }


# ── AddPartitionsToTxn, AddOffsetsToTxn ─────────────────────────────────────────────────────────


def test_several_transactions_are_answered_when_each_is(broker: Any) -> None:
    call: Any = Call(5)
    asked = [
        row_of("a", ("t", [0, 1])),
        row_of("b", ("t", [0]), verify_only=True),
        row_of("c", ("t", [0]), ("none", [0])),
        row_of("d", (OFFSETS, [3])),
    ]
    assert add_partitions_to_txn.answer(broker, call, {"transactions": asked}) is None
    first, second = broker.asked
    assert first[:5] == ("a", 7, 5, [("t", 0), ("t", 1)], 2)
    assert second[:5] == ("d", 7, 5, [(OFFSETS, 3)], 2)
    second[5](0, KNOWN)
    assert not call.bodies
    first[5](e.PRODUCER_FENCED, None)
    assert codes(call.body) == {
        "a": dict.fromkeys([("t", 0), ("t", 1)], e.PRODUCER_FENCED),
        "b": {("t", 0): e.TRANSACTION_ABORTABLE},
        "c": {
            ("t", 0): e.OPERATION_NOT_ATTEMPTED,
            ("none", 0): e.UNKNOWN_TOPIC_OR_PARTITION,
        },
        "d": {(OFFSETS, 3): 0},
    }


def test_what_needs_no_wait_is_answered_at_once(broker: Any) -> None:
    call: Any = Call(4)
    asked = [row_of("a", ("t", [0]), verify_only=True), row_of("b", ("none", [0]))]
    assert add_partitions_to_txn.answer(broker, call, {"transactions": asked}) is None
    assert len(codes(call.body)) == 2
    assert add_partitions_to_txn.answer(broker, call, {"transactions": []}) == {
        "results_by_transaction": []
    }


@pytest.mark.parametrize("version", range(4))
def test_clients_add_no_topics_of_kafkas_own(broker: Any, version: int) -> None:
    call: Any = Call(version)
    body = {
        f"v3_and_below_{name}": value
        for name, value in row_of("a", ("t", [0]), (OFFSETS, [3])).items()
    }
    answer = add_partitions_to_txn.answer(broker, call, body)
    assert answer is not None and not broker.asked
    rows = {
        topic["name"]: topic["results_by_partition"][0]["partition_error_code"]
        for topic in answer["results_by_topic_v3_and_below"]
    }
    assert rows == {"t": e.OPERATION_NOT_ATTEMPTED, OFFSETS: e.TOPIC_AUTHORIZATION_FAILED}


def test_a_group_is_added_before_its_topic_is_there(broker: Any) -> None:
    for count in (50, 10):
        if count == 10:
            del broker.image.topics_by_name[OFFSETS]
        call: Any = Call(1)
        body = row_of("a") | {"group_id": "g"}
        add_offsets_to_txn.answer(broker, call, body)
        *who, done = broker.asked.pop()
        assert who == ["a", 7, 5, [(OFFSETS, group_partition("g", count))], 0]
        done(e.PRODUCER_FENCED, None)
        assert call.body == {"error_code": e.INVALID_PRODUCER_EPOCH}


# ── EndTxn, InitProducerId ──────────────────────────────────────────────────────────────────────


def test_an_end_tells_the_next_epoch_from_version_5_on(broker: Any) -> None:
    for version in range(6):
        call: Any = Call(version)
        end_txn.answer(broker, call, row_of("a") | {"committed": True})
        *who, done = broker.asked.pop()
        assert who == ["a", 7, 5, True, 2 if version == 5 else 0]
        done(0, KNOWN._replace(state=PREPARE_COMMIT, producer_epoch=6))
        known = {"error_code": 0}
        if version == 5:
            known |= {"producer_id": 7, "producer_epoch": 6}
        assert call.body == known


def test_a_refused_producer_id_is_none(broker: Any) -> None:
    body = {
        "transactional_id": "a",
        "transaction_timeout_ms": 3,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    for version, told in ((3, e.INVALID_PRODUCER_EPOCH), (4, e.PRODUCER_FENCED)):
        call: Any = Call(version)
        assert init_producer_id.answer(broker, call, body) is None
        *who, done = broker.asked.pop()
        assert who == ["a", -1, -1, 3]
        done(e.PRODUCER_FENCED, None)
        assert call.body == {"producer_id": -1, "producer_epoch": -1, "error_code": told}
    call = Call(5)
    init_producer_id.answer(broker, call, body)
    broker.asked.pop()[-1](0, KNOWN)
    assert call.body == {"producer_id": 7, "producer_epoch": 5}


# ── WriteTxnMarkers ─────────────────────────────────────────────────────────────────────────────


def markers(*topics: tuple[str, list[int]]) -> dict[str, Any]:
    return {
        "markers": [
            {
                "producer_id": 7,
                "producer_epoch": 5,
                "transaction_result": True,
                "topics": [
                    {"name": name, "partition_indexes": indexes} for name, indexes in topics
                ],
                "coordinator_epoch": 3,
                "transaction_version": 2,
            }
        ]
    }


def marked(call: Any) -> dict[tuple[str, int], int]:
    (row,) = call.body["markers"]
    return {
        (topic["name"], each["partition_index"]): each["error_code"]
        for topic in row["topics"]
        for each in topic["partitions"]
    }


def test_markers_are_answered_when_the_replicas_have_them(broker: Any) -> None:
    call: Any = Call(2)
    write_txn_markers.answer(broker, call, markers(("t", [0, 1, 9]), (OFFSETS, [0])))
    offsets = broker.partitions[partition_key(OFFSETS_ID, 0)]
    marker = EndMarker(7, 5, 3, True)
    assert [row[1:] for row in broker.asked] == [(marker, 2), (marker, 2)]
    assert broker.marked == [(offsets, 7, True)]
    first, second = broker.waiting
    second(0)
    assert not call.bodies
    first(e.REQUEST_TIMED_OUT)
    assert marked(call) == {
        ("t", 0): e.REQUEST_TIMED_OUT,
        ("t", 1): e.NOT_LEADER_OR_FOLLOWER,
        ("t", 9): e.UNKNOWN_TOPIC_OR_PARTITION,
        (OFFSETS, 0): 0,
    }


def test_no_marker_where_offsets_are_loaded(broker: Any) -> None:
    """The log is read up to where it ended then: the marker would not be seen."""
    broker.is_loading = e.COORDINATOR_LOAD_IN_PROGRESS
    call: Any = Call(2)
    write_txn_markers.answer(broker, call, markers((OFFSETS, [0])))
    assert not broker.asked and not broker.marked
    assert marked(call) == {(OFFSETS, 0): e.COORDINATOR_LOAD_IN_PROGRESS}


def test_a_refused_marker_changes_no_offsets(broker: Any) -> None:
    broker.append_error = e.INVALID_PRODUCER_EPOCH
    call: Any = Call(1)
    write_txn_markers.answer(broker, call, markers((OFFSETS, [0])))
    assert not broker.marked
    assert marked(call) == {(OFFSETS, 0): e.INVALID_PRODUCER_EPOCH}


# ── TxnOffsetCommit ─────────────────────────────────────────────────────────────────────────────


def offsets_of(group: str = "g", *partitions: tuple[str, int]) -> dict[str, Any]:
    return {
        "transactional_id": "a",
        "group_id": group,
        "producer_id": 7,
        "producer_epoch": 5,
        "topics": [
            {"name": name, "partitions": [{"partition_index": index}]}
            for name, index in partitions or [("t", 0)]
        ],
    }


def committed_codes(body: dict[str, Any]) -> list[int]:
    return [row["error_code"] for topic in body["topics"] for row in topic["partitions"]]


@pytest.mark.parametrize("version", range(6))
def test_the_first_offsets_wait_for_the_coordinator(broker: Any, version: int) -> None:
    call: Any = Call(version)
    body = offsets_of("g", ("t", 0), ("none", 0), ("t", 3))
    assert txn_offset_commit.answer(broker, call, body) is None
    partition, *who, commit = broker.asked.pop()
    assert partition is broker.partitions[partition_key(OFFSETS_ID, 0)]
    assert who == ["a", 7, 5, version >= 5]
    assert not broker.committed and not call.bodies
    commit(0)
    unknown = e.UNKNOWN_TOPIC_OR_PARTITION
    assert committed_codes(call.body) == [unknown, unknown, 0]  # in Kafka's order
    assert broker.committed == [("g", [0])]
    partition.open.add((7, 5))
    again: Any = Call(version)
    assert txn_offset_commit.answer(broker, again, offsets_of()) is None
    assert not broker.asked and committed_codes(again.body) == [0]


@pytest.mark.parametrize(
    ("version", "error", "told"),
    [
        (0, e.TRANSACTION_ABORTABLE, e.INVALID_TXN_STATE),
        (3, e.TRANSACTION_ABORTABLE, e.INVALID_TXN_STATE),
        (4, e.TRANSACTION_ABORTABLE, e.TRANSACTION_ABORTABLE),
        (3, e.NOT_ENOUGH_REPLICAS, e.COORDINATOR_NOT_AVAILABLE),
        (5, e.CONCURRENT_TRANSACTIONS, e.CONCURRENT_TRANSACTIONS),
    ],
)
def test_offsets_outside_of_a_transaction_are_refused(
    broker: Any, version: int, error: int, told: int
) -> None:
    call: Any = Call(version)
    txn_offset_commit.answer(broker, call, offsets_of())
    broker.asked.pop()[-1](error)
    assert committed_codes(call.body) == [told]
    assert not broker.committed


def test_offsets_of_no_group_or_of_nothing(broker: Any) -> None:
    call: Any = Call(5)
    txn_offset_commit.answer(broker, call, offsets_of(""))
    assert committed_codes(call.body) == [e.INVALID_GROUP_ID]
    answer = txn_offset_commit.answer(broker, call, offsets_of("g", ("none", 0)))
    assert answer is not None
    assert committed_codes(answer) == [e.UNKNOWN_TOPIC_OR_PARTITION]
    assert not broker.asked


# ── the rest ────────────────────────────────────────────────────────────────────────────────────


def test_many_ids_are_listed_in_steps(broker: Any) -> None:
    body = {
        "state_filters": [],
        "producer_id_filters": [],
        "transactional_id_pattern": "id-1.*",
        "duration_filter": 500,
    }
    steps = list_transactions.answer(broker, Call(2), body)
    answer, count = finish_counted(steps)
    assert count == 2
    found = [row["transactional_id"] for row in answer["transaction_states"]]
    assert found == [f"id-{n}" for n in range(1_200) if str(n).startswith("1")]
