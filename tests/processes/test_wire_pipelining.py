"""Many requests of one connection under way: answers in order, and nothing runs early.

Consecutive Produce requests overlap, and Produce passes a waiting Fetch; every other request waits
until what came before it is answered.
"""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient, fetch_body, produce_body


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker() as broker:
        yield broker.address


@pytest.fixture
def client(address: str) -> Iterator[RawClient]:
    with RawClient(address) as client:
        yield client


def offset_of(answer: dict[str, Any]) -> int:
    row = answer["responses"][0]["partition_responses"][0]
    assert row["error_code"] == 0, row
    return row["base_offset"]


def latest(topic: str) -> dict[str, Any]:
    row = {"partition_index": 0, "timestamp": -1}
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}]}


def test_produces_are_answered_in_order(client: RawClient) -> None:
    client.create_topic("produces")
    for number in range(500):
        client.send("Produce", 9, produce_body("produces", batch_now(b"%d" % number)))
    assert [offset_of(client.receive("Produce", 9)) for _ in range(500)] == list(range(500))


def test_requests_of_every_kind_are_answered_in_order(client: RawClient) -> None:
    client.create_topic("mixed")
    software = {"client_software_name": "a", "client_software_version": "1"}
    offsets = []
    for _ in range(40):
        client.send("Produce", 9, produce_body("mixed", batch_now(b"a")))
        client.send("Produce", 9, produce_body("mixed", batch_now(b"b"), acks=1))
        client.send("ListOffsets", 5, latest("mixed"))
        client.send("Fetch", 12, fetch_body("mixed", 0))
        client.send("Metadata", 12, {"topics": [{"name": "mixed"}]})
        client.send("Produce", 9, produce_body("mixed", batch_now(b"c"), acks=0))
        client.send("ApiVersions", 3, software)
        client.send("DescribeLogDirs", 4, {"topics": []})
        client.send("FindCoordinator", 2, {"key": "g", "key_type": 9})
        client.send("CreateTopics", 7, {"timeout_ms": 1000})
    correlation_id = client.correlation_id - 400
    for turn in range(40):
        offsets.append(offset_of(client.receive("Produce", 9)))
        offsets.append(offset_of(client.receive("Produce", 9)))
        found = client.receive("ListOffsets", 5)["topics"][0]["partitions"][0]
        assert found["offset"] == 3 * turn + 2, "it saw more or less than what was before it"
        fetched = client.receive("Fetch", 12)["responses"][0]["partitions"][0]
        assert fetched["high_watermark"] == 3 * turn + 2
        assert client.receive("Metadata", 12)["topics"][0]["name"] == "mixed"
        frame = client.receive_frame()  # the Produce before it wants no answer
        correlation_id += 10
        assert int.from_bytes(frame[:4], "big") == correlation_id - 3
        client.receive("DescribeLogDirs", 4)
        assert client.receive("FindCoordinator", 2)["error_code"] == 42
        assert client.receive("CreateTopics", 7)["topics"] == []
    assert offsets == [3 * turn + which for turn in range(40) for which in range(2)]


def test_a_produce_passes_the_fetch_that_waits_for_it(client: RawClient) -> None:
    client.create_topic("passing")
    client.send("Fetch", 12, fetch_body("passing", 0, max_wait_ms=60_000))
    client.send("Produce", 9, produce_body("passing", batch_now(b"x")))
    fetched = client.receive("Fetch", 12)["responses"][0]["partitions"][0]
    assert (fetched["error_code"], len(fetched["records"]) > 0) == (0, True)
    assert offset_of(client.receive("Produce", 9)) == 0


def test_anything_else_waits_for_the_fetch_ahead(client: RawClient, address: str) -> None:
    """A topic that is created behind a waiting fetch is not there before that is answered."""
    client.create_topic("waiting")
    creatable = {"name": "made-behind", "num_partitions": 1, "replication_factor": 1}
    client.send("Fetch", 12, fetch_body("waiting", 0, max_wait_ms=60_000))
    client.send("CreateTopics", 7, {"topics": [creatable], "timeout_ms": 10_000})
    with RawClient(address) as other:
        body = {"topics": [{"name": "made-behind"}], "allow_auto_topic_creation": False}
        for _ in range(20):
            assert other.ask("Metadata", 12, body)["topics"][0]["error_code"] == 3
        other.produce("waiting", batch_now(b"wake up"))
    client.receive("Fetch", 12)
    assert client.receive("CreateTopics", 7)["topics"][0]["error_code"] == 0


def test_topics_are_there_for_the_next_request(client: RawClient) -> None:
    for which in range(10):
        name = f"next-{which}"
        creatable = {"name": name, "num_partitions": 1, "replication_factor": 1}
        client.send("CreateTopics", 7, {"topics": [creatable], "timeout_ms": 10_000})
        client.send("Produce", 9, produce_body(name, batch_now(b"x")))
        client.send("Metadata", 12, {"topics": [{"name": name}]})
        client.send("DeleteTopics", 6, {"topics": [{"name": name}], "timeout_ms": 10_000})
        client.send("Produce", 9, produce_body(name, batch_now(b"y")))
        assert client.receive("CreateTopics", 7)["topics"][0]["error_code"] == 0
        assert offset_of(client.receive("Produce", 9)) == 0
        assert client.receive("Metadata", 12)["topics"][0]["error_code"] == 0
        assert client.receive("DeleteTopics", 6)["responses"][0]["error_code"] == 0
        row = client.receive("Produce", 9)["responses"][0]["partition_responses"][0]
        assert row["error_code"] == 3


def test_fetches_in_a_row_are_answered_in_order(client: RawClient) -> None:
    client.create_topic("fetches")
    for number in range(20):
        client.send("Produce", 9, produce_body("fetches", batch_now(b"%d" % number * 5000)))
    for _ in range(20):
        client.receive("Produce", 9)
    for offset in range(20):
        client.send("Fetch", 12, fetch_body("fetches", offset, max_bytes=1))
    for offset in range(20):
        fetched = client.receive("Fetch", 12)["responses"][0]["partitions"][0]
        assert int.from_bytes(fetched["records"][:8], "big") == offset


def test_acks_0_that_fails_ends_the_connection(address: str) -> None:
    with RawClient(address) as client:
        client.create_topic("acks-0")
        client.send("Produce", 9, produce_body("acks-0", batch_now(b"good"), acks=0))
        client.send("Produce", 9, produce_body("acks-0", batch_now(b"bad")[:-1], acks=0))
        assert client.is_closed_by_broker()
    with RawClient(address) as client:
        assert client.fetch("acks-0", 0)["high_watermark"] == 1


def test_client_that_will_send_no_more_gets_all_its_answers(address: str) -> None:
    with RawClient(address) as client:
        client.create_topic("halves")
        client.send("Produce", 9, produce_body("halves", batch_now(b"a")))
        for _ in range(3):
            client.send("ListOffsets", 6, latest("halves"))
        waiting = fetch_body("halves", 1, max_wait_ms=300, min_bytes=1)
        client.send("Fetch", 12, waiting)
        client.socket.shutdown(socket.SHUT_WR)
        assert offset_of(client.receive("Produce", 9)) == 0
        for _ in range(3):
            assert client.receive("ListOffsets", 6)["topics"][0]["partitions"][0]["offset"] == 1
        assert client.receive("Fetch", 12)["error_code"] == 0
        assert client.is_closed_by_broker()
