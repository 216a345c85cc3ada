"""A request in flight: from its frame until its answer is handed to the socket.

Rules of this file:
* `response` is None until the answer is complete; then it is a list of parts: bytes, or file slices
  (`ipc.passed_files.FileSlice`). An empty list means that no answer is sent (acks=0).
* Answers leave in request order; the connection's queue sees to that.
"""

from __future__ import annotations

from shmbroker.wire.frame import parse_response_header, response_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.gateway.connection import Connection
    from shmbroker.ipc.peer import Peer


class Request:
    """One request. `finish` is called when a result for its token arrives."""

    __slots__ = (
        "api_key",
        "api_version",
        "body",
        "client_id",
        "connection",
        "correlation_id",
        "finish",
        "mended",
        "peer",
        "pending",
        "received",
        "response",
        "state",
        "tokens",
    )

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
    ) -> None:
        self.connection = connection
        self.received = connection.last_active
        """When its bytes were read, by the monotonic clock of that turn."""
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id: bytes | None = None
        self.response: list[Any] | None = None
        self.finish: Callable[..., None] | None = None
        self.peer: Peer | None = None
        self.pending = 0
        self.state: Any = None
        self.tokens: list[int] | None = None
        self.body: Any = None
        self.mended: Callable[[bytes], bytes] | None = None
        """What is done to the answer's body, as its client may not see all of it."""

    def answer(self, body: bytes) -> None:
        """The answer is complete: its encoded body."""
        if self.mended is not None:
            body = self.mended(body)
        self.response = [response_frame(self.api_key, self.api_version, self.correlation_id, body)]

    def mend(self, mended: Callable[[bytes], bytes]) -> None:
        """Have the answer changed, be it there already or not, and after what was to be done to it
        before."""
        before = self.mended
        if self.response:
            frame = b"".join(self.response)
            _, at = parse_response_header(self.api_key, self.api_version, frame, 4)
            self.mended = mended
            self.answer(frame[at:])
        elif before is None:
            self.mended = mended
        else:
            self.mended = lambda body: mended(before(body))
