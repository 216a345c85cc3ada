"""Standing answers, given again: a request that a broker has granted one for (`shm.standing`).

   granted   the EXECUTED has the word and the value of the grant; the frame is kept
   repeated  the same bytes come again, and the word still has that value: the frame, at once
   withdrawn the word has another value: the request is forwarded as any

The broker is not asked for a repeat. It sees in the word when an answer was last used. To many
connections at once a compiled kernel says it again (`gateway.standing_ready`).
"""

from __future__ import annotations

from collections.abc import Mapping

from shmbroker.gateway.recogniser import BEHIND_CORRELATION_ID, CORRELATION_ID_AT
from shmbroker.ipc.operation_layout import STANDING_GRANT
from shmbroker.known import Known
from shmbroker.shm.standing import USED_NS
from shmbroker.wire.frame import response_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.inflight import PlainRequest
    from shmbroker.ipc.peer import Peer

COUNT_MAX = 16384
"""Requests that are remembered, some 500 bytes each."""
REQUEST_BYTES_MAX = 1024

StandingKey = tuple[int, int, int, bytes]
"""Broker, API key and version of a request, and its bytes behind the correlation id."""
Standing = tuple[memoryview, int, int, bytes, bytes]
"""Words of the table, word and value of the grant; the frame before and behind the correlation id.
"""


class StandingRepeats:
    """The standing answers of one gateway. words: those of the brokers' tables, by their slot."""

    def __init__(self, words: Mapping[int, memoryview]) -> None:
        self._words = words
        self.known: Known[StandingKey, Standing] = Known(COUNT_MAX)
        self.repeated = 0
        """How many were given so far."""

    def repeat(
        self,
        connection: Connection,
        api_key: int,
        version: int,
        buffer: bytearray,
        start: int,
        end: int,
    ) -> StandingKey | None:
        """Answer the request at once if it may be, and return None; else the key to `keep` its
        answer by."""
        behind = start + BEHIND_CORRELATION_ID
        key = (connection.listener.broker_id, api_key, version, bytes(buffer[behind:end]))
        found = self.known.get(key)
        if found is not None:
            words, word, value, head, tail = found
            if words[word] == value:
                words[word + USED_NS] = int(connection.last_active * 1e9)
                connection.out.append(head + buffer[start + CORRELATION_ID_AT : behind] + tail)
                self.repeated += 1
                return None
            del self.known[key]
        return key

    def keep(self, request: PlainRequest, peer: Peer, granted: bytes) -> bytes:
        """Remember an answer that may be given again: its body."""
        word, value = STANDING_GRANT.unpack_from(granted)
        body = granted[STANDING_GRANT.size :]
        if request.standing_key is not None:
            frame = response_frame(request.api_key, request.api_version, 0, body)
            words = self._words[peer.slot]
            self.known.keep(request.standing_key, (words, word, value, frame[:4], frame[8:]))
        return body
