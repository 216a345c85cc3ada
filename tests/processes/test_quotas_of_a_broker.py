"""Quotas on a real broker: set by the command and by clients, kept over a start, obeyed by each
network worker for all, with the times that Kafka tells.

KAFKA_ORACLE=host:port names an Apache Kafka 4.2.1 to compare with.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker import clock
from shmbroker.shm.quota_counts import Used
from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import (
    NONE,
    THROTTLING_QUOTA_EXCEEDED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient, fetch_body, produce_body

TWO_WORKERS = ("--set", "shmbroker.network.workers=2")
RECORDS = batch_now(b"v" * 2330)
REQUEST_BYTES = len(RECORDS) + 34
"""Of a Produce of RECORDS to a topic with a short name, by a client with a short id."""
RATE = 1000.0


def quota(*arguments: str, address: str) -> str:
    command = [sys.executable, "-m", "shmbroker", "quota", *arguments, "-b", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(*TWO_WORKERS) as made:
        yield made


def alter(
    client: RawClient, entity: dict[str, str | None], key: str, value: float | None
) -> dict[str, Any]:
    rows = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    op = {"key": key, "value": value or 0.0, "remove": value is None}
    body = {"entries": [{"entity": rows, "ops": [op]}], "validate_only": False}
    [entry] = client.ask("AlterClientQuotas", 1, body)["entries"]
    assert entry["error_code"] == 0, entry
    return entry


def produce_times(address: str, topic: str, client_id: str, clients: int, count: int) -> list[int]:
    """The throttle times of Produce requests, by connections in turn."""
    made = [RawClient(address, 60) for _ in range(clients)]
    body = produce_body(topic, RECORDS, 0, 1)
    times = [
        made[n % clients].ask("Produce", 9, body, client_id=client_id)["throttle_time_ms"]
        for n in range(count)
    ]
    for client in made:
        client.close()
    return times


def test_the_command_sets_lists_and_removes(broker: Broker) -> None:
    address = broker.address
    quota("set", "--user", "alice", "--default-client-id", "producer_byte_rate=1048576",
          "request_percentage=0.5", address=address)  # fmt: skip
    quota("set", "--ip", "198.51.100.7", "connection_creation_rate=9", address=address)
    listed = json.loads(quota("list", "--user", "alice", "--json", address=address))
    assert listed == [
        {"user": "alice", "client-id": None, "quota": key, "value": value}
        for key, value in (("producer_byte_rate", 1048576.0), ("request_percentage", 0.5))
    ]
    table = quota("list", address=address).splitlines()
    assert [row.split() for row in table if "alice" in row] == [
        ["alice", "<default>", "producer_byte_rate", "1048576"],
        ["alice", "<default>", "request_percentage", "0.5"],
    ]
    quota("remove", "--user", "alice", "--default-client-id", "request_percentage", address=address)
    assert "request_percentage" not in quota("list", address=address)
    quota("remove", "--user", "alice", "--default-client-id", address=address)
    quota("remove", "--ip", "198.51.100.7", address=address)
    assert json.loads(quota("list", "--json", address=address)) == []


def test_what_the_cluster_refuses_is_said_in_its_words(broker: Broker) -> None:
    command = [sys.executable, "-m", "shmbroker", "quota", "set", "--ip", "198.51.100.7",
               "producer_byte_rate=1", "-b", broker.address]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Invalid configuration key producer_byte_rate" in done.stderr


@pytest.mark.parametrize("clients", [1, 6])
def test_produce_is_told_kafkas_times_by_whichever_worker(broker: Broker, clients: int) -> None:
    name = f"p{clients}"
    with RawClient(broker.address) as admin:
        admin.create_topic(name)
        alter(admin, {"client-id": name}, "producer_byte_rate", RATE)
        began = clock.monotonic()
        times = produce_times(broker.address, name, name, clients, 6)
        took_ms = 1000 * (clock.monotonic() - began)
        alter(admin, {"client-id": name}, "producer_byte_rate", None)
    first = next(n for n, time in enumerate(times) if time)
    assert first == 10_000 // REQUEST_BYTES, "the fifth is the first that is too much"
    at_once = Used((first + 1) * REQUEST_BYTES, 10_000).throttle_ms(RATE)
    assert at_once - 1000 < times[first] <= at_once, "less by what a window has gone on"
    assert times[first + 1] > times[first]
    if clients == 1:
        assert took_ms >= times[first], "the next one was not read before"


def test_fetch_over_its_rate_gets_nothing_until_its_time_is_over(broker: Broker) -> None:
    with RawClient(broker.address) as admin:
        admin.create_topic("f")
        for _ in range(5):
            admin.produce("f", RECORDS)
        alter(admin, {"client-id": "f"}, "consumer_byte_rate", RATE)
        with RawClient(broker.address, 60) as client:
            body = fetch_body("f", 0, 0, 0) | {"max_bytes": 1 << 20}
            first = client.ask("Fetch", 12, body, client_id="f")
            records = first["responses"][0]["partitions"][0]["records"]
            assert len(records) == 4 * len(RECORDS), "no more than ten seconds' worth"
            over = client.ask("Fetch", 12, body, client_id="f")
            assert over["responses"] == []
            assert 5_000 < over["throttle_time_ms"] < 11_000
        alter(admin, {"client-id": "f"}, "consumer_byte_rate", None)


def test_a_producer_of_librdkafka_is_told(broker: Broker) -> None:
    from confluent_kafka import Producer

    events: list[Any] = []
    with RawClient(broker.address) as admin:
        admin.create_topic("c")
        alter(admin, {"user": "ANONYMOUS", "client-id": "c"}, "producer_byte_rate", 20_000.0)
        producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "client.id": "c",
                "linger.ms": 0,
                "batch.num.messages": 1,
                "throttle_cb": events.append,
            }
        )
        for _ in range(6):
            producer.produce("c", b"x" * 38_000)
        assert producer.flush(30) == 0
        producer.poll(0)
        alter(admin, {"user": "ANONYMOUS", "client-id": "c"}, "producer_byte_rate", None)
    assert events
    assert events[-1].throttle_time > 0.05


def test_an_address_that_connects_too_often_has_to_wait(broker: Broker) -> None:
    with RawClient(broker.address) as admin:
        alter(admin, {"ip": "127.0.0.1"}, "connection_creation_rate", 1.0)
        outcomes: list[bool] = []
        for _ in range(14):  # ten seconds' worth are allowed at once
            with RawClient(broker.address) as client:
                try:
                    client.ask("ApiVersions", 0, {})
                    outcomes.append(True)
                except ConnectionError:
                    outcomes.append(False)
        alter(admin, {"ip": "127.0.0.1"}, "connection_creation_rate", None)
    assert outcomes[:8] == [True] * 8
    assert not all(outcomes)


def test_quotas_are_kept_over_a_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data=data) as broker:
        quota("set", "--default-user", "consumer_byte_rate=5", address=broker.address)
    with Broker(data=data) as broker:
        listed = json.loads(quota("list", "--json", address=broker.address))
        assert listed == [{"user": None, "quota": "consumer_byte_rate", "value": 5.0}]


@pytest.mark.oracle
@pytest.mark.skipif("KAFKA_ORACLE" not in os.environ, reason="no Apache Kafka to compare with")
def test_kafka_tells_the_same_times(broker: Broker) -> None:
    found = []
    for address in (os.environ["KAFKA_ORACLE"], broker.address):
        name = f"t{os.getpid()}"
        with RawClient(address) as admin:
            admin.create_topic(name)
            alter(admin, {"client-id": name}, "producer_byte_rate", RATE)
            while True:  # Kafka's broker learns of both a moment later
                body = {"components": [], "strict": False}
                told = admin.ask("DescribeClientQuotas", 1, body)["entries"]
                row = admin.produce(name, RECORDS)
                if not row["error_code"] and any(name in str(entry) for entry in told):
                    break
            found.append(produce_times(address, name, name, 1, 7))
            alter(admin, {"client-id": name}, "producer_byte_rate", None)
    theirs, ours = found
    assert [time > 0 for time in theirs] == [time > 0 for time in ours]
    assert ours == pytest.approx(theirs, rel=0.2, abs=200)


def test_partitions_are_counted_by_the_controller_and_its_client_is_muted(broker: Broker) -> None:
    with RawClient(broker.address) as admin, RawClient(broker.address, 30) as client:
        alter(admin, {"client-id": "m"}, "controller_mutation_rate", 1.0)

        def create(name: str, partitions: int) -> tuple[int, int]:
            row = {"name": name, "num_partitions": partitions, "replication_factor": -1}
            body = {"topics": [row], "timeout_ms": 10_000}
            answer = client.ask("CreateTopics", 7, body, client_id="m")
            return answer["topics"][0]["error_code"], answer["throttle_time_ms"]

        assert create("m1", 13) == (NONE, 0)
        error, throttle_ms = create("m2", 1)
        assert error == THROTTLING_QUOTA_EXCEEDED
        assert 0 < throttle_ms <= 2000
        began = clock.monotonic()
        assert create("m2", 1)[0] == NONE
        assert clock.monotonic() - began >= throttle_ms / 1000 - 0.1, "it was not read before"
        alter(admin, {"client-id": "m"}, "controller_mutation_rate", None)


def test_topics_by_use_count_and_no_client_id_opens_a_back_door(broker: Broker) -> None:
    with RawClient(broker.address) as admin:
        alter(admin, {"client-id": "auto-create"}, "controller_mutation_rate", 0.1)

        def used(name: str) -> int:
            body = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
            answer = admin.ask("Metadata", 9, body, client_id="auto-create")
            return int(answer["topics"][0]["error_code"])

        assert used("u1") == NONE
        row = {"name": "u2", "num_partitions": 2, "replication_factor": -1}
        body = {"topics": [row], "timeout_ms": 10_000}
        [created] = admin.ask("CreateTopics", 7, body, client_id="auto-create")["topics"]
        assert (created["error_code"], created["num_partitions"]) == (NONE, 2)
        assert used("u3") == UNKNOWN_TOPIC_OR_PARTITION
        alter(admin, {"client-id": "auto-create"}, "controller_mutation_rate", None)
        assert used("u3") == NONE
