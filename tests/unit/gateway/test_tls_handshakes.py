"""Who is let in over TLS: handshakes, certificates, files that change, what is no TLS."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmbroker.gateway import tls
from tests.support.certificates import Authority
from tests.support.examples import examples
from tests.unit.gateway.tls_desk import AUTHORITY, Client, Desk, answer, desk, frame

__all__ = ["desk"]


def test_a_handshake_that_takes_too_long_ends_and_holds_up_nobody(desk: Desk) -> None:
    silent = desk.client()
    half = desk.client()
    half.tls, hello = None, half.tls
    assert hello is not None
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    half.to_send += half.outgoing.read()[:40]
    other = desk.client()
    other.to_send += frame(10)
    desk.clients.remove(silent)
    desk.until(lambda: desk.service.requests)
    answer(desk, desk.service.requests[0], b"!")
    desk.until(lambda: other.got == b"!")
    desk.tls.sweep(desk.service.time + tls.HANDSHAKE_S - 1)
    assert len(desk.loop.connections) == 3
    desk.tls.sweep(desk.service.time + tls.HANDSHAKE_S + 1)
    assert desk.service.faults == ["its TLS handshake took over 10 s"] * 2
    assert len(desk.loop.connections) == 1
    silent.socket.close()


@pytest.mark.parametrize(
    ("greeting", "to", "words"),
    [
        (frame(10), 0, "it speaks Kafka without TLS, but listener SSL with it: the client needs "),
        (b"GET / HTTP/1.1\r\n\r\n", 0, "it does not speak TLS, but listener SSL does"),
        (b"\x16\x03\x01\x00\x05hello", 0, "its TLS handshake failed: "),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaa",
            1,
            "it speaks TLS, but this listener",
        ),
        (b"\x16\x03\x01\x02", 1, "it speaks TLS, but this listener"),
    ],
)
def test_who_speaks_something_else_is_closed_with_words(
    desk: Desk, greeting: bytes, to: int, words: str
) -> None:
    desk.client(plain=True, to=to).to_send += greeting
    desk.until(lambda: desk.service.faults)
    assert desk.service.faults[0].startswith(words)


def test_so_many_steps_of_handshakes_a_turn(desk: Desk) -> None:
    clients = [desk.client() for _ in range(tls.STEPS_PER_TURN * 2 + 1)]
    for client in clients:
        client.pump()

    def greeted() -> int:
        return sum(
            not connection.bytes_in_kernel() for connection in desk.loop.connections.values()
        )

    while len(desk.loop.connections) < len(clients):
        desk.loop.acceptor.accept(desk.listeners[0])
    for expected in (tls.STEPS_PER_TURN, tls.STEPS_PER_TURN * 2, len(clients)):
        desk.turn()
        assert greeted() == expected
    for client in clients:
        client.to_send += frame(1)
    desk.until(lambda: len(desk.service.requests) == len(clients))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_clients_certificate_says_who_it_is(tmp_path: Path, version: ssl.TLSVersion) -> None:
    desk = Desk(tmp_path, ssl_client_auth="requested")
    try:
        context = desk.context(AUTHORITY.sign("CN=alice,O=Acme\\, Inc.,C=DE"))
        context.maximum_version = version
        client = Client(desk.listeners[0].socket.getsockname(), context)
        desk.clients.append(client)
        client.to_send += frame(10)
        desk.client().to_send += frame(10)
        desk.until(lambda: len(desk.service.requests) == 2)
        ((connection, principal),) = desk.admitted
        assert principal == "User:CN=alice,O=Acme\\, Inc.,C=DE"
        assert connection in desk.loop.connections.values()
    finally:
        desk.close()


@pytest.mark.parametrize(
    ("rules", "shown", "words"),
    [
        ("RULE:^CN=([a-z]+)$/$1/U", "CN=bob", ""),
        ("RULE:^CN=([a-z]+)$/$1/U", "CN=bob,O=x", "no rule of ssl.principal.mapping.rules fits"),
        ("DEFAULT", "", "its TLS handshake failed: peer did not return a certificate"),
        ("DEFAULT", "?", "its TLS handshake failed: its certificate is not accepted: "),
    ],
)
def test_who_has_to_show_a_certificate(tmp_path: Path, rules: str, shown: str, words: str) -> None:
    desk = Desk(tmp_path, ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    try:
        signer = Authority() if shown == "?" else AUTHORITY
        desk.client(shown=signer.sign("CN=x" if shown == "?" else shown) if shown else None)
        try:
            desk.until(lambda: desk.admitted or desk.service.faults)
        except ssl.SSLError:  # our alert has reached the client
            pass
        if words:
            assert desk.service.faults[0].startswith(words)
            assert desk.admitted == [] and desk.service.requests == []
        else:
            assert desk.admitted[0][1] == "User:BOB"
    finally:
        desk.close()


def test_other_files_are_taken_for_new_connections(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old = desk.client()
    old.to_send += frame(10)
    desk.until(lambda: desk.service.requests)
    now = [0.0]

    def look(times: int) -> list[str]:
        caplog.clear()
        for _ in range(times):
            now[0] += tls.LOOK_S + 1
            desk.tls.sweep(now[0])
        return [record.getMessage() for record in caplog.records]

    assert look(3) == []
    desk.file.write_text("half of it")
    (line,) = look(5)
    assert line.startswith("the certificates stay as they are: listener SSL: there is no certifi")
    desk.client().to_send += frame(10)
    desk.until(lambda: len(desk.service.requests) == 2)
    desk.file.unlink()
    (line,) = look(5)
    assert "No such file" in line
    new = AUTHORITY.sign("CN=new", days=20).written(desk.file)
    (line,) = look(5)
    assert line.startswith("listener SSL: certificates were read again, they end on ")
    client = desk.client()
    client.to_send += frame(10)
    desk.until(lambda: len(desk.service.requests) == 3)
    assert client.tls is not None
    assert client.tls.getpeercert(True) == ssl.PEM_cert_to_DER_cert(
        new.read_text().split("-----END PRIVATE KEY-----")[1].strip() + "\n"
    )
    answer(desk, desk.service.requests[0], b"still here")
    desk.until(lambda: old.got == b"still here")


def test_a_file_that_is_being_written_is_left_until_it_rests(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    whole = AUTHORITY.sign("CN=new").pem
    for step in range(4):
        desk.file.write_text(whole[: (step + 1) * len(whole) // 4])
        desk.tls.sweep(100.0 + step * 10)
        assert caplog.records == []
    desk.tls.sweep(200.0)
    (record,) = caplog.records
    assert "were read again" in record.getMessage()


@given(data=st.data())
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_greeting_is_more_than_a_fault_of_its_own_connection(
    desk: Desk, data: st.DataObject
) -> None:
    hello = desk.client()
    desk.clients.remove(hello)
    assert hello.tls is not None
    with pytest.raises(ssl.SSLWantReadError):
        hello.tls.do_handshake()
    greeting = bytearray(hello.outgoing.read())
    for _ in range(data.draw(st.integers(0, 4))):
        greeting[data.draw(st.integers(0, len(greeting) - 1))] = data.draw(st.integers(0, 255))
    hello.socket.send(bytes([22]) + greeting[1 : data.draw(st.integers(1, len(greeting)))])
    for _ in range(4):
        desk.turn()
    hello.socket.close()
    for _ in range(4):
        desk.turn()
    assert all("TLS" in fault for fault in desk.service.faults)
    assert desk.service.requests == []


def test_old_versions_are_refused(desk: Desk) -> None:
    context = desk.context()
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    desk.clients.append(Client(desk.listeners[0].socket.getsockname(), context))
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        desk.until(lambda: False)
    assert desk.service.faults == ["its TLS handshake failed: unsupported protocol"]
