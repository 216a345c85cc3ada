"""All that can be said to a door before it opens, and what must hold whatever is said.

A talk is bytes, read as pieces: a kind, a length of two bytes, and so many bytes.

   0  sent as they are            3  SaslAuthenticate, version 2, with these auth bytes
   1  sent as a frame             4  the same in version 0
   2  SaslHandshake, version 1,   5  ApiVersions; the first byte is its version
      for the mechanism named     6  seconds pass: as many as the first byte says, up to 60
   7  SaslHandshake, version 0: bare frames follow

What comes behind the last whole piece is sent as it is. `Trial.talk` holds a talk with a real
gateway over a real socket, in this process and on a clock of its own.

After each: no exception has left the gateway, no line of the log has a traceback or is an error;
what is kept of frames is bounded, and nothing of a connection that is gone; nobody is admitted who
has not said the password; the connection is answered and open, or closed with one line at most; who
says nothing more is closed in time; and the next client is served.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from shmbroker.gateway.connection import Connection
from shmbroker.gateway.sasl_door import SaslDoor
from shmbroker.metadata.security_image import ScramCredential, scram_record
from shmbroker.security.acls import ANONYMOUS
from shmbroker.settings.listeners import SASL_PLAINTEXT, ListenerConfig
from shmbroker.wire import codec
from shmbroker.wire.frame import request_frame
from tests.support.gateway_family import GatewayFamily

USER, PASSWORD = "alice", "alice-secret"
AS_THEY_ARE, FRAME, HANDSHAKE, AUTHENTICATE, AUTHENTICATE_0, VERSIONS, TIME, HANDSHAKE_0 = range(8)
KEPT_BYTES_MAX = 128 * 1024
TURNS_MAX = 5000
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = (
    "listeners=DOOR://127.0.0.1:9092",
    "listener.security.protocol.map=DOOR:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f'listener.name.door.plain.sasl.jaas.config={PLAIN_MODULE} user_{USER}="{PASSWORD}";',
    "connections.max.reauth.ms=30000",
)
LISTENER = ListenerConfig("DOOR", SASL_PLAINTEXT, "127.0.0.1", 0)


def piece(kind: int, content: bytes = b"") -> bytes:
    """One piece of a talk."""
    return bytes((kind,)) + len(content).to_bytes(2, "big") + content


def pieces(talk: bytes) -> list[tuple[int, bytes]]:
    """The pieces of any bytes."""
    found = []
    at = 0
    while len(talk) - at >= 3:
        kind, size = talk[at] % 8, int.from_bytes(talk[at + 1 : at + 3], "big")
        if len(talk) - at - 3 < size:
            break
        found.append((kind, talk[at + 3 : at + 3 + size]))
        at += 3 + size
    if at < len(talk):
        found.append((AS_THEY_ARE, talk[at:]))
    return found


def frame_of(kind: int, content: bytes) -> bytes:
    """The bytes of a piece on the wire."""
    if kind == FRAME:
        return len(content).to_bytes(4, "big") + content
    if kind in (HANDSHAKE, HANDSHAKE_0):
        body = {"mechanism": content.decode(errors="replace")[:1000]}
        version = int(kind == HANDSHAKE)
        return request_frame(17, version, 7, "c", codec.encode("SaslHandshakeRequest", 1, body))
    if kind in (AUTHENTICATE, AUTHENTICATE_0):
        version = 2 if kind == AUTHENTICATE else 0
        body = codec.encode("SaslAuthenticateRequest", version, {"auth_bytes": content})
        return request_frame(36, version, 7, "c", body)
    if kind == VERSIONS:
        version = content[0] % 6 if content else 3
        known = {"client_software_name": "n", "client_software_version": "1"}
        body = codec.encode("ApiVersionsRequest", min(version, 4), known)
        return request_frame(18, version, 7, "c", body)
    return content


class Lines(logging.Handler):
    """What is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Trial:
    """A gateway behind a door, for one talk after the other."""

    def __init__(self) -> None:
        self.family = GatewayFamily(*SETTINGS, listener=LISTENER)
        mechanisms = ((1, 32), (2, 64))
        for code, size in mechanisms:
            kept = ScramCredential(b"salt" * 4, bytes(size), bytes(size), 4096)
            row = "UserScramCredentialRecord", 0, scram_record(USER, code, kept)
            self.family.link.commit(row)
        self.family.client.close()
        self._until(lambda: not self.family.gateway.loop.connections)
        [listener] = self.family.gateway.loop.listeners.values()
        assert isinstance(listener.door, SaslDoor)
        self.lines = Lines()
        logging.getLogger("shmbroker").addHandler(self.lines)

    def close(self) -> None:
        logging.getLogger("shmbroker").removeHandler(self.lines)
        self.family.close()

    def talk(self, talk: bytes) -> str:
        """Hold it; AssertionError for what must not be. What came of it, for who counts."""
        loop = self.family.gateway.loop
        self.lines.records.clear()
        with socket.create_connection(self.family.listening.getsockname()) as client:
            client.setblocking(False)
            self._until(lambda: bool(loop.connections))
            [connection] = loop.connections.values()
            said = b""
            for kind, content in pieces(talk):
                if kind == TIME:
                    self.family.clock.now += min(content[0], 60) if content else 1
                else:
                    said += content
                    _send(client, frame_of(kind, content))
                self._turns(3)
                self._check(connection)
            is_known = connection.principal != ANONYMOUS
            assert not is_known or PASSWORD.encode() in said + talk, "admitted without the password"
            answered = _received(client)
            outcome = "closed" if connection.is_closed else "admitted" if is_known else "open"
            if outcome == "open":
                # Who says nothing more has its time, and no more.
                self.family.clock.now += 61
                self._until(lambda: connection.is_closed)
            elif outcome == "closed":
                closed = [each for each in self.lines.records if _is_of(each, client)]
                assert len(closed) <= 1, [each.getMessage() for each in closed]
        self.family.clock.now += 1  # the answer to who was refused comes late
        self._until(lambda: not loop.connections)
        assert not loop.memory.used and not loop.unsent
        self._check_lines()
        self._serve()
        return f"{outcome}, {'answered' if answered else 'not answered'}"

    def _turns(self, count: int) -> None:
        for _ in range(count):
            self.family.gateway.turn(self.family.poller.poll(0))

    def _until(self, condition: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if condition():
                return
            self.family.gateway.turn(self.family.poller.poll(0.001))
        raise AssertionError("it never came to that")

    def _check(self, connection: Connection) -> None:
        loop = self.family.gateway.loop
        if connection.principal == ANONYMOUS:
            assert loop.memory.used <= KEPT_BYTES_MAX
            assert loop.unsent <= KEPT_BYTES_MAX
            assert len(connection.inflight) <= 1
            assert not self.family.gateway.pending, "asked of somebody before it was known"

    def _check_lines(self) -> None:
        for record in self.lines.records:
            assert record.levelno < logging.ERROR and not record.exc_info, record.getMessage()
            assert PASSWORD not in record.getMessage()

    def _serve(self) -> None:
        """The next client is served."""
        with socket.create_connection(self.family.listening.getsockname()) as client:
            client.sendall(frame_of(VERSIONS, b"\3"))
            client.setblocking(False)
            self._until(lambda: bool(_received(client)))
        self._until(lambda: not self.family.gateway.loop.connections)


def _send(client: socket.socket, data: bytes) -> None:
    try:
        client.send(data)
    except OSError:
        pass  # it was closed


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 20)
    except OSError:
        return b""


