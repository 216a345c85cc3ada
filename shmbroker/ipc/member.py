"""A member: one process's place in the family, with the peers that it shares rings with.

Rules of this file:
* A member talks only to peers that are running. `look_at_announcements` sees deaths and
  successors: it tells the owner, resets this half of the rings, and acknowledges; only then does
  the supervisor fork the successor.
* Everything here is an argument, so a test gives it words and rings of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shmbroker.ipc.peer import Peer
from shmbroker.shm.counters import (
    ANNOUNCEMENTS_WORD,
    INCARNATION,
    LIVENESS_NS,
    STATE,
    STATE_RUNNING,
    STATE_STOPPING,
    Counters,
    Tally,
)
from shmbroker.shm.doorbell import Doorbell
from shmbroker.shm.rings import Rings

SIGN_INTERVAL_S = 0.1
"""The time between two signs of life of a process that is up anyway; none gets up for one. A busy
broker on a starved machine then has nearly all of `broker.session.timeout.ms` to get a turn in."""
BACKLOG_RETRY_S = 0.002
"""How long to sleep while something waits for room in a ring."""


class Owner(Protocol):
    """What a member tells of what became of its peers."""

    def on_peer_lost(self, peer: Peer, /) -> None:
        """The process behind `peer` is dead: fail what is pending with it."""

    def on_peer_running(self, peer: Peer, /) -> None:
        """The process behind `peer` may be sent to."""


class FamilyMember:
    """The process of one slot, as the others see it and as it sees the others."""

    def __init__(
        self,
        index: int,
        counters: Counters,
        doorbell: Doorbell,
        supervisor: Doorbell,
        peers: Sequence[Peer],
    ) -> None:
        self.index = index
        self.counters = counters
        self.words = counters.words
        self.doorbell = doorbell
        self.supervisor = supervisor
        self.peers = peers
        self.rings = Rings(peer.reader for peer in peers)
        """What its peers send, ring by ring in their order."""
        self.outbox: dict[Peer, None] = {}
        """The peers that have something to be shown."""
        for peer in peers:
            peer.outbox = self.outbox
        self.tally = Tally(counters, index)
        self.incarnation = self.words[counters.at(index, INCARNATION)]
        self.announcements = -1
        """How many of the supervisor's `look_at_announcements` has seen."""
        self.has_served = False
        self._liveness_index = counters.at(index, LIVENESS_NS)
        self._next_sign = 0.0
        self._states = [
            (
                peer,
                counters.at(peer.slot, INCARNATION),
                counters.at(peer.slot, STATE),
                counters.acknowledgement(index, peer.slot),
            )
            for peer in peers
        ]

    # ── control ─────────────────────────────────────────────────────────────────────────────────

    def set_state(self, state: int) -> None:
        """Say what this process is doing, and let the supervisor see it at once."""
        self.words[self.counters.at(self.index, STATE)] = state
        self.supervisor.ring()

    def say_running(self) -> None:
        self.has_served = True
        self.set_state(STATE_RUNNING)

    def say_stopping(self) -> None:
        self.set_state(STATE_STOPPING)

    def look_at_announcements(self, owner: Owner) -> None:
        """See who died and who came; cheap when nobody did."""
        announcements = self.words[ANNOUNCEMENTS_WORD]
        if announcements == self.announcements:
            return
        self.announcements = announcements
        words = self.words
        acknowledged = False
        for peer, incarnation_index, state_index, acknowledgement_index in self._states:
            incarnation = words[incarnation_index]
            if words[acknowledgement_index] != incarnation:
                peer.incarnation = 0
                owner.on_peer_lost(peer)
                peer.reset()
                words[acknowledgement_index] = incarnation
                acknowledged = True
            usable = incarnation if words[state_index] == STATE_RUNNING else 0
            if usable != peer.incarnation:
                if usable == 0:
                    # It is stopping: it still answers what it has.
                    if words[state_index] != STATE_STOPPING:
                        peer.incarnation = 0
                else:
                    peer.incarnation = usable
                    owner.on_peer_running(peer)
        if acknowledged:
            self.supervisor.ring()
        self.on_announcement()

    def on_announcement(self) -> None:
        """Something else that is told to everybody may be new."""

    def sign(self, now: float) -> None:
        """Leave a sign of life, ten times a second at most. `now`: monotonic seconds."""
        if now >= self._next_sign:
            self._next_sign = now + SIGN_INTERVAL_S
            self.words[self._liveness_index] = int(now * 1e9)

    def show_claims(self) -> None:
        """Count the claims on this process's rings that were refused."""
        self.tally.show("claims_refused", sum(peer.writer.refused for peer in self.peers))

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def has_entries(self) -> bool:
        """Whether some peer has put something on its ring."""
        return bool(self.rings.ready())

    def has_news(self) -> bool:
        """Whether something has come for which nobody may have rung, as this was up yet."""
        return self.has_entries() or self.words[ANNOUNCEMENTS_WORD] != self.announcements

    def has_backlog(self) -> bool:
        """Whether something waits for room in a ring: nobody rings for that, so look again soon."""
        return bool(self.outbox) and any(peer.backlog for peer in self.outbox)

    def stamp(self, now: float) -> bool:
        """Have everyone who is about to be shown something measure how long it waits; False if
        nobody is. `now`: monotonic seconds."""
        for peer in self.outbox:
            peer.writer.stamp(int(now * 1e9))
        return bool(self.outbox)

    def publish(self) -> None:
        """Show every peer what it has been sent since the last time."""
        for peer in list(self.outbox):
            if peer.backlog:
                peer.resume()
            peer.publish()
