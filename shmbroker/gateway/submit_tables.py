"""The tables of what starts a request: by API key, one for each kind of client.

   of_admitted   of who has shown who it is     audit ──► guard ──► what serves the API
   submits       of everybody else              audit ────────────► what serves the API
   of_readers    of other users of this host, by the control socket: a few APIs that only read

Rules of this file:
* What serves an API comes in; here is what stands before it, where the settings ask for that.
  Without an authorizer the first two tables are one.
* Quotas stand in the table of who is admitted, while there are any: see `quotas`.
* What is denied is told once, though it may be asked again in the same turn.
"""

from __future__ import annotations

from shmbroker.apis import table
from shmbroker.audit import Audit
from shmbroker.errors import ProtocolFault
from shmbroker.gateway.audited import Audited, who_is
from shmbroker.gateway.guard import Guard
from shmbroker.wire.api_keys import LIST_SEGMENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.guard import Denial
    from shmbroker.gateway.inflight import PlainRequest
    from shmbroker.gateway.ports import Submit
    from shmbroker.metadata.image import MetadataImage
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.shm.counters import Tally


class SubmitTables:
    """The tables of one gateway, and who judges and notes what goes by them."""

    def __init__(
        self,
        submits: dict[int, Submit],
        config: BrokerConfig,
        image: MetadataImage,
        tally: Tally,
        now: Callable[[], float],
    ) -> None:
        """submits: what serves each API. now: the time of this turn."""
        self._tally = tally
        self._now = now
        self._told_denied: object = None
        self.submits = submits
        self.of_readers = {key: submits[key] for key in table.FOR_READERS}
        self.of_readers[LIST_SEGMENTS] = self._list_segments_of_readers
        self.guard: Guard | None = None
        self.audit: Audit | None = None
        self._audited: Audited | None = None
        if config.has_authorizer:
            self.guard = Guard(config, image, table.JUDGED, submits, self._on_denied)
        if config.is_audited:
            self.audit = Audit()
            self._audited = Audited(self.audit, table.JUDGED)
            self.submits = self._audited.around(submits)
            if self.guard is not None:
                self.guard.submits = self._audited.around(self.guard.submits)
        self.of_admitted = self.submits if self.guard is None else self.guard.submits

    def note_created(self, request: PlainRequest) -> None:
        """The controller was asked for topics that a request names: tell the audit what comes of
        it."""
        finish = request.finish
        if self._audited is not None and finish is not None:
            who, created = who_is(request.connection), self._audited.created

            def told(body: bytes) -> None:
                created(who, body)
                finish(body)

            request.finish = told

    def _list_segments_of_readers(
        self,
        connection: Connection,
        buffer: bytearray,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> bool:
        """Another user lists files; later versions make a broker stand still, and are not his."""
        if version:
            raise ProtocolFault(f"ListSegments version {version} of another user")
        submit = self.submits[LIST_SEGMENTS]
        return submit(connection, buffer, start, end, version, correlation_id)

    def _on_denied(self, connection: Connection, api: str, denials: list[Denial]) -> None:
        """ACLs have denied a request, or a part of it."""
        told = (self._now(), connection, api, denials)
        if told == self._told_denied:
            return
        self._told_denied = told
        self._tally.add("requests_denied")
        if self.audit is not None:
            self.audit.denied(who_is(connection), api, denials)
