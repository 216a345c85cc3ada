"""librdkafka with group.protocol=consumer (KIP-848): expressions, static members, both protocols.

Members that are killed, and the coordinator with them, are in test_group_kills.py.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from shmbroker import clock
from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import UNSUPPORTED_VERSION
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

FLAGS = (
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "group.min.session.timeout.ms=1000",
    "--set", "group.consumer.min.heartbeat.interval.ms=100",
    "--set", "group.consumer.heartbeat.interval.ms=100",
)  # fmt: skip
PATIENCE_S = 30.0
PARTITIONS = 6


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker(*FLAGS) as broker:
        yield broker.address
        assert "Traceback" not in broker.log, broker.log


@pytest.fixture
def topic(address: str, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.name}-{os.getpid()}"
    with RawClient(address) as client:
        client.create_topic(name, PARTITIONS)
    return name


class Member:
    """A consumer that is polled by hand.

    classic: with librdkafka's range; its sticky assignor keeps data of its own in assignments, with
    which Apache Kafka lets no group change its protocol either.
    """

    def __init__(self, address: str, group: str, *topics: str, **more: Any) -> None:
        protocol = {"group.protocol": "consumer"}
        if more.pop("classic", False):
            protocol = {"partition.assignment.strategy": "range"}
            protocol["heartbeat.interval.ms"] = 100  # type: ignore[assignment]
        self.seen: set[tuple[str, int, int]] = set()
        self.errors: list[KafkaError] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
            }
            | protocol
            | more
        )
        self.consumer.subscribe(list(topics))

    def turn(self) -> None:
        message = self.consumer.poll(0.02)
        if message is None:
            return
        if message.error() is None:
            self.seen.add((message.topic(), message.partition(), message.offset()))
            self.consumer.commit(message, asynchronous=True)
        elif message.error().code() != KafkaError.REBALANCE_IN_PROGRESS:
            # That is what a waiting JoinGroup gets when the group changes its protocol.
            self.errors.append(message.error())

    def owned(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


def until(members: list[Member], condition: Callable[[], bool]) -> None:
    """Poll them all in turn until it is so."""
    deadline = clock.monotonic() + PATIENCE_S
    while not condition():
        assert clock.monotonic() < deadline, [(each.owned(), each.errors) for each in members]
        for member in members:
            member.turn()


def shared(members: list[Member], topic: str, partitions: int = PARTITIONS) -> None:
    """Until each partition is with one of them, and each of them has some."""
    everything = {(topic, index) for index in range(partitions)}

    def is_shared() -> bool:
        owned = [member.owned() for member in members]
        return (
            all(owned) and set().union(*owned) == everything and sum(map(len, owned)) == partitions
        )

    until(members, is_shared)


def produce(address: str, topic: str, count: int = 60) -> set[tuple[str, int, int]]:
    """The records: topic, partition, offset."""
    made: set[tuple[str, int, int]] = set()
    producer = Producer({"bootstrap.servers": address, "log_level": 0})

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        made.add((topic, message.partition(), message.offset()))

    for each in range(count):
        producer.produce(topic, b"%d" % each, partition=each % PARTITIONS, on_delivery=on_delivery)
    assert producer.flush(PATIENCE_S) == 0
    return made


def described(address: str, group: str) -> Any:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    return admin.describe_consumer_groups([group])[group].result(PATIENCE_S)


def test_members_come_and_go(address: str, topic: str) -> None:
    made = produce(address, topic)
    members = [Member(address, topic, topic)]
    shared(members, topic)
    for _ in range(2):
        members.append(Member(address, topic, topic))
        shared(members, topic)
    until(members, lambda: described(address, topic).state == ConsumerGroupState.STABLE)
    found = described(address, topic)
    assert found.type == ConsumerGroupType.CONSUMER
    assert (found.partition_assignor, len(found.members)) == ("uniform", 3)
    everybody = list(members)
    members.pop(0).close()
    shared(members, topic)
    until(members, lambda: set().union(*(each.seen for each in everybody)) == made)
    for member in members:
        member.close()
    # who closes does not wait until it is out
    wait_until(
        lambda: described(address, topic).state == ConsumerGroupState.EMPTY, "an empty group"
    )
    assert [each.errors for each in everybody] == [[], [], []]


def test_an_expression_finds_topics_that_come_later(address: str, topic: str) -> None:
    member = Member(address, topic, f"^{topic}.*")
    shared([member], topic)
    with RawClient(address) as client:
        client.create_topic(topic + "-late", 1)
    until([member], lambda: (topic + "-late", 0) in member.owned())
    member.close()


def test_a_static_member_comes_back_to_what_it_had(address: str, topic: str) -> None:
    members = [
        Member(address, topic, topic, **{"group.instance.id": f"i{each}"}) for each in range(2)
    ]
    shared(members, topic)
    before = members[0].owned()
    members[0].close()  # a static member says that it will be back
    members[0] = Member(address, topic, topic, **{"group.instance.id": "i0"})
    shared(members, topic)
    assert members[0].owned() == before
    for member in members:
        member.close()


def test_partitions_that_are_added_are_read(address: str, topic: str) -> None:
    member = Member(address, topic, topic)
    shared([member], topic)
    with RawClient(address) as client:
        row = {"name": topic, "count": PARTITIONS + 2, "assignments": None}
        client.ask("CreatePartitions", 3, {"topics": [row], "timeout_ms": 10_000})
    shared([member], topic, PARTITIONS + 2)
    member.close()


def test_without_the_feature_nobody_joins() -> None:
    """group.version at level 0: UNSUPPORTED_VERSION in the answer; classic groups go on."""
    with Broker(*FLAGS) as broker, RawClient(broker.address) as client:
        update = {"feature": "group.version", "max_version_level": 0, "upgrade_type": 2}
        body = {"timeout_ms": 10_000, "feature_updates": [update]}
        assert client.ask("UpdateFeatures", 2, body)["error_code"] == 0
        asked = {"key_type": 0, "key": "g"}
        while client.ask("FindCoordinator", 1, asked)["error_code"]:
            pass
        joining = {"rebalance_timeout_ms": 1, "topic_partitions": [], "subscribed_topic_names": []}
        body = {"group_id": "g", "member_id": "m", "member_epoch": 0} | joining
        answer = client.ask("ConsumerGroupHeartbeat", 1, body)
        assert (answer["error_code"], answer["member_id"]) == (UNSUPPORTED_VERSION, None)
        (row,) = client.ask("ConsumerGroupDescribe", 1, {"group_ids": ["g"]})["groups"]
        assert (row["group_id"], row["error_code"]) == ("g", UNSUPPORTED_VERSION)


def test_a_group_moves_to_the_new_protocol_and_back_while_it_reads(
    address: str, topic: str
) -> None:
    made = produce(address, topic)
    members = [Member(address, topic, topic, classic=True) for _ in range(3)]
    everybody = list(members)
    shared(members, topic)
    assert described(address, topic).type == ConsumerGroupType.CLASSIC
    for is_classic in (False, True):
        for _ in range(3):
            members.pop(0).close()
            members.append(Member(address, topic, topic, classic=is_classic))
            everybody.append(members[-1])
            shared(members, topic)
            made |= produce(address, topic, 12)
        wanted = ConsumerGroupType.CLASSIC if is_classic else ConsumerGroupType.CONSUMER
        assert described(address, topic).type == wanted
    until(members, lambda: set().union(*(each.seen for each in everybody)) == made)
    for member in members:
        member.close()
    assert [each.errors for each in everybody] == [[]] * len(everybody)
