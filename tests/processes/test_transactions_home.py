"""A directory with committed, aborted and open transactions goes to Apache Kafka and back, both
ways twice: each side reads what the other reads, and goes on with the same transactional ids.

KAFKA_ON and KAFKA_OFF as in `test_controllers_home`.
"""

from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from shmbroker.testing.broker import Broker
from tests.processes import test_controllers_home
from tests.processes.test_controllers_home import kafka
from tests.support.raw_client import RawClient

pytestmark = test_controllers_home.pytestmark

TOPIC = "home"
LEVELS = ("read_committed", "read_uncommitted")
PATIENCE_S = 60.0


def read(address: str, level: str) -> list[tuple[int, bytes]]:
    """(offset, value) of all that a reader of that isolation level sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "home",
            "isolation.level": level,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "the end is not reached"
        if message.error():
            break
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


class Writer:
    """Three transactional ids and a plain producer; the third leaves its transaction open."""

    def __init__(self, address: str, word: str) -> None:
        self.word = word
        self.committed: list[bytes] = []
        self.made = [self.make(address, number) for number in range(3)]
        self.plain = Producer({"bootstrap.servers": address})

    def make(self, address: str, number: int) -> Producer:
        settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "transactional.id": f"home-{number}",
            "transaction.timeout.ms": 600_000,
            "log_level": 0,
        }
        producer = Producer(settings)
        producer.init_transactions(PATIENCE_S)
        return producer

    def write(self, producer: Producer, what: str, count: int, *, is_kept: bool) -> None:
        for number in range(count):
            value = f"{self.word} {what} {number}".encode()
            producer.produce(TOPIC, value, partition=0)
            assert producer.flush(PATIENCE_S) == 0
            if is_kept:
                self.committed.append(value)

    def run(self) -> None:
        first, second, third = self.made
        for number in range(4):
            first.begin_transaction()
            self.write(first, f"committed {number}", 3, is_kept=True)
            second.begin_transaction()
            self.write(second, f"aborted {number}", 2, is_kept=False)
            first.commit_transaction(PATIENCE_S)
            self.write(self.plain, f"plain {number}", 1, is_kept=True)
            second.abort_transaction(PATIENCE_S)
        third.begin_transaction()
        self.write(third, "open", 2, is_kept=False)
        self.write(self.plain, "behind", 1, is_kept=False)  # until somebody ends what is open


def test_transactions_go_to_kafka_and_back() -> None:
    writers = []  # Kept, as they must not end what they leave open.
    expected: list[bytes] = []
    behind: list[bytes] = []

    def go_on(address: str, word: str) -> dict[str, list[tuple[int, bytes]]]:
        """One more writer; whoever takes over an id ends what was open, so that readers see what
        lay behind."""
        writer = Writer(address, word)
        writers.append(writer)
        writer.run()
        expected.extend(behind + writer.committed)
        behind[:] = [f"{word} behind 0".encode()]
        seen = see(address)
        assert [value for _, value in seen["read_committed"]] == expected
        return seen

    with Broker() as broker:
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
        seen = go_on(broker.address, "here")
        for turn in range(2):
            broker.stop()
            with kafka(broker.data, 1, 1) as address:
                assert see(address) == seen
                seen = go_on(address, f"Kafka {turn}")
            broker.start()
            assert see(broker.address) == seen
            seen = go_on(broker.address, f"again {turn}")


def see(address: str) -> dict[str, list[tuple[int, bytes]]]:
    return {level: read(address, level) for level in LEVELS}
