"""Ids of brokers and controllers that don't begin at 1: 0 is one like any other, and a directory
keeps the id it has."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from shmbroker.processes.supervisor import EXIT_CONFIG
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now, leader_of, read_values
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

FLAGS = ("--node-id", "0", "--replicas", "3", "--controllers", "3")
TOPIC = "ids"
QUORUM = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}


@pytest.fixture(scope="module")
def family() -> Iterator[Broker]:
    with Broker(*FLAGS) as started:
        with RawClient(started.address) as client:
            client.create_topic(TOPIC, 3)
        yield started


def metadata(client: RawClient) -> dict[str, Any]:
    return client.ask("Metadata", 12, {"topics": [{"name": TOPIC}]})


def quorum(client: RawClient) -> dict[str, Any]:
    """Of DescribeQuorum, once there is an active controller."""

    def asked() -> Any:
        topics = client.ask("DescribeQuorum", 2, QUORUM)["topics"]
        return topics and topics[0]["partitions"][0]

    return wait_until(asked, "an active controller")


def test_clients_are_told_the_ids(family: Broker) -> None:
    assert f"{family.address} (broker 0)" in family.log
    assert {"io-worker-0", "io-worker-2", "controller-0"} <= set(family.children())
    with RawClient(family.address) as client:
        told = metadata(client)
        assert [row["node_id"] for row in told["brokers"]] == [0, 1, 2]
        assert told["controller_id"] in (0, 1, 2)
        partitions = told["topics"][0]["partitions"]
        # Each leads one at first; others of these tests kill leaders.
        assert sorted(row["replica_nodes"][0] for row in partitions) == [0, 1, 2]
        assert all(row["leader_id"] in (0, 1, 2) for row in partitions)
        assert all(sorted(row["replica_nodes"]) == [0, 1, 2] for row in partitions)
        found = quorum(client)
        assert [row["replica_id"] for row in found["current_voters"]] == [0, 1, 2]
        resource = {"resource_type": 4, "resource_name": "0", "configuration_keys": ["node.id"]}
        (result,) = client.ask("DescribeConfigs", 4, {"resources": [resource]})["results"]
        assert [row["value"] for row in result["configs"]] == ["0"]


def test_broker_and_controller_0_are_replaced_as_others(family: Broker) -> None:
    with RawClient(family.address, 30) as client:
        # Until 0 is the active one, those that are it make way.
        for _ in range(20):
            active = quorum(client)
            if active["leader_id"] == 0:
                break
            kill(family, f"controller-{active['leader_id']}")
            wait_until(
                lambda active=active: quorum(client)["leader_epoch"] > active["leader_epoch"],
                "another controller",
            )
        assert active["leader_id"] == 0
        epoch = active["leader_epoch"]
        kill(family, "controller-0")
        kill(family, "io-worker-0")
        wait_until(lambda: quorum(client)["leader_epoch"] > epoch, "a new epoch")
        client.create_topic("after")
    for partition in range(3):
        wait_until(lambda partition=partition: produces(family, partition), "a leader that answers")
    with RawClient(family.address, 30) as client:
        wait_until(
            lambda: all(
                sorted(row["isr_nodes"]) == [0, 1, 2]
                for row in metadata(client)["topics"][0]["partitions"]
            ),
            "broker 0 to be in sync",
        )


def kill(family: Broker, title: str) -> None:
    os.kill(wait_until(lambda: family.children().get(title), title), signal.SIGKILL)


def produces(family: Broker, partition: int) -> bool:
    leader = leader_of(family.address, TOPIC, partition)
    if leader is None:
        return False
    try:
        with RawClient(leader, 30) as client:
            return client.produce(TOPIC, batch_now(b"x"), partition=partition)["error_code"] == 0
    except ConnectionError:
        return False


def refused(data: Path, *words: str) -> str:
    """What a start says that ends with a configuration fault."""
    command = [sys.executable, "-m", "shmbroker", "serve", "--data", str(data), "--port", "0"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (EXIT_CONFIG, 1), done.stderr
    return done.stderr


def test_one_broker_of_id_0_and_the_id_that_its_directory_keeps(tmp_path: Path) -> None:
    data, log_dir = tmp_path / "data", tmp_path / "moved"
    with Broker("--node-id", "0", data=data) as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"1"))["error_code"] == 0
        place = TopicPartition(TOPIC, 0, 1)
        group = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
        group.commit(offsets=[place], asynchronous=False)
        assert [row.offset for row in group.committed([place], timeout=30)] == [1]
        group.close()
        asked = {"key_type": 0, "coordinator_keys": ["g"]}
        (found,) = client.ask("FindCoordinator", 4, asked)["coordinators"]
        assert (found["error_code"], found["node_id"]) == (0, 0)
        os.kill(broker.children()["io-worker-0"], signal.SIGKILL)
        wait_until(
            lambda: client.produce(TOPIC, batch_now(b"2"))["error_code"] == 0, "the successor"
        )
    assert "--node-id 0" in refused(data)
    # The directory alone, elsewhere: as one that Apache Kafka made, with any id.
    shutil.move(data / "node-0", log_dir)
    assert "--log-dir" in refused(log_dir)
    assert "node 0" in refused(data, "--log-dir", str(log_dir), "--node-id", "7")
    assert not list((log_dir / "__cluster_metadata-0").glob("*.tmp"))
    with (
        Broker("--log-dir", str(log_dir), data=data) as broker,
        RawClient(broker.address) as client,
    ):
        assert read_values(client, TOPIC, 0)[0] == b"1"
        assert [row["node_id"] for row in metadata(client)["brokers"]] == [0]
        assert not list(data.glob("node-*"))
