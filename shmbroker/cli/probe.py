"""What answers at an address: asked before the client library is, which retries without a word.

librdkafka takes a wrong port for a broker that is down for a moment, and tries again until a record
or a question times out. So one request that every Kafka answers, to anybody, is sent first
(ApiVersions 0), or a TLS handshake where -X asks for TLS; what comes back instead has a name.

Certificates and passwords are left to the client library; this only tells protocols apart.
"""

import errno
import socket
import struct
import threading
from typing import Any, NamedTuple

from shmbroker import clock, unix
from shmbroker.client.addresses import Address, is_unix

CONNECT_S = 4.0
"""The time for all addresses together: name, connection and first answer."""
SECOND_LOOK_S = 1.0
"""The time for finding out what it is that is no Kafka."""

_CORRELATION_ID = 0x73686D62
_CLIENT_ID = b"shmbroker-cli"
_API_VERSIONS = struct.pack(">hhih", 18, 0, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
_REQUEST = struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS
_ANSWER_BYTES_MAX = 1 << 20


class ProbeRefusal(NamedTuple):
    """Why an address is of no use."""

    text: str
    """What goes on after the address; of one that is not reached, after "cannot reach …: "."""
    is_reached: bool = True
    """Whether something accepted the connection."""


def refusal_of(address: Address, is_tls: bool, wait_s: float = CONNECT_S) -> ProbeRefusal | None:
    """None if a Kafka (or, with `is_tls`, a TLS server) answers there, else what is wrong."""
    if is_unix(address):
        return _unix_refusal(address, wait_s)
    deadline = clock.monotonic() + wait_s
    try:
        resolved = _resolved(address, wait_s)
    except OSError as error:
        return ProbeRefusal(_name_words(error, wait_s), is_reached=False)
    try:
        connected = _connected(resolved, deadline)
    except OSError as error:
        return ProbeRefusal(_words(error, wait_s), is_reached=False)
    with connected:
        return _tls_refusal(connected, address) if is_tls else _plain_refusal(connected, address)


def _unix_refusal(address: Address, wait_s: float) -> ProbeRefusal | None:
    try:
        connected = unix.connect(address[0], wait_s)
    except OSError as error:
        return ProbeRefusal(_words(error, wait_s), is_reached=False)
    with connected:
        return _plain_refusal(connected, address)


def _resolved(address: Address, wait_s: float) -> list[Address]:
    """The numeric addresses of a name; a resolver that doesn't answer is not waited for."""
    found: list[Any] = []

    def resolve() -> None:
        try:
            found.extend(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))
        except OSError as error:
            found.append(error)
        except UnicodeError:  # an empty label, or one of more than 63 characters
            found.append(socket.gaierror(socket.EAI_NONAME, "no name of a host"))

    resolver = threading.Thread(target=resolve, daemon=True)
    resolver.start()
    resolver.join(wait_s)
    if not found:
        raise TimeoutError
    if isinstance(found[0], OSError):
        raise found[0]
    return [row[4][:2] for row in found]


def _connected(addresses: list[Address], deadline: float) -> socket.socket:
    """A connection to the first that accepts one; it waits for as long as is left."""
    reason: OSError = TimeoutError()
    for address in addresses:
        left = deadline - clock.monotonic()
        if left <= 0:
            break
        try:
            connected = socket.create_connection(address, left)
        except OSError as error:
            reason = error
        else:
            connected.settimeout(max(deadline - clock.monotonic(), 0.1))
            return connected
    raise reason


def _name_words(error: OSError, wait_s: float) -> str:
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        return "there is no host of that name"
    return f"its name is not resolved ({_words(error, wait_s)})"


def _words(error: OSError, wait_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {wait_s:.0f} s"
    if error.errno == errno.ECONNREFUSED:
        return "connection refused"
    return (error.strerror or str(error)).lower()


# --- what is there -------------------------------------------------------------------------------


def _plain_refusal(connected: socket.socket, address: Address) -> ProbeRefusal | None:
    wait_s = connected.gettimeout() or 0.0
    try:
        connected.sendall(_REQUEST)
        # A server that reads lines never answers this; one that is slow has the other half.
        connected.settimeout(wait_s / 2)
        answer = _first_bytes(connected)
        if answer is None and not is_unix(address) and _answers_http(address):
            answer = b"HTTP/"
        if answer is None:
            connected.settimeout(wait_s / 2)
            answer = _first_bytes(connected)
    except OSError:
        answer = b""
    if answer is None:
        return ProbeRefusal("accepts connections but gives no Kafka answer: is it the right port?")
    if _is_kafka(answer):
        return None
    if is_unix(address):
        return ProbeRefusal("gives no Kafka answer: is it the right socket?")
    if answer[:2] == b"\x15\x03" or (not answer and _handshake(address) is None):
        return ProbeRefusal("speaks TLS: add -X security.protocol=SSL, or a --profile")
    if answer[:5] == b"HTTP/" or (not answer and _answers_http(address)):
        return ProbeRefusal("is an HTTP server, not a Kafka broker: is it the right port?")
    if answer:
        return ProbeRefusal(f"answers {answer!r}, which is not Kafka: is it the right port?")
    return ProbeRefusal("closes the connection when it gets a Kafka request: is it the right port?")


def _tls_refusal(connected: socket.socket, address: Address) -> ProbeRefusal | None:
    fault = _shaken(connected, address[0])
    if fault is None:
        return None
    try:
        with socket.create_connection(address, SECOND_LOOK_S) as again:
            again.settimeout(SECOND_LOOK_S)
            again.sendall(_REQUEST)
            is_kafka = _is_kafka(_first_bytes(again) or b"")
    except OSError:
        is_kafka = False
    if is_kafka:
        return ProbeRefusal(
            "speaks Kafka without TLS: leave out security.protocol, or name its TLS port"
        )
    return ProbeRefusal(f"does not speak TLS ({fault}): is it the right port?")


def _first_bytes(connected: socket.socket) -> bytes | None:
    """Up to 8 bytes of an answer, less if it ends before; None if there is none in time."""
    found = b""
    try:
        while len(found) < 8 and (part := connected.recv(8 - len(found))):
            found += part
            if found[:2] == b"\x15\x03":
                break
    except TimeoutError:
        return found or None
    except OSError:
        pass
    return found


def _is_kafka(answer: bytes) -> bool:
    if len(answer) < 8:
        return False
    size, correlation_id = struct.unpack(">ii", answer)
    return bool(correlation_id == _CORRELATION_ID and 4 <= size <= _ANSWER_BYTES_MAX)


def _answers_http(address: Address) -> bool:
    try:
        with socket.create_connection(address, SECOND_LOOK_S) as connected:
            connected.settimeout(SECOND_LOOK_S)
            connected.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return (_first_bytes(connected) or b"")[:5] == b"HTTP/"
    except OSError:
        return False


def _handshake(address: Address) -> str | None:
    """None if TLS is spoken there, else what came instead."""
    try:
        with socket.create_connection(address, SECOND_LOOK_S) as connected:
            connected.settimeout(SECOND_LOOK_S)
            return _shaken(connected, address[0])
    except OSError as error:
        return _words(error, SECOND_LOOK_S)


def _shaken(connected: socket.socket, host: str) -> str | None:
    """`_handshake` over a connection. A server that refuses us by an alert speaks TLS."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(connected, server_hostname=host).close()
    except ssl.SSLEOFError:
        return "it closes the connection"
    except ssl.SSLError as error:
        return None if "ALERT" in (error.reason or "") else "something else comes back"
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return _words(error, SECOND_LOOK_S)
    return None
