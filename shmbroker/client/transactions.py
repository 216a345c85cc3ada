"""What operators ask about transactions: who has one, where it is open, and which one hangs.

    listed      ListTransactions of every broker: each coordinates some of the transactional ids
    described   DescribeTransactions of the coordinator
    open_in     DescribeProducers of the leaders: transactions that a log waits for
    hanging     those that are open in a log, and that no coordinator will end (KIP-664)
    abort       WriteTxnMarkers to the leader, past the coordinator

A transaction hangs where a leader has appended records of it that its coordinator does not know, or
has forgotten: no marker will come, and read_committed readers wait before its first offset for
ever. Brokers since Kafka 4.0, and ours, refuse such records (KIP-890); those of before may have
left some.

Rule: a transaction that its coordinator has under way is never hanging, however old it is: it ends
by `transaction.timeout.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from shmbroker.client.addresses import Address
from shmbroker.client.admin import ANSWER_S, CLIENT_ID
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import LaterFault, RefusedFault, refuse
from shmbroker.client.retries import patiently
from shmbroker.ids import TopicPartition
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    FIND_COORDINATOR,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message

_TRANSACTION = 1
"""Key type of FindCoordinator."""
_WITH_DURATION = 1
"""The version of ListTransactions that knows `duration_filter` (Kafka 3.8)."""
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")

T = TypeVar("T")


class ListedTransaction(NamedTuple):
    """A transactional id, and the broker that coordinates it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class Described(NamedTuple):
    """A transactional id as its coordinator knows it; `start_ms` is -1 where nothing is open."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: list[TopicPartition]


class Open(NamedTuple):
    """A transaction that is open in a partition's log, by the leader's word."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The coordinator epoch of the last marker; -1: there was none."""
    start_offset: int
    last_timestamp: int
    """The timestamp of the producer's last batch, ms."""


