"""Standing answers to all connections that can be read, in one call of a compiled kernel
(`kernels/standing.c`).

   events ──► StandingReady.take ──► repeat_standing: recv, known bytes, value of the grant, send
                 │                        │ something else, with the bytes that were read
                 └── other events         └──► take_frames, as of any other

Rules of this file:
* It does what `StandingRepeats.repeat` does, for requests whose bytes that one knows, and nothing
  else: what else comes goes the usual way with the bytes that were read.
* Only a connection is read so that had a standing answer (`Connection.has_standing`), and of which
  nothing is under way. What stands around the APIs with such answers (rights, quotas, an audit
  log) is asked as usual: then nothing goes this way.
"""

from __future__ import annotations

from shmbroker.apis import table
from shmbroker.gateway.connection import Connection
from shmbroker.gateway.poller import EPOLLIN
from shmbroker.kernels import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.gateway import Gateway

API_KEYS = tuple(module.API_KEY for module in table.WITH_STANDING_ANSWERS)

repeat_standing = None if native is None else native.repeat_standing


class StandingReady:
    """What is asked first when connections of a network worker can be read."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._loop = gateway.loop
        self._standing = gateway.standing
        self.served = 0
        """Reads of which all was answered."""

    def take(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Answer whom the kernel can answer; the other events."""
        gateway, loop = self._gateway, self._loop
        submits, unguarded = gateway.tables.of_admitted, gateway.plain.submits
        if (
            repeat_standing is None
            or not self._standing.known
            or loop.memory.is_short
            or any(submits[key] is not unguarded[key] for key in API_KEYS)
        ):
            return events
        connections = loop.connections
        others: list[tuple[int, int]] = []
        ready: list[Connection] = []
        rows: list[tuple[int, int]] = []
        for event in events:
            connection = connections.get(event[0])
            if (
                connection is None
                or not connection.has_standing
                or event[1] != EPOLLIN
                or connection.submits is not submits
                or connection.is_held
                or connection.inflight
                or connection.out
                or connection.buffer is not None
                or connection.throttle is not None
                or connection.stranger is not None
                or type(connection) is not Connection
            ):
                others.append(event)
            else:
                ready.append(connection)
                rows.append((event[0], connection.listener.broker_id))
        if rows:
            self._repeat(ready, rows)
        return others

    def _repeat(self, ready: list[Connection], rows: list[tuple[int, int]]) -> None:
        loop, standing = self._loop, self._standing
        traffic, now, first, count = loop.traffic, self._gateway.now(), 0, len(rows)
        while first < count:
            reached, at, end, repeated, received, sent, unsent = repeat_standing(  # type: ignore[misc]
                rows, first, loop.scratch, standing.known, int(now * 1e9)
            )
            traffic.received_bytes += received
            traffic.sent_bytes += sent
            standing.repeated += repeated
            for connection in ready[first:reached]:
                connection.last_active = connection.asked_other_at = now
            self.served += reached - first
            for which, left in unsent:
                ready[which].out.append(left)
                if which != reached:
                    loop.flush(ready[which])
            if reached < count:
                self._read_usually(ready[reached], at, end)
            first = reached + 1

    def _read_usually(self, connection: Connection, at: int, end: int) -> None:
        """Something else has come of it, or nothing could be read."""
        loop = self._loop
        if connection.is_closed:  # by one before it
            return
        connection.has_standing = False
        if end < 0:
            loop.on_readable(connection, EPOLLIN)
            return
        connection.last_active = self._gateway.now()
        if connection.out:
            loop.flush(connection)
        if not connection.is_closed:
            loop.take_frames(connection, loop.scratch, at, end)
