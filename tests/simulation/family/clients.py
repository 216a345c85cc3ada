"""Clients of a simulated family, but for the `members` of groups. What they see goes into its
history.

    Producer   idempotent, acks=all, several batches in flight, all of them again after any failure
    Careless   acks=1, nothing again: what it was told may be lost
    Reader     reads partitions from their start to their end, and asks for the high watermark
    Admin      creates topics, deletes some of them, has leaders elected and replicas moved

An error that a client of Kafka's retries is retried; any other ends the simulation.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Generator, Iterable
from typing import Any

from shmbroker.apis.broker.list_offsets import EARLIEST, LATEST
from shmbroker.records.batch import encode_batch, iterate_batches, iterate_records
from shmbroker.records.batch_layout import (
    CONTROL_BIT,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
)
from shmbroker.wire import error_codes
from tests.simulation.family.history import Batch, Place, Seen
from tests.simulation.family.network import (
    Body,
    Client,
    Connection,
    Disconnected,
    Network,
    Pending,
    Script,
    Wait,
)

RETRIED = frozenset(
    (
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.LEADER_NOT_AVAILABLE,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.REQUEST_TIMED_OUT,
        error_codes.NETWORK_EXCEPTION,
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.NOT_COORDINATOR,
        error_codes.NOT_ENOUGH_REPLICAS,
        error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        error_codes.NOT_CONTROLLER,
        error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        error_codes.KAFKA_STORAGE_ERROR,
        error_codes.FENCED_LEADER_EPOCH,
        error_codes.UNKNOWN_LEADER_EPOCH,
        error_codes.OFFSET_NOT_AVAILABLE,
        error_codes.PREFERRED_LEADER_NOT_AVAILABLE,
        error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        error_codes.ELECTION_NOT_NEEDED,
        error_codes.INVALID_REPLICATION_FACTOR,  # fewer brokers live than replicas are wanted
        error_codes.BROKER_NOT_AVAILABLE,
    )
)
MOVES_REFUSED = frozenset((error_codes.INVALID_REPLICA_ASSIGNMENT,))
"""One of the brokers is not there now."""
VALUE = struct.Struct(">ii")
"""Producer and number of a record."""
MARKER = -1
"""The producer of what ends a transaction; its number is its offset."""
SHORT_VALUE_BYTES = 10_000
"""More than goes with an answer: the gateway gets the file's descriptor."""

Asking = Generator[Wait, None, Body]


def check_retried(error: int, what: str, allowed: frozenset[int] = RETRIED) -> None:
    """AssertionError for an error that no client retries."""
    assert error in allowed, f"{what} is answered with {error_codes.name_of(error)}"


OUT_OF_RANGE = error_codes.OFFSET_OUT_OF_RANGE
FETCH_BYTES = 1 << 16
"""Of one partition."""