def _is_of(record: logging.LogRecord, client: socket.socket) -> bool:
    host, port = client.getsockname()[:2]
    return f"{host}:{port}" in record.getMessage()


def first_messages() -> dict[str, bytes]:
    """Talks to begin with: what clients say, and what none should."""
    plain = b"\0" + USER.encode() + b"\0" + PASSWORD.encode()
    first = b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL"
    final = b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    by_plain, by_scram = piece(HANDSHAKE, b"PLAIN"), piece(HANDSHAKE, b"SCRAM-SHA-256")
    good = piece(VERSIONS, b"\3") + by_plain + piece(AUTHENTICATE, plain)
    scram = by_scram + piece(AUTHENTICATE, first)
    metadata = request_frame(3, 1, 7, "c", b"\0\0\0\0")
    said = (VERSIONS, b"\3"), (HANDSHAKE, b"PLAIN"), (AUTHENTICATE, plain)
    frames = [frame_of(*each) for each in said]

    def size_of(size: int) -> bytes:
        return size.to_bytes(4, "big")

    talks: dict[str, bytes] = {
        "plain": good,
        "plain_bare": piece(HANDSHAKE_0, b"PLAIN") + piece(FRAME, plain),
        "plain_and_a_request": good + piece(AS_THEY_ARE, metadata),
        "plain_wrong": by_plain + piece(AUTHENTICATE, b"\0alice\0wrong") + piece(TIME),
        "plain_for_another": by_plain + piece(AUTHENTICATE, b"bob" + plain),
        "plain_without_a_user": by_plain + piece(AUTHENTICATE, b"\0\0\0"),
        "plain_not_utf8": by_plain + piece(AUTHENTICATE, b"\0\xff\0\xff"),
        "again_in_time": good + piece(TIME, b"\x14") + by_plain + piece(AUTHENTICATE, plain),
        "again_by_another_mechanism": good + piece(TIME, b"\x14") + scram,
        "again_too_late": good + piece(TIME, b"\x3c") + piece(AS_THEY_ARE, metadata),
        "scram": scram + piece(AUTHENTICATE, final) + piece(TIME),
        "scram_512": piece(HANDSHAKE, b"SCRAM-SHA-512") + piece(AUTHENTICATE_0, first),
        "scram_bare": piece(HANDSHAKE_0, b"SCRAM-SHA-256") + piece(FRAME, first),
        "scram_first_twice": scram + piece(AUTHENTICATE, first),
        "scram_channel_binding": by_scram + piece(AUTHENTICATE, b"p=tls-unique,,n=alice,r=x"),
        "scram_of_nobody": by_scram + piece(AUTHENTICATE, b"n,,n=nobody,r=x"),
        "scram_without_handshake": piece(AUTHENTICATE, first),
        "mechanism_switched_half_way": scram + by_plain + piece(AUTHENTICATE, plain),
        "unknown_mechanism": piece(HANDSHAKE, b"GSSAPI"),
        "versions_after_handshake": by_plain + piece(VERSIONS, b"\3"),
        "versions_twice": piece(VERSIONS, b"\3") * 2,
        "versions_unknown": piece(VERSIONS, b"\5"),
        "a_request_at_once": piece(AS_THEY_ARE, metadata),
        "produce_at_once": piece(FRAME, b"\0\0\0\x0b" + bytes(60)),
        "frame_too_large": piece(AS_THEY_ARE, size_of(64 * 1024 + 1)),
        "frame_as_large_as_it_may": piece(AS_THEY_ARE, size_of(64 * 1024) + bytes(60000)),
        "frame_of_nothing": piece(FRAME),
        "frame_of_a_byte": piece(FRAME, b"\0"),
        "frame_of_a_negative_size": piece(AS_THEY_ARE, b"\xff\xff\xff\xff"),
        "half_a_frame": piece(AS_THEY_ARE, metadata[:9]),
        "byte_by_byte": b"".join(piece(AS_THEY_ARE, bytes((each,))) for each in frames[1]),
        "three_frames_in_one": piece(AS_THEY_ARE, b"".join(frames)),
        "tls": piece(AS_THEY_ARE, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60)),
        "http": piece(AS_THEY_ARE, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        "silence": b"",
    }
    return talks


def main() -> None:
    """Write the talks to begin with into the corpus."""
    from pathlib import Path

    place = Path(__file__).parent / "corpus" / "door"
    place.mkdir(parents=True, exist_ok=True)
    for name, talk in first_messages().items():
        (place / name).write_bytes(talk)


if __name__ == "__main__":
    main()
