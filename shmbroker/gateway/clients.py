"""The connections of a gateway, from who may come to what ends with them: its event loop asks.

   may_accept, rest_s, holds_back, admits ──► on_opened ──► door ──► admit ──► … ──► on_closed
                                                  │           └───► on_refused ──────────▲
                                                  └── no door ──────► admit

Rules of this file:
* Connections are counted over all network workers: each stores how many it has, and looks at those
  of the siblings that run. One that is lent counts where it came in.
* The control socket has no limits, no door and nobody to show who it is.
"""

from __future__ import annotations

import logging

from shmbroker import logs
from shmbroker.gateway.connection import NEVER_S, Connection
from shmbroker.gateway.connection_limits import ConnectionLimits
from shmbroker.gateway.ends import IDLE, is_slow
from shmbroker.security.acls import ANONYMOUS
from shmbroker.shm.counters import OPEN_CONNECTIONS, STATE, STATE_RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from shmbroker.gateway.gateway import Gateway
    from shmbroker.gateway.listener import Listener
    from shmbroker.gateway.ports import Siblings
    from shmbroker.gateway.submit_tables import SubmitTables

logger = logging.getLogger(__name__)

PROTOCOL_FAULT = "a client's bytes or requests that can't be answered"
NOT_AUTHENTICATED = "clients that did not authenticate"


