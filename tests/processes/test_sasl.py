"""Clients that authenticate, and such that can't, with a broker of processes."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from joserfc import jws
from joserfc.jwk import ECKey
from kafka import KafkaConsumer

from shmbroker import clock
from shmbroker.testing.broker import Broker
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

try:
    from kafka.net.sasl.oauth import AbstractTokenProvider
except ImportError:  # before kafka-python 3
    from kafka.sasl.oauth import AbstractTokenProvider

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
WAIT_S = 30
ISSUER = ECKey.generate_key("P-256", {"kid": "one"})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    secrets = tmp_path_factory.mktemp("secrets") / "users.properties"
    secrets.write_text('bob=bob secret; "quoted"\n')
    jwks = secrets.with_name("jwks.json")
    jwks.write_text(json.dumps({"keys": [ISSUER.as_dict(private=False)]}))
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:{port1},SASL://127.0.0.1:{port2}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": (
            "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} user_alice="alice-secret" user_bob="${{file:{secrets}:bob}}";'
        ),
        "connection.failed.authentication.delay.ms": "10",
        "group.initial.rebalance.delay.ms": "0",
    }
    words = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
    with Broker(*words) as broker:
        yield broker


def command(broker: Broker, *words: str, password: str = "") -> subprocess.CompletedProcess[str]:
    """`shmbroker user`, over the control socket."""
    return subprocess.run(
        [sys.executable, "-m", "shmbroker", "user", *words, "--data", str(broker.data)],
        input=password + "\n",
        text=True,
        capture_output=True,
        timeout=WAIT_S,
    )


def said(ran: subprocess.CompletedProcess[str]) -> str:
    assert ran.returncode == 0, ran.stderr
    return (ran.stdout + ran.stderr).strip().removeprefix("shmbroker: ")


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


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_is_added_over_the_control_socket_and_authenticates(
    broker: Broker, mechanism: str
) -> None:
    user = f"carol-{mechanism}"
    assert said(command(broker, "add", user, password="carol's")) == f"added {user}"
    producer = Producer(settings(broker, user, "carol's", mechanism))
    producer.produce("scram", b"hello")
    assert producer.flush(WAIT_S) == 0
    consumer = KafkaConsumer(
        "scram",
        bootstrap_servers=address(broker),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password="carol's",
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
    )
    assert next(consumer).value == b"hello"
    consumer.close()

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address(broker),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password="carol's",
        )
        await producer.start()
        try:
            await producer.send_and_wait("scram", b"hello")
        finally:
            await producer.stop()

    asyncio.run(produce())


def test_users_are_listed_changed_and_removed(broker: Broker) -> None:
    words = ["add", "dave", "--mechanism", "scram-sha-512", "--iterations", "4096"]
    said(command(broker, *words, password="first"))
    again = command(broker, "add", "dave", password="other")
    assert again.returncode == 1 and "dave is there already" in again.stderr
    rows = json.loads(said(command(broker, "list", "--json")))
    assert {"user": "dave", "mechanism": "SCRAM-SHA-512", "iterations": 4096} in rows
    said(command(broker, "set-password", "dave", password="second"))
    assert errors_of(broker, "dave", "first", "SCRAM-SHA-512")
    assert not errors_of(broker, "dave", "second", "SCRAM-SHA-512")
    assert said(command(broker, "remove", "dave")) == "removed dave"
    assert errors_of(broker, "dave", "second", "SCRAM-SHA-512")
    gone = command(broker, "remove", "dave")
    assert gone.returncode == 1 and "there is no user dave" in gone.stderr


def errors_of(broker: Broker, user: str, password: str, mechanism: str) -> list[KafkaError]:
    """What a client is told that wants the topics; nothing if it gets them."""
    errors: list[KafkaError] = []
    producer = Producer(
        settings(broker, user, password, mechanism)
        | {"error_cb": errors.append, "reconnect.backoff.ms": "10000"},
        logger=logging.getLogger("librdkafka"),
    )
    producer.produce("others", b"x")

    def is_told() -> bool:
        producer.poll(0.1)
        return bool(errors) or not len(producer)

    wait_until(is_told, "an error or the record's answer", WAIT_S)
    return errors


def wait_for_error(producer: Producer, errors: list[KafkaError]) -> None:
    """Until librdkafka has one for its `error_cb`, which it calls in polls."""

    def is_told() -> bool:
        producer.poll(0.1)
        return bool(errors)

    wait_until(is_told, "an error", WAIT_S)


def test_users_last_as_long_as_the_directory(broker: Broker) -> None:
    said(command(broker, "add", "erin", password="erin's"))
    broker.stop()
    broker.start()
    assert not errors_of(broker, "erin", "erin's", "SCRAM-SHA-256")


def test_a_password_comes_from_a_file_or_a_variable(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("in a file\n")
    said(command(broker, "add", "fay", "--password-file", str(tmp_path / "password")))
    assert not errors_of(broker, "fay", "in a file", "SCRAM-SHA-256")
    both = command(broker, "add", "gus", "--password-file", "x", "--password-env", "Y")
    assert both.returncode == 2
    none = command(broker, "add", "gus", "--password-env", "NOT_SET_AT_ALL")
    assert none.returncode == 1 and "no password in $NOT_SET_AT_ALL" in none.stderr
    assert command(broker, "add", "gus").returncode == 1


def token(audience: str = "kafka", lasts_s: int = 600) -> tuple[str, float]:
    """A token of grace's, and when it expires."""
    now_s = clock.now_ms() // 1000
    claims = {"sub": "grace", "iat": now_s, "exp": now_s + lasts_s, "aud": audience}
    header = {"alg": "ES256", "kid": "one"}
    signed = jws.serialize_compact(header, json.dumps(claims).encode(), ISSUER)
    return signed, now_s + lasts_s


