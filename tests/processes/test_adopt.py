"""Directories that Apache Kafka made, and shmbroker never was on: they are served as they are.

KAFKA_TOOL is a command that runs a main class of Apache Kafka 4.2.1 with arguments: KAFKA_TOOL
kafka.Kafka FILE. The nodes are Kafka's own, formatted by its StorageTool: combined ones and apart,
with ids of any kind. Each has topics, settings, groups, and transactions of each ending.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from shmbroker import clock
from shmbroker.testing.broker import QUICK, Broker, free_ports
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.timeout(600),
    pytest.mark.skipif("KAFKA_TOOL" not in os.environ, reason="no Apache Kafka to come from"),
]
START_S = 120.0
COUNT = 3000
BOTH, BROKER, CONTROLLER = "broker,controller", "broker", "controller"


class Node(NamedTuple):
    """One of Kafka's."""

    node_id: int
    roles: str


class Kafka:
    """A cluster of Apache Kafka below `directory`, from its formatting to a clean stop. With
    `is_dynamic` its voters stand in the metadata log (kraft.version 1)."""

    def __init__(self, directory: Path, nodes: list[Node], is_dynamic: bool) -> None:
        self.nodes = nodes
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        ports = free_ports(2 * len(nodes))
        voters = ",".join(
            f"{node.node_id}@127.0.0.1:{ports + 2 * at + 1}"
            for at, node in enumerate(nodes)
            if CONTROLLER in node.roles
        )
        brokers = sum(BROKER in node.roles for node in nodes)
        self.ports = []
        for at, node in enumerate(nodes):
            listeners = []
            if BROKER in node.roles:
                listeners.append(f"PLAINTEXT://127.0.0.1:{ports + 2 * at}")
                self.ports.append(ports + 2 * at)
            if CONTROLLER in node.roles:
                listeners.append(f"CONTROLLER://127.0.0.1:{ports + 2 * at + 1}")
            home = directory / f"kafka-{node.node_id}"
            home.mkdir(parents=True)
            lines = {
                "process.roles": node.roles,
                "node.id": node.node_id,
                "listeners": ",".join(listeners),
                "controller.listener.names": "CONTROLLER",
                "log.dirs": home / "data",
                "offsets.topic.replication.factor": brokers,
                "transaction.state.log.replication.factor": brokers,
                "transaction.state.log.min.isr": 1,
                "group.initial.rebalance.delay.ms": 0,
            }
            words = ["format", "-t", "MkU3OEVBNTcwNTJENDM2Qg"]
            if is_dynamic:
                lines["controller.quorum.bootstrap.servers"] = voters.partition("@")[2]
                words.append("-s" if CONTROLLER in node.roles else "-N")
            else:
                lines["controller.quorum.voters"] = voters
            settings = home / "server.properties"
            settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
            self._run("kafka.tools.StorageTool", *words, "-c", str(settings)).wait(120)
        for node in nodes:
            settings = directory / f"kafka-{node.node_id}" / "server.properties"
            self.processes.append(self._run("kafka.Kafka", str(settings)))
        self.address = f"127.0.0.1:{self.ports[0]}"

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*shlex.split(os.environ["KAFKA_TOOL"]), *words],
            stdout=(self.directory / "kafka.log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> "Kafka":
        deadline = clock.monotonic() + START_S
        for port in self.ports:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    assert clock.monotonic() < deadline, (self.directory / "kafka.log").read_text()
                    clock.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        """Brokers first: they hand over to a controller that is there."""
        order = sorted(range(len(self.nodes)), key=lambda at: CONTROLLER in self.nodes[at].roles)
        for at in order:
            if os.getpgid(self.processes[at].pid) == self.processes[at].pid:
                os.killpg(self.processes[at].pid, signal.SIGTERM)
            if self.nodes[at].roles == BROKER:
                self._await_end(at)
        for at in order:
            self._await_end(at)

    def _await_end(self, at: int) -> None:
        """Controllers do not stop without a majority: the last of them are killed."""
        group = self.processes[at].pid
        self.processes[at].wait(60)
        deadline = clock.monotonic() + 30
        while True:
            try:
                os.killpg(group, 0 if clock.monotonic() < deadline else signal.SIGKILL)
            except ProcessLookupError:
                return
            clock.sleep(0.1)

    @property
    def directories(self) -> list[Path]:
        """Of brokers."""
        return [
            self.directory / f"kafka-{node.node_id}" / "data"
            for node in self.nodes
            if BROKER in node.roles
        ]


class Story(NamedTuple):
    """What was written."""

    ids: dict[str, bytes]
    transactions: list[int]


def write(address: str, replicas: int) -> Story:
    with RawClient(address, 60) as client:
        create = {
            "topics": [
                {
                    "name": name,
                    "num_partitions": 3,
                    "replication_factor": replicas,
                    "assignments": [],
                    "configs": [{"name": "retention.ms", "value": "123456789"}],
                }
                for name in ("plain", "whole")
            ],
            "timeout_ms": 60_000,
            "validate_only": False,
        }
        answer = client.ask("CreateTopics", 7, create)
        ids = {row["name"]: row["topic_id"] for row in answer["topics"]}
    producer = Producer({"bootstrap.servers": address, "compression.type": "zstd", "log_level": 0})
    for number in range(COUNT):
        producer.produce("plain", b"%d" % number, partition=number % 3)
    assert producer.flush(60) == 0
    kept = []
    transactional = Producer(
        {"bootstrap.servers": address, "transactional.id": "t", "log_level": 0}
    )
    transactional.init_transactions(60)
    for number in range(6):
        transactional.begin_transaction()
        transactional.produce("whole", b"%d" % number, partition=0)
        if number % 2:
            transactional.flush(60)
            transactional.abort_transaction(60)
        else:
            transactional.commit_transaction(60)
            kept.append(number)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "log_level": 0})
    wait_until(lambda: is_committed(consumer), "the coordinator", 60)
    consumer.close()
    return Story(ids, kept)