class Clients:
    """The clients of one gateway."""

    def __init__(
        self,
        gateway: Gateway,
        tables: SubmitTables,
        siblings: Siblings,
        patience_s: Mapping[str, float],
    ) -> None:
        """tables: what they may ask. patience_s: how long who comes by a listener may take to show
        who it is, by the name of each listener but the control socket's."""
        self._gateway = gateway
        self._patience_s = patience_s
        self._doorbells = siblings.doorbells
        self._tally = gateway.member.tally
        self.now = gateway.now
        self.submits = tables.submits
        self.submits_of_readers = tables.of_readers
        self._submits_of_admitted = tables.of_admitted
        self._words = gateway.words
        at = gateway.member.counters.at
        self._open_index = at(gateway.member.index, OPEN_CONNECTIONS)
        self._others = [(at(n, OPEN_CONNECTIONS), at(n, STATE), n) for n in siblings.doorbells]
        self.limits = ConnectionLimits(
            siblings.address_counts, self._open_everywhere, self._running, patience_s
        )
        self._words[self._open_index] = 0

    # ── how many there are ──────────────────────────────────────────────────────────────────────

    def may_accept(self) -> bool:
        """Whether this worker has at most one connection more than the one with the fewest."""
        words = self._words
        fewest = min(
            (words[count] for count, state, _ in self._others if words[state] == STATE_RUNNING),
            default=1 << 30,
        )
        return len(self._gateway.loop.connections) <= fewest + 1

    def show_open(self) -> None:
        """Let others see how many connections this has, those included that it has lent."""
        self._words[self._open_index] = self._open_here()

    def _open_here(self) -> int:
        gateway = self._gateway
        away = 0 if gateway.lending is None else gateway.lending.away
        return len(gateway.loop.connections) + away

    def _open_everywhere(self) -> int:
        """The connections of the whole family, as far as the others have said."""
        words = self._words
        return self._open_here() + sum(
            words[count] for count, state, _ in self._others if words[state] == STATE_RUNNING
        )

    def _running(self) -> list[int]:
        """The slots of the siblings that run."""
        words = self._words
        return [slot for _, state, slot in self._others if words[state] == STATE_RUNNING]

    # ── who may come ────────────────────────────────────────────────────────────────────────────

    def rest_s(self, listener: Listener) -> float:
        """How many seconds a listener accepts nobody: more come than are let in a second."""
        rest_s = self.limits.rest_s(listener.config.name, self.now())
        if rest_s:
            self._tally.add("listeners_rested")
        return rest_s

    def holds_back(self, accepted: socket.socket, broker_id: int, address: str) -> bool:
        """Whether a new connection of this address comes too early (connection_creation_rate)."""
        quotas = self._gateway.quotas
        return quotas.has_rates and quotas.hold_back(accepted, address, broker_id)

    def admits(self, address: str, listener: Listener) -> bool:
        """Whether a connection of this address ("": the control socket) is within the limits."""
        if refusal := self.limits.take(address, listener.config.name):
            whom = "address" if refusal.startswith("max.connections.per.ip") else "all"
            self._tally.add(f"connections_refused_for_{whom}")
            line = f"closed a new connection of {address} at once: {refusal}"
            kind = f"closed at once by {refusal.partition(' ')[0]}"
            logger.warning("%s", line, extra=logs.seldom(kind))
        return not refusal

    def on_left_accepting(self) -> None:
        """Somebody else has fewer connections: it must be watching."""
        for doorbell in self._doorbells.values():
            doorbell.ring()

    # ── who has come ────────────────────────────────────────────────────────────────────────────

    def on_opened(self, connection: Connection) -> None:
        """Send a connection to its listener's door, or admit it where there is none."""
        self.show_open()
        self._tally.add("connections_accepted")
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("a connection of %s", connection.peer_name())
        gateway, listener = self._gateway, connection.listener
        if listener.door is not None:
            self.wait_for_who(connection)
            listener.door.open(connection)
        elif (gateway.guard is not None or gateway.quotas.is_active) and not listener.is_control:
            self.admit(connection, ANONYMOUS)

    def wait_for_who(self, connection: Connection) -> None:
        """Give a connection shmbroker.authentication.timeout.ms to show who it is."""
        connection.deadline = self.now() + self._patience_s[connection.listener.config.name]

    def admit(self, connection: Connection, principal: str, is_by_token: bool = False) -> None:
        """Let a connection ask for what its principal may: it is known who it is. is_by_token: a
        delegation token was what it has shown."""
        gateway = self._gateway
        connection.principal = principal
        connection.is_by_token = is_by_token
        connection.packed_identity = b""
        connection.deadline = NEVER_S
        connection.submits = self._submits_of_admitted
        if gateway.guard is not None:
            connection.scope = (connection.listener.broker_id, principal, connection.address)
        if gateway.quotas.is_active:
            gateway.quotas.begin(connection)

    def on_refused(self, connection: Connection, why: str) -> None:
        """A client could not show who it is; its connection is about to end."""
        self._tally.add("authentications_failed")
        where = f"{connection.peer_name()} on listener {connection.listener.config.name}"
        line = f"did not authenticate {where}: {why}"
        logger.warning("%s", line, extra=logs.seldom(NOT_AUTHENTICATED))

    # ── who has gone ────────────────────────────────────────────────────────────────────────────

    def on_closed(self, connection: Connection, reason: str, is_fault: bool) -> None:
        """Count it, say why where the client is at fault, and let go of all that is for it."""
        gateway, tally = self._gateway, self._tally
        self.limits.release(connection.address, connection.listener.config.name)
        tally.add("connections_closed")
        if reason == IDLE:
            tally.add("connections_closed_idle")
        if is_fault:
            is_too_slow = is_slow(reason)
            tally.add("connections_closed_slow" if is_too_slow else "protocol_faults")
            line = f"closed the connection of {connection.peer_name()}: {reason}"
            kind = reason if is_too_slow else PROTOCOL_FAULT
            logger.warning("%s", line, extra=logs.seldom(kind))
        elif logger.isEnabledFor(logging.DEBUG):
            logger.debug("the connection of %s has ended: %s", connection.peer_name(), reason)
        if gateway.lending is not None:
            gateway.lending.on_closed(connection)
        self.show_open()
        gateway.results.cancel_reads(connection)
        gateway.fetch.implied.end(connection)

    def on_ended_away(self, connection: Connection) -> None:
        """One that was lent has ended where it was."""
        self.limits.release(connection.address, connection.listener.config.name)
        self.show_open()
