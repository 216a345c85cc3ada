"""Programs that keep their state in topics: schema registries, Connect, Streams.

What they ask of a broker, in the order in which they ask it, where they themselves are not at hand:
a compacted topic that is checked, written with acks=all and read to its end at each start; groups
of a protocol type of their own; internal topics whose records are deleted once they are processed.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from shmbroker import clock
from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.clients.test_admin import error_of, result_of
from tests.clients.test_group_behaviour import FLAGS, PATIENCE_S
from tests.support.raw_client import RawClient, batch_of
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker(*FLAGS) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


def setting(admin: AdminClient, topic: str, name: str) -> str:
    return result_of(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))[
        name
    ].value


class Store:
    """A table kept in a compacted topic: the newest value of each key, None for deleted."""

    def __init__(self, address: str, topic: str, partitions: int = 1) -> None:
        self.address = address
        self.topic = topic
        self.partitions = partitions
        self.producer = Producer(
            {"bootstrap.servers": address, "acks": "all", "enable.idempotence": True}
        )

    def put(self, key: str, value: str | None) -> None:
        """Written when this returns."""
        self.producer.produce(self.topic, value and value.encode(), key.encode())
        assert self.producer.flush(PATIENCE_S) == 0

    def read(self) -> dict[str, str]:
        """All of it, from the beginning to where the end is now, without a group."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "none",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        found: dict[str, str] = {}
        try:
            partitions = range(self.partitions)
            consumer.assign(
                [TopicPartition(self.topic, each, OFFSET_BEGINNING) for each in partitions]
            )
            ends = {
                each: consumer.get_watermark_offsets(TopicPartition(self.topic, each), PATIENCE_S)[
                    1
                ]
                for each in partitions
            }
            while any(ends.values()):
                message = consumer.poll(PATIENCE_S)
                assert message is not None, "no end"
                if message.error() is not None:
                    ends[message.partition()] = 0  # the end of a partition
                    continue
                key = message.key().decode()
                if message.value() is None:
                    found.pop(key, None)
                else:
                    found[key] = message.value().decode()
        finally:
            consumer.close()
        return found


def test_a_schema_registrys_topic(shared: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": shared.address})
    topic = "_schemas"
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
    result_of(admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})]))
    # Another node of the registry is a moment too late, which it takes well.
    late = error_of(admin.create_topics([NewTopic(topic, 1, 1)]))
    assert late == error_codes.TOPIC_ALREADY_EXISTS
    assert setting(admin, topic, "cleanup.policy") == "compact"
    store = Store(shared.address, topic)
    assert store.read() == {}
    store.put('{"keytype":"NOOP","magic":0}', None)
    for version in range(1, 4):
        store.put(f'{{"subject":"s","version":{version}}}', f'{{"id":{version}}}')
    store.put('{"subject":"s","version":2}', None)
    wanted = {f'{{"subject":"s","version":{each}}}': f'{{"id":{each}}}' for each in (1, 3)}
    assert store.read() == wanted
    assert Store(shared.address, topic).read() == wanted
    shared.kill()
    shared.start()
    assert store.read() == wanted
    # What has no key would never be compacted away.
    with RawClient(shared.address) as client:
        row = client.produce(topic, batch_of(b"no key", timestamp=clock.now_ms()))
    assert row["error_code"] == error_codes.INVALID_RECORD