class FamilyClient(Client):
    """One that knows who leads what, as Metadata last said."""

    def __init__(self, network: Network, name: str, seen: Seen) -> None:
        self.seen = seen
        self.leaders: dict[Place, int] = {}
        self.fetch_bytes = FETCH_BYTES
        self.fetch_wait_ms: int | None = None
        """None: one or the other."""
        super().__init__(network, name)

    def any_port(self) -> int:
        return self.random.choice(list(self.network.family.ports.values()))[1]

    def ask(self, port: int, name: str, version: int, body: Body) -> Asking:
        return (yield from self.connection(port).ask(name, version, body))

    def look_up(self, topics: Iterable[str]) -> Generator[Wait, None, None]:
        """Who leads the partitions of these topics."""
        body = {
            "topics": [{"name": topic} for topic in topics],
            "allow_auto_topic_creation": False,
        }
        try:
            answer = yield from self.ask(self.any_port(), "Metadata", 9, body)
        except Disconnected:
            yield self.random.uniform(0.01, 0.1)
            return
        ports = {row["node_id"]: row["port"] for row in answer["brokers"]}
        for topic in answer["topics"]:
            for row in topic["partitions"]:
                place = topic["name"], row["partition_index"]
                self.leaders.pop(place, None)
                if row["leader_id"] in ports:
                    self.leaders[place] = ports[row["leader_id"]]

    def leader(self, place: Place) -> Generator[Wait, None, int]:
        """The port of a partition's leader, when there is one."""
        while place not in self.leaders:
            yield from self.look_up([place[0]])
            if place not in self.leaders:
                yield self.random.uniform(0.05, 0.2)
        return self.leaders[place]

    def watermark(self, place: Place) -> Generator[Wait, None, int]:
        """The end that consumers see; -1 where it is not known now."""
        port = yield from self.leader(place)
        known = self.seen.watermark(place)
        offset = yield from self._listed(port, place, LATEST)
        if offset >= 0:
            self.seen.on_watermark(place, known, offset)
        return offset

    def start(self, place: Place) -> Generator[Wait, None, int]:
        """Where a partition begins; -1 where it is not known now."""
        port = yield from self.leader(place)
        deleted = self.seen.deleted(place)
        offset = yield from self._listed(port, place, EARLIEST)
        if offset >= 0:
            self.seen.on_start(place, deleted, offset)
        return offset

    def _listed(self, port: int, place: Place, timestamp: int) -> Generator[Wait, None, int]:
        """What ListOffsets says; -1 where it says nothing."""
        partition = {
            "partition_index": place[1],
            "current_leader_epoch": -1,
            "timestamp": timestamp,
        }
        body = {"replica_id": -1, "topics": [{"name": place[0], "partitions": [partition]}]}
        try:
            answer = yield from self.ask(port, "ListOffsets", 5, body)
        except Disconnected:
            self.leaders.pop(place, None)
            return -1
        row = answer["topics"][0]["partitions"][0]
        if row["error_code"]:
            check_retried(row["error_code"], "ListOffsets")
            self.leaders.pop(place, None)
            return -1
        found: int = row["offset"]
        return found

    def read(self, place: Place, offset: int) -> Generator[Wait, None, int]:
        """From an offset to the end of now; the next offset."""
        retries = 0
        while retries < 3:
            port = yield from self.leader(place)
            deleted = self.seen.deleted(place)
            try:
                wait_ms = self.fetch_wait_ms
                if wait_ms is None:
                    wait_ms = self.random.choice((0, 50, 500))
                body = fetch_body(place, offset, wait_ms, self.fetch_bytes)
                answer = yield from self.ask(port, "Fetch", 11, body)
            except Disconnected:
                retries += 1
                self.leaders.pop(place, None)
                continue
            row = answer["responses"][0]["partitions"][0]
            if row["error_code"] == OUT_OF_RANGE:
                start = yield from self.start(place)
                assert start < 0 or start > offset, f"{place} begins at {start}, not at {offset}"
                offset = max(start, offset)
                continue
            if row["error_code"]:
                check_retried(row["error_code"], f"Fetch of {place} from {offset}")
                retries += 1
                self.leaders.pop(place, None)
                yield 0.05
                continue
            self.seen.on_start(place, deleted, row["log_start_offset"])
            self.on_row(place, row)
            found = records_of(row, offset)
            if not found:
                break
            self.seen.on_read(place, offset, found)
            self.seen.on_batches(place, offset, batches_of(row))
            offset = found[-1][0] + 1
        return offset

    def on_row(self, place: Place, row: Body) -> None:
        """A read has given this of a partition."""


class Producer(FamilyClient):
    """Writes numbers into one partition: each once, in order, whatever happens."""

    def __init__(self, network: Network, name: str, seen: Seen, place: Place, count: int) -> None:
        self.place = place
        self.number = seen.new_producer()
        self.count = count
        self.at_once_max = 5
        """Batches without an answer: where they may be in a remote store alone by then, whoever
        takes over knows the last one of a producer, as in Apache Kafka."""
        self.window: deque[tuple[int, int, bytes]] = deque()
        """First number, end, and batch of those that have no good answer."""
        super().__init__(network, name, seen)

    def script(self) -> Script:
        producer_id = yield from self._producer_id()
        next_number = 0
        limit = min(self.random.choice((1, 1, 2, 5)), self.at_once_max)
        pause_s = self.random.choice((0.0, 0.01, 0.1))
        while self.window or (next_number < self.count and not self.is_told_to_end):
            while len(self.window) < limit and next_number < self.count:
                if self.is_told_to_end:
                    break
                end = min(self.count, next_number + self.random.randrange(1, 4))
                self.window.append((next_number, end, self._batch(producer_id, next_number, end)))
                next_number = end
            port = yield from self.leader(self.place)
            connection = self.connection(port)
            sent = [(one, self._send(connection, one[2])) for one in self.window]
            is_well = True
            for one, pending in sent:
                is_well &= yield from self._take(connection, one, pending, is_well)
            if not is_well:
                self.leaders.pop(self.place, None)
                yield self.random.uniform(0.01, 0.1)
            elif pause_s:
                yield self.pause(0, pause_s)

    def _producer_id(self) -> Generator[Wait, None, int]:
        while True:
            body = {"transactional_id": None, "transaction_timeout_ms": 0}
            try:
                answer = yield from self.ask(self.any_port(), "InitProducerId", 3, body)
            except Disconnected:
                yield 0.1
                continue
            if answer["error_code"] == 0:
                found: int = answer["producer_id"]
                self.seen.check_producer_id(found)
                return found
            check_retried(answer["error_code"], "InitProducerId")
            yield 0.1

    def _batch(self, producer_id: int, first: int, end: int) -> bytes:
        filler = bytes(self.random.choice((0, 20, 400)))
        values = [VALUE.pack(self.number, number) + filler for number in range(first, end)]
        return encode_batch(
            [(self.seen.now_ms(), None, value, ()) for value in values],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=first,
        )

    def _send(self, connection: Connection, batch: bytes) -> Pending:
        return connection.send("Produce", 8, produce_body(self.place, batch, -1))

    def _take(
        self, connection: Connection, one: tuple[int, int, bytes], pending: Pending, is_well: bool
    ) -> Generator[Wait, None, bool]:
        """One answer; whether it and all before it are good."""
        try:
            answer = yield from connection.wait(pending)
        except Disconnected:
            return False
        row = answer["responses"][0]["partition_responses"][0]
        error = row["error_code"]
        if error not in (0, error_codes.DUPLICATE_SEQUENCE_NUMBER):
            check_retried(error, "Produce")
            return False
        if is_well:
            assert self.window.popleft() is one
            self.seen.on_acked(self.place, self.number, one[0], one[1], row["base_offset"])
        return is_well


