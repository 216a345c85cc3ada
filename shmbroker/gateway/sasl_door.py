"""SASL before a listener: the frames of clients that have yet to show who they are, and sessions
that end.

   frame ──► api key ──┬─ ApiVersions        answered as ever
                       ├─ SaslHandshake      ┐
                       ├─ SaslAuthenticate   ┼──► security.sasl.exchange ──► answer, admit, refuse
                       └─ a bare message     ┘

Rules of this file:
* Nothing else is decoded before a client has shown who it is. Its frames are small, and each waits
  for the answer to the one before.
* A refused client is told so late (connection.failed.authentication.delay.ms), so that guessing
  takes its time; meanwhile the worker does other things.
* A session that lasts as long as its connection costs nothing afterwards. One that ends has a
  `submits` of its own, which looks at the time: when it is over, all but SaslHandshake ends the
  connection (KIP-368).
"""

from __future__ import annotations

import secrets
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import Protocol

from shmbroker.errors import ProtocolFault
from shmbroker.gateway.inflight import Request
from shmbroker.gateway.jwks import Jwks
from shmbroker.security.sasl import bearer, plain, scram
from shmbroker.security.sasl.exchange import RAW, Offer, Said, SaslExchange
from shmbroker.security.sasl.jwt import JwtValidator
from shmbroker.wire import codec
from shmbroker.wire.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from shmbroker.wire.error_codes import ILLEGAL_SASL_STATE
from shmbroker.wire.frame import FRAME_SIZE, parse_request_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from shmbroker.clock import Clock
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.event_loop import EventLoop
    from shmbroker.gateway.later import Later
    from shmbroker.gateway.ports import Submit, Submits
    from shmbroker.security.sasl.offered import Offered, Tokens
    from shmbroker.security.sasl.outcome import Mechanism
    from shmbroker.security.sasl.scram import ScramCredentials

NAMES = {SASL_HANDSHAKE: "SaslHandshake", SASL_AUTHENTICATE: "SaslAuthenticate"}
VERSIONS = {SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 2}
"""The highest."""
SESSION_OVER = "its session is over: it did not authenticate again in time"

NOT_YET_S = 0.003
"""The time after which a message is taken again that could not be answered yet."""

_KEY = Struct(">hh")


class Admission(Protocol):
    """What becomes of those who come."""

    submits: dict[int, Submit]

    def admit(self, connection: Connection, principal: str, is_by_token: bool = False) -> None:
        """Let a connection in: it is known who it is."""

    def wait_for_who(self, connection: Connection) -> None:
        """Give a connection a time to show who it is."""

    def on_refused(self, connection: Connection, why: str) -> None:
        """A client could not show who it is."""


class Receiver(Protocol):
    """A gateway, as its doors see it."""

    clock: Clock
    later: Later
    loop: EventLoop

    @property
    def clients(self) -> Admission:
        """What is told of those who come."""

    def now(self) -> float:
        """Monotonic seconds, as of this turn."""

    def follow_metadata(self) -> None:
        """Know the users as they are now."""


class SaslDoor:
    """What stands before one listener."""

    def __init__(
        self,
        receiver: Receiver,
        offered: Offered,
        scram_users: ScramCredentials,
        frame_bytes_max: int,
        delay_s: float,
    ) -> None:
        self.receiver = receiver
        self.frame_bytes_max = frame_bytes_max
        self.delay_s = delay_s
        self._plain_users = offered.plain_users
        self.offers: dict[str, Offer] = {}
        """The offers, in the order in which clients are told them."""
        for name, session_ms_max in offered.mechanisms.items():
            begin: Callable[[], Mechanism]
            if name == plain.NAME:
                begin = self._begin_plain
            elif name == bearer.NAME:
                assert offered.tokens is not None
                begin = partial(bearer.Bearer, _validator(offered.tokens, receiver.clock))
            else:
                mechanism = scram.MECHANISMS[name]
                begin = partial(scram.Scram, mechanism, scram_users, _new_nonce)
            self.offers[name] = Offer(begin, session_ms_max)

    def _begin_plain(self) -> plain.Plain:
        return plain.Plain(self._plain_users)

    def renew(self, offered: Offered) -> None:
        """The users that the settings name may be others now."""
        self._plain_users = offered.plain_users

    def open(self, connection: Connection) -> None:
        """Let a new connection ask for nothing until it is known."""
        connection.submits = _NOTHING
        connection.stranger = Visit(self, connection)