def bearer(broker: Broker, *of: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": address(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _config: token(*of),
    }


def test_who_has_a_signed_token_authenticates(broker: Broker) -> None:
    producer = Producer(bearer(broker))
    producer.produce("bearer", b"hello")
    assert producer.flush(WAIT_S) == 0

    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return token()[0]

    consumer = KafkaConsumer(
        "bearer",
        bootstrap_servers=address(broker),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(),
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
    )
    assert next(consumer).value == b"hello"
    consumer.close()


def test_a_token_for_another_audience_is_refused(broker: Broker) -> None:
    errors: list[KafkaError] = []
    producer = Producer(
        bearer(broker, "other") | {"error_cb": errors.append, "reconnect.backoff.ms": "10000"},
        logger=logging.getLogger("librdkafka"),
    )
    wait_for_error(producer, errors)
    assert "invalid_token" in errors[0].str()
    assert "a token is invalid: it is for another audience" in broker.log


def test_a_connection_lasts_as_long_as_its_token(broker: Broker) -> None:
    signed, _ = token(lasts_s=1)
    with RawClient(address(broker)) as client:
        client.ask("SaslHandshake", 1, {"mechanism": "OAUTHBEARER"})
        message = f"n,,\1auth=Bearer {signed}\1\1".encode()
        answer = client.ask("SaslAuthenticate", 2, {"auth_bytes": message})
        assert 0 <= answer["session_lifetime_ms"] <= 1000

        def is_closed() -> bool:
            try:
                client.ask("Metadata", 12, {"topics": []})
            except ConnectionError:
                return True
            return False

        wait_until(is_closed, "the end of the connection", WAIT_S)


def test_a_wrong_password_is_said_to_the_client_and_in_the_log(broker: Broker) -> None:
    errors: list[KafkaError] = []
    producer = Producer(
        settings(broker, "alice", "wrong")
        | {"error_cb": errors.append, "reconnect.backoff.ms": "10000"},
        logger=logging.getLogger("librdkafka"),
    )
    wait_for_error(producer, errors)
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


def test_a_quota_is_of_the_user_who_has_shown_who_it_is(broker: Broker) -> None:
    def change(value: float) -> None:
        op = {"key": "producer_byte_rate", "value": value, "remove": not value}
        entity = [{"entity_type": "user", "entity_name": "alice"}]
        body = {"entries": [{"entity": entity, "ops": [op]}], "validate_only": False}
        with RawClient(broker.address) as admin:
            [entry] = admin.ask("AlterClientQuotas", 1, body)["entries"]
            assert entry["error_code"] == 0

    def throttled(user: str, password: str) -> list[float]:
        """How long a producer was told to wait, by a connection from before the quota."""
        times: list[float] = []
        own = {"client.id": "same", "linger.ms": "0", "batch.num.messages": "1"}
        producer = Producer(
            settings(broker, user, password)
            | own
            | {"throttle_cb": lambda event: times.append(event.throttle_time)}
        )
        producer.produce("limited", b"first")
        assert producer.flush(WAIT_S) == 0
        change(20_000.0)
        for _ in range(7):
            producer.produce("limited", b"x" * 35_000)
        assert producer.flush(WAIT_S) == 0
        producer.poll(0)
        change(0.0)
        return [time for time in times if time]

    assert throttled("alice", "alice-secret")
    assert not throttled("bob", 'bob secret; "quoted"')
