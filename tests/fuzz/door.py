"""All that can be said to a door before it opens, and what must hold whatever is said.

A talk is bytes, read as pieces: a kind, a length of two bytes, and so many bytes.

   0  sent as they are            3  SaslAuthenticate, version 2, with these auth bytes
   1  sent as a frame             4  the same in version 0
   2  SaslHandshake, version 1,   5  ApiVersions; the first byte is its version
      for the mechanism named     6  seconds pass: as many as the first byte says, up to 60
   7  SaslHandshake, version 0: bare frames follow

What comes behind the last whole piece is sent as it is. With TLS, pieces of kind 0 go in between
its records, and all others into them, behind a handshake. `Trial.talk` holds a talk with a real
gateway over a real socket, in this process and on a clock of its own.

After each: no exception has left the gateway, no line of the log has a traceback or is an error;
what is kept of frames is bounded, and nothing of a connection that is gone; nobody is admitted who
has not said the password; the connection is answered and open, or closed with one line at most; who
says nothing more is closed in time; and the next client is served.
"""

from __future__ import annotations

import logging
import socket
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

from shmbroker.gateway.connection import Connection
from shmbroker.gateway.sasl_door import SaslDoor
from shmbroker.metadata.security_image import ScramCredential, scram_record
from shmbroker.security.acls import ANONYMOUS
from shmbroker.settings.listeners import SASL_PLAINTEXT, SASL_SSL, ListenerConfig
from shmbroker.wire import codec
from shmbroker.wire.frame import request_frame
from tests.support.certificates import Authority
from tests.support.gateway_family import GatewayFamily

USER, PASSWORD = "alice", "alice-secret"
AS_THEY_ARE, FRAME, HANDSHAKE, AUTHENTICATE, AUTHENTICATE_0, VERSIONS, TIME, HANDSHAKE_0 = range(8)
KEPT_BYTES_MAX = 128 * 1024
HANDSHAKE_STEPS = 20
TURNS_MAX = 5000
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = (
    "listeners=DOOR://127.0.0.1:9092",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    # Nobody has the private key to it.
    f"sasl.oauthbearer.jwks.endpoint.url={Path(__file__).with_name('jwks.json').as_uri()}",
    f'listener.name.door.plain.sasl.jaas.config={PLAIN_MODULE} user_{USER}="{PASSWORD}";',
    "connections.max.reauth.ms=30000",
)
CLEAR = ListenerConfig("DOOR", SASL_PLAINTEXT, "127.0.0.1", 0)
TLS = ListenerConfig("DOOR", SASL_SSL, "127.0.0.1", 0)


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


class Clear:
    """The client's side of a connection."""

    def __init__(self, client: socket.socket, turns: Callable[[int], None]) -> None:
        self.client = client
        self.turns = turns

    def send(self, kind: int, content: bytes) -> None:
        """One piece."""
        _send(self.client, frame_of(kind, content))

    def received(self) -> bytes:
        """What has come."""
        return _received(self.client)


class Sealed(Clear):
    """The same with TLS."""

    def __init__(self, client: socket.socket, turns: Callable[[int], None]) -> None:
        super().__init__(client, turns)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)
        self.is_open = False

    def send(self, kind: int, content: bytes) -> None:
        if kind == AS_THEY_ARE:
            _send(self.client, content)
            return
        try:
            self._shake_hands()
            self.tls.write(frame_of(kind, content))
        except (ssl.SSLError, OSError):
            pass  # it was closed, or is not open
        _send(self.client, self.outgoing.read())

    def _shake_hands(self) -> None:
        for _ in range(HANDSHAKE_STEPS):
            if self.is_open:
                return
            try:
                self.tls.do_handshake()
                self.is_open = True
            except ssl.SSLWantReadError:
                _send(self.client, self.outgoing.read())
                self.turns(3)
                self.incoming.write(_received(self.client))

    def received(self) -> bytes:
        self.incoming.write(_received(self.client))
        try:
            return self.tls.read(1 << 20)
        except (ssl.SSLError, OSError):
            return b""


