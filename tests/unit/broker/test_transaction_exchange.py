"""Markers to leaders and questions to coordinators: collected, asked once, asked again."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.broker.transaction_exchange import RETRY_MS, TransactionExchange
from shmbroker.groups.group_partition import group_partition
from shmbroker.groups.transactions.endings import Markers
from shmbroker.groups.transactions.transaction import (
    NO_EPOCH,
    NO_ID,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Transaction,
)
from shmbroker.groups.transactions.transaction_table import Entry, TransactionShard
from shmbroker.wire import codec, error_codes
from shmbroker.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    TRANSACTION_COORDINATOR_FENCED,
    UNKNOWN_TOPIC_OR_PARTITION,
)

IDS = 4


class Asked:
    """A request that went to a broker, as that broker decodes it."""

    def __init__(
        self, broker_id: int, name: str, version: int, body: dict[str, Any], on_answer: Any
    ) -> None:
        self.broker_id = broker_id
        self.name = name
        encoded = codec.encode(name + "Request", version, body)
        self.body = codec.decode_request(name, version, encoded)
        self.answer: Callable[[dict[str, Any]], None] = on_answer

    def markers(self) -> set[tuple[int, str, int]]:
        return {
            (row["producer_id"], topic["name"], index)
            for row in self.body["markers"]
            for topic in row["topics"]
            for index in topic["partition_indexes"]
        }

    def answer_markers(self, *errors: tuple[str, int, int]) -> None:
        """All written, but for these (topic, partition, error)."""
        found = {(topic, index): error for topic, index, error in errors}
        self.answer(
            {
                "markers": [
                    {
                        "producer_id": row["producer_id"],
                        "topics": [
                            {
                                "name": topic["name"],
                                "partitions": [
                                    {
                                        "partition_index": index,
                                        "error_code": found.get((topic["name"], index), 0),
                                    }
                                    for index in topic["partition_indexes"]
                                ],
                            }
                            for topic in row["topics"]
                        ],
                    }
                    for row in self.body["markers"]
                ]
            }
        )

    def answer_adds(self, error: int) -> None:
        self.answer(
            {
                "error_code": 0,
                "results_by_transaction": [
                    {
                        "transactional_id": row["transactional_id"],
                        "topic_results": [
                            {
                                "name": topic["name"],
                                "results_by_partition": [
                                    {"partition_index": index, "partition_error_code": error}
                                    for index in topic["partitions"]
                                ],
                            }
                            for topic in row["topics"]
                        ],
                    }
                    for row in self.body["transactions"]
                ],
            }
        )


class Broker:
    """Broker 1 of those that lead partitions by `leaders`; 0 and -1 can't be asked."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.leaders = {
            "t": [1, 2, 2],
            "u": [2, 0],
            "__transaction_state": [1, 2, 1, 2],
        }
        self.asked: list[Asked] = []
        self.marked: list[Markers] = []
        self.exchange = TransactionExchange(
            {"transaction.partition.verification.enable": True},
            self,
            self.ask,
            lambda: self.now_ms,
        )
        self.exchange.on_marked = self.marked.append

    @property
    def image(self) -> Any:
        topics = {
            name: SimpleNamespace(partitions=[SimpleNamespace(leader_id=each) for each in leaders])
            for name, leaders in self.leaders.items()
        }
        return SimpleNamespace(topics_by_name=topics)

    def ask(
        self,
        broker_id: int,
        api_key: int,
        name: str,
        version: int,
        body: dict[str, Any],
        on_answer: Any,
    ) -> bool:
        assert api_key == {"WriteTxnMarkers": 27, "AddPartitionsToTxn": 24}[name]
        if broker_id < 1:
            return False
        self.asked.append(Asked(broker_id, name, version, body, on_answer))
        return True

    def run(self) -> dict[int, Asked]:
        """What is asked now, by broker: each once."""
        self.exchange.run()
        asked, self.asked = self.asked, []
        assert len({each.broker_id for each in asked}) == len(asked)
        return {each.broker_id: each for each in asked}

    def wait(self) -> dict[int, Asked]:
        assert self.exchange.next_ms == self.now_ms + RETRY_MS
        assert not self.exchange.has_work
        self.now_ms += RETRY_MS - 1
        assert not self.run()
        self.now_ms += 1
        return self.run()

    def verify(
        self,
        topic: str,
        index: int,
        name: str = "x",
        epoch: int = 5,
        may_add: bool = True,
        producer_id: int = 7,
    ) -> list[int]:
        told: list[int] = []
        partition: Any = SimpleNamespace(topic=topic, partition=index)
        self.exchange.verify(partition, name, producer_id, epoch, may_add, told.append)
        return told


