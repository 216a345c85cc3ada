"""Lending: a network worker hands quiet connections to the I/O worker whose log they are about.
They are guests there (`gateway.guests`), and come back.

   network worker                         passage                        I/O worker
   Lender   ── LENT: who it is, descriptor ──────────────────────────►   Guests
            ◄── HOME: its session, what was read of it, how long ─────   it got loud, or asks for
                it is muted for a quota                                  what a guest may not
            ◄── ENDED ────────────────────────────────────────────────

A request that comes alone is a chain of wake-ups, and each wake-up costs more than the request. A
guest's request wakes one process instead of two. A client with much to do is better off with two.

Rules of this file:
* A connection goes where nothing of it is in flight or unsent. Its fetch session goes along; one
  that has several stays.
* It is lent while it asks for what a guest may and for nothing very large, few things at a time,
  and while the I/O worker has room for it: as much of its time as this process spends now. One that
  has come just now is looked at more often: many a client stays for a few moments only.
* A process that stays awake because the next request comes at once lends no connection of those
  requests: two processes that look for work answer a lone client sooner, and spend no more.
* A client that sends small batches, or asks for offsets, is lent however many they are, while the
  I/O worker has any room; some such clients at each look. Their requests go a straight way there
  (`guests.straight`), which takes less time than to hand them over. To be lent, the connection
  is read no more until it is answered.
* A worker with more connections than there are marks looks at none of them.
* Where somebody has to show who it is, is charged or watched (SASL, TLS, ACLs, quotas, audit),
  nobody is lent.
* The lender keeps its own descriptor, and goes on counting the connection for the limits.
* A mark in shared memory says whether a guest is between two requests (`shm.guest_marks`); it is
  set before anything is read. Where an I/O worker dies, those between two requests come home, and
  the others end: what they have asked for is lost. Where it hangs and is fenced, all end, as it may
  read on some day: their clients come back and are told who leads. The guests of a network worker
  that dies end with it.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import NamedTuple, Protocol

from shmbroker.gateway.connection import Connection
from shmbroker.gateway.poller import EPOLLIN
from shmbroker.ipc.busy import Busy, next_rest
from shmbroker.shm.guest_marks import MARKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shmbroker.gateway.fetch_session import Packed
    from shmbroker.gateway.gateway import Gateway
    from shmbroker.ipc.passage import Passage

LENT, HOME, ENDED = range(3)
"""What a message is about, its first value."""

LOOK_S = 0.05
"""The time between two looks at who is quiet."""
SOON_S = 0.006
"""The time between two looks at those that have come within NEW_S."""
NEW_S = 0.1
QUIET_LOOKS = 2
"""A connection is lent when at so many looks in a row it had asked for something, and had few
things under way."""
INFLIGHT_FEW = 5
"""The most requests that a quiet connection has under way; Kafka's producer has no more."""
OTHER_S = 0.2
"""The time for which it must have asked for nothing else."""
SLEEPS = 0.5
"""A worker that sleeps less of its time lends only those who go a straight way."""
RESTING = 10_000
"""Added to the room that is said: only who goes a straight way is taken for a while."""
AT_ONCE = 4
"""The part that is lent at one look of those who go a straight way: one in so many, or one."""
STAYS_S = (0.5, 8.0)
"""How long one that came home stays, at least and at most: twice as long each time that it comes
back within SOON_BACK_S."""
SOON_BACK_S = 2.0
SESSIONS_S = 10.0
"""The time for which it must have used one fetch session, and no other."""
SESSION_PARTITIONS_MAX = 64
"""The most partitions that a lent client reads in a fetch session."""


class Lending(Protocol):
    """What a gateway tells of its connections."""

    def run(self, now: float) -> None:
        """A turn ends: its answers are sent."""

    def on_closed(self, connection: Connection) -> None:
        """A connection has ended."""

    def on_broker_lost(self, broker_id: int) -> None:
        """An I/O worker is dead."""

    def on_broker_fenced(self, broker_id: int) -> None:
        """An I/O worker hangs: others lead in its place."""

    @property
    def away(self) -> int:
        """Connections of this gateway that are served elsewhere."""


class Lent(NamedTuple):
    """What a connection takes along, as a message carries it."""

    kind: int
    number: int
    """The number by which the lender knows it."""
    mark: int
    """Where its mark is among those of its lender and its host."""
    broker_id: int
    listener: str
    client: str
    host: str
    session: Packed | None
    """The fetch session of the connection."""


class Home(NamedTuple):
    """A guest that comes back, as a message carries it."""

    kind: int
    number: int
    """The number of its Lent."""
    session: Packed | None
    """The fetch session of the connection."""
    left_bytes: int
    """How much was read of it and not answered: that lies in a file, whose descriptor comes too."""
    muted_ms: int
    """How long it is not to be read yet, for a quota."""


class Ended(NamedTuple):
    """A guest that is closed, as a message carries it."""

    kind: int
    number: int
    """The number of its Lent."""


class Away(NamedTuple):
    """A connection that is lent."""

    connection: Connection
    mark: int
    since: float
    rest_s: float
    """How long it stayed before."""


