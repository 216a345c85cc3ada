"""A compacted topic on a real broker: what is left, and what is left whoever dies meanwhile."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from shmbroker.arrow import read
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "latest"
QUICK = ("--set", "log.cleaner.backoff.ms=200")
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "1000",
}


@pytest.fixture
def quick() -> Iterator[Broker]:
    with Broker(*QUICK) as broker:
        yield broker


def create(broker: Broker, topic: str = TOPIC, partitions: int = 1, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    new = NewTopic(topic, partitions, config=SETTINGS | settings)
    admin.create_topics([new])[topic].result(30)


class Writer:
    """Writes records of a few keys; knows the last value and offset of each."""

    def __init__(self, broker: Broker, topic: str = TOPIC, seed: int = 1) -> None:
        self.topic = topic
        self.source = random.Random(seed)
        self.count = 0
        self.last: dict[bytes, tuple[int, bytes | None]] = {}
        self.producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def write(self, count: int) -> None:
        for _ in range(count):
            self.count += 1
            key = b"key-%d" % self.source.randrange(50)
            value = None if self.source.random() < 0.1 else b"%d " % self.count * 100

            def note(error, message, key=key, value=value) -> None:
                assert error is None, error
                self.last[key] = message.offset(), value

            self.producer.produce(self.topic, value, key, on_delivery=note)
            self.producer.poll(0)
        assert self.producer.flush(60) == 0

    def check(self, broker: Broker) -> list[tuple[int, bytes, bytes | None]]:
        """Every key's last value is there, in offset order; all that is."""
        found = read_all(broker, self.topic)
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        last = {key: (offset, value) for offset, key, value in found}
        assert last == self.last
        return found