_NOTHING: Mapping[int, Submit] = {}


def _validator(tokens: Tokens, clock: Clock) -> JwtValidator:
    keys = Jwks(
        clock,
        tokens.url,
        tokens.refresh_ms / 1000,
        tokens.rest_ms / 1000,
        tokens.rest_ms_max / 1000,
    )
    keys.begin()
    return JwtValidator(tokens.expected, keys.known, clock.now_ms, keys.want)


def _new_nonce() -> str:
    return secrets.token_hex(16)


class Visit:
    """One connection to a door: a `Stranger`, and the `Submits` of who has come again."""

    __slots__ = ("_admitted", "_connection", "_door", "_ends", "_exchange")

    def __init__(self, door: SaslDoor, connection: Connection) -> None:
        self._door = door
        self._connection = connection
        self._exchange = SaslExchange(door.offers)
        self._ends = float("inf")
        """When the session does, in monotonic seconds."""
        self._admitted: Submits = _NOTHING
        """What it may ask for, now that it is known."""

    @property
    def frame_bytes_max(self) -> int:
        return self._door.frame_bytes_max

    # ── who has to show who it is ───────────────────────────────────────────────────────────────

    def on_frame(self, buffer: bytearray, start: int, end: int) -> None:
        """Take one frame, without its size, of who has not shown who it is: ApiVersions and SASL's
        messages. ProtocolFault for any other."""
        frame = bytes(buffer[start:end])
        if self._exchange.state == RAW:
            self._take_message(Request(self._connection, SASL_AUTHENTICATE, 0, 0), frame)
            return
        try:
            api_key, version = _KEY.unpack_from(frame)
        except StructError:
            raise ProtocolFault(f"frame of {len(frame)} bytes") from None
        if api_key == API_VERSIONS:
            self._on_versions(frame, version)
            return
        if api_key not in NAMES:
            raise ProtocolFault(f"api key {api_key} before authentication")
        if not 0 <= version <= VERSIONS[api_key]:
            raise ProtocolFault(f"{NAMES[api_key]} version {version}")
        _, _, correlation_id, _, body_at = parse_request_header(frame, 0, len(frame))
        body = codec.decode_request(NAMES[api_key], version, memoryview(frame), body_at)
        request = Request(self._connection, api_key, version, correlation_id)
        if api_key == SASL_HANDSHAKE:
            self._on_handshake(request, body["mechanism"])
        else:
            self._take_message(request, body["auth_bytes"])

    def _take_message(self, request: Request, message: bytes) -> None:
        """Take a message of the mechanism."""
        is_raw = self._exchange.state == RAW
        said = self._exchange.on_message(message, self._now_ms())
        if said.is_not_yet:
            self._put_off(request, message)
        elif not is_raw:
            self._answer(request, said, _authenticate_answer(said))
        elif said.has_failed:
            self._refuse(request, said)
        else:
            self._connection.inflight.append(request)
            request.response = [FRAME_SIZE.pack(len(said.data)) + said.data]
        self._maybe_admit(said)

    def _put_off(self, request: Request, message: bytes) -> None:
        """Take it again soon; nothing is read from the connection until then."""
        connection, receiver = self._connection, self._door.receiver
        connection.inflight.append(request)
        connection.is_held = True
        receiver.later.at(receiver.now() + NOT_YET_S, partial(self._take_again, request, message))

    def _take_again(self, request: Request, message: bytes) -> None:
        connection = self._connection
        if connection.is_closed:
            return
        connection.inflight.remove(request)
        self._take_message(request, message)
        self._door.receiver.loop.flush(connection)

    def _now_ms(self) -> int:
        return self._door.receiver.clock.now_ms()

    def _on_versions(self, frame: bytes, version: int) -> None:
        said = self._exchange.on_versions()
        connection = self._connection
        if said is not None:
            _, _, correlation_id, _, _ = parse_request_header(frame, 0, len(frame))
            request = Request(connection, API_VERSIONS, min(version, 4), correlation_id)
            self._answer(request, said, {"error_code": said.error_code, "api_keys": []})
            return
        _, _, correlation_id, _, _ = parse_request_header(frame, 0, len(frame))
        submit = self._door.receiver.clients.submits[API_VERSIONS]
        submit(connection, bytearray(frame), 0, len(frame), version, correlation_id)
        response = connection.inflight[-1].response
        # Behind its size and correlation id comes the error code.
        if response and response[0][8:10] == b"\0\0":  # type: ignore[index]  # no slice
            self._exchange.on_versions_told()

    def _on_handshake(self, request: Request, mechanism: str) -> None:
        self._door.receiver.follow_metadata()
        said = self._exchange.on_handshake(request.api_version, mechanism)
        told = [] if said.error_code == ILLEGAL_SASL_STATE else list(self._door.offers)
        self._answer(request, said, {"error_code": said.error_code, "mechanisms": told})

    def _answer(self, request: Request, said: Said, answer: dict[str, Any]) -> None:
        if said.has_failed:
            self._refuse(request, said, answer)
            return
        self._connection.inflight.append(request)
        request.answer(_encoded(request, answer))

    def _maybe_admit(self, said: Said) -> None:
        shown = self._exchange.shown
        if said.has_failed or said.is_not_yet or shown is None or self._exchange.is_going_on:
            return
        connection, receiver = self._connection, self._door.receiver
        connection.stranger = None
        receiver.clients.admit(connection, f"User:{shown.name}", shown.is_by_token)
        if said.session_ms is not None:
            self._ends = receiver.now() + said.session_ms / 1000
            self._admitted, connection.submits = connection.submits, self

    # ── who was refused ─────────────────────────────────────────────────────────────────────────

    def _refuse(self, request: Request, said: Said, answer: dict[str, Any] | None = None) -> None:
        """Tell it later, and end the connection then; nothing is read from it until then."""
        connection, door = self._connection, self._door
        connection.inflight.append(request)
        connection.is_held = True
        door.receiver.clients.on_refused(connection, said.reason)
        told = answer if said.has_answer else None
        door.receiver.later.at(
            door.receiver.now() + door.delay_s, partial(self._tell, request, told, said.reason)
        )

    def _tell(self, request: Request, answer: dict[str, Any] | None, reason: str) -> None:
        connection, receiver = self._connection, self._door.receiver
        if connection.is_closed:
            return
        if answer is not None:
            request.answer(_encoded(request, answer))
            receiver.loop.end(connection)
        else:
            receiver.loop.close(connection, reason)

    # ── who is known, until its session ends ────────────────────────────────────────────────────

    def get(self, api_key: int, /) -> Submit | None:
        """What starts a request of a client whose session may be over."""
        if self._connection.stranger is not None:
            return self._take_at_once  # it comes in the same read as the handshake before it
        if api_key == SASL_HANDSHAKE:
            return self._begin_again
        if self._is_over():
            return self._end
        return self._admitted.get(api_key)

    def _is_over(self) -> bool:
        return self._door.receiver.now() >= self._ends

    def _begin_again(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """A handshake whose turn has come: nothing is in flight, and its time runs from now on."""
        receiver = self._door.receiver
        if self._exchange.may_begin_again(receiver.now()):
            receiver.clients.wait_for_who(connection)
            connection.stranger = self
            self.on_frame(buffer, start, end)
            return True
        submit = self._end if self._is_over() else self._admitted.get(SASL_HANDSHAKE)
        assert submit is not None, "it is told that it is late"
        return submit(connection, buffer, start, end, version, correlation_id)

    def _take_at_once(
        self, connection: Connection, buffer: bytearray, start: int, end: int, *_: int
    ) -> bool:
        self.on_frame(buffer, start, end)
        return True

    def _end(self, connection: Connection, *_: object) -> bool:
        if connection.inflight:  # a Produce comes before the answers to what was asked in time
            connection.is_held = True
            return False
        self._door.receiver.loop.close_answered(connection, SESSION_OVER)
        return True


def _authenticate_answer(said: Said) -> dict[str, Any]:
    return {
        "error_code": said.error_code,
        "error_message": said.text,
        "auth_bytes": said.data,
        "session_lifetime_ms": said.session_ms or 0,
    }


def _encoded(request: Request, answer: dict[str, Any]) -> bytes:
    name = NAMES.get(request.api_key, "ApiVersions")
    return codec.encode_response(name, request.api_version, answer)
