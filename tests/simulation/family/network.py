"""What clients have of the network: connections to a family's ports, and answers that take a while.

A client is a generator: it yields what it waits for, and goes on with it.

    answer = yield from connection.ask("Metadata", 9, {...})     one answer, or Disconnected
    yield 0.5                                                    half a second

So it reads as a client is written, and the scheduler decides how long everything takes. Frames go
over real Unix sockets to a gateway's event loop; a gateway that is killed closes them.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Generator
from typing import Any

from shmbroker.wire import codec
from shmbroker.wire.api_keys import TABLE
from shmbroker.wire.error_codes import name_of
from shmbroker.wire.frame import parse_response_header, request_frame
from tests.simulation.family.family import Family
from tests.simulation.family.scheduler import Scheduler
from tests.simulation.family.system import REAL_EPOLL, REAL_SOCKET

Body = dict[str, Any]
KEYS = {row[0]: key for key, row in TABLE.items()}
ANSWER_S = 8.0
"""How long a client waits for an answer before it gives the connection up."""
PROMPT_S = 0.1
PROMPT = frozenset(
    (
        "Metadata",
        "CreateTopics",
        "DeleteTopics",
        "Produce",
        "ListOffsets",
        "InitProducerId",
        "FindCoordinator",
        "Heartbeat",
        "ConsumerGroupHeartbeat",
        "OffsetCommit",
        "OffsetFetch",
    )
)
"""What waits for nobody outside: answered within PROMPT_S where nothing fails, most in a tenth of
that. A wake-up that is lost costs up to a second, when a timer makes up for it."""
RECEIVE_BYTES = 1 << 16


class Disconnected(Exception):
    """Nobody knows what became of what was asked."""


class Pending:
    """A request whose answer is to come. `body` is set then, or `is_lost`."""

    def __init__(self, name: str, version: int, sent_at: float) -> None:
        self.name = name
        self.version = version
        self.sent_at = sent_at
        self.body: Body | None = None
        self.is_lost = False

    @property
    def is_over(self) -> bool:
        return self.body is not None or self.is_lost


Wait = Pending | float
Script = Generator[Wait, None, None]


class Client:
    """One client: `script` is what it does."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.scheduler = network.scheduler
        self.random = network.scheduler.random
        self.is_over = False
        self.is_told_to_end = network.is_ending
        self._connections: dict[int, Connection] = {}
        self._script = self.script()
        self._waits_for: Pending | None = None
        network.clients.append(self)
        self.scheduler.after(0.0, self.go_on)

    def script(self) -> Script:
        raise NotImplementedError

    def go_on(self) -> None:
        """Until it waits for something that is not there."""
        while True:
            try:
                wait = next(self._script)
            except StopIteration:
                self.is_over = True
                self.disconnect()
                return
            if isinstance(wait, Pending):
                if wait.is_over:
                    continue
                self._waits_for = wait
            else:
                self.scheduler.after(wait, self.go_on)
            return

    def on_answer(self, pending: Pending) -> None:
        if self._waits_for is pending:
            self._waits_for = None
            self.go_on()

    def connection(self, port: int) -> Connection:
        """The one to a port, made when it is needed."""
        connection = self._connections.get(port)
        if connection is None or not connection.is_open:
            connection = self._connections[port] = Connection(self.network, self, port)
        return connection

    def disconnect(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def pause(self, least: float, most: float) -> float:
        """Between two things that it does: long in families where little happens."""
        return self.random.uniform(least, most) * self.network.pace

    def say(self, text: str) -> None:
        self.network.family.trace(self.name, text)


class Connection:
    """One connection of one client to one port."""

    def __init__(self, network: Network, client: Client, port: int) -> None:
        self.network = network
        self.client = client
        self.port = port
        self.is_open = True
        self._pending: dict[int, Pending] = {}
        self._correlation_id = 0
        self._received = bytearray()
        self._to_send = bytearray()
        self._socket = REAL_SOCKET(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.connect(network.family.address(port))
        except OSError:
            self._socket.close()
            self.is_open = False
            return
        self.fd = self._socket.fileno()
        network.add(self)

    def send(self, name: str, version: int, body: Body) -> Pending:
        """Ask; the answer comes into what this returns."""
        pending = Pending(name, version, self.network.scheduler.now)
        if not self.is_open:
            pending.is_lost = True
            return pending
        self._correlation_id += 1
        self.client.say(f"asks {name} of {self.port}")
        key = KEYS[name]
        encoded = codec.encode(f"{name}Request", version, body)
        self._to_send += request_frame(
            key, version, self._correlation_id, self.client.name, encoded
        )
        if not (name == "Produce" and body["acks"] == 0):
            self._pending[self._correlation_id] = pending
            self.network.scheduler.after(ANSWER_S, lambda: self._on_late(pending))
        self.flush()
        return pending

    def ask(self, name: str, version: int, body: Body) -> Generator[Wait, None, Body]:
        """The answer to one request; Disconnected."""
        return (yield from self.wait(self.send(name, version, body)))

    def wait(self, pending: Pending) -> Generator[Wait, None, Body]:
        if not pending.is_over:
            yield pending
        if pending.body is None:
            raise Disconnected
        return pending.body

    def flush(self) -> None:
        """Send what the socket takes."""
        if not self._to_send or not self.is_open:
            return
        try:
            sent = self._socket.send(self._to_send)
            del self._to_send[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._to_send:
            self.network.scheduler.after(0.001, self.flush)

    def receive(self) -> None:
        """Take what has come, and let the client go on a little later."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        received = self._received
        received += data
        while len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4], "big"):
            end = 4 + int.from_bytes(received[:4], "big")
            frame = bytes(received[4:end])
            del received[:end]
            self._on_frame(frame)

    def _on_frame(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[:4], "big")
        assert correlation_id in self._pending, "an answer that nobody asked for"
        assert correlation_id == next(iter(self._pending)), "answers out of order"
        pending = self._pending.pop(correlation_id)
        _, position = parse_response_header(KEYS[pending.name], pending.version, frame)
        if pending.name in PROMPT and pending.sent_at >= self.network.well_since:
            took = self.network.scheduler.now - pending.sent_at
            assert took < PROMPT_S, f"{self.client.name} waits {took:.2f} s for {pending.name}"
        body, _ = codec.decode(f"{pending.name}Response", pending.version, frame[position:])
        self.client.say(f"has {pending.name} of {self.port}{errors_in(body)}")
        self._tell(pending, body)

    def _on_late(self, pending: Pending) -> None:
        if not pending.is_over and pending in self._pending.values():
            self.client.say(f"waits no more for {pending.name} of {self.port}")
            is_bad = self.network.are_lates_bad or pending.sent_at >= self.network.well_since
            text = f"{self.client.name} gets no answer to {pending.name} of {self.port}"
            assert not is_bad, text
            self.network.lates += 1
            self.close()

    def _tell(self, pending: Pending, body: Body | None) -> None:
        def arrive() -> None:
            pending.body = body
            pending.is_lost = body is None
            self.client.on_answer(pending)

        self.network.scheduler.after(self.network.scheduler.wake_s(), arrive)

    def close(self) -> None:
        """What has no answer yet gets none."""
        if not self.is_open:
            return
        self.is_open = False
        self.network.remove(self)
        self._socket.close()
        pending, self._pending = self._pending, {}
        for one in pending.values():
            self._tell(one, None)


def errors_in(body: Any) -> str:
    """The errors of an answer, for the trace."""
    if isinstance(body, list):
        return "".join(map(errors_in, body))
    if not isinstance(body, dict):
        return ""
    code = body.get("error_code", 0) or body.get("partition_error_code", 0)
    inner = "".join(errors_in(value) for value in body.values() if isinstance(value, (list, dict)))
    return (f", {name_of(code)}" if code else "") + inner


class Network:
    """All connections of all clients: one more thing that has its turn."""

    def __init__(self, scheduler: Scheduler, family: Family) -> None:
        self.scheduler = scheduler
        self.family = family
        self.well_since = float("inf")
        """From when on nothing fails, so that every request is answered in time."""
        self.are_lates_bad = False
        """Nothing hangs in this history, so that an answer always comes in time, or an end."""
        self.lates = 0
        """Answers that came too late for their clients."""
        self.clients: list[Client] = []
        self.is_ending = False
        """Who comes now has little to do."""
        self.pace = scheduler.random.choice((1.0, 1.0, 5.0))
        self._epoll = REAL_EPOLL()
        self._connections: dict[int, Connection] = {}

    def tell_to_end(self) -> None:
        """Every client finishes what it has begun, and those that come later begin little."""
        self.is_ending = True
        for client in self.clients:
            client.is_told_to_end = True

    def add(self, connection: Connection) -> None:
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)

    def remove(self, connection: Connection) -> None:
        del self._connections[connection.fd]
        self._epoll.unregister(connection.fd)

    def look(self) -> None:
        """Take what has come; the clients learn of it a little later."""
        for fd, _ in self._epoll.poll(0):
            connection = self._connections.get(fd)
            if connection is not None:
                connection.receive()

    def close(self) -> None:
        for connection in list(self._connections.values()):
            connection.close()
        self._epoll.close()
