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

    from shmbroker.apis.contexts import GatewayApi
    from shmbroker.gateway.connection import Connection
    from shmbroker.gateway.standing import StandingKey
    from shmbroker.ipc.passed_files import FileSlice
    from shmbroker.ipc.peer import Peer

    Bytes = bytes | bytearray | memoryview
    Part = Bytes | FileSlice
    """A piece of an answer."""


class Request:
    """One request. Those of Produce, of Fetch and of all other APIs are classes of their own."""

    __slots__ = (
        "api_key",
        "api_version",
        "client_id",
        "connection",
        "correlation_id",
        "mended",
        "peer",
        "pending",
        "received",
        "response",
        "token",
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
        self.response: list[Part] | None = None
        self.peer: Peer | None = None
        self.pending = 0
        self.token = 0
        """What the result of its one operation is known by; a Produce has one for each batch."""
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
            frame = b"".join(self.response)  # type: ignore[arg-type]  # Fetch is not mended
            _, at = parse_response_header(self.api_key, self.api_version, frame, 4)
            self.mended = mended
            self.answer(frame[at:])
        elif before is None:
            self.mended = mended
        else:
            self.mended = lambda body: mended(before(body))


class PlainRequest(Request):
    """A request that is not hot: see `gateway.forwarding`."""

    __slots__ = ("decoded", "finish", "forwarded", "has_asked_for_topics", "standing_key")

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
    ) -> None:
        super().__init__(connection, api_key, api_version, correlation_id)
        self.decoded: tuple[GatewayApi, dict[str, Any]] | None = None
        """The module that answers it from the image, and its body."""
        self.forwarded: tuple[bytes | None, bytes, bytes] | None = None
        """Client id, body and packed identity, as a controller is asked, and asked again."""
        self.finish: Callable[[bytes], None] | None = None
        """What is called with the result of what this gateway asked for its sake. None: the result
        is the answer."""
        self.has_asked_for_topics = False
        """The controller was asked for the topics that it names, and is not asked again."""
        self.standing_key: StandingKey | None = None
        """What its answer is kept by if it may be given again: see `gateway.standing`."""
