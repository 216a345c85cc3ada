"""Guests: connections that network workers have lent to the gateway of an I/O worker's own process.

Rules of this file:
* A guest appends, reads, and commits and fetches offsets. For anything else it goes home, with the
  frame that asks for it.
* Small Produces, and offsets that were asked for before, go a straight way (`guests.straight`),
  which costs less here than handing them over would. Who goes it stays, however often it asks.
* The others go home when this process has too little rest: while they are here, it is one core that
  reads their requests and writes the log. They go, too, when their requests come so fast that a
  network worker would stay awake for them.
* For a while after that only clients that go the straight way are taken. The while is longer each
  time that this happens again soon.
* A fetch session that has become large ends when its client goes home, which begins another: it is
  too much for a message.
* A guest's mark is 1 from before it is read until it is between two requests again: see
  `gateway.lending`.
"""

from __future__ import annotations

import os
import socket
from functools import partial

from shmbroker.apis import table
from shmbroker.gateway.connection import Connection, Meaning, StraightRow
from shmbroker.gateway.lending import (
    ENDED,
    HOME,
    RESTING,
    SESSION_PARTITIONS_MAX,
    Ended,
    Home,
    Lent,
    is_between_requests,
)
from shmbroker.gateway.poller import EPOLLIN
from shmbroker.ipc.busy import Busy, next_rest
from shmbroker.wire.api_keys import FETCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from shmbroker.gateway.gateway import Gateway
    from shmbroker.gateway.listener import Listener
    from shmbroker.ipc.core import Core
    from shmbroker.ipc.passage import Passage

WINDOW_S = 0.1
"""The time over which this process judges how busy it is."""
ROOM = 0.85
"""The share of its time that this process may be busy, with guests and with all else."""
LOUD = 0.93
"""A process that is busy for a larger share sends home the guests that went the usual way in this
window."""
USUAL_PER_S = 6500
"""Guests that were read more often than this are sent home, too: they ask again at once."""
TIMES_FEW = 2
"""A guest that was read no more often than this stays: its first requests go the usual way."""
BUSY_S = 0.02
"""A process that had no rest for this long sends them home, too."""
RESTS_S = (0.5, 8.0)
"""How long it takes only guests that go a straight way after that: at first, and at most."""
STEADY_S = 2.0
"""A process that has to send guests home again within this time rests for longer."""
AGAIN_S = 0.02
"""The time after which a message is tried again for which a passage had no room."""
GOES_WITHIN_S = 0.5
"""A guest that shall go stays if no turn ends between two of its requests within this time."""


