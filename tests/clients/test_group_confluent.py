"""Groups as librdkafka lives them: joins, leaves, static and cooperative members, kills."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from shmbroker import clock
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient

FLAGS = (
    "--set", "group.initial.rebalance.delay.ms=0",
    "--set", "offsets.topic.num.partitions=3",
)  # fmt: skip
PARTITIONS = 6
PATIENCE_S = 30.0
LOAD_IN_PROGRESS = 14
NOT_AVAILABLE = 15


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker(*FLAGS) as broker:
        yield broker


class Member:
    """A consumer that notes what it is told, until it is closed."""

    def __init__(self, address: str, topic: str, group: str, **more: Any) -> None:
        self.owned: set[int] = set()
        self.revoked: set[int] = set()
        self.assignments = 0
        self.seen: list[tuple[int, int]] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 6000,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 200,
            }
            | more
        )
        self.is_cooperative = more.get("partition.assignment.strategy") == "cooperative-sticky"
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1
        found = {each.partition for each in partitions}
        self.owned = self.owned | found if self.is_cooperative else found

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        found = {each.partition for each in partitions}
        self.revoked |= found
        self.owned -= found

    def poll(self) -> None:
        for message in self.consumer.consume(100, 0.02):
            if message.error() is None:
                self.seen.append((message.partition(), message.offset()))

    def close(self) -> None:
        self.consumer.close()


def until(condition: Callable[[], bool], *members: Member, what: str = "") -> None:
    """Poll the members until the condition holds."""
    deadline = clock.monotonic() + PATIENCE_S
    while not condition():
        assert clock.monotonic() < deadline, what or "nothing came of it"
        for member in members:
            member.poll()


def has_seen(members: list[Member], records: int) -> bool:
    """Whether they have seen so many records between them."""
    return len({each for member in members for each in member.seen}) == records


def owners_have_seen(members: list[Member], records: int) -> bool:
    """Whether all partitions are owned, and those who own them now have seen the last records."""
    last = records // PARTITIONS - 1
    return share(*members) and all(
        (partition, last) in member.seen for member in members for partition in member.owned
    )


def share(*members: Member) -> bool:
    """Whether they have all partitions between them, each once, and each has some."""
    owned = [partition for member in members for partition in member.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(member.owned for member in members)


def fill(address: str, topic: str, records: int) -> None:
    """Create the topic and produce records to its partitions in turn."""
    with RawClient(address) as client:
        client.create_topic(topic, PARTITIONS)
    more(address, topic, records)


def more(address: str, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(records):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def committed(address: str, topic: str, group: str) -> dict[int, int]:
    """What the broker says the group has committed."""
    with RawClient(address) as client:
        keys = {"key_type": 0, "coordinator_keys": [group]}
        row = {"error_code": NOT_AVAILABLE}
        while row["error_code"] == NOT_AVAILABLE:
            (row,) = client.ask("FindCoordinator", 6, keys)["coordinators"]
    assert row["error_code"] == 0
    with RawClient(f"{row['host']}:{row['port']}") as client:
        body = {"groups": [{"group_id": group, "topics": None}]}
        answer = {"error_code": LOAD_IN_PROGRESS}
        while answer["error_code"] == LOAD_IN_PROGRESS:
            answer = client.ask("OffsetFetch", 8, body)["groups"][0]
    assert answer["error_code"] == 0
    return {
        row["partition_index"]: row["committed_offset"]
        for found in answer["topics"]
        if found["name"] == topic
        for row in found["partitions"]
    }


def test_a_group_of_three_shares_the_topic_as_members_come_and_go(shared: Broker) -> None:
    fill(shared.address, "three", 60)
    members = []
    try:
        for count in (1, 2, 3):
            members.append(Member(shared.address, "three", "trio"))
            until(lambda: share(*members), *members, what=f"{count} members")
        members.pop(0).close()
        until(lambda: share(*members), *members, what="one left")
        until(partial(has_seen, members, 60), *members)
    finally:
        for member in members:
            member.close()


def test_committed_offsets_are_where_the_next_member_begins(shared: Broker) -> None:
    fill(shared.address, "resume", 60)
    first = Member(shared.address, "resume", "resuming")
    until(lambda: len(first.seen) == 60, first)
    first.consumer.commit(asynchronous=False)
    first.close()
    assert committed(shared.address, "resume", "resuming") == dict.fromkeys(range(PARTITIONS), 10)
    more(shared.address, "resume", 6)
    second = Member(shared.address, "resume", "resuming")
    until(lambda: len(second.seen) >= 6, second)
    second.close()
    assert sorted(second.seen) == [(partition, 10) for partition in range(PARTITIONS)]


def test_cooperative_members_keep_what_does_not_move(shared: Broker) -> None:
    fill(shared.address, "cooperative", 6)
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    first = Member(shared.address, "cooperative", "coop", **strategy)
    until(lambda: share(first), first)
    second = Member(shared.address, "cooperative", "coop", **strategy)
    until(lambda: share(first, second), first, second)
    assert first.revoked == second.owned
    second.close()
    until(lambda: share(first), first)
    first.close()


def test_a_static_member_that_comes_back_disturbs_nobody(shared: Broker) -> None:
    fill(shared.address, "static", 6)

    def member(name: str) -> Member:
        return Member(shared.address, "static", "statics", **{"group.instance.id": name})

    one, two = member("one"), member("two")
    until(lambda: share(one, two), one, two)
    had, assignments = set(two.owned), one.assignments
    two.close()
    two = member("two")
    until(lambda: bool(two.owned), one, two)
    assert two.owned == had
    assert one.assignments == assignments
    with RawClient(shared.address) as client:
        row = client.ask("DescribeGroups", 6, {"groups": ["statics"]})["groups"][0]
    assert row["group_state"] == "Stable"
    assert {each["group_instance_id"] for each in row["members"]} == {"one", "two"}
    one.close()
    two.close()


def test_a_kill_of_the_io_worker_loses_no_commit_and_no_record() -> None:
    with Broker(*FLAGS) as broker:
        fill(broker.address, "killed", 60)
        members = [Member(broker.address, "killed", "survivors") for _ in range(2)]
        until(lambda: share(*members), *members)
        before: dict[int, int] = {}
        for round_number in range(1, 4):
            wanted = 60 * round_number
            until(partial(has_seen, members, wanted), *members, what=f"{wanted} records")
            until(partial(owners_have_seen, members, wanted), *members, what=f"{wanted} again")
            for member in members:
                acknowledge(member, wanted)
            now = committed(broker.address, "killed", "survivors")
            assert all(now[partition] >= offset for partition, offset in before.items())
            before = now
            assert sum(now.values()) == 60 * round_number
            os.kill(broker.children()["io-worker-1"], signal.SIGKILL)
            if round_number < 3:
                more(broker.address, "killed", 60)
        for member in members:
            member.close()
        assert committed(broker.address, "killed", "survivors") == before
        broker.kill()
        broker.start()
        assert committed(broker.address, "killed", "survivors") == before
        broker.stop()
        broker.start()
        assert committed(broker.address, "killed", "survivors") == before


def acknowledge(member: Member, records: int) -> None:
    """Commit the partitions that were seen to their ends, again while the broker is not there or
    the group is rebalancing. Who has just been given a partition may have seen a part of it."""
    end = records // PARTITIONS
    deadline = clock.monotonic() + PATIENCE_S
    while True:
        offsets = [
            TopicPartition("killed", partition, end)
            for partition in member.owned
            if (partition, end - 1) in member.seen
        ]
        try:
            if offsets:
                member.consumer.commit(offsets=offsets, asynchronous=False)
            return
        except KafkaException:
            assert clock.monotonic() < deadline
            member.poll()
