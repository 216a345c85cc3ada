"""A gateway's event loop with a listener for TLS, and clients over real sockets."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shmbroker.gateway.connection import Connection
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.tls import TlsListeners
from shmbroker.gateway.tls_context import load
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
