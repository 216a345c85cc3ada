"""One connection to a broker, over TCP or its control socket: requests out, decoded answers in.

Answers come in the order of the requests; who sends a second request before it has received the
first answer must receive both, or close. Every wait ends after the socket's timeout.
"""

import socket
from typing import Any

from shmbroker import tcp
from shmbroker.errors import ConfigFault, ProtocolFault
from shmbroker.wire import codec, frame
from shmbroker.wire.api_keys import (
    API_VERSIONS,
    DESCRIBE_LOG_DIRS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    LIST_SEGMENTS,
    METADATA,
    OFFSET_COMMIT,
    name_of,
)

VERSIONS = {
    API_VERSIONS: 3,
    METADATA: 12,  # the first with topic ids in requests and answers
    LIST_OFFSETS: 7,
    FETCH: 13,  # the first that names topics by id, so that one made again is noticed
    FIND_COORDINATOR: 4,
    OFFSET_COMMIT: 8,
    DESCRIBE_LOG_DIRS: 4,
    LIST_SEGMENTS: 0,
}
"""The one version of each API that is used; all but the last are Apache Kafka's since 3.1."""

FRAME_BYTES_MAX = 256 << 20
CONNECT_S_MAX = 5.0


class Connection:
    """A connected socket; `name` is for messages."""

    __slots__ = ("client_id", "correlation_id", "name", "socket", "waiting")

    def __init__(self, connected: socket.socket, name: str, client_id: str) -> None:
        self.socket = connected
        self.name = name
        self.client_id = client_id
        self.correlation_id = 0
        self.waiting: list[int] = []  # api keys of the answers to come

    def close(self) -> None:
        """End it; answers that are still to come are lost."""
        self.socket.close()

    def ask(self, api_key: int, body: dict[str, Any]) -> dict[str, Any]:
        """The decoded answer; OSError if the connection ends, ProtocolFault if it is no answer."""
        self.send(api_key, body)
        return self.receive()

    def send(self, api_key: int, body: dict[str, Any]) -> None:
        """Send one request; OSError if the connection ends."""
        version = VERSIONS[api_key]
        self.correlation_id += 1
        encoded = codec.encode(f"{name_of(api_key)}Request", version, body)
        self.socket.sendall(
            frame.request_frame(api_key, version, self.correlation_id, self.client_id, encoded)
        )
        self.waiting.append(api_key)

    def receive(self) -> dict[str, Any]:
        """The answer to the oldest request that has none yet; records in it are not copied."""
        api_key = self.waiting.pop(0)
        version = VERSIONS[api_key]
        size = frame.frame_size(self._exactly(4), 0, FRAME_BYTES_MAX)
        content = self._exactly(size)
        correlation_id, position = frame.parse_response_header(api_key, version, content)
        if correlation_id != self.correlation_id - len(self.waiting):
            raise ProtocolFault(f"{self.name} answers request {correlation_id} out of order")
        return codec.decode_all(f"{name_of(api_key)}Response", version, content, position)

    def _exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while len(view):
            got = self.socket.recv_into(view)
            if not got:
                raise ConnectionError(f"{self.name} closed the connection")
            view = view[got:]
        return buffer


def connect(host: str, port: int, timeout_s: float, client_id: str) -> Connection:
    """A connection over TCP; OSError if nobody is there."""
    connected = socket.create_connection((host, port), min(timeout_s, CONNECT_S_MAX))
    connected.settimeout(timeout_s)
    tcp.tune(connected)
    return Connection(connected, f"{host}:{port}", client_id)


def parse_addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """ "host:port,host:port" as pairs; ConfigFault if there is none or one is not that."""
    found = []
    for text in filter(None, map(str.strip, bootstrap_servers.split(","))):
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigFault(f"kafka.bootstrap.servers: {text!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ConfigFault("kafka.bootstrap.servers names no broker: give HOST:PORT")
    return found
