"""What a producer id has stored in a topic, read back: how a writer that died is gone on with.

A writer that may be started again uses a producer id and epoch of its own choice, the same at each
start, and numbers its records from 0 in each partition. So the brokers know how far it has come:

    DescribeProducers   the last sequence in each partition, of this id and epoch
    Fetch               the records themselves, from the log's end backwards until sequence 0

Who starts again leaves out the records that are there and goes on behind the last sequence. That
sequence is compared by the broker with each append: of two writers that go on from the same place
one is refused (OUT_OF_ORDER_SEQUENCE_NUMBER), so nothing is written twice, whatever the order of
the rows in each.

Limits: a broker forgets a producer id that was silent for `producer.id.expiration.ms` (a day);
records that retention or compaction has taken can't be recognised any more, and are written again.

Rule: reading back is for the rare start after a death; it goes record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from shmbroker import clock
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import FencedFault, LaterFault, refuse
from shmbroker.client.producer.delivery import ProducerIdentity
from shmbroker.client.producer.questions import find_topic
from shmbroker.client.reader import large_batches
from shmbroker.client.retries import PASSING, REST_S, patiently
from shmbroker.records.batch import iterate_batches
from shmbroker.records.batch_layout import (
    H_BASE_OFFSET,
    H_BASE_SEQUENCE,
    H_LAST_OFFSET_DELTA,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    SEQUENCES,
)
from shmbroker.wire.api_keys import DESCRIBE_PRODUCERS, FETCH, LIST_OFFSETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message


_EARLIEST, _LATEST = -2, -1
_FETCH_BYTES = 8 << 20
_FETCH_WAIT_MS = 500
_STEP_MIN = 1000
"""Offsets looked at first, at least."""

T = TypeVar("T")
Headers = Sequence[tuple[bytes, bytes | None]]


class Stored:
    """What is there. `sequences`: {partition: the next one}; empty: nothing, as usual."""

    __slots__ = ("_places", "records", "sequences")

    def __init__(self) -> None:
        self.sequences: dict[int, int] = {}
        self.records = 0
        self._places: dict[bytes, list[int]] = {}

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, partition: int) -> None:
        """Take a record that was found in a partition; headers as (key, value) pairs."""
        self._places.setdefault(_digest(key, value, headers), []).append(partition)
        self.records += 1

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int,
        likely: int = -1,
    ) -> bool:
        """Whether a record like this is there, in this partition (-1: in any); once for each.

        `likely`: the partition to which its key would take it, if any will do.
        """
        places = self._places.get(_digest(key, value, headers))
        if not places:
            return False
        if partition < 0:
            partition = likely if likely in places else places[-1]
        elif partition not in places:
            return False
        places.remove(partition)
        self.records -= 1
        return True


def stored_by(identity: ProducerIdentity, cluster: Cluster, topic: str, wait_s: float) -> Stored:
    """What `identity` has stored in a topic; FencedFault if its id has a later epoch there.

    ClusterFault if the cluster gives no answer within `wait_s`.
    """
    stored = Stored()
    find_topic(cluster, topic, wait_s)
    stored.sequences = _asked(
        cluster, topic, wait_s, lambda: _next_sequences(cluster, topic, identity)
    )
    for partition in stored.sequences:
        _read_back(cluster, topic, partition, identity, wait_s, stored)
    return stored


def _next_sequences(cluster: Cluster, topic: str, identity: ProducerIdentity) -> dict[int, int]:
    """The next sequence of a producer in each partition where it is not 0."""
    by_leader: dict[int, list[int]] = {}
    for partition, leader in enumerate(cluster.topics[topic].leaders):
        by_leader.setdefault(leader, []).append(partition)
    found = {}
    for leader, partitions in by_leader.items():
        body = {"topics": [{"name": topic, "partition_indexes": partitions}]}
        answer = cluster.ask_broker(leader, DESCRIBE_PRODUCERS, body)
        for described in _checked(topic, answer["topics"], partitions):
            for entry in described["active_producers"]:
                epoch = entry["producer_epoch"]
                if entry["producer_id"] != identity.producer_id or epoch < identity.epoch:
                    continue
                partition = described["partition_index"]
                if epoch > identity.epoch:
                    raise FencedFault(
                        f"{topic}-{partition} has records of a later version (epoch {epoch},"
                        f" not {identity.epoch}): what is written now was written and followed by"
                        " others"
                    )
                if entry["last_sequence"] >= 0:
                    found[partition] = (int(entry["last_sequence"]) + 1) % SEQUENCES
    return found


def _read_back(
    cluster: Cluster,
    topic: str,
    partition: int,
    identity: ProducerIdentity,
    wait_s: float,
    stored: Stored,
) -> None:
    """Add all records of a producer in a partition that can still be read."""
    next_sequence = stored.sequences[partition]
    deadline = clock.monotonic() + wait_s

    def offset(timestamp: int) -> int:
        return _asked(cluster, topic, wait_s, lambda: _offset(cluster, topic, partition, timestamp))

    while True:
        # All of them were appended, but may not have been copied to all replicas yet.
        end, begin = offset(_LATEST), offset(_EARLIEST)
        found: list[_Found] = []
        high, step = end, max(2 * next_sequence, _STEP_MIN)
        while high > begin:
            low = max(begin, high - step)
            part = _scan(cluster, topic, partition, identity, low, high, wait_s)
            found = part + found
            if part and part[0].sequence == 0:
                break
            high, step = low, 4 * step
        last = max((one.sequence + len(one.records) for one in found), default=0)
        if last >= next_sequence or begin >= end or clock.monotonic() > deadline:
            break
        clock.sleep(REST_S)
    for one in found:
        for key, value, headers in one.records:
            stored.add(key, value, headers, partition)


class _Found(NamedTuple):
    """A batch of the producer."""

    sequence: int
    records: Sequence[tuple[bytes | None, bytes | None, Headers]]


def _scan(
    cluster: Cluster,
    topic: str,
    partition: int,
    identity: ProducerIdentity,
    low: int,
    high: int,
    wait_s: float,
) -> list[_Found]:
    """The batches of a producer that begin in [low, high)."""
    found = []
    while low < high:
        offset = low
        fetch = partial(_fetch, cluster, topic, partition, offset)
        data = _asked(cluster, topic, wait_s, fetch)
        for position, header in iterate_batches(data):
            base = header[H_BASE_OFFSET]
            low = base + header[H_LAST_OFFSET_DELTA] + 1
            is_ours = ProducerIdentity(header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH]) == identity
            if is_ours and offset <= base < high:
                records = [record[2:] for record in large_batches.records_of(data, position)]
                found.append(_Found(header[H_BASE_SEQUENCE], records))
        if low <= offset:
            break  # nothing more below the high watermark
    return found


def _fetch(cluster: Cluster, topic: str, partition: int, offset: int) -> bytes:
    wanted = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": _FETCH_BYTES,
    }
    body = {
        "replica_id": -1,
        "max_wait_ms": _FETCH_WAIT_MS,
        "min_bytes": 1,
        "max_bytes": _FETCH_BYTES,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }
    answer = cluster.ask_broker(_leader(cluster, topic, partition), FETCH, body)
    return bytes(_checked(topic, answer["responses"], [partition])[0]["records"] or b"")


def _offset(cluster: Cluster, topic: str, partition: int, timestamp: int) -> int:
    wanted = {"partition_index": partition, "timestamp": timestamp}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [wanted]}]}
    answer = cluster.ask_broker(_leader(cluster, topic, partition), LIST_OFFSETS, body)
    return int(_checked(topic, answer["topics"], [partition])[0]["offset"])


def _leader(cluster: Cluster, topic: str, partition: int) -> int:
    return cluster.topics[topic].leaders[partition]


def _checked(topic: str, topics: list[Message], partitions: list[int]) -> list[Message]:
    """The partitions of an answer, all that were asked for and without an error."""
    found: list[Message] = topics[0]["partitions"] if topics else []
    for partition in found:
        refuse(partition["error_code"], f"topic {topic}")
    if len(found) != len(partitions):
        raise LaterFault("an answer without what was asked for")
    return found


def _asked(cluster: Cluster, topic: str, wait_s: float, ask: Callable[[], T]) -> T:
    """Ask until there is an answer, at most `wait_s` long; in between the leaders are looked up."""

    def look_up() -> None:
        try:
            cluster.refresh([topic])
        except PASSING:
            pass  # asked again

    return patiently(ask, wait_s, f"topic {topic}: no answer", look_up)


def _digest(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """16 bytes that stand for a record's content."""
    content = [_sized(key), _sized(value)]
    for name, held in headers:
        content += (_sized(name), _sized(held))
    return blake2b(b"".join(content), digest_size=16).digest()


def _sized(content: bytes | None) -> bytes:
    return b"-" if content is None else b"%d:%b" % (len(content), content)
