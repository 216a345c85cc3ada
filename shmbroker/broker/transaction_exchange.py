"""What brokers ask each other about transactions: for markers, and whether one is under way.

    coordinator ── WriteTxnMarkers ────► leaders of the partitions      (`send`)
    leader ─────── AddPartitionsToTxn ─► coordinator of the id          (`verify`)

Rules of this file:
* What is to be asked of one broker is collected and asked in one request in each turn.
  This broker is asked in the same way: one path.
* Markers are asked for until they are written, or the partition is gone. Another leader, a dead
  broker or too few replicas are waited for; an answer that says that a later coordinator, or a
  later epoch, was there ends it.
* A verification is answered once, with an error that producers retry where nobody can be asked.

Source: KIP-98, KIP-890; Kafka's TransactionMarkerChannelManager, AddPartitionsToTxnManager.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from shmbroker.groups.group_partition import group_partition
from shmbroker.metadata.topic_names import TRANSACTION_TOPIC
from shmbroker.purgatory import NEVER_MS
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.groups.transactions.endings import Markers
    from shmbroker.ids import TopicPartition
    from shmbroker.metadata.followed import Followed
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig

    OnAnswer = Callable[[dict[str, Any]], None]
    """What is told the answer; one with an error code alone if the broker could not give it."""
    Ask = Callable[[int, int, str, int, dict[str, Any], OnAnswer], bool]
    """ask(broker id, api key, name, version, body, on_answer): False while it can't be asked."""


class Verification(NamedTuple):
    """A question to a coordinator: is this partition part of the transaction?"""

    partition: Partition
    transactional_id: str
    producer_id: int
    producer_epoch: int
    may_add: bool
    on_answer: Callable[[int], None]

    def fits(self, other: Verification) -> bool:
        """Whether one row of a request can ask both; they have the same transactional id."""
        return (
            self.producer_id == other.producer_id
            and self.producer_epoch == other.producer_epoch
            and self.may_add == other.may_add
        )


logger = logging.getLogger(__name__)

RETRY_MS = 20
MARKERS_VERSION = 2
ADD_VERSION = 5

_ENDS = (error_codes.INVALID_PRODUCER_EPOCH, error_codes.TRANSACTION_COORDINATOR_FENCED)
"""Answers to a marker after which it can't be written any more."""
_RETRIABLE = frozenset(
    (
        error_codes.NETWORK_EXCEPTION,
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.NOT_COORDINATOR,
    )
)