def read_all(broker: Broker, topic: str = TOPIC) -> list[tuple[int, bytes, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reader",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(30)
        assert message is not None, f"nothing after {found[-1:]}"
        if message.error():
            consumer.close()
            return found
        found.append((message.offset(), message.key(), message.value()))


def partition_directory(broker: Broker, topic: str = TOPIC) -> Path:
    return broker.data / "node-1" / f"{topic}-0"


def segments(broker: Broker, topic: str = TOPIC) -> list[Path]:
    """The segments' .log files in offset order; the last is the active one."""
    return sorted(partition_directory(broker, topic).glob("*.log"))


def log_bytes(broker: Broker, topic: str = TOPIC) -> int:
    """Bytes of the closed segments."""
    closed = segments(broker, topic)[:-1]
    try:
        return sum(path.stat().st_size for path in closed)
    except FileNotFoundError:
        return 1 << 60  # replaced just now


def is_compacted(broker: Broker, topic: str = TOPIC) -> bool:
    return log_bytes(broker, topic) < 200_000


def test_the_last_value_of_each_key_is_left(quick: Broker) -> None:
    create(quick)
    writer = Writer(quick)
    assert "cleaner-1" not in quick.children()
    writer.write(6000)
    wait_until(lambda: is_compacted(quick), "compaction")
    found = writer.check(quick)
    # The active segment is never compacted; how many records it has is up to the batches' sizes.
    active = int(segments(quick)[-1].stem)
    assert active > 3000
    assert sum(offset < active for offset, _, _ in found) < 600
    assert "cleaner-1" in quick.children()
    writer.write(3000)
    wait_until(lambda: is_compacted(quick), "compaction")
    writer.check(quick)
    names = os.listdir(partition_directory(quick))
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    wait_until(lambda: not list(partition_directory(quick).glob("*.deleted")), "unlinking")
    assert quick.stop() == 0
    text = (quick.data / "node-1" / "cleaner-offset-checkpoint").read_text()
    assert f"{TOPIC} 0 " in text
    quick.start()
    writer.check(quick)


def test_readers_of_what_is_committed_see_the_same_of_a_compacted_topic(quick: Broker) -> None:
    """By the files, by fetches, and as librdkafka does."""
    create(quick)
    settings = {"bootstrap.servers": quick.address, "log_level": 0}
    made = [Producer({**settings, "transactional.id": f"compacted-{n}"}) for n in range(2)]
    for producer in made:
        producer.init_transactions(60)
    last = {}
    for number in range(40):
        kept, dropped = (producer for producer in made)
        for producer in made:
            producer.begin_transaction()
        for n in range(20):
            key = b"key-%d" % ((number + n) % 50)
            last[key] = b"%d kept " % number + bytes(2000)
            kept.produce(TOPIC, last[key], key)
            dropped.produce(TOPIC, b"dropped" + bytes(2000), key)
        for producer in made:
            producer.flush()
        kept.commit_transaction(60)
        dropped.abort_transaction(60)
    wait_until(lambda: len(segments(quick)) > 2 and log_bytes(quick) < 1_000_000, "compaction")
    made[1].begin_transaction()
    made[1].produce(TOPIC, b"open", b"key-0")
    made[1].flush()
    expected = read_all(quick)
    assert {key: value for _, key, value in expected} == last
    for way in ("files", "fetch"):
        table = read(
            TOPIC,
            bootstrap_servers=quick.address,
            columns=["offset", "key", "value"],
            isolation_level="read_committed",
            way=way,
        )
        assert [tuple(row.values()) for row in table.to_pylist()] == expected, way
    assert len(expected) < 40 * 20


def set_broker(broker: Broker, name: str, value: str) -> None:
    entry = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": "", "configs": [entry]}
    body = {"resources": [resource], "validate_only": False}
    with RawClient(broker.address) as client:
        (row,) = client.ask("IncrementalAlterConfigs", 1, body)["responses"]
    assert row["error_code"] == 0, row


def test_settings_that_change_while_it_runs() -> None:
    slow = ("--set", "log.cleaner.backoff.ms=3600000")
    with Broker(*slow, "--set", "log.cleaner.io.max.bytes.per.second=1") as broker:
        create(broker)
        writer = Writer(broker)
        writer.write(6000)
        assert "cleaner-1" not in broker.children()
        set_broker(broker, "log.cleaner.backoff.ms", "100")
        wait_until(lambda: "cleaner-1" in broker.children(), "a pass")
        assert not is_compacted(broker)  # it is under way, and would be for a month
        set_broker(broker, "log.cleaner.io.max.bytes.per.second", "1e9")
        wait_until(lambda: is_compacted(broker), "compaction")
        writer.check(broker)


@pytest.mark.parametrize(("victim", "seed"), [("cleaner-1", 1), ("io-worker-1", 2), ("family", 1)])
def test_nothing_is_lost_whoever_is_killed_meanwhile(victim: str, seed: int) -> None:
    source = random.Random(seed)
    throttle = ("--set", "log.cleaner.io.max.bytes.per.second=3000000")
    with Broker(*QUICK, *throttle) as broker:
        create(broker)
        writer = Writer(broker, seed=seed)
        for _ in range(3):
            writer.write(4000)
            wait_until(
                lambda: any(
                    name.endswith((".cleaned", ".swap", ".deleted"))
                    for name in os.listdir(partition_directory(broker))
                ),
                "a pass",
            )
            for _ in range(source.randrange(400)):
                os.listdir(partition_directory(broker))
            if victim == "family":
                broker.kill()
                broker.start()
            else:
                os.kill(broker.children()[victim], signal.SIGKILL)
            writer.check(broker)
        wait_until(lambda: is_compacted(broker), "compaction")
        writer.check(broker)
        assert broker.stop() == 0


def test_groups_find_their_offsets_in_a_compacted_log() -> None:
    with Broker(*QUICK, "--set", "offsets.topic.segment.bytes=1048576") as broker:
        create(broker, "many", 50, **{"cleanup.policy": "delete"})
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
        for turn in range(1, 1001):
            consumer.commit(
                offsets=[TopicPartition("many", index, turn + index) for index in range(50)],
                asynchronous=False,
            )
        consumer.close()
        (directory,) = (
            path
            for path in (broker.data / "node-1").glob("__consumer_offsets-*")
            if len(list(path.glob("*.log"))) > 1
        )
        closed = sorted(directory.glob("*.log"))[0]

        def is_compacted() -> bool:
            try:
                return closed.stat().st_size < 100_000
            except FileNotFoundError:
                return False  # the compacted one takes its place just now

        wait_until(is_compacted, "compaction")
        broker.kill()
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})

        def committed() -> dict[int, int] | None:
            answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")])["g"]
            try:
                found = answer.result(30).topic_partitions
            except KafkaException as fault:
                if fault.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                    return None
                raise
            return {place.partition: place.offset for place in found}

        offsets = wait_until(committed, "a coordinator that has loaded the group")
        assert offsets == {index: 1000 + index for index in range(50)}


def test_a_damaged_log_is_given_up_and_the_others_go_on(quick: Broker) -> None:
    create(quick, "damaged", **{"min.compaction.lag.ms": "3000", "max.compaction.lag.ms": "600000"})
    Writer(quick, "damaged").write(4000)
    first = segments(quick, "damaged")[0]
    with open(first, "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    wait_until(lambda: "damaged-0 is not compacted any more" in quick.log, "the line")
    create(quick)
    writer = Writer(quick)
    writer.write(6000)
    wait_until(lambda: is_compacted(quick), "compaction")
    writer.check(quick)
    assert quick.log.count("not compacted any more") == 1
