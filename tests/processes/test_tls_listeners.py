"""Listeners with TLS: real clients, versions and ciphers, certificates that change under load."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from shmbroker.cli.doctor.gather_cluster import certificates
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import NONE, TOPIC_AUTHORIZATION_FAILED
from tests.support.acknowledged_load import batch_now
from tests.support.certificates import Authority, Signed
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

AUTHORITY = Authority()
SSL, MUTUAL, LOGIN = 1, 2, 3
"""Listeners of `broker`."""


class TlsClient(RawClient):
    """A raw client over TLS."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        super().__init__(address)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")


class Place:
    """A directory with certificates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = path / "server.pem"
        self.shown = AUTHORITY.sign("CN=localhost")
        self.shown.written(self.server)
        self.trust = path / "ca.pem"
        self.trust.write_text(AUTHORITY.pem)

    def client(self, subject: str) -> Path:
        name = subject.partition(",")[0].partition("=")[2]
        return AUTHORITY.sign(subject).written(self.path / f"{name}.pem")

    def context(self, shown: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.trust))
        if shown is not None:
            context.load_cert_chain(shown)
        return context

    def flags(self, listeners: str, **settings: str) -> list[str]:
        given = {
            "listeners": listeners,
            "ssl.keystore.location": str(self.server),
            "ssl.truststore.location": str(self.trust),
        } | {name.replace("__", "."): text for name, text in settings.items()}
        return [word for pair in given.items() for word in ("--set", "=".join(pair))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def broker(place: Place) -> Iterator[Broker]:
    flags = place.flags(
        "PLAINTEXT://127.0.0.1:{port1},SSL://127.0.0.1:{port2},MUTUAL://127.0.0.1:{port3},"
        "LOGIN://127.0.0.1:{port4}",
        listener__security__protocol__map="PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL,LOGIN:SASL_SSL",
        listener__name__login__sasl__enabled__mechanisms="PLAIN",
        listener__name__login__plain__sasl__jaas__config=(
            "org.apache.kafka.common.security.plain.PlainLoginModule required user_carol=secret;"
        ),
        ssl__client__auth="requested",
        listener__name__mutual__ssl__client__auth="required",
        listener__name__mutual__ssl__principal__mapping__rules="RULE:^CN=([a-z]+),.*$/$1/U",
        authorizer__class__name=STANDARD_AUTHORIZER,
        super__users="User:ANONYMOUS",
    )
    with Broker(*flags) as broker:
        yield broker


def at(broker: Broker, listener: int) -> str:
    return f"127.0.0.1:{broker.port_of_listener(listener)}"


def s_client(broker: Broker, place: Place, *options: str, said: str = "") -> str:
    """What openssl says to a connection."""
    ran = subprocess.run(
        ["openssl", "s_client", "-connect", at(broker, SSL), "-CAfile", place.trust, *options],
        input=said.encode(), capture_output=True, timeout=30,
    )  # fmt: skip
    return (ran.stdout + ran.stderr).decode(errors="replace")


def allow(broker: Broker, principal: str, topic: str) -> None:
    command = ["acl", "add", "--allow", principal, "--operation", "write", "--topic", topic]
    ran = subprocess.run(
        [sys.executable, "-m", "shmbroker", *command, "-b", at(broker, 0)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


ANYTHING = ("-cipher", "ALL:@SECLEVEL=0")


def test_versions_and_ciphers_as_seen_from_outside(broker: Broker, place: Place) -> None:
    for version in ("-tls1", "-tls1_1"):
        said = s_client(broker, place, version, *ANYTHING)
        assert "protocol version" in said, said
    said = s_client(broker, place, "-tls1_2", "-cipher", "eNULL:aNULL:kRSA:@SECLEVEL=0")
    assert "handshake failure" in said and "Cipher is (NONE)" in said
    modern = s_client(broker, place, "-tls1_3")
    assert "TLSv1.3, Cipher is TLS_AES_256_GCM_SHA384" in modern
    assert "Verify return code: 0 (ok)" in modern
    assert "New Session Ticket" not in modern and "Compression: NONE" in modern
    older = s_client(broker, place, "-tls1_2")
    assert "Cipher is ECDHE-ECDSA-AES256-GCM-SHA384" in older
    assert "TLS session ticket" not in older and "Verify return code: 0 (ok)" in older
    keyed = s_client(broker, place, "-tls1_3", said="K\n" * 50)
    assert "KEYUPDATE" in keyed and "closed" not in keyed
    assert "no renegotiation" in s_client(broker, place, "-tls1_2", said="R\n")


def test_confluent_kafka_writes_and_reads_large_records(broker: Broker, place: Place) -> None:
    shared = {
        "bootstrap.servers": at(broker, SSL),
        "security.protocol": "SSL",
        "ssl.ca.location": str(place.trust),
    }
    values = [os.urandom(900_000) for _ in range(12)] + [b"small"] * 1000
    producer = Producer(shared | {"message.max.bytes": 1_000_000})
    for value in values:
        producer.produce("large", value)
    assert producer.flush(60) == 0
    consumer = Consumer(
        shared
        | {
            "group.id": "large",
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 16_000_000,
        }
    )
    consumer.subscribe(["large"])
    got: list[bytes | None] = []
    while len(got) < len(values):
        for message in consumer.consume(100, 0.5):
            assert message.error() is None
            got.append(message.value())
    consumer.close()
    assert got == values


def test_kafka_python_writes_and_reads(broker: Broker, place: Place) -> None:
    shared: dict[str, Any] = {
        "bootstrap_servers": at(broker, SSL),
        "security_protocol": "SSL",
        "ssl_cafile": str(place.trust),
        "ssl_check_hostname": False,
    }
    producer = KafkaProducer(**shared)
    for number in range(100):
        producer.send("python", b"%d" % number * 1000)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        "python", auto_offset_reset="earliest", consumer_timeout_ms=20_000, **shared
    )
    got = [next(consumer).value for _ in range(100)]
    consumer.close()
    assert got == [b"%d" % number * 1000 for number in range(100)]


def test_a_certificate_is_a_principal(broker: Broker, place: Place) -> None:
    with RawClient(at(broker, 0)) as everybody:
        for topic in ("alices", "bobs"):
            everybody.create_topic(topic)
    for topic, principal in (("alices", "User:CN=alice,O=Acme\\, Inc.,C=DE"), ("bobs", "User:BOB")):
        allow(broker, principal, topic)
    alice = place.context(place.client("CN=alice,O=Acme\\, Inc.,C=DE"))
    bob = place.context(place.client("CN=bob,O=Acme"))
    refused = TOPIC_AUTHORIZATION_FAILED

    def written(listener: int, context: ssl.SSLContext) -> list[int]:
        with TlsClient(at(broker, listener), context) as client:
            topics = ("alices", "bobs")
            return [client.produce(topic, batch_now(b"x"))["error_code"] for topic in topics]

    assert written(SSL, alice) == [NONE, refused]
    assert written(SSL, bob) == [refused, refused]
    assert written(MUTUAL, bob) == [refused, NONE]
    assert written(SSL, place.context()) == [NONE, NONE]  # a super user: nobody in particular


def test_a_password_travels_under_tls(broker: Broker, place: Place) -> None:
    """With SASL the certificate says nothing about who comes."""
    shared = {
        "bootstrap.servers": at(broker, LOGIN),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "carol",
        "sasl.password": "secret",
        "ssl.ca.location": str(place.trust),
        "ssl.certificate.location": str(place.client("CN=alice,O=Acme")),
        "ssl.key.location": str(place.client("CN=alice,O=Acme")),
    }
    with RawClient(at(broker, 0)) as everybody:
        everybody.create_topic("carols")
    allow(broker, "User:carol", "carols")
    outcomes: list[object] = []
    producer = Producer(shared)
    producer.produce("carols", b"x", on_delivery=lambda error, _message: outcomes.append(error))
    assert producer.flush(30) == 0
    assert outcomes == [None]


def test_who_shows_no_certificate_or_a_strange_one_stays_outside(
    broker: Broker, place: Place
) -> None:
    stranger = Authority("stranger").sign("CN=bob,O=x").written(place.path / "stranger.pem")
    for shown, words in (
        (None, "its TLS handshake failed: peer did not return a certificate"),
        (stranger, "its TLS handshake failed: its certificate is not accepted: "),
        (place.client("CN=Bob,O=Acme"), "no rule of ssl.principal.mapping.rules fits 'CN=Bob,O=Ac"),
    ):
        with (
            pytest.raises(OSError),
            TlsClient(at(broker, MUTUAL), place.context(shown)) as client,
        ):
            client.ask("ApiVersions", 0, {})
        wait_until(lambda words=words: words in broker.log, words)


def test_who_speaks_something_else_is_told_in_the_log(broker: Broker, place: Place) -> None:
    with RawClient(at(broker, SSL)) as client:
        client.send("ApiVersions", 0, {})
        assert client.socket.recv(100)[:1] in (b"", b"\x15")  # nothing, or an alert
    with pytest.raises(OSError):
        TlsClient(at(broker, 0), place.context())
    for words in (
        "it speaks Kafka without TLS, but listener SSL with it: the client needs "
        "security.protocol=SSL",
        "it speaks TLS, but this listener does not",
    ):
        wait_until(lambda words=words: words in broker.log, words)


def test_many_connections_and_silent_ones(broker: Broker, place: Place) -> None:
    host, port = at(broker, SSL).split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(100)]
    for one in silent[:50]:
        one.send(b"\x16\x03\x01")
    context = place.context()
    clients = [TlsClient(at(broker, SSL), context) for _ in range(150)]
    for client in clients:
        assert client.ask("ApiVersions", 0, {})["error_code"] == NONE
    for each in (*silent, *clients):
        each.close()


def certificate_at(address: str, place: Place) -> bytes:
    with TlsClient(address, place.context()) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.ask("ApiVersions", 0, {})["error_code"] == NONE
        shown = client.socket.getpeercert(True)
        assert shown is not None
        return shown


def test_certificates_change_under_load_and_nobody_notices(tmp_path: Path) -> None:
    place = Place(tmp_path)
    flags = place.flags("PLAINTEXT://127.0.0.1:{port1},SSL://127.0.0.1:{port2}")
    with Broker(*flags, "--network-workers", "2") as broker:
        address = at(broker, SSL)
        topic = "under-load"
        clients = [TlsClient(address, place.context()) for _ in range(4)]
        clients[0].create_topic(topic)
        is_over = threading.Event()
        failures: list[BaseException] = []
        written = [0] * len(clients)

        def write(which: int) -> None:
            try:
                while not is_over.is_set():
                    answer = clients[which].produce(topic, batch_now(b"x" * 50_000))
                    assert answer["error_code"] == NONE
                    written[which] += 1
                    is_over.wait(0.01)
            except BaseException as failure:
                failures.append(failure)

        writers = [threading.Thread(target=write, args=(n,)) for n in range(len(clients))]
        for writer in writers:
            writer.start()

        def serves(signed: Signed) -> bool:
            return all(certificate_at(address, place) == signed.der for _ in range(6))

        assert serves(place.shown)
        new = AUTHORITY.sign("CN=localhost,O=new")
        new.written(place.server)
        wait_until(lambda: serves(new), "the new certificate", between=0.1)

        # What can't be used is said once, by whichever way it is found.
        place.server.write_text(new.key_pem())
        wait_until(lambda: "stay as they are" in broker.log, "the refusal")
        assert serves(new)
        line = "there is no certificate in"
        assert broker.log.count(line) == 1
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "the settings stay as they are: " in broker.log, "the second refusal")
        assert broker.log.count(line) == 2

        last = AUTHORITY.sign("CN=localhost,O=last")
        last.written(place.server)
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: serves(last), "the last certificate", between=0.1)
        before = list(written)
        wait_until(lambda: all(n > b for n, b in zip(written, before, strict=True)), "more writes")
        is_over.set()
        for writer in writers:
            writer.join()
        assert failures == []
        for client in clients:
            client.close()
        # A successor begins with what is there now.
        os.kill(broker.children()["network-worker-1"], signal.SIGKILL)
        wait_until(lambda: "starting another" in broker.log, "its end")
        wait_until(lambda: serves(last), "its successor", between=0.1)


def test_a_start_without_a_key_is_refused_in_one_sentence(tmp_path: Path) -> None:
    command = ["serve", "--data", str(tmp_path), "--set", "listeners=SSL://127.0.0.1:0"]
    ran = subprocess.run(
        [sys.executable, "-m", "shmbroker", *command], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode != 0
    assert "listener SSL: TLS needs a key and its certificate: set ssl.keystore.location" in (
        ran.stderr
    )
    assert "Traceback" not in ran.stderr


def test_the_doctor_knows_when_certificates_end(broker: Broker) -> None:
    plain, tls, mutual = (at(broker, listener) for listener in (0, SSL, MUTUAL))
    now_ms = int(datetime.now(UTC).timestamp() * 1000)

    def days(told: str, protocols: str) -> dict[str, int | None]:
        found = certificates(told, protocols, "127.0.0.1", now_ms)
        return {name: left and round(left) for name, left in found.items()}

    told = f"PLAIN://{plain},A://{tls},B://{mutual}"
    assert days(told, "PLAIN:PLAINTEXT,A:SSL,B:SASL_SSL") == {"A": 30, "B": 30}
    assert days(f"A://{plain}", "A:SSL") == {"A": None}
    assert days("", "") == {}