class TransactionsAdmin:
    """One cluster; `with TransactionsAdmin(addresses) as transactions: …`. ClusterFault if it can't
    be asked or refuses."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._cluster = Cluster(addresses, CLIENT_ID, ANSWER_S)

    def __enter__(self) -> TransactionsAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def listed(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
    ) -> list[ListedTransaction]:
        """All that pass these filters, sorted; `duration_ms`: under way for longer (Kafka 3.8)."""
        body: Message = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
        }
        version = 0
        if duration_ms >= 0:
            version = _WITH_DURATION
            body["duration_filter"] = duration_ms
        self._look_up(())
        found = []
        for broker_id in sorted(self._cluster.brokers):

            def ask(broker_id: int = broker_id) -> Message:
                answer = self._cluster.ask_broker(broker_id, LIST_TRANSACTIONS, body, version)
                refuse(answer["error_code"], f"transactions of broker {broker_id}")
                return answer

            answer = _tried(ask, f"broker {broker_id} does not list its transactions")
            if unknown := answer["unknown_state_filters"]:
                raise RefusedFault(f"the cluster knows no state {', '.join(unknown)}")
            found += [
                ListedTransaction(
                    row["transactional_id"],
                    broker_id,
                    row["producer_id"],
                    row["transaction_state"],
                )
                for row in answer["transaction_states"]
            ]
        return sorted(found)

    def described(self, transactional_id: str) -> Described | None:
        """A transactional id as its coordinator has it; None if there is no such id."""

        def ask() -> Described | None:
            self._look_up(())
            key = {"key": transactional_id, "key_type": _TRANSACTION}
            found = self._cluster.ask_any(FIND_COORDINATOR, key)
            about = f"transactional id {transactional_id}"
            refuse(found["error_code"], f"coordinator of {about}", found["error_message"])
            coordinator = found["node_id"]
            body = {"transactional_ids": [transactional_id]}
            answer = self._cluster.ask_broker(coordinator, DESCRIBE_TRANSACTIONS, body)
            (row,) = answer["transaction_states"]
            if row["error_code"] == error_codes.TRANSACTIONAL_ID_NOT_FOUND:
                return None
            refuse(row["error_code"], about)
            return Described(
                transactional_id,
                coordinator,
                row["producer_id"],
                row["producer_epoch"],
                row["transaction_state"],
                row["transaction_timeout_ms"],
                row["transaction_start_time_ms"],
                sorted(
                    (topic["topic"], index)
                    for topic in row["topics"]
                    for index in topic["partitions"]
                ),
            )

        return _tried(ask, f"transactional id {transactional_id} is not told")

    def open_in(self, partitions: Mapping[str, Iterable[int] | None]) -> list[Open]:
        """The open transactions of these partitions (None: of all of a topic), sorted."""
        wanted = {name: None if rows is None else set(rows) for name, rows in partitions.items()}

        def ask() -> list[Open]:
            found = []
            for leader, topics in self._by_leader(wanted).items():
                body: Message = {
                    "topics": [
                        {"name": name, "partition_indexes": indexes}
                        for name, indexes in topics.items()
                    ]
                }
                answer = self._cluster.ask_broker(leader, DESCRIBE_PRODUCERS, body)
                for topic in answer["topics"]:
                    for row in topic["partitions"]:
                        found += _open_of(topic["name"], row)
            return sorted(found)

        return _tried(ask, "the producers of partitions are not told")

    def hanging(
        self, partitions: Mapping[str, Iterable[int] | None], idle_since_ms: int
    ) -> list[Open]:
        """Open transactions in these partitions whose producer has written nothing since that time,
        and that no coordinator has under way."""
        suspects = [one for one in self.open_in(partitions) if one.last_timestamp < idle_since_ms]
        if not suspects:
            return []
        # By producer id: the log does not know transactional ids.
        known: dict[int, list[Described]] = {}
        for row in self.listed(producer_ids={one.producer_id for one in suspects}):
            described = self.described(row.transactional_id)
            if described is not None:
                known.setdefault(described.producer_id, []).append(described)
        return [
            one
            for one in suspects
            if not any(
                row.state in UNDER_WAY and (one.topic, one.partition) in row.partitions
                for row in known.get(one.producer_id, ())
            )
        ]

    def abort(self, open_: Open) -> None:
        """End it in this partition by an abort marker, whatever its coordinator thinks."""
        about = f"{open_.topic}-{open_.partition}"
        marker: Message = {
            "producer_id": open_.producer_id,
            "producer_epoch": open_.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": open_.topic, "partition_indexes": [open_.partition]}],
            "coordinator_epoch": max(open_.coordinator_epoch, 0),
        }

        def ask() -> None:
            (leader,) = self._by_leader({open_.topic: {open_.partition}})
            answer = self._cluster.ask_broker(leader, WRITE_TXN_MARKERS, {"markers": [marker]})
            for row in answer["markers"][0]["topics"][0]["partitions"]:
                refuse(row["error_code"], about)

        _tried(ask, f"the transaction in {about} is not aborted")

    def topics(self) -> list[str]:
        """All that are not internal, sorted."""
        found = _tried(lambda: self._cluster.describe(None, creates=False), "topics are not told")
        return sorted(topic.name for topic, _, is_internal in found if not is_internal)

    # --- who is asked ----------------------------------------------------------------------------

    def _look_up(self, names: Iterable[str]) -> None:
        """Learn the brokers, and where there are names, these topics."""
        for topic, error, _ in self._cluster.describe(names, creates=False):
            if error == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                raise RefusedFault(f"there is no topic {topic.name}")
            refuse(error, f"topic {topic.name}")
            self._cluster.topics[topic.name] = topic

    def _by_leader(self, wanted: Mapping[str, set[int] | None]) -> dict[int, dict[str, list[int]]]:
        self._look_up(wanted)
        found: dict[int, dict[str, list[int]]] = {}
        for name, indexes in wanted.items():
            topic = self._cluster.topics[name]
            for index in sorted(topic.partitions if indexes is None else indexes):
                if index not in topic.partitions:
                    raise RefusedFault(f"topic {name} has no partition {index}")
                leader = topic.leader_of(index)
                if leader < 0:
                    raise LaterFault(f"{name}-{index} has no leader")
                found.setdefault(leader, {}).setdefault(name, []).append(index)
        return found


def _tried(ask: Callable[[], T], what: str) -> T:
    return patiently(ask, ANSWER_S, what)


def _open_of(topic: str, row: Message) -> list[Open]:
    """The producers in a partition's row that have a transaction open."""
    index = row["partition_index"]
    refuse(row["error_code"], f"producers of {topic}-{index}", row["error_message"])
    return [
        Open(
            topic,
            index,
            producer["producer_id"],
            producer["producer_epoch"],
            producer["coordinator_epoch"],
            producer["current_txn_start_offset"],
            producer["last_timestamp"],
        )
        for producer in row["active_producers"]
        if producer["current_txn_start_offset"] >= 0
    ]
