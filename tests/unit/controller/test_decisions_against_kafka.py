"""The table of decisions and DescribeConfigs, put to a real Apache Kafka.

KAFKA_ORACLE=host:port names a 4.2.1 with one broker, id 1; without it nothing is run.
"""

import os
import socket
import struct
from typing import Any

import pytest
from decision_cases import ALL, PREFIX, Case, answers_of
from feature_cases import CASES as FEATURE_CASES
from feature_cases import request_of

from shmbroker.metadata.describe_configs import describe_configs
from shmbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, TopicImage
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.setting import OWN_PREFIX
from shmbroker.settings.table import BROKER_SETTINGS
from shmbroker.wire import api_keys, codec, frame

pytestmark = pytest.mark.oracle


class Kafka:
    """One connection; `ask` sends a request and gives the response."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 30)

    def ask(self, api_name: str, version: int, request: dict[str, Any]) -> dict[str, Any]:
        key = getattr(
            api_keys, "".join(f"_{c}" if c.isupper() else c for c in api_name)[1:].upper()
        )
        body = codec.encode(f"{api_name}Request", version, request)
        self.socket.sendall(frame.request_frame(key, version, 1, "test", body))
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        _, position = frame.parse_response_header(key, version, answer)
        return codec.decode_all(f"{api_name}Response", version, answer, position)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "Kafka closed the connection"
            data += more
        return data


@pytest.fixture
def kafka():
    address = os.environ.get("KAFKA_ORACLE")
    if not address:
        pytest.skip("KAFKA_ORACLE names no broker")
    kafka = Kafka(address)
    _sweep(kafka)
    yield kafka
    _sweep(kafka)
    kafka.socket.close()


def _sweep(kafka: Kafka) -> None:
    topics = kafka.ask("Metadata", 12, {"topics": None})["topics"]
    ours = [{"name": t["name"]} for t in topics if t["name"].startswith(PREFIX)]
    kafka.ask("DeleteTopics", 6, {"topics": ours, "timeout_ms": 10_000})


@pytest.mark.parametrize("cases", ALL.values(), ids=ALL)
def test_kafka_answers_as_the_table_says(kafka: Kafka, cases: list[Case]) -> None:
    for api_name, version, request, answers in cases:
        response = kafka.ask(api_name, version, request)
        assert answers_of(api_name, version, response) == sorted(answers, key=repr), request


def test_describe_configs_is_as_kafkas(kafka: Kafka) -> None:
    overrides = {"cleanup.policy": "compact, delete", "retention.ms": " 5 ", "preallocate": "TRUE"}
    topic = {
        "name": PREFIX + "described",
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [{"name": key, "value": value} for key, value in overrides.items()],
    }
    kafka.ask("CreateTopics", 7, {"topics": [topic], "timeout_ms": 10_000})
    request = {
        "resources": [
            {"resource_type": TOPIC_RESOURCE, "resource_name": topic["name"]},
            {"resource_type": TOPIC_RESOURCE, "resource_name": PREFIX + "none"},
            {"resource_type": TOPIC_RESOURCE, "resource_name": "case bad"},
            {"resource_type": BROKER_RESOURCE, "resource_name": "7"},
            {"resource_type": BROKER_RESOURCE, "resource_name": "x"},
            {"resource_type": BROKER_RESOURCE, "resource_name": "1"},
            {"resource_type": BROKER_RESOURCE, "resource_name": ""},
            *(
                {"resource_type": kind, "resource_name": name}
                for kind, names in ((32, ("", PREFIX + "g")), (16, ("", PREFIX + "m")))
                for name in names
            ),
            *({"resource_type": 8, "resource_name": name} for name in ("", "x", "7")),
        ],
        "include_synonyms": True,
        "include_documentation": False,
    }
    for resource in request["resources"]:
        resource["configuration_keys"] = None
    while True:  # Kafka answers CreateTopics before every thread of it knows the topic
        theirs = kafka.ask("DescribeConfigs", 4, request)["results"]
        if theirs[0]["error_code"] == 0:
            break
    entries = {entry["name"]: entry for entry in theirs[5]["configs"]}
    static = {
        name: entry["value"]
        for name, entry in entries.items()
        if any(s["source"] == 4 and s["name"] == name for s in entry["synonyms"])
        and name in BROKER_SETTINGS
        and not BROKER_SETTINGS[name].is_given
    }
    identity = {name: entries[name]["value"] for name in ("node.id", "broker.id", "log.dirs")}
    identity |= {n: entries[n]["value"] for n in ("listeners", "advertised.listeners")}
    image = MetadataImage("")
    image.topics_by_name[topic["name"]] = TopicImage(topic["name"], bytes(16), ())
    image.configs = {
        (TOPIC_RESOURCE, topic["name"]): overrides,
        (BROKER_RESOURCE, ""): {e["name"]: e["value"] for e in theirs[6]["configs"]},
    }
    ours = describe_configs(request, image, BrokerConfig(static), 1, identity, dict)["results"]
    for their_result, our_result in zip(theirs, ours, strict=True):
        their_entries = {entry["name"]: entry for entry in their_result.pop("configs")}
        our_entries = {entry["name"]: entry for entry in our_result.pop("configs")}
        assert our_result == their_result
        if our_result["resource_type"] != BROKER_RESOURCE:
            assert set(our_entries) == set(their_entries)
        our_entries.pop("listeners", None)  # can't be changed at run time here
        our_entries.pop("group.consumer.regex.refresh.interval.ms", None)  # hidden there
        our_entries.pop("offsets.topic.replication.factor", None)  # has another default here
        for name, entry in our_entries.items():
            if not name.startswith(OWN_PREFIX):
                assert entry == their_entries[name]


def test_features_are_updated_as_in_kafka(kafka: Kafka) -> None:
    for updates, message in FEATURE_CASES:
        response = kafka.ask("UpdateFeatures", 2, request_of(updates, is_trial=True))
        code = 95 if message else 0
        assert (response["error_code"], response["error_message"]) == (code, message), updates
