"""One connection to a broker: requests out, decoded answers in.

    Exchange     numbers requests and matches answers to them; has no socket
    Connection   an Exchange over a socket that blocks: TCP, or a broker's control socket

The producer's never block: `producer.connection` has them, around the same Exchange.

Rules:

* Answers come in the order of the requests. Who sends a second request before it has received the
  first answer must receive both, or close.
* Every wait of a Connection ends after the socket's timeout.
* A connection is made with TLS and SASL where its `Security` says so, and renews its session before
  a request, when that is due and no answer is still to come.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Mapping

from shmbroker import clock, tcp, unix
from shmbroker.client.addresses import Address, addresses_text, is_unix
from shmbroker.client.faults import AuthenticationFault
from shmbroker.client.security import OPEN, Security
from shmbroker.client.versions import PLAIN
from shmbroker.errors import ProtocolFault
from shmbroker.wire import codec, frame
from shmbroker.wire.api_keys import API_VERSIONS, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message


FRAME_BYTES_MAX = 256 << 20
CONNECT_S_MAX = 5.0
_TLS_ALERT = b"\x15\x03"
"""What a TLS server answers to a request in the clear; no frame is as large."""


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

    __slots__ = ("_has_answered", "_security", "exchange", "renew_s", "socket", "versions")

    def __init__(
        self,
        connected: socket.socket,
        name: str,
        client_id: str,
        versions: Mapping[int, int] = PLAIN,
        security: Security = OPEN,
    ) -> None:
        self.socket = connected
        self.versions = versions
        self.exchange = Exchange(name, client_id)
        self.renew_s: float | None = None
        """When it must be said again who we are, by the monotonic clock; None: never."""
        self._security = security
        self._has_answered = False

    @property
    def name(self) -> str:
        """Host and port."""
        return self.exchange.name

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self.exchange.waiting)

    def close(self) -> None:
        """End it; answers that are still to come are lost."""
        self.socket.close()

    def is_due(self) -> bool:
        """Whether the session must be renewed."""
        return self.renew_s is not None and clock.monotonic() >= self.renew_s

    def authenticate(self) -> None:
        """Say who we are; AuthenticationFault if that is not believed."""
        from shmbroker.client.sasl import authenticate

        def ask(api_key: int, body: Message, version: int) -> Message:
            self.socket.sendall(self.exchange.request(api_key, version, body))
            return self.receive()

        began_s = clock.monotonic()
        seconds = authenticate(ask, self._security, self.name)
        self.renew_s = began_s + seconds if seconds else None

    def ask(self, api_key: int, body: Message, version: int | None = None) -> Message:
        """The decoded answer; OSError if the connection ends, ProtocolFault if it is no answer."""
        self.send(api_key, body, version)
        return self.receive()

    def send(self, api_key: int, body: Message, version: int | None = None) -> None:
        """Send one request; OSError if the connection ends."""
        if self.renew_s is not None and not self.is_waiting and self.is_due():
            self.authenticate()
        version = self.versions[api_key] if version is None else version
        self.socket.sendall(self.exchange.request(api_key, version, body))

    def receive(self) -> Message:
        """The answer to the oldest request that has none yet; records in it are not copied."""
        head = self._exactly(4)
        if head[:2] == _TLS_ALERT:
            raise AuthenticationFault(f"{self.name} speaks TLS: set security.protocol")
        size = frame.frame_size(head, 0, FRAME_BYTES_MAX)
        content = self._exactly(size)
        if not self._has_answered and self.exchange.waiting:
            # ApiVersions is answered to anybody
            self._has_answered = self.exchange.waiting[0][1] != API_VERSIONS
        return self.exchange.answer(content)

    def _exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while len(view):
            got = self.socket.recv_into(view)
            if not got:
                hint = "" if self._has_answered or self._security != OPEN else _HINT
                raise ConnectionError(f"{self.name} closed the connection{hint}")
            view = view[got:]
        return buffer


_HINT = " (if it wants TLS or SASL: security.protocol)"


def connect(
    address: Address,
    timeout_s: float,
    client_id: str,
    versions: Mapping[int, int] = PLAIN,
    security: Security = OPEN,
) -> Connection:
    """A connection over TCP or a Unix socket, with TLS and SASL; OSError if nobody is there,
    AuthenticationFault if one side does not believe the other."""
    name = addresses_text([address])
    connected = _dial(address, min(timeout_s, CONNECT_S_MAX))
    try:
        if security.is_encrypted and not is_unix(address):
            from shmbroker.client.tls import encrypted

            connected = encrypted(connected, address[0], security, name)
        connected.settimeout(timeout_s)
        made = Connection(connected, name, client_id, versions, security)
        if security.is_named and not is_unix(address):
            made.authenticate()
    except BaseException:
        connected.close()
        raise
    return made


def _dial(address: Address, timeout_s: float) -> socket.socket:
    if not is_unix(address):
        try:
            connected = socket.create_connection(address, timeout_s)
        except UnicodeError:  # an empty label, or one of more than 63 characters
            raise ConnectionError(f"{address[0]} can't be the name of a host") from None
        tcp.tune(connected)
        return connected
    path = address[0]
    try:
        return unix.connect(path, timeout_s)
    except PermissionError:
        from shmbroker.client.reader.access import forbidden

        raise AuthenticationFault(forbidden(path, "open", os.W_OK).text) from None
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None


def connect_control(
    data: str, timeout_s: float, client_id: str, versions: Mapping[int, int]
) -> Connection:
    """A connection to the control socket of the family that works on a data directory; OSError if
    nobody is there, or it may not be opened."""
    control = unix.connect(os.path.join(data, unix.CONTROL_SOCKET), timeout_s)
    return Connection(control, "the control socket", client_id, versions)
