"""Requests that can't start yet, and clients that leave meanwhile: over real sockets."""

import errno
import os
import select
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shmbroker.gateway import door, event_loop
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.ends import IDLE, LATE, UNREAD
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.listener import Listener
from shmbroker.wire.frame import request_frame
from tests.support.loop_service import LoopService

PRODUCE, METADATA = 0, 3


class Service(LoopService):
    """Takes requests while `is_open`; they are answered when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self.requests: list[Request] = []
        self.closed: list[str] = []
        self.submits = {key: partial(self.on_request, key) for key in (PRODUCE, METADATA)}

    def on_request(
        self,
        api_key: int,
        connection: Connection,
        _buffer: bytearray,
        _start: int,
        _end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        if not self.is_open:
            return False
        request = Request(connection, api_key, version, correlation_id)
        connection.inflight.append(request)
        self.requests.append(request)
        return True

    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None:
        self.closed.append(reason)


class Desk:
    """A loop with one client."""

    def __init__(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.service = Service()
        self.loop = EventLoop(self.service, 1 << 20, 1 << 20, select.epoll())
        self.loop.acceptor.add(Listener(listening, 1, False))
        self.loop.acceptor.watch(True)
        self.client = socket.create_connection(listening.getsockname())
        self.client.settimeout(10)
        self.clients: list[socket.socket] = []
        self.until(lambda: self.loop.connections)

    def until(self, condition: Any) -> None:
        """Turns of the loop, each with an event, until it is so."""
        for _ in range(100):
            if condition():
                return
            self.loop.handle(self.loop.poller.poll(1))
        raise AssertionError("it never came to that")

    def send(self, count: int = 1, api_key: int = METADATA) -> None:
        self.client.sendall(request_frame(api_key, 1, 7, "c", b"\0\0\0\0") * count)

    def answer(self, request: Request) -> None:
        request.response = [b"answer"]
        self.loop.flush(request.connection)

    @property
    def held(self) -> bool:
        return any(one.is_held for one in self.loop.connections.values())


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    for client in (made.client, *made.clients):
        client.close()
    for connection in list(made.loop.connections.values()):
        made.loop.close(connection, "")
    for listener in made.loop.acceptor.listeners.values():
        listener.socket.close()
    made.loop.poller.close()


def test_so_many_produces_of_a_connection_are_in_flight(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "INFLIGHT_MAX", 3)
    desk.send(5, PRODUCE)
    desk.until(lambda: desk.held)
    requests = desk.service.requests
    assert len(requests) == 3
    desk.answer(requests[0])
    desk.until(lambda: len(requests) == 4)
    assert desk.held


def test_other_requests_wait_for_the_answers_before_them(desk: Desk) -> None:
    desk.send(2)
    desk.send(1, PRODUCE)
    desk.until(lambda: desk.held)
    requests = desk.service.requests
    for number, api_key in enumerate((METADATA, METADATA, PRODUCE), 1):
        desk.until(lambda number=number: len(requests) == number)  # type: ignore[misc]
        assert [request.api_key for request in requests[number - 1 :]] == [api_key]
        desk.answer(requests[-1])


@pytest.mark.parametrize("goodbye", ["close", "shutdown"])
def test_request_that_waits_for_a_broker_is_dropped_when_its_client_leaves(
    desk: Desk, goodbye: str
) -> None:
    desk.service.is_open = False
    desk.send()
    desk.until(lambda: desk.held)
    if goodbye == "close":
        desk.client.close()
    else:
        desk.client.shutdown(socket.SHUT_WR)
    desk.until(lambda: not desk.loop.connections)
    desk.service.is_open = True
    desk.loop.resume_blocked()
    assert desk.service.requests == []
    assert desk.service.closed == ["the client left"]


def test_request_of_a_client_that_stays_is_served_when_the_broker_is_back(desk: Desk) -> None:
    desk.service.is_open = False
    desk.send()
    desk.until(lambda: desk.held)
    desk.loop.resume_blocked()
    assert desk.service.requests == []
    desk.service.is_open = True
    desk.loop.resume_blocked()
    (request,) = desk.service.requests
    desk.answer(request)
    assert desk.client.recv(100) == b"answer"


def test_client_that_sends_no_more_gets_what_waits_in_order(desk: Desk) -> None:
    desk.send(3)
    desk.client.shutdown(socket.SHUT_WR)
    desk.until(lambda: desk.held)
    desk.until(lambda: next(iter(desk.loop.connections.values())).has_left)
    for count in (1, 2, 3):
        assert len(desk.service.requests) == count
        desk.answer(desk.service.requests[-1])
    desk.until(lambda: not desk.loop.connections)
    assert desk.client.recv(100) == b"answer" * 3
    assert desk.client.recv(100) == b""
    assert desk.service.closed == [""]


def test_client_that_left_is_closed_where_its_next_request_would_have_to_wait(desk: Desk) -> None:
    desk.send(2)
    desk.client.shutdown(socket.SHUT_WR)
    desk.until(lambda: desk.held)
    desk.until(lambda: next(iter(desk.loop.connections.values())).has_left)
    desk.service.is_open = False
    desk.answer(desk.service.requests[0])
    assert desk.client.recv(100) == b"answer"
    assert desk.service.closed == ["the client left"]


def test_what_came_from_a_connection_that_was_closed_meanwhile_is_left(desk: Desk) -> None:
    """As a worker learns between its poll and the events that a broker has gone."""
    desk.send()
    events = desk.loop.poller.poll(5)
    (connection,) = desk.loop.connections.values()
    desk.loop.close(connection, "the broker process restarted")
    assert [fd for fd, _ in events] == [connection.fd]
    desk.loop.handle(events)
    assert not desk.service.requests


@pytest.mark.parametrize(
    ("user", "served"), [("the broker's", True), ("root", True), ("another", False)]
)
def test_another_user_on_the_control_socket_asks_only_what_readers_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, served: bool
) -> None:
    """Of whom the connection is, says the kernel; here the loop is somebody else instead."""
    own = os.geteuid()
    numbers = {"the broker's": own, "root": 0, "another": own + 1}
    real = door.PEER_CREDENTIALS

    class Credentials:
        size = real.size

        @staticmethod
        def unpack(raw: bytes) -> tuple[int, int, int]:
            process, peer, group = real.unpack(raw)
            assert peer == own
            return process, numbers[user], group

    monkeypatch.setattr(door, "PEER_CREDENTIALS", Credentials)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    listening.listen()
    service = Service()
    service.submits_of_readers = {}
    loop = EventLoop(service, 1 << 20, 1 << 20, select.epoll())
    loop.acceptor.add(Listener(listening, -1, True))
    loop.acceptor.watch(True)
    with listening, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        client.sendall(request_frame(METADATA, 1, 7, "c", b"\0\0\0\0"))
        for _ in range(10):
            if service.requests or service.closed:
                break
            loop.handle(loop.poller.poll(1))
        assert bool(service.requests) == served
        assert service.closed == ([] if served else [f"unknown api key {METADATA}"])
        for connection in list(loop.connections.values()):
            loop.close(connection, "")
    loop.poller.close()


def test_listener_that_rests_leaves_clients_in_its_backlog(desk: Desk) -> None:
    [listener] = desk.loop.acceptor.listeners.values()
    desk.service.rests_s = 0.5
    with socket.create_connection(listener.socket.getsockname()):
        desk.until(lambda: desk.loop.acceptor.resting)
        desk.service.rests_s = 0.0
        assert desk.loop.poller.poll(0) == []
        desk.loop.acceptor.wake(1.4)
        assert desk.loop.poller.poll(0) == []
        desk.loop.acceptor.watch(False)
        desk.loop.acceptor.wake(1.5)
        desk.loop.acceptor.watch(True)
        desk.until(lambda: len(desk.loop.connections) == 2)


class Full:
    """A listening socket of a process without a descriptor for who comes."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening

    def accept(self) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listening, name)


