"""What is said of an address where no Kafka, or the wrong kind, answers."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmbroker.cli import client, probe
from shmbroker.cli.outcome import CommandFault

WAIT_S = 0.5
ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
"""TLS: fatal, handshake_failure. A server that says so speaks TLS."""

Behaviour = Callable[[bytes], bytes | None]
"""What a server answers to the first bytes that it gets; b"": closes; None: nothing."""


def kafka(got: bytes) -> bytes:
    return b"\0\0\0\x0a" + got[8:12] + bytes(6) if got[:2] == b"\0\0" else b""


def strict_tls(got: bytes) -> bytes:
    return ALERT if got[:1] == b"\x16" else b""


def http_by_lines(got: bytes) -> bytes | None:
    return b"HTTP/1.0 200 OK\r\n\r\n" if b"\n" in got else None


def slow(got: bytes) -> bytes | None:
    return kafka(got) if got[:2] == b"\0\0" else b""


@contextlib.contextmanager
def server(behaviour: Behaviour) -> Iterator[probe.Address]:
    held = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connected = listening.accept()[0]
                except OSError:
                    return
                try:
                    answer = behaviour(connected.recv(4096))
                    if answer is not None:
                        connected.sendall(answer)
                        connected.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                held.append(connected)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connected in held:
                connected.close()


CASES: dict[str, tuple[Behaviour, bool, str | None]] = {
    "kafka": (kafka, False, None),
    "kafka, asked for TLS": (kafka, True, "speaks Kafka without TLS: leave out"),
    "TLS that alerts": (lambda _: ALERT, False, "speaks TLS: add -X security.protocol=SSL"),
    "TLS that closes": (strict_tls, False, "speaks TLS: add -X security.protocol=SSL"),
    "TLS, asked for TLS": (strict_tls, True, None),
    "HTTP": (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "is an HTTP server, not"),
    "HTTP that reads lines": (http_by_lines, False, "is an HTTP server, not"),
    "HTTP, asked for TLS": (lambda _: b"HTTP/1.1 400 Bad", True, "does not speak TLS"),
    "ssh": (lambda _: b"SSH-2.0-x\r\n", False, "answers b'SSH-2.0-', which is not Kafka"),
    "closes": (lambda _: b"", False, "closes the connection when it gets a Kafka request"),
    "closes, asked for TLS": (lambda _: b"", True, "does not speak TLS"),
    "silent": (lambda _: None, False, "accepts connections but gives no Kafka answer"),
    "silent, asked for TLS": (lambda _: None, True, "does not speak TLS (no answer)"),
}


@pytest.mark.parametrize(("behaviour", "is_tls", "said"), CASES.values(), ids=list(CASES))
def test_what_answers_has_a_name(behaviour: Behaviour, is_tls: bool, said: str | None) -> None:
    with server(behaviour) as address:
        refusal = probe.refusal_of(address, is_tls, WAIT_S)
    if said is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.is_reached
        assert said in refusal.text


def test_refused_port() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refusal = probe.refusal_of(unused.getsockname(), is_tls=False)
    assert refusal == probe.ProbeRefusal("connection refused", is_reached=False)


def test_name_that_no_host_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    refusal = probe.refusal_of(("nosuch", 9092), is_tls=False)
    assert refusal == probe.ProbeRefusal("there is no host of that name", is_reached=False)


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_what_can_not_be_a_name_is_no_host(host: str) -> None:
    refusal = probe.refusal_of((host, 9092), is_tls=False)
    assert refusal == probe.ProbeRefusal("there is no host of that name", is_reached=False)


def test_resolver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait(60) and [])
    refusal = probe.refusal_of(("slow", 9092), is_tls=False, wait_s=0.1)
    answers.set()
    assert refusal is not None
    assert refusal.text == "its name is not resolved (no answer within 0 s)"


def test_one_server_of_several_is_enough() -> None:
    with server(kafka) as (host, port), server(lambda _: b"") as (_, other):
        client.TargetCluster(f"{host}:{other},{host}:{port}", {}).check_reachable()
        with pytest.raises(CommandFault, match=f"^{host}:{other} closes the connection"):
            client.TargetCluster(f"{host}:{other},{host}:1", {}).check_reachable()


def test_x_names_the_cluster_too() -> None:
    cluster = client.TargetCluster("a:1", {"bootstrap.servers": "b:2", "acks": "1"})
    assert (cluster.servers, cluster.settings) == ("b:2", {"acks": "1"})


class Library:
    """A client whose every question times out while its log says why."""

    def __init__(self, cluster: client.TargetCluster, error: Any) -> None:
        self.cluster = cluster
        self.error = error
        self.asked_s: list[float] = []

    def list_topics(self, timeout: float) -> None:
        from confluent_kafka import KafkaError, KafkaException

        self.asked_s.append(timeout)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, _wait_s: float) -> None:
        self.cluster.refusal = self.error


def test_what_the_library_knows_of_certificates_is_said_at_the_first_question() -> None:
    from confluent_kafka import KafkaError

    cluster = client.TargetCluster("h:1", {"security.protocol": "ssl"})
    error = KafkaError(
        KafkaError._SSL,
        "ssl://h:1/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify"
        " failed: no such CA (after 2ms in state SSL_HANDSHAKE)",
    )
    library = Library(cluster, error)
    with pytest.raises(CommandFault) as fault:
        client.metadata(library, cluster)
    assert str(fault.value) == (
        "h:1 was not accepted: SSL handshake failed: certificate verify failed: no such CA (SSL)"
    )
    assert library.asked_s == [client.FIRST_ASK_S]


def test_question_without_an_answer_is_given_up_in_time() -> None:
    for security, hint in (
        ("plaintext", "(if it wants SASL: security.protocol)"),
        ("SASL_SSL", "(if it wants another certificate: ssl.certificate.location)"),
        ("SASL_PLAINTEXT", ""),
    ):
        cluster = client.TargetCluster("h:1", {"security.protocol": security})
        library = Library(cluster, None)
        with pytest.raises(CommandFault, match="h:1 accepts connections but gives") as fault:
            client.metadata(library, cluster)
        assert str(fault.value).endswith(hint) and ("(if" in str(fault.value)) == bool(hint)
        assert sum(library.asked_s) == client.ASK_S
