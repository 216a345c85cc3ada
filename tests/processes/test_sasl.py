"""Clients that authenticate, and such that can't, with a broker of processes."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from shmbroker import clock
from shmbroker.testing.broker import Broker

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
WAIT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    secrets = tmp_path_factory.mktemp("secrets") / "users.properties"
    secrets.write_text('bob=bob secret; "quoted"\n')
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:{port1},SASL://127.0.0.1:{port2}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} user_alice="alice-secret" user_bob="${{file:{secrets}:bob}}";'
        ),
        "connection.failed.authentication.delay.ms": "10",
        "group.initial.rebalance.delay.ms": "0",
    }
    words = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
    with Broker(*words) as broker:
        yield broker


def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port_of_listener(1)}"


def settings(broker: Broker, user: str, password: str, mechanism: str = "PLAIN") -> dict[str, str]:
    return {
        "bootstrap.servers": address(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def test_confluent_kafka_writes_what_kafka_python_reads(broker: Broker) -> None:
    producer = Producer(settings(broker, "bob", 'bob secret; "quoted"'))
    producer.produce("confluent", b"hello")
    assert producer.flush(WAIT_S) == 0
    consumer = KafkaConsumer(
        "confluent",
        bootstrap_servers=address(broker),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="alice",
        sasl_plain_password="alice-secret",
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
    )
    assert next(consumer).value == b"hello"
    consumer.close()


def test_aiokafka_writes_what_confluent_kafka_reads(broker: Broker) -> None:
    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address(broker),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password="alice-secret",
        )
        await producer.start()
        try:
            await producer.send_and_wait("aio", b"hello")
        finally:
            await producer.stop()

    asyncio.run(produce())
    consumer = Consumer(
        settings(broker, "alice", "alice-secret")
        | {"group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["aio"])
    message = consumer.poll(WAIT_S)
    consumer.close()
    assert message is not None and message.value() == b"hello"


def test_a_wrong_password_is_said_to_the_client_and_in_the_log(broker: Broker) -> None:
    errors: list[KafkaError] = []
    producer = Producer(
        settings(broker, "alice", "wrong")
        | {"error_cb": errors.append, "reconnect.backoff.ms": "10000"},
        logger=logging.getLogger("librdkafka"),
    )
    deadline = clock.monotonic() + WAIT_S
    while not errors and clock.monotonic() < deadline:
        producer.poll(1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "Authentication failed: Invalid username or password" in errors[0].str()
    assert "did not authenticate 127.0.0.1" in broker.log
    assert "on listener SASL: PLAIN: an unknown user, or a wrong password" in broker.log


def test_passwords_are_nowhere(broker: Broker) -> None:
    assert "secret" not in broker.log.replace("/secrets", "")
    from confluent_kafka.admin import ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.port_of_listener(0)}"})
    resource = ConfigResource(ResourceType.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(WAIT_S)
    found = entries["listener.name.sasl.plain.sasl.jaas.config"]
    assert found.value is None and found.is_sensitive
    assert not any("alice-secret" in str(entry.value) for entry in entries.values())
