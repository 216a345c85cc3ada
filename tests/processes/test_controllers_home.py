"""The metadata log goes to Apache Kafka and back: one controller or three, twice over.

KAFKA_ON is a command that opens data directories with Apache Kafka 4.2.1, as nodes on ports in a
row: KAFKA_ON DIR,DIR,DIR PORT, with CONTROLLERS=N in its environment if only the first N hold a
controller. KAFKA_OFF PORT ends that, whatever it takes: Kafka's controllers do not stop without a
majority. KAFKA_PORT is the first port (15310).
"""

import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.timeout(600),
    pytest.mark.skipif("KAFKA_ON" not in os.environ, reason="no Apache Kafka to go to"),
]
PORT = int(os.environ.get("KAFKA_PORT", "15310"))
START_S = 120.0
QUORUM = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}


@contextmanager
def kafka(data: Path, nodes: int, controllers: int, first: int = 1) -> Iterator[str]:
    """Apache Kafka on the directories of a family; its address."""
    ids = range(first, first + nodes)
    directories = ",".join(str(data / f"node-{number}") for number in ids)
    command = [*shlex.split(os.environ["KAFKA_ON"]), directories, str(PORT)]
    try:
        subprocess.run(command, check=False, env=os.environ | {"CONTROLLERS": str(controllers)})
        wait_for(range(PORT, PORT + nodes))
        yield f"127.0.0.1:{PORT}"
    finally:
        subprocess.run([*shlex.split(os.environ["KAFKA_OFF"]), str(PORT)], check=True)


def wait_for(ports: range) -> None:
    """Several Java machines that start at once may take longer than the command waits."""
    deadline = clock.monotonic() + START_S
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert clock.monotonic() < deadline, f"nobody serves port {port}"
                clock.sleep(0.1)


def topics(client: RawClient) -> dict[str, bytes]:
    rows = client.ask("Metadata", 12, {"topics": None})["topics"]
    return {row["name"]: row["topic_id"] for row in rows if not row["is_internal"]}


def retention(client: RawClient, topic: str) -> str:
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    (result,) = client.ask("DescribeConfigs", 4, {"resources": [resource]})["results"]
    (row,) = result["configs"]
    return row["value"]


def voters(client: RawClient) -> list[int]:
    answer: dict[str, Any] = client.ask("DescribeQuorum", 1, QUORUM)
    return [row["replica_id"] for row in answer["topics"][0]["partitions"][0]["current_voters"]]


@pytest.mark.parametrize(
    ("nodes", "controllers", "first"), [(1, 1, 1), (3, 3, 1), (3, 1, 1), (1, 1, 0), (3, 3, 0)]
)
def test_the_metadata_is_there_on_the_other_side_and_goes_on(
    tmp_path: Path, nodes: int, controllers: int, first: int
) -> None:
    flags = ["--io-workers", str(nodes), "--controllers", str(controllers)]
    flags += ["--node-id", str(first)]
    voting = list(range(first, first + controllers))
    # Snapshots often, so that Kafka begins with ours, and we with what follows.
    flags += ["--set", "metadata.log.max.record.bytes.between.snapshots=1000"]
    known: dict[str, bytes] = {}
    for turn in range(2):
        with Broker(*flags, data=tmp_path) as broker, RawClient(broker.address, 30) as client:
            assert topics(client) == known
            assert voters(client) == voting
            for number in range(12):
                name = f"ours-{turn}-{number}"
                known[name] = client.create_topic(name, 2, retention_ms=str(1_000_000 + number))
        with (
            kafka(tmp_path, nodes, controllers, first) as address,
            RawClient(address, 60) as client,
        ):
            assert topics(client) == known
            assert voters(client) == voting
            assert retention(client, f"ours-{turn}-7") == "1000007"
            for number in range(3):
                name = f"theirs-{turn}-{number}"
                known[name] = client.create_topic(name, 2, retention_ms="2000000")
    with Broker(*flags, data=tmp_path) as broker, RawClient(broker.address, 30) as client:
        assert topics(client) == known
        assert retention(client, "theirs-1-2") == "2000000"


def test_controllers_that_came_by_growing_are_kafkas_too(tmp_path: Path) -> None:
    with Broker("--io-workers", "3", data=tmp_path) as broker, RawClient(broker.address) as client:
        known = {"alone": client.create_topic("alone")}
    flags = ("--io-workers", "3", "--controllers", "3")
    with Broker(*flags, data=tmp_path) as broker, RawClient(broker.address) as client:
        known["three"] = client.create_topic("three")
    with kafka(tmp_path, 3, 3) as address, RawClient(address, 60) as client:
        assert topics(client) == known
        assert voters(client) == [1, 2, 3]
        known["theirs"] = client.create_topic("theirs")
    with Broker("--io-workers", "3", data=tmp_path) as broker, RawClient(broker.address) as client:
        assert topics(client) == known
        known["alone-again"] = client.create_topic("alone-again")
    with kafka(tmp_path, 3, 1) as address, RawClient(address, 60) as client:
        assert topics(client) == known
        assert voters(client) == [1]


def quotas(client: RawClient) -> list[tuple[list[Any], dict[str, float]]]:
    entries = client.ask("DescribeClientQuotas", 1, {"components": [], "strict": False})["entries"]
    return sorted(
        (
            sorted((row["entity_type"], row["entity_name"] or "") for row in entry["entity"]),
            {row["key"]: row["value"] for row in entry["values"]},
        )
        for entry in entries
    )


def set_quota(client: RawClient, entity: dict[str, str | None], key: str, value: float) -> None:
    rows = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    ops = [{"key": key, "value": value, "remove": not value}]
    body = {"entries": [{"entity": rows, "ops": ops}], "validate_only": False}
    assert client.ask("AlterClientQuotas", 1, body)["entries"][0]["error_code"] == 0


def test_quotas_go_along_and_come_back(tmp_path: Path) -> None:
    pair: dict[str, str | None] = {"user": "alice", "client-id": None}
    flags = ("--set", "metadata.log.max.record.bytes.between.snapshots=1000")
    with Broker(*flags, data=tmp_path) as broker, RawClient(broker.address) as client:
        set_quota(client, pair, "producer_byte_rate", 1024.0)
        set_quota(client, pair, "request_percentage", 0.25)
        set_quota(client, {"ip": "198.51.100.7"}, "connection_creation_rate", 3.0)
        for number in range(12):  # enough for a snapshot
            client.create_topic(f"t{number}")
        known = quotas(client)
    with kafka(tmp_path, 1, 1) as address, RawClient(address, 60) as client:
        assert quotas(client) == known
        set_quota(client, pair, "request_percentage", 0.0)
        set_quota(client, {"user": None}, "consumer_byte_rate", 7.5e3)
        set_quota(client, {"ip": "198.51.100.7"}, "connection_creation_rate", 0.0)
    with Broker(*flags, data=tmp_path) as broker, RawClient(broker.address) as client:
        assert quotas(client) == [
            ([("client-id", ""), ("user", "alice")], {"producer_byte_rate": 1024.0}),
            ([("user", "")], {"consumer_byte_rate": 7500.0}),
        ]
