"""Where replicas are and who leads: partitions that move with their records, elections."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from shmbroker.testing.broker import Broker
from tests.processes.test_kill_under_load import kill
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("--replicas", "3", "--set", "offsets.topic.num.partitions=1") as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


def create(client: RawClient, name: str, replicas: list[int]) -> None:
    assignment = {"partition_index": 0, "broker_ids": replicas}
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "configs": []}
    body = {"topics": [topic | {"assignments": [assignment]}], "timeout_ms": 5000}
    answer = client.ask("CreateTopics", 5, body | {"validate_only": False})
    assert answer["topics"][0]["error_code"] == 0


def described(client: RawClient, name: str) -> dict:
    body = {"topics": [{"name": name}], "response_partition_limit": 9, "cursor": None}
    return client.ask("DescribeTopicPartitions", 0, body)["topics"][0]["partitions"][0]


def produce(broker: Broker, node: int, name: str, value: bytes) -> dict:
    with RawClient(f"127.0.0.1:{broker.port + node - 1}") as leader:
        return leader.produce(name, batch_now(value))


def test_partition_moves_with_its_records(broker: Broker, client: RawClient) -> None:
    create(client, "moves", [1])
    for value in (b"one", b"two"):
        assert produce(broker, 1, "moves", value)["error_code"] == 0
    partition = {"partition_index": 0, "replicas": [2, 3]}
    body = {"timeout_ms": 5000, "topics": [{"name": "moves", "partitions": [partition]}]}
    answer = client.ask("AlterPartitionReassignments", 0, body)
    assert answer["responses"][0]["partitions"][0]["error_code"] == 0
    asked = {"timeout_ms": 5000, "topics": None}
    wait_until(lambda: not client.ask("ListPartitionReassignments", 0, asked)["topics"], "its end")
    found = described(client, "moves")
    assert (found["leader_id"], found["replica_nodes"]) == (2, [2, 3])
    assert sorted(found["isr_nodes"]) == [2, 3]
    assert produce(broker, 1, "moves", b"late")["error_code"] == 6
    with RawClient(f"127.0.0.1:{broker.port + 1}") as leader:
        wait_until(lambda: leader.fetch("moves", 0)["high_watermark"] == 2, "its new leader")
        records = bytes(leader.fetch("moves", 0)["records"])
        assert b"one" in records and b"two" in records
    old = broker.data / "node-1" / "moves-0"
    wait_until(lambda: not old.exists(), "the end of the old replica")


def set_configs(client: RawClient, kind: int, name: str, **values: str | None) -> None:
    """IncrementalAlterConfigs: set, or delete what is None. An underscore is a dot."""
    configs = [
        {"name": key.replace("_", "."), "config_operation": int(value is None), "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    body = {"resources": [resource], "validate_only": False}
    answer = client.ask("IncrementalAlterConfigs", 1, body)
    assert answer["responses"][0]["error_code"] == 0, answer


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttled_partition_moves_when_the_throttle_lets_it(
    broker: Broker, client: RawClient, side: str
) -> None:
    name = f"throttled-{side}"
    create(client, name, [1])
    set_configs(client, 2, name, **{f"{side}_replication_throttled_replicas": "0:1,0:2"})
    rate = f"{side}_replication_throttled_rate"
    for node in ("1", "2"):
        set_configs(client, 4, node, **{rate: "1000"})
    value = bytes(400_000)
    for _ in range(8):
        assert produce(broker, 1, name, value)["error_code"] == 0
    partition = {"partition_index": 0, "replicas": [2]}
    body = {"timeout_ms": 5000, "topics": [{"name": name, "partitions": [partition]}]}
    answer = client.ask("AlterPartitionReassignments", 0, body)
    assert answer["responses"][0]["partitions"][0]["error_code"] == 0
    log = broker.data / "node-2" / f"{name}-0" / f"{0:020}.log"
    wait_until(lambda: log.exists() and log.read_bytes().rstrip(b"\0"), "the first bytes")
    asked = {"timeout_ms": 5000, "topics": None}
    assert client.ask("ListPartitionReassignments", 0, asked)["topics"]
    for node in ("1", "2"):
        set_configs(client, 4, node, **{rate: None})
    wait_until(lambda: not client.ask("ListPartitionReassignments", 0, asked)["topics"], "its end")
    assert described(client, name)["replica_nodes"] == [2]


def test_preferred_leader_leads_again_when_it_is_asked(broker: Broker, client: RawClient) -> None:
    create(client, "prefers", [1, 2, 3])
    kill(broker, "io-worker-1")
    wait_until(lambda: described(client, "prefers")["leader_id"] == 2, "another leader")
    wait_until(lambda: 1 in described(client, "prefers")["isr_nodes"], "the first in sync again")
    body = {"election_type": 0, "timeout_ms": 5000}
    body["topic_partitions"] = [{"topic": "prefers", "partitions": [0]}]
    codes = []
    for _ in range(2):
        answer = client.ask("ElectLeaders", 2, body)
        codes += [
            row["error_code"] for row in answer["replica_election_results"][0]["partition_result"]
        ]
    assert codes == [0, 84]
    assert described(client, "prefers")["leader_id"] == 1
    assert produce(broker, 1, "prefers", b"x")["error_code"] == 0


def test_consumer_that_asks_the_coordinator_that_was_begins_where_the_group_is(
    broker: Broker, client: RawClient
) -> None:
    """librdkafka's issue 5586: told NOT_COORDINATOR alone, it never began."""
    create(client, "moved-group", [1])
    assert produce(broker, 1, "moved-group", b"zero")["error_code"] == 0
    assert produce(broker, 1, "moved-group", b"one")["error_code"] == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "moved"})
    wait_until(lambda: find_coordinator(client, "moved") > 0, "a coordinator")
    at = TopicPartition("moved-group", 0, 1)
    assert consumer.commit(offsets=[at], asynchronous=False)[0].error is None

    old = find_coordinator(client, "moved")
    new = old % 3 + 1
    move = {"partition_index": 0, "replicas": [new, old, 6 - new - old]}
    body = {"timeout_ms": 5000, "topics": [{"name": "__consumer_offsets", "partitions": [move]}]}
    answer = client.ask("AlterPartitionReassignments", 0, body)
    assert answer["responses"][0]["partitions"][0]["error_code"] == 0
    chosen = [{"topic": "__consumer_offsets", "partitions": [0]}]
    body = {"election_type": 0, "topic_partitions": chosen, "timeout_ms": 5000}
    client.ask("ElectLeaders", 2, body)
    wait_until(lambda: find_coordinator(client, "moved") == new, "another coordinator")
    consumer.assign([TopicPartition("moved-group", 0)])
    message = wait_until(lambda: consumer.poll(0.5), "the record behind the committed offset")
    assert message.error() is None and message.offset() == 1
    consumer.close()


def find_coordinator(client: RawClient, group: str) -> int:
    found = client.ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [group]})
    return int(found["coordinators"][0]["node_id"])
