"""What administrators change takes effect in the processes that use it, and outlives a restart."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

BROKER = 4
GROUP = 32
MESSAGE_TOO_LARGE = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    static = (
        "queued.max.requests=5",
        "max.request.partition.size.limit=3",
        "shmbroker.ring.control.bytes=65536",
    )
    with Broker(*(word for one in static for word in ("--set", one))) as broker:
        yield broker


def change(client: RawClient, kind: int, name: str, key: str, value: str | None) -> None:
    """Set one setting, or take it away."""
    config = {"name": key, "config_operation": int(value is None), "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    (answer,) = client.ask("IncrementalAlterConfigs", 1, {"resources": [resource]})["responses"]
    assert answer["error_code"] == 0, answer


def value_of(client: RawClient, kind: int, name: str, key: str) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    (result,) = client.ask("DescribeConfigs", 4, {"resources": [resource]})["results"]
    return result["configs"][0]["value"]


def features(client: RawClient) -> tuple[int, dict[str, int]]:
    """Epoch and finalised levels."""
    body = {"client_software_name": "test", "client_software_version": "1"}
    answer = client.ask("ApiVersions", 4, body)
    levels = {row["name"]: row["max_version_level"] for row in answer["finalized_features"]}
    return answer["finalized_features_epoch"], levels


def update(client: RawClient, name: str, level: int, upgrade_type: int) -> None:
    row = {"feature": name, "max_version_level": level, "upgrade_type": upgrade_type}
    answer = client.ask("UpdateFeatures", 2, {"feature_updates": [row], "timeout_ms": 10_000})
    assert answer["error_code"] == 0, answer


@pytest.mark.parametrize("name", ["", "1"], ids=["all brokers", "one broker"])
def test_topics_follow_the_brokers_setting(broker: Broker, name: str) -> None:
    topic = f"follows-{name}"
    large = batch_now(b"x" * 2000)
    with RawClient(broker.address) as client:
        client.create_topic(topic)
        assert client.produce(topic, large)["error_code"] == 0
        change(client, BROKER, name, "message.max.bytes", "1000")
        # The answer comes when every broker has applied it.
        assert client.produce(topic, large)["error_code"] == MESSAGE_TOO_LARGE
        change(client, BROKER, name, "message.max.bytes", None)
        assert client.produce(topic, large)["error_code"] == 0


def test_pages_of_partitions_are_as_long_as_was_set(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        client.create_topic("pages", 5)
        body = {"topics": [{"name": "pages"}], "response_partition_limit": 9, "cursor": None}
        answer = client.ask("DescribeTopicPartitions", 0, body)
    assert len(answer["topics"][0]["partitions"]) == 3
    assert answer["next_cursor"] == {"topic_name": "pages", "partition_index": 3}


def test_a_request_that_is_larger_than_the_ring_to_the_controller(broker: Broker) -> None:
    names = [f"{which:04}-" + "n" * 240 for which in range(500)]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    body = {"topics": topics, "timeout_ms": 10_000, "validate_only": True}
    with RawClient(broker.address) as client:
        rows = client.ask("CreateTopics", 7, body)["topics"]
    assert [(row["name"], row["error_code"]) for row in rows] == [(name, 0) for name in names]


def test_connections_of_all_workers_are_bounded_from_now_on(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        change(client, BROKER, "", "max.connections", "3")
        wait_until(lambda: served(broker.address, 6) == 2, "2 connections that are served")
        change(client, BROKER, "", "max.connections", None)
        wait_until(lambda: served(broker.address, 6) == 6, "6 connections that are served")


def test_connections_of_one_address_are_bounded_from_now_on(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        change(client, BROKER, "", "max.connections.per.ip", "3")
        wait_until(lambda: served(broker.address, 6) == 2, "2 connections that are served")
        change(client, BROKER, "", "max.connections.per.ip.overrides", "127.0.0.1:5")
        wait_until(lambda: served(broker.address, 6) == 4, "4 connections that are served")
        change(client, BROKER, "", "max.connections.per.ip.overrides", None)
        change(client, BROKER, "", "max.connections.per.ip", None)
        wait_until(lambda: served(broker.address, 6) == 6, "6 connections that are served")
    told = "at once: max.connections.per.ip is 3 for 127.0.0.1"
    wait_until(lambda: any(told in line for line in broker.lines), "the log line")


def test_what_has_no_effect_is_said_in_the_log(broker: Broker) -> None:
    def is_told(*words: str) -> bool:
        return any(all(word in line for word in words) for line in broker.lines)

    with RawClient(broker.address) as client:
        client.create_topic("idle", compression_type="zstd")
        change(client, BROKER, "", "log.cleaner.io.buffer.size", "600000")
    wait_until(
        lambda: is_told("compression.type has no effect here", "topic idle"),
        "a line about the topic",
    )
    wait_until(
        lambda: is_told("log.cleaner.io.buffer.size has no effect here", "all brokers"),
        "a line about brokers",
    )
    assert is_told("queued.max.requests has no effect here"), "at start"


def served(address: str, count: int) -> int:
    """How many of so many new connections are answered."""
    found = 0
    with ExitStack() as stack:
        for _ in range(count):
            try:
                features(stack.enter_context(RawClient(address)))
                found += 1
            except ConnectionError:
                pass
    return found


def test_feature_levels_and_settings_outlive_a_restart(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        with RawClient(broker.address) as client:
            before, levels = features(client)
            others = {
                "eligible.leader.replicas.version": 1,
                "metadata.version": 29,
                "transaction.version": 2,
            }
            assert levels == others | {"group.version": 1}
            update(client, "group.version", 0, 2)
            after, levels = features(client)
            assert after > before
            assert levels == others
            change(client, GROUP, "g", "consumer.session.timeout.ms", "50000")
        broker.kill()
        broker.start()
        with RawClient(broker.address) as client:
            assert features(client)[1] == others
            assert value_of(client, GROUP, "g", "consumer.session.timeout.ms") == "50000"
            update(client, "group.version", 1, 1)
            assert features(client)[1]["group.version"] == 1
