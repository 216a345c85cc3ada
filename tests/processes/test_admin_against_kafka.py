"""Random administration, asked of our broker and of Apache Kafka: the same answers, word by word.

KAFKA_ORACLE=host:port names a Kafka 4.2.1 of one broker, id 1; ADMIN_SEED and ADMIN_COUNT ask for
others, or more, than the usual requests. A request has one thing wrong with each of its parts at
most, for Kafka finds the first of several in the order of a hash map.
"""

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from shmbroker.metadata.client_metrics import CLIENT_METRICS_SETTINGS
from shmbroker.metadata.group_configs import GROUP_SETTINGS
from shmbroker.settings.setting import OWN_PREFIX
from shmbroker.settings.table import TOPIC_SETTINGS
from shmbroker.testing.broker import Broker
from tests.processes.wire_expectations import FLAGS
from tests.support.raw_client import RawClient

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif("KAFKA_ORACLE" not in os.environ, reason="no Apache Kafka to ask"),
]

SEED = int(os.environ.get("ADMIN_SEED", "1"))
COUNT = int(os.environ.get("ADMIN_COUNT", "500"))
PREFIX = f"random-{os.getpid()}-"
TOPICS = [*(PREFIX + name for name in ("a", "b", "c.d", "e", "x y", "z" * 250)), ""]
KEYS = {
    2: [*(name for name in TOPIC_SETTINGS if not name.startswith(OWN_PREFIX)), "nope"],
    16: [*CLIENT_METRICS_SETTINGS, "nope"],
    32: [*GROUP_SETTINGS, "nope"],
}
NAMES = {2: TOPICS, 16: [PREFIX + "m", ""], 32: [PREFIX + "g", PREFIX + "h", ""]}
VALUES = [
    "", "0", "1", "-1", "-2", "5", "100", "1000", "5000", "6000", "15000", "30000", "45000",
    "50000", "60001", "1048576", "3600000", "2147483648", "9223372036854775807", " 7 ", "+3",
    "0.5", "1.5", "1e-3", "1.0", "abc", "true", "TRUE", "false", "compact", "compact,delete",
    " compact , delete", "none", "gzip", "zstd", "producer", "CreateTime", "LogAppendTime",
    "*", "0:1", "0:1,1:1", ",", "a,b", "a,,b", "compact,", "latest", "earliest", "read_committed",
    "client_id=a", "client_id", "x=1", "client_id=[a",
]  # fmt: skip
REPLICAS = ([1], [1], [1], [], [2], [1, 1], [1, 2], [-1])

Request = tuple[str, int, dict[str, Any]]


class Requests:
    """Random ones, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def __iter__(self) -> Iterator[Request]:
        kinds = (self.create, self.create, self.grow, self.delete, self.change, self.replace)
        while True:
            yield self.random.choice(kinds)()

    def create(self) -> Request:
        chance = self.random
        topics = []
        for name in chance.sample(TOPICS, chance.choice((1, 1, 2))):
            topic = {
                "name": name,
                "num_partitions": chance.choice((1, 1, 2, 3, -1, 0, -2)),
                "replication_factor": chance.choice((1, 1, -1, -1, 0, 2, -2)),
                "configs": self.configs(2),
            }
            if chance.random() < 0.3:
                topic["assignments"] = [
                    {
                        "partition_index": chance.choice((index, index, index, 5)),
                        "broker_ids": chance.choice(REPLICAS),
                    }
                    for index in range(chance.randint(1, 3))
                ]
            if chance.random() < 0.3:
                topic["num_partitions"] = topic["replication_factor"] = -1
            topics.append(topic)
        return "CreateTopics", chance.randint(2, 7), self.with_trial({"topics": topics})

    def grow(self) -> Request:
        chance = self.random
        topics = []
        for name in chance.sample(TOPICS, chance.choice((1, 1, 2))):
            by_hand = [{"broker_ids": chance.choice(REPLICAS)} for _ in range(chance.randint(0, 3))]
            topics.append(
                {
                    "name": name,
                    "count": chance.choice((0, 1, 2, 3, 4, 5, -1)),
                    "assignments": chance.choice((None, None, by_hand)),
                }
            )
        return "CreatePartitions", chance.randint(0, 3), self.with_trial({"topics": topics})

    def delete(self) -> Request:
        names = [self.random.choice(TOPICS) for _ in range(self.random.choice((1, 1, 2)))]
        version = self.random.randint(1, 6)
        body: dict[str, Any] = {"timeout_ms": 10_000, "topic_names": names}
        if version >= 6:
            topics = [{"name": name, "topic_id": bytes(16)} for name in names]
            body = {"timeout_ms": 10_000, "topics": topics}
        return "DeleteTopics", version, body

    def change(self) -> Request:
        body = self.resources()
        for resource in body["resources"]:
            for config in resource["configs"]:
                config["config_operation"] = self.random.choice((0, 0, 0, 1, 1, 2, 3))
        return "IncrementalAlterConfigs", self.random.randint(0, 1), body

    def replace(self) -> Request:
        return "AlterConfigs", self.random.randint(0, 2), self.resources()

    def resources(self) -> dict[str, Any]:
        chance = self.random
        found = {}
        for kind in chance.choices((2, 2, 2, 16, 32), k=chance.choice((1, 1, 2))):
            name = chance.choice(NAMES[kind])
            found[kind, name] = {
                "resource_type": kind,
                "resource_name": name,
                "configs": self.configs(kind),
            }
        trial = self.random.random() < 0.3
        return {"resources": list(found.values()), "validate_only": trial}

    def configs(self, kind: int) -> list[dict[str, Any]]:
        chance = self.random
        if chance.random() < 0.3:
            return []
        return [{"name": chance.choice(KEYS[kind]), "value": chance.choice([*VALUES, None])}]

    def with_trial(self, body: dict[str, Any]) -> dict[str, Any]:
        return body | {"timeout_ms": 10_000, "validate_only": self.random.random() < 0.3}


def comparable(answer: Any) -> Any:
    """Without topic ids, and with rows in one order."""
    if isinstance(answer, dict):
        return {key: comparable(value) for key, value in answer.items() if key != "topic_id"}
    if isinstance(answer, list):
        return sorted(map(comparable, answer), key=lambda row: json.dumps(row, sort_keys=True))
    return answer


@pytest.mark.timeout(900)
def test_random_requests_are_answered_alike() -> None:
    address = os.environ["KAFKA_ORACLE"]
    with Broker(*FLAGS) as broker, RawClient(broker.address) as ours, RawClient(address) as theirs:
        requests = iter(Requests(SEED))
        try:
            for number in range(COUNT):
                api, version, body = next(requests)
                wanted = comparable(theirs.ask(api, version, body))
                got = comparable(ours.ask(api, version, body))
                assert got == wanted, f"request {number}: {api} v{version} {body}"
        finally:
            for name in TOPICS:
                body = {"topic_names": [name], "timeout_ms": 10_000}
                theirs.ask("DeleteTopics", 1, body)
