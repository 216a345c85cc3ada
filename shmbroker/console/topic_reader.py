"""What is asked of the brokers for one topic: where its logs begin and end, and batches of them.

    offsets   ListOffsets, asked of each leader
    fetch     what one partition has from an offset on, at once
    turn      what all partitions get, with a Fetch that waits for it, asked of all leaders together

Rules of this file:
* A leader that moves is waited for by the first two, for RETRY_S; by `turn` the caller does that.
* Batches stay as they were fetched, and are unpacked one at a time, by who wants to look in.
  Control batches, and with `committed_only` those of aborted transactions, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from shmbroker.client.cluster import Cluster, Topic
from shmbroker.client.connection import Connection
from shmbroker.client.faults import ClusterFault, LaterFault, refuse
from shmbroker.client.reader.aborted import AbortedRange, find_ends
from shmbroker.client.retries import patiently
from shmbroker.records.batch import iterate_batches, open_batch
from shmbroker.records.batch_layout import (
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_LAST_OFFSET_DELTA,
    H_PRODUCER_ID,
    TRANSACTIONAL_BIT,
)
from shmbroker.wire.api_keys import FETCH, LIST_OFFSETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.client.addresses import Address
    from shmbroker.wire.codec import Message

CLIENT_ID = "shmbroker-console"
ANSWER_S = 10.0
PARTITIONS_MAX = 64
"""The partitions of one call: the first ones of a topic with more, unless one is chosen."""
FETCH_BYTES = 1 << 20
PLAIN_BYTES_MAX = 32 << 20
"""The bytes of one batch, decompressed: one at a time is."""
RETRY_S = 5.0
"""How long a leader is waited for that moves or restarts."""
WAIT_MS = 1000

Offsets = dict[int, int]
"""Offsets by partition."""


class FetchedBatch(NamedTuple):
    """A batch with data, as it was fetched."""

    header: tuple[int, ...]
    data: memoryview
    position: int

    @property
    def next_offset(self) -> int:
        """One past its last."""
        return self.header[H_BASE_OFFSET] + self.header[H_LAST_OFFSET_DELTA] + 1

    def block(self) -> bytes:
        """The plain bytes of its records; ProtocolFault if they are malformed or too many."""
        return open_batch(self.data, self.position, PLAIN_BYTES_MAX)[1]


class LeaderAnswer(NamedTuple):
    """What a leader has from an offset on."""

    batches: list[FetchedBatch]
    next_offset: int
    high_watermark: int
    bytes: int


class TopicReader:
    """One topic, for one thread; a context manager, as it has connections."""

    def __init__(
        self, bootstrap: list[Address], name: str, partition: int | None, committed_only: bool
    ) -> None:
        """ClusterFault if there is no such topic or partition."""
        self.name = name
        self._level = int(committed_only)
        self._cluster = Cluster(bootstrap, CLIENT_ID, ANSWER_S)
        self._waiting: dict[int, Connection] = {}
        try:
            self.topic = self._find()
            numbers = list(self.topic.partitions)
            if partition is not None and partition not in numbers:
                raise ClusterFault(f"topic {name} has no partition {partition}")
            self.partitions = numbers[:PARTITIONS_MAX] if partition is None else [partition]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._cluster.close()
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """Close the connections of `turn`."""
        for connection in self._waiting.values():
            connection.close()
        self._waiting.clear()

    def _find(self) -> Topic:
        for topic, error, _ in self._cluster.describe([self.name], creates=False):
            refuse(error, f"topic {self.name}")
            return topic
        raise ClusterFault(f"there is no topic {self.name}")

    # ── questions ───────────────────────────────────────────────────────────────────────────────

    def offsets(self, timestamp: int) -> Offsets:
        """ListOffsets: EARLIEST, LATEST, or the first that is not older; -1 where there is none.
        Partitions without a leader are left out."""
        return patiently(lambda: self._offsets(timestamp), RETRY_S, before_retry=self.find_again)

    def find_again(self) -> None:
        """Look who leads what now."""
        try:
            self.topic = self._find()
        except (ClusterFault, OSError):
            pass  # what is tried next tells it

    def _offsets(self, timestamp: int) -> Offsets:
        by_leader: dict[int, list[int]] = {}
        for partition in self.partitions:
            by_leader.setdefault(self.topic.leaders[partition], []).append(partition)
        found: Offsets = {}
        for leader, partitions in by_leader.items():
            if leader < 0:
                continue
            rows = [
                {"partition_index": one, "current_leader_epoch": -1, "timestamp": timestamp}
                for one in partitions
            ]
            body: Message = {
                "replica_id": -1,
                "isolation_level": self._level,
                "topics": [{"name": self.name, "partitions": rows}],
            }
            answer = self._cluster.ask_broker(leader, LIST_OFFSETS, body)
            for row in answer["topics"][0]["partitions"]:
                refuse(row["error_code"], f"offsets of {self.name}-{row['partition_index']}")
                found[row["partition_index"]] = row["offset"]
        return found

    def _fetch_body(self, offsets: Offsets, wait_ms: int, bytes_max: int) -> Message:
        rows = [
            {
                "partition": partition,
                "current_leader_epoch": -1,
                "fetch_offset": offset,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": bytes_max,
            }
            for partition, offset in offsets.items()
        ]
        return {
            "replica_id": -1,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": bytes_max,
            "isolation_level": self._level,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": self.name, "partitions": rows}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }

    def fetch(self, partition: int, offset: int) -> LeaderAnswer:
        """What the leader has from this offset on, at once."""
        return patiently(
            lambda: self._fetch_once(partition, offset), RETRY_S, before_retry=self.find_again
        )

    def _fetch_once(self, partition: int, offset: int) -> LeaderAnswer:
        leader = self.topic.leader_of(partition)
        if leader < 0:
            raise LaterFault(f"{self.name}-{partition} has no leader")
        body = self._fetch_body({partition: offset}, 0, FETCH_BYTES)
        answer = self._cluster.ask_broker(leader, FETCH, body)
        ((_, found),) = self._answers(answer, {partition: offset})
        return found

    def _answers(self, answer: Message, asked: Offsets) -> Iterator[tuple[int, LeaderAnswer]]:
        refuse(answer["error_code"], f"fetch of {self.name}")
        for topic in answer["responses"]:
            for row in topic["partitions"]:
                number = row["partition_index"]
                refuse(row["error_code"], f"fetch of {self.name}-{number}")
                yield number, self._read(row, asked[number])

    def _read(self, row: Message, offset: int) -> LeaderAnswer:
        data = memoryview(row["records"] or b"")
        begun = [
            (each["producer_id"], each["first_offset"])
            for each in row["aborted_transactions"] or ()
        ]
        aborted = find_ends(data, begun) if self._level and begun else ()
        batches, next_offset = [], offset
        for position, header in iterate_batches(data):
            next_offset = max(next_offset, header[H_BASE_OFFSET] + header[H_LAST_OFFSET_DELTA] + 1)
            if not (header[H_ATTRIBUTES] & CONTROL_BIT or _is_aborted(header, aborted)):
                batches.append(FetchedBatch(header, data, position))
        return LeaderAnswer(batches, next_offset, row["high_watermark"], len(data))

    def turn(self, offsets: Offsets) -> Iterator[Iterator[tuple[int, LeaderAnswer]]]:
        """Ask all leaders at once, each of which waits until something comes."""
        by_leader: dict[int, Offsets] = {}
        for partition, offset in offsets.items():
            leader = self.topic.leaders[partition]
            if leader in self._cluster.brokers:
                by_leader.setdefault(leader, {})[partition] = offset
        if not by_leader:
            raise LaterFault(f"{self.name} has no leader")
        for leader, asked in by_leader.items():
            connection = self._waiting.get(leader)
            if connection is None:
                connection = self._cluster.connect(self._cluster.brokers[leader])
                self._waiting[leader] = connection
            connection.send(FETCH, self._fetch_body(asked, WAIT_MS, FETCH_BYTES))
        for leader, asked in by_leader.items():
            yield self._answers(self._waiting[leader].receive(), asked)


def _is_aborted(header: tuple[int, ...], aborted: tuple[AbortedRange, ...]) -> bool:
    return bool(header[H_ATTRIBUTES] & TRANSACTIONAL_BIT) and any(
        header[H_PRODUCER_ID] == each.producer_id
        and each.first_offset <= header[H_BASE_OFFSET] <= each.last_offset
        for each in aborted
    )
