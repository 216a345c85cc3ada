"""Two brokers, each with its port: what one does not lead it refuses, and says who does."""

from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient, fetch_body, produce_body

TOPIC = "spread"
NOT_LEADER = 6


class Cluster:
    """Clients of both brokers, and a topic with a partition on each."""

    def __init__(self, address: str) -> None:
        with RawClient(address) as client:
            brokers = client.ask("Metadata", 1, {"topics": []})["brokers"]
            self.addresses = {row["node_id"]: f"{row['host']}:{row['port']}" for row in brokers}
            self.topic_id = client.create_topic(TOPIC, 2)
            topic = client.ask("Metadata", 1, {"topics": [{"name": TOPIC}]})["topics"][0]
            self.leaders = {row["partition_index"]: row["leader_id"] for row in topic["partitions"]}
        self.clients = {number: RawClient(each) for number, each in self.addresses.items()}

    def wrong(self, partition: int) -> RawClient:
        """A client of the broker that does not lead the partition."""
        return self.clients[3 - self.leaders[partition]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Broker("--io-workers", "2", "--network-workers", "1") as broker:
        cluster = Cluster(broker.address)
        yield cluster
        for client in cluster.clients.values():
            client.close()


def with_id(body: dict[str, Any], rows: str, topic_id: bytes) -> dict[str, Any]:
    for topic in body[rows]:
        topic.pop("name", topic.pop("topic", None))
        topic["topic_id"] = topic_id
    return body


def test_both_brokers_lead_and_have_ports(cluster: Cluster) -> None:
    assert set(cluster.addresses) == {1, 2}
    assert sorted(cluster.leaders.values()) == [1, 2]
    ports = {address.rsplit(":", 1)[1] for address in cluster.addresses.values()}
    assert len(ports) == 2


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("version", range(3, 14))
def test_produce_to_another_broker(cluster: Cluster, version: int, partition: int) -> None:
    body = produce_body(TOPIC, batch_now(b"x"), partition)
    if version >= 13:
        body = with_id(body, "topic_data", cluster.topic_id)
    answer = cluster.wrong(partition).ask("Produce", version, body)
    row = answer["responses"][0]["partition_responses"][0]
    assert (row["error_code"], row["base_offset"]) == (NOT_LEADER, -1)
    assert_hint(cluster, version >= 10, partition, row, answer)


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_from_another_broker(cluster: Cluster, version: int, partition: int) -> None:
    body = fetch_body(TOPIC, 0, partition)
    if version < 12:
        del body["topics"][0]["partitions"][0]["last_fetched_epoch"]
    if version >= 13:
        body = with_id(body, "topics", cluster.topic_id)
    if version >= 15:
        del body["replica_id"]
    answer = cluster.wrong(partition).ask("Fetch", version, body)
    row = answer["responses"][0]["partitions"][0]
    assert (row["error_code"], bytes(row["records"])) == (NOT_LEADER, b"")
    assert_hint(cluster, version >= 16, partition, row, answer)


def assert_hint(
    cluster: Cluster, has_hint: bool, partition: int, row: dict[str, Any], answer: dict[str, Any]
) -> None:
    """The leader and its address are told from a version on (KIP-951)."""
    leader = cluster.leaders[partition]
    if has_hint:
        assert row["current_leader"] == {"leader_id": leader, "leader_epoch": 0}
        (endpoint,) = answer["node_endpoints"]
        assert endpoint["node_id"] == leader
        assert f"{endpoint['host']}:{endpoint['port']}" == cluster.addresses[leader]
    else:
        assert answer["node_endpoints"] == []


def test_offsets_and_epochs_from_another_broker(cluster: Cluster) -> None:
    for partition in (0, 1):
        client = cluster.wrong(partition)
        row: dict[str, Any] = {"partition_index": partition, "timestamp": -1}
        body = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [row]}]}
        found = client.ask("ListOffsets", 5, body)["topics"][0]["partitions"][0]
        assert found["error_code"] == NOT_LEADER
        row = {"partition": partition, "leader_epoch": 0}
        body = {"topics": [{"topic": TOPIC, "partitions": [row]}]}
        found = client.ask("OffsetForLeaderEpoch", 4, body)["topics"][0]["partitions"][0]
        assert found["error_code"] == NOT_LEADER


def test_good_and_misplaced_partitions_in_one_request(cluster: Cluster) -> None:
    body = produce_body(TOPIC, None)
    body["topic_data"][0]["partition_data"] = [
        {"index": index, "records": batch_now(b"x")} for index in (0, 1)
    ]
    for number, client in cluster.clients.items():
        answer = client.ask("Produce", 9, body)
        for row in answer["responses"][0]["partition_responses"]:
            wanted = 0 if cluster.leaders[row["index"]] == number else NOT_LEADER
            assert row["error_code"] == wanted


def test_each_broker_shows_only_its_own(cluster: Cluster) -> None:
    """Log directories and broker settings; the same bytes asked of both have other answers."""
    for _ in range(2):
        for number, client in cluster.clients.items():
            answer = client.ask("DescribeLogDirs", 4, {"topics": None})["results"][0]
            topics = [topic for topic in answer["topics"] if topic["name"] == TOPIC]
            rows = [row for topic in topics for row in topic["partitions"]]
            mine = [index for index, leader in cluster.leaders.items() if leader == number]
            assert [row["partition_index"] for row in rows] == mine
            resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["node.id"]}
            answer = client.ask("DescribeConfigs", 4, {"resources": [resource]})["results"][0]
            assert answer["error_code"] == (0 if number == 1 else 42)


def test_topics_are_made_on_any_broker_for_all(cluster: Cluster) -> None:
    for number, client in cluster.clients.items():
        name = f"made-on-{number}"
        client.create_topic(name, 4)
        for other in cluster.clients.values():
            topic = other.ask("Metadata", 12, {"topics": [{"name": name}]})["topics"][0]
            assert {row["leader_id"] for row in topic["partitions"]} == {1, 2}
        for index, row in enumerate(
            sorted(topic["partitions"], key=lambda r: r["partition_index"])
        ):
            leader = cluster.clients[row["leader_id"]]
            assert leader.produce(name, batch_now(b"x"), index)["error_code"] == 0
