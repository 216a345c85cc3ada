"""Faults between a client and a broker: a proxy in the test's process, which reads frames.

    client ──► proxy ──► broker       requests as they came, but for those that are to fail
    client ◄── proxy ◄── broker       answers in their order, late if told so

It is there only where a test asks for it (`Broker(faults=True)`): the broker knows nothing of it,
and a client that dials the broker's own port has nothing of it in its way.

Rules:

* A request that fails is not passed on: the broker never sees it. The answer has the error in each
  place that it has for one (`refusals`). Where it has none, as in Metadata for all topics before
  version 13, or where nobody waits for an answer (acks 0), the connection ends.
* A delayed answer is held back after the broker gave it: what was asked for is done by then.
* Each port of the family has one of the proxy's, and answers that name addresses name those.
* Faults are said by any thread; a thread of the proxy's own acts on them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from shmbroker.errors import ProtocolFault
from shmbroker.testing.refusals import move_ports, names_addresses, refusal_of
from shmbroker.wire import codec, frame
from shmbroker.wire.api_keys import PRODUCE, name_of

HOST = "127.0.0.1"
FRAME_BYTES_MAX = 256 << 20
STOP_S = 5.0
DISCONNECT = -1000
"""Instead of an error: the connection ends."""
_NO_FAULT = -1001
_Rule = TypeVar("_Rule", int, float)


class FaultRules:
    """What is to go wrong, by api key. Of several rules that last, the newest counts; when it ends,
    the one before it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[int, deque[int]] = {}
        self._lasting: dict[int, dict[object, int]] = {}
        self._delays_s: dict[int, dict[object, float]] = {}
        """Delays by api key and by who ends the rule, the newest last; so are the errors in
        `_lasting`."""

    def fail_next(self, api_key: int, error: int, times: int) -> None:
        """The next requests of this API fail so, behind those that were said before."""
        with self._lock:
            self._failures.setdefault(api_key, deque()).extend([error] * times)

    def fail(self, api_key: int, error: int) -> Callable[[], None]:
        """All requests of this API fail so until what is returned is called."""
        return self._add(self._lasting, api_key, error)

    def delay(self, api_key: int, delay_s: float) -> Callable[[], None]:
        """Answers of this API are late until what is returned is called."""
        return self._add(self._delays_s, api_key, delay_s)

    def clear(self) -> None:
        """End all rules: nothing goes wrong any more."""
        with self._lock:
            self._failures.clear()
            self._lasting.clear()
            self._delays_s.clear()

    def _add(
        self, rules: dict[int, dict[object, _Rule]], api_key: int, rule: _Rule
    ) -> Callable[[], None]:
        token = object()
        with self._lock:
            rules.setdefault(api_key, {})[token] = rule

        def end() -> None:
            with self._lock:
                rules.get(api_key, {}).pop(token, None)

        return end

    def next_failure(self, api_key: int) -> int:
        """The error that a request of now gets; it is used up."""
        with self._lock:
            failures = self._failures.get(api_key)
            if failures:
                return failures.popleft()
            return next(reversed(self._lasting.get(api_key, {}).values()), _NO_FAULT)

    def delay_s(self, api_key: int) -> float:
        """How long an answer of now is held back."""
        with self._lock:
            return next(reversed(self._delays_s.get(api_key, {}).values()), 0.0)


class _Answer:
    """One that a client waits for; `came` is done with its frame, b"" for the end."""

    __slots__ = ("api_key", "came", "came_at", "correlation_id", "version")

    def __init__(self, api_key: int, version: int, correlation_id: int) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.came_at = 0.0

    def come(self, content: bytes) -> None:
        if not self.came.done():
            self.came_at = asyncio.get_running_loop().time()
            self.came.set_result(content)