def is_committed(consumer: Consumer) -> bool:
    """Kafka makes the coordinator's topic at the first question, and takes a while."""
    try:
        consumer.commit(offsets=places(), asynchronous=False)
    except KafkaException:
        return False
    return True


def places() -> list[TopicPartition]:
    return [TopicPartition("plain", index, 100 + index) for index in range(3)]


def read(address: str, topic: str, partition: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reads",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[int] = []
    try:
        while (message := consumer.poll(60)) is not None and not message.error():
            found.append(int(message.value()))
        assert message is not None
        return found
    finally:
        consumer.close()


def check(address: str, story: Story, ids: list[int], replicas: int) -> None:
    with RawClient(address, 60) as client:
        answer = client.ask("Metadata", 12, {"topics": None})
        assert sorted(row["node_id"] for row in answer["brokers"]) == sorted(ids)
        topics = {row["name"]: row for row in answer["topics"]}
        for name, topic_id in story.ids.items():
            assert topics[name]["topic_id"] == topic_id
            for row in topics[name]["partitions"]:
                assert len(row["replica_nodes"]) == replicas
        asked = [{"resource_type": 2, "resource_name": "plain", "configuration_keys": None}]
        (result,) = client.ask("DescribeConfigs", 4, {"resources": asked})["results"]
        values = {row["name"]: row["value"] for row in result["configs"]}
        assert values["retention.ms"] == "123456789"
    for partition in range(3):
        assert read(address, "plain", partition) == list(range(partition, COUNT, 3))
    assert read(address, "whole", 0) == story.transactions
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "log_level": 0})
    found = {row.partition: row.offset for row in consumer.committed(places(), timeout=60)}
    consumer.close()
    assert found == {0: 100, 1: 101, 2: 102}
    transactional = Producer(
        {"bootstrap.servers": address, "transactional.id": "t", "log_level": 0}
    )
    transactional.init_transactions(60)
    transactional.begin_transaction()
    transactional.produce("whole", b"%d" % (story.transactions[-1] + 100), partition=0)
    transactional.commit_transaction(60)
    story.transactions.append(story.transactions[-1] + 100)


LAYOUTS = {
    "one-combined": ([Node(42, BOTH)], 1, 1),
    "three-combined": ([Node(5, BOTH), Node(9, BOTH), Node(2, BOTH)], 3, 3),
    "separate": ([Node(100, CONTROLLER), Node(7, BROKER)], 1, 1),
    "separate-three": (
        [Node(number, CONTROLLER if number > 9 else BROKER) for number in (100, 101, 102, 7, 8, 9)],
        3,
        3,
    ),
    "dynamic": ([Node(3, BOTH)], 1, 1),
    "dynamic-separate": ([Node(100, CONTROLLER), Node(7, BROKER)], 1, 1),
}
"""Nodes; replicas; controllers that shmbroker is started with."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nodes_of_kafka_are_served_where_they_lie(tmp_path: Path, layout: str) -> None:
    nodes, replicas, controllers = LAYOUTS[layout]
    with Kafka(tmp_path / "kafka", nodes, layout.startswith("dynamic")) as kafka:
        story = write(kafka.address, replicas)
    for directory in kafka.directories:
        command = [sys.executable, "-m", "shmbroker", "doctor", str(directory), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        found = [
            (row["check"], row["saw"])
            for row in json.loads(done.stdout)["checks"]
            if row["area"] == "comes along" and row["level"] in ("fault", "warning")
        ]
        assert found == [], done.stdout
    flags = [word for directory in kafka.directories for word in ("--log-dir", str(directory))]
    flags += ["--replicas", str(replicas), "--controllers", str(controllers), *QUICK]
    ids = [node.node_id for node in nodes if BROKER in node.roles]
    for _ in range(2):
        with Broker(*flags, data=tmp_path / "data") as broker:
            check(broker.address, story, ids, replicas)
            assert " ERROR " not in broker.log
