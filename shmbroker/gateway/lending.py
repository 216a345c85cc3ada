"""Lending: a network worker hands quiet connections to the I/O worker whose log they are about.
They are guests there (`gateway.guests`), and come back.

   network worker                         passage                        I/O worker
   Lender   ── LENT: who it is, descriptor ──────────────────────────►   Guests
            ◄── HOME: who it is, descriptor, what was read of it ─────   it got loud, or asks for
            ◄── ENDED ────────────────────────────────────────────────   what a guest may not

A request that comes alone is a chain of wake-ups, and each wake-up costs more than the request. Of
a guest it wakes one process instead of two. Who has much to do is better off with two processes.

Rules of this file:
* A connection goes where nothing of it is in flight or unsent. It takes along who it is and its
  fetch session.
* It is lent while it asks for one thing at a time, and while the I/O worker has room for it: as
  much of its time as this process spends now.
* Where somebody has to show who it is, is charged or watched (SASL, TLS, ACLs, quotas, audit),
  nobody is lent.
* The lender goes on counting it for the limits until it has ended.
* An I/O worker that dies takes its guests along: their clients connect again.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple, Protocol

from shmbroker.gateway.connection import Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from shmbroker.gateway.event_loop import EventLoop, Listener
    from shmbroker.gateway.fetch_session import FetchSession
    from shmbroker.gateway.gateway import Gateway
    from shmbroker.ipc.passage import Passage

LENT, HOME, ENDED = range(3)
"""What a message is about."""

LOOK_S = 0.05
"""Between two looks at who is quiet."""
QUIET_LOOKS = 2
"""It is lent when at so many looks in a row it had asked for something, one thing at a time."""
CONNECTIONS_MAX = 64
"""A worker with more of them lends none: among so many nobody is alone."""
LOUD = 0.8
"""A worker that spends more of its time than this lends nothing either."""
RESTS_S = (0.5, 8.0)
"""How long one that came home stays, at least and at most: twice as long each time that it comes
back within STEADY_S."""
STEADY_S = 2.0
SESSION_PARTITIONS_MAX = 64
"""Who reads more partitions in a fetch session stays."""


class Lending(Protocol):
    """What a gateway tells of its connections."""

    def run(self, now: float) -> None:
        """A turn ends: its answers are sent."""

    def on_closed(self, connection: Connection) -> None:
        """A connection has ended."""

    def on_broker_lost(self, broker_id: int) -> None:
        """Its I/O worker is dead."""

    @property
    def away(self) -> int:
        """Connections of this gateway that are served elsewhere."""


class Going(NamedTuple):
    """What a connection takes along, as a message of a passage carries it."""

    kind: int
    number: int
    """By which the lender knows it."""
    broker_id: int
    listener: str
    client: str
    host: str
    session: tuple[Any, ...] | None
    """Its fetch session."""


def is_between_requests(connection: Connection) -> bool:
    """Whether nothing of it is in flight, unsent or waiting for room."""
    return not (
        connection.inflight
        or connection.out
        or connection.wants_write
        or connection.is_closed
        or connection.is_ended
        or connection.has_left
        or connection.is_cold
        or connection.waits_since
    )


def session_of(connection: Connection, gateway: Gateway) -> FetchSession | None:
    """The fetch session that it takes along, unless that was evicted."""
    session = connection.session
    return session if session is not None and gateway.fetch.sessions.holds(session) else None


def made_of(
    going: Going, descriptor: int, listener: Listener, loop: EventLoop, now: float
) -> Connection:
    """The connection that has come here."""
    accepted = socket.socket(fileno=descriptor)
    accepted.setblocking(False)
    connection = Connection(accepted, listener, now, {}, loop.traffic)
    connection.client, connection.host = going.client, going.host
    return connection


class Lender:
    """What one network worker has lent. passages: by broker id. room_of: thousandths of its time
    that a broker's I/O worker has for guests now."""

    def __init__(
        self,
        gateway: Gateway,
        passages: Mapping[int, Passage],
        room_of: Callable[[int], int],
    ) -> None:
        self._gateway = gateway
        self._loop = gateway.loop
        self._passages = passages
        self._room_of = room_of
        self._listeners = {
            (listener.broker_id, listener.config.name): listener
            for listener in gateway.loop.listeners.values()
            if not listener.is_control
        }
        self.lent: dict[int, Going] = {}
        """By number."""
        self._number = 0
        self._looked = self._next_look = gateway.now()
        self._idle_s = 0.0
        self._quiet: dict[Connection, int] = {}
        """Looks in a row at which it was quiet."""
        self._to_lend: list[Connection] = []
        self._stays: dict[Connection, tuple[float, float]] = {}
        """Of those that have come home: until when they stay, and for how long that is."""
        self._rests: dict[int, tuple[float, float]] = {}
        """Of those that are lent: since when, and for how long they stayed before."""
        for broker_id, passage in passages.items():
            gateway.loop.watch(passage.fileno(), 1, lambda _events, of=broker_id: self.take_in(of))  # type: ignore[misc]

    @property
    def away(self) -> int:
        return len(self.lent)

    def rested(self, seconds: float) -> None:
        """So long this process slept, or looked for work and found none."""
        self._idle_s += seconds

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, now: float) -> None:
        if now >= self._next_look:
            self._look(now)
        if self._to_lend:
            self._to_lend = [each for each in self._to_lend if not self._has_lent(each, now)]

    def _look(self, now: float) -> None:
        """Who was quiet since the last look, and whether there is room for them."""
        since, busy = self._looked, 1 - self._idle_s / max(1e-9, now - self._looked)
        self._looked, self._next_look, self._idle_s = now, now + LOOK_S, 0.0
        self._to_lend = []
        connections = self._loop.connections
        if len(connections) > CONNECTIONS_MAX or self._gateway.quotas.is_active:
            self._quiet.clear()
            return
        before, self._quiet = self._quiet, {}
        for connection in connections.values():
            if self._may_go(connection, since, now):
                self._quiet[connection] = before.get(connection, 0) + 1
        if busy > LOUD:
            return
        self._to_lend = [
            connection
            for connection, looks in self._quiet.items()
            if looks >= QUIET_LOOKS and busy * 1000 <= self._room_of(connection.listener.broker_id)
        ]

    def _may_go(self, connection: Connection, since: float, now: float) -> bool:
        listener = connection.listener
        session = connection.session
        return (
            connection.last_active >= since
            and len(connection.inflight) <= 1
            and not connection.is_held
            and type(connection) is Connection
            and not listener.is_control
            and listener.door is None
            and now >= self._stays.get(connection, (0.0, 0.0))[0]
            and (session is None or len(session.partitions) <= SESSION_PARTITIONS_MAX)
        )

    def _has_lent(self, connection: Connection, now: float) -> bool:
        """Lend it if it is between two requests; True where it is not to be tried again."""
        if connection.is_closed:
            return True
        if not is_between_requests(connection) or connection.filled or connection.is_held:
            return False
        gateway = self._gateway
        peer = gateway.io_peer(connection)
        if peer is None:
            return True
        listener, session = connection.listener, session_of(connection, gateway)
        self._number += 1
        going = Going(
            LENT,
            self._number,
            listener.broker_id,
            listener.config.name,
            connection.client,
            connection.host,
            session.packed() if session is not None else None,
        )
        if not self._passages[listener.broker_id].send(tuple(going), [connection.fd]):
            return True
        if session is not None:
            gateway.fetch.sessions.remove(session)
        _, rest_s = self._stays.pop(connection, (0.0, RESTS_S[0] / 2))
        self._rests[self._number] = now, rest_s
        self.lent[self._number] = going
        self._loop.let_go(connection)
        gateway.show_open()
        return True

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    def take_in(self, broker_id: int) -> None:
        """Those that come home, and word of those that have ended."""
        passage = self._passages[broker_id]
        while (found := passage.receive()) is not None:
            message, descriptors = found
            if message[0] == ENDED:
                self._forget(message[1])
            else:
                self._take_home(Going(*message), descriptors)

    def _take_home(self, going: Going, descriptors: list[int]) -> None:
        gateway = self._gateway
        listener = self._listeners.get((going.broker_id, going.listener))
        left = b""
        if len(descriptors) > 1:
            left = _read_whole(descriptors[1])
        if listener is None or gateway.must_stop:
            os.close(descriptors[0])
            self._forget(going.number)
            return
        now = gateway.now()
        connection = made_of(going, descriptors[0], listener, self._loop, now)
        connection.submit = gateway.submit
        if self.lent.pop(going.number, None) is None:
            # The worker that has lent it is dead, and this one has not counted it.
            gateway.limits.take(connection.address, listener.config.name)
        since, rest_s = self._rests.pop(going.number, (now, RESTS_S[0] / 2))
        rest_s = min(RESTS_S[1], 2 * rest_s) if now - since < STEADY_S else RESTS_S[0]
        self._stays[connection] = now + rest_s, rest_s
        if going.session is not None:
            connection.session = gateway.fetch.sessions.adopt(going.session)
        self._loop.take_over(connection, left)
        gateway.show_open()

    def _forget(self, number: int) -> None:
        """One that was lent has ended."""
        self._rests.pop(number, None)
        going = self.lent.pop(number, None)
        if going is not None:
            self._gateway.limits.release(going.client.rpartition(":")[0], going.listener)
            self._gateway.show_open()

    def on_closed(self, connection: Connection) -> None:
        self._stays.pop(connection, None)
        self._quiet.pop(connection, None)

    def on_broker_lost(self, broker_id: int) -> None:
        """Its guests have ended with it, but for those that were on their way home."""
        if broker_id in self._passages:
            self.take_in(broker_id)
            for number in [n for n, going in self.lent.items() if going.broker_id == broker_id]:
                self._forget(number)


def _read_whole(descriptor: int) -> bytes:
    """What a connection's last process has read of it, which lies in a file without a name."""
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