class Careless(FamilyClient):
    """Writes with acks=1, and doesn't ask again."""

    def __init__(self, network: Network, name: str, seen: Seen, place: Place) -> None:
        self.place = place
        super().__init__(network, name, seen)

    def script(self) -> Script:
        while not self.is_told_to_end:
            producer = self.seen.new_producer()
            port = yield from self.leader(self.place)
            connection = self.connection(port)
            number = 0
            while connection.is_open and not self.is_told_to_end:
                value = VALUE.pack(producer, number)
                number += 1
                batch = encode_batch([(self.seen.now_ms(), None, value, ())])
                try:
                    answer = yield from connection.ask(
                        "Produce", 8, produce_body(self.place, batch, 1)
                    )
                except Disconnected:
                    break
                error = answer["responses"][0]["partition_responses"][0]["error_code"]
                if error:
                    check_retried(error, "Produce")
                    break
                yield self.pause(0.0, 0.3)
            connection.close()
            self.leaders.pop(self.place, None)
            yield 0.1


def produce_body(place: Place, batch: bytes, acks: int) -> Body:
    partition = {"index": place[1], "records": batch}
    return {
        "acks": acks,
        "timeout_ms": 1500,
        "topic_data": [{"name": place[0], "partition_data": [partition]}],
    }


def fetch_body(place: Place, offset: int, wait_ms: int, bytes_max: int = FETCH_BYTES) -> Body:
    partition = {"partition": place[1], "fetch_offset": offset, "partition_max_bytes": bytes_max}
    return {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": [{"topic": place[0], "partitions": [partition]}],
    }


def records_of(row: Body, offset: int) -> list[tuple[int, tuple[int, int]]]:
    """(offset, value) of what a partition's answer holds from `offset` on, markers too."""
    found = []
    records = bytes(row["records"] or b"")
    for position, header in iterate_batches(records):
        is_marker = header[H_ATTRIBUTES] & CONTROL_BIT
        for at, _, _, value, _ in iterate_records(records, position):
            if at >= offset:
                found.append((at, (MARKER, at) if is_marker else VALUE.unpack_from(value or b"")))
    return found


def batches_of(row: Body) -> list[Batch]:
    """Who wrote each batch of a partition's answer."""
    records = bytes(row["records"] or b"")
    return [
        Batch(header[H_BASE_OFFSET], header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH])
        for _, header in iterate_batches(records)
    ]


class Reader(FamilyClient):
    """Reads partitions over and over, each from its start to where it ends now."""

    def script(self) -> Script:
        while not self.is_told_to_end:
            if not self.seen.places:
                yield 0.1
                continue
            place = self.random.choice(self.seen.places)
            if self.random.random() < 0.3:
                yield from self.watermark(place)
            else:
                yield from self.read(place, self.random.choice((0, self.seen.read_to(place))))
            yield self.pause(0.0, 0.2)


class AheadReader(Reader):
    """Reads few batches with each request, and asks in the same way each time."""

    def script(self) -> Script:
        self.fetch_wait_ms = 50
        self.fetch_bytes = self.random.randrange(100, 500)
        yield from super().script()


