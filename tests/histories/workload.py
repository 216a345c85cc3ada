"""A family under clients and faults for a while; what the clients saw, as a `checker.History`.

Two idempotent acks=all producers, two members of one group, one that asks for watermarks; meanwhile
processes are killed (kill -9), stopped for up to some seconds (SIGSTOP, SIGCONT), alone or several
at once. Then everything is let run, the partitions are read, and the group reads on to the end, if
need be with new members.

The seed draws the faults and their times. Which of them meets what is the machine's doing: a seed
repeats a kind of weather, not a run.
"""

import os
import signal
import threading
from collections.abc import Callable
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from shmbroker import clock
from shmbroker.testing.broker import Broker
from tests.histories.checker import History
from tests.support.acknowledged_load import IMPATIENT
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "history"
PARTITIONS = 3
FLAGS = (
    "--replicas", "3", "--controllers", "3",
    "--set", "broker.session.timeout.ms=1500",
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "offsets.topic.num.partitions=3",
)  # fmt: skip
IN_FLIGHT_MAX = 500
RESTLESS = {name: value for name, value in IMPATIENT.items() if name != "linger.ms"}
RETRIED = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._WAIT_COORD,
)


class Member:
    """One consumer of the group, in a thread."""

    def __init__(self, address: str, history: History, strategy: str) -> None:
        self.history = history
        self.positions: dict[int, int] = {}
        self.assigned_at: dict[int, float] = {}
        self.session: list[Any] = []
        self.lock = threading.Lock()
        self.is_over = threading.Event()
        self.settings = {
            "bootstrap.servers": address,
            "group.id": "histories",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "partition.assignment.strategy": strategy,
            **RESTLESS,
        }
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        consumer = Consumer(self.settings)
        consumer.subscribe([TOPIC], on_assign=self.on_assign, on_revoke=self.on_revoke,
                           on_lost=self.on_revoke)  # fmt: skip
        commit_at = 0.0
        while not self.is_over.is_set():
            for message in consumer.consume(200, 0.1):
                if message.error() is None:
                    self.take(message)
            if clock.monotonic() > commit_at:
                commit_at = clock.monotonic() + 0.3
                self.commit(consumer)
        self.commit(consumer)
        consumer.close()

    def on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        now = clock.monotonic()
        self.begin_session()
        for one in partitions:
            self.assigned_at[one.partition] = now
            self.positions.pop(one.partition, None)

    def on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.begin_session()
        for one in partitions:
            self.positions.pop(one.partition, None)

    def begin_session(self) -> None:
        self.session = []
        self.history.polls.append(self.session)

    def take(self, message: Any) -> None:
        partition, offset = message.partition(), message.offset()
        producer, number = map(int, message.value().split(b" "))
        with self.lock:
            if partition in self.assigned_at:
                at = self.assigned_at.pop(partition)
                self.history.starts.append((at, partition, offset))
            self.session.append((partition, offset, (producer, number)))
            self.positions[partition] = offset + 1

    def commit(self, consumer: Consumer) -> None:
        asked = [TopicPartition(TOPIC, one, at) for one, at in self.positions.items()]
        if not asked:
            return
        try:
            done = consumer.commit(offsets=asked, asynchronous=False)
        except KafkaException:
            return
        now = clock.monotonic()
        for one in done or ():
            if one.error is None and one.offset >= 0:
                self.history.commits.append((now, one.partition, one.offset))


class Writer:
    """One idempotent producer, in a thread."""

    def __init__(self, number: int, address: str, history: History) -> None:
        self.number = number
        self.history = history
        self.sent = 0
        self.unsure = 0
        self.is_over = threading.Event()
        self.producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": 60_000,
                **IMPATIENT,
            }
        )
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.is_over.is_set():
            if len(self.producer) < IN_FLIGHT_MAX:
                for _ in range(5):
                    self.producer.produce(
                        TOPIC,
                        b"%d %d" % (self.number, self.sent),
                        partition=self.sent % PARTITIONS,
                        on_delivery=self.on_delivery,
                    )
                    self.sent += 1
            self.producer.poll(0.005)
        self.producer.flush(90)

    def on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            number = int(message.value().split(b" ")[1])
            place = ((self.number, number), message.partition(), message.offset())
            self.history.acked.append(place)
        else:
            self.unsure += 1  # it may be in the log or not


