"""Apache Kafka's own command line tools print the same for our broker as for Kafka's.

KAFKA_ORACLE=host:port names a Kafka 4.2.1 of one broker, id 1; KAFKA_TOOL is a command that runs a
class of its tools. What differs from cluster to cluster (ids, ports, times, offsets) gives way to a
word. Each line of a script is a tool and its arguments: {b} stands for the bootstrap server, {t}
for the prefix of all names.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shmbroker.testing.broker import Broker
from tests.processes.wire_expectations import FLAGS

NEEDS_KAFKA_TOOLS = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        "KAFKA_ORACLE" not in os.environ or "KAFKA_TOOL" not in os.environ,
        reason="no Apache Kafka and its tools to compare with",
    ),
    pytest.mark.timeout(1200),
]
pytestmark = NEEDS_KAFKA_TOOLS

TOOL_S = 120
TOOLS = "org.apache.kafka.tools."
TOPICS = TOOLS + "TopicCommand --bootstrap-server {b} "
CONFIGS = "kafka.admin.ConfigCommand --bootstrap-server {b} "
FEATURES = TOOLS + "FeatureCommand --bootstrap-server {b} "
ELECTION = TOOLS + "LeaderElectionCommand --bootstrap-server {b} "
REASSIGN = TOOLS + "reassign.ReassignPartitionsCommand --bootstrap-server {b} "
QUORUM = TOOLS + "MetadataQuorumCommand --bootstrap-server {b} "
CLUSTER = TOOLS + "ClusterTool "
SUBSCRIPTIONS = TOOLS + "ClientMetricsCommand --bootstrap-server {b} "

SCRIPTS = {
    "topics": [
        TOPICS + "--create --topic {t}a --partitions 3 --replication-factor 1 "
        "--config retention.ms=5000 --config cleanup.policy=compact",
        TOPICS + "--create --topic {t}a",
        TOPICS + "--create --topic {t}a --if-not-exists",
        TOPICS + "--describe --topic {t}a",
        TOPICS + "--alter --topic {t}a --partitions 5",
        TOPICS + "--alter --topic {t}a --partitions 2",
        TOPICS + "--create --topic {t}h --replica-assignment 1,1",
        TOPICS + "--describe --topic {t}.* --exclude-internal",
        TOPICS + "--describe --topic {t}.* --topics-with-overrides",
        TOPICS + "--describe --topic {t}.* --under-replicated-partitions",
        TOPICS + "--describe --topic {t}.* --unavailable-partitions",
        TOPICS + "--list --topic {t}.*",
        TOPICS + "--create --topic {t}r --replication-factor 3",
        TOPICS + "--create --topic {t}x/y",
        TOPICS + "--create --topic {t}c --config no.such=1",
        TOPICS + "--create --topic {t}c --config segment.bytes=1",
        TOPICS + "--create --topic {t}h --replica-assignment 7",
        TOPICS + "--delete --topic {t}a",
        TOPICS + "--describe --topic {t}none",
        TOPICS + "--delete --topic {t}none",
    ],
    "quotas": [
        CONFIGS + "--alter --entity-type clients --entity-name {t}c "
        "--add-config producer_byte_rate=1024,request_percentage=12.5",
        CONFIGS + "--alter --entity-type users --entity-name {t}u --entity-type clients "
        "--entity-name {t}c --add-config consumer_byte_rate=2048,controller_mutation_rate=0.5",
        CONFIGS + "--alter --entity-type users --entity-name {t}u --entity-type clients "
        "--entity-default --add-config producer_byte_rate=7",
        CONFIGS + "--alter --entity-type ips --entity-name 198.51.100.7 "
        "--add-config connection_creation_rate=3",
        CONFIGS + "--describe --entity-type clients --entity-name {t}c",
        CONFIGS + "--describe --entity-type users --entity-name {t}u --entity-type clients",
        CONFIGS + "--describe --entity-type users --entity-name {t}u --entity-type clients "
        "--entity-default",
        CONFIGS + "--describe --entity-type ips --entity-name 198.51.100.7",
        CONFIGS + "--describe --entity-type clients --entity-name {t}none",
        CONFIGS + "--alter --entity-type clients --entity-name {t}c --add-config no.such=1",
        CONFIGS + "--alter --entity-type clients --entity-name {t}c "
        "--add-config producer_byte_rate=1.5",
        CONFIGS + "--alter --entity-type clients --entity-name {t}c "
        "--add-config request_percentage=-1",
        CONFIGS + "--alter --entity-type ips --entity-name 198.51.100.777 "
        "--add-config connection_creation_rate=3",
        CONFIGS + "--alter --entity-type clients --entity-name {t}c "
        "--delete-config producer_byte_rate,request_percentage",
        CONFIGS + "--alter --entity-type clients --entity-name {t}c "
        "--delete-config producer_byte_rate",
        CONFIGS + "--alter --entity-type users --entity-name {t}u --entity-type clients "
        "--entity-default --delete-config producer_byte_rate",
        CONFIGS + "--alter --entity-type users --entity-name {t}u --entity-type clients "
        "--entity-name {t}c --delete-config consumer_byte_rate,controller_mutation_rate",
        CONFIGS + "--alter --entity-type ips --entity-name 198.51.100.7 "
        "--delete-config connection_creation_rate",
        CONFIGS + "--describe --entity-type users --entity-name {t}u --entity-type clients",
    ],
    "settings of topics": [
        TOPICS + "--create --topic {t}s",
        CONFIGS + "--entity-type topics --entity-name {t}s --alter "
        "--add-config retention.ms=5000,cleanup.policy=[compact,delete]",
        CONFIGS + "--entity-type topics --entity-name {t}s --describe",
        CONFIGS + "--entity-type topics --entity-name {t}s --describe --all",
        CONFIGS + "--entity-type topics --entity-name {t}s --alter --delete-config retention.ms",
        CONFIGS + "--entity-type topics --entity-name {t}s --alter --delete-config flush.ms",
        CONFIGS + "--entity-type topics --entity-name {t}s --alter --add-config no.such=1",
        CONFIGS + "--entity-type topics --entity-name {t}s --alter --add-config flush.ms=x",
        CONFIGS + "--entity-type topics --entity-name {t}s --describe",
        CONFIGS + "--entity-type topics --entity-name {t}none --describe",
        CONFIGS + "--entity-type topics --entity-name {t}none --alter --add-config flush.ms=1",
    ],
    "settings of others": [
        CONFIGS + "--entity-type brokers --entity-name 1 --alter "
        "--add-config log.retention.ms=604800001",
        CONFIGS + "--entity-type brokers --entity-name 1 --describe",
        CONFIGS + "--entity-type brokers --entity-name 1 --alter --delete-config log.retention.ms",
        CONFIGS + "--entity-type brokers --entity-name 1 --alter --add-config num.partitions=3",
        CONFIGS + "--entity-type brokers --entity-default --describe",
        CONFIGS + "--entity-type groups --entity-name {t}g --alter "
        "--add-config consumer.session.timeout.ms=50000",
        CONFIGS + "--entity-type groups --entity-name {t}g --describe",
        CONFIGS + "--entity-type groups --entity-name {t}g --alter "
        "--add-config consumer.session.timeout.ms=1",
        CONFIGS + "--entity-type groups --entity-name {t}g --alter "
        "--delete-config consumer.session.timeout.ms",
        CONFIGS + "--entity-type client-metrics --entity-name {t}m --alter "
        "--add-config interval.ms=1000,metrics=a",
        CONFIGS + "--entity-type client-metrics --entity-name {t}m --describe",
        SUBSCRIPTIONS + "--describe --name {t}m",
        SUBSCRIPTIONS + "--alter --name {t}m --interval 2000 --match client_id=x",
        SUBSCRIPTIONS + "--alter --name {t}m --interval 2",
        SUBSCRIPTIONS + "--describe --name {t}m",
        SUBSCRIPTIONS + "--delete --name {t}m",
        CONFIGS + "--entity-type broker-loggers --entity-name 1 --alter --add-config nope=WARN",
    ],
    "cluster": [
        FEATURES + "version-mapping --release-version 4.2",
        FEATURES + "upgrade --feature group.version=1",
        FEATURES + "downgrade --feature group.version=0 --dry-run",
        FEATURES + "downgrade --feature metadata.version=9",
        FEATURES + "upgrade --feature metadata.version=30",
        FEATURES + "disable --feature nonsense",
        QUORUM + "describe --status",
        QUORUM + "describe --replication",
        CLUSTER + "cluster-id --bootstrap-server {b}",
        CLUSTER + "list-endpoints --bootstrap-server {b}",
        CLUSTER + "unregister --id 9 --bootstrap-server {b}",
        TOOLS + "GroupsCommand --bootstrap-server {b} --list --group-type share",
    ],
    "replicas": [
        TOPICS + "--create --topic {t}e --partitions 2",
        ELECTION + "--election-type preferred --topic {t}e --partition 0",
        ELECTION + "--election-type unclean --topic {t}e --partition 1",
        ELECTION + "--election-type preferred --topic {t}none --partition 0",
        REASSIGN + "--generate --topics-to-move-json-file {f}topics.json --broker-list 1",
        REASSIGN + "--execute --reassignment-json-file {f}same.json",
        REASSIGN + "--verify --reassignment-json-file {f}same.json",
        REASSIGN + "--execute --reassignment-json-file {f}far.json",
        REASSIGN + "--list",
        REASSIGN + "--cancel --reassignment-json-file {f}same.json",
    ],
}

WORDS = (
    (re.compile(r"(?<=\tEpoch: )\d+"), "number"),
    (re.compile(r"(?<=[:=] )\d{3,5}\b(?=,? *(rack|isFenced|$))"), "port"),
    (re.compile(r"(?<=TopicId: )\S{22}"), "id"),
    (re.compile(r"(Cluster ?I[Dd]:\s+)\S{22}"), r"\1id"),
    (re.compile(r"((?:LeaderEpoch|HighWatermark):\s+)\d+"), r"\1number"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), "host:port"),
    (re.compile(r"^(1\s+)\S{22}\s+\d+\s+(0\s+)\d{13}\s+\d{13}"), r"\1id end \2time time"),
    (re.compile(r'(?<="log_dirs":\[)"/[^"]*"'), '"directory"'),
    (re.compile(r',? ?"endpoints": \[[^]]*\]'), ""),
    (re.compile(r', "directoryId": "\S{22}"'), ""),
    (re.compile(r"(127\.0\.0\.1\s+)\d+"), r"\1port"),
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(*FLAGS) as broker:
        yield broker


def run(script: list[str], address: str, prefix: str, files: str) -> list[str]:
    """What each tool printed and its exit status."""
    found = []
    for line in script:
        words = shlex.split(line.format(b=address, t=prefix, f=files))
        done = subprocess.run(
            [*shlex.split(os.environ["KAFKA_TOOL"]), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TOOL_S,
            check=False,
        )
        found.append(f"{line}\n{comparable(done.stdout)}exit status {done.returncode}\n")
    return found


def comparable(text: str) -> str:
    """Without what differs from cluster to cluster, and without the way of an exception."""
    lines = []
    for line in text.splitlines():
        if re.match(r"\s+(at |\.\.\. \d+ more)", line):
            continue
        line = re.sub(r"^\[\S+ \S+\] ", "", line)
        for pattern, word in WORDS:
            line = pattern.sub(word, line)
        lines.append(line)
    return "".join(line + "\n" for line in lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_tools_print_the_same(broker: Broker, tmp_path: Path, name: str) -> None:
    prefix = f"tools-{os.getpid()}-"
    topic = {"topic": prefix + "e"}
    partitions = [topic | {"partition": index, "replicas": [1]} for index in (0, 1)]
    far = [topic | {"partition": 0, "replicas": [7]}]
    for file, content in (
        ("topics", {"topics": [topic], "version": 1}),
        ("same", {"partitions": partitions, "version": 1}),
        ("far", {"partitions": far, "version": 1}),
    ):
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    sides = (os.environ["KAFKA_ORACLE"], broker.address)
    with ThreadPoolExecutor() as pool:
        theirs, ours = pool.map(
            lambda address: run(SCRIPTS[name], address, prefix, f"{tmp_path}/"), sides
        )
    different = [
        f"Kafka:\n{their}\nhere:\n{our}"
        for their, our in zip(theirs, ours, strict=True)
        if their != our
    ]
    assert not different, "\n".join(different)


def test_versions_and_features_are_among_kafkas(broker: Broker) -> None:
    tools = [TOOLS + "BrokerApiVersionsCommand --bootstrap-server {b}", FEATURES + "describe"]
    for theirs, ours in zip(
        run(tools, os.environ["KAFKA_ORACLE"], "", ""),
        run(tools, broker.address, "", ""),
        strict=True,
    ):
        served = [line for line in lines_of(ours) if "UNSUPPORTED" not in line]
        assert len(served) > 1
        assert set(served) <= set(lines_of(theirs))


def lines_of(text: str) -> list[str]:
    """Without the commas between rows."""
    return [line.rstrip(",") for line in text.splitlines()]
