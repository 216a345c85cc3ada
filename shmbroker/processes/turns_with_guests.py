"""Turns of a broker and of the gateway for its guests, one behind the other in one process.

   A  read       what came from sockets ──► straight way, or frames ──► the broker's ring
   B  put off    all of it went the straight way, and nobody else waits: look for more, and begin
                 again with A, for PUT_OFF_S at most
   C  broker     its turn; what A put on its ring is in it. Left out where it would find nothing
   D  answer     what C answered ──► sockets; left out where there is nothing to answer
   E  wait       stay awake for more, sleep, or see what came meanwhile
   F  account    whether this process has room for more guests

Rules of this file:
* Where there are no guests, no socket has said anything and no metadata has changed, a turn is C,
  E and F.
* A turn that goes on (`rest` is 0) never sleeps, but looks at the sockets in E: guests are served
  in every turn.
"""

from __future__ import annotations

from typing import Protocol

from shmbroker import clock
from shmbroker.broker.broker import SLEEP_S_MIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select

    from shmbroker.broker.broker import Broker
    from shmbroker.ipc.peer import Peer
    from shmbroker.processes.guest_gateway import GuestGateway
    from shmbroker.processes.shared_core import SharedCore

    Events = list[tuple[int, int]]
    """Descriptors and what they are ready for, as `epoll.poll` gives them."""

PUT_OFF_S = 0.0005
"""How long a turn of the broker may be put off while requests go the straight way."""
APPENDED_WAITS_S = 0.005
"""How long it may be put off after an append for whose records nobody waits."""
LEAVE_S = 0.5
"""How long guests may take to go home before this process stops."""


class Host(Protocol):
    """The process that the turns are taken in."""

    must_stop: bool
    epoll: select.epoll
    shared_core: SharedCore | None

    def sleep(self, seconds: float) -> Events: ...

    def has_entries(self) -> bool: ...


class TurnsWithGuests:
    """The loop of an I/O worker that may have guests."""

    def __init__(
        self, host: Host, broker: Broker, beside: GuestGateway, answers: Peer, doorbell: int
    ) -> None:
        """answers: the broker as its gateway reaches it. doorbell: the descriptor that only wakes
        the process."""
        self.host = host
        self.broker = broker
        self.beside = beside
        self.answers = answers.reader
        self.doorbell = doorbell

    def run(self) -> None:
        """Take turns until the process has to stop; then have the guests go home."""
        host, broker, beside, doorbell = self.host, self.broker, self.beside, self.doorbell
        gateway, guests = beside.gateway, beside.guests
        monotonic, answers, present = clock.monotonic, self.answers, guests.present
        waiting = broker.acks.delayed.partitions
        events: Events = []
        now = due = broker_due = turned_at = 0.0
        while not host.must_stop:
            # A. What comes on the ring may be for one that has left. Changes of the metadata are
            # taken in without guests, too: they would pile up.
            has_some = bool(present) or answers.poll() or gateway.link.is_behind()
            is_usual = True
            if has_some or len(events) > 1 or (events and events[0][0] != doorbell):
                has_some = True
                is_usual = beside.read(events)
            has_served = bool(events)
            # B. All was answered: what else an append brings about waits for the next requests.
            may_wait = has_served and broker.may_wait()
            if may_wait and not is_usual and now - turned_at < PUT_OFF_S:
                came, has_served = beside.look_before_sleep(True), False
                if came:
                    events, now = came, monotonic()
                    continue
            # C.
            limit = turned_at + APPENDED_WAITS_S if broker.acks.appended else broker_due
            rest: float | None = None
            had_waiting = bool(waiting)
            if has_served and may_wait and now < limit and not has_work(broker):
                rest = rest_until(broker, min(broker_due, limit))
            else:
                turned_at = broker_due = now
                if not has_some:
                    rest = broker.turn()
                    broker_due = now + rest
                elif broker.run_once():
                    rest = 0.0
            # D.
            if has_some:
                if (
                    is_usual
                    or gateway.touched
                    or gateway.loop.blocked
                    or answers.poll()
                    or now >= due
                ):
                    due = now + gateway.answer()
                    if rest != 0.0 and host.has_entries():
                        rest = 0.0  # a request that was held went on the ring
                if rest is None and not (had_waiting or waiting):
                    rest = broker.rest()  # after the answers, as nobody waits for it
                    broker_due = now + rest
            # E.
            came = None
            if has_some and rest != 0.0:
                came = beside.look_before_sleep(has_served, bool(waiting))
                if came is None:
                    rest = min(broker.rest() if rest is None else rest, max(0.0, due - now))
            if came is not None:
                events = came
            elif rest:
                events = host.sleep(rest)
            else:
                events = host.epoll.poll(0) if has_some else []
            # F.
            if host.shared_core is not None and (came is not None or rest == 0.0):
                host.shared_core.stays_up()
            now = monotonic()
            if rest == 0.0:
                guests.stays_up(now)
            elif has_some:
                guests.rested(now)
            if now >= guests.next_look:
                guests.judge(now)
        self._end()

    def _end(self) -> None:
        """Have the guests go home; of those that can't, answer what they have asked for."""
        gateway, guests = self.beside.gateway, self.beside.guests
        guests.close()
        deadline = clock.monotonic() + LEAVE_S
        events: Events = []
        while not gateway.is_over:
            gateway.must_stop = not guests.present or clock.monotonic() > deadline
            gateway.read(events)
            rest = self.broker.turn()
            rest = min(rest, gateway.answer())
            events = self.host.sleep(rest) if rest else []
        gateway.close()


def has_work(broker: Broker) -> bool:
    """Whether a turn would find something to do, though it is not due, for which somebody waits:
    what an append brings about may come later (`Broker.may_wait`)."""
    commit = broker.acks.group_commit
    return bool(
        broker.outbox
        or broker.has_news()
        or broker.reader.cold
        or broker.flusher.is_busy
        or commit.waiting
        or commit.wanted
        or broker.acks.moved
        or broker.executor.unfinished
        or broker.exchange.has_work
        or broker.passing.waiting
        or broker.read_ahead.noted
    )


def rest_until(broker: Broker, due: float) -> float:
    """Seconds until then, or until the first delayed operation is due, by the time of the broker's
    last look at its clocks."""
    steady_ms = broker.steady_ms()
    rest_ms = due * 1000 - steady_ms
    deadline = broker.purgatory.next_deadline()
    if deadline is not None:
        rest_ms = min(rest_ms, deadline - steady_ms)
    return max(SLEEP_S_MIN, rest_ms / 1000)