class Watcher:
    """Asks for high watermarks, one after another."""

    def __init__(self, address: str, history: History) -> None:
        self.history = history
        self.is_over = threading.Event()
        self.consumer = Consumer({"bootstrap.servers": address, "group.id": "watcher", **RESTLESS})
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.is_over.is_set():
            for partition in range(PARTITIONS):
                try:
                    found = self.consumer.get_watermark_offsets(
                        TopicPartition(TOPIC, partition), timeout=2
                    )
                except KafkaException:
                    continue
                if found is not None and found[1] >= 0:
                    self.history.watermarks.append((partition, found[1]))
            self.is_over.wait(0.02)
        self.consumer.close()


class Faults:
    """Kills and stops processes of a family at random times."""

    def __init__(self, broker: Broker, random: Random) -> None:
        self.broker = broker
        self.random = random
        self.said: list[str] = []
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.is_over.wait(self.random.uniform(0.3, 4.0)):
            children = sorted(self.broker.children().items())
            weights = [6 if "io-worker" in title else 2 for title, _ in children]
            count = self.random.choice((1, 1, 1, 1, 2, 3))
            chosen = dict(self.random.choices(children, weights, k=count))
            if self.random.random() < 0.55:
                self.signal(chosen, signal.SIGKILL)
            else:
                self.signal(chosen, signal.SIGSTOP)
                self.is_over.wait(self.random.uniform(0.05, 3.5))
                self.signal(chosen, signal.SIGCONT)

    def signal(self, chosen: dict[str, int], number: signal.Signals) -> None:
        self.said.append(f"{number.name} {', '.join(chosen)}")
        for pid in chosen.values():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


def run(seed: int, seconds: float, say: Callable[[str], None] = lambda line: None) -> History:
    """One run; the history that it made."""
    random = Random(seed)
    history = History()
    with Broker(*FLAGS) as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC, PARTITIONS)
        strategy = random.choice(("range", "roundrobin", "cooperative-sticky"))
        members = [Member(broker.address, history, strategy) for _ in range(2)]
        writers = [Writer(number, broker.address, history) for number in (1, 2)]
        watcher = Watcher(broker.address, history)
        wait_until(lambda: len(history.acked) > 100, "the first acknowledgements")
        faults = Faults(broker, random)
        faults.is_over.wait(seconds)
        faults.is_over.set()
        faults.thread.join()
        for pid in broker.children().values():
            os.kill(pid, signal.SIGCONT)
        for writer in writers:
            writer.is_over.set()
            writer.thread.join(100)
        watcher.is_over.set()
        watcher.thread.join()
        history.final = read_all(broker.address)
        total = sum(map(len, history.final.values()))
        stored = {value for content in history.final.values() for value in content.values()}

        def reads_it_all(seconds: float) -> bool:
            try:
                wait_until(has_read_it_all, "the group to read it all", seconds)
            except AssertionError:
                return False
            return True

        def has_read_it_all() -> bool:
            polls = list(history.polls)
            return stored <= {value for session in polls for _, _, value in list(session)}

        hung = not reads_it_all(30)
        if hung:
            # A consumer that waits for ever after some deaths in a row (librdkafka's issue 5586)
            # says nothing of the log: new ones go on where the group was. What they don't find
            # either is unseen.
            close(members)
            members = [Member(broker.address, history, strategy) for _ in range(2)]
            reads_it_all(60)
        close(members)
        unsure = sum(writer.unsure for writer in writers)
        say(
            f"seed {seed}: {len(history.acked)} acknowledged of {sum(w.sent for w in writers)}, "
            f"{unsure} unsure, {total} stored, {len(history.commits)} commits, "
            f"{len(faults.said)} faults" + (", the group's consumers hung" if hung else "")
        )
        history_faults = faults.said
        say(f"seed {seed}: {'; '.join(history_faults)}")
        history.crashes = [
            line
            for line in broker.log.splitlines()
            if " ended with " in line and "ended with signal 9" not in line
        ]
    return history


def close(members: list[Member]) -> None:
    """They commit and leave the group."""
    for member in members:
        member.is_over.set()
        member.thread.join()


def read_all(address: str) -> dict[int, dict[int, tuple[int, int]]]:
    """The content of every partition up to its end, as a new consumer sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            **RESTLESS,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    final: dict[int, dict[int, tuple[int, int]]] = {one: {} for one in range(PARTITIONS)}
    ends: set[int] = set()
    deadline = clock.monotonic() + 60
    while len(ends) < PARTITIONS:
        assert clock.monotonic() < deadline, f"partitions {sorted(ends)} could be read"
        for message in consumer.consume(2000, 0.5):
            error = message.error()
            if error is None:
                producer, number = map(int, message.value().split(b" "))
                final[message.partition()][message.offset()] = (producer, number)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
            else:
                assert error.code() in RETRIED or error.retriable(), error
    consumer.close()
    return final