class Trial:
    """A gateway behind a door, for one talk after the other."""

    def __init__(self, listener: ListenerConfig = CLEAR) -> None:
        """listener: CLEAR or TLS."""
        self.side = Sealed if listener is TLS else Clear
        more = ()
        if listener is TLS:
            signed = Authority().sign("CN=localhost")
            more = (
                f"ssl.keystore.certificate.chain={signed.certificate_pem}",
                f"ssl.keystore.key={signed.key_pem()}",
            )
        protocol = f"listener.security.protocol.map=DOOR:{listener.protocol}"
        self.family = GatewayFamily(*SETTINGS, protocol, *more, listener=listener)
        mechanisms = ((1, 32), (2, 64))
        for code, size in mechanisms:
            kept = ScramCredential(b"salt" * 4, bytes(size), bytes(size), 4096)
            row = "UserScramCredentialRecord", 0, scram_record(USER, code, kept)
            self.family.link.commit(row)
        self.family.client.close()
        self._until(lambda: not self.family.gateway.loop.connections)
        [listener] = self.family.gateway.loop.acceptor.listeners.values()
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
            side = self.side(client, self._turns)
            said = b""
            for kind, content in pieces(talk):
                if kind == TIME:
                    self.family.clock.now += min(content[0], 60) if content else 1
                else:
                    said += content
                    side.send(kind, content)
                self._turns(3)
                self._check(connection)
            is_known = connection.principal != ANONYMOUS
            assert not is_known or PASSWORD.encode() in said + talk, "admitted without the password"
            answered = side.received()
            outcome = "closed" if connection.is_closed else "admitted" if is_known else "open"
            if outcome == "open" or connection.stranger is not None:
                # Who says nothing more has its time, and no more.
                self.family.clock.now += 61
                self._until(lambda: connection.is_closed)
            if connection.is_closed:
                closed = [each for each in self.lines.records if _is_of(each, client)]
                assert len(closed) <= 1, [each.getMessage() for each in closed]
        self.family.clock.now += 1  # the answer to who was refused comes late
        self._until(lambda: not loop.connections)
        assert not loop.memory.used and not loop.slow_readers.unsent
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
            assert loop.slow_readers.unsent <= KEPT_BYTES_MAX
            assert len(connection.inflight) <= 1
            assert not self.family.gateway.pending, "asked of somebody before it was known"

    def _check_lines(self) -> None:
        for record in self.lines.records:
            assert record.levelno < logging.ERROR and not record.exc_info, record.getMessage()
            assert PASSWORD not in record.getMessage()

    def _serve(self) -> None:
        """The next client is served."""
        with socket.create_connection(self.family.listening.getsockname()) as client:
            client.setblocking(False)
            side = self.side(client, self._turns)
            self._until(lambda: bool(self.family.gateway.loop.connections))
            side.send(VERSIONS, b"\3")
            self._until(lambda: bool(side.received()))
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

    by_bearer = piece(HANDSHAKE, b"OAUTHBEARER")
    es256 = b'{"alg":"ES256","kid":"door"}'

    def jwt(head: bytes, signature: bytes) -> bytes:
        claims = b'{"sub":"alice","iat":1,"exp":9999999999}'
        return b".".join(urlsafe_b64encode(each).rstrip(b"=") for each in (head, claims, signature))

    def bearer(token: bytes) -> bytes:
        return piece(AUTHENTICATE, b"n,,\x01auth=Bearer " + token + b"\x01\x01")

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
        "again_begun_and_left": good + piece(TIME, b"\x14") + by_plain,
        "again_too_late": good + piece(TIME, b"\x3c") + piece(AS_THEY_ARE, metadata),
        "scram": scram + piece(AUTHENTICATE, final) + piece(TIME),
        "scram_512": piece(HANDSHAKE, b"SCRAM-SHA-512") + piece(AUTHENTICATE_0, first),
        "scram_bare": piece(HANDSHAKE_0, b"SCRAM-SHA-256") + piece(FRAME, first),
        "scram_first_twice": scram + piece(AUTHENTICATE, first),
        "scram_channel_binding": by_scram + piece(AUTHENTICATE, b"p=tls-unique,,n=alice,r=x"),
        "scram_of_nobody": by_scram + piece(AUTHENTICATE, b"n,,n=nobody,r=x"),
        "scram_without_handshake": piece(AUTHENTICATE, first),
        "mechanism_switched_half_way": scram + by_plain + piece(AUTHENTICATE, plain),
        "bearer_unsigned": by_bearer + bearer(jwt(b'{"alg":"none"}', b"")),
        "bearer_signed_by_nobody": by_bearer + bearer(jwt(es256, bytes(64))),
        "bearer_by_hmac_of_the_key": by_bearer + bearer(jwt(b'{"alg":"HS256"}', bytes(32))),
        "bearer_of_garbage": by_bearer + bearer(b"a.b.c") + piece(AUTHENTICATE, b"\x01"),
        "bearer_of_nothing": by_bearer + piece(AUTHENTICATE, b"n,a=bob,\x01auth=Bearer \x01\x01"),
        "bearer_without_end": by_bearer + bearer(b"e" * 60000),
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