@pytest.fixture
def broker() -> Broker:
    return Broker()


def markers_of(
    *partitions: tuple[str, int], producer_id: int = 7, is_commit: bool = True
) -> Markers:
    state = PREPARE_COMMIT if is_commit else PREPARE_ABORT
    known = Transaction(
        producer_id, 5, NO_ID, NO_ID, NO_EPOCH, 1, state, frozenset(partitions), 0, 0, 2
    )
    partition: Any = None
    return Markers(Entry(f"id-{producer_id}", known, TransactionShard(partition)), 3)


def test_each_leader_is_asked_once_for_all_markers_of_a_turn(broker: Broker) -> None:
    first = markers_of(("t", 0), ("t", 1), ("t", 2), ("u", 0))
    second = markers_of(("t", 2), producer_id=8, is_commit=False)
    broker.exchange.send(first)
    broker.exchange.send(second)
    assert broker.exchange.has_work
    asked = broker.run()
    assert not broker.exchange.has_work
    assert asked[1].markers() == {(7, "t", 0)}
    assert asked[2].markers() == {(7, "t", 1), (7, "t", 2), (7, "u", 0), (8, "t", 2)}
    rows = {row["producer_id"]: row for row in asked[2].body["markers"]}
    assert rows[7]["transaction_result"] and not rows[8]["transaction_result"]
    assert (rows[7]["producer_epoch"], rows[7]["coordinator_epoch"]) == (5, 3)
    assert rows[7]["transaction_version"] == 2
    asked[2].answer_markers()
    assert broker.marked == [second]
    asked[1].answer_markers()
    assert broker.marked == [second, first]


def test_what_can_not_be_written_yet_is_asked_again_where_it_is_led_then(broker: Broker) -> None:
    markers = markers_of(("t", 0), ("t", 1), ("u", 1))
    broker.exchange.send(markers)
    asked = broker.run()
    asked[1].answer({"error_code": error_codes.NETWORK_EXCEPTION})  # it has died
    asked[2].answer_markers(("t", 1, NOT_LEADER_OR_FOLLOWER))
    broker.leaders["t"] = [2, 1, 1]
    again = broker.wait()
    assert again[1].markers() == {(7, "t", 1)}
    assert again[2].markers() == {(7, "t", 0)}
    again[1].answer_markers()
    again[2].answer_markers()
    assert not broker.marked  # u-1 has no leader that can be asked
    broker.leaders["u"][1] = 2
    once_more = broker.wait()
    assert once_more[2].markers() == {(7, "u", 1)}
    once_more[2].answer_markers()
    assert broker.marked == [markers]
    assert not broker.exchange.has_work and not broker.run()


def test_a_partition_that_is_gone_needs_no_marker(broker: Broker) -> None:
    markers = markers_of(("gone", 0), ("t", 9), ("t", 0))
    broker.exchange.send(markers)
    broker.run()[1].answer_markers(("t", 0, UNKNOWN_TOPIC_OR_PARTITION))
    assert not broker.marked  # it may be new to that broker
    del broker.leaders["t"]
    assert not broker.wait()
    assert broker.marked == [markers]


