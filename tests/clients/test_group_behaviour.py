"""What applications do with a consumer of a group, put to each library the same."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer

from shmbroker import clock
from shmbroker.testing.broker import Broker
from tests.clients.group_consumers import LIBRARIES, Reset
from tests.clients.test_group_confluent import committed
from tests.support.raw_client import RawClient, batch_of

FLAGS = (
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "group.min.session.timeout.ms=1000",
    "--set", "offsets.topic.num.partitions=3",
)  # fmt: skip
PATIENCE_S = 30.0

Records = list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker(*FLAGS) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return request.param


class Consumers:
    """Makes consumers of one library, and closes them."""

    def __init__(self, library: str, address: str) -> None:
        self._library = LIBRARIES[library]
        self._address = address
        self.open: list[Any] = []

    def __call__(self, group: str, **more: Any) -> Any:
        self.open.append(self._library(self._address, group, **more))
        return self.open[-1]

    def close(self, consumer: Any) -> None:
        self.open.remove(consumer)
        consumer.close()


@pytest.fixture
def consumers(library: str, shared: Broker) -> Iterator[Consumers]:
    made = Consumers(library, shared.address)
    yield made
    for each in list(made.open):
        made.close(each)


def fill(address: str, topic: str, partitions: int = 1, records: int = 10) -> None:
    """So many records in each partition."""
    with RawClient(address) as client:
        client.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": address})
    for partition in range(partitions):
        for number in range(records):
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def read_until(condition: Callable[[Records], Any], *consumers: Any) -> Records:
    """What they have read, each in a thread as an application would, when the condition holds."""
    found: Records = []
    deadline = clock.monotonic() + PATIENCE_S
    with ThreadPoolExecutor(len(consumers)) as threads:
        while not condition(found):
            assert clock.monotonic() < deadline, found
            for records in threads.map(lambda consumer: consumer.read(), consumers):
                found += records
    return found


def test_commits_at_once_later_and_by_itself(
    shared: Broker, library: str, consumers: Consumers
) -> None:
    topic = group = f"commits-{library}"
    fill(shared.address, topic, 2)
    consumer = consumers(group)
    consumer.subscribe(topic)
    assert len(read_until(lambda found: len(found) >= 20, consumer)) == 20
    assert consumer.committed(topic, 0) is None
    consumer.commit(topic, 0, 7, "seven ü")
    offset, metadata = consumer.committed(topic, 0)
    assert (offset, metadata) == (7, "" if library == "aiokafka" else "seven ü")
    with RawClient(shared.address) as client:
        body = {"groups": [{"group_id": group, "topics": None}]}
        (found,) = client.ask("OffsetFetch", 8, body)["groups"][0]["topics"][0]["partitions"]
    # confluent-kafka sends the zero that ends a string in C along with it.
    assert (found["committed_offset"], found["metadata"].rstrip("\0")) == (7, "seven ü")
    consumer.commit_later(topic, 1, 3)
    read_until(lambda _: consumer.committed(topic, 1) is not None, consumer)
    assert committed(shared.address, topic, group) == {0: 7, 1: 3}
    consumers.close(consumer)
    following = consumers(group, auto_commit=True)
    following.subscribe(topic)
    found = read_until(lambda found: len(found) >= 10, following)
    assert sorted(found) == [(topic, 0, n) for n in range(7, 10)] + [
        (topic, 1, n) for n in range(3, 10)
    ]
    read_until(lambda _: committed(shared.address, topic, group) == {0: 10, 1: 10}, following)


def test_reset_says_where_a_group_without_offsets_begins(
    shared: Broker, library: str, consumers: Consumers
) -> None:
    topic = f"reset-{library}"
    fill(shared.address, topic)
    earliest = consumers(f"earliest-{library}", reset="earliest")
    latest = consumers(f"latest-{library}", reset="latest")
    for consumer in (earliest, latest):
        consumer.subscribe(topic)
    read_until(lambda _: latest.owned(), latest)
    assert read_until(lambda found: found, earliest)[0] == (topic, 0, 0)

    def write_and_see(found: Records) -> bool:
        with RawClient(shared.address) as client:
            client.produce(topic, batch_of(b"later", timestamp=clock.now_ms()))
        return bool(found)

    assert read_until(write_and_see, latest)[0][2] >= 10
    none = consumers(f"none-{library}", reset="none")
    none.subscribe(topic)
    with pytest.raises(Reset):
        read_until(lambda found: found, none)


def test_an_offset_beyond_the_end_is_reset(
    shared: Broker, library: str, consumers: Consumers
) -> None:
    topic = group = f"beyond-{library}"
    fill(shared.address, topic)
    assert committed(shared.address, topic, group) == {}
    with RawClient(shared.address) as client:
        rows = [{"partition_index": 0, "committed_offset": 1000}]
        body = {"group_id": group, "topics": [{"name": topic, "partitions": rows}]}
        answer = client.ask("OffsetCommit", 9, body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0
    consumer = consumers(group)
    consumer.subscribe(topic)
    assert read_until(lambda found: len(found) >= 10, consumer)[0] == (topic, 0, 0)


def test_seek_pause_and_resume(shared: Broker, library: str, consumers: Consumers) -> None:
    topic = f"seek-{library}"
    fill(shared.address, topic, 2)
    consumer = consumers(topic)
    consumer.subscribe(topic)
    read_until(lambda found: len(found) >= 20, consumer)
    consumer.pause(topic, 0)
    consumer.seek(topic, 0, 4)
    consumer.seek(topic, 1, 8)
    assert read_until(lambda found: len(found) >= 2, consumer) == [(topic, 1, 8), (topic, 1, 9)]
    consumer.resume(topic, 0)
    found = read_until(lambda found: len(found) >= 6, consumer)
    assert found == [(topic, 0, number) for number in range(4, 10)]


def test_a_pattern_finds_topics_that_are_made_later(
    shared: Broker, library: str, consumers: Consumers
) -> None:
    if library == "kafka-python":
        pytest.skip("3.0.12 takes a new topic for one that it has joined with; with Kafka as well")
    fill(shared.address, f"{library}-pattern-1")
    fill(shared.address, f"{library}-other")
    consumer = consumers(f"pattern-{library}")
    consumer.subscribe_pattern(f"^{library}-pattern-.*")
    found = read_until(lambda found: len(found) >= 10, consumer)
    assert {topic for topic, _, _ in found} == {f"{library}-pattern-1"}
    fill(shared.address, f"{library}-pattern-2", 3)

    def has_seen_both(found: Records) -> bool:
        names = [topic for topic, _, _ in set(found)]
        return names.count(f"{library}-pattern-2") == 30

    found = read_until(has_seen_both, consumer)
    assert f"{library}-other" not in {topic for topic, _, _ in found}
    assert len(consumer.owned()) == 4


def test_a_member_that_does_not_poll_loses_what_it_has(
    shared: Broker, library: str, consumers: Consumers
) -> None:
    topic = f"lazy-{library}"
    fill(shared.address, topic, 2)
    lazy = consumers(topic, session_ms=3000, poll_interval_ms=3500)
    lazy.subscribe(topic)
    read_until(lambda _: len(lazy.owned()) == 2, lazy)
    # It heartbeats all the while, but for aiokafka, whose loop does not run; and polls no more.
    other = consumers(topic)
    other.subscribe(topic)
    read_until(lambda _: len(other.owned()) == 2, other)
    read_until(lambda _: len(other.owned()) == len(lazy.owned()) == 1, other, lazy)


def test_a_static_member_comes_back_without_a_rebalance(
    shared: Broker, library: str, consumers: Consumers
) -> None:
    topic = group = f"static-{library}"
    fill(shared.address, topic, 4)
    one, two = consumers(group, instance="one"), consumers(group, instance="two")
    for each in (one, two):
        each.subscribe(topic)

    def described() -> tuple[str, dict[str, str]]:
        with RawClient(shared.address) as client:
            row = client.ask("DescribeGroups", 6, {"groups": [group]})["groups"][0]
        members = {each["group_instance_id"]: each["member_id"] for each in row["members"]}
        return row["group_state"], members

    def is_shared(_: Records) -> bool:
        return len(one.owned()) == len(two.owned()) == 2 and described()[0] == "Stable"

    read_until(is_shared, one, two)
    before, had = described(), two.owned()
    assert before[0] == "Stable"
    # As a crash would have it: no LeaveGroup of its own while it is away.
    again = consumers(group, instance="two")
    again.subscribe(topic)
    states = set()

    def is_back(_: Records) -> bool:
        states.add(described()[0])
        return bool(again.owned())

    read_until(is_back, one, again)
    assert again.owned() == had
    assert states == {"Stable"}
    after = described()[1]
    assert after["one"] == before[1]["one"]
    assert after["two"] != before[1]["two"]