class TransactionExchange:
    """The questions of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Followed,
        ask: Ask,
        steady_ms: Callable[[], int],
    ) -> None:
        self.is_verifying: bool = config["transaction.partition.verification.enable"]
        """Whether producers that add their partitions themselves are asked about, too."""
        self._metadata = metadata
        self._ask = ask
        self._steady_ms = steady_ms
        self.on_marked: Callable[[Markers], None]
        """What is told of markers once all are written: set by the coordinator that sends them."""
        self._left: dict[Markers, set[TopicPartition]] = {}
        """The partitions that have not got their marker yet."""
        self.to_write: dict[Markers, set[TopicPartition]] = {}
        self.to_verify: list[Verification] = []
        self._retry: dict[Markers, set[TopicPartition]] = {}
        self.next_ms = NEVER_MS
        """When `run` has something to do though nothing comes in, by the steady clock."""

    def send(self, markers: Markers) -> None:
        """Have markers written to all partitions of a transaction, and tell when they are."""
        self._left[markers] = set(markers.partitions)
        self.to_write[markers] = set(markers.partitions)

    def verify(
        self,
        partition: Partition,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        may_add: bool,
        on_answer: Callable[[int], None],
    ) -> None:
        """Ask the coordinator whether a partition is part of a transaction, or add it: `on_answer`
        is told the error code for the producer, once."""
        if not may_add and not self.is_verifying:
            on_answer(error_codes.NONE)
            return
        self.to_verify.append(
            Verification(
                partition, transactional_id, producer_id, producer_epoch, may_add, on_answer
            )
        )

    @property
    def has_work(self) -> bool:
        """Whether `run` has something to do at once."""
        return bool(self.to_write or self.to_verify)

    def run(self) -> None:
        """Ask what is to be asked: for markers first."""
        if self.next_ms <= self._steady_ms():
            self.next_ms = NEVER_MS
            retry, self._retry = self._retry, {}
            for markers, partitions in retry.items():
                self.to_write.setdefault(markers, set()).update(partitions)
        if self.to_write:
            self._ask_for_markers()
        self.ask_coordinators()

    # ── markers ─────────────────────────────────────────────────────────────────────────────────

    def _ask_for_markers(self) -> None:
        to_write, self.to_write = self.to_write, {}
        by_leader: dict[int, list[tuple[Markers, list[TopicPartition]]]] = {}
        image = self._metadata.image
        for markers, partitions in to_write.items():
            if markers.is_void or markers not in self._left:  # not in it: refused elsewhere
                self._left.pop(markers, None)
                continue
            own: dict[int, list[TopicPartition]] = {}
            for name, index in sorted(partitions):
                topic = image.topics_by_name.get(name)
                if topic is None or not 0 <= index < len(topic.partitions):
                    self._on_written(markers, (name, index), 0)  # deleted: nothing to end there
                    continue
                own.setdefault(topic.partitions[index].leader_id, []).append((name, index))
            for leader, rows in own.items():
                by_leader.setdefault(leader, []).append((markers, rows))
        for leader, asked in by_leader.items():
            self._ask_leader(leader, asked)

    def _ask_leader(self, leader: int, asked: list[tuple[Markers, list[TopicPartition]]]) -> None:
        def on_answer(answer: dict[str, Any]) -> None:
            if "markers" not in answer:
                for markers, partitions in asked:
                    self._write_later(markers, partitions)
                return
            for (markers, _), row in zip(asked, answer["markers"], strict=True):
                for topic in row["topics"]:
                    for each in topic["partitions"]:
                        where = topic["name"], each["partition_index"]
                        self._on_written(markers, where, each["error_code"])

        rows = []
        for markers, partitions in asked:
            by_topic: dict[str, list[int]] = {}
            for name, index in partitions:
                by_topic.setdefault(name, []).append(index)
            rows.append(
                {
                    "producer_id": markers.producer_id,
                    "producer_epoch": markers.producer_epoch,
                    "transaction_result": markers.is_commit,
                    "topics": [
                        {"name": name, "partition_indexes": indexes}
                        for name, indexes in by_topic.items()
                    ],
                    "coordinator_epoch": markers.coordinator_epoch,
                    "transaction_version": markers.version,
                }
            )
        body = {"markers": rows}
        key, version = WRITE_TXN_MARKERS, MARKERS_VERSION
        if not self._ask(leader, key, "WriteTxnMarkers", version, body, on_answer):
            on_answer({})

    def _on_written(self, markers: Markers, where: TopicPartition, error: int) -> None:
        left = self._left.get(markers)
        if left is None:
            return
        if markers.is_void:
            del self._left[markers]
        elif error in _ENDS:
            del self._left[markers]
            logger.warning(
                "the marker of %s for %s-%d is refused, so this coordinator leaves it: %s",
                markers.entry.transactional_id,
                *where,
                error_codes.name_of(error),
            )
        elif error:
            self._write_later(markers, [where])
        else:
            left.discard(where)
            if not left:
                del self._left[markers]
                self.on_marked(markers)

    def _write_later(self, markers: Markers, partitions: list[TopicPartition]) -> None:
        if not self._retry:
            self.next_ms = self._steady_ms() + RETRY_MS
        self._retry.setdefault(markers, set()).update(partitions)

    # ── verification ────────────────────────────────────────────────────────────────────────────

    def ask_coordinators(self) -> None:
        """Ask about the transactions that begin here: their batches wait."""
        if not self.to_verify:
            return
        to_verify, self.to_verify = self.to_verify, []
        topic = self._metadata.image.topics_by_name.get(TRANSACTION_TOPIC)
        by_coordinator: dict[int, list[Verification]] = {}
        for question in to_verify:
            leader = -1
            if topic is not None:
                index = group_partition(question.transactional_id, len(topic.partitions))
                leader = topic.partitions[index].leader_id
            by_coordinator.setdefault(leader, []).append(question)
        for coordinator, questions in by_coordinator.items():
            self._ask_coordinator(coordinator, questions)

    def _ask_coordinator(self, coordinator: int, questions: list[Verification]) -> None:
        # A row for each transaction, as an id is a key of the request.
        by_id: dict[str, list[Verification]] = {}
        later = []
        for question in questions:
            same = by_id.setdefault(question.transactional_id, [])
            if same and not same[0].fits(question):
                later.append(question)
            else:
                same.append(question)
        self.to_verify += later

        def on_answer(answer: dict[str, Any]) -> None:
            errors: dict[tuple[str, str, int], int] = {}
            for row in answer.get("results_by_transaction", ()):
                for topic in row["topic_results"]:
                    for each in topic["results_by_partition"]:
                        where = row["transactional_id"], topic["name"], each["partition_index"]
                        errors[where] = each["partition_error_code"]
            for asked in by_id.values():
                for each in asked:
                    partition = each.partition
                    where = each.transactional_id, partition.topic, partition.partition
                    error = errors.get(where, error_codes.NOT_COORDINATOR)
                    each.on_answer(_for_producer(error, each.may_add))

        rows = []
        for transactional_id, asked in by_id.items():
            by_topic: dict[str, set[int]] = {}
            for question in asked:
                partition = question.partition
                by_topic.setdefault(partition.topic, set()).add(partition.partition)
            question = asked[0]
            rows.append(
                {
                    "transactional_id": transactional_id,
                    "producer_id": question.producer_id,
                    "producer_epoch": question.producer_epoch,
                    "verify_only": not question.may_add,
                    "topics": [
                        {"name": name, "partitions": sorted(indexes)}
                        for name, indexes in by_topic.items()
                    ],
                }
            )
        body = {"transactions": rows}
        key, version = ADD_PARTITIONS_TO_TXN, ADD_VERSION
        if not self._ask(coordinator, key, "AddPartitionsToTxn", version, body, on_answer):
            on_answer({})


def _for_producer(error: int, may_add: bool) -> int:
    """What a producer is told: errors that it knows, and that it retries where that helps.

    NOT_ENOUGH_REPLICAS as Kafka does: no client looks for another leader after it.
    """
    if error == error_codes.PRODUCER_FENCED:
        return error_codes.INVALID_PRODUCER_EPOCH
    if error in _RETRIABLE or (error == error_codes.CONCURRENT_TRANSACTIONS and not may_add):
        return error_codes.NOT_ENOUGH_REPLICAS
    return error
