"""Standing answers that the kernel gives: what comes out is what the usual way gives."""

import random
import select
import socket
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shmbroker.gateway import standing_ready
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.gateway import Gateway
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.standing import StandingRepeats
from shmbroker.gateway.standing_ready import API_KEYS, StandingReady
from shmbroker.kernels import native
from shmbroker.wire.api_keys import HEARTBEAT, METADATA
from shmbroker.wire.frame import request_frame
from tests.support.loop_service import LoopService

pytestmark = pytest.mark.skipif(native is None, reason="without the compiled kernels")

BROKER = 1
WORD, VALUE = 2, 7
TAIL = b"\0\0\0\0\0\0"


def frame(correlation_id: int, api_key: int = HEARTBEAT, name: str = "c") -> bytes:
    return request_frame(api_key, 3, correlation_id, name, b"group, generation, member")


def answer(correlation_id: int) -> bytes:
    return (4 + len(TAIL)).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + TAIL


class Desk(LoopService):
    """A loop whose Heartbeats have a standing answer, as soon as `grant` has given it; all else is
    answered at once. turn: events go to the kernel first, if `way` is there."""

    def __init__(self, clients: int = 1, has_kernel: bool = True) -> None:
        super().__init__()
        self.words = memoryview(bytearray(64)).cast("q")
        self.standing = StandingRepeats({})
        self.closed: list[str] = []
        self.asked: list[int] = []
        """Correlation ids of what went the usual way."""
        self.plain = SimpleNamespace(
            submits=dict.fromkeys(API_KEYS, self.on_heartbeat) | {METADATA: self.on_other}
        )
        self.submits = dict(self.plain.submits)
        self.tables = SimpleNamespace(of_admitted=self.submits)
        listening = socket.create_server(("127.0.0.1", 0))
        self.loop = EventLoop(self, 1 << 20, 1 << 20, select.epoll())
        self.loop.acceptor.add(Listener(listening, BROKER, False))
        self.loop.acceptor.watch(True)
        self.way = StandingReady(cast(Gateway, self)) if has_kernel else None
        self.clients: list[socket.socket] = []
        for _ in range(clients):
            self.clients.append(socket.create_connection(listening.getsockname()))
            self.clients[-1].setblocking(False)
            self.clients[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.until(lambda: len(self.loop.connections) == len(self.clients))

    def grant(self, name: str = "c") -> None:
        behind = frame(0, name=name)[12:]
        self.words[WORD] = VALUE
        head = answer(0)[:4]
        self.standing.known[BROKER, HEARTBEAT, 3, behind] = self.words, WORD, VALUE, head, TAIL

    def on_heartbeat(
        self, connection: Connection, buffer: bytearray, start: int, end: int, version: int, it: int
    ) -> bool:
        if self.standing.repeat(connection, HEARTBEAT, version, buffer, start, end) is None:
            connection.has_standing = True
            return True
        return self.on_other(connection, buffer, start, end, version, it)

    def on_other(
        self, connection: Connection, _buffer: bytearray, _start: int, _end: int, _of: int, it: int
    ) -> bool:
        request = Request(connection, METADATA, 0, it)
        self.asked.append(it)
        connection.inflight.append(request)
        request.response = [b"other" + it.to_bytes(4, "big")]
        return True

    def on_closed(self, _connection: Connection, reason: str, _is_fault: bool) -> None:
        self.closed.append(reason)

    def turn(self) -> None:
        self.time += 1
        events = self.loop.poller.poll(1)
        if self.way is not None:
            events = self.way.take(events)
        self.loop.handle(events)

    def until(self, condition: Any) -> None:
        for _ in range(1000):
            if condition():
                return
            self.turn()
        raise AssertionError("it never came to that")

    def exchange(self, sent: bytes, size: int, client: int = 0) -> bytes:
        self.clients[client].sendall(sent)
        return self.receive(size, client)

    def receive(self, size: int, client: int = 0) -> bytes:
        got = bytearray()

        def has_all() -> bool:
            try:
                got.extend(self.clients[client].recv(1 << 20))
            except BlockingIOError:
                pass
            return len(got) >= size

        self.until(has_all)
        return bytes(got)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for connection in list(self.loop.connections.values()):
            self.loop.close(connection, "")
        for listener in self.loop.acceptor.listeners.values():
            listener.socket.close()
        self.loop.poller.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    made.grant()
    yield made
    made.close()


def serve_first(desk: Desk) -> None:
    """The first one goes the usual way: then its connection is known for such requests."""
    assert desk.exchange(frame(1), 14) == answer(1)
    assert desk.way is not None and desk.way.served == 0


def test_heartbeat_behind_one_is_answered_by_the_kernel(desk: Desk) -> None:
    serve_first(desk)
    received = desk.loop.traffic.received_bytes
    assert desk.exchange(frame(2), 14) == answer(2)
    assert desk.way is not None and (desk.way.served, desk.standing.repeated) == (1, 2)
    (connection,) = desk.loop.connections.values()
    assert desk.words[WORD + 1] == int(connection.last_active * 1e9)
    assert desk.loop.traffic.received_bytes - received == len(frame(2))
    assert desk.loop.traffic.sent_bytes == 28 and desk.asked == []


def test_what_comes_behind_goes_the_usual_way_in_order(desk: Desk) -> None:
    serve_first(desk)
    sent = frame(2) + frame(3) + frame(4, METADATA) + frame(5)
    assert desk.exchange(sent, 51) == answer(2) + answer(3) + b"other\0\0\0\4" + answer(5)
    assert desk.asked == [4]


@pytest.mark.parametrize("cut", [1, 5, 13, 20])
def test_rest_of_a_frame_is_waited_for(desk: Desk, cut: int) -> None:
    serve_first(desk)
    assert desk.exchange(frame(2) + frame(3)[:cut], 14) == answer(2)
    assert desk.exchange(frame(3)[cut:], 14) == answer(3)
    assert desk.asked == []


def test_withdrawn_grant_is_not_used(desk: Desk) -> None:
    serve_first(desk)
    desk.words[WORD] = VALUE + 1
    desk.words[WORD + 1] = 5
    assert desk.exchange(frame(2), 9) == b"other\0\0\0\2"
    assert desk.words[WORD + 1] == 5 and desk.standing.repeated == 1


def test_bytes_of_another_broker_are_others(desk: Desk) -> None:
    desk.standing.known = cast(
        Any, {(2, *key[1:]): found for key, found in desk.standing.known.items()}
    )
    (connection,) = desk.loop.connections.values()
    connection.has_standing = True
    assert desk.exchange(frame(1), 9) == b"other\0\0\0\1"


def test_client_that_leaves_is_closed(desk: Desk) -> None:
    serve_first(desk)
    desk.clients[0].close()
    desk.until(lambda: desk.closed)
    assert not desk.loop.connections


def test_guarded_apis_and_connections_with_something_under_way_are_left_alone(desk: Desk) -> None:
    serve_first(desk)
    (connection,) = desk.loop.connections.values()
    desk.submits[API_KEYS[0]] = partial(desk.submits[API_KEYS[0]])
    assert desk.exchange(frame(2), 14) == answer(2)
    desk.submits |= desk.plain.submits
    connection.inflight.append(waiting := Request(connection, METADATA, 0, 9))
    desk.clients[0].sendall(frame(3))
    desk.until(lambda: connection.is_held)
    waiting.response = [b"first"]
    desk.loop.flush(connection)
    assert desk.receive(19) == b"first" + answer(3)
    assert desk.way is not None and desk.way.served == 0


def test_answers_that_a_socket_does_not_take_are_kept(desk: Desk) -> None:
    serve_first(desk)
    (connection,) = desk.loop.connections.values()
    (client,) = desk.clients
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream = frame(7) * 100_000
    sent = 0
    while not connection.out:
        sent += client.send(stream[sent : sent + 50 * len(frame(7))])
        desk.turn()
    assert desk.way is not None and desk.way.served > 0
    whole, rest = divmod(sent, len(frame(7)))
    assert desk.receive(14 * whole) == answer(7) * whole
    assert desk.exchange(frame(7)[rest:], 14) == answer(7)


def test_both_ways_say_the_same() -> None:
    """Pieces of frames for several connections, of known bytes and of others."""
    for seed in range(20):
        said = []
        for has_kernel in (True, False):
            rng = random.Random(seed)
            desk = Desk(3, has_kernel)
            desk.grant("c")
            desk.grant("d")
            due = [0, 0, 0]
            left = [b"", b"", b""]
            for number in range(60):
                which = rng.randrange(3)
                kind = rng.randrange(8)
                api_key = METADATA if kind == 0 else HEARTBEAT
                name = rng.choice("ccccde")
                left[which] += frame(number, api_key, name)
                due[which] += 9 if api_key == METADATA or name == "e" else 14
                cut = rng.choice([0, 0, 0, 7, 30])
                part, left[which] = left[which][: cut or None], left[which][cut:] if cut else b""
                desk.clients[which].sendall(part)
                desk.turn()
            for which in range(3):
                desk.clients[which].sendall(left[which])
            said.append([desk.receive(due[which], which) for which in range(3)])
            assert desk.way is None or desk.way.served > 0
            desk.close()
        assert said[0] == said[1], f"seed {seed}"


def rows_of(fd: int) -> list[Any]:
    return [(fd, BROKER)]


@pytest.mark.parametrize(
    ("rows", "found", "message"),
    [
        (None, (), "5 parts"),
        (None, (bytearray(16), 2, VALUE, b"", b""), "no such word"),
        (None, (bytearray(16), -1, VALUE, b"", b""), "no such word"),
        ([()], (bytearray(16), 0, VALUE, b"", b""), "2 parts"),
    ],
)
def test_kernel_refuses_what_is_none(rows: Any, found: Any, message: str) -> None:
    ours, client = socket.socketpair()
    known = {(BROKER, HEARTBEAT, 3, frame(1)[12:]): found}
    with ours, client:
        client.sendall(frame(1))
        with pytest.raises(ValueError, match=message):
            native.repeat_standing(  # type: ignore[union-attr]
                rows or rows_of(ours.fileno()), 0, bytearray(4096), known, 1
            )


def test_without_the_kernel_all_events_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_ready, "repeat_standing", None)
    desk = Desk()
    desk.grant()
    serve_first(desk)
    assert desk.exchange(frame(2), 14) == answer(2)
    assert desk.way is not None and desk.way.served == 0
    desk.close()
