"""TLS on the listeners of a gateway: what their connections share, and their certificates.

    TlsListeners ── looks after the certificates
    └─ TlsSide   ── one for a listener: makes its connections, gives them buffers,
       │            bounds their handshakes, and says who has come
       └─ Unread ── reads on where decrypted bytes wait           (one for all)

Rules of this file:
* Handshakes take a part of a turn, STEPS_PER_TURN of their steps, and each ends within HANDSHAKE_S.
* A client that shows a certificate on a listener without SASL is the user that its rules make of
  the subject; where none fits, the connection ends.
* A file of certificates is read again when it has changed and then rested for LOOK_S. Connections
  that are open stay as they are, and so do the certificates where the new ones can't be used.

What a connection does with bytes is in `tls_connection`, what certificates are in `tls_context`.

Source: KIP-371 and KIP-684 for principals.
"""

from __future__ import annotations

import logging
import os
import select

from shmbroker.errors import ConfigFault, TlsFault
from shmbroker.gateway.tls_connection import PIECE_BYTES, TlsConnection
from shmbroker.gateway.tls_context import complaints, load
from shmbroker.security.certificate import subject_of
from shmbroker.shm.doorbell import make_eventfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping

    from shmbroker.gateway.connection import Connection, Traffic
    from shmbroker.gateway.event_loop import EventLoop
    from shmbroker.gateway.listener import Listener
    from shmbroker.gateway.ports import Submit
    from shmbroker.gateway.tls_context import Print
    from shmbroker.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""The time between two looks at whether files of certificates have changed."""

REMINDER_S = 86400.0
"""The time between two lines about a certificate that ends soon."""

HANDSHAKE_S = 10.0
"""The time from the connection to the end of its handshake."""

STEPS_PER_TURN = 8
"""The steps of handshakes in one turn; each may cost a signature, 1 ms with a large RSA key."""

CIPHER_BYTES = 256 * 1024
"""The most that is read at once."""


class Unread:
    """Connections with decrypted bytes that no poller sees; read again in the next turn."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._fd = make_eventfd()
        self._connections: dict[TlsConnection, None] = {}
        loop.watch(self._fd, select.EPOLLIN, self._look)

    def add(self, connection: TlsConnection) -> None:
        """Come back to this one."""
        if not self._connections:
            os.eventfd_write(self._fd, 1)
        self._connections[connection] = None

    def close(self) -> None:
        """Stop reading from anybody."""
        os.close(self._fd)

    def _look(self) -> None:
        os.eventfd_read(self._fd)
        connections, self._connections = self._connections, {}
        for connection in connections:
            # Who is held comes back when it is not, from `set_interest`.
            if connection.is_unread and not connection.is_held and not connection.is_closed:
                self._loop.on_readable(connection, select.EPOLLIN)


class TlsSide:
    """What the TLS connections of one listener share in one gateway. It is the same on the ports of
    all brokers."""

    def __init__(
        self,
        listener: Listener,
        unread: Unread,
        loop: EventLoop,
        admit: Callable[[Connection, str], None],
    ) -> None:
        """admit: told who has come, where a client's certificate says it."""
        assert listener.tls is not None
        self.config = listener.config
        self.loaded = listener.tls
        """The certificates for new connections; those that are open stay as they are."""
        self.seen: tuple[Print | None, ...] = self.loaded.prints
        self.tried: tuple[Print | None, ...] = self.seen
        self.unread = unread
        self.cipher = memoryview(bytearray(CIPHER_BYTES))
        self.plain = memoryview(bytearray(PIECE_BYTES))
        self._loop = loop
        self._admit = admit
        self._handshakes: dict[TlsConnection, float] = {}
        """When each has to be done; the earliest first."""
        self._turn = -1.0
        self._steps = 0

    def make_connection(
        self,
        accepted: socket.socket,
        listener: Listener,
        now: float,
        submit: Mapping[int, Submit],
        traffic: Traffic,
    ) -> Connection:
        """A connection that has its handshake before it."""
        connection = TlsConnection(accepted, listener, now, submit, traffic, self)
        self._handshakes[connection] = now + HANDSHAKE_S
        return connection

    def may_step(self) -> bool:
        """Whether this turn has time for another step of a handshake."""
        now = self._loop.service.now()
        if now != self._turn:
            self._turn, self._steps = now, 0
        self._steps += 1
        return self._steps <= STEPS_PER_TURN

    def on_secured(self, connection: TlsConnection, certificate: bytes | None) -> None:
        """A handshake is done; the client's certificate, if it has shown one, was verified."""
        self._handshakes.pop(connection, None)
        if certificate is None or connection.listener.config.has_sasl:
            return
        subject = subject_of(certificate)
        user = connection.rules.user(subject)
        if user is None:
            raise TlsFault(f"no rule of ssl.principal.mapping.rules fits {subject!r}")
        self._admit(connection, f"User:{user}")

    def forget(self, connection: TlsConnection) -> None:
        """Forget a connection that was closed."""
        self._handshakes.pop(connection, None)

    def sweep(self, now: float) -> None:
        """Close those whose handshake takes too long."""
        for connection, until in list(self._handshakes.items()):
            if now <= until:
                return
            reason = f"its TLS handshake took over {HANDSHAKE_S:.0f} s"
            self._loop.close(connection, reason, is_fault=True)


class TlsListeners:
    """The listeners of a gateway that have TLS; makes their connections, and looks after their
    certificates."""

    def __init__(
        self,
        listeners: Iterable[Listener],
        loop: EventLoop,
        config: BrokerConfig,
        admit: Callable[[Connection, str], None],
        is_speaker: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """is_speaker: this one of all gateways writes the lines about what all of them do. now_ms:
        the wall clock, by which certificates end."""
        self._config = config
        self._now_ms = now_ms
        self._say: Callable[..., None] = logger.info if is_speaker else logger.debug
        self._warn: Callable[..., None] = logger.warning if is_speaker else logger.debug
        self._unread = Unread(loop)
        self._sides: dict[str, TlsSide] = {}
        self._next_look = 0.0
        self._next_reminder = 0.0
        for listener in listeners:
            if listener.tls is not None:
                name = listener.config.name
                side = self._sides.get(name)
                if side is None:
                    side = self._sides[name] = TlsSide(listener, self._unread, loop, admit)
                listener.make_connection = side.make_connection

    def sweep(self, now: float) -> None:
        """End what takes too long; look for other files now and then."""
        for side in self._sides.values():
            side.sweep(now)
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for side in self._sides.values():
            prints = side.loaded.prints_now()
            # What has changed a moment ago may be half written.
            if prints != side.tried and prints == side.seen:
                self._load(side, prints)
            side.seen = prints
        if now >= self._next_reminder:
            self._next_reminder = now + REMINDER_S
            loaded = [(name, side.loaded) for name, side in self._sides.items()]
            for complaint in complaints(loaded, self._now_ms()):
                self._warn("%s", complaint)

    def on_settings(self) -> None:
        """The settings were read again."""
        for side in self._sides.values():
            self._load(side, side.loaded.prints_now())

    def _load(self, side: TlsSide, prints: tuple[Print | None, ...]) -> None:
        side.tried = prints
        try:
            side.loaded = load(self._config, side.config)
        except ConfigFault as fault:
            self._warn("the certificates stay as they are: %s", fault)
            return
        side.seen = side.tried = side.loaded.prints
        self._next_reminder = 0.0
        name, ends = side.config.name, side.loaded.ends
        self._say("listener %s: certificates were read again, they end on %s", name, ends.date())

    def close(self) -> None:
        """Stop reading from anybody."""
        self._unread.close()
