"""Connections with TLS in the turns of an event loop: over real sockets, the client in between."""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmbroker.gateway import tls, tls_connection
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.tls import TlsListeners
from shmbroker.gateway.tls_context import load
from shmbroker.ipc import passed_files
from shmbroker.ipc.passed_files import ColdSlice, FileSlice, OpenFile
from shmbroker.log.residency import CANT_SAY
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.wire.frame import request_frame
from tests.support.certificates import Authority, Signed
from tests.support.loop_service import LoopService

AUTHORITY = Authority()
PRODUCE, METADATA = 0, 3
TURNS_MAX = 1000


class Service(LoopService):
    """Takes every request; the test answers."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.faults: list[str] = []
        self.closed: list[str] = []
        self.submits = {PRODUCE: self.on_request, METADATA: self.on_request}
        self.submits_of_readers = self.submits

    def on_request(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        request = Request(connection, PRODUCE, version, correlation_id)
        connection.inflight.append(request)
        self.requests.append(request)
        self.bodies.append(bytes(buffer[start:end]))
        return True

    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None:
        (self.faults if is_fault else self.closed).append(reason)


class Client:
    """One end of a connection, which waits for nothing."""

    def __init__(
        self, address: Any, context: ssl.SSLContext | None, receive_bytes: int = 0
    ) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(address)
        self.socket.setblocking(False)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context and context.wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )
        self.to_send = bytearray()
        self.got = b""
        self.is_closed = False
        self.reads = 1 << 20

    def pump(self) -> None:
        """Move what can be moved."""
        if self.tls is None:
            self.to_send = self.to_send[self.socket.send(self.to_send) :]
        self.receive()
        while self.tls is not None:
            try:
                if self.to_send:
                    size = self.tls.write(self.to_send[:50_000])
                    del self.to_send[:size]
                self.got += self.tls.read(1 << 20)
            except ssl.SSLWantReadError:
                if not self.to_send:
                    break
                if not self.outgoing.pending:
                    break
            except ssl.SSLZeroReturnError:
                self.is_closed = True
                break
            self.send_sealed()
        self.send_sealed()

    def send_sealed(self) -> None:
        self.sealed = getattr(self, "sealed", b"") + self.outgoing.read()
        try:
            self.sealed = self.sealed[self.socket.send(self.sealed) :]
        except (BlockingIOError, ConnectionError):
            pass

    def receive(self) -> None:
        try:
            data = self.socket.recv(self.reads)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if data:
            self.incoming.write(data)
        else:
            self.is_closed = True


class Desk:
    """A loop with a listener that has TLS, and one that has not."""

    def __init__(self, place: Path, *, memory: int = 32 << 20, **more: str) -> None:
        self.place = place
        self.step_s = 0.001
        self.file = AUTHORITY.sign("CN=localhost").written(place / "server.pem")
        trust = place / "ca.pem"
        trust.write_text(AUTHORITY.pem)
        named = {"ssl.keystore.location": str(self.file), "ssl.truststore.location": str(trust)}
        named |= {"listeners": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"}
        config = BrokerConfig(named | {k.replace("_", "."): v for k, v in more.items()})
        self.service = Service()
        self.loop = EventLoop(self.service, 8 << 20, memory, select.epoll())
        self.admitted: list[tuple[Connection, str]] = []
        self.listeners = [
            Listener(socket.create_server(("127.0.0.1", 0)), 1, False, one)
            for one in config.listeners
        ]
        self.listeners[0].tls = load(config, config.listeners[0])
        self.tls = TlsListeners(
            self.listeners,
            self.loop,
            config,
            lambda *admitted: self.admitted.append(admitted),
            True,
            lambda: 0,
        )
        for listener in self.listeners:
            self.loop.acceptor.add(listener)
        self.loop.acceptor.watch(True)
        self.clients: list[Client] = []

    def client(self, *, plain: bool = False, to: int = 0, **options: Any) -> Client:
        context = None if plain else self.context(options.pop("shown", None))
        address = self.listeners[to].socket.getsockname()
        self.clients.append(Client(address, context, **options))
        return self.clients[-1]

    def context(self, shown: Signed | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=AUTHORITY.pem)
        if shown is not None:
            context.load_cert_chain(shown.written(self.place / "client.pem"))
        return context

    def turn(self) -> None:
        self.service.time += self.step_s
        self.loop.handle(self.loop.poller.poll(0.002))
        self.loop.feed_starved()

    def until(self, condition: Any) -> None:
        """Turns of the loop, and of the clients, until it is so."""
        for _ in range(TURNS_MAX):
            if condition():
                return
            for client in self.clients:
                client.pump()
            self.turn()
        raise AssertionError("it never came to that")

    def close(self) -> None:
        for connection in list(self.loop.connections.values()):
            self.loop.close(connection, "")
        for client in self.clients:
            client.socket.close()
        for listener in self.listeners:
            listener.socket.close()
        self.tls.close()
        self.loop.poller.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def frame(size: int, number: int = 7) -> bytes:
    return request_frame(PRODUCE, 1, number, "c", Random(size).randbytes(size))


def answer(desk: Desk, request: Request, *parts: Any) -> None:
    request.response = list(parts)
    desk.loop.flush(request.connection)


def test_request_and_answer(desk: Desk) -> None:
    client = desk.client()
    client.to_send += frame(10)
    desk.until(lambda: desk.service.requests)
    assert desk.service.bodies == [frame(10)[4:]]
    answer(desk, desk.service.requests[0], b"an ", b"answer")
    desk.until(lambda: client.got == b"an answer")
    assert client.tls is not None and client.tls.version() == "TLSv1.3"


SIZES = [
    [0, 1, 100],
    [16_000, 17_000, 3, 40_000, 5],
    [130_000, 10, 131_072, 262_144, 1, 300_000],
    [900_000, 20, 900_001, 70_000],
    [3_000_000, 40, 2_500_000],
]


def served(desk: Desk, clients: list[Client], count: int) -> None:
    """Until each has so many answers; whatever is asked is answered."""

    def is_done() -> bool:
        for request in desk.service.requests:
            if request.response is None:
                answer(desk, request, b"!")
        return all(len(client.got) == count for client in clients)

    desk.until(is_done)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_frames_of_any_size_arrive_whole_and_in_order(desk: Desk, sizes: list[int]) -> None:
    frames = [frame(size, n) for n, size in enumerate(sizes)]
    clients = [desk.client() for _ in range(2)]
    for client in clients:
        client.to_send += b"".join(frames)
    served(desk, clients, len(sizes))
    for connection in desk.loop.connections.values():
        mine = [
            body
            for body, request in zip(desk.service.bodies, desk.service.requests, strict=True)
            if request.connection is connection
        ]
        assert mine == [one[4:] for one in frames]
    assert desk.service.faults == []
    assert desk.loop.memory.used == 0


def test_while_memory_is_short_what_lies_whole_is_served(tmp_path: Path) -> None:
    desk = Desk(tmp_path, memory=1 << 20)
    desk.step_s = 1e-6  # nobody is slow
    try:
        holder = desk.client()
        large = frame(700_000)
        holder.to_send += large[:600_000]
        desk.until(lambda: desk.loop.memory.is_short)
        others = [desk.client() for _ in range(4)]
        small = [frame(size) for size in (5, 9_000, 0, 7_000, 16_000, 3)]
        for client in others:
            client.to_send += b"".join(small)
        served(desk, others, len(small))
        assert desk.loop.memory.is_short and holder.got == b""
        waiting = desk.client()
        waiting.to_send += frame(400_000)
        desk.until(lambda: desk.loop.memory.waiting)
        holder.to_send += large[600_000:]
        served(desk, [holder, waiting], 1)
        assert {large[4:], frame(400_000)[4:]} <= set(desk.service.bodies)
        assert {body for body in desk.service.bodies if len(body) < 20_000} == {
            one[4:] for one in small
        }
        assert desk.service.faults == []
        assert desk.loop.memory.used == 0
    finally:
        desk.close()


@pytest.mark.parametrize("receive_bytes", [0, 40_000])
def test_answers_of_bytes_and_files_arrive_as_they_are(
    desk: Desk, tmp_path: Path, receive_bytes: int
) -> None:
    data = Random(1).randbytes(3_000_000)
    (tmp_path / "log").write_bytes(data)
    client = desk.client(receive_bytes=receive_bytes)
    client.to_send += frame(10) * 2
    desk.until(lambda: len(desk.service.requests) == 2)
    file = OpenFile(os.open(tmp_path / "log", os.O_RDONLY))
    head, tail = bytes(range(100)), b"t" * 200_000
    parts = [
        [head, FileSlice(file, 5, 2_000_000), head, FileSlice(file, 7, 65_536), tail],
        [FileSlice(file, 0, len(data))],
    ]
    for request, those in zip(desk.service.requests, parts, strict=True):
        answer(desk, request, *those)
    expected = head + data[5:2_000_005] + head + data[7 : 7 + 65_536] + tail + data
    desk.until(lambda: len(client.got) >= len(expected))
    assert client.got == expected
    assert desk.loop.traffic.sent_file_bytes == 2_000_000 + 65_536 + len(data)
    assert desk.loop.traffic.sent_bytes > len(expected)
    (connection,) = desk.loop.connections.values()
    assert not connection.wants_write and connection.unsent_bytes() == 0


def test_what_is_not_in_the_page_cache_is_waited_for_by_its_connection_alone(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_bytes(b"x" * 100_000)
    client = desk.client()
    client.to_send += frame(10)
    desk.until(lambda: desk.service.requests)
    cold = [BlockingIOError, BlockingIOError]
    asked: list[int] = []
    read = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT and offset >= 50_000 and cold:
            raise cold.pop()
        if flags == os.RWF_NOWAIT and offset < 50_000:
            buffers = [buffers[0][: 50_000 - offset]]
        return read(fd, buffers, offset, flags)

    monkeypatch.setattr(passed_files.os, "preadv", preadv)
    monkeypatch.setattr(passed_files, "will_need", lambda _fd, at, _size: asked.append(at))
    slice_ = FileSlice(OpenFile(os.open(tmp_path / "log", os.O_RDONLY)), 0, 100_000)
    answer(desk, desk.service.requests[0], slice_)
    (connection,) = desk.loop.cold
    assert connection.is_cold and asked == [50_000, 50_000]
    desk.loop.retry_cold()
    desk.until(lambda: client.got == b"x" * 100_000)


@pytest.mark.parametrize("fault", [*CANT_SAY, 5])
def test_a_file_system_that_can_not_say_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    (tmp_path / "log").write_bytes(b"abc")
    read = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(fault, "no")
        return read(fd, buffers, offset)

    monkeypatch.setattr(passed_files.os, "preadv", preadv)
    slice_ = FileSlice(OpenFile(os.open(tmp_path / "log", os.O_RDONLY)), 1, 2)
    room = memoryview(bytearray(10))
    if fault in CANT_SAY:
        assert slice_.read_into(room) == 2
        assert bytes(room[:2]) == b"bc" and slice_.length == 0
    else:
        with pytest.raises(OSError, match="no"):
            slice_.read_into(room)


def test_a_slice_that_stays_cold_is_read_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_bytes(b"abc")
    read = os.preadv

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        return read(fd, buffers, offset)

    monkeypatch.setattr(passed_files.os, "preadv", preadv)
    slice_ = FileSlice(OpenFile(os.open(tmp_path / "log", os.O_RDONLY)), 0, 3)
    room = memoryview(bytearray(10))
    for _ in range(passed_files.COLD_RETRIES_MAX):
        with pytest.raises(ColdSlice):
            slice_.read_into(room)
    assert slice_.read_into(room) == 3


def test_a_client_that_ends_its_side_gets_what_it_has_asked_for(desk: Desk) -> None:
    client = desk.client()
    client.to_send += frame(10)
    desk.until(lambda: desk.service.requests)
    assert client.tls is not None
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()  # close_notify, and waits for ours
    client.send_sealed()
    (connection,) = desk.loop.connections.values()
    desk.until(lambda: connection.is_ended)
    assert desk.service.closed == []
    answer(desk, desk.service.requests[0], b"late")
    assert desk.service.closed == [""]
    client.receive()
    assert client.tls.read(10) == b"late"
    with pytest.raises(ssl.SSLZeroReturnError):
        client.tls.read(10)  # our close_notify


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
    max_examples=60,
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


def test_bytes_that_nobody_has_encrypted_end_their_connection(desk: Desk) -> None:
    client, other = desk.client(), desk.client()
    for each in (client, other):
        each.to_send += frame(10)
    desk.until(lambda: len(desk.service.requests) == 2)
    client.socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    desk.clients.remove(client)
    desk.until(lambda: desk.service.faults)
    (fault,) = desk.service.faults
    assert fault.startswith("its TLS can't be understood: decryption failed or bad record mac")
    assert len(desk.loop.connections) == 1


def test_records_of_a_byte_are_read_a_share_at_a_time(desk: Desk) -> None:
    """Nobody makes a turn long by them, and none is forgotten."""
    client = desk.client()
    whole = frame(tls_connection.RECORDS_PER_READ * 3)
    client.to_send += frame(10)
    desk.until(lambda: desk.service.requests)  # the handshake is done on both sides
    answer(desk, desk.service.requests.pop(), b"!")
    desk.until(lambda: client.got == b"!")
    desk.service.bodies.clear()
    assert client.tls is not None
    for byte in whole:
        client.tls.write(bytes([byte]))
    client.send_sealed()
    desk.until(lambda: desk.service.requests)
    assert desk.service.bodies == [whole[4:]]


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