class Proxy:
    """A proxy in front of the brokers at these ports of this host; it serves until `stop`."""

    def __init__(self, broker_ports: Sequence[int]) -> None:
        self.rules = FaultRules()
        self.ports: dict[int, int] = {}
        """The proxy's ports, by the broker's."""
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="shmbroker-proxy", daemon=True
        )
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(broker_ports), self._loop).result(STOP_S)

    def moved(self, address: str) -> str:
        """The proxy's address for a broker's."""
        host, _, port = address.rpartition(":")
        return f"{host}:{self.ports[int(port)]}"

    def stop(self) -> None:
        """Close everything."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        self._loop.close()

    async def _listen(self, broker_ports: Sequence[int]) -> None:
        for broker_port in broker_ports:
            server = await asyncio.start_server(self._accepter(broker_port), HOST, 0)
            self.ports[broker_port] = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accepter(
        self, broker_port: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = self._loop.create_task(self._serve(broker_port, reader, writer))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

        return accept

    async def _serve(
        self, broker_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection(HOST, broker_port)
        except OSError:
            writer.close()
            return
        pair = _Pair(self.rules, self.ports)
        parts = [
            asyncio.ensure_future(pair.pass_requests(reader, to_broker)),
            asyncio.ensure_future(pair.pass_answers(writer)),
        ]
        taking = asyncio.ensure_future(pair.take_answers(from_broker))
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in (*parts, taking):
                part.cancel()
            await asyncio.gather(*parts, taking, return_exceptions=True)
            writer.close()
            to_broker.close()


class _Pair:
    """One client's connection and the one to the broker that belongs to it."""

    __slots__ = ("_asked", "_in_order", "_ports", "_rules")

    def __init__(self, rules: FaultRules, ports: dict[int, int]) -> None:
        self._rules = rules
        self._ports = ports
        self._asked: deque[_Answer] = deque()
        """What the broker has to answer."""
        self._in_order: asyncio.Queue[_Answer] = asyncio.Queue()
        """What the client waits for."""

    async def pass_requests(
        self, reader: asyncio.StreamReader, to_broker: asyncio.StreamWriter
    ) -> None:
        """Pass requests on until the client or the broker ends the connection."""
        try:
            while True:
                content = await _frame_of(reader)
                if self._is_passed_on(content):
                    to_broker.write(frame.FRAME_SIZE.pack(len(content)) + content)
                    await to_broker.drain()
        except (OSError, EOFError, ProtocolFault):
            return

    def _is_passed_on(self, content: bytes) -> bool:
        """Note who waits for what; whether the broker gets the request."""
        try:
            api_key, version, correlation_id, _, position = frame.parse_request_header(
                content, 0, len(content)
            )
        except ProtocolFault:
            return True  # the broker closes the connection
        answer = _Answer(api_key, version, correlation_id)
        error = self._rules.next_failure(api_key)
        if error == _NO_FAULT:
            if api_key != PRODUCE or _is_answered(version, content, position):
                self._asked.append(answer)
                self._in_order.put_nowait(answer)
            return True
        self._in_order.put_nowait(answer)
        answer.come(_refused(answer, content, position, error))
        return False

    async def take_answers(self, from_broker: asyncio.StreamReader) -> None:
        """Take answers until the broker ends the connection: then the client's ends, behind what it
        gets."""
        try:
            while True:
                content = await _frame_of(from_broker)
                answer = self._asked.popleft()
                answer.come(self._with_our_ports(answer, content))
        except (OSError, EOFError, ProtocolFault, IndexError):
            pass  # gone, or it answers what nobody asked
        for answer in self._asked:
            answer.come(b"")
        end = _Answer(PRODUCE, 0, 0)
        end.come(b"")
        self._in_order.put_nowait(end)

    def _with_our_ports(self, answer: _Answer, content: bytes) -> bytes:
        whole = frame.FRAME_SIZE.pack(len(content)) + content
        if not names_addresses(answer.api_key):
            return whole
        name = f"{name_of(answer.api_key)}Response"
        try:
            _, position = frame.parse_response_header(answer.api_key, answer.version, content)
            message = codec.decode_all(name, answer.version, content, position)
        except ProtocolFault:
            return whole
        if not move_ports(message, self._ports):
            return whole
        body = codec.encode(name, answer.version, message)
        return frame.response_frame(answer.api_key, answer.version, answer.correlation_id, body)

    async def pass_answers(self, writer: asyncio.StreamWriter) -> None:
        """Pass answers on in the order of the requests, each when it is due, until one is the
        end."""
        try:
            while True:
                answer = await self._in_order.get()
                content = await answer.came
                if not content:
                    return
                due = answer.came_at + self._rules.delay_s(answer.api_key)
                late_s = due - asyncio.get_running_loop().time()
                if late_s > 0:
                    await asyncio.sleep(late_s)
                writer.write(content)
                await writer.drain()
        except OSError:
            return


async def _frame_of(reader: asyncio.StreamReader) -> bytes:
    """A frame's content; EOFError at the end."""
    size = frame.frame_size(await reader.readexactly(4), 0, FRAME_BYTES_MAX)
    return await reader.readexactly(size)


def _is_answered(version: int, content: bytes, position: int) -> bool:
    """Whether a Produce has acks other than 0."""
    try:
        return bool(codec.decode_request("Produce", version, content, position)["acks"])
    except ProtocolFault:
        return True


def _refused(answer: _Answer, content: bytes, position: int, error: int) -> bytes:
    """The frame of a refusal; b"" where the connection has to end instead."""
    if error == DISCONNECT:
        return b""
    name = name_of(answer.api_key)
    try:
        request = codec.decode_request(name, answer.version, content, position)
    except ProtocolFault:
        return b""
    if answer.api_key == PRODUCE and not request["acks"]:
        return b""
    refusal = refusal_of(answer.api_key, answer.version, request, error)
    if refusal is None:
        return b""
    body = codec.encode_response(name, answer.version, refusal)
    return frame.response_frame(answer.api_key, answer.version, answer.correlation_id, body)
