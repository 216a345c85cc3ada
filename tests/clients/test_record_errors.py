"""Batches that are refused for single records: what client libraries make of it, and who asks."""

from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import INVALID_RECORD, NONE
from tests.processes.wire_cases_records import batch, record
from tests.support.raw_client import RawClient

BAD = (700, 1234)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker("--set", "shmbroker.validation=records") as broker:
        yield broker


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


def key_of(number: int) -> bytes | None:
    return None if number in BAD else b"key-%d" % number


def test_confluent_is_told_which_records_of_a_packed_batch_have_no_key(
    broker: Broker, client: RawClient
) -> None:
    client.create_topic("confluent", cleanup_policy="compact")
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "compression.type": "gzip",
            "linger.ms": 10_000,
            "log_level": 0,
        }
    )
    told: dict[int, str] = {}
    for number in range(2000):

        def note(error, _message, number=number) -> None:
            told[number] = error and error.name()

        producer.produce("confluent", b"value", key_of(number), on_delivery=note)
    assert producer.flush(60) == 0
    assert [number for number, name in told.items() if name == "INVALID_RECORD"] == list(BAD)
    assert Counter(told.values()) == {"INVALID_RECORD": 2, "_INVALID_DIFFERENT_RECORD": 1998}


def test_kafka_python_is_told_which_records_of_a_packed_batch_have_no_key(
    broker: Broker, client: RawClient
) -> None:
    client.create_topic("kafka-python", cleanup_policy="compact")
    producer = KafkaProducer(
        bootstrap_servers=broker.address,
        compression_type="gzip",
        linger_ms=10_000,
        batch_size=1 << 20,
        retries=0,
    )
    sent = [producer.send("kafka-python", b"value", key=key_of(number)) for number in range(1500)]
    producer.flush(60)
    told = [future.exception for future in sent]
    assert [n for n, error in enumerate(told) if "without key" in str(error)] == list(BAD)
    assert all(told)
    producer.close()


def change(client: RawClient, kind: int, name: str, value: str) -> None:
    entry = {"name": "shmbroker.validation", "config_operation": 0, "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [entry]}
    body = {"resources": [resource], "validate_only": False}
    (row,) = client.ask("IncrementalAlterConfigs", 1, body)["responses"]
    assert row["error_code"] == NONE, row


def test_a_topic_and_a_broker_say_whether_records_are_looked_at(client: RawClient) -> None:
    client.create_topic("asked")
    wrong = batch(record(0), record(0))
    large = batch(*map(record, range(199)), record(0))

    def answers() -> set[int]:
        return {client.produce("asked", data)["error_code"] for data in (wrong, large)}

    assert answers() == {INVALID_RECORD}
    change(client, 4, "", "batch")
    assert answers() == {NONE}
    change(client, 2, "asked", "records")
    assert answers() == {INVALID_RECORD}
    change(client, 4, "1", "records")
    change(client, 2, "asked", "batch")
    assert answers() == {NONE}


def test_a_wrong_largest_timestamp_is_put_right(client: RawClient) -> None:
    client.create_topic("corrected")
    change(client, 2, "corrected", "records")
    data = batch(record(0), record(1, timestamp_delta=5), max_timestamp=1)
    assert client.produce("corrected", data)["error_code"] == NONE
    row = {"partition_index": 0, "timestamp": -3}
    body = {"replica_id": -1, "topics": [{"name": "corrected", "partitions": [row]}]}
    found = client.ask("ListOffsets", 7, body)["topics"][0]["partitions"][0]
    assert (found["timestamp"], found["offset"]) == (1_700_000_000_005, 1)