def test_listeners_rest_while_there_is_no_descriptor_for_who_comes(desk: Desk) -> None:
    acceptor = desk.loop.acceptor
    [first] = acceptor.listeners.values()
    second = Listener(socket.create_server(("127.0.0.1", 0)), 2, False)
    acceptor.watch(False)
    acceptor.add(second)
    acceptor.watch(True)
    listening = {each: each.socket for each in (first, second)}
    for each, is_full in listening.items():
        each.socket = Full(is_full)  # type: ignore[assignment]
        desk.clients.append(socket.create_connection(is_full.getsockname()))
    desk.until(lambda: not acceptor.is_watching)
    acceptor.watch(True)  # as its owner does in the next turn
    desk.loop.handle(desk.loop.poller.poll(0))
    assert len(acceptor.resting) == 2
    acceptor.watch(True)
    assert desk.loop.poller.poll(0) == []
    for each, is_full in listening.items():
        each.socket = is_full
    acceptor.wake(desk.service.now() + 1)
    desk.until(lambda: len(desk.loop.connections) == 3)


def test_control_socket_never_rests(desk: Desk, tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "control"))
    listening.listen()
    desk.loop.acceptor.watch(False)
    desk.loop.acceptor.add(Listener(listening, -1, True))
    desk.loop.acceptor.watch(True)
    desk.service.rests_s = 0.5
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "control"))
        desk.until(lambda: len(desk.loop.connections) == 2)


