"""A list-append history: sessions append to lists in transactions, readers read them, all the time.

A list is a partition. Each session is a transactional id with one producer after another, and has a
list of its own, to which a transaction may append several batches. All sessions append to the
shared lists, a batch for each transaction: with several the last stable offset, which is where the
next undecided transaction begins, may lie between them, and then a reader sees the first alone, as
in Kafka. A read is what a read_committed consumer has seen when it comes to the last stable offset.

Now and then a session leaves its producer amid a transaction and makes another one with the same
transactional id, and the first, a zombie then, tries to go on.

The history is kept in rounds with lists of their own, since what it takes to judge it grows with
the square of a list's length. `tests/simulation/family/list_append.py` judges.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import KafkaException, Producer

from shmbroker import clock
from shmbroker.arrow import ClusterFault, DeliveryFault
from shmbroker.arrow import Producer as ArrowProducer
from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import TOPIC_ALREADY_EXISTS
from tests.exactly_once.family import FLAGS, Weather, crashes
from tests.exactly_once.judging import Anomalies
from tests.exactly_once.records import Reader, read_all
from tests.exactly_once.report import Report
from tests.simulation.family import list_append as checker
from tests.simulation.family.list_append import Transaction
from tests.support.acknowledged_load import IMPATIENT
from tests.support.raw_client import RawClient
from tests.support.transactional_producer import Refused, TransactionalProducer

PATIENCE_S = 60.0
SHARED = 4
ROUND_S = 30.0
READ_EACH_S = 1.0
READERS = 2
SILENT = logging.Logger("librdkafka")
SILENT.addHandler(logging.NullHandler())
"""It says in so many words that a zombie is one."""
JOIN_S = 150.0


class Appender(Protocol):
    """A producer of one transactional id; both raise one of REFUSALS."""

    def append(self, partition: int, values: list[bytes]) -> None:
        """One batch, acknowledged."""

    def end(self, is_commit: bool) -> None: ...


class Raw:
    """transaction.version 2: a new epoch for each transaction."""

    batch_max = 3
    """Values that surely go into one batch."""

    def __init__(self, address: str, session: str, topic: str) -> None:
        self.producer = TransactionalProducer(address, session, topic)

    def append(self, partition: int, values: list[bytes]) -> None:
        self.producer.send(partition, *values)

    def end(self, is_commit: bool) -> None:
        self.producer.end(is_commit)


class Confluent:
    """librdkafka."""

    batch_max = 1

    def __init__(self, address: str, session: str, topic: str) -> None:
        self.topic = topic
        self.is_open = False
        self.producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": session,
                "transaction.timeout.ms": 20_000,
                **IMPATIENT,
            },
            logger=SILENT,
        )
        self.producer.init_transactions(PATIENCE_S)

    def append(self, partition: int, values: list[bytes]) -> None:
        if not self.is_open:
            self.producer.begin_transaction()
            self.is_open = True
        faults: list[Any] = []
        for value in values:
            self.producer.produce(
                self.topic,
                value,
                partition=partition,
                on_delivery=lambda error, _: faults.append(error) if error else None,
            )
        if self.producer.flush(PATIENCE_S) or faults:
            raise Refused(str(faults[:1]))

    def end(self, is_commit: bool) -> None:
        self.is_open = False
        if is_commit:
            self.producer.commit_transaction(PATIENCE_S)
        else:
            self.producer.abort_transaction(PATIENCE_S)


class Arrow:
    """`shmbroker.arrow.Producer`."""

    batch_max = 1

    def __init__(self, address: str, session: str, topic: str) -> None:
        self.is_open = False
        self.producer = ArrowProducer(address, topic=topic, transactional_id=session)
        self.producer.init_transactions()

    def append(self, partition: int, values: list[bytes]) -> None:
        if not self.is_open:
            self.producer.begin_transaction()
            self.is_open = True
        self.producer.send(pa.table({"value": values, "partition": [partition] * len(values)}))
        self.producer.flush()

    def end(self, is_commit: bool) -> None:
        self.is_open = False
        if is_commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()


REFUSALS = (Refused, KafkaException, ClusterFault, DeliveryFault)
KINDS: tuple[Callable[[str, str, str], Any], ...] = (Raw, Raw, Confluent, Arrow)
LISTS = SHARED + len(KINDS)


class Session(threading.Thread):
    """One transactional id."""

    def __init__(self, number: int, address: str, topic: str, reader: "ListReader") -> None:
        super().__init__(daemon=True)
        self.number = number
        self.address = address
        self.topic = topic
        self.reader = reader
        self.make = KINDS[number]
        self.id = f"{topic}-{number}"
        self.random = Random(self.id)
        self.is_over = threading.Event()
        self.history: list[Transaction] = []
        self.zombies: list[str] = []
        """Transactions of producers that had been fenced, and were told that they commit."""
        self.fault: BaseException | None = None
        self.producer: Any = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.transact()
            self.begin()  # what is left open is ended
        except BaseException as fault:
            self.fault = fault

    def begin(self) -> Any:
        """A new producer, which ends what the one before has left."""
        deadline = clock.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                return self.make(self.address, self.id, self.topic)
            except REFUSALS:
                if clock.monotonic() > deadline:
                    raise

    def transact(self) -> None:
        name = f"{self.id}.{len(self.history)}"
        appended = self.draw(len(self.history))
        read = {}
        if self.random.random() < 0.1:
            read = self.reader.newest(self.random.randrange(LISTS))
        is_commit = self.random.random() < 0.75
        is_zombie = self.random.random() < 0.05
        is_ending = False
        is_committed: bool | None = False
        try:
            if self.producer is None:
                self.producer = self.begin()
            self.append(appended)
            if is_zombie:
                self.haunt(name)
            else:
                is_ending = True
                self.producer.end(is_commit)
                is_committed = is_commit
        except REFUSALS:
            is_committed = None if is_ending and is_commit else False
            self.producer = None
        own = {key: tuple(values) for key, values in appended.items()}
        self.history.append(Transaction(name, self.id, own, read, is_committed))

    def draw(self, number: int) -> dict[int, list[str]]:
        """{list: values}"""
        shared = self.random.sample(range(SHARED), self.random.randint(1, 3))
        counts = {key: self.random.randint(1, self.make.batch_max) for key in shared}
        counts[SHARED + self.number] = self.random.randint(1, 4)
        return {
            key: [f"{self.number}.{number}.{key}.{index}" for index in range(count)]
            for key, count in counts.items()
        }

    def append(self, appended: dict[int, list[str]]) -> None:
        batches = []
        for key, values in appended.items():
            encoded = [value.encode() for value in values]
            batches += [(key, encoded)] if key < SHARED else [(key, [one]) for one in encoded]
        for key, batch in batches:
            self.producer.append(key, batch)

    def haunt(self, name: str) -> None:
        """Go on with a producer that has been fenced meanwhile."""
        zombie, self.producer = self.producer, self.begin()
        with suppress(*REFUSALS):
            zombie.append(SHARED + self.number, [f"zombie of {name}".encode()])
        with suppress(*REFUSALS):
            zombie.end(True)
            self.zombies.append(name)


class ListReader(Reader):
    """Notes what it has seen of a list when it comes to its end; not more than once a second."""

    def __init__(self, address: str, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.reads: list[Transaction] = []
        self._noted_at = dict.fromkeys(range(LISTS), 0.0)
        self._newest: dict[int, tuple[str, ...]] = {}
        super().__init__(address, {topic: LISTS}, "read_committed")

    def newest(self, key: int) -> dict[int, tuple[str, ...]]:
        return {key: self._newest.get(key, ())}

    def _take(self, message: Any) -> None:
        super()._take(message)
        key = message.partition()
        now = clock.monotonic()
        if message.error() and (self.topic, key) in self.ended:
            if now < self._noted_at[key] + READ_EACH_S:
                return
            self._noted_at[key] = now
            values = tuple(value for _, _, value in self.seen[self.topic, key])
            if values != self._newest.get(key):
                self._newest[key] = values
                name = f"{self.name}.{len(self.reads)}"
                self.reads.append(Transaction(name, self.name, {}, {key: values}, True))


def run(seed: int, seconds: float) -> Report:
    report = Report(seconds=seconds)
    anomalies: Anomalies = defaultdict(list)
    with Broker(*FLAGS) as broker:
        weather = Weather(broker, [], Random(seed), client_share=0)
        weather.begin()
        number = 0
        while clock.monotonic() < weather.began + seconds:
            round_s = min(ROUND_S, max(1.0, weather.began + seconds - clock.monotonic()))
            _one_round(broker.address, f"lists-{number}", round_s, report, anomalies)
            number += 1
        weather.end()
        anomalies["crash"] = crashes(weather.log)
        report.faults = dict(weather.counts)
        report.said = weather.said
    report.anomalies = {name: cases for name, cases in anomalies.items() if cases}
    return report


def _one_round(
    address: str, topic: str, seconds: float, report: Report, anomalies: Anomalies
) -> None:
    _create(address, topic)
    readers = [ListReader(address, topic, f"{topic}-reader-{one}") for one in range(READERS)]
    sessions = [Session(number, address, topic, readers[0]) for number in range(len(KINDS))]
    for session in sessions:
        session.start()
    clock.sleep(seconds)
    for session in sessions:
        session.is_over.set()
    for session in sessions:
        session.join(JOIN_S)
        if session.is_alive():
            raise AssertionError(f"{session.id} hangs")
        if session.fault is not None:
            raise session.fault
    last = {
        key: tuple(value for _, _, value in records)
        for (_, key), records in read_all(address, {topic: LISTS}).items()
    }
    for reader in readers:
        reader.finish()
    wrote = [one for session in sessions for one in session.history]
    reads = [one for reader in readers for one in reader.reads]
    history = [*wrote, *reads, Transaction(f"{topic}-last", "", {}, last, True)]
    for line in checker.anomalies(history):
        anomalies[line.split(":")[0] if line.startswith("G") else "strange"].append(line)
    for one in wrote:
        if one.is_committed:
            lost = [v for key, values in one.appended.items() for v in values if v not in last[key]]
            anomalies["lost"] += [(one.name, value) for value in lost]
    anomalies["zombie"] += [one for session in sessions for one in session.zombies]
    report.committed += sum(one.is_committed is True for one in wrote)
    report.aborted += sum(one.is_committed is False for one in wrote)
    report.unsure += sum(one.is_committed is None for one in wrote)
    report.fed += sum(len(values) for one in wrote for values in one.appended.values())
    report.came_out += sum(map(len, last.values()))
    report.reads += len(reads)


def _create(address: str, topic: str) -> None:
    deadline = clock.monotonic() + PATIENCE_S
    while True:
        try:
            with RawClient(address) as client:
                client.create_topic(topic, LISTS)
            return
        except (OSError, AssertionError) as fault:
            if f"'error_code': {TOPIC_ALREADY_EXISTS}" in str(fault):
                return  # by a request whose answer was lost
            if clock.monotonic() > deadline:
                raise
            clock.sleep(0.2)
