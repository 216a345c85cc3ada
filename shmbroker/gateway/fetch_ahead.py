"""Slices that were told before they are asked for: fetches that are answered here.

   KnownFetch of large slices ── READ (READ_FLAG_AHEAD) ──►  READ_DONE: its slice
                                                             READ_AHEAD: those behind it
                                                                 │ on_read_ahead
                                                                 ▼
   the same request, of the next offset ────────────────►  ToldSlices of the connection ──► answer

Rules of this file:
* Slices are asked for where a client reads a partition in large slices, by requests that are known
  by their bytes (`fetch_known`): so a request of the next offset means the same as the one before.
* A slice is used once, in order. When such a request asks for another offset, or is another one,
  all that are left are dropped.
* What the I/O worker answers after it has told is newer: a request of the same bytes brings the
  numbers of what is left up to date, any other ends it. So a client sees no number go back.
* A slice is used only within TOLD_S after the I/O worker has told it, and not after that has said
  by AHEAD_ENDS in shared memory that it holds no more: so an answer is one that the broker would
  have given a moment ago.
* No descriptor is kept for a slice: where the file is gone or forgotten, the I/O worker is asked.
* For a client with a quota the I/O worker is asked each time.
"""

from __future__ import annotations

from shmbroker.gateway.fetch_request import API_KEY, FetchRequest
from shmbroker.ipc.operation_layout import READ_AHEAD_HEAD, READ_AHEAD_ROW
from shmbroker.known import Known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.fetch_known import KnownFetch
    from shmbroker.gateway.ports import RequestContext
    from shmbroker.ipc.peer import Peer

TOLD_S = 0.05
"""The high watermark of an answer is no older than that."""
ASKED_MAX = 1024
"""Connections that wait for slices. Some wait in vain, where there was nothing to tell."""
AWAITED_TURNS = 4
"""The number of the gateway's turns, after one has asked, in which its slices come."""


class ToldSlices:
    """What the next requests of one connection are answered with."""

    __slots__ = ("ends", "file_id", "known", "numbers", "rows", "slot", "until")
    ends: int
    file_id: int
    known: KnownFetch
    numbers: tuple[int, int, int]
    """High watermark, last stable offset, log start."""
    rows: list[tuple[int, int, int, int]]
    """READ_AHEAD_ROWs, the next one last."""
    slot: int
    """The slot of the I/O worker that has told."""
    until: float


class FetchAhead:
    """What the connections of one gateway were told."""

    def __init__(self, gateway: RequestContext) -> None:
        self._gateway = gateway
        self.asked: Known[int, tuple[Connection, KnownFetch]] = Known(ASKED_MAX)
        """The connections that have asked to be told, by the token of the READ."""
        self.awaited_turns = 0
        """The number of turns to come in which the rings are looked at before the sockets: the
        client's next request may be there, and what answers it."""

    def ask(self, connection: Connection, known: KnownFetch, token: int) -> None:
        """The READ with this token asks for it."""
        self.asked.keep(token, (connection, known))
        self.awaited_turns = AWAITED_TURNS

    def on_read_ahead(self, peer: Peer, data: memoryview, index: int, length: int) -> None:
        """Keep what a READ_AHEAD entry tells."""
        token, ends, file_id, *numbers = READ_AHEAD_HEAD.unpack_from(data, index)
        asked = self.asked.pop(token, None)
        if asked is None or asked[0].is_closed:
            return
        told = ToldSlices()
        told.ends = ends
        told.file_id = file_id
        told.slot = peer.slot
        told.numbers = tuple(numbers)
        rows = data[index + READ_AHEAD_HEAD.size : index + length]
        told.rows = list(READ_AHEAD_ROW.iter_unpack(rows))
        told.rows.reverse()
        rows.release()
        connection, told.known = asked
        told.until = connection.last_active + TOLD_S
        connection.ahead = told

    def has_answered(
        self,
        connection: Connection,
        known: KnownFetch,
        peer: Peer,
        offset: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Answer a request from what the connection was told; False if that does not fit, and then
        it counts no more."""
        told = connection.ahead
        assert told is not None
        rows = told.rows
        while rows and rows[-1][0] < offset:
            rows.pop()  # it asked for them before they were told
        if (
            rows
            and rows[-1][0] == offset
            and told.known is known
            and told.slot == peer.slot
            and told.until > connection.last_active
            and told.ends == self._gateway.ahead_ends[peer.slot][0]
            and connection.throttle is None
            and (file := self._gateway.files[peer.slot].find(told.file_id)) is not None
        ):
            _, position, length, _ = rows.pop()
            if not rows:
                connection.ahead = None
            request = FetchRequest(connection, API_KEY, version, correlation_id)
            request.client_id = known.client_id
            request.response = known.answer_of_slice(request, told.numbers, file, position, length)
            connection.inflight.append(request)
            return True
        connection.ahead = None
        return False