def test_connects_three_topics(shared: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": shared.address})
    for topic, partitions in (("c-configs", 1), ("c-offsets", 25), ("c-status", 5)):
        config = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
        result_of(admin.create_topics([NewTopic(topic, partitions, -1, config=config)]))
        # It refuses to start on a topic that would lose records.
        assert setting(admin, topic, "cleanup.policy") == "compact"
        store = Store(shared.address, topic, partitions)
        for number in range(60):
            store.producer.produce(topic, b"%d" % number, b"key-%d" % (number % 20))
        assert store.producer.flush(PATIENCE_S) == 0
        assert store.read() == {f"key-{number % 20}": str(number) for number in range(40, 60)}


def test_connects_group(shared: Broker) -> None:
    """Workers that share connectors: a protocol type and metadata that are nobody else's matter."""
    group = "connect-cluster"
    protocols = [
        {"name": name, "metadata": b"\0\2" + b"http://worker:8083/"}
        for name in ("sessioned", "compatible", "default")
    ]
    body = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": "",
        "protocol_type": "connect",
        "protocols": protocols,
    }
    with RawClient(shared.address) as client:
        keys = {"key_type": 0, "coordinator_keys": [group]}
        wait_until(
            lambda: not client.ask("FindCoordinator", 6, keys)["coordinators"][0]["error_code"],
            "a coordinator",
        )
        body["member_id"] = client.ask("JoinGroup", 9, body)["member_id"]
        joined = client.ask("JoinGroup", 9, body)
        assert (joined["error_code"], joined["protocol_type"]) == (0, "connect")
        assert joined["protocol_name"] == "sessioned"
        synced = client.ask(
            "SyncGroup",
            5,
            {
                "group_id": group,
                "generation_id": 1,
                "member_id": body["member_id"],
                "protocol_type": "connect",
                "protocol_name": "sessioned",
                "assignments": [{"member_id": body["member_id"], "assignment": b"connectors"}],
            },
        )
        assert (synced["error_code"], synced["assignment"]) == (0, b"connectors")
        rows = client.ask("ListGroups", 5, {"types_filter": ["classic"]})["groups"]
        (row,) = (row for row in rows if row["group_id"] == group)
        assert (row["protocol_type"], row["group_state"]) == ("connect", "Stable")
        consumer = body | {"member_id": "", "protocol_type": "consumer"}
        refused = client.ask("JoinGroup", 9, consumer)
        assert refused["error_code"] == error_codes.INCONSISTENT_GROUP_PROTOCOL
        # A rebalance whenever a worker asks for it, with nothing new to say: Connect's leader does.
        again = client.ask("JoinGroup", 9, body)
        assert (again["error_code"], again["generation_id"]) == (0, 2)


def test_streams_internal_topics(shared: Broker) -> None:
    """Created for the group, purged as far as they are processed, deleted by the reset tool."""
    repartition, changelog = "app-counts-repartition", "app-counts-changelog"
    with RawClient(shared.address) as client:

        def asked(name: str) -> dict[str, Any]:
            body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            return client.ask("Metadata", 12, body)["topics"][0]

        assert asked(repartition)["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        purged = {"cleanup_policy": "delete", "retention_ms": "-1", "segment_bytes": "52428800"}
        client.create_topic(repartition, 3, message_timestamp_type="CreateTime", **purged)
        client.create_topic(changelog, 3, cleanup_policy="compact")
        assert len(asked(repartition)["partitions"]) == 3
        batch = batch_of(*(b"%d" % each for each in range(10)), timestamp=clock.now_ms())
        wait_until(lambda: client.produce(repartition, batch)["error_code"] == 0, "a leader")

        def purge(offset: int) -> tuple[int, int]:
            rows = [{"partition_index": 0, "offset": offset}]
            topics = [{"name": repartition, "partitions": rows}]
            body = {"topics": topics, "timeout_ms": 10_000}
            answer = client.ask("DeleteRecords", 2, body)
            row = answer["topics"][0]["partitions"][0]
            return row["error_code"], row["low_watermark"]

        assert purge(7) == (0, 7)
        assert purge(3) == (0, 7), "what is deleted stays so"
        assert client.fetch(repartition, 6)["error_code"] == error_codes.OFFSET_OUT_OF_RANGE
        assert client.fetch(repartition, 7)["log_start_offset"] == 7
        names = [{"name": name, "topic_id": bytes(16)} for name in (repartition, changelog)]
        answer = client.ask("DeleteTopics", 6, {"topics": names, "timeout_ms": 10_000})
        assert [row["error_code"] for row in answer["responses"]] == [0, 0]