class Guests:
    """The guests of one I/O worker. passages, marks: by the slot of the lender. room: a word that
    says what thousandths of its time this process has for more of them. cores: they tell how long
    this process has looked for work. worked_s: processor time that it has had."""

    def __init__(
        self,
        gateway: Gateway,
        passages: Mapping[int, Passage],
        marks: Mapping[int, memoryview],
        listeners: Iterable[Listener],
        room: memoryview,
        cores: Sequence[Core],
        worked_s: Callable[[], float],
        count_max: int,
    ) -> None:
        self._gateway = gateway
        self._loop = gateway.loop
        self._passages = passages
        self._marks = marks
        self._listeners = {
            (listener.broker_id, listener.config.name): listener for listener in listeners
        }
        self._room = room
        self.count_max = count_max
        """The most guests at once: each takes a descriptor that the log might need."""
        self.present: dict[Connection, tuple[int, Lent]] = {}
        """The guests: by whom each was lent, and as what."""
        self._marked: set[Connection] = set()
        """Guests whose mark is set."""
        self._usual: dict[Connection, int] = {}
        """How often they were read in this window and did not go the straight way."""
        self._going: dict[Connection, float] = {}
        """Guests that go home as soon as they can, and until when that is tried."""
        self._unsaid: list[tuple[int, Home | Ended]] = []
        """Messages that a passage had no room for: slot, message."""
        submits = gateway.tables.submits
        asked = dict.fromkeys(submits, self._needs_home)
        self.submits = asked | {key: submits[key] for key in table.ASKED_BY_GUESTS}
        self._rested_at = now = gateway.clock.monotonic()
        self.next_look = now + WINDOW_S
        self._busy = Busy(now, worked_s, cores)
        self._is_over = False
        self._again_at = 0.0
        self._until = 0.0
        self._rest_s = RESTS_S[0]
        self._shown = -1
        for slot, passage in passages.items():
            self._loop.watch(passage.fileno(), EPOLLIN, partial(self.take_in, slot))
        self._show(0)

    @property
    def away(self) -> int:
        return 0

    def on_broker_lost(self, broker_id: int) -> None:
        """Do nothing: it is the broker of this process."""

    def on_broker_fenced(self, broker_id: int) -> None:
        """Do nothing: their lenders end the guests."""

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    def take_in(self, slot: int) -> None:
        """Take in the connections that a network worker lends."""
        passage = self._passages[slot]
        gateway, now = self._gateway, self._gateway.now()
        while (found := passage.receive()) is not None:
            message, descriptors = found
            lent = Lent(*message)
            # Without a descriptor: too many are open.
            if not descriptors or self._is_over or len(self.present) >= self.count_max:
                for descriptor in descriptors:
                    os.close(descriptor)
                self._say(slot, Home(HOME, lent.number, lent.session, 0, 0))
                continue
            accepted = socket.socket(fileno=descriptors[0])
            accepted.setblocking(False)
            listener = self._listeners[lent.broker_id, lent.listener]
            connection = Connection(accepted, listener, now, self.submits, self._loop.traffic)
            connection.client, connection.host = lent.client, lent.host
            connection.recv_into = self._marking(connection)
            if lent.session is not None:
                connection.session = gateway.fetch.sessions.adopt(lent.session)
            self.present[connection] = slot, lent
            self._loop.take_over(connection, b"")

    def _marking(self, connection: Connection) -> Callable[..., int]:
        """The `recv_into` of a connection, which sets its mark before."""
        recv_into = connection.socket.recv_into

        def receive(*args: Any) -> int:
            self.mark(connection)
            self.note_usual(connection)
            return recv_into(*args)

        return receive

    def mark(self, connection: Connection) -> None:
        """Set a guest's mark: it is about to be read."""
        slot, lent = self.present[connection]
        self._marks[slot][lent.mark] = 1
        self._marked.add(connection)

    def row_of(self, connection: Connection, meaning: Meaning | None) -> StraightRow:
        """What the kernel of the straight way is told of it; see `FastProduce.straight`.
        meaning: None: it asks for offsets."""
        slot, lent = self.present[connection]
        return connection.fd, meaning, self._marks[slot], lent.mark

    def on_answered(self, connection: Connection) -> None:
        """What was read of it is answered."""
        slot, lent = self.present[connection]
        self._marks[slot][lent.mark] = 0
        self._marked.discard(connection)

    @property
    def has_work(self) -> bool:
        """Whether `run` has something to do besides marks."""
        return bool(self._going or self._unsaid)

    def note_usual(self, connection: Connection) -> None:
        """What was read of it goes the usual way."""
        self._usual[connection] = self._usual.get(connection, 0) + 1

    def went_straight(self, connection: Connection) -> None:
        """What was noted as usual did not go that way after all."""
        if times := self._usual.get(connection):
            self._usual[connection] = times - 1

    def on_lender_lost(self, slot: int) -> None:
        """A network worker is dead: so are the connections that clients had with it, and those that
        it was about to lend. Its successor gives their numbers to others."""
        self._passages[slot].drain()
        self._unsaid = [unsaid for unsaid in self._unsaid if unsaid[0] != slot]
        for connection, (lender, _) in list(self.present.items()):
            if lender == slot:
                del self.present[connection]
                self._loop.close(connection, "its network worker is dead")

    def on_closed(self, connection: Connection) -> None:
        self._going.pop(connection, None)
        self._marked.discard(connection)
        self._usual.pop(connection, None)
        found = self.present.pop(connection, None)
        if found is not None:
            slot, lent = found
            self._say(slot, Ended(ENDED, lent.number))

    def _say(self, slot: int, message: Home | Ended) -> None:
        """Tell a network worker this, at once or as soon as there is room."""
        if not self._passages[slot].send(message):
            self._unsaid.append((slot, message))
            self._try_again()

    def _try_again(self) -> None:
        """Take a turn soon, though nothing wakes this process for it."""
        now = self._gateway.now()
        if now >= self._again_at:
            self._again_at = now + AGAIN_S
            self._gateway.later.at(self._again_at, lambda: None)

    # ── home ────────────────────────────────────────────────────────────────────────────────────

    def _needs_home(self, connection: Connection, *_frame: object) -> bool:
        """Send a guest home: it asks for what is not answered here. It is held for
        that, not blocked: who closes his sending side meanwhile is answered."""
        self._going[connection] = float("inf")
        connection.is_held = True
        return False

    def run(self, now: float) -> None:
        if self._marked:
            self._unmark()
        if self._going:
            self._send_home(now)
        if self._unsaid:
            self._unsaid = [
                (slot, message)
                for slot, message in self._unsaid
                if not self._passages[slot].send(message)
            ]
            if self._unsaid:
                self._try_again()
        if self.present and self._gateway.quotas.is_active:
            self.send_all()

    def _unmark(self) -> None:
        """Take the marks off guests that are between two requests now."""
        for connection in list(self._marked):
            if not connection.filled and is_between_requests(connection):
                self.on_answered(connection)

    def close(self) -> None:
        """Take nobody any more; those who are here shall go home."""
        self._is_over = True
        self._show(0)
        self.send_all()

    def send_all(self) -> None:
        """Send all guests home, each as soon as it can go."""
        for connection in self.present:
            self._going.setdefault(connection, float("inf"))

    def _send_home(self, now: float) -> None:
        for connection, until in list(self._going.items()):
            if is_between_requests(connection):
                self._go(connection)
            elif now > until:
                del self._going[connection]
                if connection.is_muted:
                    self._gateway.quotas.read_on(connection)

    def _go(self, connection: Connection) -> None:
        """Send it home; tried again at the end of later turns where there is no room for that, or
        no descriptor."""
        slot, lent = self.present[connection]
        session, packed = connection.session, None
        if session is not None and len(session.partitions) <= SESSION_PARTITIONS_MAX:
            packed = self._gateway.fetch.sessions.packed(session)
        unread, filled = [], connection.filled
        if filled:
            try:
                unread.append(os.memfd_create("unread", os.MFD_CLOEXEC))
            except OSError:
                self._try_again()
                return
            os.write(unread[0], connection.view[:filled])
        muted_ms = self._gateway.quotas.muted_ms(connection)
        message = Home(HOME, lent.number, packed, filled, muted_ms)
        has_gone = self._passages[slot].send(message, unread)
        for descriptor in unread:
            os.close(descriptor)
        if has_gone:
            if session is not None:
                self._gateway.fetch.sessions.remove(session)
            self._gateway.fetch.implied.end(connection)
            del self.present[connection], self._going[connection]
            self._marked.discard(connection)
            self._usual.pop(connection, None)
            self._loop.let_go(connection)
            connection.is_closed = True
            connection.close()
        else:
            self._try_again()

    # ── how busy this process is ────────────────────────────────────────────────────────────────

    def rested(self, now: float) -> None:
        """Note that this process slept until now."""
        self._rested_at = now

    def stays_up(self, now: float) -> None:
        """Note that this process has more to do."""
        if self._usual and now - self._rested_at > BUSY_S:
            self._get_loud(now)

    def judge(self, now: float) -> None:
        """Look how busy this process was; to be asked at `next_look`."""
        share = self._busy.since_last(now)
        self.next_look = now + WINDOW_S
        if self._usual:
            often = sum(self._usual.values()) > USUAL_PER_S * (now - share.since)
            if often or share.busy > LOUD:
                self._get_loud(now)
            for connection in self._usual:
                if max(connection.asked_other_at, connection.changed_session_at) > share.since:
                    self._going.setdefault(connection, now + GOES_WITHIN_S)
            self._usual.clear()
        is_full = self._is_over or len(self.present) >= self.count_max
        room = 0 if is_full else max(0, int((ROOM - share.busy) * 1000))
        self._show(room + RESTING if room and now < self._until else room)

    def _get_loud(self, now: float) -> None:
        going = [
            connection
            for connection, times in self._usual.items()
            if times > TIMES_FEW and connection not in self._going
        ]
        if not going:
            return
        self._rest_s = next_rest(self._rest_s, now - self._until < STEADY_S, RESTS_S)
        self._until = now + self._rest_s
        self._show(RESTING)
        for connection in going:
            self._going[connection] = now + GOES_WITHIN_S
            inflight = connection.inflight
            if inflight and inflight[0].api_key != FETCH and not connection.is_muted:
                self._loop.mute(connection)

    def _show(self, room: int) -> None:
        if room != self._shown:
            self._shown = room
            self._room[0] = room
