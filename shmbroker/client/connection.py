"""One connection to a broker: requests out, decoded answers in.

    Exchange     numbers requests and matches answers to them; has no socket
    Connection   an Exchange over a socket that blocks: TCP, or a broker's control socket

The producer's never block: `producer.connection` has them, around the same Exchange.

Rules:

* Answers come in the order of the requests. Who sends a second request before it has received the
  first answer must receive both, or close.
* Every wait of a Connection ends after the socket's timeout.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Mapping

from shmbroker import tcp
from shmbroker.client.addresses import Address, addresses_text
from shmbroker.client.versions import PLAIN
from shmbroker.errors import ProtocolFault
from shmbroker.wire import codec, frame
from shmbroker.wire.api_keys import name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message


FRAME_BYTES_MAX = 256 << 20
CONNECT_S_MAX = 5.0
CONTROL_SOCKET = "control.sock"
"""In the data directory of a broker family of this host."""


class Exchange:
    """The requests of one connection that wait for an answer; `name` is for messages."""

    __slots__ = ("_correlation_id", "client_id", "name", "waiting")

    def __init__(self, name: str, client_id: str) -> None:
        self.name = name
        self.client_id = client_id
        self.waiting: deque[tuple[int, int, int]] = deque()
        """Correlation id, api key and version of the answers to come, the next one first."""
        self._correlation_id = 0

    def next_id(self, api_key: int, version: int, is_answered: bool = True) -> int:
        """The correlation id of a request that goes out now."""
        self._correlation_id += 1
        if is_answered:
            self.waiting.append((self._correlation_id, api_key, version))
        return self._correlation_id

    def request(self, api_key: int, version: int, body: Message) -> bytes:
        """The frame of a request that goes out now."""
        encoded = codec.encode(f"{name_of(api_key)}Request", version, body)
        number = self.next_id(api_key, version)
        return frame.request_frame(api_key, version, number, self.client_id, encoded)

    def answer(self, content: bytes | bytearray) -> Message:
        """The answer in a frame's content; records in it are not copied. ProtocolFault if it is
        not the answer to the oldest request that has none yet."""
        if not self.waiting:
            raise ProtocolFault(f"{self.name} answers without being asked")
        expected, api_key, version = self.waiting.popleft()
        correlation_id, position = frame.parse_response_header(api_key, version, content)
        if correlation_id != expected:
            raise ProtocolFault(f"{self.name} answers request {correlation_id} out of order")
        return codec.decode_all(f"{name_of(api_key)}Response", version, content, position)


class Connection:
    """A connected socket that blocks; `versions` are those it speaks."""

    __slots__ = ("_exchange", "socket", "versions")

    def __init__(
        self,
        connected: socket.socket,
        name: str,
        client_id: str,
        versions: Mapping[int, int] = PLAIN,
    ) -> None:
        self.socket = connected
        self.versions = versions
        self._exchange = Exchange(name, client_id)

    @property
    def name(self) -> str:
        """Host and port."""
        return self._exchange.name

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._exchange.waiting)

    def close(self) -> None:
        """End it; answers that are still to come are lost."""
        self.socket.close()

    def ask(self, api_key: int, body: Message, version: int | None = None) -> Message:
        """The decoded answer; OSError if the connection ends, ProtocolFault if it is no answer."""
        self.send(api_key, body, version)
        return self.receive()

    def send(self, api_key: int, body: Message, version: int | None = None) -> None:
        """Send one request; OSError if the connection ends."""
        version = self.versions[api_key] if version is None else version
        self.socket.sendall(self._exchange.request(api_key, version, body))

    def receive(self) -> Message:
        """The answer to the oldest request that has none yet; records in it are not copied."""
        size = frame.frame_size(self._exactly(4), 0, FRAME_BYTES_MAX)
        return self._exchange.answer(self._exactly(size))

    def _exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while len(view):
            got = self.socket.recv_into(view)
            if not got:
                raise ConnectionError(f"{self.name} closed the connection")
            view = view[got:]
        return buffer


def connect(
    address: Address, timeout_s: float, client_id: str, versions: Mapping[int, int] = PLAIN
) -> Connection:
    """A connection over TCP; OSError if nobody is there."""
    connected = socket.create_connection(address, min(timeout_s, CONNECT_S_MAX))
    connected.settimeout(timeout_s)
    tcp.tune(connected)
    return Connection(connected, addresses_text([address]), client_id, versions)


def connect_control(
    data: str, timeout_s: float, client_id: str, versions: Mapping[int, int]
) -> Connection:
    """A connection to the control socket of the family that works on a data directory; OSError if
    nobody is there, or it may not be opened."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.settimeout(timeout_s)
    try:
        # A Unix address holds 108 bytes, so the directory is named by a descriptor.
        directory = os.open(data, os.O_PATH | os.O_DIRECTORY)
        try:
            control.connect(f"/proc/self/fd/{directory}/{CONTROL_SOCKET}")
        finally:
            os.close(directory)
    except OSError:
        control.close()
        raise
    return Connection(control, "the control socket", client_id, versions)
