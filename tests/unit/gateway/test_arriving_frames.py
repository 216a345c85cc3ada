"""The event loop while memory for arriving frames is short: real sockets, a clock of its own."""

import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator

import pytest

from shmbroker.gateway.connection import Connection
from shmbroker.gateway.event_loop import EventLoop
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.listener import Listener
from shmbroker.gateway.poller import EPOLLIN
from tests.support.loop_service import LoopService

KIB, MIB = 1 << 10, 1 << 20
PRODUCE, METADATA = 0, 3
BOUND = 2 * MIB
LIMIT_S = 10.0


class Crowd(LoopService):
    """A loop, its service, and as many clients as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self.is_open = True
        self.taken: list[int] = []
        self.closed: dict[Connection, str] = {}
        self.submits = dict.fromkeys((PRODUCE, METADATA), self._take)
        self.loop = EventLoop(self, 100 * MIB, BOUND, select.epoll())
        self.clients: list[socket.socket] = []

    # What the loop asks
    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None:
        self.closed[connection] = reason

    def _take(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        if not self.is_open:
            return False
        assert buffer[end - 1] == 0x77, "not its last byte"
        self.taken.append(correlation_id)
        request = Request(connection, buffer[start + 1], version, correlation_id)
        request.response = [b"a"]
        connection.inflight.append(request)
        return True

    # What the test does
    def client(self) -> tuple[socket.socket, Connection]:
        client, accepted = socket.socketpair()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        client.setblocking(False)
        accepted.setblocking(False)
        connection = Connection(accepted, Listener(accepted, 1, False), self.time, self.submits)
        self.loop.connections[connection.fd] = connection
        self.loop.poller.register(connection.fd, EPOLLIN)
        self.clients.append(client)
        return client, connection

    def turn(self, count: int = 10) -> None:
        for _ in range(count):
            self.loop.handle(self.loop.poller.poll(0))
            self.loop.resume_blocked()
            self.loop.feed_starved()

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(1000):
            if condition():
                return
            self.turn(1)
            self.time += 0.001
        raise AssertionError("it never came to that")

    def drip(self) -> list[Connection]:
        """Slow clients with all the usual memory, which have sent nothing for a while."""
        memory = self.loop.memory
        while not memory.waiting:
            self.client()[0].sendall(frame(PRODUCE, MIB)[: 60 * KIB])
            self.turn(1)
        for waiting in list(memory.waiting):
            self.loop.close(waiting, "")
        self.closed.clear()
        last = self.client()[1]
        memory.hold(last, memory.usual - memory.used, self.time)
        last.arrive(100, MIB, True, self.time)
        self.time += 5
        return list(memory.senders)

    def push(self, frames: Iterable[bytes]) -> list[Connection]:
        """As many clients, which send as fast as they can until they are answered or closed."""
        pushing = []
        left = {}
        for data in frames:
            client, connection = self.client()
            pushing.append(connection)
            left[client] = memoryview(data)
        began = len(self.taken)

        def are_done() -> bool:
            for client, data in left.items():
                try:
                    left[client] = data[client.send(data) if data else 0 :]
                except OSError:
                    pass  # there is no room, or it was closed
            room = [one.room for one in self.loop.memory.senders]
            assert sum(room) <= BOUND or sum(room) - max(room) <= BOUND // 4
            gone = sum(one.is_closed for one in pushing)
            return len(self.taken) - began + gone >= len(pushing)

        self.until(are_done)
        return pushing

    def sweep(self, idle_s: float = 600.0) -> None:
        self.loop.sweep(self.time, idle_s, LIMIT_S)

    def end(self) -> None:
        for client in self.clients:
            client.close()
        for connection in list(self.loop.connections.values()):
            self.loop.close(connection, "")
        self.loop.poller.close()
        assert self.loop.memory.used == 0
        assert not self.loop.memory.senders
        assert not self.loop.memory.waiting


def frame(api_key: int, size: int, correlation_id: int = 7) -> bytes:
    """A whole frame of `size` bytes in all."""
    head = struct.pack(">ihhih", size - 4, api_key, 0, correlation_id, -1)
    return head + bytes(size - len(head) - 1) + b"\x77"


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    made = Crowd()
    yield made
    made.end()


def test_slow_senders_pay_for_a_large_request(crowd: Crowd) -> None:
    dripping = crowd.drip()
    crowd.push(frame(PRODUCE, 700 * KIB, which) for which in range(3))
    assert sorted(crowd.taken) == [0, 1, 2]
    assert crowd.closed
    assert crowd.closed.keys() <= set(dripping)
    assert set(crowd.closed.values()) == {"a slow frame while others wait for its memory"}


def test_small_requests_need_no_memory(crowd: Crowd) -> None:
    crowd.drip()
    client, _ = crowd.client()
    client.sendall(b"".join(frame(METADATA, 100, which) for which in range(50)))
    crowd.turn()
    assert crowd.taken == list(range(50))
    assert crowd.closed == {}


def test_half_a_small_request_stays_in_the_kernel(crowd: Crowd) -> None:
    dripping = crowd.drip()
    for holder in dripping:
        holder.is_blocked = True  # nobody pays
    client, connection = crowd.client()
    request = frame(METADATA, 100, 2)
    client.sendall(frame(METADATA, 100, 1) + request[:20])
    crowd.turn()
    assert crowd.taken == [1]
    assert connection.waits_since
    assert connection.bytes_in_kernel() == 20
    client.sendall(request[20:])
    for holder in dripping:
        crowd.loop.close(holder, "")
    crowd.until(lambda: crowd.taken == [1, 2])


def test_no_time_limit_runs_against_who_is_not_read(crowd: Crowd) -> None:
    dripping = crowd.drip()
    for holder in dripping:
        holder.is_held = holder.is_blocked = True  # as by a ring that is full
    client, connection = crowd.client()
    client.sendall(frame(PRODUCE, 900 * KIB)[: 60 * KIB])
    crowd.turn()
    assert connection.waits_since
    crowd.time += 1000
    crowd.sweep()
    assert crowd.closed == {}
    for holder in dripping:
        crowd.loop.close(holder, "")
    crowd.turn()
    crowd.sweep()
    assert connection not in crowd.closed, "its time begins when it may send again"
    crowd.time += LIMIT_S + 0.1
    crowd.sweep()
    assert crowd.closed[connection] == "half a frame that has not moved for over 10 s"


def test_nobody_is_read_any_more_once_the_worker_stops(crowd: Crowd) -> None:
    dripping = crowd.drip()
    client, connection = crowd.client()
    client.sendall(frame(PRODUCE, 900 * KIB)[: 60 * KIB])
    for holder in dripping:
        holder.is_blocked = True
    crowd.turn()
    assert connection.waits_since
    crowd.loop.stop_reading()
    for holder in dripping:
        crowd.loop.close(holder, "")
    crowd.turn()
    assert connection.is_held
    assert connection.bytes_in_kernel() == 60 * KIB


def test_a_frame_may_take_its_time_as_long_as_it_moves(crowd: Crowd) -> None:
    client, connection = crowd.client()
    request = frame(PRODUCE, 300 * KIB)
    for at in range(0, len(request), 20 * KIB):
        client.sendall(request[at : at + 20 * KIB])
        crowd.turn(2)
        crowd.time += LIMIT_S - 1
        crowd.sweep()
    assert crowd.taken == [7]
    assert connection not in crowd.closed


@pytest.mark.parametrize(("idle_s", "closed"), [(600.0, ["idle"]), (-0.001, []), (6000.0, [])])
def test_idle_connections(crowd: Crowd, idle_s: float, closed: list[str]) -> None:
    crowd.client()
    crowd.time += 601
    crowd.sweep(idle_s)
    assert list(crowd.closed.values()) == closed


def test_who_waits_for_a_broker_is_not_idle(crowd: Crowd) -> None:
    crowd.is_open = False
    client, connection = crowd.client()
    client.sendall(frame(METADATA, 100))
    crowd.turn()
    crowd.time += 10_000
    crowd.sweep()
    assert connection.is_blocked
    crowd.is_open = True
    crowd.turn()
    crowd.sweep()
    assert crowd.taken == [7]
    assert crowd.closed == {}


def test_a_full_ring_is_tried_again_from_the_kernel(crowd: Crowd) -> None:
    crowd.drip()
    crowd.is_open = False
    client, connection = crowd.client()
    client.sendall(frame(METADATA, 100))
    crowd.turn()
    assert connection.is_blocked
    assert connection.room == 0
    assert not crowd.loop.poller.poll(0), "it would be looked at all the time"
    crowd.is_open = True
    crowd.turn()
    assert crowd.taken == [7]


def test_large_requests_that_come_together_are_all_served(crowd: Crowd) -> None:
    """Eight times what fits at once, from clients that send as fast as they can."""
    count = 16
    crowd.push(frame(PRODUCE, MIB, which) for which in range(count))
    assert sorted(crowd.taken) == list(range(count))
    assert crowd.closed == {}


def test_two_larger_than_all_are_served_one_after_the_other(crowd: Crowd) -> None:
    crowd.push(frame(PRODUCE, 5 * MIB, which) for which in range(2))
    assert len(crowd.taken) + len(crowd.closed) == 2
    assert len(crowd.taken) >= 1


def test_every_byte_that_is_kept_is_counted(crowd: Crowd) -> None:
    """From the first one of a connection on, and with the buffers that nobody has just now."""
    sizes = (1, 100, 5 * KIB, 60 * KIB, 64 * KIB, 200 * KIB)
    for size in sizes:
        client, connection = crowd.client()
        client.sendall(frame(PRODUCE, MIB)[:size])
        crowd.until(lambda one=connection, size=size: one.filled == size)  # type: ignore[misc]
    loop = crowd.loop
    held = [len(one.buffer) for one in loop.connections.values() if one.buffer is not None]
    assert len(held) == len(sizes)
    assert loop.memory.used == sum(held) >= sum(sizes)
    for connection in list(loop.connections.values()):
        loop.close(connection, "")
        spare = loop.buffers.spare.size
        assert loop.memory.used + spare <= loop.memory.usual
    assert loop.memory.used == 0