def test_who_does_not_show_in_time_who_it_is_is_closed(desk: Desk) -> None:
    (connection,) = desk.loop.connections.values()
    connection.deadline = 31.0
    desk.loop.sweep(30.9, 600, 10)
    assert desk.service.closed == []
    desk.loop.sweep(31.0, 600, 10)
    assert desk.service.closed == [LATE]


def pile_up(desk: Desk, size: int) -> Connection:
    """An answer that is too large for the sockets of a client that does not read."""
    before = len(desk.service.requests)
    [listener] = desk.loop.acceptor.listeners.values()
    client = socket.create_connection(listener.socket.getsockname())
    desk.clients.append(client)
    client.sendall(request_frame(METADATA, 1, 7, "c", b"\0\0\0\0"))
    desk.until(lambda: len(desk.service.requests) > before)
    request = desk.service.requests[-1]
    request.response = [bytes(size)]
    desk.loop.flush(request.connection)
    assert request.connection.wants_write
    return request.connection


def test_answers_that_nobody_reads_are_bounded_together(desk: Desk) -> None:
    first = pile_up(desk, 16 << 20)
    desk.loop.slow_readers.bytes_max = first.unsent + 1000
    desk.service.time = 2.0
    second = pile_up(desk, 16 << 20)
    assert first.is_closed and not second.is_closed
    assert desk.service.closed == [UNREAD]
    assert desk.loop.slow_readers.unsent == second.unsent_memory() > 0


def test_reader_that_goes_on_is_given_up_after_one_that_does_not(desk: Desk) -> None:
    first = pile_up(desk, 16 << 20)
    desk.service.time = 2.0
    second = pile_up(desk, 16 << 20)
    desk.service.time = 3.0
    left = first.unsent
    desk.clients[0].setblocking(False)

    def has_moved() -> bool:
        try:
            desk.clients[0].recv(1 << 20)
        except BlockingIOError:
            pass
        return first.unsent < left

    desk.until(has_moved)
    slow_readers = desk.loop.slow_readers
    slow_readers.bytes_max = slow_readers.unsent + (8 << 20)  # sockets hold more or less
    pile_up(desk, 16 << 20)
    assert second.is_closed and not first.is_closed


def test_one_large_answer_is_never_too_much(desk: Desk) -> None:
    desk.loop.slow_readers.bytes_max = 1 << 20
    connection = pile_up(desk, 16 << 20)
    assert not connection.is_closed
    desk.clients[0].settimeout(10)
    received = 0
    while received < 16 << 20:
        received += len(desk.clients[0].recv(1 << 20))
        desk.loop.handle(desk.loop.poller.poll(0))
    assert (desk.loop.slow_readers.unsent, desk.loop.slow_readers.present) == (0, set())


def test_reader_that_takes_nothing_is_closed_when_it_would_be_idle(desk: Desk) -> None:
    connection = pile_up(desk, 16 << 20)
    desk.loop.sweep(1.0 + 600, 600, 10)
    assert not connection.is_closed
    desk.loop.sweep(1.1 + 600, -1, 10)
    assert not connection.is_closed
    desk.loop.sweep(1.1 + 600, 600, 10)
    assert connection.is_closed
    assert desk.service.closed == [IDLE, UNREAD]
    assert desk.loop.slow_readers.unsent == 0