@pytest.mark.parametrize("error", [INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED])
def test_a_later_coordinator_ends_it(
    broker: Broker, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker.exchange.send(markers_of(("t", 0), ("t", 1), ("u", 1)))
    asked = broker.run()
    asked[1].answer_markers(("t", 0, error))
    asked[2].answer_markers()
    assert not broker.wait()  # nor is the leader of u-1 waited for any longer
    assert not broker.marked
    assert broker.exchange.next_ms > broker.now_ms + 10**9
    assert "the marker of id-7 for t-0 is refused" in caplog.text


def test_markers_of_a_coordinator_that_was_are_left(broker: Broker) -> None:
    markers = markers_of(("t", 0), ("t", 1))
    broker.exchange.send(markers)
    asked = broker.run()
    markers.is_void = True
    asked[1].answer_markers(("t", 0, NOT_LEADER_OR_FOLLOWER))
    asked[2].answer_markers()
    assert not broker.marked
    later = markers_of(("t", 0))
    broker.exchange.send(later)
    later.is_void = True
    assert not broker.run()


# ── verification ────────────────────────────────────────────────────────────────────────────────


def test_the_coordinator_of_each_id_is_asked(broker: Broker) -> None:
    names = [f"id{number}" for number in range(8)]
    told = {name: broker.verify("t", 0, name) for name in names}
    twice = broker.verify("t", 1, names[0])
    asked = broker.run()
    for name in names:
        coordinator = broker.leaders["__transaction_state"][group_partition(name, IDS)]
        (row,) = [
            row
            for row in asked[coordinator].body["transactions"]
            if row["transactional_id"] == name
        ]
        assert (row["producer_id"], row["producer_epoch"], row["verify_only"]) == (7, 5, False)
        expected = [0, 1] if name == names[0] else [0]
        assert row["topics"] == [{"name": "t", "partitions": expected}]
    for each in asked.values():
        each.answer_adds(0)
    assert twice == [0] and all(errors == [0] for errors in told.values())


@pytest.mark.parametrize("other", [{"epoch": 4}, {"producer_id": 6}, {"may_add": False}])
def test_two_producers_of_an_id_are_two_questions(broker: Broker, other: dict[str, Any]) -> None:
    """An id is a key of the request; so are two questions of different kinds."""
    old, new = broker.verify("t", 0, **other), broker.verify("t", 1)
    (first,) = broker.run().values()
    assert broker.exchange.has_work
    (second,) = broker.run().values()
    first.answer_adds(PRODUCER_FENCED)
    second.answer_adds(0)
    assert (old, new) == ([INVALID_PRODUCER_EPOCH], [0])


@pytest.mark.parametrize(
    ("error", "adding", "verifying"),
    [
        (0, 0, 0),
        (PRODUCER_FENCED, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_EPOCH),
        (INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_ID_MAPPING),
        (TRANSACTION_ABORTABLE, TRANSACTION_ABORTABLE, TRANSACTION_ABORTABLE),
        (CONCURRENT_TRANSACTIONS, CONCURRENT_TRANSACTIONS, NOT_ENOUGH_REPLICAS),
        (NOT_COORDINATOR, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS),
        (COORDINATOR_LOAD_IN_PROGRESS, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS),
    ],
)
def test_a_producer_is_told_what_it_knows(
    broker: Broker, error: int, adding: int, verifying: int
) -> None:
    for may_add, expected in ((True, adding), (False, verifying)):
        told = broker.verify("t", 0, may_add=may_add)
        (asked,) = broker.run().values()
        assert asked.body["transactions"][0]["verify_only"] != may_add
        asked.answer_adds(error)
        assert told == [expected]


def test_where_nothing_is_verified_only_what_adds_is_asked(broker: Broker) -> None:
    broker.exchange.is_verifying = False
    assert broker.verify("t", 0, may_add=False) == [0]
    assert not broker.run()
    assert broker.verify("t", 0, may_add=True) == []
    (asked,) = broker.run().values()
    assert not asked.body["transactions"][0]["verify_only"]


def test_where_nobody_can_be_asked_the_producer_tries_again(broker: Broker) -> None:
    broker.leaders["__transaction_state"] = [0] * IDS
    told = broker.verify("t", 0)
    assert not broker.run() and told == [NOT_ENOUGH_REPLICAS]
    del broker.leaders["__transaction_state"]
    told = broker.verify("t", 0)
    broker.run()
    assert told == [NOT_ENOUGH_REPLICAS]
    broker.leaders["__transaction_state"] = [2] * IDS
    told = broker.verify("t", 0)
    broker.run()[2].answer({"error_code": error_codes.NETWORK_EXCEPTION})
    assert told == [NOT_ENOUGH_REPLICAS]