def is_between_requests(connection: Connection) -> bool:
    """Whether nothing of it is in flight, unsent or waiting for room; nor to be closed for what
    gets no answer. Its client may have closed its sending side: who reads it on meets that."""
    return not (
        connection.inflight
        or connection.unanswered
        or connection.out
        or connection.wants_write
        or connection.is_closed
        or connection.is_ended
        or connection.is_cold
        or connection.waits_since
    )


def asks_offsets(connection: Connection) -> bool:
    """Whether it is about offsets."""
    return connection.last_active - connection.asked_offsets_at < OTHER_S


def is_straight(connection: Connection) -> bool:
    """Whether it seems to ask for what there is a straight way for."""
    fast = connection.fast_produce
    if fast is None:
        return asks_offsets(connection)
    return (
        fast.straight is not None and connection.last_active - connection.asked_large_at > OTHER_S
    )


class Looks:
    """One of the two rhythms in which connections are looked at."""

    __slots__ = ("busy", "next", "quiet")

    def __init__(self, first: float, busy: Busy) -> None:
        self.next = first
        self.busy = busy
        self.quiet: dict[Connection, int] = {}
        """Looks in a row at which a connection was quiet."""


class Lender:
    """What one network worker has lent. passages, marks, rooms: by broker id. rooms: a word each,
    thousandths of its time that a broker's I/O worker has for guests now, and RESTING. worked_s:
    processor time of this process."""

    def __init__(
        self,
        gateway: Gateway,
        passages: Mapping[int, Passage],
        marks: Mapping[int, memoryview],
        rooms: Mapping[int, memoryview],
        worked_s: Callable[[], float],
    ) -> None:
        self._gateway = gateway
        self._loop = gateway.loop
        self._passages = passages
        self._marks = marks
        self._free = {broker_id: list(range(MARKS)) for broker_id in passages}
        self._rooms = rooms
        self.lent: dict[int, Away] = {}
        """What is lent, by number."""
        self._number = 0
        now = gateway.now()
        cores = [gateway.awake.core]
        self._at_all = Looks(now + LOOK_S, Busy(now, worked_s, cores))
        self._at_new = Looks(now + SOON_S, Busy(now, worked_s, cores))
        self.to_lend: dict[Connection, None] = {}
        """Connections that are lent as soon as they are between two requests."""
        self.muted: set[Connection] = set()
        """Connections of `to_lend` that are read no more, to be between two requests soon."""
        self.stays: dict[Connection, tuple[float, float]] = {}
        """Connections that came home: (until when each stays, for how long)."""
        for broker_id, passage in passages.items():
            passage.drain()  # it was for the process before this one
            fd = passage.fileno()
            gateway.loop.watch(fd, EPOLLIN, partial(self.take_in, broker_id))

    @property
    def away(self) -> int:
        return len(self.lent)

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def run(self, now: float) -> None:
        connections = self._loop.connections
        if now >= self._at_all.next:
            self._at_all.next = now + LOOK_S
            while self.muted:
                self._gateway.quotas.read_on(self.muted.pop())
            self.to_lend.clear()
            self._look(self._at_all, connections.values(), now)
        if now >= self._at_new.next:
            self._at_new.next, since = now + SOON_S, now - NEW_S
            new = takewhile(lambda one: one.opened_at > since, reversed(connections.values()))
            if came := list(new):
                self._look(self._at_new, came, now)
        if self.to_lend:
            for connection in [each for each in self.to_lend if self._has_lent(each, now)]:
                del self.to_lend[connection]

    def _look(self, looks: Looks, connections: Iterable[Connection], now: float) -> None:
        """Look who of them was quiet since the last look, and whether there is room for them."""
        share = looks.busy.since_last(now)
        before, looks.quiet = looks.quiet, {}
        gateway = self._gateway
        if len(self._loop.connections) > MARKS or gateway.quotas.is_active or gateway.must_stop:
            return
        straight: list[Connection] = []
        others: list[Connection] = []
        for connection in connections:
            # What says no to all that rest or only heartbeat: a thousand calls would be much.
            last_active = connection.last_active
            if last_active < share.since or last_active <= connection.asked_other_at:
                continue
            if self._may_go(connection, now):
                times = looks.quiet[connection] = before.get(connection, 0) + 1
                has_asked = last_active > connection.opened_at
                if times >= QUIET_LOOKS and has_asked and connection not in self.to_lend:
                    (straight if is_straight(connection) else others).append(connection)
        to_lend = [each for each in straight if self._rooms[each.listener.broker_id][0]]
        del to_lend[max(1, len(straight) // AT_ONCE) :]
        if share.up <= 1 - SLEEPS:
            to_lend += [
                each
                for each in others
                if share.busy * 1000 < self._rooms[each.listener.broker_id][0] < RESTING
            ]
        self.to_lend |= dict.fromkeys(to_lend)

    def _may_go(self, connection: Connection, now: float) -> bool:
        listener, session = connection.listener, connection.session
        return (
            (len(connection.inflight) <= INFLIGHT_FEW or is_straight(connection))
            and not connection.is_held
            and now - connection.asked_other_at > OTHER_S
            and type(connection) is Connection
            and not listener.is_control
            and listener.door is None
            and now >= self.stays.get(connection, (0.0, 0.0))[0]
            and now - connection.changed_session_at > SESSIONS_S
            and (session is None or len(session.partitions) <= SESSION_PARTITIONS_MAX)
        )

    def _has_lent(self, connection: Connection, now: float) -> bool:
        """Lend it if it is between two requests; True where it is not to be tried again."""
        if connection.is_closed:
            return True
        is_muted = connection in self.muted
        if connection.filled or connection.is_held is not is_muted:
            return False
        if not is_between_requests(connection):
            if connection.inflight and not is_muted and is_straight(connection):
                self._loop.mute(connection)
                self.muted.add(connection)
            return False
        if not self._lend(connection, now) and is_muted:
            self.muted.discard(connection)
            self._gateway.quotas.read_on(connection)
        return True

    def _lend(self, connection: Connection, now: float) -> bool:
        """Send it, if there is room; False where it stays as it was."""
        gateway, listener = self._gateway, connection.listener
        free = self._free[listener.broker_id]
        if not free or gateway.quotas.is_active or gateway.io_peer(connection) is None:
            return False
        session = connection.session
        mark = free[-1]
        self._number += 1
        lent = Lent(
            LENT,
            self._number,
            mark,
            listener.broker_id,
            listener.config.name,
            connection.client,
            connection.host,
            gateway.fetch.sessions.packed(session),
        )
        self._marks[listener.broker_id][mark] = 0
        if not self._passages[listener.broker_id].send(lent, [connection.fd]):
            return False
        free.pop()
        if session is not None:
            gateway.fetch.sessions.remove(session)
        connection.session = None
        gateway.fetch.implied.end(connection)
        _, rest_s = self.stays.pop(connection, (0.0, STAYS_S[0] / 2))
        self._forget(connection)
        self.muted.discard(connection)
        connection.is_muted = connection.is_held = False
        self.lent[self._number] = Away(connection, mark, now, rest_s)
        self._loop.let_go(connection)
        return True

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    def take_in(self, broker_id: int) -> None:
        """Take in the connections that come home, and word of those that have ended."""
        passage = self._passages[broker_id]
        while (found := passage.receive()) is not None:
            message, descriptors = found
            told = (Ended if message[0] == ENDED else Home)(*message)
            away = self.lent.pop(told.number, None)
            if away is None:
                for descriptor in descriptors:
                    os.close(descriptor)
                continue  # it was a guest of a dead process
            self._free[broker_id].append(away.mark)
            if isinstance(told, Ended):
                self._end(away)
                continue
            left = _read_whole(descriptors[0]) if descriptors else b""
            if len(left) == told.left_bytes:
                self._take_home(away, told.session, left, told.muted_ms)
            else:  # there was no descriptor free for what was read of it
                self._gateway.member.tally.add("connections_closed")
                self._end(away)

    def _take_home(self, away: Away, session: Packed | None, left: bytes, muted_ms: int) -> None:
        connection, gateway = away.connection, self._gateway
        if gateway.must_stop:
            self._end(away)
            return
        now = gateway.now()
        rest_s = next_rest(away.rest_s, now - away.since < SOON_BACK_S, STAYS_S)
        self.stays[connection] = now + rest_s, rest_s
        if session is not None:
            connection.session = gateway.fetch.sessions.adopt(session)
        connection.ahead = None  # it has been answered elsewhere since that was told
        connection.last_active = now
        gateway.quotas.begin(connection)  # as for all others, had it been here when they came
        connection.is_muted = muted_ms > 0  # before what it has sent already is looked at
        self._loop.take_over(connection, left)
        if muted_ms:
            gateway.quotas.keep_muted(connection, muted_ms)

    def _end(self, away: Away) -> None:
        """One that was lent has ended."""
        connection = away.connection
        connection.is_closed = True
        connection.close()
        self._gateway.clients.on_ended_away(connection)

    def on_closed(self, connection: Connection) -> None:
        self.muted.discard(connection)
        self.stays.pop(connection, None)
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        """It is not to be lent any more."""
        for looks in (self._at_all, self._at_new):
            looks.quiet.pop(connection, None)

    def on_broker_lost(self, broker_id: int) -> None:
        """Take home the guests of a dead I/O worker, where nothing of them was lost with it."""
        if broker_id not in self._passages:
            return
        self.take_in(broker_id)
        marks = self._marks[broker_id]
        for number, away in list(self.lent.items()):
            if away.connection.listener.broker_id == broker_id:
                del self.lent[number]
                self._free[broker_id].append(away.mark)
                if marks[away.mark]:
                    self._gateway.member.tally.add("connections_closed")
                    self._end(away)
                else:
                    self._take_home(away, None, b"", 0)

    def on_broker_fenced(self, broker_id: int) -> None:
        for away in self.lent.values():
            if away.connection.listener.broker_id == broker_id:
                with suppress(OSError):  # the client has gone already
                    away.connection.socket.shutdown(socket.SHUT_RDWR)


def _read_whole(descriptor: int) -> bytes:
    """What the host has read of a connection, which lies in a file without a name."""
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
