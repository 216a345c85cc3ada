"""A transactional producer of transaction.version 2 (KIP-890), on plain sockets.

Produce 12 and TxnOffsetCommit 5 add their partitions by themselves, and each EndTxn 5 gives the
next epoch. Like a client library it asks again with the same epoch and sequence after an error that
is to be retried, or after a connection that broke; whatever else happens ends the transaction.
"""

from collections.abc import Callable
from typing import Any

from shmbroker import clock
from shmbroker.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    KAFKA_STORAGE_ERROR,
    LEADER_NOT_AVAILABLE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
    name_of,
)
from tests.support.raw_client import RawClient, batch_of, produce_body

PATIENCE_S = 60.0
ANSWER_S = 5.0
PAUSE_S = 0.01
GROUP, TRANSACTION = 0, 1
RETRIED = (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    KAFKA_STORAGE_ERROR,
    LEADER_NOT_AVAILABLE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
)


class Refused(Exception):
    """An error that is not retried."""


class TransactionalProducer:
    """One transaction at a time, of one topic."""

    def __init__(self, address: str, transactional_id: str, topic: str) -> None:
        self.address = address
        self.transactional_id = transactional_id
        self.topic = topic
        self.connections: dict[str, RawClient] = {}
        self.places: dict[Any, str] = {}
        self.sequences: dict[int, int] = {}
        answer = self._retry(
            (TRANSACTION, transactional_id),
            "InitProducerId",
            5,
            {"transactional_id": transactional_id, "transaction_timeout_ms": 30_000},
            lambda answer: answer["error_code"],
        )
        self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]

    def send(self, partition: int, *values: bytes) -> None:
        """One batch, acknowledged."""
        sequence = self.sequences.get(partition, 0)
        batch = batch_of(
            *values,
            timestamp=clock.now_ms(),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        body = produce_body(self.topic, batch, partition)
        body["transactional_id"] = self.transactional_id
        self._retry(
            partition,
            "Produce",
            12,
            body,
            lambda answer: answer["responses"][0]["partition_responses"][0]["error_code"],
        )
        self.sequences[partition] = sequence + len(values)

    def commit_offset(self, group: str, offset: int) -> None:
        """Of partition 0, as part of the transaction."""
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = self._who() | {
            "group_id": group,
            "topics": [{"name": self.topic, "partitions": [row]}],
        }
        self._retry(
            (GROUP, group),
            "TxnOffsetCommit",
            5,
            body,
            lambda answer: answer["topics"][0]["partitions"][0]["error_code"],
        )

    def end(self, is_commit: bool) -> None:
        """When it returns, the end is decided."""
        answer = self._retry(
            (TRANSACTION, self.transactional_id),
            "EndTxn",
            5,
            self._who() | {"committed": is_commit},
            lambda answer: answer["error_code"],
        )
        self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        self.sequences.clear()

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    def _who(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def _retry(
        self,
        place: Any,
        api: str,
        version: int,
        body: dict[str, Any],
        error_of: Callable[[dict[str, Any]], int],
    ) -> dict[str, Any]:
        """The answer of who leads or coordinates a place, once it is no error to be retried."""
        deadline = clock.monotonic() + PATIENCE_S
        while True:
            address = None
            try:
                address = self.places.get(place) or self._look(place)
                answer = self._at(address).ask(api, version, body)
                error = error_of(answer)
            except OSError as fault:  # it has died, or says nothing
                if address in self.connections:
                    self.connections.pop(address).close()
                error, why = REQUEST_TIMED_OUT, str(fault)
            else:
                why = name_of(error)
            if not error:
                return answer
            if error not in RETRIED:
                raise Refused(f"{api}: {why}")
            assert clock.monotonic() < deadline, f"{api} at {place}: {why}"
            self.places.pop(place, None)
            clock.sleep(PAUSE_S)

    def _at(self, address: str) -> RawClient:
        if address not in self.connections:
            self.connections[address] = RawClient(address, ANSWER_S)
        return self.connections[address]

    def _look(self, place: Any) -> str:
        """The address of who leads a partition, or coordinates (kind, key)."""
        with RawClient(self.address, ANSWER_S) as client:
            if isinstance(place, tuple):
                body: dict[str, Any] = {"key_type": place[0], "coordinator_keys": [place[1]]}
                found = client.ask("FindCoordinator", 4, body)["coordinators"][0]
                if found["error_code"]:
                    raise OSError(name_of(found["error_code"]))
            else:
                answer = client.ask(
                    "Metadata",
                    12,
                    {"topics": [{"name": self.topic}], "allow_auto_topic_creation": False},
                )
                rows = answer["topics"][0]["partitions"]
                leader = next(row["leader_id"] for row in rows if row["partition_index"] == place)
                found = next((b for b in answer["brokers"] if b["node_id"] == leader), None)
                if found is None:
                    raise OSError(f"nobody leads {place}")
        self.places[place] = f"{found['host']}:{found['port']}"
        return self.places[place]