class Admin(FamilyClient):
    """Creates topics, has leaders elected, and replicas moved."""

    def __init__(self, network: Network, name: str, seen: Seen, replicas: int) -> None:
        self.replicas = replicas
        self.internal: list[Place] = []
        """Of topics that nobody reads: their leaders are elected, too."""
        self.configs: dict[str, str] = {}
        """Of topics that are created."""
        super().__init__(network, name, seen)

    def _use(self, topic: str) -> Generator[Wait, None, None]:
        """Ask for a topic that is created because somebody asks for it."""
        body = {"topics": [{"name": topic}], "allow_auto_topic_creation": True}
        try:
            yield from self.ask(self.any_port(), "Metadata", 9, body)
        except Disconnected:
            pass

    def _short_life(self, topic: str) -> Script:
        """A topic that is deleted while it is read."""
        yield from self.create(topic, 1, self.configs, is_kept=False)
        values = [(self.seen.now_ms(), None, bytes(SHORT_VALUE_BYTES), ())] * 4
        batch = encode_batch(values)
        asked: list[tuple[Connection, Pending]] = []
        for _ in range(2):
            yield from self.look_up([topic])
            port = self.leaders.get((topic, 0))
            if port is None:
                continue
            connection = self.connection(port)
            for name, version, body in (
                ("Produce", 8, produce_body((topic, 0), batch, 1)),
                ("Fetch", 11, fetch_body((topic, 0), 0, 50)),
            ):
                asked.append((connection, connection.send(name, version, body)))
            if self.configs:
                yield self.random.uniform(0.0, 0.6)
        while True:
            body = {"topic_names": [topic], "timeout_ms": 3000}
            try:
                answer = yield from self.ask(self.any_port(), "DeleteTopics", 4, body)
            except Disconnected:
                yield 0.1
                continue
            error = answer["responses"][0]["error_code"]
            if error in (0, error_codes.UNKNOWN_TOPIC_OR_PARTITION):
                break
            check_retried(error, "DeleteTopics")
            yield 0.2
        for connection, pending in asked:
            try:
                yield from connection.wait(pending)
            except Disconnected:
                pass

    def create(
        self, topic: str, partitions: int, configs: dict[str, str], *, is_kept: bool = True
    ) -> Script:
        """Until it is there: an answer that was lost may mean that it is already."""
        rows = [{"name": name, "value": value} for name, value in configs.items()]
        body: dict[str, Any] = {
            "topics": [
                {
                    "name": topic,
                    "num_partitions": partitions,
                    "replication_factor": self.replicas,
                    "assignments": [],
                    "configs": rows,
                }
            ],
            "timeout_ms": 3000,
        }
        while True:
            try:
                answer = yield from self.ask(self.any_port(), "CreateTopics", 5, body)
            except Disconnected:
                yield 0.1
                continue
            error = answer["topics"][0]["error_code"]
            if error in (0, error_codes.TOPIC_ALREADY_EXISTS):
                self.say(f"{topic} with {partitions} partitions is created")
                if is_kept:
                    self.seen.on_created(topic, partitions)
                return
            check_retried(error, "CreateTopics")
            yield 0.2

    def move(self, least: int = 2) -> Script:
        """A partition gets other replicas, in another order; that goes on while others work."""
        topic, partition = self.random.choice(self.seen.places + self.internal)
        brokers = list(self.network.family.ports)
        replicas = self.random.sample(brokers, self.random.randrange(least, len(brokers) + 1))
        row = {"partition_index": partition, "replicas": replicas}
        body = {"timeout_ms": 3000, "topics": [{"name": topic, "partitions": [row]}]}
        self.say(f"moves {topic}-{partition} to {replicas}")
        try:
            answer = yield from self.ask(self.any_port(), "AlterPartitionReassignments", 0, body)
        except Disconnected:
            return
        errors = [answer["error_code"]]
        errors += [one["error_code"] for each in answer["responses"] for one in each["partitions"]]
        for error in filter(None, errors):
            check_retried(error, "AlterPartitionReassignments", RETRIED | MOVES_REFUSED)

    def script(self) -> Script:
        count = lives = 0
        while not self.is_told_to_end:
            yield self.random.uniform(0.3, 2.0)
            draw = self.random.random()
            if draw < 0.3 and count < 3:
                yield from self.create(f"made-{count}", self.random.randrange(1, 3), self.configs)
                count += 1
            elif draw < 0.5:
                lives += 1
                yield from self._short_life(f"short-{lives}")
            elif draw < 0.7:
                yield from self._use(f"used-{lives}")
            elif self.seen.places and self.replicas > 1 and draw < 0.85:
                yield from self.move()
            elif self.seen.places:
                topic, partition = self.random.choice(self.seen.places + self.internal)
                rows = [{"topic": topic, "partitions": [partition]}]
                body = {"election_type": 0, "topic_partitions": rows, "timeout_ms": 1000}
                try:
                    yield from self.ask(self.any_port(), "ElectLeaders", 2, body)
                except Disconnected:
                    pass


class Mover(Admin):
    """Has replicas moved, as soon as others are where they were moved to, and before."""

    def script(self) -> Script:
        while not self.is_told_to_end:
            yield self.random.choice((0.05, 0.3, 1.0)) * self.random.random()
            if self.seen.places:
                yield from self.move(least=1)
